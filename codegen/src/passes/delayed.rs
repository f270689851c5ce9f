//! Shifts what a loop accumulates by warpgroup instructions into its next iteration, so that the tensor cores work while threads compute.
//!
//! ```text
//! before                       after
//!                                Declare(rows)
//!   Loop                         Loop
//!     Issue(s)                     Issue(s)
//!                                  If(NotFirst) Issue(o, rows, previous)
//!     Map(p, s)                    Map(p, s)
//!     Map(scaled, o · c)           IsNotOne(flag, c)
//!                                  Vote(flag)
//!                                  If(flag) Map(o, o · c)
//!     Declare(rows)
//!     Pack(rows, p)                Pack(rows, p)
//!     Map(next, scaled)
//!     Issue(next, rows)
//!     Map(o, next)
//!                                If(NotEmpty) Issue(o, rows, previous)
//! ```
//!
//! There are three ways, by where the rows of a product are.
//!
//! * In shared memory: it is accumulated in place, and so runs on in the next iteration.
//! * In registers: it is issued behind the first other contraction of the next iteration, and behind the loop for the last one. A factor that corrects
//!   what was accumulated is mostly 1: where it varies over fewer axes, accumulators that it leaves as they are stay untouched. The four warps of a
//!   group vote on that, since they wait together for what accumulates there. The vote's barrier also keeps the assembler from moving that wait
//!   in front of the next rows, as it does with a wait that only a vote of single warps precedes.
//! * Split into halves in registers: the sum of an iteration's products is added in the next one, and the halves in shared memory have two stages. So the
//!   halves of the next tile are made meanwhile.
//!
//! It is legal where the loop only carries the sum, in registers as the instructions have it: nothing else reads what is accumulated in an
//! iteration, or what was, where it is not up to date. What the instructions read of shared memory is copied by the loop itself, or stays all
//! along, and no contraction reads it that is not shifted. One product of a loop is issued late, and halves are where all its products by groups of
//! warps are such ones. Other loops stay as they are.

use super::{Apply, Pass, pipeline};
use crate::machine::resources::touched;
use crate::machine::{
    Condition, Counter, Fragment, FragmentId, Function, Holds, Issue, LoopId, Machine, RegionId,
    Rows, Source, Stage, Statement, Sync,
};
use ir::{Form, KernelSchedule, MapOp, Step};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "delayed",
        parts: &[],
        required: false,
        help: "contractions that a loop accumulates may run on into its next iteration",
    },
    behind: &[],
    // With one stage nothing is copied while another iteration is read.
    apply: Apply::Statements(|machine, _, schedule, _| {
        Ok(match pipeline::of(schedule) {
            1 => machine,
            stages => shift(machine, stages.into()),
        })
    }),
};

/// Asynchronous contractions that a loop accumulates may still run while its next iteration begins, for one stage more of what they read.
pub fn step() -> Step {
    Step::new(&PASS.form, [])
}

/// Whether they may.
pub fn of(schedule: &KernelSchedule) -> bool {
    schedule.says(&PASS.form)
}

/// The machine program whose loops accumulate an iteration late, where their rings are to have so many stages.
fn shift(mut machine: Machine, stages: u64) -> Machine {
    let before = named(&mut machine.body);
    let memory = Memory::of(&machine.body);
    let mut body = std::mem::take(&mut machine.body);
    list(&mut body, &memory, &mut machine, stages);
    machine.body = body;
    drop_unnamed(&mut machine, &before);
    machine
}

/// Calls `visit` with every fragment that statements name.
fn each(body: &mut [Statement], visit: &mut impl FnMut(&mut FragmentId)) {
    for statement in body {
        statement.fragments_mut().into_iter().for_each(&mut *visit);
        for inside in statement.lists_mut() {
            each(inside, visit);
        }
    }
}

fn named(body: &mut [Statement]) -> BTreeSet<FragmentId> {
    let mut all = BTreeSet::new();
    each(body, &mut |id| {
        all.insert(*id);
    });
    all
}

