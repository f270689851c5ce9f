//! Tests that need a GPU. Without one they say so and pass; with `TILEWRIGHT_REQUIRE_GPU=1` they fail instead.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

#[path = "../suite/kinds.rs"]
mod kinds;
mod sanitizer;
mod subjects;

use std::process::{Command, Output};

fn tilewright(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tilewright"))
        .args(arguments)
        .output()
        .expect("the program starts")
}

/// Whether there is a GPU; its absence is an error if one is required.
fn gpu() -> bool {
    match device::gpu::Gpu::open(0) {
        Ok(_) => true,
        Err(e) => {
            let required = std::env::var_os("TILEWRIGHT_REQUIRE_GPU").is_some_and(|v| v == "1");
            assert!(!required, "TILEWRIGHT_REQUIRE_GPU is set: {e}");
            eprintln!("skipped: {e}");
            false
        }
    }
}

const PROGRAMS: [(&str, &str); 4] = [
    (
        "soft",
        "program soft\naxis i = 300, j = 1000\nx = parameter f32 [i, j]\nreturn f32 [i, j] softmax(x; j)\n",
    ),
    (
        "product",
        "program product\naxis i = 200, j = 136, k = 264\nx = parameter f16 [i, k]\ny = parameter f16 [k, j]\n\
         return f16 [i, j] dot(x, y; k)\n",
    ),
    (
        "attend",
        "program attend\naxis b = 2, i = 100, j = 333, d = 64, e = 64\nq = parameter bf16 [b, i, d]\nk = parameter bf16 [b, j, d]\n\
         v = parameter bf16 [b, j, e]\nreturn bf16 [b, i, e] dot(softmax(dot(q, k; d) * 0.125; j), v; j)\n",
    ),
    // Few rows.
    (
        "thin",
        "program thin\naxis t = 2, m = 4096, n = 6144\nx = parameter f16 [t, m]\nw = parameter f16 [m, n]\n\
         return f16 [t, n] dot(rms_norm(x; m, 1e-5), w; m)\n",
    ),
];

#[test]
fn programs_are_verified_and_timed_on_the_gpu() {
    if !gpu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in PROGRAMS {
        let program = folder.path().join(name).with_extension("lax");
        std::fs::write(&program, text).expect("writable");
        let artifact = folder.path().join(name);
        let (program, artifact) = (
            program.display().to_string(),
            artifact.display().to_string(),
        );
        let run = tilewright(&[
            "optimize", &program, "--budget", "20s", "-o", &artifact, "--json", "--no-log",
            "--no-db",
        ]);
        assert!(
            run.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&run.stderr)
        );
        let report: serde_json::Value =
            serde_json::from_slice(&run.stdout).expect("one JSON object");
        let measured = &report["best"]["measured_us"];
        for kind in ["warm", "cold"] {
            assert!(
                measured[kind].as_f64().is_some_and(|us| us > 0.5),
                "{name}: {report}"
            );
        }
        let manifest = tilewright::artifact::read_manifest(artifact.as_ref()).expect("a manifest");
        assert_eq!(
            manifest.state,
            tilewright::artifact::State::Verified,
            "{name}"
        );
        for command in [
            &["verify", &artifact, "--seed", "5"][..],
            &["bench", &artifact, "--seed", "5"],
            &["verify", &artifact, "--replay"],
        ] {
            let run = tilewright(command);
            assert!(
                run.status.success(),
                "{name}: {}",
                String::from_utf8_lossy(&run.stderr)
            );
            let text = String::from_utf8_lossy(&run.stdout);
            let replayed = [
                "\nreplayed: cubin: ",
                "\nreplayed: kernel: the same outcome",
            ];
            assert!(
                !command.contains(&"--replay") || replayed.iter().all(|part| text.contains(part)),
                "{name}: {text}"
            );
        }
    }
}
