//! The chain's kernels as text: what each does with the functions of `cuda/reference.cuh`.

use super::read::{Read, Scope};
use super::seconds::{Work, weight};
use super::{Chain, ReferenceLaunch, ReferenceMode, ReferenceRole, Share};
use ir::{AxisId, AxisSet, Dtype, MapOp, NodeId, ReduceOp, Reject};

/// Threads that keep a GPU busy: with fewer of them a long fold is done in parts.
const BUSY: u64 = 1 << 18;
/// Terms of a fold by one thread that are not worth to be split.
const TERMS: u64 = 64;
/// Blocks of products that keep a GPU busy, and how many terms a part of one has at least.
const BUSY_BLOCKS: u64 = 264;
const DEEP: u64 = 1024;
/// Terms from which on several threads share a fold along neighbours.
const WIDE: u64 = 16;
/// Results of one batch from which on a product is done in tiles.
const TILED: u64 = 64;

/// Terms from which on a running fold is one.
const LENGTHY: u64 = 64;
/// Threads of a running fold that a GPU has anyway.
const FEW_ROWS: u64 = 1 << 14;

/// A fold of `term` over those `j` for which `of[0]·i + of[1]·j + of[2] >= 0`.
struct Running {
    i: AxisId,
    j: AxisId,
    of: [i64; 3],
    term: Read,
}

/// A fold or product in parts: what the kernel stores first, and what is folded of it then.
struct Parts {
    name: String,
    /// The buffer of the first kernel.
    buffer: u32,
    /// How many parts, and how many terms each has.
    count: u64,
    length: u64,
}