/// Takes fragments out of the table that no statement names any more.
fn drop_unnamed(machine: &mut Machine, before: &BTreeSet<FragmentId>) {
    let now = named(&mut machine.body);
    let is_left = |id: &FragmentId| now.contains(id) || !before.contains(id);
    let ids = (0..machine.fragments.len() as u32).map(FragmentId);
    let left: Vec<FragmentId> = ids.filter(is_left).collect();
    machine.fragments = left
        .iter()
        .map(|id| machine.fragment(*id).clone())
        .collect();
    let numbers: BTreeMap<FragmentId, FragmentId> =
        left.into_iter().zip((0..).map(FragmentId)).collect();
    each(&mut machine.body, &mut |id| *id = numbers[id]);
}

fn list(body: &mut Vec<Statement>, memory: &Memory, machine: &mut Machine, stages: u64) {
    for mut statement in std::mem::take(body) {
        for inside in statement.lists_mut() {
            list(inside, memory, machine, stages);
        }
        let mut around = Around::default();
        if let Statement::Loop { number, body: own } = &mut statement
            && !holds_loop(own)
        {
            let all = Sum::all(own, machine);
            let products = own.iter().filter_map(product).count();
            let halves = |s: &Sum| matches!(s.kind, Kind::Halves { .. });
            let (halved, others): (Vec<Sum>, Vec<Sum>) = all.into_iter().partition(halves);
            let sums = match halved.len() == products {
                true => halved,
                false => legal(others, *number, own, memory),
            };
            let mut rest = Rest {
                number: *number,
                stages,
                machine,
                memory,
                body: std::mem::take(own).into_iter().map(|s| vec![s]).collect(),
                around,
            };
            sums.iter().for_each(|s| rest.shift(s));
            rest.stages(&sums);
            *own = rest.body.into_iter().flatten().collect();
            around = rest.around;
        }
        body.append(&mut around.before);
        body.push(statement);
        body.append(&mut around.behind);
    }
}

fn holds_loop(body: &[Statement]) -> bool {
    let is_loop = |s: &Statement| matches!(s, Statement::Loop { .. });
    body.iter()
        .any(|s| is_loop(s) || s.lists().into_iter().any(holds_loop))
}

/// What fills regions, and what reads them.
#[derive(Default)]
struct Memory {
    /// The innermost loops that each is filled in, if it is in one, and whether that is a copy.
    filled: BTreeMap<RegionId, BTreeSet<(Option<LoopId>, bool)>>,
    /// The accumulators of the instructions that read each; none for other statements.
    read: BTreeMap<RegionId, BTreeSet<Option<FragmentId>>>,
}

impl Memory {
    fn of(body: &[Statement]) -> Self {
        let mut memory = Self::default();
        memory.list(body, None);
        memory
    }

    fn list(&mut self, body: &[Statement], inside: Option<LoopId>) {
        for statement in body {
            let copies = matches!(statement, Statement::Copy(_));
            for region in statement.fills(&[]) {
                let filled = self.filled.entry(region).or_default();
                filled.insert((inside, copies));
            }
            let by = if let Statement::Issue(issue) = statement {
                Some(issue.into)
            } else {
                None
            };
            for (region, _) in statement.clone().stages_read_mut() {
                self.read.entry(region).or_default().insert(by);
            }
            let inside = if let Statement::Loop { number, .. } = statement {
                Some(*number)
            } else {
                inside
            };
            for list in statement.lists() {
                self.list(list, inside);
            }
        }
    }

    /// Whether copies of a loop fill a region, and nothing else does.
    fn is_copied_in(&self, region: RegionId, number: LoopId) -> bool {
        let filled = self.filled.get(&region);
        filled.is_some_and(|f| f.iter().eq(&[(Some(number), true)]))
    }

    /// Whether a region is filled outside of loops alone.
    fn stays(&self, region: RegionId) -> bool {
        let mut filled = self.filled.get(&region).into_iter().flatten();
        filled.all(|(inside, _)| inside.is_none())
    }
}

