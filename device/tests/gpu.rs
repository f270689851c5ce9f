//! Sessions and timing on a driver that pretends.

mod fake;

use fake::{CUBIN, launch};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use tilewright_device::faults::Faults;
use tilewright_device::gpu::{Gpu, GpuSettings};
use tilewright_device::gpu_error::GpuError;
use tilewright_device::session::{
    BufferSpec, Code, Data, Residence, Role, Session, SessionSettings, Stock, Violation, Watch,
};
use tilewright_device::timing::{TimingSettings, measure};

fn open() -> Option<Gpu> {
    let library = fake::driver(&[])?;
    let settings = GpuSettings {
        driver: Some(library.to_path_buf()),
        ..GpuSettings::default()
    };
    Some(Gpu::open_with(&settings).expect("the fake driver should open"))
}

fn buffer(name: &str, bytes: u64, role: Role) -> BufferSpec {
    BufferSpec {
        name: name.into(),
        bytes,
        role,
    }
}

/// An input `a` and an output `b` of 16 bytes, and a workspace `w`.
fn buffers() -> Vec<BufferSpec> {
    vec![
        buffer("a", 16, Role::Input),
        buffer("b", 16, Role::Output),
        buffer("w", 16, Role::Workspace),
    ]
}

fn session(
    gpu: &Gpu,
    launches: &[codegen::Launch],
    settings: SessionSettings,
) -> Result<Session, GpuError> {
    let mut session = Session::open(gpu, Code::Together(CUBIN), launches, &buffers(), settings)?;
    session.upload(0, b"0123456789abcdef")?;
    Ok(session)
}

