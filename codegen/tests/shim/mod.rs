//! Runs generated CUDA on the CPU: the text, compiled by the machine's C++ compiler against host twins of the device
//! primitives, one fiber a thread, under several thread orders.

use codegen::reference::{Element, ReferenceBuffer, ReferenceRole};
use codegen::{CudaProgram, Launch, ReferenceProgram, SplitWorkspace, TensorMap};
use ir::{BufferRole, TileProgram};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The families that have host twins; every other family is compiled as it stands.
const TWINNED: [&str; 12] = [
    include_str!("../../cuda/base.cuh"),
    include_str!("../../cuda/async.cuh"),
    include_str!("../../cuda/convert.cuh"),
    include_str!("../../cuda/math.cuh"),
    include_str!("../../cuda/warp.cuh"),
    include_str!("../../cuda/block_group.cuh"),
    include_str!("../../cuda/warpgroup.cuh"),
    include_str!("../../cuda/barrier.cuh"),
    include_str!("../../cuda/box.cuh"),
    include_str!("../../cuda/cluster.cuh"),
    include_str!("../../cuda/multicast.cuh"),
    include_str!("../../cuda/dependent_launch.cuh"),
];

/// What does not depend on the kernels.
const MACHINE: (&str, &str) = ("machine.cpp", include_str!("machine.cpp"));

/// How kernels are compiled: the hooks of ThreadSanitizer are the emulator's own, so its library is not linked.
const WATCHED: &str = "-std=c++17 -O1 -w -fsanitize=thread";
/// How the machine is, which reports by itself what it does for a kernel.
const UNWATCHED: &str = "-std=c++17 -O2 -w";

/// What the texts include.
const HEADERS: [(&str, &str); 3] = [
    ("driver.h", include_str!("driver.h")),
    ("emulate.h", include_str!("emulate.h")),
    ("twins.h", include_str!("twins.h")),
];

/// Orders in which the threads of a block may run: forward, backward, shuffled.
const ORDERS: u32 = 3;

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
    Built::new(&cuda.source, &calls(cuda), tile)?.run(inputs, 0)
}

/// The launches of a program, one line each.
pub(crate) fn calls(cuda: &CudaProgram) -> String {
    let line = |l: &Launch| {
        let grid = l.grid.map(|n| format!("{n}u"));
        call(l, &grid, &l.shared_bytes.to_string())
    };
    cuda.launches.iter().map(line).collect()
}

/// The line that launches a kernel with these numbers of blocks and bytes of shared memory, as texts.
pub(crate) fn call(launch: &Launch, grid: &[String; 3], shared: &str) -> String {
    let arguments: Vec<String> = launch.arguments.iter().map(|b| b.0.to_string()).collect();
    let list = |numbers: &[u64]| {
        let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
        format!("{{{}}}", texts.join(", "))
    };
    let map = |m: &TensorMap| {
        let sizes: Vec<u64> = m.sizes.iter().map(|n| u64::from(*n)).collect();
        format!(
            "{{{}, {}, {}, {}, {}, {}}}",
            m.buffer.0,
            m.offset,
            list(&m.extents),
            list(&m.strides),
            list(&sizes),
            m.line_bytes
        )
    };
    let maps: Vec<String> = launch.maps.iter().map(map).collect();
    let SplitWorkspace {
        counters,
        bytes,
        together,
    } = launch.split_workspace;
    format!(
        "  emu::launch({}, {{{}}}, {}, {shared}, {{{}}}, {{{counters}, {bytes}, {together}}}, {}, {{{}}});\n",
        launch.entry,
        grid.join(", "),
        launch.threads,
        arguments.join(", "),
        launch.overlaps,
        maps.join(", "),
    )
}

/// Outputs of every thread order, in output order.
pub(crate) type Outcome = Result<Vec<Vec<Vec<f64>>>, String>;

/// A text and the lines that launch it, compiled.
pub(crate) struct Built<'a> {
    tile: &'a TileProgram,
    folder: tempfile::TempDir,
}

impl<'a> Built<'a> {
    /// # Errors
    /// When the text does not compile; what happens when it runs is the outcome.
    pub(crate) fn new(source: &str, calls: &str, tile: &'a TileProgram) -> Result<Self, String> {
        let given = |b: &ir::Buffer| matches!(b.role, BufferRole::Parameter(_));
        let given: Vec<bool> = tile.buffers.iter().map(given).collect();
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        compile(source, calls, &given, folder.path())?;
        Ok(Self { tile, folder })
    }

