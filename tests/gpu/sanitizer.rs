//! Every kind of kernel under the four tools of `compute-sanitizer`.
//!
//! A tool watches a child process, which is this test's own program: it runs every job of a file once and says so in another. What a
//! tool finds, and that it found nothing, is read from its log.

use crate::subjects::{Job, KINDS_OF_KERNELS, subjects};
use device::gpu::Gpu;
use device::nvrtc::{Nvrtc, Options, SearchPath};
use device::session::{Code, Session, SessionSettings};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A tool, and how its log says that nothing was found.
const TOOLS: [(&str, &str); 4] = [
    ("memcheck", "ERROR SUMMARY: 0 errors"),
    (
        "racecheck",
        "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    ),
    ("initcheck", "ERROR SUMMARY: 0 errors"),
    ("synccheck", "ERROR SUMMARY: 0 errors"),
];

/// For all tools together; kernels take milliseconds, and what the tools do to them before they run takes seconds.
const TIME: Duration = Duration::from_secs(230);

/// Lines of a log that are shown.
const SHOWN: usize = 60;

/// The exit code of a tool that found something.
const FOUND: &str = "86";

/// Names the folder of the child's files, and with it says that there are some.
const FOLDER: &str = "TILEWRIGHT_SANITIZED";

/// Names the tool where it is in no usual place.
const PROGRAM: &str = "TILEWRIGHT_COMPUTE_SANITIZER";

/// In the folder: what is to be run, and the names of what ran, a line each.
const JOBS: &str = "jobs.json";
const RAN: &str = "ran";

/// Where `compute-sanitizer` is: where `named` says, in a folder of `path`, or where a toolkit puts it.
fn find(named: Option<OsString>, path: &OsString, toolkits: &[PathBuf]) -> Result<PathBuf, String> {
    if let Some(named) = named {
        let named = PathBuf::from(named);
        return match named.is_file() {
            true => Ok(named),
            false => Err(format!(
                "{PROGRAM} names {}, which is no file",
                named.display()
            )),
        };
    }
    let folders = std::env::split_paths(path);
    let folders = folders.chain(toolkits.iter().map(|t| t.join("bin")));
    let mut files = folders.map(|f| f.join("compute-sanitizer"));
    files
        .find(|f| f.is_file())
        .ok_or("there is no compute-sanitizer in PATH or in CUDA's toolkit".to_owned())
}

/// Waits for a process, and ends it at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> Result<ExitStatus, String> {
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill().map_err(|e| e.to_string())?;
            child.wait().map_err(|e| e.to_string())?;
            return Err("was not done in time".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs the jobs of a folder under a tool: `command` is the child's. All of `names` must have run, and the log must say that nothing was
/// found.
fn watch(
    sanitizer: &Path,
    (tool, clean): (&str, &str),
    command: &[OsString],
    folder: &Path,
    names: &[String],
    deadline: Instant,
) -> Result<(), String> {
    let log = folder.join(format!("{tool}.log"));
    let said = folder.join(format!("{tool}.out"));
    let _ = fs::remove_file(folder.join(RAN));
    let output = fs::File::create(&said).map_err(|e| e.to_string())?;
    let errors = output.try_clone().map_err(|e| e.to_string())?;
    let mut child = Command::new(sanitizer)
        // The driver is asked for one parameter more than a kernel has, to count them: an answer, and no fault.
        .args(["--tool", tool, "--error-exitcode", FOUND])
        .args(["--report-api-errors", "no", "--log-file"])
        .arg(&log)
        .args(command)
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|e| format!("{} does not start: {e}", sanitizer.display()))?;
    let status = wait(&mut child, deadline);
    let log = fs::read_to_string(&log).unwrap_or_default();
    let ran = fs::read_to_string(folder.join(RAN)).unwrap_or_default();
    let ran: BTreeSet<&str> = ran.lines().collect();
    let left: Vec<&str> = (names.iter().map(String::as_str))
        .filter(|name| !ran.contains(name))
        .collect();
    let fault = match status {
        Err(e) => e,
        Ok(status) if !status.success() => format!("ended with {status}"),
        Ok(_) if !left.is_empty() => "did not run all".to_owned(),
        Ok(_) if !log.lines().any(|l| l.ends_with(clean)) => format!("did not say `{clean}`"),
        Ok(_) => return Ok(()),
    };
    let shown: Vec<&str> = log.lines().take(SHOWN).collect();
    let mut message = format!("{tool} {fault}\n{}", shown.join("\n"));
    if !left.is_empty() {
        message.push_str(&format!("\nnot run to the end: {}", left.join(", ")));
        let said = fs::read_to_string(&said).unwrap_or_default();
        let last: Vec<&str> = said.lines().rev().take(SHOWN).collect();
        message.extend(last.iter().rev().flat_map(|l| ["\n", l]));
    }
    Err(message)
}

/// Of a kernel whose threads read what producer warps copied, the text in which every thread releases a stage by itself. As it is one thread
/// does for its warp, behind `__syncwarp`: PTX orders the others' reads before that, and `racecheck` does not follow it. It finds a race
/// in the smallest kernel that does so, with plain stores in place of copies, too, and none where each thread arrives.
fn released_by_all(source: &str) -> String {
    let (library, kernels) = source.split_once(codegen::KERNELS_MARK).expect("kernels");
    if !kernels.contains("tw_halve<") {
        return source.to_owned();
    }
    let mut text = format!("{library}{}", codegen::KERNELS_MARK);
    let mut lines = kernels.lines().peekable();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        let one = trimmed == "if (lane == 0) {"
            && lines
                .peek()
                .is_some_and(|next| next.contains("tw_barrier_arrive("));
        let counted = trimmed.strip_suffix(");").and_then(|l| l.rsplit_once(", "));
        match counted {
            // The second barrier of a stage is the one that is released.
            Some((init, warps))
                if init.starts_with("tw_barrier_init(") && init.contains(" * (") =>
            {
                let threads = 32 * warps.parse::<u32>().expect("a count of warps");
                text.push_str(&format!("{init}, {threads});\n"));
            }
            _ if one => text.push_str("{\n"),
            _ => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

#[test]
#[ignore = "a tool starts it: see `every_kind_of_kernel_is_clean_under_the_sanitizers_tools`"]
fn runs_what_a_tool_watches() {
    let folder = std::env::var_os(FOLDER).expect("a tool starts this test");
    let folder = Path::new(&folder);
    let jobs = fs::read(folder.join(JOBS)).expect("the jobs");
    let jobs: Vec<Job> = serde_json::from_slice(&jobs).expect("jobs");
    let mut ran = fs::File::create(folder.join(RAN)).expect("writable");
    let gpu = Gpu::open(0).expect("a GPU");
    for job in jobs {
        let settings = SessionSettings {
            bare: true,
            local_memory: true,
            ..SessionSettings::default()
        };
        let session = Session::open(
            &gpu,
            Code::Together(&job.cubin),
            &job.launches,
            &job.buffers,
            settings,
        );
        let mut session = session.unwrap_or_else(|e| panic!("{}: {e}", job.name));
        for (buffer, data) in &job.inputs {
            session.upload(*buffer, data.clone()).expect("an input");
        }
        let done = session.run_unwatched();
        done.unwrap_or_else(|e| panic!("{}: {e}", job.name));
        writeln!(ran, "{}", job.name).expect("writable");
    }
}

#[test]
fn every_kind_of_kernel_is_clean_under_the_sanitizers_tools() {
    let required = std::env::var_os("TILEWRIGHT_REQUIRE_GPU").is_some_and(|v| v == "1");
    let skip = |why: String| {
        assert!(!required, "TILEWRIGHT_REQUIRE_GPU is set: {why}");
        eprintln!("skipped: {why}");
    };
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu.info().clone(),
        Err(e) => return skip(e.to_string()),
    };
    let toolkits = ["CUDA_HOME", "CUDA_PATH"];
    let toolkits = toolkits
        .iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from);
    let toolkits: Vec<PathBuf> = toolkits.chain(["/usr/local/cuda".into()]).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sanitizer = match find(std::env::var_os(PROGRAM), &path, &toolkits) {
        Ok(sanitizer) => sanitizer,
        Err(e) => return skip(e),
    };
    let search = SearchPath {
        library: std::env::var_os("TILEWRIGHT_NVRTC").map(Into::into),
        ..SearchPath::default()
    };
    let nvrtc = match Nvrtc::open(&search) {
        Ok(nvrtc) => nvrtc,
        Err(e) => return skip(e.to_string()),
    };
    let target = match search::targets::target_for_device(&gpu.name) {
        Ok(target) => target,
        Err(e) => return skip(e.to_string()),
    };
    let start = Instant::now();
    let jobs: Vec<Job> = subjects(&target)
        .into_iter()
        .map(|subject| {
            let source = released_by_all(&subject.cuda.source);
            let compiled = nvrtc.compile(&source, &target.arch, &Options::default());
            let compiled = compiled.unwrap_or_else(|e| panic!("{}: {e}", subject.name));
            subject.job(compiled.cubin)
        })
        .collect();
    let names: Vec<String> = jobs.iter().map(|j| j.name.clone()).collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = serde_json::to_vec(&jobs).expect("JSON");
    fs::write(folder.path().join(JOBS), text).expect("writable");
    eprintln!(
        "{} jobs after {:.1} s",
        names.len(),
        start.elapsed().as_secs_f64()
    );
    let program = std::env::current_exe().expect("this program");
    let test = "sanitizer::runs_what_a_tool_watches";
    let words = ["--exact", test, "--ignored", "--nocapture"];
    let command: Vec<OsString> = std::iter::once(program.into_os_string())
        .chain(words.map(Into::into))
        .collect();
    let mut faults = Vec::new();
    for tool in TOOLS {
        let begun = Instant::now();
        let watched = watch(
            &sanitizer,
            tool,
            &command,
            folder.path(),
            &names,
            start + TIME,
        );
        eprintln!("{}: {:.1} s", tool.0, begun.elapsed().as_secs_f64());
        faults.extend(watched.err());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// What the tools are given has every kind of kernel: this needs no GPU.
#[test]
fn the_subjects_have_every_kind_of_kernel() {
    let target = search::targets::target("h200").expect("a known target");
    let all = subjects(&target);
    let found: BTreeSet<&str> = all.iter().flat_map(|s| s.kinds()).collect();
    for (kind, word) in KINDS_OF_KERNELS {
        assert!(found.contains(kind), "no kernel has {kind} (`{word}`)");
    }
    let launches: Vec<usize> = all.iter().map(|s| s.cuda.launches.len()).collect();
    assert!(launches.iter().any(|n| *n > 1), "{launches:?}");
    let overlapping = all.iter().flat_map(|s| &s.cuda.launches);
    assert!(overlapping.filter(|l| l.overlaps).count() > 0);
    assert!(all.len() <= 60, "{} take too long", all.len());
}

/// Oracle: a script in the place of `compute-sanitizer`.
#[test]
fn what_a_tool_says_is_understood() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let names = ["one".to_owned(), "two".to_owned()];
    let run = |tool: (&'static str, &'static str), log: &str, ran: &str, end: &str| {
        let script = folder.join("compute-sanitizer");
        let text = format!(
            "#!/bin/sh\n[ \"$1 $2 $3 $4 $5 $6 $7\" = '--tool {} --error-exitcode 86 --report-api-errors no --log-file' ] || exit 9\n[ \"$9\" = child ] || exit 8\n\
             printf '{log}' > \"$8\"\nprintf '{ran}' > \"${FOLDER}/{RAN}\"\necho the child panicked\n{end}\n",
            tool.0
        );
        // Never the file of a process that runs.
        let _ = fs::remove_file(&script);
        fs::write(&script, text).expect("writable");
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a script");
        let deadline = Instant::now() + Duration::from_secs(2);
        watch(&script, tool, &["child".into()], folder, &names, deadline)
    };
    let [memory, race, _, sync] = TOOLS;
    let clean = "========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: 0 errors\\n";
    let no_race = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\\n";
    assert_eq!(run(memory, clean, "one\\ntwo\\n", "exit 0"), Ok(()));
    assert_eq!(run(race, no_race, "one\\ntwo\\n", "exit 0"), Ok(()));
    let parting = "========= Warpgroup MMA sequence error: mismatching warpgroup instruction pc between warps\\n\
                   ========= ERROR SUMMARY: 10 errors\\n";
    let hazard = "========= Error: Race reported between Write access and Read access\\n\
                  ========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\\n";
    #[rustfmt::skip]
    let cases = [
        // A tool that found something, with its exit code and without.
        (sync,   parting, "one\\ntwo\\n", "exit 86", "synccheck ended with exit status: 86\n========= Warpgroup MMA sequence error"),
        (sync,   parting, "one\\ntwo\\n", "exit 0",  "synccheck did not say `ERROR SUMMARY: 0 errors`\n========= Warpgroup"),
        (race,   hazard,  "one\\ntwo\\n", "exit 0",  "1 hazard displayed"),
        // Another tool's summary, and none.
        (race,   clean,   "one\\ntwo\\n", "exit 0",  "racecheck did not say"),
        (memory, "",      "one\\ntwo\\n", "exit 0",  "memcheck did not say"),
        // A child that did not come to its end.
        (memory, clean,   "one\\n",       "exit 0",  "memcheck did not run all\n========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\nnot run to the end: two\nthe child panicked"),
        (memory, clean,   "",             "exit 101", "memcheck ended with exit status: 101"),
        (memory, clean,   "one\\n",       "exec sleep 60", "memcheck was not done in time"),
    ];
    for (tool, log, ran, end, part) in cases {
        let message = run(tool, log, ran, end).expect_err(part);
        assert!(message.contains(part), "{message}\nhas no {part}");
    }
    // The names of the jobs before do not count.
    assert_eq!(run(memory, clean, "one\\ntwo\\n", "exit 0"), Ok(()));
    let message = run(memory, clean, "", "exit 0").expect_err("nothing ran");
    assert!(
        message.contains("not run to the end: one, two"),
        "{message}"
    );
}

#[test]
fn the_tool_is_looked_for_and_its_absence_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bin = folder.path().join("toolkit").join("bin");
    fs::create_dir_all(&bin).expect("writable");
    let tool = bin.join("compute-sanitizer");
    let path = OsString::from(folder.path());
    let toolkits = [folder.path().join("toolkit")];
    let absent = find(None, &path, &toolkits).expect_err("there is none");
    assert_eq!(
        absent,
        "there is no compute-sanitizer in PATH or in CUDA's toolkit"
    );
    let absent = find(Some(tool.clone().into()), &path, &toolkits).expect_err("there is none");
    assert!(absent.ends_with("which is no file"), "{absent}");
    fs::write(&tool, "").expect("writable");
    assert_eq!(find(None, &path, &toolkits), Ok(tool.clone()));
    assert_eq!(find(None, &bin.clone().into(), &[]), Ok(tool.clone()));
    assert_eq!(
        find(Some(tool.clone().into()), &OsString::new(), &[]),
        Ok(tool)
    );
    let gone = watch(
        &folder.path().join("none"),
        TOOLS[0],
        &[],
        folder.path(),
        &[],
        Instant::now(),
    );
    assert!(gone.expect_err("there is none").contains("does not start"));
}
