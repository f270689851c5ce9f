//! Tile programs made by hand, their schedules and inputs: what the tests of lowering share.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses a part of this module"
)]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test helper")]

use ir::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// Builds a tile program statement by statement.
pub struct Build {
    pub tile: TileProgram,
    kernel: Kernel,
    blocks: Vec<Vec<Statement>>,
}

impl Build {
    pub fn new(name: &str) -> Self {
        Self {
            tile: TileProgram {
                name: name.into(),
                axes: Vec::new(),
                collapsed: BTreeMap::new(),
                buffers: Vec::new(),
                kernels: Vec::new(),
            },
            kernel: Kernel {
                axes: BTreeMap::new(),
                grid: Vec::new(),
                values: Vec::new(),
                body: Vec::new(),
            },
            blocks: vec![Vec::new()],
        }
    }

    pub fn axis(&mut self, name: &str, extent: u64) -> AxisId {
        self.tile.axes.push(Axis {
            name: name.into(),
            extent,
        });
        AxisId(self.tile.axes.len() as u32 - 1)
    }

    pub fn assign(&mut self, axis: AxisId, role: Role, tile: u64) {
        self.kernel.axes.insert(axis, AxisTile { role, tile });
        if role == Role::Grid {
            self.kernel.grid.push(axis);
        }
    }

    pub fn buffer(
        &mut self,
        name: &str,
        dtype: Dtype,
        axes: &[AxisId],
        role: BufferRole,
    ) -> BufferId {
        self.tile.buffers.push(Buffer {
            name: name.into(),
            dtype,
            dims: axes.iter().map(|a| Dim(vec![*a])).collect(),
            role,
        });
        BufferId(self.tile.buffers.len() as u32 - 1)
    }

    fn push(&mut self, op: TileOp, axes: AxisSet, name: &str) -> ValueId {
        let id = ValueId(self.kernel.values.len() as u32);
        let name = format!("{name}{}", id.0);
        self.kernel.values.push(Value { op, axes, name });
        id
    }

    fn let_(&mut self, op: TileOp, axes: AxisSet, name: &str) -> ValueId {
        let id = self.push(op, axes, name);
        self.blocks
            .last_mut()
            .expect("a block")
            .push(Statement::Let(id));
        id
    }

    fn axes(&self, v: ValueId) -> AxisSet {
        self.kernel.values[v.index()].axes.clone()
    }

    pub fn load(&mut self, buffer: BufferId) -> ValueId {
        let index: Vec<Affine> = self.tile.buffer(buffer).axes().map(Affine::axis).collect();
        self.load_at(buffer, index, 0.0)
    }

    pub fn load_at(&mut self, buffer: BufferId, index: Vec<Affine>, fill: f64) -> ValueId {
        let axes = index.iter().fold(AxisSet::new(), |s, f| s.union(&f.axes()));
        self.let_(
            TileOp::Load {
                buffer,
                index: index.into_iter().map(Quotient::from).collect(),
                fill,
            },
            axes,
            "load",
        )
    }

    pub fn constant(&mut self, x: f64) -> ValueId {
        self.let_(TileOp::Constant(x), AxisSet::new(), "c")
    }

    pub fn iota(&mut self, axis: AxisId) -> ValueId {
        self.let_(TileOp::Iota(axis), [axis].into_iter().collect(), "iota")
    }

    pub fn map(&mut self, op: MapOp, args: &[ValueId]) -> ValueId {
        let axes = args
            .iter()
            .fold(AxisSet::new(), |s, a| s.union(&self.axes(*a)));
        self.let_(TileOp::Map(op, args.to_vec()), axes, "map")
    }

    pub fn sub(&mut self, x: ValueId, y: ValueId) -> ValueId {
        let minus = self.constant(-1.0);
        let y = self.map(MapOp::Mul, &[minus, y]);
        self.map(MapOp::Add, &[x, y])
    }

    pub fn reduce(&mut self, op: ReduceOp, value: ValueId, axes: &[AxisId]) -> ValueId {
        let axes: AxisSet = axes.iter().copied().collect();
        let rest = self.axes(value).minus(&axes);
        self.let_(TileOp::Reduce { op, value, axes }, rest, "reduce")
    }