    /// Runs it with one of its faults switched on (`emu::mutant`; 0: none).
    pub(crate) fn run(&self, inputs: &[Vec<f64>], mutant: usize) -> Outcome {
        let tile = self.tile;
        // Parameters hold the inputs; everything else starts as NaN.
        let buffers: Vec<Vec<u8>> = tile
            .buffers
            .iter()
            .map(|buffer| match buffer.role {
                BufferRole::Parameter(n) => buffer.dtype.encode(&inputs[n as usize]),
                BufferRole::Output(_) | BufferRole::Workspace => {
                    let count: u64 = buffer.axes().map(|a| tile.extent(a)).product();
                    vec![0xff; (count * buffer.dtype.bytes()) as usize]
                }
            })
            .collect();
        let mut outputs: Vec<(u32, usize)> = Vec::new();
        for (i, buffer) in tile.buffers.iter().enumerate() {
            if let BufferRole::Output(n) = buffer.role {
                outputs.push((n, i));
            }
        }
        outputs.sort_unstable();
        let read =
            |after: &[Vec<u8>], o: &(u32, usize)| tile.buffers[o.1].dtype.decode(&after[o.1]);
        let orders = execute(self.folder.path(), &buffers, mutant)?;
        Ok(orders
            .iter()
            .map(|after| outputs.iter().map(|o| read(after, o)).collect())
            .collect())
    }
}

/// The same for a chain of reference kernels, in slabs of `count` coordinates.
pub(crate) fn run_reference(
    program: &ir::Program,
    chain: &ReferenceProgram,
    inputs: &[Vec<f64>],
    count: u64,
) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let (axis, extent) = chain.slab.map_or((None, 1), |s| (Some(s.0), s.1));
    let firsts: Vec<u64> = (0..extent).step_by(count as usize).collect();
    let outputs: Vec<usize> = (0..chain.buffers.len())
        .filter(|b| matches!(chain.buffers[*b].role, ReferenceRole::Output(_)))
        .collect();
    // Each slab's outputs lie behind the buffers, one slab after the other.
    let base = |slab: usize| chain.buffers.len() + slab * outputs.len();
    let mut calls = String::new();
    for (n, first) in firsts.iter().enumerate() {
        let own = count.min(extent - first);
        let _ = writeln!(calls, "  const long long slab{n}[2] = {{{first}, {own}}};");
        for l in &chain.launches {
            let mut arguments = String::new();
            for b in &l.arguments {
                let output = outputs.iter().position(|o| *o == *b as usize);
                let at = output.map_or(*b as usize, |o| base(n) + o);
                let holder = chain.buffers[*b as usize].element.holder();
                let _ = write!(arguments, "({holder}*)emu::buffers[{at}].data, ");
            }
            let _ = writeln!(
                calls,
                "  emu::run_grid({{{}u, 1u, 1u}}, 256, {}, [&] {{ {}({arguments}slab{n}); }});",
                l.blocks(own),
                l.shared_bytes,
                l.entry,
            );
        }
    }
    let bytes = |b: &ReferenceBuffer, own: u64| {
        (b.elements * if b.slabbed { own } else { 1 } * b.element.bytes()) as usize
    };
    let mut buffers: Vec<Vec<u8>> = chain
        .buffers
        .iter()
        .map(|b| match (b.role, b.element) {
            (ReferenceRole::Parameter(n), Element::Of(dtype)) => dtype.encode(&inputs[n as usize]),
            (
                ReferenceRole::Parameter(_)
                | ReferenceRole::Output(_)
                | ReferenceRole::Intermediate,
                _,
            ) => vec![0xff; bytes(b, count)],
        })
        .collect();
    for first in &firsts {
        let own = count.min(extent - first);
        buffers.extend(
            outputs
                .iter()
                .map(|o| vec![0xff; bytes(&chain.buffers[*o], own)]),
        );
    }
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    compile(
        &chain.source,
        &calls,
        &vec![true; buffers.len()],
        folder.path(),
    )?;
    let orders = execute(folder.path(), &buffers, 0)?;
    let collect = |after: &[Vec<u8>], o: usize, output: &ir::Output| {
        let order: Vec<ir::AxisId> = output.dims.iter().flat_map(|d| d.0.clone()).collect();
        let place = order.iter().position(|a| Some(*a) == axis);
        let size =
            |axes: &[ir::AxisId]| axes.iter().map(|a| program.extent(*a)).product::<u64>() as usize;
        let (outer, inner) = match place {
            Some(at) => (size(&order[..at]), size(&order[at + 1..])),
            None => (1, size(&order)),
        };
        let mut all = vec![0.0; outer * extent as usize * inner];
        for (n, first) in firsts.iter().enumerate() {
            let part = chain.buffers[outputs[o]]
                .element
                .decode(&after[base(n) + o]);
            let line = count.min(extent - first) as usize * inner;
            for (at, line) in part.chunks(line).enumerate() {
                let start = (at * extent as usize + *first as usize) * inner;
                all[start..start + line.len()].copy_from_slice(line);
            }
        }
        all
    };
    Ok(orders
        .iter()
        .map(|after| {
            let all = program.outputs.iter().enumerate();
            all.map(|(o, output)| collect(after, o, output)).collect()
        })
        .collect())
}

