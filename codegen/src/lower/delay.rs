//! Contractions that a loop accumulates in place and does not wait for within their iteration.
//!
//! With both operands in shared memory the instructions of one iteration run while the next one begins. With the rows' operand
//! in registers they are issued in the next iteration, behind its first contraction: the tensor cores then work while the
//! threads compute on that contraction's result. Either way what they read stays in its ring one iteration longer.

use super::{Emitter, Source, line};
use crate::atoms::AtomRow;
use crate::cuda::Node;
use crate::plan::{Contraction, Delay, Method, Operand};
use ir::{Reject, ValueId};

impl Emitter<'_> {
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
        let scales = |d: &Delay| d.held && d.scaled.is_some_and(|(addend, _)| addend == v);
        self.plan.delayed.values().any(scales)
    }

    /// Multiplies accumulators by a factor that is mostly 1: a group of warps that has no other one leaves them alone.
    ///
    /// The four warps vote, and wait behind the vote whatever it says: a wait in a branch that only some of them take is undefined,
    /// since they wait together. The vote's barrier also keeps the assembler from moving the wait in front of the next rows, as it
    /// does with a wait that only a vote of single warps precedes: what computes them would then no longer overlap the product.
    fn rescale(
        &mut self,
        delay: &Delay,
        factor: ValueId,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let layout = self.layout(delay.phi);
        let part = layout.slice(self.plan.axes(factor)).distinct();
        let factor = self.operand(factor, &part, out)?;
        let array = self.accumulators(delay)?;
        let rescaled = format!("{array}_scaled");
        out.push(line(format!("bool {rescaled} = false;")));
        out.extend(self.registers(&part, 1, |me, d| {
            let text = me.element(&factor, &part, d);
            vec![line(format!("{rescaled} = {rescaled} || {text} != 1.0f;"))]
        }));
        self.keep_rows(out);
        // A literal number leaves the other barriers to other blocks.
        let group = match self.plan.groups() {
            1 => "0",
            _ => "group",
        };
        out.push(line(format!(
            "{rescaled} = tw_any_of_group({group}, {rescaled});"
        )));
        self.wait(out);
        let then = self.registers(&layout, 1, |me, d| {
            let text = me.element(&factor, &layout, d);
            vec![line(format!(
                "{array}[{}] *= {text};",
                Self::own_index(&layout, d)
            ))]
        });
        out.push(Node::If {
            condition: rescaled,
            then,
            otherwise: Vec::new(),
        });
        Ok(())
    }

    /// Waits for every instruction under way.
    pub(super) fn land(&mut self, out: &mut Vec<Node>) {
        self.keep_rows(out);
        self.wait(out);
    }

    fn wait(&mut self, out: &mut Vec<Node>) {
        if !self.flying.is_empty() {
            out.push(line("tw_wgmma_wait<0>();"));
        }
        self.landed(out);
    }

    /// The compiler is to finish the next rows before it waits for the product of the former ones, not after.
    fn keep_rows(&self, out: &mut Vec<Node>) {
        for delay in self.plan.delayed.values() {
            let c = &self.plan.contractions[&delay.contraction];
            if self.flying.contains_key(&delay.phi)
                && let Some(Operand::Registers(rows)) = c.operands.first()
                && let Some(Source::Array { name, layout }) = self.find(c.values[0], Some(rows))
            {
                let registers = layout.register_count();
                out.push(line(format!("tw_keep<{registers}>({name});")));
            }
        }
    }

    /// Everything under way has been waited for.
    pub(super) fn landed(&mut self, out: &mut Vec<Node>) {
        for (phi, array) in std::mem::take(&mut self.flying) {
            let registers = self.layout(phi).register_count();
            out.push(line(format!("tw_keep<{registers}>({array});")));
        }
    }

    /// What stands before a loop with delayed contractions.
    pub(super) fn prepare(
        &mut self,
        delays: &[(ValueId, Delay)],
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        for (_, delay) in delays {
            let array = self.accumulators(delay)?;
            if delay.held {
                let (c, row) = self.delayed_contraction(delay)?;
                out.push(line(self.packed(&c, row, &rows_of(&array))));
                self.waiting = Some(delay.clone());
            } else {
                self.flying.insert(delay.phi, array);
            }
        }
        Ok(())
    }

    /// Whether groups of warps take turns in a loop: there is a contraction that a delayed one follows.
    pub(super) fn turns(&self, number: usize) -> bool {
        let held = |d: &Delay| d.number == number && d.held;
        self.plan.produced == Some(number)
            && self.plan.groups() > 1
            && self.plan.delayed.values().any(held)
    }

    /// Before a contraction that a delayed one follows: a group of warps waits for its turn.
    pub(super) fn take_turn(&self, out: &mut Vec<Node>) {
        if self.waiting.as_ref().is_some_and(|d| self.turns(d.number)) {
            out.push(line("tw_turn_wait<256>(group);"));
        }
    }

    /// What stands at the end of such a loop's body: at most this iteration's instructions stay under way.
    pub(super) fn settle(&self, delays: &[(ValueId, Delay)], body: &mut Vec<Node>) {
        let open = delays.iter().filter(|(_, d)| !d.held).count();
        if open > 0 {
            body.push(line(format!("tw_wgmma_wait<{open}>();")));
        }
    }

    /// What stands behind such a loop.
    pub(super) fn finish(
        &mut self,
        delays: &[(ValueId, Delay)],
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        for (_, delay) in delays.iter().filter(|(_, d)| d.held) {
            let number = delay.number;
            if self.turns(number) {
                // The last turn that was passed on.
                out.push(Node::If {
                    condition: "group == 0".into(),
                    then: vec![line("tw_turn_wait<256>(0);")],
                    otherwise: Vec::new(),
                });
            }
            let mut then = self.issue_late(delay)?;
            then.push(line("tw_wgmma_commit();"));
            out.push(Node::If {
                condition: format!("first{number} < last{number}"),
                then,
                otherwise: Vec::new(),
            });
            let array = self.accumulators(delay)?;
            self.flying.insert(delay.phi, array);
            self.waiting = None;
        }
        self.land(out);
        Ok(())
    }

    /// Behind a contraction of the same loop: issues what the iteration before left to do, as a group of its own, and waits for
    /// the contraction alone.
    pub(super) fn follow(&mut self, out: &mut Vec<Node>) -> Result<bool, Reject> {
        let Some(delay) = self.waiting.take() else {
            out.push(line("tw_wgmma_wait<0>();"));
            return Ok(false);
        };
        let number = delay.number;
        let mut then = self.issue_late(&delay)?;
        let pass = self.turns(number).then(|| {
            let groups = self.plan.groups();
            line(format!("tw_turn_pass<256>((group + 1) % {groups});"))
        });
        // The group ends in its branch: the assembler would make a second one of what follows the branch.
        then.push(line("tw_wgmma_commit();"));
        then.extend(pass.clone());
        then.push(line("tw_wgmma_wait<1>();"));
        let mut otherwise: Vec<Node> = pass.into_iter().collect();
        otherwise.push(line("tw_wgmma_wait<0>();"));
        out.push(Node::If {
            condition: format!("n{number} > first{number}"),
            then,
            otherwise,
        });
        let array = self.accumulators(&delay)?;
        self.flying.insert(delay.phi, array);
        Ok(true)
    }

    /// Carries out a delayed contraction as far as its own iteration does.
    pub(super) fn accumulate(
        &mut self,
        delay: &Delay,
        sum: ValueId,
        addend: ValueId,
        out: &mut Vec<Node>,
    ) -> Result<(), Reject> {
        let (c, row) = self.delayed_contraction(delay)?;
        let layout = c.accumulator.clone();
        let array = self.accumulators(delay)?;
        if let Some((_, factor)) = delay.scaled.filter(|_| delay.held) {
            self.rescale(delay, factor, out)?;
        } else if addend != delay.phi {
            self.land(out);
            let start = self.operand(addend, &layout.slice(self.plan.axes(addend)), out)?;
            out.extend(self.registers(&layout, 1, |me, d| {
                let text = me.element(&start, &layout, d);
                vec![line(format!(
                    "{array}[{}] = {text};",
                    Self::own_index(&layout, d)
                ))]
            }));
        }
        match &c.operands[0] {
            Operand::Registers(fragment) => {
                // The instructions that read the former rows have been waited for.
                self.land(out);
                let mut scope = Vec::new();
                self.pack(&c, row, fragment, &rows_of(&array), &mut scope)?;
                out.push(Node::Scope(scope));
            }
            Operand::Tile(_) => {
                let registers = layout.register_count();
                let mut scope = vec![line(format!("tw_keep<{registers}>({array});"))];
                scope.extend(self.issue(&c, row, &array, false, None, None)?);
                scope.push(line("tw_wgmma_commit();"));
                out.push(Node::Scope(scope));
                self.flying.insert(delay.phi, array.clone());
            }
        }
        self.bind(sum, &layout, &array);
        Ok(())
    }

    /// The array that a loop accumulates into.
    fn accumulators(&self, delay: &Delay) -> Result<String, Reject> {
        let layout = self.layout(delay.phi);
        match self.find(delay.phi, Some(&layout)) {
            Some(Source::Array { name, .. }) => Ok(name),
            Some(Source::Literal(_) | Source::Coordinate(_)) | None => {
                Err(Reject::Schedule("a carry without registers".into()))
            }
        }
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
    fn issue_late(&mut self, delay: &Delay) -> Result<Vec<Node>, Reject> {
        let (c, row) = self.delayed_contraction(delay)?;
        let array = self.accumulators(delay)?;
        let number = delay.number;
        let slots = self.schedule.stages;
        let before = format!("before{number}");
        let registers = c.accumulator.register_count();
        let mut nodes = vec![line(format!("tw_keep<{registers}>({array});"))];
        // Columns that stand outside the loop have one slot.
        let late = matches!(c.operands[1], Operand::Tile(t) if self.late(t));
        if late {
            nodes.push(line(format!(
                "const int {before} = late{number} == 0 ? {slots} : late{number} - 1;"
            )));
        }
        let rows = rows_of(&array);
        let slot = late.then_some(before.as_str());
        nodes.extend(self.issue(&c, row, &array, false, Some(&rows), slot)?);
        Ok(nodes)
    }
}

/// The name of the rows that are still to be multiplied.
fn rows_of(array: &str) -> String {
    format!("{array}_rows")
}