    pub fn contract(&mut self, a: ValueId, b: ValueId, axes: &[AxisId]) -> ValueId {
        let axes: AxisSet = axes.iter().copied().collect();
        let rest = self.axes(a).union(&self.axes(b)).minus(&axes);
        self.let_(TileOp::Contract { a, b, axes }, rest, "dot")
    }

    pub fn phi(&mut self, init: f64, axes: &[AxisId]) -> ValueId {
        let axes: AxisSet = axes.iter().copied().collect();
        self.push(
            TileOp::Phi {
                init,
                axes: axes.clone(),
            },
            axes,
            "phi",
        )
    }

    pub fn begin(&mut self) {
        self.blocks.push(Vec::new());
    }

    /// Ends the loop that `begin` began; gives the carries' results.
    pub fn end(
        &mut self,
        axis: AxisId,
        low: Vec<Bound>,
        high: Vec<Bound>,
        carries: &[(ValueId, ValueId)],
    ) -> Vec<ValueId> {
        let body = self.blocks.pop().expect("a loop");
        let carries: Vec<Carry> = carries
            .iter()
            .map(|(phi, next)| Carry {
                phi: *phi,
                next: *next,
                result: self.push(TileOp::Final { phi: *phi }, self.axes(*phi), "final"),
            })
            .collect();
        let results = carries.iter().map(|c| c.result).collect();
        self.blocks
            .last_mut()
            .expect("a block")
            .push(Statement::Loop(Loop {
                axis,
                low,
                high,
                carries,
                body,
            }));
        results
    }

    pub fn store(&mut self, buffer: BufferId, value: ValueId) {
        self.blocks
            .last_mut()
            .expect("a block")
            .push(Statement::Store { buffer, value });
    }

    /// Ends a kernel.
    pub fn finish(&mut self) {
        let mut kernel = Kernel {
            axes: BTreeMap::new(),
            grid: Vec::new(),
            values: Vec::new(),
            body: Vec::new(),
        };
        std::mem::swap(&mut kernel, &mut self.kernel);
        kernel.body = std::mem::replace(&mut self.blocks, vec![Vec::new()]).swap_remove(0);
        self.tile.kernels.push(kernel);
    }
}

/// `C[m,n] = Σ_k A[m,k] B[k,n]`; `b_rows`: B is stored `[n, k]`.
pub fn matmul(
    dtype: Dtype,
    out: Dtype,
    extents: [u64; 3],
    tiles: [u64; 3],
    b_rows: bool,
) -> TileProgram {
    let mut b = Build::new("matmul");
    let (m, n, k) = (
        b.axis("m", extents[0]),
        b.axis("n", extents[1]),
        b.axis("k", extents[2]),
    );
    b.assign(m, Role::Grid, tiles[0]);
    b.assign(n, Role::Grid, tiles[1]);
    b.assign(k, Role::Loop, tiles[2]);
    let x = b.buffer("x", dtype, &[m, k], BufferRole::Parameter(0));
    let order = if b_rows { [n, k] } else { [k, n] };
    let y = b.buffer("y", dtype, &order, BufferRole::Parameter(1));
    let z = b.buffer("z", out, &[m, n], BufferRole::Output(0));
    let phi = b.phi(0.0, &[m, n]);
    b.begin();
    let (lx, ly) = (b.load(x), b.load(y));
    let dot = b.contract(lx, ly, &[k]);
    let next = b.map(MapOp::Add, &[phi, dot]);
    let r = b.end(k, Vec::new(), Vec::new(), &[(phi, next)]);
    b.store(z, r[0]);
    b.finish();
    b.tile
}

