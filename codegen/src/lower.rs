//! Lowering: from tile programs and schedules to CUDA text.

mod chain;
mod contract;
mod coordinates;
mod delay;
mod elements;
mod memory;
mod producer;
mod repeat;
mod team;
mod text;
mod warpgroup;

use self::chain::Link;
use self::producer::{Around, map_name};
use self::repeat::lengthens;
use self::team::Team;
use self::text::{comment, describe, entry_name};
pub(crate) use self::text::{
    holder, identifier, literal, map_text, narrow, suffix, sum, times, widen,
};
use self::warpgroup::Instruction;
use crate::cuda::{self, Node, line};
use crate::layout::{Factor, Layout};
use crate::plan::{Delay, Plan};
use crate::resources::SWIZZLE_BYTES;
use crate::{CudaProgram, Launch, TensorMap};
use ir::{
    AxisId, BufferId, BufferRole, Dtype, Kernel, KernelSchedule, Reject, Schedule, Statement,
    Target, TileOp, TileProgram, ValueId, stores,
};
use std::collections::{BTreeMap, BTreeSet};

/// A family of device functions that a kernel may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Base,
    Convert,
    Math,
    Exp,
    Async,
    Mma,
    Split,
    Team,
    Wgmma,
    Barrier,
    Box,
    Chain,
    Common,
    Vector,
}

impl Family {
    const ALL: [Self; 14] = [
        Self::Base,
        Self::Convert,
        Self::Math,
        Self::Exp,
        Self::Async,
        Self::Mma,
        Self::Split,
        Self::Team,
        Self::Wgmma,
        Self::Barrier,
        Self::Box,
        Self::Chain,
        Self::Common,
        Self::Vector,
    ];

    fn text(self) -> &'static str {
        match self {
            Self::Base => include_str!("../cuda/base.cuh"),
            Self::Convert => include_str!("../cuda/convert.cuh"),
            Self::Math => include_str!("../cuda/math.cuh"),
            Self::Exp => include_str!("../cuda/exp.cuh"),
            Self::Async => include_str!("../cuda/async.cuh"),
            Self::Mma => include_str!("../cuda/mma.cuh"),
            Self::Split => include_str!("../cuda/split.cuh"),
            Self::Team => include_str!("../cuda/team.cuh"),
            Self::Wgmma => include_str!("../cuda/wgmma.cuh"),
            Self::Barrier => include_str!("../cuda/barrier.cuh"),
            Self::Box => include_str!("../cuda/box.cuh"),
            Self::Chain => include_str!("../cuda/chain.cuh"),
            Self::Common => include_str!("../cuda/common.cuh"),
            Self::Vector => include_str!("../cuda/vector.cuh"),
        }
    }

    /// Whether the family is plain C++: the others wrap single instructions.
    fn plain(self) -> bool {
        matches!(self, Self::Common | Self::Vector)
    }
}

/// Threads that share a multiprocessor's registers: where there are more, each has few.
const BUSY: u64 = 512;

/// Stands between the wrapped instructions and the rest of a program's text.
pub const KERNELS_MARK: &str = "// ---- kernels ----";

/// Lowers every kernel of a tile program.
///
/// The text needs no header. Kernels take one pointer a buffer; buffers must be aligned to 16 bytes. A kernel never
/// writes a buffer that it also reads.
pub fn lower(
    tile: &TileProgram,
    schedule: &Schedule,
    target: &Target,
) -> Result<CudaProgram, Reject> {
    if schedule.kernels.len() != tile.kernels.len() {
        return Err(Reject::Schedule(format!(
            "{} kernels, {} kernel schedules",
            tile.kernels.len(),
            schedule.kernels.len()
        )));
    }
    let mut families: BTreeSet<Family> = [
        Family::Base,
        Family::Convert,
        Family::Common,
        Family::Vector,
    ]
    .into_iter()
    .collect();
    let mut instructions = BTreeSet::new();
    let mut kernels = String::new();
    let mut launches = Vec::new();
    for (number, (kernel, s)) in tile.kernels.iter().zip(&schedule.kernels).enumerate() {
        let link = Link::of(tile, kernel, target);
        let (kernel, independent) = match link.waits {
            true => chain::independent_first(tile, kernel),
            false => (kernel.clone(), kernel.body.len()),
        };
        let plan = Plan::new(tile, &kernel, s, target)?;
        let mut emitter = Emitter::new(&plan, link);
        let launch = emitter.kernel(number, independent, target, &mut kernels)?;
        families.extend(emitter.families);
        instructions.extend(emitter.instructions);
        launches.push(launch);
    }
    let mut source = format!("// {}\n", comment(&tile.name));
    for text in describe(tile, schedule).lines() {
        source.push_str(&format!("// {}\n", comment(text)));
    }
    for plain in [false, true] {
        for family in Family::ALL {
            if families.contains(&family) && family.plain() == plain {
                source.push('\n');
                source.push_str(family.text());
            }
        }
        if !plain {
            for instruction in &instructions {
                source.push_str(&instruction.text());
            }
            source.push_str(&format!("\n{KERNELS_MARK}\n"));
        }
    }
    source.push_str(&kernels);
    Ok(CudaProgram { source, launches })
}

