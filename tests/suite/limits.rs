//! What a user names may be anything: each case ends within seconds, with one message that says what was expected and what was found.
//! And no code runs that nobody asked for: neither from the current folder nor from a cache that others wrote.

use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tilewright::artifact;
use tilewright::npz::{self, Array};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// For one refusal, on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// For a search, and for one of something as large as may be.
const SEARCHED: Duration = Duration::from_secs(300);

const ROWS: &str =
    "program rows\naxis i = 6, j = 10\nx = parameter f32 [i, j]\nreturn f32 [i, j] softmax(x; j)\n";

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
        };
        place.write("rows.lax", ROWS);
        let x = Array {
            name: "x".to_owned(),
            shape: vec![6, 10],
            data: (0..60).map(f64::from).collect(),
            dtype: ir::Dtype::F32,
        };
        npz::write(&place.path("in.npz"), &[x]).expect("writable");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("writable");
    }

    fn pipe(&self, name: &str) {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, self.path(name), mode).expect("a pipe");
    }

    /// The program in this folder, with nothing in its environment that says where libraries are.
    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("TILEWRIGHT_CACHE", self.path("cache"))
            .env("XDG_DATA_HOME", self.path("data"));
        for name in [
            "TILEWRIGHT_NVRTC",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "CUDA_HOME",
            "CUDA_PATH",
        ] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let program = Path::new(env!("CARGO_BIN_EXE_tilewright"));
        within(SEARCHED, &mut self.command(program, arguments))
    }

    /// Exit code 1 and one message with all parts, soon.
    fn refuses(&self, arguments: &[&str], parts: &[&str]) {
        let program = Path::new(env!("CARGO_BIN_EXE_tilewright"));
        let output = within(SOON, &mut self.command(program, arguments));
        let message = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        for part in parts {
            assert!(
                message.contains(part),
                "{arguments:?}: no `{part}` in: {message}"
            );
        }
        assert!(!message.contains("panicked"), "{message}");
        assert!(message.len() < 4000, "{} characters", message.len());
        assert!(output.stdout.is_empty(), "standard output is for results");
    }

    fn refuses_inputs(&self, parts: &[&str]) {
        self.refuses(
            &[
                "eval",
                "rows.lax",
                "--inputs",
                "bad.npz",
                "--outputs",
                "out.npz",
            ],
            parts,
        );
        assert!(!self.path("out.npz").exists());
    }

    /// An archive with one array.
    fn array(&self, header: &str, zeros: usize) {
        let file = File::create(self.path("bad.npz")).expect("writable");
        let mut archive = ZipWriter::new(file);
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        archive.start_file("x.npy", options).expect("writable");
        archive.write_all(b"\x93NUMPY\x01\x00").expect("writable");
        let length = (header.len() as u16).to_le_bytes();
        archive.write_all(&length).expect("writable");
        archive.write_all(header.as_bytes()).expect("writable");
        let piece = vec![0; 1 << 20];
        for start in (0..zeros).step_by(piece.len()) {
            archive
                .write_all(&piece[..piece.len().min(zeros - start)])
                .expect("writable");
        }
        archive.finish().expect("writable");
    }
}