/// `c[m] = max_n Σ_k A[m,k] B[n,k]`, with a loop over k in a loop over n that ends with the tile that has column m.
pub fn largest_products(dtype: Dtype, extents: [u64; 3], tiles: [u64; 3]) -> TileProgram {
    let mut b = Build::new("largest");
    let (m, n, k) = (
        b.axis("m", extents[0]),
        b.axis("n", extents[1]),
        b.axis("k", extents[2]),
    );
    b.assign(m, Role::Grid, tiles[0]);
    b.assign(n, Role::Loop, tiles[1]);
    b.assign(k, Role::Loop, tiles[2]);
    let x = b.buffer("x", dtype, &[m, k], BufferRole::Parameter(0));
    let y = b.buffer("y", dtype, &[n, k], BufferRole::Parameter(1));
    let z = b.buffer("z", Dtype::F32, &[m], BufferRole::Output(0));
    let largest = b.phi(f64::NEG_INFINITY, &[m]);
    b.begin();
    let phi = b.phi(0.0, &[m, n]);
    b.begin();
    let (lx, ly) = (b.load(x), b.load(y));
    let dot = b.contract(lx, ly, &[k]);
    let next = b.map(MapOp::Add, &[phi, dot]);
    let products = b.end(k, Vec::new(), Vec::new(), &[(phi, next)]);
    let here = b.reduce(ReduceOp::Max, products[0], &[n]);
    let next = b.map(MapOp::Max, &[largest, here]);
    let to_column = Bound {
        entries: Vec::new(),
        terms: vec![(1, m, Corner::Last)],
        offset: 1,
        divisor: 1,
    };
    let r = b.end(n, Vec::new(), vec![to_column], &[(largest, next)]);
    b.store(z, r[0]);
    b.finish();
    b.tile
}

/// Online-softmax attention over tiles of keys; head, query, key, depth, value depth.
pub fn attention(
    dtype: Dtype,
    extents: [u64; 5],
    tiles: [u64; 2],
    causal: bool,
    normalise_q: bool,
) -> TileProgram {
    attention_scaled(dtype, extents, tiles, [causal, normalise_q, false])
}

/// The same; where `late`, with maxima of scores that are not scaled yet: `e^(¼·(s − m))`.
pub fn attention_scaled(
    dtype: Dtype,
    extents: [u64; 5],
    tiles: [u64; 2],
    [causal, normalise_q, late]: [bool; 3],
) -> TileProgram {
    let mut t = Build::new("attention");
    let names = ["h", "i", "j", "d", "e"];
    let ax: Vec<AxisId> = names
        .iter()
        .zip(extents)
        .map(|(n, x)| t.axis(n, x))
        .collect();
    let [h, i, j, d, e] = [ax[0], ax[1], ax[2], ax[3], ax[4]];
    t.assign(h, Role::Grid, 1);
    t.assign(i, Role::Grid, tiles[0]);
    t.assign(j, Role::Loop, tiles[1]);
    t.assign(d, Role::Whole, extents[3]);
    t.assign(e, Role::Whole, extents[4]);
    let q = t.buffer("q", dtype, &[h, i, d], BufferRole::Parameter(0));
    let k = t.buffer("k", dtype, &[h, j, d], BufferRole::Parameter(1));
    let v = t.buffer("v", dtype, &[h, j, e], BufferRole::Parameter(2));
    let o = t.buffer("o", dtype, &[h, i, e], BufferRole::Output(0));
    let scale = t.constant(0.25);
    let mut lq = t.load(q);
    if normalise_q {
        let square = t.map(MapOp::Mul, &[lq, lq]);
        let total = t.reduce(ReduceOp::Sum, square, &[d]);
        let root = t.map(MapOp::Function(Function::Sqrt), &[total]);
        lq = t.map(MapOp::Div, &[lq, root]);
    }
    let m = t.phi(f64::NEG_INFINITY, &[h, i]);
    let l = t.phi(0.0, &[h, i]);
    let acc = t.phi(0.0, &[h, i, e]);
    t.begin();
    let lk = t.load(k);
    let s = t.contract(lk, lq, &[d]);
    let mut s = match late {
        true => s,
        false => t.map(MapOp::Mul, &[s, scale]),
    };
    if causal {
        let (ii, jj) = (t.iota(i), t.iota(j));
        let c = t.sub(ii, jj);
        let none = t.constant(f64::NEG_INFINITY);
        s = t.map(MapOp::Select, &[c, s, none]);
    }
    let top = t.reduce(ReduceOp::Max, s, &[j]);
    let m2 = t.map(MapOp::Max, &[m, top]);
    let mut exp_of_difference = |x: ValueId, y: ValueId| {
        let mut d = t.sub(x, y);
        if late {
            d = t.map(MapOp::Mul, &[d, scale]);
        }
        t.map(MapOp::Function(Function::Exp), &[d])
    };
    let c = exp_of_difference(m, m2);
    let p = exp_of_difference(s, m2);
    let rows = t.reduce(ReduceOp::Sum, p, &[j]);
    let lc = t.map(MapOp::Mul, &[l, c]);
    let l2 = t.map(MapOp::Add, &[lc, rows]);
    let lv = t.load(v);
    let pv = t.contract(p, lv, &[j]);
    let oc = t.map(MapOp::Mul, &[acc, c]);
    let o2 = t.map(MapOp::Add, &[oc, pv]);
    let high = if causal {
        vec![Bound {
            entries: Vec::new(),
            terms: vec![(1, i, Corner::Last)],
            offset: 1,
            divisor: 1,
        }]
    } else {
        Vec::new()
    };
    let r = t.end(j, Vec::new(), high, &[(m, m2), (l, l2), (acc, o2)]);
    let out = t.map(MapOp::Div, &[r[2], r[1]]);
    t.store(o, out);
    t.finish();
    t.tile
}