/// The index of one element of a layout's registers: one expression a digit.
pub(crate) type Digits = Vec<String>;

/// Where the elements of a value come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The same constant everywhere.
    Literal(String),
    /// The coordinate along an axis.
    Coordinate(AxisId),
    /// An array of registers.
    Array { name: String, layout: Layout },
}

/// What lowering one kernel carries along.
pub(crate) struct Emitter<'a> {
    plan: &'a Plan<'a>,
    tile: &'a TileProgram,
    kernel: &'a Kernel,
    schedule: &'a KernelSchedule,
    /// Results must be as accurate as f32 allows.
    precise: bool,
    families: BTreeSet<Family>,
    /// Warpgroup instructions that are printed for this kernel.
    instructions: BTreeSet<Instruction>,
    /// Layouts whose thread coordinates have names.
    known: Vec<Layout>,
    used: BTreeSet<(usize, AxisId)>,
    /// Arrays in scope, innermost last.
    scopes: Vec<BTreeMap<(ValueId, Layout), String>>,
    arrays: usize,
    loops: usize,
    /// Copies into shared memory that no barrier has made visible yet.
    pending: bool,
    scratch_bytes: u64,
    /// Accumulators of instructions that may be under way, with their arrays.
    flying: BTreeMap<ValueId, String>,
    /// What the iteration before left to do and this one has not issued yet.
    waiting: Option<Delay>,
    /// Reductions whose parts threads keep to themselves until their loop has ended.
    partial_sums: BTreeSet<ValueId>,
    team: Option<Team>,
    /// What the warps do that fill rings, if there are any.
    producer: Vec<Node>,
    /// The loops that are open, from the outermost one on.
    around: Vec<Around>,
    link: Link,
    /// Whether the kernels in front have been waited for, by the threads that compute.
    waited: bool,
    /// The block's coordinates, once lowered, and how many blocks the grid has.
    grid: (Vec<Node>, u32),
    /// What the next loop does after its first copies: it waits for the kernels in front, and then does these.
    delayed: Option<Vec<Statement>>,
}

impl<'a> Emitter<'a> {
    fn new(plan: &'a Plan<'a>, link: Link) -> Self {
        let precise = plan
            .tile
            .buffers
            .iter()
            .any(|b| matches!(b.role, BufferRole::Output(_)) && b.dtype == Dtype::F32);
        Self {
            plan,
            tile: plan.tile,
            kernel: plan.kernel,
            schedule: plan.schedule,
            precise,
            families: BTreeSet::new(),
            instructions: BTreeSet::new(),
            known: Vec::new(),
            used: BTreeSet::new(),
            scopes: vec![BTreeMap::new()],
            arrays: 0,
            loops: 0,
            pending: false,
            scratch_bytes: 0,
            flying: BTreeMap::new(),
            waiting: None,
            partial_sums: BTreeSet::new(),
            team: Team::of(plan.tile, plan.kernel),
            producer: Vec::new(),
            around: Vec::new(),
            link,
            waited: false,
            grid: (Vec::new(), 0),
            delayed: None,
        }
    }

