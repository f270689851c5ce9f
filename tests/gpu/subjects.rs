//! Kernels of every kind at small extents: what tools watch while it runs on a GPU.

use crate::kinds::{KINDS, program};
use codegen::{CudaProgram, Launch};
use device::session::{BufferSpec, Role};
use ir::{AxisId, BufferRole, Program, Target, TileProgram};
use search::tiling::enumerate::{SearchOptions, candidates};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use verify::inputs::{DISTRIBUTIONS, draw_inputs};

/// What kernels of different kinds have in their texts.
#[rustfmt::skip]
pub(crate) const KINDS_OF_KERNELS: &[(&str, &str)] = &[
    ("matrix instructions of single warps",       "tw_mma_"),
    ("products of halves",                        "tw_split("),
    ("products of halves by groups of warps",     "tw_halve<"),
    ("copies in the background",                  "tw_copy_async<"),
    ("matrix instructions of groups of warps",    "tw_wgmma_commit("),
    ("boxes that the hardware copies",            "tw_box("),
    ("warps that copy and announce",              "tw_copy_arrive("),
    ("a wait for tiles that warps copied",        "tw_tile_wait("),
    ("groups that take turns",                    "tw_turn_wait<"),
    ("a vote of a group",                         "tw_any_of_group("),
    ("persistent blocks",                         "int work_tile = "),
    ("blocks that wait for blocks",               "tw_grid_barrier("),
    ("a block that combines the parts of others", "if (!tw_last("),
    ("blocks that start in an order",             "tw_ticket("),
    ("blocks that read each other's parts",       "tw_load_peer("),
    ("launches that overlap",                     "tw_wait_before("),
    ("what L2 is asked for before a wait",        "tw_prefetch("),
    ("clusters that copy once for all",           "tw_cluster_begins("),
    ("exchanges between lanes",                   "tw_exchange<"),
    ("scans across lanes",                        "__shfl_up_sync("),
    ("loops that end where a parameter says",     ") * tw_entry(p"),
    ("indices that are divided",                  " % 2u == 0"),
];

/// Programs whose candidates at these extents have groups of warps that take turns, and the extents at which they run: rows for
/// several blocks, and tiles along the loop so that stages are filled again.
#[rustfmt::skip]
const LARGE: &[(&str, &str, &[u64])] = &[
    ("wide_attention",
     "axis h = 128, i = 4096, j = 4096, d = 32, e = 32\n\
      q = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
      return bf16 [h, i, e] dot(softmax(dot(q, k; d) * 0.18; j), v; j)",
     &[2, 300, 700, 32, 32]),
    ("wide_causal",
     "axis h = 128, i = 4096, j = 4096, d = 64, e = 64\n\
      q = parameter f16 [h, i, d]\nk = parameter f16 [h, j, d]\nv = parameter f16 [h, j, e]\n\
      return f16 [h, i, e] dot(softmax(causal(dot(q, k; d) * 0.125; i, j); j), v; j)",
     &[2, 520, 520, 64, 64]),
    ("wide_product",
     "axis i = 4096, j = 4096, m = 4096\nx = parameter bf16 [i, m]\ny = parameter bf16 [m, j]\n\
      return bf16 [i, j] dot(x, y; m)",
     &[400, 392, 520]),
    ("wide_product_f32",
     "axis i = 4096, j = 4096, m = 4096\nx = parameter f32 [i, m]\ny = parameter f32 [m, j]\n\
      return f32 [i, j] dot(x, y; m)",
     &[300, 200, 264]),
    ("deep_product",
     "axis i = 70, j = 70, m = 500\nx = parameter bf16 [i, m]\ny = parameter bf16 [m, j]\n\
      return bf16 [i, j] dot(x, y; m)",
     &[70, 70, 500]),
    ("split_attention",
     "axis b = 16, i = 256, j = 4096, d = 64, e = 64\n\
      q = parameter f16 [b, i, d]\nk = parameter f16 [b, j, d]\nv = parameter f16 [b, j, e]\n\
      return f16 [b, i, e] dot(softmax(dot(q, k; d) * 0.125; j), v; j)",
     &[2, 256, 4096, 64, 64]),
];

/// Candidates of a program that are looked through for what no kernel before had, and of a large one.
const LOOKED_AT: usize = 40;
const LOOKED_AT_LARGE: usize = 3;

