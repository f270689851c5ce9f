//! What to time next: an anytime search over tile programs and the schedules of their kernels.
//!
//! A tile program takes about as long as its kernels one after another, and tile programs share kernels: so kernels are timed, each under one
//! schedule after another, and a time counts for every tile program that has the kernel. The clock of machine programs says what a schedule
//! should take. What was timed says by how much the clock is wrong: about a kernel most, about kernels of its group less, about all others least.
//! What could become the fastest comes next, if the clock is as wrong about it as is usual, in its favour.
//!
//! It holds numbers alone: which kernel a number is, and what its schedules are, knows who asks.

use std::collections::BTreeMap;

pub mod learned;

/// A kernel that tile programs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId(usize);

/// A tile program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(usize);

impl KernelId {
    /// Kernels are numbered as they were added.
    pub fn index(self) -> usize {
        self.0
    }
}

impl ProgramId {
    /// The one that was added so many others after.
    pub fn of(index: usize) -> Self {
        Self(index)
    }

    /// Tile programs are numbered as they were added.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Schedules of a kernel that are refused before it is given up, if none was good.
const ATTEMPTS: u32 = 4;
/// How wrong the clock is before anything was timed, as the standard deviation of the logarithm of measured over predicted, and how many trials
/// this is worth.
const SPREAD: f64 = 0.2;
const SPREAD_TRIALS: f64 = 4.0;
/// The same of what a group as a whole differs by from other groups.
const GROUP_SPREAD: f64 = 0.3;
/// How many trials of a group what is known of other groups is worth, of a kernel what is known of its group, and of a class what is known of others.
const GROUP_TRIALS: f64 = 2.0;
const KERNEL_TRIALS: f64 = 1.0;
const CLASS_TRIALS: f64 = 0.3;
/// What a schedule counts as slower by for each other one of its kernel that is under way, and for each that was refused.
const UNDER_WAY: f64 = 1.02;
const REFUSED: f64 = 1.05;

/// Logarithms of measured over predicted.
#[derive(Clone, Copy, Debug, Default)]
struct Ratios {
    sum: f64,
    count: f64,
}

impl Ratios {
    fn add(&mut self, ratio: f64) {
        self.sum += ratio;
        self.count += 1.0;
    }

    /// The mean, where so many trials more had the mean `prior`.
    fn mean(&self, prior: f64, trials: f64) -> f64 {
        (self.sum + trials * prior) / (self.count + trials)
    }
}

/// The average of the means of those of which something is known, beside one that is nothing.
fn average(all: &[Ratios]) -> f64 {
    let known = all.iter().filter(|r| r.count > 0.0);
    let (sum, count) = known.fold((0.0, 1.0), |(sum, count), r| {
        (sum + r.mean(0.0, 0.0), count + 1.0)
    });
    sum / count
}

#[derive(Clone, Debug)]
struct Kernel {
    group: usize,
    /// Microseconds of its best schedule, by the clock.
    predicted: f64,
    /// The same of the one that comes next; none where there is no other.
    next: Option<f64>,
    under_way: u32,
    /// Its schedules are being put in order.
    is_waiting: bool,
    refused: u32,
    ratios: Ratios,
    /// Microseconds of the fastest that was timed.
    best: Option<f64>,
}

#[derive(Clone, Debug)]
struct TileProgram {
    /// In the order in which they are launched: one may stand in several places.
    kernels: Vec<KernelId>,
    /// Each once, with how many places it has.
    places: BTreeMap<KernelId, f64>,
    class: usize,
    refused: bool,
}

/// What is known of kernels and of the tile programs that have them.
#[derive(Clone, Debug, Default)]
pub struct Tuner {
    kernels: Vec<Kernel>,
    programs: Vec<TileProgram>,
    groups: Vec<Ratios>,
    /// Of each class of tile programs, measured over what their kernels took alone.
    classes: Vec<Ratios>,
    /// The averages of both.
    all_groups: f64,
    all_classes: f64,
    /// Squares of what ratios differed from what was expected of them, and how many there are: of groups of which something was known.
    squares: f64,
    compared: f64,
}

impl Tuner {
    /// Nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kernel that takes so many microseconds under its best schedule, by the clock. Of kernels of a `group` the clock is wrong by about the same.
    pub fn kernel(&mut self, group: usize, predicted: f64) -> KernelId {
        self.groups
            .resize(self.groups.len().max(group + 1), Ratios::default());
        self.kernels.push(Kernel {
            group,
            predicted,
            next: Some(predicted),
            under_way: 0,
            is_waiting: false,
            refused: 0,
            ratios: Ratios::default(),
            best: None,
        });
        KernelId(self.kernels.len() - 1)
    }