    fn kernel(
        &mut self,
        number: usize,
        independent: usize,
        target: &Target,
        out: &mut String,
    ) -> Result<Launch, Reject> {
        let mut read = BTreeSet::new();
        for v in &self.kernel.values {
            if let TileOp::Load { buffer, .. } = &v.op {
                read.insert(*buffer);
            }
        }
        let written: BTreeSet<BufferId> =
            stores(&self.kernel.body).into_iter().map(|s| s.0).collect();
        if let Some(both) = read.intersection(&written).next() {
            return Err(Reject::Schedule(format!(
                "buffer {} is read and written by one kernel",
                self.tile.buffer(*both).name
            )));
        }
        if self.schedule.persistent && self.plan.produced.is_none() {
            return Err(Reject::Schedule(
                "blocks stay for several tiles, and no warps only fill rings".into(),
            ));
        }
        self.grid = self.grid()?;
        // Blocks of a team tell each other things from the start.
        let late = self.link.waits && self.team.is_none();
        let (first, rest) = self.kernel.body.split_at(independent);
        let mut body = self.statements(first)?;
        let mut rest = rest;
        if late {
            match self.fills_first(rest) {
                Some(lets) => {
                    self.delayed = Some(rest[..lets].to_vec());
                    rest = &rest[lets..];
                }
                None => self.wait_before(&mut body),
            }
        }
        body.extend(self.statements(rest)?);
        if self.delayed.is_some() {
            return Err(Reject::Schedule(
                "the kernels in front are not waited for".into(),
            ));
        }
        let shared = self.plan.tile_bytes() + self.plan.barrier_bytes() + self.scratch_bytes;
        let board = self.board(shared, target)?;
        if shared > target.shared_per_block {
            return Err(Reject::SharedMemory {
                need: shared,
                have: target.shared_per_block,
            });
        }
        let threads = self.plan.block_threads();
        let mut nodes = vec![
            line("const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;"),
            line("(void)lane; (void)warp;"),
        ];
        if self.link.is_read {
            nodes.push(line("tw_start_next();"));
        }
        if self.link.waits && !late {
            nodes.push(line("tw_wait_before();"));
        }
        if self.link.waits {
            self.families.insert(Family::Chain);
        }
        let aligned = if self.families.contains(&Family::Wgmma) {
            nodes.push(line(
                "const int group = __shfl_sync(0xffffffffu, warp >> 2, 0);",
            ));
            SWIZZLE_BYTES
        } else {
            128
        };
        let (grid, blocks) = self.grid.clone();
        if !self.schedule.persistent {
            nodes.extend(grid);
        }
        for (id, axis) in self.used.clone() {
            let layout = self.known[id].clone();
            let part = |factors: &[Factor], name: &str| -> Vec<String> {
                let mut bit = 0;
                let mut terms = Vec::new();
                for f in factors {
                    if f.axis == Some(axis) {
                        let digit = format!("(({name} >> {bit}) & {})", f.size - 1);
                        terms.push(times(f.stride as i64, &digit));
                    }
                    bit += f.size.trailing_zeros();
                }
                terms
            };
            let mut terms = part(&layout.lanes, "lane");
            terms.extend(part(&layout.warps, "warp"));
            nodes.push(line(format!(
                "const int {} = {};",
                self.thread_name(id, axis),
                sum(terms)
            )));
        }
        nodes.extend(self.split_warps(target));
        if self.schedule.persistent {
            body = self.visited(body);
        }
        nodes.extend(body);
        let blocks = if self.schedule.persistent {
            blocks.min(self.schedule.blocks_per_sm * target.sms)
        } else {
            blocks
        };
        let entry = format!("{}_{number}", entry_name(&self.tile.name));
        let arguments: Vec<BufferId> = read.union(&written).copied().collect();
        let mut parameters: Vec<String> = arguments
            .iter()
            .map(|b| {
                let constant = if written.contains(b) { "" } else { "const " };
                let kind = holder(self.tile.buffer(*b).dtype);
                // What is written while the kernel waits may not be read ahead.
                let alone = match self.is_late(*b) {
                    true => "",
                    false => "__restrict__ ",
                };
                format!("{constant}{kind}* {alone}{}", self.pointer(*b))
            })
            .collect();
        if board.bytes > 0 {
            parameters.push("unsigned char* board".into());
        }
        let maps: Vec<TensorMap> = self.plan.boxes.values().map(|b| b.map.clone()).collect();
        for t in self.plan.boxes.keys() {
            parameters.push(format!("const __grid_constant__ tw_map {}", map_name(*t)));
        }
        out.push_str(&format!(
            "\nextern \"C\" __global__ void __launch_bounds__({threads}, {}) {entry}({}) {{\n",
            self.schedule.blocks_per_sm,
            parameters.join(", ")
        ));
        if shared > 0 {
            out.push_str(&format!(
                "  extern __shared__ __align__({aligned}) unsigned char shared[];\n"
            ));
        }
        cuda::print(&nodes, 1, out);
        out.push_str("}\n");
        Ok(Launch {
            entry,
            grid: [blocks, 1, 1],
            threads: threads as u32,
            shared_bytes: shared as u32,
            arguments,
            maps,
            board,
            overlaps: self.link.waits && number > 0,
        })
    }