/// `y = x / sqrt(Σ x² / n + ε) · w` row by row.
pub fn row_norm(dtype: Dtype, extents: [u64; 2], rows: u64, looped: Option<u64>) -> TileProgram {
    let mut t = Build::new("row_norm");
    let (i, j) = (t.axis("i", extents[0]), t.axis("j", extents[1]));
    t.assign(i, Role::Grid, rows);
    match looped {
        None => t.assign(j, Role::Whole, extents[1]),
        Some(tile) => t.assign(j, Role::Loop, tile),
    }
    let x = t.buffer("x", dtype, &[i, j], BufferRole::Parameter(0));
    let w = t.buffer("w", dtype, &[j], BufferRole::Parameter(1));
    let y = t.buffer("y", dtype, &[i, j], BufferRole::Output(0));
    let scale = |t: &mut Build, total: ValueId| {
        let share = t.constant(1.0 / extents[1] as f64);
        let mean = t.map(MapOp::Mul, &[total, share]);
        let eps = t.constant(1e-5);
        let mean = t.map(MapOp::Add, &[mean, eps]);
        t.map(MapOp::Function(Function::Sqrt), &[mean])
    };
    let finish = |t: &mut Build, lx: ValueId, root: ValueId| {
        let z = t.map(MapOp::Div, &[lx, root]);
        let lw = t.load(w);
        let z = t.map(MapOp::Mul, &[z, lw]);
        t.store(y, z);
    };
    if looped.is_none() {
        let lx = t.load(x);
        let square = t.map(MapOp::Mul, &[lx, lx]);
        let total = t.reduce(ReduceOp::Sum, square, &[j]);
        let root = scale(&mut t, total);
        finish(&mut t, lx, root);
    } else {
        let phi = t.phi(0.0, &[i]);
        t.begin();
        let lx = t.load(x);
        let square = t.map(MapOp::Mul, &[lx, lx]);
        let part = t.reduce(ReduceOp::Sum, square, &[j]);
        let next = t.map(MapOp::Add, &[phi, part]);
        let r = t.end(j, Vec::new(), Vec::new(), &[(phi, next)]);
        let root = scale(&mut t, r[0]);
        t.begin();
        let lx = t.load(x);
        finish(&mut t, lx, root);
        t.end(j, Vec::new(), Vec::new(), &[]);
    }
    t.finish();
    t.tile
}

/// Instructions by name.
pub mod atoms {
    use ir::Atom;