/// The instructions of a statement that is a product by groups of warps.
fn product(statement: &Statement) -> Option<&Issue> {
    let Statement::Scope(body) = statement else {
        return None;
    };
    body.iter().find_map(|s| {
        if let Statement::Issue(issue) = s {
            Some(issue.as_ref())
        } else {
            None
        }
    })
}

fn regions(issue: &Issue) -> Vec<RegionId> {
    let a = match &issue.a {
        Rows::SwizzleAtoms(a) => Some(a.region),
        Rows::Fragment(_) => None,
    };
    a.into_iter().chain([issue.b.region]).collect()
}

/// What a loop accumulates by instructions.
struct Sum {
    /// What the loop carries.
    carried: FragmentId,
    /// What an iteration makes of it.
    next: FragmentId,
    /// Where that begins as a copy, what of, where instructions add to it, and where it goes to what is carried.
    begins: usize,
    from: Source,
    product: usize,
    ends: usize,
    regions: Vec<RegionId>,
    kind: Kind,
}

/// Where the rows of a product are.
enum Kind {
    /// In shared memory.
    Runs,
    /// In registers.
    Issued {
        rows: FragmentId,
        /// Where what is carried is multiplied by a factor before, if it is.
        scaled: Option<(usize, Source)>,
    },
    /// In registers, in halves.
    Halves {
        /// What the products of one iteration are summed in, and where that is added.
        part: FragmentId,
        adds: usize,
    },
}

impl Sum {
    /// All of a loop's body that may be shifted, as far as registers are concerned.
    fn all(body: &[Statement], machine: &Machine) -> Vec<Self> {
        let of = |(ends, statement): (usize, &Statement)| {
            let (carried, Source::Fragment(next)) = copied(statement)? else {
                return None;
            };
            Self::of(body, machine, carried, next, ends)
        };
        body.iter().enumerate().filter_map(of).collect()
    }

    fn of(
        body: &[Statement],
        machine: &Machine,
        carried: FragmentId,
        next: FragmentId,
        ends: usize,
    ) -> Option<Self> {
        let same = machine.fragment(carried).holds == machine.fragment(next).holds;
        declared(body, next)?;
        if !same || declared(body, carried).is_some() {
            return None;
        }
        let begins = body
            .iter()
            .position(|s| copied(s).is_some_and(|c| c.0 == next))?;
        let (_, from) = copied(&body[begins])?;
        let adds = |s: &Statement| matches!(s, Statement::Map { to, function: Function::Op(MapOp::Add), args } if *to == next && args.contains(&Source::Fragment(next)));
        let adds = body.iter().position(adds);
        let into = match adds.map(|at| &body[at]) {
            Some(Statement::Map { args, .. }) => args.iter().find_map(|s| match s {
                Source::Fragment(id) if *id != next => Some(*id),
                Source::Fragment(_) | Source::Constant(_) | Source::Coordinate(_) => None,
            })?,
            Some(_) | None => next,
        };
        let is_own = |s: &Statement| product(s).is_some_and(|issue| issue.into == into);
        let place = body.iter().position(is_own)?;
        let issue = product(&body[place])?;
        // The copy at the end, and the statement that adds to it.
        if reads(body, next) != 2 || place < begins || ends < place {
            return None;
        }
        let unchanged = from == Source::Fragment(carried) && reads(body, carried) == 1;
        let kind = match (&issue.a, adds) {
            (Rows::Fragment(_), Some(adds)) if issue.row.has_halves() && unchanged => {
                Kind::Halves { part: into, adds }
            }
            (Rows::SwizzleAtoms(_), None) if issue.row.is_apart() => {
                // It is not up to date any more.
                let behind = reads(&body[begins + 1..], carried);
                (behind == 0).then_some(Kind::Runs)?
            }
            (Rows::Fragment(rows), None) if issue.row.is_apart() => {
                let scaled = scaled(body, machine, carried, from);
                (unchanged || scaled.is_some()).then_some(Kind::Issued {
                    rows: *rows,
                    scaled,
                })?
            }
            (Rows::Fragment(_) | Rows::SwizzleAtoms(_), _) => return None,
        };
        Some(Self {
            carried,
            next,
            begins,
            from,
            product: place,
            ends,
            regions: regions(issue),
            kind,
        })
    }
}

