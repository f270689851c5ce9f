//! Artifacts: which folders give way to one, what is read of one, and what is at the place when a process is killed.

use crate::command_line::Place;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tilewright::artifact::{self, Artifact, Destination, GivesWay, file};

/// Two kernels with a workspace between them.
pub(crate) const TWICE: &str = "\
program twice
axis t = 512, m = 512, n = 512, o = 512
x = parameter f16 [t, m]
w = parameter f16 [m, n]
u = parameter f16 [n, o]
g = parameter f16 [n]
return f16 [t, o] dot(dot(x, w; m) * g, u; n)
";

pub(crate) const REPLAY: &[&str] = &["verify", "art", "--replay"];

/// A place with its own copy of the artifact `art` of [`TWICE`].
pub(crate) fn copied() -> Place {
    static MADE: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let place = Place::new();
        fs::write(place.path("twice.lax"), TWICE).expect("writable");
        // It ends long before, with nothing left to try: the same on every machine.
        #[rustfmt::skip]
        place.does(&["optimize", "twice.lax", "--target", "h200", "--budget", "5m", "-o", "art", "--no-gpu", "--seed", "11"]);
        let read = |name| Some((name, fs::read(place.path("art").join(name)).ok()?));
        file::ALL.into_iter().filter_map(read).collect()
    });
    let place = Place::new();
    fs::write(place.path("twice.lax"), TWICE).expect("writable");
    fs::create_dir(place.path("art")).expect("writable");
    for (name, bytes) in made {
        fs::write(place.path("art").join(name), bytes).expect("writable");
    }
    place
}

/// Waits for a child, and kills it when it takes too long.
fn ended(mut child: Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("a running child");
    child.wait().expect("an ended child");
    panic!("it hangs");
}

#[test]
fn files_that_are_no_regular_files_are_not_opened() {
    for name in ["kernel.cu", "manifest.json", "kernel.cubin"] {
        let place = copied();
        let path = place.path("art").join(name);
        if fs::remove_file(&path).is_err() {
            continue; // no NVRTC, no cubin
        }
        let made = Command::new("mkfifo")
            .arg(&path)
            .status()
            .expect("mkfifo starts");
        assert!(made.success());
        for arguments in [
            REPLAY,
            &["verify", "art"],
            &["show", "art"],
            &[
                "simulate",
                "art",
                "--inputs",
                "in.npz",
                "--outputs",
                "out.npz",
            ],
            &["optimize", "twice.lax", "--target", "h200", "-o", "art"],
        ] {
            let mut command = place.command(arguments);
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            assert_eq!(
                ended(child.expect("the program starts")),
                Some(1),
                "{arguments:?}"
            );
            place.refuses(arguments, 1, &[name, "a FIFO"]);
        }
    }
}

/// What `optimize` is told to make of `twice.lax`, and more.
fn optimize<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["optimize", "twice.lax", "--budget", "1s", "--no-gpu"];
    all.extend(more);
    all
}