/// The output of a command that ends in time; a command that doesn't is ended, and the test with it.
fn within(limit: Duration, command: &mut Command) -> Output {
    // To files: a pipe would have to be emptied meanwhile.
    let [mut stdout, mut stderr] = [(), ()].map(|()| tempfile::tempfile().expect("a file"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("a file"))
        .stderr(stderr.try_clone().expect("a file"))
        .spawn()
        .expect("the program starts");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if begun.elapsed() > limit {
            child.kill().expect("a running child");
            child.wait().expect("an ended child");
            panic!("{command:?} does not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let written = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind().expect("a file");
        file.read_to_end(&mut bytes).expect("a file");
        bytes
    };
    Output {
        status,
        stdout: written(&mut stdout),
        stderr: written(&mut stderr),
    }
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr];
    parts.map(|p| String::from_utf8_lossy(p)).concat()
}

/// 24 brackets: a parser that tries every bracket as two things takes weeks.
#[test]
fn headers_that_nest_are_refused() {
    let place = Place::new();
    let (open, close) = ("[".repeat(24), "]".repeat(24));
    let header =
        format!("{{'descr': {open}'<f8'{close}, 'fortran_order': False, 'shape': (6, 10), }}\n");
    place.array(&header, 480);
    place.refuses_inputs(&["bad.npz", "array `x`", "expected a dtype of numbers"]);
}

/// In less memory than what is claimed would take.
#[test]
fn archives_are_not_inflated_before_their_shape_is_compared() {
    let place = Place::new();
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (134217728,), }\n";
    place.array(header, 1 << 30);
    let parts = ["array `x`", "expected shape [6, 10], found [134217728]"];
    place.refuses_inputs(&parts);
    let program = env!("CARGO_BIN_EXE_tilewright");
    let line = format!(
        "ulimit -v 1000000; exec {program} eval rows.lax --inputs bad.npz --outputs out.npz"
    );
    let output = within(SOON, &mut place.command(Path::new("sh"), &["-c", &line]));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains(parts[1]), "{}", text(&output));
}

/// A pipe that nobody writes to, in the place of everything that can be named; and what is no file at all.
#[test]
fn only_regular_files_are_read() {
    let place = Place::new();
    place.pipe("pipe");
    let arrays = ["--inputs", "in.npz", "--outputs", "out.npz"];
    for (name, what) in [("pipe", "a FIFO"), ("/dev/zero", "a device")] {
        let expected = format!("{name}: expected a regular file, found {what}");
        let expected = [expected.as_str()];
        place.refuses(&["show", name], &expected);
        place.refuses(&[&["eval", name][..], &arrays].concat(), &expected);
        place.refuses(
            &["optimize", name, "--target", "h200", "-o", "art"],
            &expected,
        );
        place.refuses(&["rules", "--check", name], &expected);
        let scheduled = [
            "optimize",
            "rows.lax",
            "--target",
            "h200",
            "--schedule",
            name,
        ];
        place.refuses(&scheduled, &expected);
        let inputs = ["--inputs", name, "--outputs", "out.npz"];
        place.refuses(&[&["eval", "rows.lax"][..], &inputs].concat(), &expected);
    }
    place.refuses(
        &["rules", "--check", "."],
        &["expected a regular file, found a folder"],
    );
    let run = place.run(&[
        "optimize", "rows.lax", "--target", "h200", "--budget", "2s", "-o", "art", "--no-gpu",
    ]);
    assert!(run.status.success(), "{}", text(&run));
    for name in [
        "kernel.cu",
        "tile.txt",
        "program.lax",
        "schedule.txt",
        "manifest.json",
    ] {
        let path = place.path("art").join(name);
        let kept = fs::read(&path).expect("a file");
        fs::remove_file(&path).expect("a file");
        place.pipe(&format!("art/{name}"));
        let expected = [name, "expected a regular file, found a FIFO"];
        place.refuses(&["verify", "art", "--replay"], &expected);
        if name != "kernel.cu" {
            place.refuses(&["show", "art"], &expected);
            place.refuses(&[&["simulate", "art"][..], &arrays].concat(), &expected);
        }
        fs::remove_file(&path).expect("a pipe");
        fs::write(&path, kept).expect("writable");
    }
}