/// `to = from`.
fn copied(statement: &Statement) -> Option<(FragmentId, Source)> {
    let Statement::Map {
        to,
        function: Function::Copy,
        args,
    } = statement
    else {
        return None;
    };
    Some((*to, *args.first()?))
}

/// Where a fragment is declared in a list itself.
fn declared(body: &[Statement], id: FragmentId) -> Option<usize> {
    let is_own = |s: &Statement| matches!(s, Statement::Declare(x) if *x == id);
    body.iter().position(is_own)
}

/// How many statements read a fragment.
fn reads(body: &[Statement], id: FragmentId) -> usize {
    let of = |s: &Statement| {
        let inside: usize = s.lists().into_iter().map(|l| reads(l, id)).sum();
        inside + usize::from(touched(s).reads.contains(&id))
    };
    body.iter().map(of).sum()
}

/// Where `from` is what is carried times a factor over fewer axes, and that factor; neither of the two is read by anything else.
fn scaled(
    body: &[Statement],
    machine: &Machine,
    carried: FragmentId,
    from: Source,
) -> Option<(usize, Source)> {
    let Source::Fragment(product) = from else {
        return None;
    };
    let multiplies = |s: &Statement| matches!(s, Statement::Map { to, function: Function::Op(MapOp::Mul), .. } if *to == product);
    let place = body.iter().position(multiplies)?;
    let Statement::Map { args, .. } = &body[place] else {
        return None;
    };
    let factor = match args.as_slice() {
        [Source::Fragment(x), y] if *x == carried => *y,
        [y, Source::Fragment(x)] if *x == carried => *y,
        _ => return None,
    };
    let Source::Fragment(id) = factor else {
        return None;
    };
    let [all, own] = [carried, id].map(|f| machine.fragment(f).layout().axes());
    let fewer = own != all && own.is_subset(&all);
    let alone = reads(body, product) == 1 && reads(body, carried) == 1;
    declared(body, product)?;
    (fewer && alone).then_some((place, factor))
}

/// Those that may be shifted as far as what is around them is concerned.
fn legal(all: Vec<Sum>, number: LoopId, body: &[Statement], memory: &Memory) -> Vec<Sum> {
    let shifted: BTreeSet<FragmentId> = all.iter().map(|s| s.next).collect();
    let issued = |s: &&Sum| matches!(s.kind, Kind::Issued { .. });
    let several = all.iter().filter(issued).count() > 1;
    let leads = |s: &Statement| {
        product(s).is_some_and(|issue| issue.row.is_apart() && !shifted.contains(&issue.into))
    };
    let is_legal = |sum: &Sum| {
        let led = body[..sum.product].iter().any(leads);
        let own = |region: &RegionId| {
            let mut readers = memory.read.get(region).into_iter().flatten();
            let alone = readers.all(|by| by.is_some_and(|into| shifted.contains(&into)));
            alone && (memory.is_copied_in(*region, number) || memory.stays(*region))
        };
        (!issued(&sum) || led && !several) && sum.regions.iter().all(own)
    };
    all.into_iter().filter(is_legal).collect()
}

/// What stands in front of a loop, and behind it.
#[derive(Default)]
struct Around {
    before: Vec<Statement>,
    behind: Vec<Statement>,
}

/// A loop while it is changed: what each statement of its body becomes.
struct Rest<'a> {
    number: LoopId,
    stages: u64,
    machine: &'a mut Machine,
    memory: &'a Memory,
    body: Vec<Vec<Statement>>,
    around: Around,
}