/// Kernels, ready to run: what they were lowered to, and what they read.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) cuda: CudaProgram,
    buffers: Vec<BufferSpec>,
    inputs: BTreeMap<usize, Vec<u8>>,
}

/// The same, compiled, as it is handed to a process that runs it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) cubin: Vec<u8>,
    pub(crate) launches: Vec<Launch>,
    pub(crate) buffers: Vec<BufferSpec>,
    pub(crate) inputs: BTreeMap<usize, Vec<u8>>,
}

impl Subject {
    fn new(name: String, program: &Program, tile: &TileProgram, cuda: CudaProgram) -> Self {
        let drawn = draw_inputs(program, &DISTRIBUTIONS[0], 7);
        let mut inputs = BTreeMap::new();
        let buffers = (tile.buffers.iter().enumerate())
            .map(|(at, buffer)| BufferSpec {
                name: buffer.name.clone(),
                bytes: tile.buffer_bytes(buffer),
                role: match buffer.role {
                    BufferRole::Parameter(n) => {
                        inputs.insert(at, buffer.dtype.encode(&drawn[n as usize]));
                        Role::Input
                    }
                    BufferRole::Output(_) => Role::Output,
                    BufferRole::Workspace => Role::Workspace,
                },
            })
            .collect();
        Self {
            name,
            cuda,
            buffers,
            inputs,
        }
    }

    pub(crate) fn job(self, cubin: Vec<u8>) -> Job {
        Job {
            name: self.name,
            cubin,
            launches: self.cuda.launches,
            buffers: self.buffers,
            inputs: self.inputs,
        }
    }

    /// What of [`KINDS_OF_KERNELS`] its kernels have.
    pub(crate) fn kinds(&self) -> BTreeSet<&'static str> {
        kinds_of(&self.cuda)
    }
}

/// What of [`KINDS_OF_KERNELS`] kernels have.
fn kinds_of(cuda: &CudaProgram) -> BTreeSet<&'static str> {
    let kernels = cuda.source.split_once(codegen::KERNELS_MARK);
    let kernels = kernels.map_or("", |k| k.1);
    let has = |word: &str| {
        let mut lines = kernels.lines();
        lines.any(|l| l.contains(word) && !l.contains("TW_FN"))
    };
    let found = KINDS_OF_KERNELS.iter().filter(|(_, word)| has(word));
    found.map(|(kind, _)| *kind).collect()
}

/// The first candidate of every program, and others with what none before had: of the large programs the first of each kind, and of
/// the others those of kinds that are still missing.
pub(crate) fn subjects(target: &Target) -> Vec<Subject> {
    let large = LARGE.iter().map(|(n, text, run)| (*n, *text, Some(*run)));
    let kinds = KINDS.iter().map(|(n, text)| (*n, *text, None));
    let mut found = BTreeSet::new();
    let mut all = Vec::new();
    for (name, text, run) in large.chain(kinds) {
        let whole = program(name, text);
        let own: Vec<u64> = whole.axes.iter().map(|a| a.extent).collect();
        let run_at = run.unwrap_or(&own).iter().copied();
        let extents: BTreeMap<AxisId, u64> = (0..).map(AxisId).zip(run_at).collect();
        let small = whole.resized(&extents).expect("the same program");
        let mut of_this = BTreeSet::new();
        let mut first = true;
        let count = if run.is_some() {
            LOOKED_AT_LARGE
        } else {
            LOOKED_AT
        };
        for candidate in candidates(vec![whole], target, &SearchOptions::default()).take(count) {
            if !first && found.len() == KINDS_OF_KERNELS.len() {
                break;
            }
            let tile = candidate.tile.resized(&extents, |_, _| None);
            let tile = tile.expect("the same tile program");
            for schedule in search::schedules::schedules(&tile, target) {
                let Ok(cuda) = codegen::lower(&tile, &schedule, target) else {
                    continue;
                };
                let kinds = kinds_of(&cuda);
                let known = if run.is_some() { &of_this } else { &found };
                if first || !kinds.is_subset(known) {
                    first = false;
                    of_this.extend(kinds.iter().copied());
                    found.extend(kinds);
                    let name = format!("{name} {}", all.len());
                    all.push(Subject::new(name, &small, &tile, cuda));
                } else if found.len() == KINDS_OF_KERNELS.len() && run.is_none() {
                    break;
                }
            }
        }
    }
    all
}
