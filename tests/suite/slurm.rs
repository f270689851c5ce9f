//! Array jobs: what is submitted, and a real one under a Slurm of the test's own, where its daemons are installed.

use crate::command_line::Place;
use crate::server;
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PLAN: &str = "budget = \"2m\"\nfirst = \"2s\"\ntarget = \"h200\"\nseed = 5\n\
                    [[program]]\nfile = \"rows.lax\"\nextents = { i = [2, 3, 4, 5, 6, 7], j = 16 }\n";

#[test]
fn scripts_say_what_tasks_do() {
    let place = Place::new();
    fs::write(place.path("plan.toml"), PLAN).expect("writable");
    place.does(&["campaign", "plan", "plan.toml"]);
    let words = ["campaign", "slurm", "out/plan", "--dry-run"];
    let script = place.does(&[&words[..], &["--time", "1:00:00", "--gpus-per-task", "4"]].concat());
    for part in [
        "#!/bin/sh\n",
        "#SBATCH --array=\"1-1\"\n",
        "#SBATCH --gres=\"gpu:4\"\n",
        "#SBATCH --time=\"1:00:00\"\n",
        " campaign resume '",
        "/out/plan'\n",
    ] {
        assert!(script.contains(part), "no `{part}` in {script}");
    }
    assert!(
        !place.path("out/slurm").exists(),
        "a dry run made something"
    );
    let many = [&words[..], &["--tasks", "2"]].concat();
    place.refuses(
        &many,
        1,
        &["its journal is a file, which one task can work on"],
    );
    let compiles = [&words[..], &["--compile-only"]].concat();
    place.refuses(&compiles, 1, &["its journal is a file"]);
    let odd = [&words[..], &["--partition", "a\nb"]].concat();
    place.refuses(&odd, 1, &["--partition: expected a text of one line"]);
    place.refuses(
        &["campaign", "slurm", "none"],
        1,
        &["none: expected the folder of a campaign"],
    );
    let Some(url) = server::database() else {
        return;
    };
    place.does(&[
        "campaign",
        "plan",
        "plan.toml",
        "-o",
        "it's",
        "--journal",
        &url,
    ]);
    let words = [
        "campaign",
        "slurm",
        &url,
        "--tasks",
        "8",
        "--no-gpu",
        "-o",
        "it's/tasks",
        "--dry-run",
    ];
    let script = place.does(&words);
    assert!(
        script.contains("--array=\"1-8\"") && !script.contains("--gres"),
        "{script}"
    );
    let compiles: Vec<&str> = (words.iter())
        .map(|word| {
            if *word == "--no-gpu" {
                "--compile-only"
            } else {
                word
            }
        })
        .collect();
    let other = place.does(&compiles);
    assert_eq!(other, script.replace("--no-gpu\n", "--compile-only\n"));
    assert!(
        script.contains(r"/it'\''s/tasks'/") && script.contains("--no-gpu\n"),
        "{script}"
    );
    assert!(
        script.contains("campaign join 'postgres://ann@127.0.0.1:"),
        "{script}"
    );
    assert!(!script.contains("s3cret"), "{script}");
}

/// Daemons that end with this process.
struct Slurm {
    _guard: Child,
    folder: std::path::PathBuf,
}