#[test]
fn what_is_no_artifact_is_never_replaced() {
    let place = copied();
    let app = [
        ("manifest.json", r#"{"format": 1, "name": "my web app"}"#),
        ("index.html", "<html>"),
        ("__init__.py", "x = 1"),
    ];
    fs::create_dir(place.path("mine")).expect("writable");
    for (name, text) in app {
        fs::write(place.path("mine").join(name), text).expect("writable");
    }
    fs::write(place.path("art/notes.md"), "mine").expect("writable");
    fs::create_dir(place.path("art/.git")).expect("writable");
    fs::write(place.path("art/.git/HEAD"), "ref: refs/heads/main").expect("writable");
    std::os::unix::fs::symlink(place.path("art"), place.path("link")).expect("writable");
    for force in [&[][..], &["--force"]] {
        for (folder, parts) in [
            (
                "mine",
                &[
                    "`index.html` (a file)",
                    "no artifact's `manifest.json`",
                    "`__init__.py` that no manifest vouches for",
                ][..],
            ),
            ("art", &["`.git` (a folder)", "`notes.md` (a file)"]),
            ("link", &["a symbolic link"]),
            ("twice.lax", &["a file"]),
        ] {
            let all = [&optimize(&["--target", "h200", "-o", folder]), force].concat();
            place.refuses(
                &all,
                1,
                &[
                    &[folder, "only an artifact and nothing else is replaced"],
                    parts,
                ]
                .concat(),
            );
        }
    }
    for (name, text) in app {
        assert_eq!(
            fs::read_to_string(place.path("mine").join(name)).expect("it is there"),
            text
        );
    }
    assert!(place.path("art/.git/HEAD").exists() && place.path("art/notes.md").exists());
}

#[test]
fn an_artifact_of_another_program_or_target_is_replaced_by_force_alone() {
    let place = Place::new();
    fs::write(place.path("twice.lax"), TWICE).expect("writable");
    let other = TWICE.replace("512", "256");
    fs::write(place.path("other.lax"), &other).expect("writable");
    place.does(&optimize(&["--target", "h200"]));
    let made = || artifact::read_manifest(&place.path("out/twice")).expect("a manifest");
    let first = made();
    let another = |more: &[&'static str]| {
        [
            &[
                "optimize",
                "other.lax",
                "--budget",
                "1s",
                "--no-gpu",
                "--target",
                "h200",
            ],
            more,
        ]
        .concat()
    };
    place.refuses(
        &optimize(&["--target", "a100"]),
        1,
        &["out/twice: here is an artifact of `twice` for h200, and the new one is of `twice` for a100", "--force replaces it", "-o DIR"],
    );
    place.refuses(
        &another(&[]),
        1,
        &[
            "here is an artifact of another program `twice` for h200",
            "--force",
        ],
    );
    place.refuses(
        &[
            "optimize",
            "rows.lax",
            "--target",
            "h200",
            "-o",
            "out/twice",
        ],
        1,
        &["here is an artifact of `twice` for h200, and the new one is of `rows` for h200"],
    );
    assert_eq!(made(), first);
    place.does(&optimize(&["--target", "a100", "--force"]));
    assert_eq!(made().target.name, "a100");
    place.does(&[&another(&[])[..], &["--force"]].concat());
    assert_eq!(made().parameters[0].shape, [256, 256]);
    // The same again needs no force.
    place.does(&another(&["--seed", "3"]));
    assert_eq!(made().seed, 3);
    assert_eq!(
        fs::read_dir(place.path("out")).expect("a folder").count(),
        1
    );
}

/// Where [`writes_until_it_is_killed`] writes, and the artifact that it writes.
const TO: &str = "TILEWRIGHT_TEST_WRITES_TO";
const FROM: &str = "TILEWRIGHT_TEST_WRITES_FROM";

/// The child of the tests below; by itself it does nothing.
#[test]
#[ignore = "a child of other tests"]
fn writes_until_it_is_killed() {
    let [Some(to), Some(from)] = [TO, FROM].map(std::env::var_os) else {
        return;
    };
    let artifact = Artifact::read(Path::new(&from)).expect("an artifact");
    let names = file::ALL.iter().filter(|name| **name != file::MANIFEST);
    let contents: Vec<(&'static str, Vec<u8>)> = names
        .filter_map(|name| Some((*name, artifact.bytes(name).ok()?.to_vec())))
        .collect();
    let program = artifact.text(file::PROGRAM).expect("a text").parse();
    let target = tilewright::target(&artifact.manifest().target.name).expect("a target");
    let to = Destination::new(
        Path::new(&to),
        &program.expect("a program"),
        &target,
        GivesWay::Same,
    );
    let to = to.expect("nothing else is there");
    for n in 0.. {
        let mut manifest = artifact.manifest().clone();
        manifest.candidates = n;
        let mut files = contents.clone();
        // Another text each time, so that files of two artifacts do not pass for one.
        files[0].1.extend(format!("# {n}\n").bytes());
        artifact::seal(&mut manifest, &mut files);
        to.write(&files).expect("writable");
    }
}

fn writer(place: &Place, to: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args([
            "artifacts::writes_until_it_is_killed",
            "--exact",
            "--ignored",
        ])
        .env(FROM, place.path("art"))
        .env(TO, place.path(to))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// How often the artifact was written before, if one is there: then it is whole.
fn written(path: &Path) -> Option<u64> {
    if !path.exists() {
        return None;
    }
    let artifact = Artifact::read(path).expect("a whole artifact");
    artifact.check().expect("as it was written");
    Some(artifact.manifest().candidates)
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_artifact() {
    let place = copied();
    fs::create_dir(place.path("there")).expect("writable");
    let to = place.path("there/k");
    let (mut there, mut left) = (false, 0);
    for n in 0..400 {
        if n > 40 && there && left > 0 {
            break;
        }
        let mut child = writer(&place, "there/k");
        // From before the first write to many writes on.
        let until = Instant::now() + Duration::from_micros(n % 80 * 1700);
        while Instant::now() < until {
            // It is there from the first write on, at every moment.
            there |= written(&to).is_some();
            assert!(!there || written(&to).is_some(), "nothing is at the place");
        }
        child.kill().expect("a running child");
        child.wait().expect("an ended child");
        assert!(!there || written(&to).is_some(), "nothing is at the place");
        left += fs::read_dir(place.path("there")).expect("a folder").count()
            - usize::from(written(&to).is_some());
    }
    assert!(there, "nothing was ever written");
    // Whoever comes next cleans.
    assert!(left > 0, "no child was killed while it wrote");
    let program = TWICE.parse().expect("a program");
    let target = tilewright::target("h200").expect("a target");
    Destination::new(&to, &program, &target, GivesWay::Same).expect("an artifact");
    let names = fs::read_dir(place.path("there")).expect("a folder").count();
    assert_eq!(names, 1, "staging folders were left behind");
}

#[test]
fn processes_that_write_to_one_place_do_not_disturb_each_other() {
    let place = copied();
    let mut children: Vec<Child> = (0..3).map(|_| writer(&place, "k")).collect();
    let (start, mut seen) = (Instant::now(), BTreeSet::new());
    while start.elapsed() < Duration::from_secs(60) && seen.len() < 50 {
        seen.extend(written(&place.path("k")));
    }
    for child in &mut children {
        assert!(
            child.try_wait().expect("a child").is_none(),
            "a write failed"
        );
        child.kill().expect("a running child");
        child.wait().expect("an ended child");
    }
    assert!(seen.len() >= 50, "{} artifacts were seen", seen.len());
}

#[test]
fn a_killed_run_leaves_no_half_artifact() {
    let place = Place::new();
    let mut command = place.command(&[
        "optimize", "rows.lax", "--target", "h200", "-o", "art", "--no-gpu",
    ]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("the program starts");
    std::thread::sleep(Duration::from_millis(30));
    child.kill().expect("a running child");
    child.wait().expect("an ended child");
    let _ = written(&place.path("art"));
}
