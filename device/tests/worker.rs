//! Workers that answer, hang, crash and babble: small shell scripts stand in for them.
#![cfg(unix)]

use std::time::{Duration, Instant};

use tilewright_device::worker::{Worker, WorkerCommand, WorkerError, serve};

const SOON: Duration = Duration::from_secs(10);

fn shell(script: &str) -> Worker {
    Worker::new(WorkerCommand {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
    })
}

/// Answers as an echo would: the request's line is the answer's line.
const ECHO: &str = "while read -r line; do printf '%s\\n' \"$line\"; done";

#[test]
fn answers_in_turn_from_one_process() {
    let mut worker = shell(ECHO);
    for text in ["a", "b", "ü\n\"'\\"] {
        let answer: Result<String, _> = worker.call(&text, SOON);
        assert_eq!(answer.as_deref(), Ok(text));
    }
    assert_eq!(worker.starts(), 1);
    assert!(worker.is_running());
    worker.restart();
    assert!(!worker.is_running());
}

/// Beside what is set already, if that says nothing of pages.
#[test]
fn large_memory_of_a_worker_lies_in_large_pages() {
    let mut worker =
        shell("read -r line; printf '%s\\n' \"$line\" | sed \"s/none/$GLIBC_TUNABLES/\"");
    let found: String = worker.call(&"none", SOON).expect("an answer");
    let set = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    assert!(found.starts_with(&set), "{found} of {set}");
    assert_eq!(found.matches("glibc.malloc.hugetlb=").count(), 1, "{found}");
}

#[test]
fn a_process_that_ended_between_requests_is_a_loss() {
    let mut worker = shell("read -r l; printf '%s\\n' \"$l\"");
    assert_eq!(worker.call(&"once", SOON), Ok("once".to_owned()));
    assert!(worker.is_running());
    assert!(matches!(
        worker.call::<_, String>(&"twice", SOON),
        Err(WorkerError::Lost { .. })
    ));
    assert!(!worker.is_running());
}

#[test]
fn a_request_larger_than_the_pipe_arrives() {
    let text = "x".repeat(1 << 20);
    let answer: Result<String, _> = Worker::new(WorkerCommand {
        program: "cat".into(),
        arguments: vec![],
    })
    .call(&text, SOON);
    assert!(answer == Ok(text));
}

#[test]
fn a_hang_is_a_timeout_and_the_next_request_is_answered() {
    let mut worker = shell(
        "read -r line; case \"$line\" in *hang*) exec sleep 60;; *) printf '%s\\n' \"$line\"; read -r l2; exec sleep 60;; esac",
    );
    let start = Instant::now();
    let limit = Duration::from_millis(200);
    assert_eq!(
        worker.call::<_, String>(&"hang", limit),
        Err(WorkerError::Timeout(limit))
    );
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(worker.call(&"fine", SOON), Ok("fine".to_owned()));
    assert_eq!(worker.starts(), 2);
}

#[test]
fn a_child_that_never_reads_cannot_block_the_caller() {
    let limit = Duration::from_millis(200);
    let start = Instant::now();
    assert_eq!(
        shell("exec sleep 60").call::<_, String>(&"x".repeat(1 << 20), limit),
        Err(WorkerError::Timeout(limit))
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_timeout_kills_the_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("pid");
    let mut worker = shell(&format!("echo $$ > {}; exec sleep 60", file.display()));
    assert!(
        worker
            .call::<_, String>(&"", Duration::from_millis(500))
            .is_err()
    );
    let pid = std::fs::read_to_string(file).expect("the process should have written its number");
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
}

#[test]
fn losses_say_how() {
    for (script, status, stderr) in [
        ("echo bad luck >&2; exit 3", "exit status: 3", "bad luck"),
        ("kill -SEGV $$", "signal: 11 (SIGSEGV) (core dumped)", ""),
        ("kill -KILL $$", "signal: 9 (SIGKILL)", ""),
    ] {
        match shell(script).call::<_, String>(&"", SOON) {
            Err(WorkerError::Lost {
                status: found,
                stderr: words,
            }) => {
                assert!(
                    status.starts_with(found.trim_end_matches(" (core dumped)")),
                    "{found}"
                );
                assert_eq!(words, stderr);
            }
            other => panic!("{script}: {other:?}"),
        }
    }
}

#[test]
fn what_nobody_wants_any_more_is_a_timeout() {
    let mut worker = shell("exec sleep 60");
    let begun = Instant::now();
    let is_wanted = || begun.elapsed() < Duration::from_millis(200);
    let answer = worker.call_while::<_, String>(&"", Duration::from_secs(60), is_wanted);
    let waited = match answer {
        Err(WorkerError::Timeout(waited)) => waited,
        other => panic!("{other:?}"),
    };
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(200) && took < SOON && waited <= took);
    assert!(!worker.is_running());
}

#[test]
fn babble_is_a_protocol_error() {
    for script in [
        "read -r l; echo hello; exec sleep 60",
        "read -r l; echo '{\"id\": 7, \"body\": \"\"}'; exec sleep 60",
        "read -r l; echo '{\"id\": 0, \"body\": 1}'; exec sleep 60",
    ] {
        let answer = shell(script).call::<_, String>(&"", SOON);
        assert!(
            matches!(answer, Err(WorkerError::Protocol { .. })),
            "{script}: {answer:?}"
        );
    }
}

#[test]
fn an_absent_program_is_an_error() {
    let mut worker = Worker::new(WorkerCommand {
        program: "/nonexistent/program".into(),
        arguments: vec![],
    });
    assert!(matches!(
        worker.call::<_, String>(&"", SOON),
        Err(WorkerError::Start { .. })
    ));
}

#[test]
fn serves_until_its_input_ends() {
    let input: &[u8] = b"{\"id\": 4, \"body\": 20}\n{\"id\": 5, \"body\": 21}\n";
    let (sender, ended) = std::sync::mpsc::channel();
    let mut output = Vec::new();
    serve(
        input,
        &mut output,
        move || sender.send(()).expect("the test should wait"),
        |number: u32| 2 * number,
    )
    .expect("two answers");
    assert_eq!(
        String::from_utf8_lossy(&output),
        "{\"id\":4,\"body\":40}\n{\"id\":5,\"body\":42}\n"
    );
    ended
        .recv_timeout(SOON)
        .expect("the end should be announced");
}
