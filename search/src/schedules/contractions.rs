//! What a kernel contracts, as the choice of a schedule sees it.

use codegen::atoms::{self, Instruction, Operands, Scope};
use codegen::layout;
use codegen::passes::instruction;
use ir::{AxisSet, Kernel, Product, Step, Target, TileOp, TileProgram, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// One contraction as the choice of a schedule sees it.
pub(super) struct Contraction {
    pub(super) value: ValueId,
    pub(super) instruction: &'static Instruction,
    pub(super) swap: bool,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Terms of a tile.
    pub(super) depth: u64,
    /// Its rows' operand is computed from another contraction: fragments pass in registers when no warps share rows.
    pub(super) back_to_back: bool,
    /// Coordinates of the larger operand, where the other one is broadcast along it: it is held in registers.
    pub(super) spread: Option<u64>,
}

impl Contraction {
    /// It is carried out by an instruction.
    pub(super) fn by(&self, instruction: &Instruction) -> Step {
        let how = instruction::Contraction {
            atom: instruction.atom,
            swap: self.swap,
        };
        instruction::step(self.value, how)
    }
}

fn tiles(kernel: &Kernel, axes: &AxisSet) -> Vec<u64> {
    axes.iter().map(|a| kernel.tile(a)).collect()
}

/// The coordinates that instructions go over: several axes are padded.
fn padded(kernel: &Kernel, axes: &AxisSet) -> u64 {
    match tiles(kernel, axes).as_slice() {
        [] => 1,
        [one] => *one,
        many => layout::padded(many, 1),
    }
}

/// The contractions that a value is computed from by element-wise operations and reductions.
fn origins(
    kernel: &Kernel,
    v: ValueId,
    seen: &mut BTreeSet<ValueId>,
    found: &mut BTreeSet<ValueId>,
) {
    if !seen.insert(v) {
        return;
    }
    match &kernel.value(v).op {
        TileOp::Contract { .. } => {
            found.insert(v);
        }
        op @ (TileOp::Map(..) | TileOp::Reduce { .. } | TileOp::Scan { .. }) => {
            let operands = op.operands();
            operands
                .iter()
                .for_each(|a| origins(kernel, *a, seen, found));
        }
        TileOp::Load { .. }
        | TileOp::Constant(_)
        | TileOp::Iota(_)
        | TileOp::Phi { .. }
        | TileOp::Final { .. } => {}
    }
}

/// Whether a value follows from loads by element-wise operations and reductions alone.
fn element_wise(kernel: &Kernel, v: ValueId) -> bool {
    match &kernel.value(v).op {
        TileOp::Load { .. } | TileOp::Constant(_) | TileOp::Iota(_) => true,
        op @ (TileOp::Map(..) | TileOp::Reduce { .. } | TileOp::Scan { .. }) => {
            op.operands().iter().all(|a| element_wise(kernel, *a))
        }
        TileOp::Contract { .. } | TileOp::Phi { .. } | TileOp::Final { .. } => false,
    }
}

/// What the contractions of a kernel are carried out by.
#[derive(Clone, Copy)]
pub(super) struct By {
    /// Instructions for 16-bit operands.
    pub(super) tensor: bool,
    /// And for operands that are split.
    pub(super) split: bool,
    /// Where either operand of a matrix instruction may give the rows, the one that usually doesn't.
    pub(super) turned: bool,
}

pub(super) fn contractions(
    tile: &TileProgram,
    kernel: &Kernel,
    by: By,
    target: &Target,
) -> Vec<Contraction> {
    let By {
        tensor,
        split,
        turned,
    } = by;
    let of_warps = |operands| atoms::of(Scope::Warp, operands, target).next();
    let mut found = Vec::new();
    // Rows wanted by later contractions whose computed operand comes from an earlier one.
    let mut wanted: BTreeMap<ValueId, AxisSet> = BTreeMap::new();
    for i in (0..kernel.values.len()).rev() {
        let id = ValueId(i as u32);
        let Some(Product {
            a,
            b,
            m,
            n,
            k,
            batch,
        }) = kernel.product(id)
        else {
            continue;
        };
        let computed = |v: ValueId| !element_wise(kernel, v);
        let (computed_a, computed_b) = (computed(a), computed(b));
        let (size_a, size_b) = (kernel.volume(&m), kernel.volume(&n));
        let [of_a, of_b] = [a, b].map(|v| kernel.several(&kernel.value(v).axes));
        let half = batch.is_empty() && !k.is_empty() && crate::cost::matrix(tile, kernel, id);
        let product = of_a.is_subset(&of_b) || of_b.is_subset(&of_a);
        let matrix = if tensor && half && (!product || size_a.max(size_b) >= 16) {
            of_warps(Operands::Half)
        } else if split && batch.is_empty() && !k.is_empty() && !product {
            of_warps(Operands::Split)
        } else {
            None
        };
        let swap = match wanted.get(&id) {
            Some(rows) if *rows == m && !m.is_empty() => false,
            Some(rows) if *rows == n && !n.is_empty() => true,
            Some(_) | None if computed_a != computed_b => computed_b,
            Some(_) | None => (size_b > size_a && size_a < 64) != (turned && matrix.is_some()),
        };
        let (rows_set, rows_value, back_to_back) = if swap {
            (&n, b, computed_b)
        } else {
            (&m, a, computed_a)
        };
        if back_to_back {
            let mut sources = BTreeSet::new();
            origins(kernel, rows_value, &mut BTreeSet::new(), &mut sources);
            for s in sources {
                wanted.entry(s).or_insert_with(|| rows_set.clone());
            }
        }
        let instruction = matrix.unwrap_or(atoms::ANY);
        let (all_a, all_b) = (padded(kernel, &m), padded(kernel, &n));
        let (rows, columns) = if swap { (all_b, all_a) } else { (all_a, all_b) };
        let spread =
            (matrix.is_none() && product).then(|| kernel.volume(&of_a).max(kernel.volume(&of_b)));
        found.push(Contraction {
            value: id,
            instruction,
            swap,
            rows: rows.saturating_mul(kernel.volume(&batch)),
            columns,
            depth: match instruction.operands {
                Operands::Split => layout::woven(&tiles(kernel, &k)),
                Operands::Single | Operands::Half | Operands::Rounded => padded(kernel, &k),
            },
            back_to_back,
            spread,
        });
    }
    found
}