#[test]
fn files_are_as_long_as_they_may_be() {
    let place = Place::new();
    place.write("long.lax", &format!("{ROWS}#{}\n", "x".repeat(1 << 20)));
    place.refuses(
        &["show", "long.lax"],
        &["long.lax: expected at most 1048576 bytes, found"],
    );
    let scheduled = ["optimize", "rows.lax", "--target", "h200", "--schedule"];
    place.refuses(
        &[&scheduled[..], &["long.lax"]].concat(),
        &["long.lax: expected at most 1048576 bytes, found"],
    );
    place.write("long.rules", &"#\n".repeat(1 << 15).replacen('#', "##", 1));
    place.refuses(
        &["rules", "--check", "long.rules"],
        &["long.rules: expected at most 65536 bytes, found 65537"],
    );
    let many: String = (0..300)
        .map(|n| format!("rule r{n}\nleft = 1\nright = 1\n"))
        .collect();
    place.write("many.rules", &many);
    place.refuses(
        &["rules", "--check", "many.rules"],
        &["many.rules:769: a file has at most 256 rules"],
    );
    // Sparse: as long as no memory, and short on disk.
    File::create(place.path("huge"))
        .expect("writable")
        .set_len(1 << 42)
        .expect("sparse");
    place.refuses(
        &["show", "huge"],
        &["huge: expected at most 1048576 bytes, found 4398046511104"],
    );
    fs::rename(place.path("huge"), place.path("bad.npz")).expect("renamed");
    place.refuses_inputs(&["bad.npz", "4398046511104 bytes"]);
}

#[test]
fn what_takes_hours_is_refused_before_it_begins() {
    let place = Place::new();
    let large = "program large\naxis a = 1048576, b = 1048576\nx = parameter f32 [a]\ny = parameter f32 [b]\n\
                 return f32 [] sum(max(x, y); a, b)\n";
    place.write("large.lax", large);
    let run = place.run(&[
        "optimize",
        "large.lax",
        "--target",
        "h200",
        "--budget",
        "2s",
        "-o",
        "art",
        "--no-gpu",
    ]);
    assert!(run.status.success(), "{}", text(&run));
    // Neither looks for inputs first: there are none.
    let arrays = ["--inputs", "none.npz", "--outputs", "out.npz"];
    let simulate = [&["simulate", "art"][..], &arrays].concat();
    place.refuses(
        &simulate,
        &["element operations, at most 1e12 are done (hours)"],
    );
    let eval = |name| [&["eval", name][..], &arrays].concat();
    place.refuses(
        &eval("large.lax"),
        &["1099511627776 elements", "at most 134217728 at a time"],
    );
    let long =
        "program long\naxis a = 134217728, b = 1048576\nreturn f32 [a] dot(iota(a), iota(b); b)\n";
    place.write("long.lax", long);
    place.refuses(
        &eval("long.lax"),
        &["takes 1.4e14 element operations", "at most 1e13 (hours)"],
    );
}

fn names(prefix: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|n| format!("{prefix}{n}")).collect();
    names.join(", ")
}