    /// Adds a tile program. What those of a `class` take over their kernels alone is about the same: how launches overlap, and what is left in L2.
    pub fn program(&mut self, class: usize, kernels: &[KernelId]) -> ProgramId {
        self.classes
            .resize(self.classes.len().max(class + 1), Ratios::default());
        let mut places: BTreeMap<KernelId, f64> = BTreeMap::new();
        for kernel in kernels {
            *places.entry(*kernel).or_default() += 1.0;
        }
        self.programs.push(TileProgram {
            kernels: kernels.to_vec(),
            places,
            class,
            refused: false,
        });
        ProgramId(self.programs.len() - 1)
    }

    /// The kernel to try under its next schedule; none where no kernel of a tile program has another one.
    pub fn next(&self) -> Option<KernelId> {
        self.best_move().map(|(_, kernel)| kernel)
    }

    /// What the tile program that [`Tuner::next`] would try something of could come to, over what the fastest takes by what is known: below one, if it may
    /// become the fastest. None where nothing is left to try.
    pub fn promise(&self) -> Option<f64> {
        let (hope, _) = self.best_move()?;
        let known = self.programs.iter().filter(|p| !p.refused);
        let known = known.map(|p| self.known(p)).fold(f64::INFINITY, f64::min);
        Some(hope / known)
    }

    /// The schedules of a kernel are being put in order: until [`Tuner::offer`] none of them is proposed.
    pub fn wait(&mut self, kernel: KernelId) {
        self.kernels[kernel.0].is_waiting = true;
    }

    /// What the next schedule of a kernel takes by the clock, in microseconds, if there is one: its schedules were put in order.
    pub fn offer(&mut self, kernel: KernelId, next: Option<f64>) {
        let kernel = &mut self.kernels[kernel.0];
        kernel.predicted = next.unwrap_or(f64::INFINITY);
        kernel.next = next;
        kernel.is_waiting = false;
    }

    /// A schedule of a kernel is under way, and `next` is what the one behind it takes by the clock, if there is one.
    pub fn began(&mut self, kernel: KernelId, next: Option<f64>) {
        let kernel = &mut self.kernels[kernel.0];
        kernel.under_way += 1;
        kernel.next = next;
    }

    /// What is under way took so long, where the clock said `predicted`, both in microseconds.
    pub fn timed(&mut self, id: KernelId, predicted: f64, us: f64) {
        let mean = self.mean(&self.kernels[id.0]);
        let kernel = &mut self.kernels[id.0];
        kernel.under_way = kernel.under_way.saturating_sub(1);
        kernel.best = Some(kernel.best.map_or(us, |best| best.min(us)));
        let ratio = (us / predicted).ln();
        if ratio.is_finite() {
            if self.groups[kernel.group].count > 0.0 {
                self.squares += (ratio - mean).powi(2);
                self.compared += 1.0;
            }
            kernel.ratios.add(ratio);
            self.groups[kernel.group].add(ratio);
            self.all_groups = average(&self.groups);
        }
    }

    /// What is under way was refused, and `next` is what comes next now, as [`Tuner::began`] has it. Gives whether the kernel is given up.
    pub fn refused(&mut self, kernel: KernelId, next: Option<f64>) -> bool {
        let kernel = &mut self.kernels[kernel.0];
        kernel.next = next;
        kernel.under_way = kernel.under_way.saturating_sub(1);
        kernel.refused += 1;
        kernel.is_lost()
    }