impl Rest<'_> {
    fn shift(&mut self, sum: &Sum) {
        self.drop_declared(sum.next);
        self.body[sum.ends].clear();
        match sum.kind {
            Kind::Runs => {
                self.body[sum.begins].clear();
                if sum.from != Source::Fragment(sum.carried) {
                    let begins = map(sum.carried, Function::Copy, vec![sum.from]);
                    self.body[sum.begins].push(begins);
                }
                self.issues(sum.product, &mut |issue| issue.into = sum.carried);
            }
            Kind::Issued { rows, scaled } => self.late(sum, rows, scaled),
            Kind::Halves { part, adds } => self.halves(sum, part, adds),
        }
    }

    /// Takes a declaration out of the body.
    fn drop_declared(&mut self, id: FragmentId) {
        for list in &mut self.body {
            list.retain(|s| !matches!(s, Statement::Declare(x) if *x == id));
        }
    }

    /// The same, of what goes on in the next iteration.
    fn declare_in_front(&mut self, id: FragmentId, sum: &Sum) {
        self.drop_declared(id);
        self.around.before.push(Statement::Declare(id));
        let [of, carried] = [sum.next, sum.carried].map(|f| self.machine.fragment(f).name.clone());
        let own = &mut self.machine.fragments[id.0 as usize].name;
        if let Some(rest) = own.strip_prefix(&of) {
            *own = format!("{carried}{rest}");
        }
    }

    /// Changes the instructions of a product.
    fn issues(&mut self, product: usize, change: &mut impl FnMut(&mut Issue)) {
        let inside = self.body[product].iter_mut().flat_map(Statement::lists_mut);
        for statement in inside.flatten() {
            if let Statement::Issue(issue) = statement {
                change(issue);
            }
        }
    }

    fn late(&mut self, sum: &Sum, rows: FragmentId, scaled: Option<(usize, Source)>) {
        self.body[sum.begins].clear();
        if let (Some((place, factor)), Source::Fragment(product)) = (scaled, sum.from) {
            self.drop_declared(product);
            self.body[place].clear();
            self.body[sum.begins] = self.rescale(sum.carried, factor);
        }
        let Some(Statement::Scope(own)) = self.body[sum.product].first_mut() else {
            return;
        };
        own.retain(|s| !matches!(s, Statement::Declare(id) if *id == rows));
        let issued = own.extract_if(.., |s| matches!(s, Statement::Issue(_)));
        let mut issued: Vec<Statement> = issued.collect();
        let number = self.number;
        let mut then = Vec::new();
        // What stands outside the loop has one stage.
        let previous = self.memory.is_copied_in(sum.regions[0], number);
        if previous {
            let stages = self.stages + 1;
            then.push(Statement::PreviousStage { number, stages });
        }
        for statement in &mut issued {
            if let Statement::Issue(issue) = statement {
                issue.into = sum.carried;
                if previous {
                    issue.b.stage = Stage::Previous(number);
                }
            }
        }
        then.append(&mut issued);
        let branch = |condition: Condition| Statement::If {
            condition,
            then: then.clone(),
            otherwise: Vec::new(),
        };
        self.around.behind.push(branch(Condition::NotEmpty(number)));
        let late = branch(Condition::NotFirst(number));
        let leads = |s: &Statement| product(s).is_some_and(|issue| issue.row.is_apart());
        let leader = self.body[..sum.product]
            .iter_mut()
            .flatten()
            .find(|s| leads(s));
        if let Some(Statement::Scope(leader)) = leader {
            let is_issue = |s: &Statement| matches!(s, Statement::Issue(_));
            let behind = leader.iter().rposition(is_issue).map_or(0, |i| i + 1);
            leader.insert(behind, late);
        }
        self.declare_in_front(rows, sum);
    }

    /// Multiplies accumulators by a factor that is mostly 1.
    fn rescale(&mut self, accumulators: FragmentId, factor: Source) -> Vec<Statement> {
        let held = |source: Source| match source {
            Source::Fragment(id) => self.machine.fragment(id).layout().axes(),
            Source::Constant(_) | Source::Coordinate(_) => Default::default(),
        };
        let own = self.machine.fragment(accumulators);
        let layout = own.layout().slice(&held(factor)).distinct();
        let name = format!("{}_scaled", own.name);
        let flag = FragmentId(self.machine.fragments.len() as u32);
        self.machine.fragments.push(Fragment {
            name,
            holds: Holds::Flag,
        });
        let args = vec![Source::Fragment(accumulators), factor];
        vec![
            Statement::Declare(flag),
            Statement::IsNotOne {
                flag,
                of: factor,
                layout,
            },
            Statement::Sync(Sync::Vote(flag)),
            Statement::If {
                condition: Condition::Flag(flag),
                then: vec![map(accumulators, Function::Op(MapOp::Mul), args)],
                otherwise: Vec::new(),
            },
        ]
    }

    fn halves(&mut self, sum: &Sum, part: FragmentId, adds: usize) {
        self.body[sum.begins].clear();
        self.body[adds].clear();
        let mut rows = BTreeSet::new();
        self.issues(sum.product, &mut |issue| {
            if let Rows::Fragment(id) = issue.a {
                rows.insert(id);
            }
        });
        for id in rows.iter().copied().chain([part]) {
            self.declare_in_front(id, sum);
        }
        let zero = map(part, Function::Copy, vec![Source::Constant(0.0)]);
        self.around.before.push(zero);
        let both = [sum.carried, part].map(Source::Fragment).to_vec();
        let add = map(sum.carried, Function::Op(MapOp::Add), both);
        // In front of what overwrites the rows that the products read.
        let overwrites = |s: &Statement| touched(s).writes.iter().any(|id| rows.contains(id));
        let first = self.body.iter().position(|l| l.iter().any(overwrites));
        self.body[first.unwrap_or(sum.product)].insert(0, add.clone());
        self.around.behind.push(add);
    }

    /// Gives the halves of the loop's columns two stages.
    fn stages(&mut self, sums: &[Sum]) {
        const STAGES: u64 = 2;
        let halves = sums
            .iter()
            .filter(|s| matches!(s.kind, Kind::Halves { .. }));
        let halves: Vec<usize> = halves.map(|s| s.product).collect();
        if halves.is_empty() {
            return;
        }
        let counter = Counter::copied(self.number, true);
        let mut regions = BTreeSet::new();
        for product in halves {
            self.issues(product, &mut |issue| {
                issue.b.stage = Stage::Current(counter);
                regions.insert(issue.b.region);
            });
        }
        for statement in self.body.iter_mut().flatten() {
            if let Statement::Split(split) = statement
                && split.to.iter().any(|r| regions.contains(r))
            {
                split.into = Stage::Current(counter);
            }
        }
        for region in regions {
            self.machine.regions[region.0 as usize].stages = STAGES;
        }
        self.around.before.push(Statement::OpenStages(counter));
        let stages = STAGES;
        self.body
            .push(vec![Statement::AdvanceStage { counter, stages }]);
    }
}