    fn pointer(&self, buffer: BufferId) -> String {
        format!(
            "p{}_{}",
            buffer.0,
            identifier(&self.tile.buffer(buffer).name)
        )
    }

    /// Whether a buffer may be written by a kernel in front while this one has begun.
    fn is_late(&self, buffer: BufferId) -> bool {
        self.link.waits && chain::is_made(self.tile, buffer)
    }

    /// Loops over the registers of a layout; `body` gets the digits and says what happens. The first digit moves in
    /// steps of `step`.
    fn registers(
        &mut self,
        layout: &Layout,
        step: u64,
        body: impl FnOnce(&mut Self, &Digits) -> Vec<Node>,
    ) -> Vec<Node> {
        let counts: Vec<u64> = layout
            .registers
            .iter()
            .enumerate()
            .map(|(i, f)| if i == 0 { f.size / step } else { f.size })
            .collect();
        let digits: Digits = counts
            .iter()
            .enumerate()
            .map(|(i, n)| match (i, n) {
                (_, 1) => "0".to_string(),
                (0, _) => times(step as i64, "r0"),
                _ => format!("r{i}"),
            })
            .collect();
        let mut nodes = body(self, &digits);
        for (i, n) in counts.iter().enumerate() {
            if *n > 1 {
                nodes = vec![cuda::unrolled(&format!("r{i}"), *n, nodes)];
            }
        }
        nodes
    }

    /// The index in the array of a layout of the element that another layout's digits name.
    fn index(of: &Layout, within: &Layout, digits: &Digits) -> String {
        let (mut terms, mut scale) = (Vec::new(), 1);
        for f in &of.registers {
            if f.axis.is_some()
                && let Some(at) = within.registers.iter().position(|g| g == f)
                && digits[at] != "0"
            {
                terms.push(times(scale, &digits[at]));
            }
            scale *= f.size as i64;
        }
        sum(terms)
    }

    /// The index in a layout's own array.
    fn own_index(layout: &Layout, digits: &Digits) -> String {
        let (mut terms, mut scale) = (Vec::new(), 1);
        for (f, d) in layout.registers.iter().zip(digits) {
            if d != "0" {
                terms.push(times(scale, d));
            }
            scale *= f.size as i64;
        }
        sum(terms)
    }

    /// One element of a source, as seen from another layout's digits.
    fn element(&mut self, source: &Source, within: &Layout, digits: &Digits) -> String {
        match source {
            Source::Literal(text) => text.clone(),
            Source::Coordinate(axis) => {
                let at = self.global(within, *axis, digits);
                format!("(float)({at})")
            }
            Source::Array { name, layout } => {
                format!("{name}[{}]", Self::index(layout, within, digits))
            }
        }
    }

    /// A new array for a value.
    fn array(&mut self, v: ValueId, layout: &Layout, out: &mut Vec<Node>) -> String {
        let name = format!(
            "v{}_{}",
            self.arrays,
            identifier(&self.kernel.value(v).name)
        );
        self.arrays += 1;
        out.push(line(format!("float {name}[{}];", layout.register_count())));
        name
    }