impl Chain<'_> {
    /// A kernel that computes an expression for each element of a buffer over axes, slowest first.
    pub(super) fn each(
        &mut self,
        name: &str,
        buffer: u32,
        order: &[AxisId],
        value: impl FnOnce(&Self, &mut Scope) -> String,
    ) -> Result<(), Reject> {
        let slabbed = self.buffers[buffer as usize].slabbed;
        let mut scope = Scope::default();
        let value = value(self, &mut scope);
        let body = format!(
            "  tw_each({}, [&](long long n) {{\n    {}\n    {}b{buffer}[n] = {};\n  }});\n",
            self.count(order, slabbed),
            self.coordinates(order, slabbed, "n"),
            scope.lines,
            self.buffers[buffer as usize].element.written(&value)
        );
        let elements = self.elements(order, slabbed)?;
        let share = Share {
            elements,
            slabbed,
            each: u64::from(ReferenceLaunch::THREADS),
        };
        let all = self.elements(order, false)?;
        let work = self.work(&scope, all, buffer, 1.0 + self.made_of(&scope));
        self.launch(name, buffer, scope, &body, vec![share], 0, work);
        Ok(())
    }

    /// A reduction, stored.
    pub(super) fn reduce(
        &mut self,
        id: NodeId,
        op: ReduceOp,
        axes: &AxisSet,
        arg: &Read,
    ) -> Result<Read, Reject> {
        if let Some(running) = self.running(id, op, axes, arg) {
            return self.run_along(id, op, &running);
        }
        let arg = arg.clone();
        self.fold(id, op, axes, vec![arg.clone()], move |me, scope| {
            me.value(&arg, scope)
        })
    }

    /// A reduction as a running fold: along one axis `j`, of what does not depend on `i`, where `a·i + b·j + c >= 0`, and nothing elsewhere.
    fn running(&self, id: NodeId, op: ReduceOp, axes: &AxisSet, arg: &Read) -> Option<Running> {
        let body = self.program.node(*self.program.node(id).args.first()?);
        let (MapOp::Select, [_, term, Read::Constant(otherwise)]) = (match arg {
            Read::Made { op, args } => (*op, args.as_slice()),
            Read::Constant(_) | Read::Coordinate(_) | Read::Buffer { .. } => return None,
        }) else {
            return None;
        };
        let condition = self.program.affine_of(*body.args.first()?)?;
        let [(x, first), (y, second)] = *condition.terms() else {
            return None;
        };
        let (of_i, i, of_j, j) = match axes.contains(second) {
            true => (x, first, y, second),
            false => (y, second, x, first),
        };
        let alone = axes.len() == 1 && axes.contains(j);
        let free = !self.program.node(*body.args.get(1)?).axes.contains(i);
        (*otherwise == op.neutral() && alone && free && self.program.extent(j) >= LENGTHY).then(
            || Running {
                i,
                j,
                of: [of_i, of_j, condition.offset],
                term: term.clone(),
            },
        )
    }

    fn run_along(&mut self, id: NodeId, op: ReduceOp, running: &Running) -> Result<Read, Reject> {
        let Running { i, j, of, .. } = *running;
        let mut others = self.program.node(id).axes.clone();
        others.remove(i);
        let rows = self.order(&others, std::slice::from_ref(&running.term));
        let order: Vec<AxisId> = rows.iter().copied().chain([i]).collect();
        let slabbed = self.slabs(id);
        self.stored(format!("value{}", id.0), slabbed, order, move |me, name, buffer, _| {
            let mut scope = Scope::default();
            let value = me.value(&running.term, &mut scope);
            let real = me.mode.real();
            let (start, combine) = me.combined(op);
            let (first, count) = match slabbed && me.slab == Some(i) {
                true => ("slab_first", "slab_count".to_owned()),
                false => ("0ll", format!("{}ll", me.program.extent(i))),
            };
            let [of_i, of_j, offset] = of;
            let body = format!(
                "  tw_running({}, {first}, {count}, {}ll, {of_i}ll, {of_j}ll, {offset}ll, {start},\n    {combine},\n    [&](long long n, long long x{}) -> {real} {{\n      {}\n      {}return {value};\n    }},\n    [&](long long n, long long i, {real} value) {{ b{buffer}[n * {count} + (i - {first})] = {}; }});\n",
                me.count(&rows, slabbed),
                me.program.extent(j),
                j.0,
                me.coordinates(&rows, slabbed, "n"),
                scope.lines,
                me.buffers[buffer as usize].element.written("value"),
            );
            let in_slab = slabbed && rows.iter().any(|a| Some(*a) == me.slab);
            let share = Share {
                elements: me.elements(&rows, in_slab)?,
                slabbed: in_slab,
                each: u64::from(ReferenceLaunch::THREADS),
            };
            // With few rows it takes as long as with more.
            let all = me.elements(&rows, false)?.max(FEW_ROWS);
            let length = me.program.extent(i).saturating_add(me.program.extent(j));
            let times = all.saturating_mul(length);
            let work = me.work(&scope, times, buffer, 1.0 + me.made_of(&scope));
            me.launch(name, buffer, scope, &body, vec![share], 0, work);
            Ok(())
        })
    }

    /// A product: in tiles where many results share what they read, else a fold.
    pub(super) fn dot(
        &mut self,
        id: NodeId,
        axes: &AxisSet,
        args: &[Read],
    ) -> Result<Read, Reject> {
        let node = self.program.node(id);
        let ([left, right], [x, y]) = (node.args.as_slice(), args) else {
            return Err(Reject::Fault(format!("a product of {} values", args.len())));
        };
        let of = |n: NodeId| self.program.node(n).axes.clone();
        let (own, other) = (of(*left), of(*right));
        let rows = own.minus(&other).minus(axes);
        let columns = other.minus(&own).minus(axes);
        let batch = own.intersection(&other).minus(axes);
        let extent = |set: &AxisSet| self.program.elements(set).unwrap_or(u64::MAX);
        // As matrix instructions take them: both of one dtype.
        let dtype = Dtype::joined(self.dtypes[left.index()], self.dtypes[right.index()]);
        let (m, n) = (extent(&rows), extent(&columns));
        if m > 1 && n > 1 && m.saturating_mul(n) >= TILED {
            let groups = [batch, rows, columns, axes.clone()];
            return self.product(id, groups, [x.clone(), y.clone()], dtype);
        }
        let (x, y) = (x.clone(), y.clone());
        let reads = vec![x.clone(), y.clone()];
        self.fold(id, ReduceOp::Sum, axes, reads, move |me, scope| {
            let x = me.operand(&x, dtype, scope);
            let y = me.operand(&y, dtype, scope);
            format!("{x} * {y}")
        })
    }

    /// `value` combined with `term`.
    fn combined(&self, op: ReduceOp) -> (String, String) {
        let real = self.mode.real();
        let (start, combine) = match op {
            ReduceOp::Sum => ("0", "value + term"),
            ReduceOp::Max => ("(-1.0 / 0.0)", "term > value ? term : value"),
            ReduceOp::Product => ("1", "value * term"),
        };
        let combine = format!("[]({real} value, {real} term) -> {real} {{ return {combine}; }}");
        (format!("({real}){start}"), combine)
    }

    fn fold(
        &mut self,
        id: NodeId,
        op: ReduceOp,
        axes: &AxisSet,
        reads: Vec<Read>,
        term: impl FnOnce(&Self, &mut Scope) -> String,
    ) -> Result<Read, Reject> {
        let order = self.order(&self.program.node(id).axes, &reads);
        let within = self.order(axes, &reads);
        let depth = self.elements(&within, false)?;
        let along = self.contiguous(&reads).is_some_and(|a| axes.contains(a));
        let slabbed = self.slabs(id);
        let all = self.elements(&order, false)?;
        let lanes: u64 = match along && depth >= WIDE {
            true if depth >= 4096 && all < BUSY / 32 => 256,
            true => 32,
            false => 1,
        };
        let threads = all.saturating_mul(lanes);
        let most = depth / (lanes * TERMS);
        let count = BUSY.div_ceil(threads).min(most).max(1);
        self.stored(format!("value{}", id.0), slabbed, order, move |me, name, buffer, order| {
            let parts = me.parts(name, buffer, count, depth)?;
            let mut scope = Scope::default();
            let value = term(me, &mut scope);
            let real = me.mode.real();
            let (start, combine) = me.combined(op);
            let b = parts.buffer;
            let body = format!(
                "  tw_fold<{lanes}>(shared, {}, {depth}ll, {}ll, {}ll, {start},\n    {combine},\n    [&](long long n, long long k) -> {real} {{\n      {}\n      {}\n      {}return {value};\n    }},\n    [&](long long at, {real} value) {{ b{b}[at] = {}; }});\n",
                me.count(order, slabbed),
                parts.length,
                parts.count,
                me.coordinates(order, slabbed, "n"),
                me.coordinates(&within, false, "k"),
                scope.lines,
                me.buffers[b as usize].element.written("value"),
            );
            let each = u64::from(ReferenceLaunch::THREADS) / lanes;
            let elements = me.elements(order, slabbed)?.saturating_mul(parts.count);
            let share = Share {
                elements,
                slabbed,
                each,
            };
            let shared = if lanes > 1 { 256 * 8 } else { 0 };
            let terms = all.saturating_mul(depth);
            let work = me.work(&scope, terms, b, 1.0 + me.made_of(&scope));
            me.launch(&parts.name, b, scope, &body, vec![share], shared, work);
            me.joined(name, buffer, order, op, &parts)
        })
    }

    /// Where a kernel stores its results: in the buffer itself if there is one part.
    fn parts(&mut self, name: &str, buffer: u32, count: u64, depth: u64) -> Result<Parts, Reject> {
        let length = depth.div_ceil(count);
        let count = depth.div_ceil(length);
        if count == 1 {
            let name = name.to_owned();
            return Ok(Parts {
                name,
                buffer,
                count,
                length,
            });
        }
        let mut stored = self.buffers[buffer as usize].clone();
        stored.name = format!("{name}_parts");
        stored.elements = (stored.elements.checked_mul(count))
            .ok_or_else(|| Reject::Grid("an intermediate of more than 2^64 elements".into()))?;
        let name = stored.name.clone();
        self.buffers.push(stored);
        Ok(Parts {
            name,
            buffer: self.buffers.len() as u32 - 1,
            count,
            length,
        })
    }

    /// The kernel that folds parts, if there are several.
    fn joined(
        &mut self,
        name: &str,
        buffer: u32,
        order: &[AxisId],
        op: ReduceOp,
        parts: &Parts,
    ) -> Result<(), Reject> {
        if parts.count == 1 {
            return Ok(());
        }
        let slabbed = self.buffers[buffer as usize].slabbed;
        let (from, real, element) = (
            parts.buffer,
            self.mode.real(),
            self.buffers[buffer as usize].element,
        );
        let results = self.count(order, slabbed);
        let (start, combine) = self.combined(op);
        let body = format!(
            "  const long long results = {results};\n  tw_fold<1>(shared, results, {0}ll, {0}ll, 1ll, {start},\n    {combine},\n    [&](long long n, long long k) -> {real} {{ return b{from}[k * results + n]; }},\n    [&](long long at, {real} value) {{ b{buffer}[at] = {1}; }});\n",
            parts.count,
            element.written("value"),
        );
        let mut scope = Scope::default();
        scope.used.insert(from);
        let elements = self.elements(order, slabbed)?;
        let share = Share {
            elements,
            slabbed,
            each: u64::from(ReferenceLaunch::THREADS),
        };
        let terms = self.elements(order, false)?.saturating_mul(parts.count);
        let work = self.work(&scope, terms, buffer, 1.0);
        self.launch(name, buffer, scope, &body, vec![share], 0, work);
        Ok(())
    }

    /// A product in tiles; the groups are the axes of batches, rows, columns and terms.
    fn product(
        &mut self,
        id: NodeId,
        groups: [AxisSet; 4],
        factors: [Read; 2],
        dtype: Option<ir::Dtype>,
    ) -> Result<Read, Reject> {
        let one = |n: usize| std::slice::from_ref(&factors[n]);
        let across = [0, 1].map(|n| {
            self.contiguous(one(n))
                .is_some_and(|a| groups[3].contains(a))
        });
        // Terms are counted as the factor has them that is read along them.
        let within = self.order(&groups[3], one(usize::from(!across[0] && across[1])));
        let batch = self.order(&groups[0], one(0));
        let rows = self.order(&groups[1], one(0));
        let columns = self.order(&groups[2], one(1));
        let slabbed = self.slabs(id);
        let size = |order: &[AxisId]| self.elements(order, false);
        let (depth, batches) = (size(&within)?, size(&batch)?);
        let sides = [size(&rows)?, size(&columns)?];
        let wide = |n: u64| match n {
            0..=16 => 1,
            17..=64 => 4,
            65.. => 8,
        };
        let mut each = sides.map(wide);
        let tiles = |each: [u64; 2]| {
            let along = |n: usize| sides[n].div_ceil(16 * each[n]);
            batches.saturating_mul(along(0)).saturating_mul(along(1))
        };
        if tiles(each) < BUSY_BLOCKS {
            each = each.map(|n| n.min(4));
        }
        let count = (BUSY_BLOCKS.div_ceil(tiles(each))).min(depth / DEEP).max(1);
        let order: Vec<AxisId> = [&batch[..], &rows, &columns].concat();
        self.stored(format!("value{}", id.0), slabbed, order, move |me, name, buffer, order| {
            let parts = me.parts(name, buffer, count, depth)?;
            let (b, real) = (parts.buffer, me.mode.real());
            let mut used = Scope::default();
            let mut factor = |n: usize, own: &[AxisId], number: &str| {
                let mut scope = Scope::default();
                let value = me.operand(&factors[n], dtype, &mut scope);
                used.used.append(&mut scope.used);
                format!(
                    "    [&](long long b, long long {number}, long long k) -> {real} {{\n      {}\n      {}\n      {}\n      {}return {value};\n    }},\n",
                    me.coordinates(&batch, slabbed, "b"),
                    me.coordinates(own, slabbed, number),
                    me.coordinates(&within, false, "k"),
                    scope.lines,
                )
            };
            let (left, right) = (factor(0, &rows, "m"), factor(1, &columns, "n"));
            let add = match me.mode {
                ReferenceMode::Exact => "fma(x, y, sum)",
                ReferenceMode::Careful | ReferenceMode::Dithered => "fmaf(x, y, sum)",
            };
            let results = me.count(order, slabbed);
            let body = format!(
                "  const long long rows = {}, columns = {}, results = {results}; (void)results;\n  tw_product<{}, {}, {}, {}>(shared, {}, rows, columns, {depth}ll, {}ll, {}ll, ({real})0,\n    []({real} sum, {real} x, {real} y) -> {real} {{ return {add}; }},\n{left}{right}    [&](long long b, long long part, long long m, long long n, {real} value) {{ b{b}[part * results + (b * rows + m) * columns + n] = {}; }});\n",
                me.count(&rows, slabbed),
                me.count(&columns, slabbed),
                each[0],
                each[1],
                across[0],
                across[1],
                me.count(&batch, slabbed),
                parts.length,
                parts.count,
                me.buffers[b as usize].element.written("value"),
            );
            let share = |order: &[AxisId], each: u64| {
                let in_slab = slabbed && order.iter().any(|a| Some(*a) == me.slab);
                Ok::<_, Reject>(Share {
                    elements: me.elements(order, in_slab)?,
                    slabbed: in_slab,
                    each,
                })
            };
            let mut shares = vec![
                share(&batch, 1)?,
                share(&rows, 16 * each[0])?,
                share(&columns, 16 * each[1])?,
            ];
            shares.push(Share {
                elements: parts.count,
                slabbed: false,
                each: 1,
            });
            let width = me.mode.stored().bytes();
            let shared = width * 16 * (16 * (each[0] + each[1]) + 2);
            // What lies past the edges is computed too.
            let padded = |n: usize| sides[n].div_ceil(16 * each[n]).saturating_mul(16 * each[n]);
            let all = batches.saturating_mul(padded(0)).saturating_mul(padded(1));
            let mut work = me.work(&used, all.saturating_mul(depth), b, 0.0);
            work.product_flops = 2.0 * all as f64 * depth as f64;
            me.launch(&parts.name, b, used, &body, shares, shared as u32, work);
            me.joined(name, buffer, order, ReduceOp::Sum, &parts)
        })
    }

    /// What a kernel takes that evaluates an expression so many times, of so many operations, and fills a buffer: each buffer is read
    /// once, or as often as there are evaluations; what is filled is filled with NaN before.
    fn work(&self, scope: &Scope, times: u64, written: u32, operations: f64) -> Work {
        let all = |b: u32| {
            let b = &self.buffers[b as usize];
            let slabs = self
                .slab
                .filter(|_| b.slabbed)
                .map_or(1, |a| self.program.extent(a));
            (b.elements as f64 * slabs as f64, b.element.bytes() as f64)
        };
        let read = |b: &u32| {
            let (elements, bytes) = all(*b);
            elements.min(times as f64) * bytes
        };
        let (elements, bytes) = all(written);
        Work {
            bytes: scope.used.iter().map(read).sum::<f64>() + 2.0 * elements * bytes,
            flops: times as f64 * operations,
            product_flops: 0.0,
        }
    }

    /// The operations of a scope's statements.
    fn made_of(&self, scope: &Scope) -> f64 {
        scope.operations.iter().map(|op| weight(*op)).sum()
    }

    #[allow(clippy::too_many_arguments, reason = "a row of what a launch is")]
    fn launch(
        &mut self,
        name: &str,
        buffer: u32,
        scope: Scope,
        body: &str,
        shares: Vec<Share>,
        shared_bytes: u32,
        work: Work,
    ) {
        let mut arguments: Vec<u32> = scope.used.into_iter().collect();
        arguments.push(buffer);
        let parameters = arguments.iter().map(|b| {
            let own = &self.buffers[*b as usize];
            let constant = if *b == buffer { "" } else { "const " };
            format!("{constant}{}* b{b}", own.element.holder())
        });
        let parameters: Vec<String> = parameters.collect();
        let entry = format!("{}_{name}", self.mode.prefix());
        self.text.push_str(&format!(
            "\nextern \"C\" __global__ void __launch_bounds__({}) {entry}({}, const long long* slab) {{\n  const long long slab_first = slab[0], slab_count = slab[1]; (void)slab_first; (void)slab_count;\n",
            ReferenceLaunch::THREADS,
            parameters.join(", ")
        ));
        if body.contains("(shared, ") {
            self.text
                .push_str("  extern __shared__ __align__(16) unsigned char shared[];\n");
        }
        self.text.push_str(body);
        self.text.push_str("}\n");
        assert!(!matches!(
            self.buffers[buffer as usize].role,
            ReferenceRole::Parameter(_)
        ));
        self.launches.push(ReferenceLaunch {
            entry,
            arguments,
            shares,
            shared_bytes,
            frees: Vec::new(),
            work,
        });
    }
}
