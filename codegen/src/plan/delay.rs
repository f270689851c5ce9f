//! Contractions that are issued, or waited for, an iteration late.

use super::{Contraction, Delay, DelayKind, Method, Operand, Plan};
use ir::{Carry, Loop, Statement, ValueId};

impl Plan<'_> {
    /// Finds the contractions that need not be waited for within their iteration.
    pub(super) fn delay(&mut self, body: &[Statement], loops: &mut usize) {
        for statement in body {
            let Statement::Loop(l) = statement else {
                continue;
            };
            let number = *loops;
            *loops += 1;
            if l.body.iter().any(|s| matches!(s, Statement::Loop(_))) {
                self.delay(&l.body, loops);
                continue;
            }
            let all: Vec<(ValueId, Delay)> = l
                .carries
                .iter()
                .filter_map(|c| self.delayable(number, c))
                .collect();
            let is_delayed = |v: &ValueId| all.iter().any(|(_, d)| d.contraction == *v);
            // Where a contraction is carried out: at the sum that it is an addend of, if there is one.
            let place = |v: ValueId| {
                let sum = self.fused.iter().find(|(_, (c, _))| *c == v).map(|f| *f.0);
                let at = sum.unwrap_or(v);
                l.body
                    .iter()
                    .position(|s| matches!(s, Statement::Let(x) if *x == at))
            };
            // Another contraction of the loop, which a delayed one can be issued behind, stands before it.
            let leads = |delayed: ValueId| {
                self.contractions.iter().any(|(v, c)| {
                    matches!(c.method, Method::Matrix(row) if row.is_apart())
                        && !is_delayed(v)
                        && place(*v).is_some_and(|at| Some(at) < place(delayed))
                })
            };
            let led: Vec<bool> = all.iter().map(|(_, d)| leads(d.contraction)).collect();
            let held = (all.iter()).filter(|(_, d)| d.kind == DelayKind::Issued);
            let held = held.count();
            for ((sum, delay), led) in all.iter().zip(led) {
                if delay.kind == DelayKind::Issued && (!led || held > 1) {
                    continue;
                }
                let tiles: Vec<usize> = self.contractions[&delay.contraction]
                    .operands
                    .iter()
                    .filter_map(|o| match o {
                        Operand::Tile(t) => Some(*t),
                        Operand::Registers(_) => None,
                    })
                    .collect();
                let alone = tiles.iter().all(|t| {
                    self.contractions.iter().all(|(v, c)| {
                        let reads = |o: &Operand| matches!(o, Operand::Tile(x) if x == t);
                        !c.operands.iter().any(reads) || *v == delay.contraction || is_delayed(v)
                    })
                });
                let ring = |t: &usize| {
                    let t = &self.tiles[*t];
                    t.is_loaded_in(number) || t.in_loop.is_none()
                };
                if !alone || !tiles.iter().all(ring) {
                    continue;
                }
                for t in tiles {
                    self.tiles[t].delayed = self.tiles[t].in_loop.is_some();
                }
                self.delayed.insert(*sum, delay.clone());
            }
            self.delay_halves(number, l);
        }
    }

    /// Lets products of halves run on while the next iteration makes the next halves, which then have two stages, where all contractions of the
    /// loop by groups of warps are such ones.
    fn delay_halves(&mut self, number: usize, l: &Loop) {
        let inside = |v: &ValueId| self.loop_of[v.index()] == Some(number);
        let grouped = |c: &Contraction| matches!(c.method, Method::Matrix(row) if row.is_grouped());
        let all = self
            .contractions
            .iter()
            .filter(|(v, c)| inside(v) && grouped(c));
        let added = |c: &Carry| {
            let (contraction, addend) = *self.fused.get(&c.next)?;
            let own = self.contractions.get(&contraction)?;
            let in_place = own.halves.is_some()
                && addend == c.phi
                && self.layouts[c.phi.index()].as_ref() == Some(&own.accumulator)
                && [c.phi, c.next].iter().all(|v| self.uses[v.index()] == 1)
                && inside(&contraction)
                && inside(&c.next);
            let delay = Delay {
                contraction,
                phi: c.phi,
                number,
                kind: DelayKind::Added,
                scaled: None,
            };
            in_place.then_some((c.next, delay))
        };
        let found: Vec<(ValueId, Delay)> = l.carries.iter().filter_map(added).collect();
        if all.count() != found.len() {
            return;
        }
        for (sum, delay) in found {
            for t in self.contractions[&delay.contraction]
                .halves
                .into_iter()
                .flatten()
            {
                self.tiles[t].delayed = true;
                self.tiles[t].stages = 2;
            }
            self.delayed.insert(sum, delay);
        }
    }

    /// Whether matrix instructions carry out a contraction.
    pub(crate) fn multiplies(&self) -> bool {
        let matrix = |c: &Contraction| matches!(c.method, Method::Matrix(_));
        self.contractions.values().any(matrix)
    }

    fn delayable(&self, number: usize, carry: &Carry) -> Option<(ValueId, Delay)> {
        let (contraction, addend) = *self.fused.get(&carry.next)?;
        let c = self.contractions.get(&contraction)?;
        let in_place = matches!(c.method, Method::Matrix(row) if row.is_apart())
            && self.layouts[carry.phi.index()].as_ref() == Some(&c.accumulator)
            && self.uses[carry.next.index()] == 1
            && self.loop_of[contraction.index()] == Some(number)
            && self.loop_of[carry.next.index()] == Some(number);
        let held = matches!(c.operands.first(), Some(Operand::Registers(_)));
        let scaled = self.scaled(addend, carry.phi);
        // What is held back is missing from the carry until it is issued: nothing else may read it.
        let alone = addend == carry.phi && self.uses[carry.phi.index()] == 1;
        (in_place && (!held || scaled.is_some() || alone)).then(|| {
            let delay = Delay {
                contraction,
                phi: carry.phi,
                number,
                kind: match held {
                    true => DelayKind::Issued,
                    false => DelayKind::Waited,
                },
                scaled,
            };
            (carry.next, delay)
        })
    }

    /// `addend = phi · factor` with a factor over fewer axes, and nothing else that reads phi or the addend.
    fn scaled(&self, addend: ValueId, phi: ValueId) -> Option<(ValueId, ValueId)> {
        let (carried, factor) = self.kernel.rescales(addend)?;
        let alone = self.uses[addend.index()] == 1 && self.uses[phi.index()] == 1;
        (carried == phi && alone).then_some((addend, factor))
    }
}