    fn bind(&mut self, v: ValueId, layout: &Layout, name: &str) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert((v, layout.clone()), name.to_string());
        }
    }

    fn find(&self, v: ValueId, wanted: Option<&Layout>) -> Option<Source> {
        for scope in self.scopes.iter().rev() {
            for ((value, layout), name) in scope {
                if *value == v && wanted.is_none_or(|w| layout.distinct() == w.distinct()) {
                    return Some(Source::Array {
                        name: name.clone(),
                        layout: layout.clone(),
                    });
                }
            }
        }
        None
    }

    /// A value in a layout, made if it is not there yet.
    fn operand(
        &mut self,
        v: ValueId,
        layout: &Layout,
        out: &mut Vec<Node>,
    ) -> Result<Source, Reject> {
        match self.plan.op(v) {
            TileOp::Constant(x) => return Ok(Source::Literal(literal(*x))),
            TileOp::Iota(axis) => return Ok(Source::Coordinate(*axis)),
            TileOp::Load { .. }
            | TileOp::Map(..)
            | TileOp::Reduce { .. }
            | TileOp::Contract { .. }
            | TileOp::Phi { .. }
            | TileOp::Final { .. } => {}
        }
        if self.flying.contains_key(&v) {
            self.land(out);
        }
        if let Some(found) = self.find(v, Some(layout)) {
            return Ok(found);
        }
        let wanted = layout.distinct();
        if let TileOp::Load { .. } = self.plan.op(v) {
            return self.load(v, &wanted, out);
        }
        match self.find(v, None) {
            Some(other) => Ok(self.convert(v, &other, &wanted, out)),
            None => Err(Reject::Schedule(format!(
                "value {} is used before it is computed",
                self.kernel.value(v).name
            ))),
        }
    }

    fn layout(&self, v: ValueId) -> Layout {
        self.plan.layouts[v.index()].clone().unwrap_or_default()
    }

    fn statements(&mut self, body: &[Statement]) -> Result<Vec<Node>, Reject> {
        let mut out = Vec::new();
        for statement in body {
            match statement {
                Statement::Let(v) => self.value(*v, &mut out)?,
                Statement::Loop(l) => self.repeat(l, &mut out)?,
                Statement::Store { buffer, value } => self.store(*buffer, *value, &mut out)?,
            }
        }
        Ok(out)
    }

    fn value(&mut self, v: ValueId, out: &mut Vec<Node>) -> Result<(), Reject> {
        match self.plan.op(v) {
            TileOp::Constant(_) | TileOp::Iota(_) | TileOp::Phi { .. } | TileOp::Final { .. } => {}
            TileOp::Load { .. } => {
                self.stage_once(v, out)?;
                if !self.plan.only_contracted(v)
                    && let Some(layout) = self.plan.layouts[v.index()].clone()
                {
                    self.load(v, &layout.distinct(), out)?;
                }
            }
            TileOp::Map(op, args) => match self.plan.fused.get(&v).copied() {
                Some((contraction, addend)) => {
                    self.contract(contraction, Some((v, addend)), out)?;
                }
                None if self.scales_a_delay(v) => return Ok(()),
                None => self.map(v, *op, args, out)?,
            },
            TileOp::Reduce { op, value, axes } => self.reduce(v, *op, *value, axes, out)?,
            TileOp::Contract { .. } => {
                if self.plan.deferred(v) {
                    return Ok(());
                }
                self.contract(v, None, out)?;
            }
        }
        self.publish(v, out)
    }

    /// A barrier of all threads that compute.
    fn barrier(&self) -> Node {
        line(match self.plan.produced {
            Some(_) => format!("tw_compute_meet<{}>();", self.plan.threads()),
            None => "__syncthreads();".into(),
        })
    }

    /// Makes copies that are under way visible to all threads.
    fn settle_copies(&mut self, out: &mut Vec<Node>) {
        if self.pending {
            out.push(line("tw_copy_wait<0>();"));
            out.extend(self.proxy_fence());
            out.push(self.barrier());
            self.pending = false;
        }
    }

    /// Scratch space of some floats behind the tiles: its use begins and ends with a barrier.
    fn scratch(&mut self, floats: u64) -> String {
        self.scratch_bytes = self.scratch_bytes.max(floats * 4);
        let behind = self.plan.tile_bytes() + self.plan.barrier_bytes();
        format!("((float*)(shared + {behind}))")
    }
}
