//! Running maxima that are raised late.
//!
//! A correction holds for *any* provisional value, so later reductions need not see the running maximum itself: a *reference* that lags behind
//! it does, and where it stays all corrections are 1, so that nothing is scaled. It is raised where the product that is corrected for it would
//! otherwise hold numbers more than [`MOST`] times as large as beside the maximum:
//!
//! ```text
//! late   = c(reference, maximum) <= 1 / MOST
//! next   = select(late, maximum, reference)
//! factor = select(late, c(reference, maximum), 1)
//! ```
//!
//! Behind the loop what was corrected for the reference is corrected once more, for the maximum.

use super::{Passes, Placer, correct_with};
use crate::tiling::build::fuse::Fused;
use crate::tiling::build::inner::InnerId;
use ir::{MapOp, ReduceOp, Reject, ValueId};
use std::collections::BTreeMap;

/// How many times as large as beside the maximum numbers may be: far less than 16-bit floats have room for, and so much that a reference is
/// raised a few times a loop.
const MOST: f64 = 256.0;

/// The running values of a loop.
#[derive(Default)]
pub(super) struct Running {
    /// What they are behind it.
    pub(super) results: BTreeMap<InnerId, ValueId>,
    /// What later reductions see of them, before and behind an iteration.
    pub(super) values: BTreeMap<InnerId, [ValueId; 2]>,
    /// Those of which they see references.
    late: BTreeMap<InnerId, Reference>,
}

/// What later reductions see in the place of a running maximum.
struct Reference {
    /// Whether the iteration raises it.
    raised: ValueId,
    /// What it is before the iteration, and the maximum behind it.
    values: [ValueId; 2],
    /// What it is behind the loop.
    result: ValueId,
}

impl Placer<'_, '_> {
    /// The reference of a running maximum, before and behind an iteration.
    pub(super) fn reference(
        &mut self,
        r: InnerId,
        maximum: ValueId,
        product: &Fused,
        running: &mut Running,
    ) -> Result<[ValueId; 2], Reject> {
        let name = "reference";
        let axes = self.values[maximum.index()].axes.clone();
        let phi = self.phi(ReduceOp::Max.neutral(), &axes, name);
        // The first finite maximum is the first reference.
        let old = self.finite(phi, maximum);
        // Where both are infinite their factor is not a number, and nothing is raised. What is seen in the place of an infinite reference is 0.
        let values = [old, maximum];
        let factor = self.correction(product, &BTreeMap::from([(r, values)]))?;
        let (least, minus) = (self.let_constant(1.0 / MOST), self.let_constant(-1.0));
        let negative = self.let_map(MapOp::Mul, vec![minus, factor], "minus");
        let raised = self.let_map(MapOp::Add, vec![least, negative], "late");
        let next = self.let_map(MapOp::Select, vec![raised, maximum, old], "reference_next");
        let zero = self.let_constant(0.0);
        let now = self.finite(next, zero);
        let result = self.carry(phi, next, name);
        running.late.insert(
            r,
            Reference {
                raised,
                values,
                result,
            },
        );
        Ok([old, now])
    }

    /// The correction of a reduction in an iteration.
    pub(super) fn running_correction(
        &mut self,
        fused: &Fused,
        running: &Running,
    ) -> Result<ValueId, Reject> {
        let Some((r, reference)) = late_of(fused, running) else {
            return self.correction(fused, &running.values);
        };
        let factor = self.correction(fused, &BTreeMap::from([(r, reference.values)]))?;
        let one = self.let_constant(1.0);
        Ok(self.let_map(MapOp::Select, vec![reference.raised, factor, one], "factor"))
    }

    /// Behind a loop: corrects what was corrected for references.
    pub(super) fn settle(&mut self, passes: &Passes, running: &Running) -> Result<(), Reject> {
        for (a, result) in &running.results {
            let Some(fused) = passes.fused.get(a) else {
                continue;
            };
            let Some((r, reference)) = late_of(fused, running) else {
                continue;
            };
            let values = self.finites([reference.result, running.results[&r]]);
            let factor = self.correction(fused, &BTreeMap::from([(r, values)]))?;
            let settled = self.let_map(
                correct_with(fused.correction.op),
                vec![*result, factor],
                "settled",
            );
            self.scope().memo.insert(*a, settled);
        }
        Ok(())
    }
}

/// The reference that a reduction sees.
fn late_of<'r>(fused: &Fused, running: &'r Running) -> Option<(InnerId, &'r Reference)> {
    let r = fused.provisional.first()?;
    running.late.get(r).map(|reference| (*r, reference))
}
