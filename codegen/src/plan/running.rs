//! Sums that go on through loops within loops.
//!
//! ```text
//! loop i {                                  loop i {
//!   carry outer = 0                           carry outer = 0
//!   loop j {                                  loop j {
//!     carry inner = 0                   =>
//!     next = add(inner, x)                      next = add(outer, x)
//!     yield all = final(inner, next)            yield all = final(outer, next)
//!   }                                         }
//!   sum = add(outer, all)
//!   yield final(outer, sum)                   yield final(outer, all)
//! }                                         }
//! ```
//!
//! Both are the same over the reals. The second one needs no registers for a sum of its own, and no additions behind the inner loop. It is legal
//! where nothing else reads the carries and the inner sum: then nobody sees what the inner sum would have been.

use ir::{Carry, Kernel, Loop, MapOp, Statement, TileOp, ValueId};
use std::collections::BTreeMap;

/// A carry that may go on from the carry of the loop around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    /// The carry of the loop around, by its phi.
    pub(crate) from: ValueId,
    /// What would add the inner sum to it.
    pub(crate) sum: ValueId,
}

/// The carries of a kernel that may, by their phis.
pub(crate) fn running(kernel: &Kernel) -> BTreeMap<ValueId, Running> {
    let mut found = BTreeMap::new();
    go(kernel, &kernel.body, &kernel.uses(), &mut found);
    found
}

fn go(kernel: &Kernel, body: &[Statement], uses: &[u32], found: &mut BTreeMap<ValueId, Running>) {
    for around in loops(body) {
        for inner in loops(&around.body) {
            for carry in &inner.carries {
                let goes_on = around
                    .carries
                    .iter()
                    .find(|c| goes_on(kernel, uses, carry, c));
                let running = goes_on.map(|c| Running {
                    from: c.phi,
                    sum: c.next,
                });
                found.extend(running.map(|r| (carry.phi, r)));
            }
        }
        go(kernel, &around.body, uses, found);
    }
}

fn loops(body: &[Statement]) -> impl Iterator<Item = &Loop> {
    body.iter().filter_map(|s| match s {
        Statement::Loop(l) => Some(l),
        Statement::Let(_) | Statement::Store { .. } => None,
    })
}

/// Whether a sum that a loop carries begins with nothing, and is added to what the loop around carries and used for nothing else.
fn goes_on(kernel: &Kernel, uses: &[u32], inner: &Carry, outer: &Carry) -> bool {
    let once = |v: ValueId| uses[v.index()] == 1;
    let adds = |to: ValueId, x: ValueId| match &kernel.value(to).op {
        TileOp::Map(MapOp::Add, args) => args.contains(&x),
        TileOp::Load { .. }
        | TileOp::Constant(_)
        | TileOp::Iota(_)
        | TileOp::Map(..)
        | TileOp::Reduce { .. }
        | TileOp::Scan { .. }
        | TileOp::Contract { .. }
        | TileOp::Phi { .. }
        | TileOp::Final { .. } => false,
    };
    let empty = matches!(kernel.value(inner.phi).op, TileOp::Phi { init, .. } if init == 0.0);
    let alone = [inner.phi, inner.next, inner.result, outer.phi];
    empty
        && alone.into_iter().all(once)
        && adds(inner.next, inner.phi)
        && adds(outer.next, inner.result)
        && adds(outer.next, outer.phi)
        && kernel.value(inner.phi).axes == kernel.value(outer.phi).axes
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::TileProgram;

    /// How many sums go on in products whose inner loop does this.
    fn found(init: &str, inner: &str, after: &str) -> usize {
        let text = format!(
            "tile t\naxis m = 32, n = 32, k = 64, l = 64\nbuffer a = parameter 0 f32 [m, k, l]\nbuffer b = parameter 1 f32 [n, k, l]\n\
             buffer y = output 0 f32 [m, n]\nkernel grid(m: 32, n: 32) loop(k: 8, l: 8) {{\n  loop k {{\n    carry s = 0 over [m, n]\n    \
             loop l {{\n      carry t = {init} over [m, n]\n      c = load a[m, k, l]\n      d = load b[n, k, l]\n      \
             p = contract(c, d; k, l)\n      {inner}\n      yield t3 = final(t, t2)\n    }}\n    {after}\n    \
             yield s3 = final(s, s2)\n  }}\n  store y = s3\n}}\n"
        );
        let tile: TileProgram = text.parse().unwrap_or_else(|e| panic!("{e}"));
        running(&tile.kernels[0]).len()
    }

    #[test]
    fn only_sums_that_nothing_else_reads_go_on() {
        let sum = "t2 = add(t, p)";
        assert_eq!(found("0", sum, "s2 = add(s, t3)"), 1);
        assert_eq!(found("0", sum, "s2 = add(t3, s)"), 1);
        assert_eq!(found("1", sum, "s2 = add(s, t3)"), 0);
        assert_eq!(found("0", "t2 = max(t, p)", "s2 = add(s, t3)"), 0);
        assert_eq!(found("0", sum, "s2 = mul(s, t3)"), 0);
        let [read, twice] = ["u = mul(t3, t3)\n    s2 = add(s, u)", "s2 = add(t3, t3)"];
        assert_eq!(found("0", sum, read), 0);
        assert_eq!(found("0", sum, twice), 0);
        let scaled = "h = mul(t, t)\n      t2 = add(t, p)\n      v = add(h, t2)";
        assert_eq!(found("0", scaled, "s2 = add(s, t3)"), 0);
    }
}
