//! Runs generated CUDA on the CPU: the text, compiled by the machine's C++ compiler against host twins of the device
//! primitives (`codegen/tests/shim`), one fiber a thread, under several thread orders.

use codegen::CudaProgram;
use ir::{BufferRole, TileProgram};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The families that have host twins; every other family is compiled as it stands.
const TWINNED: [&str; 5] = [
    include_str!("../../codegen/cuda/base.cuh"),
    include_str!("../../codegen/cuda/async.cuh"),
    include_str!("../../codegen/cuda/convert.cuh"),
    include_str!("../../codegen/cuda/math.cuh"),
    include_str!("../../codegen/cuda/mma.cuh"),
];

/// Whether this machine has a C++ compiler; says so when it hasn't.
pub(crate) fn available() -> bool {
    let found = Command::new("g++").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: no g++ on this machine, so generated kernels are not emulated");
    }
    found
}

/// Outputs of every thread order, in output order, decoded from their dtypes.
pub(crate) fn run(
    cuda: &CudaProgram,
    tile: &TileProgram,
    inputs: &[Vec<f64>],
) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    compile(cuda, folder.path())?;
    (0..3)
        .map(|order| {
            place_buffers(tile, inputs, folder.path())?;
            let ran = Command::new(folder.path().join("kernels"))
                .arg(order.to_string())
                .current_dir(folder.path())
                .output()
                .map_err(|e| e.to_string())?;
            if !ran.status.success() {
                let said = String::from_utf8_lossy(&ran.stderr);
                return Err(format!("order {order}: {} {said}", ran.status));
            }
            outputs(tile, folder.path())
        })
        .collect()
}

fn compile(cuda: &CudaProgram, folder: &Path) -> Result<(), String> {
    let mut kernels = cuda.source.clone();
    for family in TWINNED {
        kernels = kernels.replace(family, "\n");
    }
    if kernels.contains("asm ") || kernels.contains("asm(") {
        return Err("inline assembly outside the twinned families".into());
    }
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("codegen/tests/shim");
    let mut text = format!(
        "#include \"{}\"\n{kernels}\nint main(int, char** argv) {{\n",
        shim.join("driver.h").display()
    );
    text.push_str("  emu::order = std::atoi(argv[1]);\n");
    let last = cuda
        .launches
        .iter()
        .flat_map(|l| l.arguments.iter().map(|b| b.0))
        .max();
    let _ = writeln!(text, "  emu::read_buffers({});", last.map_or(0, |b| b + 1));
    for l in &cuda.launches {
        let arguments: Vec<String> = l.arguments.iter().map(|b| b.0.to_string()).collect();
        let [x, y, z] = l.grid;
        let _ = writeln!(
            text,
            "  emu::launch({}, {{{x}u, {y}u, {z}u}}, {}, {}, {{{}}});",
            l.entry,
            l.threads,
            l.shared_bytes,
            arguments.join(", ")
        );
    }
    text.push_str("  emu::write_buffers();\n}\n");
    let file = folder.join("kernels.cpp");
    std::fs::write(&file, text).map_err(|e| e.to_string())?;
    let done = Command::new("g++")
        .args(["-std=c++20", "-O1", "-w", "-o"])
        .arg(folder.join("kernels"))
        .arg(&file)
        .output()
        .map_err(|e| e.to_string())?;
    if done.status.success() {
        Ok(())
    } else {
        Err(format!(
            "g++: {}\n{}",
            String::from_utf8_lossy(&done.stderr),
            cuda.source
        ))
    }
}

/// Parameters hold the inputs; everything else starts as NaN.
fn place_buffers(tile: &TileProgram, inputs: &[Vec<f64>], folder: &Path) -> Result<(), String> {
    for (i, buffer) in tile.buffers.iter().enumerate() {
        let bytes = match buffer.role {
            BufferRole::Parameter(n) => buffer.dtype.encode(&inputs[n as usize]),
            BufferRole::Output(_) | BufferRole::Workspace => {
                let count: u64 = buffer.axes().map(|a| tile.extent(a)).product();
                vec![0xff; (count * buffer.dtype.bytes()) as usize]
            }
        };
        std::fs::write(folder.join(format!("buffer{i}.bin")), bytes).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn outputs(tile: &TileProgram, folder: &Path) -> Result<Vec<Vec<f64>>, String> {
    let mut all: Vec<(u32, Vec<f64>)> = Vec::new();
    for (i, buffer) in tile.buffers.iter().enumerate() {
        let BufferRole::Output(n) = buffer.role else {
            continue;
        };
        let bytes =
            std::fs::read(folder.join(format!("buffer{i}.bin"))).map_err(|e| e.to_string())?;
        all.push((n, buffer.dtype.decode(&bytes)));
    }
    all.sort_by_key(|o| o.0);
    Ok(all.into_iter().map(|o| o.1).collect())
}
