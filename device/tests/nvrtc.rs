//! NVRTC in this process: what comes out of texts that are right, wrong and slow.
//!
//! `TILEWRIGHT_NVRTC` names the library or its folder; without it the system's search path is tried, and if there is none the
//! tests that compile say so and pass.

use tilewright_device::nvrtc::{
    CompileError, Compiled, Defect, KernelStats, Nvrtc, Options, SearchPath,
};

const ARCH: &str = "sm_90a";

#[allow(clippy::print_stderr, reason = "a skipped test should be seen")]
fn nvrtc() -> Option<Nvrtc> {
    let library = std::env::var_os("TILEWRIGHT_NVRTC").map(Into::into);
    let given = library.is_some();
    match Nvrtc::open(&SearchPath {
        library,
        ..SearchPath::default()
    }) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            assert!(!given, "{error}");
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn compile(source: &str) -> Option<Result<Compiled, CompileError>> {
    nvrtc().map(|nvrtc| nvrtc.compile(source, ARCH, &Options::default()))
}

const CLEAN: &str = r#"
extern "C" __global__ void first(float* x) { __shared__ float s[32]; s[threadIdx.x] = x[0]; __syncthreads(); x[threadIdx.x] = s[31 - threadIdx.x]; }
extern "C" __global__ void second(float* x) { x[0] = 1; }
"#;

#[test]
fn a_clean_program_has_statistics_and_no_defects() {
    let Some(compiled) = compile(CLEAN) else {
        return;
    };
    let compiled = compiled.expect("the text should compile");
    assert!(compiled.cubin.starts_with(b"\x7fELF"));
    let first = compiled.kernel("first").expect("statistics of `first`");
    assert_eq!(
        (first.shared_bytes, first.barriers, first.entry),
        (128, 1, true)
    );
    assert!((2..=32).contains(&first.registers), "{first:?}");
    assert_eq!(
        compiled
            .kernel("second")
            .expect("statistics of `second`")
            .shared_bytes,
        0
    );
    assert_eq!(compiled.kernels.len(), 2);
    assert_eq!(compiled.defects(), []);
}

#[test]
fn the_same_text_gives_the_same_bytes() {
    let (Some(first), Some(second)) = (compile(CLEAN), compile(CLEAN)) else {
        return;
    };
    assert!(
        first.expect("the text should compile").cubin
            == second.expect("the text should compile").cubin
    );
}

/// More live values than 32 registers hold.
const SPILLS: &str = r#"
extern "C" __global__ void __launch_bounds__(1024, 2) k(const volatile float* x, volatile float* y) {
    float a[96];
    #pragma unroll
    for (int i = 0; i < 96; i++) a[i] = x[i * 1024 + threadIdx.x];
    #pragma unroll
    for (int i = 0; i < 96; i++) y[i * 1024 + threadIdx.x] = a[95 - i] * a[i];
}
"#;

#[test]
fn spills_are_defects() {
    let Some(compiled) = compile(SPILLS) else {
        return;
    };
    let compiled = compiled.expect("the text should compile");
    assert!(
        compiled.defects().iter().any(|defect| matches!(defect, Defect::Spill { kernel, stores: 1.., loads: 1.. } if kernel == "k")),
        "{}",
        compiled.log
    );
}

#[test]
fn a_stack_frame_is_a_defect() {
    let text = r#"extern "C" __global__ void k(float* x) { float a[96]; for (int i = 0; i < 96; i++) a[i] = x[i]; x[1] = a[(int)x[100]]; }"#;
    let Some(compiled) = compile(text) else {
        return;
    };
    assert_eq!(
        compiled.expect("the text should compile").defects(),
        [Defect::Stack {
            kernel: "k".into(),
            bytes: 384
        }]
    );
}

#[test]
fn refusals_carry_the_log() {
    for (text, word) in [
        (
            "extern \"C\" __global__ void k(float* x) { x[0] = ; }",
            "expected an expression",
        ),
        (
            "extern \"C\" __global__ void k(float* x) { asm volatile(\"bogus.f32 %0;\" :: \"f\"(x[0])); }",
            "bogus",
        ),
        ("#include \"absent.h\"\n", "absent.h"),
    ] {
        let Some(outcome) = compile(text) else { return };
        match outcome {
            Err(CompileError::Refused { log }) => assert!(log.contains(word), "{log}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn odd_architectures_and_texts_are_errors() {
    let Some(nvrtc) = nvrtc() else { return };
    for arch in ["", "sm_", "compute_90a", "sm_90x", "sm_90a\0", "sm_90a -I/"] {
        let outcome = nvrtc.compile(CLEAN, arch, &Options::default());
        assert!(
            matches!(outcome, Err(CompileError::Architecture { .. })),
            "{arch}: {outcome:?}"
        );
    }
    assert!(matches!(
        nvrtc.compile(CLEAN, "sm_1", &Options::default()),
        Err(CompileError::Library { .. })
    ));
    assert_eq!(
        nvrtc.compile("a\0b", ARCH, &Options::default()),
        Err(CompileError::ZeroCharacter)
    );
}

#[test]
fn an_absent_library_is_an_error_that_says_how_to_get_it() {
    let library = Some("/nonexistent/libnvrtc.so.13".into());
    let Err(error) = Nvrtc::open(&SearchPath {
        library,
        ..SearchPath::default()
    }) else {
        panic!("there is no such file")
    };
    assert!(
        error.to_string().contains("pip install nvidia-cuda-nvrtc"),
        "{error}"
    );
    assert!(
        error.to_string().contains("/nonexistent/libnvrtc.so.13"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_library_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("libnvrtc.so.13");
    std::fs::write(&file, "text").expect("writing");
    for library in [file, folder.path().to_owned()] {
        assert!(
            Nvrtc::open(&SearchPath {
                library: Some(library),
                ..SearchPath::default()
            })
            .is_err()
        );
    }
}

#[test]
fn the_log_is_read_without_a_compiler() {
    let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function 'k'
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    16 bytes stack frame, 564 bytes spill stores, 608 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Function properties for _Z1ff
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";
    let compiled = Compiled::new(Vec::new(), log.into());
    let k = KernelStats {
        name: "k".into(),
        entry: true,
        registers: 168,
        shared_bytes: 1024,
        stack_bytes: 16,
        spill_stores: 564,
        spill_loads: 608,
        barriers: 2,
    };
    let f = KernelStats {
        name: "_Z1ff".into(),
        stack_bytes: 8,
        ..KernelStats::default()
    };
    assert_eq!(compiled.kernels, [k, f]);
    let words: Vec<String> = compiled.defects().iter().map(ToString::to_string).collect();
    assert_eq!(words.len(), 4);
    assert!(
        words[0].contains("564")
            && words[1].contains("16")
            && words[2].contains("_Z1ff")
            && words[3].contains("C7510"),
        "{words:?}"
    );
}

#[test]
fn a_text_of_several_kernels_is_compiled_in_parts_and_always_to_the_same() {
    let kernel = |n: u32| {
        format!(
            "extern \"C\" __global__ void k{n}(float* x) {{ x[threadIdx.x] = x[{n}] * {n}; }}\n"
        )
    };
    let split = |text: &str| {
        let arguments = Options::default().arguments(ARCH, text);
        arguments.iter().any(|a| a.starts_with("--split-compile="))
    };
    let text: String = (0..9).map(kernel).collect();
    assert!(split(&text) && !split(&kernel(0)));
    let (Some(first), Some(second)) = (compile(&text), compile(&text)) else {
        return;
    };
    let [first, second] = [first, second].map(|c| c.expect("the text should compile"));
    assert_eq!(first.cubin, second.cubin);
    assert_eq!(first.kernels, second.kernels);
    for n in 0..9 {
        let alone = compile(&kernel(n)).and_then(Result::ok);
        let name = format!("k{n}");
        let alone = alone.as_ref().and_then(|c| c.kernel(&name));
        assert_eq!(first.kernel(&name), alone);
    }
}