/// Runs what was compiled in a folder on these buffers under every order; the buffers after each.
fn execute(folder: &Path, buffers: &[Vec<u8>], mutant: usize) -> Result<Vec<Vec<Vec<u8>>>, String> {
    let file = |i: usize| folder.join(format!("buffer{i}.bin"));
    (0..ORDERS)
        .map(|order| {
            for (i, bytes) in buffers.iter().enumerate() {
                std::fs::write(file(i), bytes).map_err(|e| e.to_string())?;
            }
            let ran = Command::new(folder.join("kernels"))
                .arg(order.to_string())
                .arg(mutant.to_string())
                .current_dir(folder)
                .output()
                .map_err(|e| e.to_string())?;
            if !ran.status.success() {
                let said = String::from_utf8_lossy(&ran.stderr);
                return Err(format!("order {order}: {} {said}", ran.status));
            }
            (0..buffers.len())
                .map(|i| std::fs::read(file(i)).map_err(|e| e.to_string()))
                .collect()
        })
        .collect()
}

/// `given`: for each buffer, whether no launch writes it.
fn compile(source: &str, calls: &str, given: &[bool], folder: &Path) -> Result<(), String> {
    let mut kernels = source.to_owned();
    // So have instructions; what is plain C++ of theirs is compiled as it stands.
    let plain = |text: &str| text.contains('{') && !text.contains("asm");
    let own = codegen::atoms::INSTRUCTIONS.iter().map(|i| i.text);
    let own = own.filter(|text| !text.is_empty() && !plain(text));
    for family in TWINNED.into_iter().chain(own) {
        kernels = kernels.replace(family, "\n");
    }
    // Printed instructions stand before the mark, one function each.
    while let Some(start) = kernels.find("template <> TW_FN void tw_wgmma_") {
        let length = kernels[start..].find("\n}\n").ok_or("an open function")? + 3;
        kernels.replace_range(start..start + length, "");
    }
    if kernels.contains("asm ") || kernels.contains("asm(") {
        return Err("inline assembly outside the twinned families".into());
    }
    let given: Vec<String> = given.iter().map(bool::to_string).collect();
    let given = given.join(", ");
    let text = format!(
        "#include \"driver.h\"\n{kernels}\nint main(int, char** argv) {{\n  emu::order = std::atoi(argv[1]);\n  \
         emu::mutant = std::atoi(argv[2]);\n  emu::read_buffers({{{given}}});\n{calls}  emu::write_buffers();\n}}\n"
    );
    write(folder, &[("kernels.cpp", &text)])?;
    let machine = machine()?;
    let told = |said| format!("{said}\n{source}");
    let headers = [Path::new("-I"), &machine];
    translate(
        folder,
        &format!("{WATCHED} -c -o kernels.o kernels.cpp"),
        &headers,
    )
    .map_err(told)?;
    // The kernels first: where both have a function of the headers, theirs is watched.
    let object = machine.join("machine.o");
    translate(folder, "-o kernels kernels.o", &[&object]).map_err(told)
}

fn write(folder: &Path, files: &[(&str, &str)]) -> Result<(), String> {
    for (name, content) in files {
        std::fs::write(folder.join(name), content).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn translate(folder: &Path, arguments: &str, more: &[&Path]) -> Result<(), String> {
    let done = Command::new("g++")
        .args(arguments.split(' '))
        .args(more)
        .current_dir(folder)
        .output()
        .map_err(|e| e.to_string())?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("g++: {}", String::from_utf8_lossy(&done.stderr)))
}

/// The folder of what does not depend on the kernels, compiled once and kept among the tests' files: an object file, and the headers,
/// which take longer to read than the kernels.
fn machine() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let make = || {
        let compiler = Command::new("g++").arg("--version").output();
        let mut hasher = DefaultHasher::new();
        (MACHINE, HEADERS, UNWATCHED, WATCHED).hash(&mut hasher);
        compiler
            .map_err(|e| e.to_string())?
            .stdout
            .hash(&mut hasher);
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let machine = kept.join(format!("machine-{:016x}", hasher.finish()));
        if machine.exists() {
            return Ok(machine);
        }
        // Whoever else makes it makes the same: the folder appears under its name when it is whole.
        let folder = tempfile::tempdir_in(kept).map_err(|e| e.to_string())?;
        write(folder.path(), &HEADERS)?;
        write(folder.path(), &[MACHINE])?;
        for (flags, made) in [
            (UNWATCHED, "-c -o machine.o machine.cpp"),
            (WATCHED, "-x c++-header -o driver.h.gch driver.h"),
        ] {
            translate(folder.path(), &format!("{flags} {made}"), &[])?;
        }
        let whole = folder.keep();
        if let Err(e) = std::fs::rename(&whole, &machine) {
            std::fs::remove_dir_all(&whole).map_err(|e| e.to_string())?;
            if !machine.exists() {
                return Err(e.to_string());
            }
        }
        Ok(machine)
    };
    MADE.get_or_init(make).clone()
}