fn map(to: FragmentId, function: Function, args: Vec<Source>) -> Statement {
    Statement::Map { to, function, args }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::tests::{machine, outline};
    use expect_test::expect;

    /// Behind a product `f0` of an iteration: what `f2` is accumulated into, with rows in registers.
    const LATE: &str = "Declare(\"f3\"), Map(to: \"f3\", function: Copy, args: [Fragment(\"f2\")]), \
                        Scope([Declare(\"f1\"), PACK, NEXT]), Map(to: \"f2\", function: Copy, args: [Fragment(\"f3\")])";

    /// With two more fragments like `f2`, `f3` and `f5`, and `f4` over fewer axes.
    fn sample(body: &str) -> Machine {
        let mut sample = machine(body);
        let held = sample.fragments[2].layout();
        let few = held.slice(&[ir::AxisId(0)].into_iter().collect());
        let more = [("next", &held), ("factor", &few), ("product", &held)];
        sample.fragments.extend(more.map(|(name, layout)| Fragment {
            name: name.into(),
            holds: Holds::Floats(layout.clone()),
        }));
        sample
    }

    fn after(body: &str) -> String {
        outline(&shift(sample(body), 2).body)
    }

    #[test]
    fn what_has_rows_in_registers_is_issued_an_iteration_late() {
        let body = format!(
            "RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, Declare(\"f0\"), Scope([LEADS]), {LATE}]), STORE"
        );
        expect![[r#"
            range of 0
            Declare(FragmentId(1))
            loop 0
              tile Now(0)
              copy to s0 At(0) by 4 warps
              copy to s1 At(0) by 4 warps
              Sync(CopyCommit)
              Declare(FragmentId(0))
              scope
                issue of s0 At(0) and s0 At(0)
                if NotFirst(0)
                  PreviousStage { number: 0, stages: 3 }
                  issue of s1 Previous(0)
              scope
                Pack { to: FragmentId(1), from: FragmentId(0), dtype: Bf16, stride: 32 }
            if NotEmpty(0)
              PreviousStage { number: 0, stages: 3 }
              issue of s1 Previous(0)
            store to 2
        "#]]
        .assert_eq(&after(&body));
    }

    #[test]
    fn accumulators_are_left_alone_where_the_factor_is_one() {
        let body = format!(
            "RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, Declare(\"f0\"), Scope([LEADS]), \
             Declare(\"f5\"), Map(to: \"f5\", function: Op(Mul), args: [Fragment(\"f2\"), Fragment(\"f4\")]), {}])",
            LATE.replacen("Fragment(\"f2\")", "Fragment(\"f5\")", 1)
        );
        expect![[r#"
            range of 0
            Declare(FragmentId(1))
            loop 0
              tile Now(0)
              copy to s0 At(0) by 4 warps
              copy to s1 At(0) by 4 warps
              Sync(CopyCommit)
              Declare(FragmentId(0))
              scope
                issue of s0 At(0) and s0 At(0)
                if NotFirst(0)
                  PreviousStage { number: 0, stages: 3 }
                  issue of s1 Previous(0)
              Declare(FragmentId(4))
              IsNotOne { flag: FragmentId(4), of: Fragment(FragmentId(3)), layout: Layout { registers: [Factor { axis: Some(AxisId(0)), size: 16, stride: 4 }], lanes: [Factor { axis: None, size: 32, stride: 0 }], warps: [Factor { axis: Some(AxisId(0)), size: 4, stride: 1 }], blocks: [] } }
              Sync(Vote(FragmentId(4)))
              if Flag(FragmentId(4))
                f2 from [Fragment(FragmentId(2)), Fragment(FragmentId(3))]
              scope
                Pack { to: FragmentId(1), from: FragmentId(0), dtype: Bf16, stride: 32 }
            if NotEmpty(0)
              PreviousStage { number: 0, stages: 3 }
              issue of s1 Previous(0)
        "#]].assert_eq(&after(&body));
    }

    #[test]
    fn what_has_rows_in_shared_memory_runs_on() {
        let body = "RANGE, Loop(number: 0, body: [HERE, COPY0, LANDS, Declare(\"f0\"), \
                    Map(to: \"f0\", function: Copy, args: [Fragment(\"f2\")]), Scope([LEADS]), \
                    Map(to: \"f2\", function: Copy, args: [Fragment(\"f0\")])]), STORE";
        let text = sample(body)
            .to_string()
            .replace("fresh: true", "fresh: false");
        let before: Machine = text.parse().expect("a machine program");
        let after = shift(before, 2);
        expect![[r#"
            range of 0
            loop 0
              tile Now(0)
              copy to s0 At(0) by 4 warps
              Sync(CopyCommit)
              scope
                issue of s0 At(0) and s0 At(0)
            store to 2
        "#]]
        .assert_eq(&outline(&after.body));
        assert!(after.to_string().contains("into: \"f2\""));
    }

    #[test]
    fn products_of_halves_are_added_in_the_next_iteration() {
        let issue = |fresh: bool, rows: u32, halves: u32| {
            format!(
                "Issue(row: \"wgmma.m64k8.3xtf32 f32\", into: \"f5\", fresh: {fresh}, groups: 1, counts: (1, 1, 4), columns: 64, \
                 a: Fragment(\"f{rows}\"), b: (region: \"s{halves}\", stage: At(0), swizzle: (span: 32, lines: 64, along: 1, depth: true), \
                 share: None, further: 0))"
            )
        };
        let products = [(true, 1, 0), (false, 0, 1), (false, 0, 0)].map(|(f, a, b)| issue(f, a, b));
        let body = format!(
            "RANGE, Loop(number: 0, body: [HERE, Declare(\"f3\"), Map(to: \"f3\", function: Copy, args: [Fragment(\"f2\")]), \
             Declare(\"f0\"), Declare(\"f1\"), Declare(\"f5\"), \
             Split(from: \"s1\", stage: At(0), kept: (count: 64, stride: 1), depth: [(count: 64, stride: 64)], to: (\"s0\", \"s1\"), into: At(0)), \
             Map(to: \"f0\", function: Tf32, args: [Fragment(\"f4\")]), Map(to: \"f1\", function: Rest, args: [Fragment(\"f4\")]), \
             Scope([{}]), Map(to: \"f3\", function: Op(Add), args: [Fragment(\"f3\"), Fragment(\"f5\")]), \
             Map(to: \"f2\", function: Copy, args: [Fragment(\"f3\")])]), STORE",
            products.join(", ")
        );
        let after = shift(sample(&body), 2);
        expect![[r#"
            range of 0
            Declare(FragmentId(0))
            Declare(FragmentId(1))
            Declare(FragmentId(4))
            f4 from [Constant(0.0)]
            OpenStages(Counter { number: 0, delayed: true, split: None })
            loop 0
              tile Now(0)
              Split(Split { from: RegionId(1), stage: At(0), kept: Side { count: 64, stride: 1 }, depth: [Side { count: 64, stride: 64 }], to: [RegionId(0), RegionId(1)], into: Current(Counter { number: 0, delayed: true, split: None }) })
              f2 from [Fragment(FragmentId(2)), Fragment(FragmentId(4))]
              f0 from [Fragment(FragmentId(3))]
              f1 from [Fragment(FragmentId(3))]
              scope
                issue of s0 Current(Counter { number: 0, delayed: true, split: None })
                issue of s1 Current(Counter { number: 0, delayed: true, split: None })
                issue of s0 Current(Counter { number: 0, delayed: true, split: None })
              AdvanceStage { counter: Counter { number: 0, delayed: true, split: None }, stages: 2 }
            f2 from [Fragment(FragmentId(2)), Fragment(FragmentId(4))]
            store to 2
        "#]].assert_eq(&outline(&after.body));
        let stages = after.regions.iter().map(|r| r.stages);
        assert_eq!(stages.collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn other_loops_stay() {
        let stay = |body: &str| {
            let before = sample(body);
            assert_eq!(shift(before.clone(), 2), before, "{body}");
        };
        // No product to issue it behind.
        stay(&format!(
            "RANGE, Loop(number: 0, body: [HERE, COPY1, LANDS, {LATE}])"
        ));
        let led = |last: &str| {
            format!(
                "RANGE, Loop(number: 0, body: [HERE, COPY0, COPY1, LANDS, Declare(\"f0\"), Scope([LEADS]), {LATE}{last}])"
            )
        };
        // What was accumulated is read.
        stay(&led(
            ", Map(to: \"f4\", function: Copy, args: [Fragment(\"f2\")])",
        ));
        stay(&led(
            ", Map(to: \"f4\", function: Copy, args: [Fragment(\"f3\")])",
        ));
        // What it reads is written by threads.
        stay(&led(", PUBLISH1"));
        // Something else reads the same.
        stay(&led(", Scope([ISSUE1])"));
        // The loop holds another one.
        stay(&led(", Loop(number: 1, body: [])"));
    }
}
