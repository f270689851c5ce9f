//! Contractions that a loop accumulates in place and does not wait for within their iteration.
//!
//! With both operands in shared memory the instructions of one iteration run while the next one begins. With the rows' operand
//! in registers they are issued in the next iteration, behind its first contraction: the tensor cores then work while the
//! threads compute on that contraction's result. Either way what they read stays in its ring one iteration longer. Products of halves run while
//! the next halves are made, in the other one of two stages.

use super::warpgroup::Products;
use super::{Machined, Plain};
use crate::atoms::AtomRow;
use crate::machine::{Condition, Counter, FragmentId, Function, Holds, Source, Stage, Sync};
use crate::plan::{Contraction, Delay, DelayKind, Method, Operand};
use ir::{MapOp, Reject, ValueId};

/// What counts the stages of halves that are multiplied while the next ones are made.
fn halves(delays: &[(ValueId, Delay)]) -> Option<Counter> {
    let mut added = delays.iter().filter(|(_, d)| d.kind == DelayKind::Added);
    added.next().map(|(_, d)| Counter {
        number: d.number,
        delayed: true,
    })
}

impl Plain<'_> {
    /// The delayed contractions of a loop, with the sums that they are addends of.
    pub(super) fn delays(&self, number: usize) -> Vec<(ValueId, Delay)> {
        self.plan
            .delayed
            .iter()
            .filter(|(_, d)| d.number == number)
            .map(|(sum, d)| (*sum, d.clone()))
            .collect()
    }

    /// Whether a value only scales what a delayed contraction is accumulated into: that happens where the sum is.
    pub(super) fn scales_a_delay(&self, v: ValueId) -> bool {
        let scales = |d: &Delay| {
            d.kind == DelayKind::Issued && d.scaled.is_some_and(|(addend, _)| addend == v)
        };
        self.plan.delayed.values().any(scales)
    }

    /// Multiplies accumulators by a factor that is mostly 1: a group of warps that has no other one leaves them alone.
    ///
    /// The four warps vote: they wait together for the instructions that accumulate there. The vote's barrier also keeps the assembler from moving
    /// that wait in front of the next rows, as it does with a wait that only a vote of single warps precedes: what computes them would then no
    /// longer overlap the product.
    fn rescale(
        &mut self,
        delay: &Delay,
        factor: ValueId,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let layout = self.layout(delay.phi);
        let part = layout.slice(self.plan.axes(factor)).distinct();
        let factor = self.operand(factor, &part, out)?;
        let into = self.accumulators(delay)?;
        let name = format!("{}_scaled", self.fragment(into).name);
        let flag = self.declare(name, Holds::Flag, out);
        out.push(Machined::IsNotOne {
            flag,
            of: factor,
            layout: part,
        });
        out.push(Machined::Sync(Sync::Vote(flag)));
        out.push(Machined::If {
            condition: Condition::Flag(flag),
            then: vec![Machined::Map {
                to: into,
                function: Function::Op(MapOp::Mul),
                args: vec![Source::Fragment(into), factor],
            }],
            otherwise: Vec::new(),
        });
        Ok(())
    }

    /// What stands before a loop with delayed contractions.
    pub(super) fn prepare(
        &mut self,
        delays: &[(ValueId, Delay)],
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        for (_, delay) in delays {
            let into = self.accumulators(delay)?;
            match delay.kind {
                DelayKind::Issued => {
                    let (c, row) = self.delayed_contraction(delay)?;
                    let rows = self.packed(&c, row, into, out);
                    self.rows.insert(into, rows);
                    self.waiting = Some(delay.clone());
                }
                DelayKind::Waited => {}
                DelayKind::Added => {
                    let (c, row) = self.delayed_contraction(delay)?;
                    let products = self.products(&c, row, into, false, out)?;
                    out.push(Self::copied(products.sum, Source::Constant(0.0)));
                    self.products.insert(into, products);
                }
            }
        }
        if let Some(counter) = halves(delays) {
            out.push(Machined::OpenStages(counter));
        }
        Ok(())
    }

    /// What stands at the end of such a loop's body.
    pub(super) fn settle(&self, delays: &[(ValueId, Delay)], body: &mut Vec<Machined>) {
        if let Some(counter) = halves(delays) {
            body.push(Machined::AdvanceStage { counter, stages: 2 });
        }
    }

    /// What stands behind such a loop.
    pub(super) fn finish(
        &mut self,
        delays: &[(ValueId, Delay)],
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        for (_, delay) in delays.iter().filter(|(_, d)| d.kind == DelayKind::Issued) {
            let number = delay.number;
            out.push(Machined::If {
                condition: Condition::NotEmpty(number),
                then: self.issue_delayed(delay)?,
                otherwise: Vec::new(),
            });
            self.waiting = None;
        }
        for (_, delay) in delays.iter().filter(|(_, d)| d.kind == DelayKind::Added) {
            let into = self.accumulators(delay)?;
            let products = self.products_of(into)?;
            out.push(Self::added(into, products.sum));
        }
        Ok(())
    }

    /// Behind a contraction of the same loop: issues what the iteration before left to do.
    pub(super) fn follow(&mut self, out: &mut Vec<Machined>) -> Result<(), Reject> {
        if let Some(delay) = self.waiting.take() {
            out.push(Machined::If {
                condition: Condition::NotFirst(delay.number),
                then: self.issue_delayed(&delay)?,
                otherwise: Vec::new(),
            });
        }
        Ok(())
    }

    /// Carries out a delayed contraction as far as its own iteration does.
    pub(super) fn accumulate(
        &mut self,
        delay: &Delay,
        sum: ValueId,
        addend: ValueId,
        out: &mut Vec<Machined>,
    ) -> Result<(), Reject> {
        let (c, row) = self.delayed_contraction(delay)?;
        let layout = c.accumulator.clone();
        let into = self.accumulators(delay)?;
        if delay.kind == DelayKind::Added {
            let products = self.products_of(into)?;
            let rows = self.split_operands(&c, &products, out)?;
            out.push(Self::added(into, products.sum));
            self.issue_products(&c, row, &products, rows, out)?;
            self.bind(sum, &layout, into);
            return Ok(());
        }
        if let Some((_, factor)) = delay.scaled.filter(|_| delay.kind == DelayKind::Issued) {
            self.rescale(delay, factor, out)?;
        } else if addend != delay.phi {
            let start = self.operand(addend, &layout.slice(self.plan.axes(addend)), out)?;
            out.push(Self::copied(into, start));
        }
        match &c.operands[0] {
            Operand::Registers(fragment) => {
                let mut scope = Vec::new();
                let rows = self.rows_of(into)?;
                self.pack(&c, row, fragment, rows, &mut scope)?;
                out.push(Machined::Scope(scope));
            }
            Operand::Tile(_) => {
                let issue = self.issue(&c, row, into, false, None, self.columns(&c, None)?)?;
                out.push(Machined::Scope(vec![issue]));
            }
        }
        self.bind(sum, &layout, into);
        Ok(())
    }

    /// The fragment that a loop accumulates into.
    fn accumulators(&self, delay: &Delay) -> Result<FragmentId, Reject> {
        let layout = self.layout(delay.phi);
        let found = self.find(delay.phi, Some(&layout));
        found.ok_or_else(|| Reject::Schedule("a carry without registers".into()))
    }

    fn products_of(&self, into: FragmentId) -> Result<Products, Reject> {
        let found = self.products.get(&into).copied();
        found.ok_or_else(|| Reject::Schedule("products that nothing declares".into()))
    }

    /// The rows that are still to be multiplied into accumulators.
    fn rows_of(&self, into: FragmentId) -> Result<FragmentId, Reject> {
        let found = self.rows.get(&into).copied();
        found.ok_or_else(|| Reject::Schedule("rows that nothing declares".into()))
    }

    fn delayed_contraction(
        &self,
        delay: &Delay,
    ) -> Result<(Contraction, &'static AtomRow), Reject> {
        let c = self.plan.contractions[&delay.contraction].clone();
        match c.method {
            Method::Matrix(row) => Ok((c, row)),
            Method::Outer | Method::Product => Err(Reject::Schedule(
                "a delayed contraction of single threads".into(),
            )),
        }
    }

    /// Issues what the iteration before left to do.
    fn issue_delayed(&mut self, delay: &Delay) -> Result<Vec<Machined>, Reject> {
        let (c, row) = self.delayed_contraction(delay)?;
        let into = self.accumulators(delay)?;
        let number = delay.number;
        let mut out = Vec::new();
        // Columns that stand outside the loop have one stage.
        let delayed = matches!(c.operands[1], Operand::Tile(t) if self.is_delayed(t));
        if delayed {
            out.push(Machined::PreviousStage {
                number,
                stages: u64::from(self.schedule.stages) + 1,
            });
        }
        let rows = self.rows_of(into)?;
        let stage = delayed.then_some(Stage::Previous(number));
        let columns = self.columns(&c, stage)?;
        out.push(self.issue(&c, row, into, false, Some(rows), columns)?);
        Ok(out)
    }
}