    /// A tile program took so many microseconds, under the fastest schedules of its kernels.
    pub fn whole(&mut self, program: ProgramId, us: f64) {
        let kernels = self.programs[program.0].kernels.iter();
        let alone: f64 = kernels.map(|k| self.us(*k)).sum();
        let ratio = (us / alone).ln();
        if ratio.is_finite() {
            self.classes[self.programs[program.0].class].add(ratio);
            self.all_classes = average(&self.classes);
        }
    }

    /// A tile program is of no use, whatever its kernels take.
    pub fn refuse(&mut self, program: ProgramId) {
        self.programs[program.0].refused = true;
    }

    /// Whether a tile program is of no use.
    pub fn is_refused(&self, program: ProgramId) -> bool {
        self.programs[program.0].refused
    }

    /// Microseconds of a kernel, as far as it is known: measured, if it was.
    pub fn us(&self, kernel: KernelId) -> f64 {
        let kernel = &self.kernels[kernel.0];
        match kernel.best {
            Some(best) => best,
            None if kernel.is_lost() => f64::INFINITY,
            None => kernel.predicted * self.mean(kernel).exp(),
        }
    }

    /// Microseconds of the fastest schedule of a kernel that was timed.
    pub fn measured(&self, kernel: KernelId) -> Option<f64> {
        self.kernels[kernel.0].best
    }

    /// The kernels of a tile program.
    pub fn kernels(&self, program: ProgramId) -> &[KernelId] {
        &self.programs[program.0].kernels
    }

    /// The same, each once, with how many places it has.
    pub fn places(&self, program: ProgramId) -> &BTreeMap<KernelId, f64> {
        &self.programs[program.0].places
    }

    /// Its class.
    pub fn class(&self, program: ProgramId) -> usize {
        self.programs[program.0].class
    }

    /// Tile programs, with their microseconds by what is known, the fastest first; those alone of which every kernel was timed, if they are `timed`.
    pub fn fastest(&self, timed: bool) -> Vec<(ProgramId, f64)> {
        let programs = self.programs.iter().enumerate();
        let is_timed = |p: &TileProgram| p.kernels.iter().all(|k| self.measured(*k).is_some());
        let usable = programs.filter(|(_, p)| !p.refused && (!timed || is_timed(p)));
        let mut all: Vec<(ProgramId, f64)> = usable
            .map(|(n, p)| (ProgramId(n), self.known(p)))
            .filter(|(_, us)| us.is_finite())
            .collect();
        all.sort_by(|x, y| x.1.total_cmp(&y.1).then(x.0.cmp(&y.0)));
        all
    }

    /// The mean logarithm of measured over predicted that is expected of a kernel.
    fn mean(&self, kernel: &Kernel) -> f64 {
        let group = self.groups[kernel.group].mean(self.all_groups, GROUP_TRIALS);
        kernel.ratios.mean(group, KERNEL_TRIALS)
    }

    /// How far single ratios are from what is expected.
    fn spread(&self) -> f64 {
        let prior = SPREAD_TRIALS * SPREAD * SPREAD;
        ((self.squares + prior) / (self.compared + SPREAD_TRIALS)).sqrt()
    }

    /// What the next schedule of a kernel takes if the clock is as wrong as is usual, in its favour; infinite where there is none.
    fn hope(&self, kernel: &Kernel, spread: f64) -> f64 {
        let next = kernel
            .next
            .filter(|_| !kernel.is_lost() && !kernel.is_waiting);
        let own = spread.powi(2) / (1.0 + kernel.ratios.count);
        let group = GROUP_SPREAD.powi(2) / (1.0 + self.groups[kernel.group].count);
        let wrong = self.mean(kernel) - (own + group).sqrt();
        let behind = UNDER_WAY.powi(kernel.under_way as i32) * REFUSED.powi(kernel.refused as i32);
        next.map_or(f64::INFINITY, |next| next * wrong.exp() * behind)
    }

    fn known(&self, program: &TileProgram) -> f64 {
        let alone: f64 = program.kernels.iter().map(|k| self.us(*k)).sum();
        alone * self.together(program)
    }