/// Slurm on this machine alone; none where it is not installed, or the test may not start it.
fn slurm() -> Option<Slurm> {
    let daemons = ["munged", "slurmctld", "slurmd"];
    let all = daemons
        .map(|name| format!("command -v {name}"))
        .join(" && ");
    let path = "PATH=$PATH:/usr/sbin:/sbin";
    let found = Command::new("sh")
        .args(["-c", &format!("{path}; {all}")])
        .output();
    let is_here = found.is_ok_and(|found| found.status.success());
    if !is_here || !rustix::process::geteuid().is_root() {
        return None;
    }
    let folder = tempfile::Builder::new().prefix("slurm-").tempdir();
    let folder = folder.expect("a folder").keep();
    for name in ["state", "spool"] {
        fs::create_dir(folder.join(name)).expect("writable");
    }
    // Munge wants to be reached by everybody, and a key that nobody else reads.
    let mode = |path: &std::path::Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).expect("our own");
    };
    mode(&folder, 0o755);
    let key: Vec<u8> = (0..64).collect();
    fs::write(folder.join("key"), key).expect("writable");
    mode(&folder.join("key"), 0o600);
    let port = || {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        free.expect("a port").port()
    };
    let (here, host) = (folder.display(), rustix::system::uname());
    let host = host.nodename().to_string_lossy().into_owned();
    let host = host.split('.').next().unwrap_or_default();
    let settings = format!(
        "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nCryptoType=crypto/munge\nAuthInfo=socket={here}/socket\nSlurmctldPort={}\nSlurmdPort={}\n\
         StateSaveLocation={here}/state\nSlurmdSpoolDir={here}/spool\nSlurmctldPidFile={here}/a.pid\nSlurmdPidFile={here}/b.pid\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\nReturnToService=2\n\
         SchedulerParameters=sched_interval=1,bf_interval=1\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
         AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\nPartitionName=test Nodes=ALL Default=YES State=UP\n",
        port(),
        port()
    );
    fs::write(folder.join("slurm.conf"), settings).expect("writable");
    let start = format!(
        "{path}; cd '{here}'; export SLURM_CONF='{here}/slurm.conf'
         munged --force --foreground --socket='{here}/socket' --key-file='{here}/key' --log-file='{here}/m.log' \
           --pid-file='{here}/m.pid' --seed-file='{here}/seed' & a=$!
         sleep 0.5; slurmctld -D & b=$!; slurmd -D & c=$!
         read -r _; kill $a $b $c; wait; rm -rf '{here}'"
    );
    let guard = Command::new("sh")
        .args(["-c", &start])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Some(Slurm {
        _guard: guard.expect("a shell"),
        folder,
    })
}

/// Three tasks, of which two have room at a time, do all jobs of a campaign.
#[test]
#[ignore = "starts Slurm, whose daemons take their time"]
fn an_array_job_works_on_a_campaign() {
    let (Some(slurm), Some(url)) = (slurm(), server::database()) else {
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"Slurm and PostgreSQL are not both here: no array job is tested\n",
        );
        return;
    };
    let place = Place::new();
    fs::write(place.path("plan.toml"), PLAN).expect("writable");
    place.does(&[
        "campaign",
        "plan",
        "plan.toml",
        "-o",
        "night",
        "--journal",
        &url,
    ]);
    let settings = slurm.folder.join("slurm.conf");
    let begun = Instant::now();
    let within = |what: &str| {
        assert!(begun.elapsed() < Duration::from_secs(150), "{what}");
        std::thread::sleep(Duration::from_millis(200));
    };
    let said = |name: &str| {
        let asked = Command::new(name)
            .env("SLURM_CONF", &settings)
            .arg("-h")
            .output();
        String::from_utf8_lossy(&asked.expect("it starts").stdout).into_owned()
    };
    while !said("sinfo").contains("idle") {
        within("the node is not there");
    }
    // The address has no password: tasks have it from the environment, as it is submitted.
    let shown = url.replace(":s3cret%3Aof%40ann", "");
    let submitted = place
        .command(&[
            "campaign",
            "slurm",
            &shown,
            "--tasks",
            "3",
            "--no-gpu",
            "--cpus-per-task",
            "1",
            "-o",
            "tasks",
        ])
        .env("SLURM_CONF", &settings)
        .env("PGPASSWORD", server::PASSWORD)
        .output()
        .expect("it starts");
    assert!(submitted.status.success(), "{submitted:?}");
    let submitted = String::from_utf8_lossy(&submitted.stdout).into_owned();
    assert!(submitted.contains("Submitted batch job"), "{submitted}");
    while !said("squeue").is_empty() {
        within("tasks go on");
    }
    let status = place.does(&["campaign", "status", &url, "--json"]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let outputs = || -> String {
        let entries = fs::read_dir(place.path("tasks")).expect("a folder");
        let paths = entries.map(|e| e.expect("an entry").path());
        let files = paths.filter(|path| path.is_file());
        files
            .map(|path| fs::read_to_string(path).expect("readable"))
            .collect()
    };
    let jobs = status["jobs"].as_array().expect("jobs");
    assert!(
        jobs.iter().all(|job| job["state"] == "done"),
        "{status} {}",
        outputs()
    );
    assert_eq!(outputs().matches("of 6 jobs").count(), 3, "{}", outputs());
    assert!(!outputs().contains("s3cret"));
}
