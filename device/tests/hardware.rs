//! Sessions, timing and lost workers on a real GPU. This very program is the worker: hence its own `main`.
//!
//! `TILEWRIGHT_NVRTC` names NVRTC; where there is none, `TILEWRIGHT_CUBIN` names `hardware.cu`, compiled. Without a GPU the program
//! says so and passes.
#![allow(clippy::print_stdout, reason = "this is a test runner")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Trial};
use tilewright_device::gpu::Gpu;
use tilewright_device::gpu_error::GpuError;
use tilewright_device::nvrtc::{Nvrtc, Options, SearchPath};
use tilewright_device::session::{BufferSpec, Code, Role, Session, SessionSettings, Violation};
use tilewright_device::telemetry::Sensors;
use tilewright_device::timing::{TimingSettings, measure};
use tilewright_device::worker::{Worker, WorkerCommand, WorkerError, end_process, serve};

const A: u64 = 4 << 23;
const B: u64 = 4 << 18;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [worker, cubin] = arguments.as_slice()
        && worker == "gpu-worker"
    {
        let cubin = std::fs::read(cubin).expect("the cubin");
        let gpu = Gpu::open(0).expect("the GPU");
        let answer = |entry: String| run(&gpu, &cubin, &entry, 0).map(|_| ());
        serve(
            std::io::stdin(),
            std::io::stdout(),
            || end_process(),
            answer,
        )
        .expect("the worker should end with its input");
        return ExitCode::SUCCESS;
    }
    let trial = Trial::ignorable_test("hardware", || {
        Ok(match hardware() {
            Ok(()) => Completion::Completed,
            Err(missing) => Completion::ignored_with(missing),
        })
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// The tests, in turn on one GPU; the error is what this machine lacks.
fn hardware() -> Result<(), String> {
    let gpu = Gpu::open(0).map_err(|e| e.to_string())?;
    println!("{:?}", gpu.info());
    let cubin = cubin(&gpu)?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("hardware.cubin");
    std::fs::write(&file, &cubin).expect("writing");
    results_are_right(&gpu, &cubin);
    violations_are_found(&gpu, &cubin);
    times_are_plausible(&gpu, &cubin);
    losses_are_results(file);
    Ok(())
}

fn cubin(gpu: &Gpu) -> Result<Vec<u8>, String> {
    if let Some(path) = std::env::var_os("TILEWRIGHT_CUBIN") {
        return Ok(std::fs::read(path).expect("the cubin"));
    }
    let search = SearchPath {
        library: std::env::var_os("TILEWRIGHT_NVRTC").map(PathBuf::from),
        ..SearchPath::default()
    };
    let nvrtc = Nvrtc::open(&search).map_err(|e| e.to_string())?;
    let (major, minor) = gpu.info().capability;
    let text = include_str!("hardware.cu");
    Ok(nvrtc
        .compile(text, &format!("sm_{major}{minor}"), &Options::default())
        .expect("the text should compile")
        .cubin)
}

fn input() -> Vec<u8> {
    (0..A / 4)
        .flat_map(|index| ((index % 1000) as f32).to_le_bytes())
        .collect()
}

fn open(gpu: &Gpu, cubin: &[u8], entry: &str, placement: u64) -> Result<Session, GpuError> {
    let launch = serde_json::json!({ "entry": entry, "grid": [264, 1, 1], "threads": 512, "shared_bytes": if entry == "shared" { 200_000 } else { 0 }, "arguments": [0, 1], "split_workspace": codegen::SplitWorkspace::default(), "overlaps": false });
    let launch: codegen::Launch = serde_json::from_value(launch).expect("a launch");
    let buffers = [
        BufferSpec {
            name: "a".into(),
            bytes: A,
            role: Role::Input,
        },
        BufferSpec {
            name: "b".into(),
            bytes: B,
            role: Role::Output,
        },
    ];
    let mut session = Session::open(
        gpu,
        Code::Together(cubin),
        &[launch],
        &buffers,
        SessionSettings {
            placement,
            ..SessionSettings::default()
        },
    )?;
    session.upload(0, input())?;
    Ok(session)
}

fn run(
    gpu: &Gpu,
    cubin: &[u8],
    entry: &str,
    placement: u64,
) -> Result<(Vec<Violation>, Vec<u8>), GpuError> {
    let mut session = open(gpu, cubin, entry, placement)?;
    Ok((session.run()?, session.download(1)?))
}

fn results_are_right(gpu: &Gpu, cubin: &[u8]) {
    let input = input();
    for placement in 0..4 {
        let (violations, output) = run(gpu, cubin, "copy", placement).expect("a run");
        assert_eq!(violations, []);
        assert!(output == input[..B as usize]);
        let (violations, output) = run(gpu, cubin, "shared", placement).expect("a run");
        assert_eq!(violations, []);
        for (index, word) in output.chunks_exact(4).enumerate() {
            let expected = if index < 50_000 {
                &input[4 * (49_999 - index)..4 * (50_000 - index)]
            } else {
                &[0xFF; 4]
            };
            assert_eq!(word, expected, "{index}");
        }
    }
    let local = open(gpu, cubin, "local", 0).err();
    assert!(
        matches!(local, Some(GpuError::LocalMemory { bytes: 384.., .. })),
        "{local:?}"
    );
}

fn violations_are_found(gpu: &Gpu, cubin: &[u8]) {
    for placement in 0..4 {
        let violations = |entry| run(gpu, cubin, entry, placement).expect("a run").0;
        assert_eq!(
            violations("after"),
            [Violation::After {
                buffer: "b".into(),
                distance: 1
            }]
        );
        // The nearest byte of the float that differs from the guard.
        assert!(matches!(
            violations("before").as_slice(),
            [Violation::Before {
                distance: 1..=4,
                ..
            }]
        ));
        assert_eq!(
            violations("change"),
            [Violation::InputChanged { buffer: "a".into() }]
        );
    }
}

fn times_are_plausible(gpu: &Gpu, cubin: &[u8]) {
    let sessions =
        ["spin", "sums", "copy"].map(|entry| open(gpu, cubin, entry, 0).expect("a session"));
    let start = std::time::Instant::now();
    let found = measure(gpu, &sessions.each_ref(), &TimingSettings::default()).expect("times");
    println!("measured in {:?}", start.elapsed());
    for measurement in &found {
        println!("{measurement:?}");
        assert!(measurement.copies_exceed_l2 && measurement.warm.min_us > 0.0);
        if let Some(read) = measurement.telemetry {
            assert!(read.sm_mhz.is_none_or(|mhz| (100.0..5000.0).contains(&mhz)));
            assert!(read.power_w.is_none_or(|w| (10.0..2000.0).contains(&w)));
        }
    }
    if let Some(sensors) = Sensors::open(None, &gpu.info().uuid) {
        let start = Instant::now();
        let read = sensors.read();
        println!("{read:?} read in {:?}", start.elapsed());
    }
    // 200 µs by the device's clock, whose step is at most some µs, and a launch.
    assert!((195.0..220.0).contains(&found[0].warm.median_us));
    assert!((195.0..220.0).contains(&found[0].cold.median_us));
    // 32 MiB: less than L2, so the cold figure must be larger, and both below 10 TB/s.
    let (warm, cold) = (found[1].warm.median_us, found[1].cold.median_us);
    assert!(warm > 3.3 && cold > 3.3);
    if gpu.info().l2_bytes > 48 << 20 {
        assert!(cold > 1.05 * warm, "warm {warm} cold {cold}");
    }
    for session in &sessions {
        assert_eq!(session.check(), Ok(vec![]));
    }
    let start = std::time::Instant::now();
    let quick = measure(gpu, &sessions.each_ref(), &TimingSettings::quick()).expect("times");
    println!(
        "quickly measured in {:?}: {:?}",
        start.elapsed(),
        quick
            .iter()
            .map(|one| (one.warm.median_us, one.cold.median_us))
            .collect::<Vec<_>>()
    );
}

fn losses_are_results(cubin: PathBuf) {
    let program = std::env::current_exe().expect("this program's path");
    let mut worker = Worker::new(WorkerCommand {
        program,
        arguments: vec!["gpu-worker".into(), cubin.into()],
    });
    let call =
        |worker: &mut Worker, entry: &str, seconds| -> Result<Result<(), GpuError>, WorkerError> {
            worker.call(&entry, Duration::from_secs(seconds))
        };
    assert_eq!(call(&mut worker, "copy", 60), Ok(Ok(())));
    for entry in ["fault", "trap"] {
        let answer = call(&mut worker, entry, 60);
        println!("{entry}: {answer:?}");
        assert!(matches!(&answer, Ok(Err(error)) if error.is_sticky()));
        assert!(matches!(call(&mut worker, "copy", 60), Ok(Err(_))));
        worker.restart();
        assert_eq!(call(&mut worker, "copy", 60), Ok(Ok(())));
    }
    let start = std::time::Instant::now();
    assert_eq!(
        call(&mut worker, "hang", 3),
        Err(WorkerError::Timeout(Duration::from_secs(3)))
    );
    println!("killed after {:?}", start.elapsed());
    assert_eq!(call(&mut worker, "copy", 60), Ok(Ok(())));
    assert_eq!(worker.starts(), 4);
}