    /// What is expected of a tile program over what its kernels take alone.
    fn together(&self, program: &TileProgram) -> f64 {
        let class = self.classes[program.class];
        class.mean(self.all_classes, CLASS_TRIALS).exp()
    }

    /// What the most promising tile program could come to, and the kernel of it by which it would gain most.
    fn best_move(&self) -> Option<(f64, KernelId)> {
        // Tile programs share kernels.
        let spread = self.spread();
        let figures = self.kernels.iter().enumerate();
        let figures: Vec<(f64, f64)> = figures
            .map(|(k, kernel)| (self.us(KernelId(k)), self.hope(kernel, spread)))
            .collect();
        let of = |k: &KernelId| figures[k.0];
        let mut best: Option<(f64, KernelId)> = None;
        for program in self.programs.iter().filter(|p| !p.refused) {
            let gain = |(k, places): (&KernelId, &f64)| places * (of(k).0 - of(k).1);
            let untried = program.places.iter().filter(|(k, _)| of(k).1.is_finite());
            let Some((kernel, places)) = untried.max_by(|x, y| gain(*x).total_cmp(&gain(*y)))
            else {
                continue;
            };
            let least = |(k, places): (&KernelId, &f64)| places * of(k).0.min(of(k).1);
            let all: f64 = program.places.iter().map(least).sum();
            // What would not be faster is a loss.
            let hope = (all + (-gain((kernel, places))).max(0.0)) * self.together(program);
            if hope.is_finite() && best.is_none_or(|(least, _)| hope < least) {
                best = Some((hope, *kernel));
            }
        }
        best
    }
}

impl Kernel {
    /// Whether it cannot be had.
    fn is_lost(&self) -> bool {
        self.best.is_none()
            && (self.refused >= ATTEMPTS || self.next.is_none() && self.under_way == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::BTreeSet;

    /// Kernels with schedules of their own: what the clock says of each, in order, and what each takes.
    struct World {
        tuner: Tuner,
        kernels: Vec<Vec<(f64, f64)>>,
        next: Vec<usize>,
    }

    impl World {
        fn new(kernels: Vec<(usize, Vec<(f64, f64)>)>) -> Self {
            let mut tuner = Tuner::new();
            for (group, schedules) in &kernels {
                tuner.kernel(*group, schedules[0].0);
            }
            Self {
                tuner,
                next: vec![0; kernels.len()],
                kernels: kernels.into_iter().map(|k| k.1).collect(),
            }
        }

        /// Tries what comes next; gives what it was and what it took.
        fn step(&mut self) -> Option<(usize, usize, f64)> {
            let id = self.tuner.next()?;
            let k = id.index();
            let at = self.next[k];
            self.next[k] += 1;
            let (predicted, us) = self.kernels[k][at];
            let next = self.kernels[k].get(at + 1).map(|s| s.0);
            self.tuner.began(id, next);
            match us.is_finite() {
                true => self.tuner.timed(id, predicted, us),
                false => drop(self.tuner.refused(id, next)),
            }
            Some((k, at, us))
        }
    }

    /// Oracle: what the schedules take. A group about which the clock is wrong is left after a few trials, and nothing is tried twice.
    #[test]
    fn a_group_that_the_clock_is_wrong_about_is_left() {
        let schedules = |first: f64, factor: f64| -> Vec<(f64, f64)> {
            (0..20)
                .map(|n| first * (1.0 + 0.01 * f64::from(n)))
                .map(|p| (p, p * factor))
                .collect()
        };
        let kernels = (0..20).map(|n| match n < 10 {
            true => (0, schedules(10.0 + 0.1 * f64::from(n), 2.0)),
            false => (1, schedules(12.0 + 0.1 * f64::from(n), 1.0)),
        });
        let mut world = World::new(kernels.collect());
        for k in 0..20 {
            world.tuner.program(0, &[KernelId(k)]);
        }
        let mut seen = BTreeSet::new();
        let mut wrong = 0;
        for _ in 0..40 {
            let (k, at, _) = world.step().expect("there is more");
            assert!(seen.insert((k, at)), "{k} {at} again");
            wrong += usize::from(k < 10);
        }
        assert!((1..=8).contains(&wrong), "{wrong} of the wrong group");
        let fastest = world.tuner.fastest(true)[0];
        assert_eq!(fastest.0.index(), 10);
    }

    /// Oracle: the least of all. With a clock that is wrong by a fifth either way, the fastest of 2,000 is nearly found in a tenth of the trials.
    #[test]
    fn what_is_fast_is_found_early() {
        let mut draw = ChaCha8Rng::seed_from_u64(7);
        let mut kernels = Vec::new();
        for k in 0..40 {
            let own = 1.0 + 0.4 * draw.random::<f64>();
            let schedules = (0..50).map(|n| {
                let predicted = 10.0 + 0.05 * f64::from(k) + 0.1 * f64::from(n);
                (
                    predicted,
                    predicted * own * (0.9 + 0.2 * draw.random::<f64>()),
                )
            });
            kernels.push((k as usize / 10, schedules.collect::<Vec<_>>()));
        }
        let all = kernels.iter().flat_map(|k| &k.1).map(|s| s.1);
        let least = all.fold(f64::INFINITY, f64::min);
        let mut world = World::new(kernels);
        for k in 0..40 {
            world.tuner.program(0, &[KernelId(k)]);
        }
        let mut found = f64::INFINITY;
        for _ in 0..200 {
            found = world.step().map_or(found, |(_, _, us)| found.min(us));
        }
        assert!(found <= 1.02 * least, "{found}, where {least} is there");
    }

    /// Kernels that programs share are timed once; of two kernels that one comes first by which more can be gained.
    #[test]
    fn programs_share_kernels() {
        let one = |us: f64| vec![(us, us)];
        let mut world = World::new(vec![(0, one(5.0)), (1, one(1.0)), (2, one(2.0))]);
        let both = world.tuner.program(0, &[KernelId(0), KernelId(1)]);
        world.tuner.program(1, &[KernelId(0), KernelId(2)]);
        let order: Vec<usize> = std::iter::from_fn(|| world.step().map(|s| s.0)).collect();
        assert_eq!(order, [0, 1, 2]);
        assert_eq!(world.tuner.fastest(true)[0], (both, 6.0));
        assert!(world.tuner.promise().is_none());
        // What runs worse as a whole than its kernels alone is behind, and so are others of its class.
        world.tuner.whole(both, 9.0);
        let order: Vec<usize> = world
            .tuner
            .fastest(true)
            .iter()
            .map(|p| p.0.index())
            .collect();
        assert_eq!(order, [1, 0]);
    }

    /// A kernel that stands in several places gains in all of them.
    #[test]
    fn a_kernel_counts_in_every_place() {
        let mut tuner = Tuner::new();
        let [often, once] = [2.0, 3.0].map(|us| tuner.kernel(0, us));
        let program = tuner.program(0, &[often, once, often]);
        for kernel in [often, once] {
            let us = tuner.us(kernel);
            tuner.began(kernel, Some(us));
            tuner.timed(kernel, us, us);
        }
        assert_eq!(tuner.fastest(true), [(program, 7.0)]);
        // Half a microsecond each by the clock.
        for (kernel, next) in [(often, 1.5), (once, 2.5)] {
            tuner.offer(kernel, Some(next));
        }
        assert_eq!(tuner.next(), Some(often));
        tuner.offer(often, None);
        assert_eq!(tuner.next(), Some(once));
    }

    /// What is refused again and again is given up, with the programs that have it.
    #[test]
    fn what_cannot_be_had_is_given_up() {
        let lost = vec![(1.0, f64::INFINITY); 50];
        let mut world = World::new(vec![(0, lost), (0, vec![(9.0, 9.0)])]);
        world.tuner.program(0, &[KernelId(0)]);
        let other = world.tuner.program(0, &[KernelId(1)]);
        let steps: Vec<usize> = std::iter::from_fn(|| world.step().map(|s| s.0)).collect();
        assert_eq!(steps.iter().filter(|k| **k == 0).count(), ATTEMPTS as usize);
        assert_eq!(world.tuner.fastest(false), [(other, 9.0)]);
    }
}