#[test]
fn the_device_is_described() {
    let Some(gpu) = open() else { return };
    let info = gpu.info();
    assert_eq!(info.uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff");
    assert_eq!(
        (info.name.as_str(), info.capability, info.multiprocessors),
        ("Fake GPU", (9, 0), 132)
    );
    assert_eq!(
        (
            info.memory_bytes,
            info.l2_bytes,
            info.shared_bytes,
            info.driver_version
        ),
        (1 << 30, 1024, 232_448, 13_000)
    );
}

#[test]
fn no_gpu_is_an_error() {
    let absent = GpuSettings {
        ordinal: 0,
        driver: Some("/nonexistent/libcuda.so.1".into()),
        nvml: None,
    };
    assert!(matches!(
        Gpu::open_with(&absent),
        Err(GpuError::NoDriver { .. })
    ));
    let Some(driver) = fake::driver(&["-DDEVICES=0"]) else {
        return;
    };
    assert_eq!(
        Gpu::open_with(&GpuSettings {
            ordinal: 0,
            driver: Some(driver.to_path_buf()),
            nvml: None,
        })
        .err(),
        Some(GpuError::NoDevice {
            ordinal: 0,
            count: 0
        })
    );
    let library = fake::driver(&[]);
    let settings = |ordinal, driver| GpuSettings {
        ordinal,
        driver,
        nvml: None,
    };
    let driver = library.as_ref().map(|path| path.to_path_buf());
    assert_eq!(
        Gpu::open_with(&settings(2, driver)).err(),
        Some(GpuError::NoDevice {
            ordinal: 2,
            count: 2
        })
    );
    // A library that lacks the driver's functions.
    let driver = Some("libc.so.6".into());
    assert!(matches!(
        Gpu::open_with(&settings(0, driver)),
        Err(GpuError::NoDriver { .. })
    ));
}

#[test]
fn the_systems_driver_opens_or_is_an_error() {
    match Gpu::open(0) {
        Ok(gpu) => assert!(gpu.info().capability.0 > 0),
        Err(GpuError::NoDriver { .. } | GpuError::NoDevice { .. } | GpuError::Call { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn data_flow_through_the_launches() {
    let Some(gpu) = open() else { return };
    for residence in [Residence::Whole, Residence::Scoped] {
        let launches = [launch("copy16_2", &[0, 2]), launch("copy16_2", &[2, 1])];
        let mut session = session(
            &gpu,
            &launches,
            SessionSettings {
                residence,
                ..SessionSettings::default()
            },
        )
        .expect("a session");
        assert_eq!(session.run(), Ok(vec![]));
        assert_eq!(
            session.download(1).as_deref(),
            Ok(b"0123456789abcdef".as_slice())
        );
        // A scoped workspace is gone after its last launch.
        assert_eq!(session.download(2).is_ok(), residence == Residence::Whole);
        assert_eq!(
            (session.kernels().len(), session.kernels()[0].registers),
            (2, 40)
        );
    }
}

#[test]
fn tools_find_bare_buffers_and_launches_without_checks() {
    let Some(gpu) = open() else { return };
    let launches = [launch("copy16_2", &[0, 2]), launch("copy16_2", &[2, 1])];
    let settings = SessionSettings {
        bare: true,
        ..SessionSettings::default()
    };
    let mut session = session(&gpu, &launches, settings).expect("a session");
    assert_eq!(session.run_unwatched(), Ok(()));
    let copied = |s: &Session| s.download(1).expect("an output") == b"0123456789abcdef";
    assert!(copied(&session));
    assert_eq!(session.check(), Ok(vec![]));
    assert_eq!(session.run(), Ok(vec![]));
    assert!(copied(&session));
}

#[test]
fn inputs_may_come_from_a_stock() {
    let Some(gpu) = open() else { return };
    let stock = Stock::new(&gpu, b"fedcba9876543210").expect("a stock");
    let open = |entry: &str| {
        let launches = [launch(entry, &[0, 1])];
        session(&gpu, &launches, SessionSettings::default()).expect("a session")
    };
    let mut session = open("copy16_2");
    assert_eq!(session.take(0, &stock), Ok(()));
    assert_eq!(session.run(), Ok(vec![]));
    assert_eq!(
        session.download(1).as_deref(),
        Ok(b"fedcba9876543210".as_slice())
    );
    assert_eq!(
        session.download_part(1, 4..7).as_deref(),
        Ok(b"ba9".as_slice())
    );
    for (start, end) in [(8, 17), (9, 8)] {
        let refused = session.download_part(1, Range { start, end });
        assert!(
            matches!(refused, Err(GpuError::Plan { .. })),
            "{start} {end}"
        );
    }
    let wrong = session.take(1, &stock);
    assert!(matches!(wrong, Err(GpuError::Plan { .. })), "an output");
    let short = Stock::new(&gpu, &[0; 15]).expect("a stock");
    let wrong = session.take(0, &short);
    assert!(matches!(wrong, Err(GpuError::Plan { .. })), "a wrong size");
    // A changed input is seen where that is asked; the stock keeps its data; guards are always watched.
    let changed = Violation::InputChanged { buffer: "a".into() };
    let mut session = open("change_2");
    assert_eq!(session.take(0, &stock), Ok(()));
    assert_eq!(session.run_watched(Watch::AllButInputs), Ok(vec![]));
    assert_eq!(session.take(0, &stock), Ok(()));
    assert_eq!(session.run_watched(Watch::Everything), Ok(vec![changed]));
    let mut session = open("before_2");
    let found = session.run_watched(Watch::AllButInputs);
    assert!(matches!(found.as_deref(), Ok([Violation::Before { .. }])));
}

/// Data that repeat fill an input, and are looked for all through it; what is read in pieces is whole.
#[test]
fn large_inputs_repeat() {
    let Some(gpu) = open() else { return };
    let period: Vec<u8> = (0..999_983u32).map(|n| (n % 251) as u8).collect();
    let bytes = (1 << 27) + 16;
    let large = |name: &str, role| buffer(name, bytes, role);
    let buffers = [large("a", Role::Input), buffer("b", 16, Role::Output)];
    let open = |entry: &str| {
        let launches = [launch(entry, &[0, 1])];
        let mut s = Session::open(
            &gpu,
            Code::Together(CUBIN),
            &launches,
            &buffers,
            SessionSettings::default(),
        )
        .expect("a session");
        let data = Data::repeated(period.clone(), bytes).expect("some bytes");
        s.upload(0, data).expect("an input");
        s
    };
    let mut session = open("copy16_2");
    assert_eq!(session.run(), Ok(vec![]));
    let (mut expected, mut differ) = (5, 0u64);
    let part = 5..bytes - 3;
    let read = session.download_in_pieces(0, part.clone(), |start, piece| {
        assert_eq!(start, expected);
        expected += piece.len() as u64;
        let own = |at: usize| period[(start as usize + at) % period.len()];
        differ += (0..piece.len()).filter(|at| piece[*at] != own(*at)).count() as u64;
    });
    assert_eq!((read, expected, differ), (Ok(()), part.end, 0));
    assert!(
        session
            .download_in_pieces(0, 0..bytes + 1, |_, _| ())
            .is_err()
    );
    let changed = Violation::InputChanged { buffer: "a".into() };
    assert_eq!(open("change_2").run(), Ok(vec![changed]));
    assert!(Data::repeated(Vec::new(), 1).is_err());
}

#[test]
fn what_is_not_written_is_poison() {
    let Some(gpu) = open() else { return };
    let mut session = session(
        &gpu,
        &[launch("copy16_2", &[2, 1])],
        SessionSettings::default(),
    )
    .expect("a session");
    assert_eq!(session.run(), Ok(vec![]));
    assert_eq!(session.download(1), Ok(vec![0xFF; 16]));
}

#[test]
fn the_launch_arrives_as_it_is() {
    let Some(gpu) = open() else { return };
    let buffers = [buffer("b", 32, Role::Output)];
    let mut session = Session::open(
        &gpu,
        Code::Together(CUBIN),
        &[launch("launch_1", &[0])],
        &buffers,
        SessionSettings::default(),
    )
    .expect("a session");
    assert_eq!(session.run(), Ok(vec![]));
    let words: Vec<u8> = [7_u32, 5, 3, 96, 1, 1, 100_000, 100_000]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(session.download(0), Ok(words));
}

#[test]
fn addresses_vary_and_stay_aligned() {
    let Some(gpu) = open() else { return };
    let mut places = std::collections::BTreeSet::new();
    for placement in 0..12 {
        let settings = SessionSettings {
            placement,
            ..SessionSettings::default()
        };
        let mut session = session(&gpu, &[launch("address_1", &[1])], settings).expect("a session");
        assert_eq!(session.run(), Ok(vec![]));
        let bytes = session.download(1).expect("an address");
        let address = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        assert_eq!(address % 256, 0);
        // The fake driver's allocations are aligned to 512 bytes.
        places.insert(address % 512);
    }
    assert_eq!(places.len(), 2);
}

#[test]
fn violations_are_found() {
    let Some(gpu) = open() else { return };
    for (entry, argument, violation) in [
        (
            "before_1",
            1,
            Violation::Before {
                buffer: "b".into(),
                distance: 3,
            },
        ),
        (
            "after_1",
            1,
            Violation::After {
                buffer: "b".into(),
                distance: 5,
            },
        ),
        (
            "after_1",
            2,
            Violation::After {
                buffer: "w".into(),
                distance: 5,
            },
        ),
        (
            "before_1",
            0,
            Violation::Before {
                buffer: "a".into(),
                distance: 3,
            },
        ),
        (
            "change_1",
            0,
            Violation::InputChanged { buffer: "a".into() },
        ),
    ] {
        for (placement, residence) in [
            (0, Residence::Whole),
            (1, Residence::Whole),
            (2, Residence::Scoped),
            (3, Residence::Scoped),
        ] {
            let settings = SessionSettings {
                placement,
                residence,
                ..SessionSettings::default()
            };
            let mut session =
                session(&gpu, &[launch(entry, &[argument])], settings).expect("a session");
            assert_eq!(
                session.run(),
                Ok(vec![violation.clone()]),
                "{entry} {placement}"
            );
        }
    }
}

#[test]
fn split_workspaces_are_zero_at_first_and_must_be_afterwards() {
    let Some(gpu) = open() else { return };
    let with_split_workspace = |entry: &str, counters: u64, together: u64| codegen::Launch {
        split_workspace: codegen::SplitWorkspace {
            bytes: 48,
            counters,
            together,
        },
        ..launch(entry, &[1])
    };
    // The kernel copies 16 bytes of counters and writes behind them.
    let mut good = session(
        &gpu,
        &[with_split_workspace("barrier_2", 16, 2)],
        SessionSettings::default(),
    )
    .expect("fits");
    for _ in 0..2 {
        assert_eq!(good.run(), Ok(vec![]));
        assert_eq!(good.download(1), Ok(vec![0; 16]));
    }
    let all = with_split_workspace("barrier_2", 12, 2);
    let mut past = session(&gpu, &[all], SessionSettings::default()).expect("fits");
    assert_eq!(past.run(), Ok(vec![]));
    let seen = past.download(1).expect("bytes");
    assert_eq!(seen[12..], [0xFF; 4], "what is no counter is poisoned");
    let leaves = with_split_workspace("leave_2", 16, 2);
    let mut bad = session(&gpu, &[leaves], SessionSettings::default()).expect("fits");
    let left = Violation::SplitWorkspaceLeft {
        entry: "leave_2".into(),
    };
    assert_eq!(bad.run(), Ok(vec![left]));
    // The fake device has room for 2 blocks on each of 132 multiprocessors.
    for (together, fits) in [(264, true), (265, false)] {
        let opened = session(
            &gpu,
            &[with_split_workspace("barrier_2", 16, together)],
            SessionSettings::default(),
        );
        assert_eq!(opened.is_ok(), fits, "{together}");
    }
}

#[test]
fn maps_are_made_for_where_their_buffer_is() {
    let Some(gpu) = open() else { return };
    let map = codegen::TensorMap {
        buffer: launch("mapped_3", &[0]).arguments[0],
        offset: 32,
        extents: vec![64, 40],
        strides: vec![128],
        sizes: vec![32, 8],
        line_bytes: 64,
    };
    let with = |map: codegen::TensorMap, arguments: &[u32]| codegen::Launch {
        maps: vec![map],
        ..launch("mapped_3", arguments)
    };
    for placement in [0, 5] {
        let settings = SessionSettings {
            placement,
            ..SessionSettings::default()
        };
        let mut addresses = Vec::new();
        for launch in [launch("address_2", &[1, 0]), with(map.clone(), &[1, 0])] {
            let mut session = session(&gpu, &[launch], settings).expect("fits");
            assert_eq!(session.run(), Ok(vec![]));
            addresses.push(session.download(1).expect("bytes"));
        }
        // Elements of two bytes, two dimensions, chunks permuted within 64 bytes.
        let told = u64::from_le_bytes(addresses[1][8..].try_into().expect("8 bytes"));
        assert_eq!(told, 1 | 2 << 8 | 2 << 16);
        let at = u64::from_le_bytes(addresses[1][..8].try_into().expect("8 bytes"));
        assert_eq!(at % 256, 32, "a buffer begins at a multiple of 256 bytes");
    }
    let odd = codegen::TensorMap {
        line_bytes: 48,
        ..map.clone()
    };
    let flat = codegen::TensorMap {
        strides: vec![],
        ..map.clone()
    };
    for wrong in [odd, flat] {
        let mut opened = session(&gpu, &[with(wrong, &[1, 0])], SessionSettings::default())
            .expect("its parameters are right");
        let run = opened.run();
        assert!(
            matches!(&run, Err(GpuError::Kernel { error, .. }) if matches!(**error, GpuError::Plan { .. })),
            "{run:?}"
        );
    }
    let elsewhere = session(&gpu, &[with(map, &[1, 2])], SessionSettings::default()).err();
    assert!(matches!(elsewhere, Some(GpuError::Plan { .. })));
    let pointers = launch("mapped_3", &[1, 0]);
    let without = session(&gpu, &[pointers], SessionSettings::default()).err();
    assert!(matches!(without, Some(GpuError::Plan { .. })));
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(gpu) = open() else { return };
    let settings = SessionSettings::default();
    let refused = |launches: &[codegen::Launch]| session(&gpu, launches, settings).err();
    assert!(
        matches!(
            refused(&[launch("copy16_2", &[0])]),
            Some(GpuError::Plan { .. })
        ),
        "too few pointers"
    );
    assert!(
        matches!(
            refused(&[launch("copy16_2", &[0, 1, 2])]),
            Some(GpuError::Plan { .. })
        ),
        "too many pointers"
    );
    assert!(
        matches!(
            refused(&[launch("copy16_2", &[0, 3])]),
            Some(GpuError::Plan { .. })
        ),
        "no such buffer"
    );
    assert!(
        matches!(refused(&[launch("absent", &[])]), Some(GpuError::Kernel { entry, .. }) if entry == "absent"),
        "no such kernel"
    );
    assert_eq!(
        refused(&[launch("spill_1", &[0])]),
        Some(GpuError::LocalMemory {
            entry: "spill_1".into(),
            bytes: 16
        })
    );
    assert!(
        session(
            &gpu,
            &[launch("spill_1", &[0])],
            SessionSettings {
                local_memory: true,
                ..settings
            }
        )
        .is_ok()
    );
    let large = codegen::Launch {
        shared_bytes: 232_448,
        ..launch("copy16_2", &[0, 1])
    };
    assert!(
        matches!(refused(&[large]), Some(GpuError::Kernel { .. })),
        "more shared memory than there is"
    );
    assert!(
        matches!(
            Session::open(&gpu, Code::Together(b"text"), &[], &[], settings),
            Err(GpuError::Call { code: 200, .. })
        ),
        "no cubin"
    );
    let mut session = Session::open(
        &gpu,
        Code::Together(CUBIN),
        &[launch("copy16_2", &[0, 1])],
        &buffers(),
        settings,
    )
    .expect("a session");
    assert!(
        matches!(session.run(), Err(GpuError::Plan { .. })),
        "an input that was not uploaded"
    );
    assert!(
        matches!(session.upload(0, &[0; 15]), Err(GpuError::Plan { .. })),
        "a wrong size"
    );
    assert!(
        matches!(session.upload(1, &[0; 16]), Err(GpuError::Plan { .. })),
        "an output"
    );
}

#[test]
fn a_fault_names_its_kernel_and_is_sticky() {
    let Some(gpu) = open() else { return };
    let launches = [
        launch("copy16_2", &[0, 1]),
        launch("fault_1", &[1]),
        launch("copy16_2", &[0, 1]),
    ];
    let mut session = session(&gpu, &launches, SessionSettings::default()).expect("a session");
    let error = session.run().expect_err("a fault");
    assert_eq!(
        error.to_string(),
        "kernel `fault_1`: cuStreamSynchronize failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)"
    );
    assert!(error.is_sticky());
    assert!(session.run().is_err());
}

#[test]
fn times_are_those_of_one_sequence() {
    let Some(gpu) = open() else { return };
    let settings = SessionSettings::default();
    let fast = session(&gpu, &[launch("copy16_2", &[0, 1])], settings).expect("a session");
    let slow = session(
        &gpu,
        &[launch("slow_1", &[1]), launch("copy16_2", &[0, 1])],
        settings,
    )
    .expect("a session");
    let found = measure(&gpu, &[&fast, &slow], &TimingSettings::default()).expect("times");
    for (measurement, us) in found.iter().zip([10.0, 40.0]) {
        for timing in [&measurement.warm, &measurement.cold] {
            for figure in [
                timing.median_us,
                timing.p10_us,
                timing.p90_us,
                timing.min_us,
            ] {
                assert!((figure - us).abs() < 1e-3, "{timing:?}");
            }
            assert!(timing.steady && timing.samples == 40);
        }
        // 16 bytes of inputs, 1 KiB of L2: 193 copies are the least that exceed 3 KiB.
        assert_eq!(
            (measurement.copies, measurement.copies_exceed_l2),
            (193, true)
        );
    }
    assert_eq!((found[0].warm.replays, found[1].warm.replays), (100, 25));
    assert_eq!((found[0].cold.replays, found[1].cold.replays), (193, 193));
    assert_eq!(fast.check(), Ok(vec![]));
}

/// A GPU with sensors: of the driver's device, each clock that is read is 1 MHz more than the one before.
fn watched(flags: &[&str]) -> Option<Gpu> {
    let (driver, nvml) = (
        fake::driver(&[])?,
        fake::library("libnvml.c", flags).expect("a compiler, as before"),
    );
    let settings = GpuSettings {
        ordinal: 0,
        driver: Some(driver.to_path_buf()),
        nvml: Some(nvml.to_path_buf()),
    };
    Some(Gpu::open_with(&settings).expect("the fake driver should open"))
}

#[test]
fn clock_and_power_are_read_once_a_contender() {
    let Some(gpu) = watched(&[]) else { return };
    assert_eq!(gpu.info().driver.as_deref(), Some("580.95.05"));
    assert_eq!(gpu.info().driver_name(), "580.95.05");
    let place = gpu.info().timed_on().to_string();
    assert!(place.ends_with(", driver 580.95.05, 700 W"), "{place}");
    let copy = [launch("copy16_2", &[0, 1])];
    let settings = SessionSettings::default();
    let sessions = [(); 2].map(|()| session(&gpu, &copy, settings).expect("a session"));
    for earlier in [0.0, 2.0] {
        let found = measure(&gpu, &sessions.each_ref(), &TimingSettings::quick()).expect("times");
        let read = found.iter().map(|m| m.telemetry.expect("a reading"));
        assert!(read.clone().all(|r| r.power_w == Some(512.5)));
        let mut clocks: Vec<f64> = read.filter_map(|r| r.sm_mhz).collect();
        clocks.sort_by(f64::total_cmp);
        assert_eq!(clocks, [1001.0 + earlier, 1002.0 + earlier]);
    }
}

#[test]
fn sensors_that_are_absent_are_no_error() {
    // Without that of the power.
    let Some(gpu) = watched(&["-DNO_POWER"]) else {
        return;
    };
    assert_eq!(gpu.info().power_limit_mw, None);
    let copy = [launch("copy16_2", &[0, 1])];
    let one = session(&gpu, &copy, SessionSettings::default()).expect("a session");
    let found = measure(&gpu, &[&one], &TimingSettings::quick()).expect("times");
    let read = found[0].telemetry.expect("the clock is there");
    assert_eq!((read.sm_mhz, read.power_w), (Some(1001.0), None));
    // Without NVML, which is told from a figure of zero: it is not written down.
    for nvml in ["/nonexistent/libnvidia-ml.so.1", "libc.so.6"] {
        let Some(driver) = fake::driver(&[]) else {
            return;
        };
        let settings = GpuSettings {
            ordinal: 0,
            driver: Some(driver.to_path_buf()),
            nvml: Some(nvml.into()),
        };
        let gpu = Gpu::open_with(&settings).expect("the fake driver should open");
        assert_eq!(gpu.info().driver_name(), "CUDA 13.0");
        let one = session(&gpu, &copy, SessionSettings::default()).expect("a session");
        let found = measure(&gpu, &[&one], &TimingSettings::quick()).expect("times");
        assert_eq!(found[0].telemetry, None);
        let text = serde_json::to_string(&found[0]).expect("JSON");
        assert!(!text.contains("telemetry"), "{text}");
        assert_eq!(serde_json::from_str(&text).ok().as_ref(), Some(&found[0]));
    }
}

#[test]
fn what_the_driver_tells_of_faults_is_told_once() {
    const UUID: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";
    let open = |flags: &[&str], uuid: &str| {
        let library = fake::library("libnvml.c", flags)?;
        Some(Faults::open(Some(&library), uuid))
    };
    let Some(faults) = open(&[], UUID) else {
        return;
    };
    let faults = faults.expect("the device is known");
    let told = faults.told(Duration::ZERO);
    assert_eq!(
        told.as_deref(),
        Some("Xid 31 (a page fault of a kernel), Xid 999")
    );
    assert_eq!(faults.told(Duration::ZERO), None);
    // Who tells of nothing is no error.
    for (flags, uuid) in [
        (&["-DNO_XIDS"], UUID),
        (&["-DNO_EVENTS"], UUID),
        (&["-DX"], "GPU-0"),
    ] {
        assert!(open(flags, uuid).expect("a compiler, as before").is_none());
    }
    assert!(Faults::open(Some(Path::new("libc.so.6")), UUID).is_none());
}

#[test]
fn only_the_cold_figure_rotates_the_inputs() {
    let Some(gpu) = open() else { return };
    // 10 µs if its first pointer is that of the launch before, else 50 µs.
    let session =
        session(&gpu, &[launch("track_1", &[0])], SessionSettings::default()).expect("a session");
    let found = measure(&gpu, &[&session], &TimingSettings::default()).expect("times");
    assert!((found[0].warm.median_us - 10.0).abs() < 1e-3, "{found:?}");
    assert!((found[0].cold.median_us - 50.0).abs() < 1e-3, "{found:?}");
}

#[test]
fn what_hardly_fits_is_warm_in_several_places() {
    // A quarter of 1 KiB of L2 and more, and less than three times of it.
    for (bytes, second) in [(240, 10.0), (256, 20.0), (3000, 20.0), (3072, 10.0)] {
        // 10 µs where the pointer is the first that was ever seen, else 20 µs; and 50 µs after another one, which no warm sample begins with.
        for (name, p10, median) in [("place_1", 10.0, second), ("track_1", 10.0, 10.0)] {
            let Some(gpu) = open() else { return };
            let mut specs = buffers();
            specs[0].bytes = bytes;
            let launches = [launch(name, &[0])];
            let settings = SessionSettings::default();
            let mut session =
                Session::open(&gpu, Code::Together(CUBIN), &launches, &specs, settings)
                    .expect("a session");
            session
                .upload(0, vec![1u8; bytes as usize])
                .expect("it fits");
            let found = measure(&gpu, &[&session], &TimingSettings::default()).expect("times");
            let warm = &found[0].warm;
            let near = |x: f64, y: f64| (x - y).abs() < 1e-3;
            let right = near(warm.p10_us, p10) && near(warm.median_us, median);
            assert!(right, "{bytes} {name} {warm:?}");
        }
    }
}

#[test]
fn a_change_of_the_clock_is_noticed_and_the_run_repeated() {
    let Some(gpu) = open() else { return };
    // 10 µs until the device's clock shows 20 ms, then 20 µs.
    let session =
        session(&gpu, &[launch("heat_1", &[0])], SessionSettings::default()).expect("a session");
    let settings = TimingSettings {
        warmup_us: 0.0,
        ..TimingSettings::default()
    };
    let once = measure(
        &gpu,
        &[&session],
        &TimingSettings {
            runs: 1,
            ..settings
        },
    )
    .expect("times");
    assert!(!once[0].warm.steady && once[0].warm.drift > 0.9, "{once:?}");
    let Some(gpu) = open() else { return };
    let session = self::session(&gpu, &[launch("heat_1", &[0])], SessionSettings::default())
        .expect("a session");
    let twice = measure(&gpu, &[&session], &settings).expect("times");
    assert!(
        twice[0].warm.steady && (twice[0].warm.median_us - 20.0).abs() < 1e-3,
        "{twice:?}"
    );
}

#[test]
fn slow_contenders_get_fewer_samples() {
    let Some(gpu) = open() else { return };
    let session =
        session(&gpu, &[launch("slow_1", &[1])], SessionSettings::default()).expect("a session");
    // 30 µs a launch, 193 launches in the cold graph: 5.79 ms a sample.
    for (budget_us, samples) in [(60_000.0, 10), (1.0, 3), (f64::INFINITY, 40)] {
        let settings = TimingSettings {
            budget_us,
            ..TimingSettings::default()
        };
        let found = measure(&gpu, &[&session], &settings).expect("times");
        assert_eq!(found[0].cold.samples, samples);
    }
    assert_eq!(measure(&gpu, &[], &TimingSettings::quick()), Ok(vec![]));
}

#[test]
fn scoped_sessions_cannot_be_timed() {
    let Some(gpu) = open() else { return };
    let settings = SessionSettings {
        residence: Residence::Scoped,
        ..SessionSettings::default()
    };
    let session = session(&gpu, &[launch("copy16_2", &[0, 2])], settings).expect("a session");
    assert!(matches!(
        measure(&gpu, &[&session], &TimingSettings::default()),
        Err(GpuError::Plan { .. })
    ));
}