/// A tensor of many axes, a program of many results, and one of many parameters.
fn crowds(axes: usize, results: usize, parameters: usize) -> [(&'static str, String); 3] {
    let all = names("a", axes);
    let extents = all.replace(',', " = 1,");
    let returned: Vec<String> = (0..results).map(|n| format!("f32 [i] x + {n}")).collect();
    let declared: String = (0..parameters)
        .map(|n| format!("x{n} = parameter f32 [i]\n"))
        .collect();
    let sum = names("x", parameters).replace(", ", " + ");
    [
        (
            "axes.lax",
            format!(
                "program p\naxis {extents} = 1\nx = parameter f32 [{all}]\nreturn f32 [{all}] exp(x)\n"
            ),
        ),
        (
            "results.lax",
            format!(
                "program p\naxis i = 8\nx = parameter f32 [i]\nreturn {}\n",
                returned.join(", ")
            ),
        ),
        (
            "parameters.lax",
            format!("program p\naxis i = 8\n{declared}return f32 [i] {sum}\n"),
        ),
    ]
}

#[test]
fn programs_are_as_large_as_they_may_be() {
    let place = Place::new();
    let limits = [
        "200 axes, expected at most 64",
        "at most 256 results, found 5000",
        "at most 1024 parameters, found 20000",
    ];
    for ((name, program), part) in crowds(200, 5000, 20_000).iter().zip(limits) {
        place.write(name, program);
        for arguments in [
            &["show", name][..],
            &[
                "optimize", name, "--target", "h200", "-o", "art", "--no-gpu",
            ],
        ] {
            place.refuses(arguments, &[part]);
        }
    }
    let chain: String = (1..2048)
        .map(|n| format!("v{n} = exp(v{})\n", n - 1))
        .collect();
    let chain = format!(
        "program p\naxis i = 8\nv0 = parameter f32 [i]\n{chain}v = exp(v2047)\nreturn f32 [i] v\n"
    );
    place.write("values.lax", &chain);
    place.refuses(
        &[
            "optimize",
            "values.lax",
            "--target",
            "h200",
            "-o",
            "art",
            "--no-gpu",
        ],
        &["p: a search takes at most 2048 values, found 2049"],
    );
    assert!(place.run(&["show", "values.lax"]).status.success());
    // Each kernel of its own would be compiled, which takes a minute: that is not what is asked here.
    let nothing = [("TILEWRIGHT_NVRTC", "/nowhere")];
    for (name, program) in &crowds(64, 256, 1024) {
        place.write(name, program);
        let folder = format!("of-{name}");
        let arguments = [
            "optimize", name, "--target", "h200", "--budget", "1s", "-o", &folder, "--no-gpu",
        ];
        let program = Path::new(env!("CARGO_BIN_EXE_tilewright"));
        let run = within(SEARCHED, place.command(program, &arguments).envs(nothing));
        assert!(run.status.success(), "{name}: {}", text(&run));
    }
}

/// NVRTC's folder, or why the test is passed over.
fn nvrtc() -> Option<PathBuf> {
    let found = std::env::var_os("TILEWRIGHT_NVRTC").map(PathBuf::from);
    let required = std::env::var_os("TILEWRIGHT_REQUIRE_NVRTC").is_some_and(|v| v == "1");
    assert!(found.is_some() || !required, "TILEWRIGHT_NVRTC is not set");
    if found.is_none() {
        eprintln!("skipped: TILEWRIGHT_NVRTC is not set");
    }
    found
}

/// Oracle: the real library, which compiles wherever it is found.
#[test]
fn no_library_is_looked_for_in_the_current_folder() {
    let Some(library) = nvrtc() else { return };
    let place = Place::new();
    // Outside the checkout, whose environment would be found.
    let program = place.path("tilewright");
    fs::copy(env!("CARGO_BIN_EXE_tilewright"), &program).expect("a program");
    let compiles = |variables: &[(&str, &str)]| -> bool {
        let arguments = [
            "optimize", "rows.lax", "--target", "h200", "--budget", "1s", "-o", "art", "--no-gpu",
            "--json",
        ];
        let mut command = place.command(&program, &arguments);
        let run = within(SEARCHED, command.envs(variables.iter().copied()));
        assert!(run.status.success(), "{}", text(&run));
        let report: Value = serde_json::from_slice(&run.stdout).expect("JSON");
        report["best"]["compiled"].as_bool().expect("a truth value")
    };
    let installed = compiles(&[]);
    for (above, below) in [
        (".venv", "lib/python3.12/site-packages/nvidia/cu13/lib"),
        ("env", "lib/python3.12/site-packages/nvidia/cu13/lib"),
        ("cuda", "lib64"),
    ] {
        let folder = place.path(above).join(below);
        fs::create_dir_all(folder.parent().expect("a folder")).expect("writable");
        std::os::unix::fs::symlink(&library, folder).expect("a link");
    }
    assert_eq!(compiles(&[]), installed, ".venv of the current folder");
    for (name, value) in [
        ("VIRTUAL_ENV", "env"),
        ("CONDA_PREFIX", "./env"),
        ("CUDA_HOME", "cuda"),
        ("CUDA_PATH", "./cuda"),
    ] {
        assert_eq!(compiles(&[(name, value)]), installed, "{name}={value}");
        let absolute = place.path(value);
        let absolute = absolute.to_str().expect("UTF-8");
        assert!(compiles(&[(name, absolute)]), "{name}={absolute}");
    }
    // What is asked for by name is looked for where it is said to be.
    assert!(compiles(&[("TILEWRIGHT_NVRTC", "cuda/lib64")]));
    assert!(
        !compiles(&[("TILEWRIGHT_NVRTC", "cuda")]),
        "a folder without it"
    );
}

/// An entry whose machine code was exchanged, by somebody who knows the format.
fn forge(entry: &Path) {
    let whole = fs::read_to_string(entry).expect("an entry");
    let (_, body) = whole.split_once('\n').expect("a checksum and a body");
    let start = body.find("\"cubin\":\"").expect("machine code") + 9;
    let end = start + body[start..].find('"').expect("its end");
    let middle = (start + end) / 2;
    let forged = format!(
        "{}{}{}",
        &body[..middle],
        "0".repeat(64),
        &body[middle + 64..]
    );
    assert_ne!(forged, body);
    let hash = artifact::hash(forged.as_bytes());
    fs::write(entry, format!("{hash}\n{forged}")).expect("writable");
}

#[test]
fn a_rehashed_cache_entry_is_not_emitted() {
    let Some(library) = nvrtc() else { return };
    let place = Place::new();
    let program = Path::new(env!("CARGO_BIN_EXE_tilewright"));
    let optimize = |folder: &str| -> (Vec<u8>, String) {
        let arguments = [
            "optimize", "rows.lax", "--target", "h200", "--budget", "20s", "-o", folder,
            "--no-gpu", "--seed", "3",
        ];
        let mut command = place.command(program, &arguments);
        let run = within(SEARCHED, command.env("TILEWRIGHT_NVRTC", &library));
        assert!(run.status.success(), "{}", text(&run));
        let cubin = fs::read(place.path(folder).join("kernel.cubin")).expect("machine code");
        (cubin, text(&run))
    };
    let (honest, said) = optimize("honest");
    assert!(!said.contains("cache"), "{said}");
    let entries = || {
        fs::read_dir(place.path("cache"))
            .expect("the cache")
            .map(|e| e.expect("an entry").path())
    };
    assert!(entries().count() > 0);
    entries().for_each(|entry| forge(&entry));
    let (cubin, said) = optimize("again");
    assert!(cubin == honest, "forged machine code was emitted: {said}");
    assert!(
        said.contains("note: the cache, or another machine, had other machine code"),
        "{said}"
    );
    // What was found out has been put right, and is believed again.
    let (cubin, said) = optimize("healed");
    assert!(
        cubin == honest && !said.contains("the cache held"),
        "{said}"
    );
}

#[test]
fn a_cache_that_others_may_write_to_is_not_used() {
    let place = Place::new();
    fs::create_dir(place.path("cache")).expect("a folder");
    fs::set_permissions(place.path("cache"), Permissions::from_mode(0o777)).expect("our own");
    let run = place.run(&[
        "optimize", "rows.lax", "--target", "h200", "--budget", "1s", "-o", "art", "--no-gpu",
    ]);
    assert!(run.status.success(), "{}", text(&run));
    let said = text(&run);
    let remark = "no compiled kernels are kept: ";
    assert_eq!(said.matches(remark).count(), 1, "{said}");
    assert!(
        said.contains("cache: others may write to it (mode 777), expected mode 700"),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(place.path("cache")).expect("a folder").count(),
        0
    );
    fs::remove_dir(place.path("cache")).expect("empty");
    let run = place.run(&[
        "optimize", "rows.lax", "--target", "h200", "--budget", "1s", "-o", "art", "--no-gpu",
    ]);
    assert!(
        run.status.success() && !text(&run).contains(remark),
        "{}",
        text(&run)
    );
    let mode = fs::metadata(place.path("cache"))
        .expect("a folder")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}