    pub const FMA: Atom = Atom::new("fma");
    pub const MMA_M16N8K16: Atom = Atom::new("mma.m16n8k16");
    pub const MMA_M16N8K8_TF32X3: Atom = Atom::new("mma.m16n8k8.3xtf32");
    pub const MMA_M16N8K8_TF32: Atom = Atom::new("mma.m16n8k8.tf32");
    pub const WGMMA_M64K16: Atom = Atom::new("wgmma.m64k16");
    pub const WGMMA_M64K8_TF32X3: Atom = Atom::new("wgmma.m64k8.3xtf32");
}

/// How far instructions of groups of warps overlap with other work of their block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Each is waited for where it stands.
    None,
    /// Contractions that a loop accumulates run on into its next iteration.
    Delayed,
    /// Warps of their own fill rings.
    Fed,
    /// And others split what these copied.
    Split,
    /// All three: contractions run on, warps of their own fill rings, and groups of warps take turns.
    Turns,
}

/// Extents of [`convolution`]: n, ci, h, w, co, oh, ow, kh, kw.
const CONVOLVED: [usize; 9] = [2, 3, 16, 17, 10, 6, 6, 7, 9];

/// A convolution with steps of two and a margin, whose loop along rows of the filters stands in that along the channels.
pub fn convolution() -> TileProgram {
    let [n, ci, h, w, co, oh, ow, kh, kw] = CONVOLVED;
    let text = format!(
        "tile convolution\naxis n = {n}, ci = {ci}, h = {h}, w = {w}, co = {co}, oh = {oh}, ow = {ow}, kh = {kh}, kw = {kw}\n\
         buffer x = parameter 0 f32 [n, ci, h, w]\nbuffer f = parameter 1 f32 [co, ci, kh, kw]\nbuffer y = output 0 f32 [n, co, oh, ow]\n\
         kernel grid(n: 1, co: 10, oh: 4, ow: 6) loop(ci: 2, kh: 2) whole(kw: {kw}) {{\n  loop ci {{\n    \
         carry a = 0 over [n, co, oh, ow]\n    loop kh {{\n      carry s = 0 over [n, co, oh, ow]\n      \
         b = load x[n, ci, 2*oh + kh - 1, 2*ow + kw - 1]\n      c = load f[co, ci, kh, kw]\n      p = contract(b, c; ci, kh, kw)\n      \
         s2 = add(s, p)\n      yield s3 = final(s, s2)\n    }}\n    a2 = add(a, s3)\n    yield a3 = final(a, a2)\n  }}\n  store y = a3\n}}\n"
    );
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

/// A source and filters for [`convolution`].
pub fn source_and_filters() -> [Vec<f64>; 2] {
    let [n, ci, h, w, co, _, _, kh, kw] = CONVOLVED;
    [inputs(n * ci * h * w, 31), inputs(co * ci * kh * kw, 32)]
}

/// What [`convolution`] is to compute.
pub fn convolved([x, f]: &[Vec<f64>; 2]) -> Vec<f64> {
    let [n, ci, h, w, co, oh, ow, kh, kw] = CONVOLVED;
    let sum = |at: usize| -> f64 {
        let [b, c] = [at / (co * oh * ow), at / (oh * ow) % co];
        let [p, q] = [at / ow % oh, at % ow];
        let mut sum = 0.0;
        for k in 0..ci * kh * kw {
            let [z, r, l] = [k / (kh * kw), k / kw % kh, k % kw];
            let [row, column] = [2 * p + r, 2 * q + l];
            if (1..=h).contains(&row) && (1..=w).contains(&column) {
                sum += x[((b * ci + z) * h + row - 1) * w + column - 1]
                    * f[((c * ci + z) * kh + r) * kw + l];
            }
        }
        sum
    };
    (0..n * co * oh * ow).map(sum).collect()
}

/// A schedule that gives every contraction the same atom; `swaps` in order of value index.
pub fn schedule(
    tile: &TileProgram,
    atom: Atom,
    warps: [u32; 2],
    stages: u32,
    swaps: &[bool],
) -> Schedule {
    let overlap = match (atom, stages) {
        (atoms::WGMMA_M64K16 | atoms::WGMMA_M64K8_TF32X3, 3) => Overlap::Delayed,
        (atoms::WGMMA_M64K16 | atoms::WGMMA_M64K8_TF32X3, 4..) => Overlap::Turns,
        _ => Overlap::None,
    };
    overlapped(tile, atom, warps, stages, swaps, overlap)
}

/// As [`schedule`], overlapped so.
pub fn overlapped(
    tile: &TileProgram,
    atom: Atom,
    warps: [u32; 2],
    stages: u32,
    swaps: &[bool],
    overlap: Overlap,
) -> Schedule {
    use tilewright_codegen::passes::*;
    let of = |k: &Kernel| -> KernelSchedule {
        let values = k.values.iter().enumerate();
        let contractions = values.filter(|(_, v)| matches!(v.op, TileOp::Contract { .. }));
        let by = contractions.enumerate().map(|(n, (i, _))| {
            let swap = swaps.get(n).copied().unwrap_or(false);
            let how = instruction::Contraction { atom, swap };
            instruction::step(ValueId(i as u32), how)
        });
        let mut all: KernelSchedule = by.collect();
        all.set(warps::step(warps));
        all.extend(matches!(overlap, Overlap::Delayed | Overlap::Turns).then(delayed::step));
        let fed = matches!(overlap, Overlap::Fed | Overlap::Split | Overlap::Turns);
        all.extend(fed.then(roles::step));
        all.extend((overlap == Overlap::Split).then(splitter::step));
        all.set(pipeline::step(stages));
        all.extend((overlap == Overlap::Turns).then(turns::step));
        all.set(raster::step(stages.saturating_sub(1)));
        all
    };
    let kernels = tile.kernels.iter().map(of).collect();
    Schedule { kernels }
}

/// A schedule of one product whose groups of warps take turns.
pub fn in_turns(tile: &TileProgram, warps: [u32; 2], stages: u32) -> Schedule {
    let atom = atoms::WGMMA_M64K16;
    overlapped(tile, atom, warps, stages, &[], Overlap::Turns)
}

pub fn target() -> Target {
    Target {
        name: "test".into(),
        device: "test".into(),
        arch: "sm_90a".into(),
        capability: 90,
        sms: 132,
        clock_ghz: 1.7,
        memory_tb_s: 4.3,
        memory_bytes: 141_000_000_000,
        l2_bytes: 60 << 20,
        l2_tb_s: 6.0,
        l2_ring_tb_s: 8.0,
        shared_per_block: 232_448,
        shared_per_sm: 233_472,
        reserved_shared_per_block: 1024,
        registers_per_sm: 65_536,
        registers_per_thread: 255,
        register_unit: 8,
        threads_per_sm: 2048,
        blocks_per_sm: 32,
        cluster_blocks: 8,
        cluster_barrier_us: 0.25,
        matrix: [
            ("mma.16bit", 400.0, 33.0),
            ("mma.tf32", 200.0, 33.0),
            ("wgmma.16bit", 600.0, 30.0),
            ("wgmma.tf32", 300.0, 30.0),
        ]
        .into_iter()
        .map(|(kind, tflops, latency_clocks)| {
            let rate = MatrixRate {
                tflops,
                latency_clocks,
            };
            (kind.to_owned(), rate)
        })
        .collect(),
        f32_tflops: 60.0,
        special_per_clock: 16.0,
        launch_us: 1.0,
        block_clocks: 500.0,
        grid_barrier_us: 1.0,
        l2_bytes_per_clock: 64.0,
        shared_bytes_per_clock: 128.0,
        l2_latency_clocks: 300.0,
        memory_latency_clocks: 800.0,
        shared_latency_clocks: 30.0,
        shuffle_latency_clocks: 24.0,
        barrier_clocks: 24.0,
    }
}

/// Small dyadic numbers: exact in every dtype.
pub fn inputs(count: usize, seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| f64::from(rng.random_range(-16..=16)) / 16.0)
        .collect()
}

