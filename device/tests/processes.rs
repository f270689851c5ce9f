//! The compile pool, and a worker with a GPU that pretends. This very program is the worker: hence its own `main`.

mod fake;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};
use tilewright_device::cache::Cache;
use tilewright_device::gpu::{Gpu, GpuSettings};
use tilewright_device::gpu_error::GpuError;
use tilewright_device::nvrtc::{CompileError, Compiled, Nvrtc, Options, SearchPath};
use tilewright_device::pool::{CompilePool, Next, PoolSettings, Programs, compile_worker};
use tilewright_device::remote::{Answer, Offer, Remote, RemoteHandle};
use tilewright_device::session::{BufferSpec, Code, Role, Session, SessionSettings};
use tilewright_device::worker::{Worker, WorkerCommand, WorkerError, end_process, serve};

type Test = (&'static str, fn(&SearchPath));

const TESTS: [Test; 8] = [
    (
        "a_worker_that_hangs_ends_with_its_parent",
        a_worker_that_hangs_ends_with_its_parent,
    ),
    (
        "a_kernel_that_crashes_hangs_or_faults_is_a_result",
        a_kernel_that_crashes_hangs_or_faults_is_a_result,
    ),
    (
        "many_programs_come_back_in_order",
        many_programs_come_back_in_order,
    ),
    (
        "the_cache_spares_the_compiler",
        the_cache_spares_the_compiler,
    ),
    (
        "what_comes_from_the_cache_is_confirmed",
        what_comes_from_the_cache_is_confirmed,
    ),
    (
        "what_comes_from_another_machine_is_confirmed",
        what_comes_from_another_machine_is_confirmed,
    ),
    ("a_lost_worker_is_a_result", a_lost_worker_is_a_result),
    ("no_nvrtc_is_a_result", no_nvrtc_is_a_result),
];

const NEED_NVRTC: [&str; 4] = [
    "many_programs_come_back_in_order",
    "the_cache_spares_the_compiler",
    "what_comes_from_the_cache_is_confirmed",
    "what_comes_from_another_machine_is_confirmed",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments
        .iter()
        .any(|argument| argument == "compile-worker")
    {
        compile_worker(std::io::stdin(), std::io::stdout())
            .expect("the worker should end with its input");
        return ExitCode::SUCCESS;
    }
    if let [worker, driver] = arguments.as_slice()
        && worker == "gpu-worker"
    {
        gpu_worker(driver.into());
        return ExitCode::SUCCESS;
    }
    let search = SearchPath {
        library: std::env::var_os("TILEWRIGHT_NVRTC").map(PathBuf::from),
        ..SearchPath::default()
    };
    let mut arguments = Arguments::from_args();
    // Deadlines are judged by the clock.
    arguments.test_threads.get_or_insert(1);
    let trials = TESTS.map(|(name, test)| {
        let search = search.clone();
        Trial::ignorable_test(name, move || {
            if search.library.is_none()
                && NEED_NVRTC.contains(&name)
                && let Err(error) = Nvrtc::open(&search)
            {
                return Ok(Completion::ignored_with(error));
            }
            test(&search);
            Ok(Completion::Completed)
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
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
        stop: Arc::default(),
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
    let cache = Cache::open(folder.path(), 1 << 30).expect("a folder of our own");
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

/// What another put in the place of an entry is told from what the compiler makes, and gives way to it.
fn what_comes_from_the_cache_is_confirmed(search: &SearchPath) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = Cache::open(folder.path(), 1 << 30).expect("a folder of our own");
    let (source, arch) = program(0);
    let mut first = pool(search, 1, Some(cache.clone()));
    let honest = first.compile(&source, &arch).expect("it should compile");
    assert_eq!(first.confirm(&[(&source, &honest)], &arch), Ok(true));
    let version = first.version(&arch).expect("a compiler");
    let key = Cache::key(
        &source,
        &Options::default().arguments(&arch, &source),
        version,
    );
    assert_eq!(cache.get(&key), Some(honest.clone()));

    let mut forged = honest.clone();
    *forged.cubin.last_mut().expect("machine code") ^= 1;
    for (entry, expected) in [(&honest, true), (&forged, false)] {
        cache.put(&key, entry).expect("our own");
        let mut pool = pool(search, 1, Some(cache.clone()));
        let found = pool.compile(&source, &arch).expect("an entry");
        assert!(found == *entry, "the cache was not used");
        assert_eq!(pool.confirm(&[(&source, &found)], &arch), Ok(expected));
        let kept = cache.get(&key).expect("an entry");
        assert!(kept.cubin == honest.cubin, "the forged entry stays");
    }
}

/// Another machine, which answers each program with the same.
struct Elsewhere {
    compiled: Compiled,
    offered: Mutex<Vec<u64>>,
}

impl Remote for Elsewhere {
    fn compiler(&self, _: &str) {}

    fn room(&self) -> usize {
        8
    }

    fn offer(&self, offer: Offer) {
        self.offered.lock().expect("whole").push(offer.number);
    }

    fn take_back(&self, _: u64) {}

    fn forget(&self, _: u64) {}

    fn hear(&self) -> Option<(u64, Answer)> {
        let number = self.offered.lock().expect("whole").pop()?;
        Some((number, Answer::Made(Box::new(Ok(self.compiled.clone())))))
    }
}

/// Programs that are there from the beginning, and what came of them.
struct Few(Vec<String>, Vec<(String, Compiled)>);

impl Programs for Few {
    type Program = String;

    fn next(&mut self, _: usize, _: usize) -> Next<String> {
        let next = self.0.pop();
        next.map_or(Next::End, |source| Next::Program(source.clone(), source))
    }

    fn done(&mut self, source: String, result: Result<Compiled, CompileError>) {
        self.1.push((source, result.expect("it should compile")));
    }
}

/// What another machine made is told from what the compiler makes.
fn what_comes_from_another_machine_is_confirmed(search: &SearchPath) {
    let (source, arch) = program(0);
    let honest = pool(search, 1, None).compile(&source, &arch);
    let mut forged = honest.expect("it should compile");
    *forged.cubin.last_mut().expect("machine code") ^= 1;
    let elsewhere = Elsewhere {
        compiled: forged.clone(),
        offered: Mutex::default(),
    };
    let mut pool = pool(search, 1, None);
    pool.share_with(RemoteHandle(Arc::new(elsewhere)));
    let sources = [0, 1, 3, 4].map(|index| program(index).0);
    let mut all = Few(sources.to_vec(), Vec::new());
    pool.stream(&arch, &mut all).expect("a compiler");
    assert_eq!(all.1.len(), sources.len());
    let is_forged = |made: &Compiled| *made == forged;
    assert!(all.1.iter().any(|(_, made)| is_forged(made)));
    for (source, made) in &all.1 {
        assert_eq!(pool.confirm(&[(source, made)], &arch), Ok(!is_forged(made)));
    }
    // One that is not what it should be is enough.
    let together = all.1.iter().map(|(source, made)| (source.as_str(), made));
    let together: Vec<(&str, &Compiled)> = together.collect();
    assert_eq!(pool.confirm(&together, &arch), Ok(false));
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
        stop: Arc::default(),
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

/// Runs the kernel that a request names on two buffers, and answers with the output.
fn gpu_worker(driver: PathBuf) {
    let gpu = Gpu::open_with(&GpuSettings {
        ordinal: 0,
        driver: Some(driver),
        nvml: None,
    })
    .expect("the fake driver should open");
    let answer = |entry: String| {
        let buffer = |name: &str, role| BufferSpec {
            name: name.into(),
            bytes: 16,
            role,
        };
        let buffers = [buffer("a", Role::Input), buffer("b", Role::Output)];
        let mut session = Session::open(
            &gpu,
            Code::Together(fake::CUBIN),
            &[fake::launch(&entry, &[0, 1])],
            &buffers,
            SessionSettings::default(),
        )?;
        session.upload(0, b"0123456789abcdef")?;
        session.run()?;
        session.download(1)
    };
    serve(
        std::io::stdin(),
        std::io::stdout(),
        || end_process(),
        answer,
    )
    .expect("the worker should end with its input");
}

fn a_kernel_that_crashes_hangs_or_faults_is_a_result(_: &SearchPath) {
    let Some(driver) = fake::driver(&[]) else {
        return;
    };
    let program = std::env::current_exe().expect("this program's path");
    let mut worker = Worker::new(WorkerCommand {
        program,
        arguments: vec!["gpu-worker".into(), driver.as_os_str().into()],
    });
    let mut call = |entry: &str, milliseconds| -> Result<Result<Vec<u8>, GpuError>, WorkerError> {
        worker.call(&entry, Duration::from_millis(milliseconds))
    };
    let fine = Ok(Ok(b"0123456789abcdef".to_vec()));
    assert_eq!(call("copy16_2", 10_000), fine);
    let crash = call("crash_2", 10_000);
    assert!(
        matches!(&crash, Err(WorkerError::Lost { status, .. }) if status.contains("SIGABRT")),
        "{crash:?}"
    );
    assert_eq!(call("copy16_2", 10_000), fine);
    assert_eq!(
        call("hang_2", 500),
        Err(WorkerError::Timeout(Duration::from_millis(500)))
    );
    assert_eq!(call("copy16_2", 10_000), fine);
    let fault = call("fault_2", 10_000);
    assert!(
        matches!(&fault, Ok(Err(error)) if error.is_sticky()),
        "{fault:?}"
    );
    // The process lives on, but its GPU does not: it is the caller's to restart it.
    assert!(matches!(call("copy16_2", 10_000), Ok(Err(_))));
    assert_eq!(worker.starts(), 3);
    worker.restart();
    let answer: Result<Result<Vec<u8>, GpuError>, _> =
        worker.call(&"copy16_2", Duration::from_secs(10));
    assert_eq!(answer, fine);
}

fn a_worker_that_hangs_ends_with_its_parent(_: &SearchPath) {
    let Some(driver) = fake::driver(&[]) else {
        return;
    };
    let program = std::env::current_exe().expect("this program's path");
    let mut child = Command::new(program)
        .arg("gpu-worker")
        .arg(&driver)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a worker");
    let mut stdin = child.stdin.take().expect("its input");
    stdin
        .write_all(b"{\"id\": 0, \"body\": \"hang_2\"}\n")
        .expect("a request");
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        child.try_wait().expect("its state").is_none(),
        "the worker should hang"
    );
    // What the end of the parent does.
    drop(stdin);
    let end = Instant::now() + Duration::from_secs(10);
    let mut ended = false;
    while !ended && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
        ended = child.try_wait().expect("its state").is_some();
    }
    let _ = child.kill();
    assert!(ended, "the worker should end");
}
