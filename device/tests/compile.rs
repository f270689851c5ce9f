//! The compile pool, with this very program as its worker: hence its own `main`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is a test runner"
)]

use std::path::PathBuf;
use std::time::Duration;

use tilewright_device::cache::Cache;
use tilewright_device::nvrtc::{CompileError, Compiled, Nvrtc, Options, SearchPath};
use tilewright_device::worker::{
    CompilePool, PoolSettings, WorkerCommand, WorkerError, compile_worker,
};

type Test = (&'static str, fn(&SearchPath));

const TESTS: [Test; 4] = [
    (
        "many_programs_come_back_in_order",
        many_programs_come_back_in_order,
    ),
    (
        "the_cache_spares_the_compiler",
        the_cache_spares_the_compiler,
    ),
    ("a_lost_worker_is_a_result", a_lost_worker_is_a_result),
    ("no_nvrtc_is_a_result", no_nvrtc_is_a_result),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments
        .iter()
        .any(|argument| argument == "compile-worker")
    {
        compile_worker(std::io::stdin(), std::io::stdout())
            .expect("the worker should end with its input");
        return;
    }
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        }
        return;
    }
    let filters: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let search = SearchPath {
        library: std::env::var_os("TILEWRIGHT_NVRTC").map(PathBuf::from),
        ..SearchPath::default()
    };
    let found = Nvrtc::open(&search);
    for (name, test) in TESTS.iter().filter(|(name, _)| {
        filters.is_empty() || filters.iter().any(|filter| name.contains(*filter))
    }) {
        match &found {
            Err(error) if search.library.is_none() && *name != "no_nvrtc_is_a_result" => {
                println!("test {name} ... SKIPPED: {error}")
            }
            Ok(_) | Err(_) => {
                test(&search);
                println!("test {name} ... ok");
            }
        }
    }
}

fn pool(search: &SearchPath, workers: usize, cache: Option<Cache>) -> CompilePool {
    let command = WorkerCommand {
        program: std::env::current_exe().expect("this program's path"),
        arguments: vec!["compile-worker".into()],
    };
    let settings = PoolSettings {
        command,
        workers,
        search: search.clone(),
        options: Options::default(),
        deadline: Duration::from_secs(60),
    };
    CompilePool::new(settings, cache)
}

/// A program whose entry point is `k<index>`; every third one is wrong.
fn program(index: usize) -> (String, String) {
    let body = if index % 3 == 2 {
        "nonsense"
    } else {
        "x[threadIdx.x] = 1"
    };
    (
        format!("extern \"C\" __global__ void k{index}(float* x) {{ {body}; }}"),
        "sm_90a".into(),
    )
}

fn many_programs_come_back_in_order(search: &SearchPath) {
    let programs: Vec<_> = (0..12).map(program).collect();
    let results = pool(search, 3, None).compile_many(&programs);
    assert_eq!(results.len(), 12);
    for (index, result) in results.iter().enumerate() {
        match result {
            Ok(compiled) => assert!(
                index % 3 != 2 && compiled.kernel(&format!("k{index}")).is_some(),
                "{index}"
            ),
            Err(CompileError::Refused { log }) => {
                assert!(index % 3 == 2 && log.contains("nonsense"), "{index}: {log}")
            }
            Err(error) => panic!("{index}: {error}"),
        }
    }
    // One worker gives the same; of the logs only the times that they state may differ.
    let cubins = |results: Vec<Result<Compiled, CompileError>>| {
        results
            .into_iter()
            .map(|result| result.ok().map(|compiled| compiled.cubin))
            .collect::<Vec<_>>()
    };
    assert!(cubins(pool(search, 1, None).compile_many(&programs)) == cubins(results));
}

fn the_cache_spares_the_compiler(search: &SearchPath) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = Cache::new(folder.path(), 1 << 30);
    let (source, arch) = program(0);
    let first = pool(search, 1, Some(cache.clone()))
        .compile(&source, &arch)
        .expect("the text should compile");
    let entries: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert_eq!(entries.len(), 1);
    // The log holds the time that the compilation took: an equal log was not compiled anew.
    assert_eq!(
        pool(search, 1, Some(cache.clone()))
            .compile(&source, &arch)
            .as_ref(),
        Ok(&first)
    );
    // A damaged entry is compiled anew and written again.
    std::fs::write(&entries[0], "damaged").expect("writing");
    let again = pool(search, 1, Some(cache))
        .compile(&source, &arch)
        .expect("the text should compile");
    assert!(again.cubin == first.cubin);
    assert_ne!(
        std::fs::read_to_string(&entries[0]).expect("the entry"),
        "damaged"
    );
}

fn a_lost_worker_is_a_result(search: &SearchPath) {
    let command = WorkerCommand {
        program: "false".into(),
        arguments: vec![],
    };
    let settings = PoolSettings {
        command,
        workers: 2,
        search: search.clone(),
        options: Options::default(),
        deadline: Duration::from_secs(5),
    };
    let results = CompilePool::new(settings, None).compile_many(&[program(0), program(1)]);
    assert_eq!(results.len(), 2);
    for result in results {
        assert!(
            matches!(result, Err(CompileError::Worker(WorkerError::Lost { .. }))),
            "{result:?}"
        );
    }
}

fn no_nvrtc_is_a_result(_: &SearchPath) {
    let search = SearchPath {
        library: Some("/nonexistent/libnvrtc.so".into()),
        ..SearchPath::default()
    };
    let results = pool(&search, 2, None).compile_many(&[program(0), program(1)]);
    assert!(
        results.len() == 2
            && results
                .iter()
                .all(|result| matches!(result, Err(CompileError::NotFound(_)))),
        "{results:?}"
    );
}