/// A running value along an axis of 150 coordinates, of five rows.
#[derive(Clone, Copy, Debug)]
pub struct Scanned {
    pub op: ReduceOp,
    /// Whether the axis is the fastest in memory.
    pub fast: bool,
    pub inclusive: bool,
    /// Rows and coordinates in a tile.
    pub tile: [u64; 2],
    pub warps: [u32; 2],
}

/// Scans by registers alone, by lanes alone, and by both, of several rows and of several tiles.
pub fn scans() -> Vec<Scanned> {
    let mut all = Vec::new();
    for op in ReduceOp::ALL {
        for (fast, tile, warps) in [
            (true, [1, 64], [1, 1]),
            (true, [4, 128], [2, 1]),
            (true, [2, 32], [1, 4]),
            (true, [1, 2], [1, 1]),
            (true, [1, 1], [1, 1]),
            (false, [5, 16], [1, 1]),
            (true, [2, 150], [1, 1]),
            (false, [4, 50], [2, 2]),
        ] {
            for inclusive in [true, false] {
                let scan = Scanned {
                    op,
                    fast,
                    inclusive,
                    tile,
                    warps,
                };
                all.push(scan);
            }
        }
    }
    all
}

/// It as a tile program, with a parameter and its result.
pub fn scanned(scan: &Scanned) -> (TileProgram, Vec<f64>, Vec<f64>) {
    let (r, j) = (5, 150);
    let [of_r, of_j] = scan.tile;
    let dims = if scan.fast { "r, j" } else { "j, r" };
    let (name, how, neutral) = match scan.op {
        ReduceOp::Sum => ("sum", "add", "0"),
        ReduceOp::Max => ("max", "max", "-inf"),
        ReduceOp::Product => ("prod", "mul", "1"),
    };
    let before = if scan.inclusive { "" } else { "_before" };
    let text = format!(
        "tile scanned\naxis r = {r}, j = {j}\nbuffer x = parameter 0 f32 [{dims}]\nbuffer y = output 0 f32 [{dims}]\n\
         kernel grid(r: {of_r}) loop(j: {of_j}) {{\n  loop j {{\n    carry s = {neutral} over [r]\n    v = load x[{dims}]\n    \
         p = scan_{name}{before}(v; j)\n    q = {how}(s, p)\n    store y = q\n    t = reduce_{name}(v; j)\n    s2 = {how}(s, t)\n    \
         yield s3 = final(s, s2)\n  }}\n}}\n",
    );
    let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    // Products of these neither vanish nor grow beyond all bounds.
    let x: Vec<f64> = inputs(r * j, 19).iter().map(|x| 1.0 + x / 8.0).collect();
    let at = |row: usize, l: usize| match scan.fast {
        true => row * j + l,
        false => l * r + row,
    };
    let mut want = vec![0.0; r * j];
    for row in 0..r {
        let mut reduced = scan.op.neutral();
        for l in 0..j {
            let with = scan.op.combine().apply(&[reduced, x[at(row, l)]]);
            want[at(row, l)] = if scan.inclusive { with } else { reduced };
            reduced = with;
        }
    }
    (tile, x, want)
}

/// The formula of [`attention`].
pub fn attended(extents: [u64; 5], causal: bool, norm: bool, [q, k, v]: [&[f64]; 3]) -> Vec<f64> {
    let [h, i, j, d, e] = extents.map(|x| x as usize);
    let mut want = vec![0.0; h * i * e];
    for (x, y) in (0..h).flat_map(|x| (0..i).map(move |y| (x, y))) {
        let row = &q[(x * i + y) * d..][..d];
        let size: f64 = row.iter().map(|a| a * a).sum::<f64>().sqrt();
        let keys = if causal { (y + 1).min(j) } else { j };
        let scores: Vec<f64> = (0..keys)
            .map(|z| {
                let s: f64 = (0..d).map(|c| row[c] * k[(x * j + z) * d + c]).sum();
                s * 0.25 / if norm { size } else { 1.0 }
            })
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let p: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f64 = p.iter().sum();
        for c in 0..e {
            want[(x * i + y) * e + c] = (0..keys)
                .map(|z| p[z] * v[(x * j + z) * e + c])
                .sum::<f64>()
                / total;
        }
    }
    want
}
