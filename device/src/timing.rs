//! How long sequences of launches take.
//!
//! The sequences are captured into graphs, so that the host's launch overhead is not measured. Contenders are measured in one
//! run, in turns, each turn beginning with another one, so that a change of the clock meets all of them; when all of them become
//! faster or slower together during a run, the run is repeated.
//!
//! *Warm*: the same buffers again and again, so that inputs which fit are in L2. Of inputs that hardly fit, how much stays there
//! seems to depend on where in memory they lie: a kernel that reads 50 MB on an H200 took 13.3 us where the search had put them, and 14.7
//! in another process. Those lie in several places, which the samples take in turns. *Cold*: the inputs rotate through copies that
//! together exceed three times L2, so that each replay reads its inputs from memory; nothing is written to evict them, since
//! dirty lines would cost the kernel their write-back. Outputs and workspaces are the same in both. A kernel that reads only a
//! part of its inputs may find that part in L2 all the same: the copies are counted by the inputs' whole sizes.
//!
//! Clock and power are read in the middle of a run, once for each contender, while its warm graph replays.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::driver_ffi::{Event, Graph};
use crate::gpu::Gpu;
use crate::gpu_error::GpuError;
use crate::session::{InputCopy, Session};
use crate::telemetry::{Sensors, Telemetry};

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimingSettings {
    /// Samples of each contender.
    pub samples: u32,
    /// A graph repeats its sequence until it takes about this long.
    pub sample_us: f64,
    /// But not more often than this.
    pub max_replays: u32,
    /// Each contender runs about this long before the first sample, for the clock to rise.
    pub warmup_us: f64,
    /// Each contender runs about this long in a run; slow ones get fewer samples for it, but at least three.
    pub budget_us: f64,
    /// A relative change of all contenders together that makes a run void.
    pub drift: f64,
    /// Runs at most; the one with the least drift counts.
    pub runs: u32,
}

impl TimingSettings {
    /// To tell candidates apart: about a tenth of the default's time.
    pub fn quick() -> Self {
        Self {
            samples: 9,
            sample_us: 500.0,
            max_replays: 200,
            warmup_us: 3000.0,
            budget_us: 50_000.0,
            drift: 0.05,
            runs: 1,
        }
    }

    /// The same with fewer samples where so many contenders would take longer than this together, both figures included.
    pub fn within(self, limit: Duration, contenders: usize) -> Self {
        let each = limit.as_secs_f64() * 1e6 / 2.0 / contenders.max(1) as f64;
        let whole = self.budget_us + self.warmup_us;
        let runs = ((each / whole) as u32).clamp(1, self.runs.max(1));
        let part = (each / f64::from(runs) / whole).min(1.0);
        Self {
            warmup_us: self.warmup_us * part,
            budget_us: self.budget_us * part,
            runs,
            ..self
        }
    }
}

impl Default for TimingSettings {
    /// To state a time.
    fn default() -> Self {
        Self {
            samples: 40,
            sample_us: 1000.0,
            max_replays: 1000,
            warmup_us: 30_000.0,
            budget_us: 1_000_000.0,
            drift: 0.02,
            runs: 3,
        }
    }
}

/// The time of one sequence of launches, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Half of the samples are below.
    pub median_us: f64,
    /// A tenth of the samples is below.
    pub p10_us: f64,
    /// Nine tenths of the samples are below.
    pub p90_us: f64,
    /// The least sample.
    pub min_us: f64,
    /// How many samples.
    pub samples: u32,
    /// Sequences in each sample.
    pub replays: u32,
    /// Relative change of all contenders between the first and the last third of the run.
    pub drift: f64,
    /// Whether that change is below the limit.
    pub steady: bool,
}

/// The two figures of a contender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Inputs in L2, if they fit.
    pub warm: Timing,
    /// Inputs in memory.
    pub cold: Timing,
    /// Copies of the inputs that the cold figure rotates through.
    pub copies: u32,
    /// Whether these copies exceed three times L2; small inputs would need too many.
    pub copies_exceed_l2: bool,
    /// Clock and power in the midst of the warm figure's samples, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
}

/// What is measured, by number: figures of two are not compared.
pub const METHOD: &str = "2";

/// Copies of the inputs at most: graphs with more nodes take long to make.
const MAX_COPIES: u64 = 1024;
/// Samples of a slow contender at least, as many as the drift needs.
const MIN_SAMPLES: f64 = 3.0;
/// The inputs' copies together exceed this many times L2.
const L2_FACTOR: u64 = 3;
/// Inputs of at least this part of L2 are warm in several places.
const NEARLY_L2: u64 = 4;
/// How many.
const PLACES: usize = 3;

/// Measures contenders against each other. Their inputs must be uploaded. Afterwards their outputs hold the result of a run, and
/// [`Session::check`] tells whether they kept to their buffers.
pub fn measure(
    gpu: &Gpu,
    contenders: &[&Session],
    settings: &TimingSettings,
) -> Result<Vec<Measurement>, GpuError> {
    let mut rotations = Vec::new();
    for session in contenders {
        if !session.is_whole() {
            return Err(GpuError::Plan {
                reason: "a session with scoped workspaces cannot be timed".into(),
            });
        }
        let count = copies(session.input_bytes(), gpu.info().l2_bytes);
        rotations.push(
            (0..count)
                .map(|_| session.copy_inputs())
                .collect::<Result<Vec<_>, _>>()?,
        );
    }
    let sensors = gpu.sensors.as_ref();
    let l2 = gpu.info().l2_bytes;
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for (session, copies) in contenders.iter().zip(&rotations) {
        let others = places(session.input_bytes(), l2) - 1;
        let others = copies.iter().take(others).map(|copy| vec![copy]);
        warm.push(std::iter::once(Vec::new()).chain(others).collect());
        cold.push(vec![copies.iter().collect()]);
    }
    let warm = measure_all(gpu, contenders, &warm, settings, sensors)?;
    let cold = measure_all(gpu, contenders, &cold, settings, None)?;
    let mut found = Vec::new();
    for ((session, rotation), ((warm, telemetry), (cold, _))) in contenders
        .iter()
        .zip(&rotations)
        .zip(warm.into_iter().zip(cold))
    {
        let bytes = session.input_bytes() * rotation.len() as u64;
        let copies_exceed_l2 = bytes > L2_FACTOR * gpu.info().l2_bytes;
        found.push(Measurement {
            warm,
            cold,
            copies: rotation.len() as u32,
            copies_exceed_l2,
            telemetry,
        });
    }
    Ok(found)
}

/// The least number of copies that exceed three times L2: `floor(3 L2 / bytes) + 1`, at most [`MAX_COPIES`].
fn copies(input_bytes: u64, l2_bytes: u64) -> u64 {
    (L2_FACTOR * l2_bytes)
        .checked_div(input_bytes)
        .map_or(1, |count| (count + 1).min(MAX_COPIES))
}

/// How many places inputs lie in for the warm figure: one where they take a small part of L2, or several times of it.
fn places(input_bytes: u64, l2_bytes: u64) -> usize {
    let (least, most) = (l2_bytes / NEARLY_L2, L2_FACTOR * l2_bytes);
    if (least..most).contains(&input_bytes) {
        PLACES
    } else {
        1
    }
}

/// Of a contender: each graph's copies of the inputs, one after another; its own inputs where there is none.
type Rotations<'c> = Vec<Vec<&'c InputCopy>>;

/// Graphs of a contender whose inputs lie in one place, or rotate.
struct Place {
    /// One sequence, which brings the inputs to L2 before a sample where the last one's were elsewhere.
    before: Option<Graph>,
    graph: Graph,
}

/// A contender's places, which the samples take in turns, and the sequences in each graph.
struct Entrant<'s> {
    session: &'s Session,
    places: Vec<Place>,
    replays: u32,
    /// About the time of one sequence, in microseconds.
    estimate: f64,
}

impl Entrant<'_> {
    /// About how long a sample takes, with what runs before it.
    fn sample_us(&self) -> f64 {
        let before = self.places.iter().any(|place| place.before.is_some());
        self.estimate * f64::from(self.replays + u32::from(before))
    }
}

fn measure_all(
    gpu: &Gpu,
    contenders: &[&Session],
    rotations: &[Rotations<'_>],
    settings: &TimingSettings,
    sensors: Option<&Sensors>,
) -> Result<Vec<(Timing, Option<Telemetry>)>, GpuError> {
    let clock = (Event::new(&gpu.context)?, Event::new(&gpu.context)?);
    let mut entrants = Vec::new();
    for (session, rotations) in contenders.iter().zip(rotations) {
        let capture = |rotation: &[&InputCopy], turns: u32| {
            session.stream().capture(|| {
                for _ in 0..turns {
                    if rotation.is_empty() {
                        session.launch_all(None)?;
                    }
                    rotation
                        .iter()
                        .try_for_each(|copy| session.launch_all(Some(copy)))?;
                }
                Ok(())
            })
        };
        let first = rotations.first().and_then(|r| r.first()).copied();
        let single = Place {
            before: None,
            graph: capture(first.as_slice(), 1)?,
        };
        let probe = Entrant {
            session,
            places: vec![single],
            replays: 1,
            estimate: 0.0,
        };
        // The first replay uploads the graph.
        sample(&probe, 0, &clock, || ())?;
        let estimate = sample(&probe, 0, &clock, || ())?.max(0.1);
        let longest = rotations.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let turns = (settings.sample_us / estimate / longest as f64)
            .round()
            .max(1.0);
        let most = f64::from(settings.max_replays) / longest as f64;
        let turns = turns.min(most.floor().max(1.0)) as u32;
        let place = |rotation: &Vec<&InputCopy>| {
            let alone = rotations.len() == 1;
            let before = (!alone).then(|| capture(rotation, 1)).transpose()?;
            let graph = capture(rotation, turns)?;
            Ok(Place { before, graph })
        };
        let replays = turns * longest as u32;
        let entrant = Entrant {
            session,
            places: rotations.iter().map(place).collect::<Result<_, _>>()?,
            replays,
            estimate,
        };
        let warmups = (settings.warmup_us / entrant.sample_us()).clamp(1.0, 1000.0) as usize;
        for turn in 0..warmups.max(entrant.places.len()) {
            sample(&entrant, turn, &clock, || ())?;
        }
        entrants.push(entrant);
    }
    let slowest = entrants.iter().map(Entrant::sample_us).fold(1.0, f64::max);
    let count = settings
        .samples
        .min((settings.budget_us / slowest).max(MIN_SAMPLES) as u32)
        .max(1);
    // Each place has as many samples as the others, and as many as the drift needs.
    let most = entrants.iter().map(|e| e.places.len()).max().unwrap_or(1) as u32;
    let count = if count < most * MIN_SAMPLES as u32 {
        entrants.iter_mut().for_each(|e| e.places.truncate(1));
        count
    } else {
        count - count % most
    };
    let mut best: Option<(f64, Run)> = None;
    let places: Vec<usize> = entrants.iter().map(|e| e.places.len()).collect();
    for _ in 0..settings.runs.max(1) {
        let run = one_run(&entrants, &clock, count, sensors)?;
        let drift = drift(&run.samples, &places);
        if best
            .as_ref()
            .is_none_or(|(least, _)| drift.abs() < least.abs())
        {
            best = Some((drift, run));
        }
        if drift.abs() <= settings.drift {
            break;
        }
        tracing::debug!(drift, "the clock changed during a run");
    }
    let (drift, run) = best.unwrap_or_default();
    Ok(entrants
        .iter()
        .zip(run.samples)
        .map(|(entrant, samples)| summarise(samples, entrant.replays, drift, settings.drift))
        .zip(run.telemetry)
        .collect())
}

/// For each contender its samples, and what the sensors said among them.
#[derive(Default)]
struct Run {
    samples: Vec<Vec<f64>>,
    telemetry: Vec<Option<Telemetry>>,
}

/// Samples of each contender, in turns.
fn one_run(
    entrants: &[Entrant<'_>],
    clock: &(Event, Event),
    count: u32,
    sensors: Option<&Sensors>,
) -> Result<Run, GpuError> {
    let mut run = Run {
        samples: vec![Vec::new(); entrants.len()],
        telemetry: vec![None; entrants.len()],
    };
    for turn in 0..count as usize {
        for step in 0..entrants.len() {
            let index = (turn + step) % entrants.len();
            let asked = sensors.filter(|_| turn == count as usize / 2);
            let telemetry = &mut run.telemetry[index];
            let us = sample(&entrants[index], turn, clock, || {
                if let Some(sensors) = asked {
                    *telemetry = sensors.read();
                }
            })?;
            run.samples[index].push(us);
        }
    }
    Ok(run)
}

/// Microseconds of one sequence, in the place whose turn it is; `meanwhile` is called while it runs.
fn sample(
    entrant: &Entrant<'_>,
    turn: usize,
    (start, end): &(Event, Event),
    meanwhile: impl FnOnce(),
) -> Result<f64, GpuError> {
    let stream = entrant.session.stream();
    let place = &entrant.places[turn % entrant.places.len()];
    if let Some(before) = &place.before {
        stream.replay(before)?;
    }
    stream.record(start)?;
    stream.replay(&place.graph)?;
    stream.record(end)?;
    meanwhile();
    Ok(end.wait_since(start)? / f64::from(entrant.replays))
}

/// The median over the contenders of `median(last third) / median(first third) - 1`.
fn drift(samples: &[Vec<f64>], places: &[usize]) -> f64 {
    let long = samples.iter().zip(places).filter(|(one, _)| one.len() >= 3);
    let ratios = long.map(|(one, places)| {
        let one = levelled(one, *places);
        let third = one.len() / 3;
        quantile(&one[one.len() - third..], 0.5)
            / quantile(&one[..third], 0.5).max(f64::MIN_POSITIVE)
            - 1.0
    });
    let ratios: Vec<f64> = ratios.collect();
    if ratios.is_empty() {
        0.0
    } else {
        quantile(&ratios, 0.5)
    }
}

/// Samples that took so many places in turns, each over the median of its place.
fn levelled(samples: &[f64], places: usize) -> Vec<f64> {
    let of = |place: usize| -> Vec<f64> {
        let own = samples.iter().skip(place).step_by(places);
        own.copied().collect()
    };
    let medians: Vec<f64> = (0..places).map(|place| quantile(&of(place), 0.5)).collect();
    let levelled = samples.iter().enumerate();
    let level = |n: usize| medians[n % places].max(f64::MIN_POSITIVE);
    levelled.map(|(n, us)| us / level(n)).collect()
}

fn summarise(samples: Vec<f64>, replays: u32, drift: f64, limit: f64) -> Timing {
    Timing {
        median_us: quantile(&samples, 0.5),
        p10_us: quantile(&samples, 0.1),
        p90_us: quantile(&samples, 0.9),
        min_us: quantile(&samples, 0.0),
        samples: samples.len() as u32,
        replays,
        drift,
        steady: drift.abs() <= limit,
    }
}

/// The value at rank `q (n - 1)`, linear between ranks (Hyndman and Fan's type 7); not a number if there is no value.
fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = q * sorted.len().saturating_sub(1) as f64;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let (low, high) = (at(rank.floor() as usize), at(rank.ceil() as usize));
    low + (high - low) * rank.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_by_all_contenders_together() {
        let whole = TimingSettings::default();
        for (seconds, contenders) in [(0.5, 4), (3.0, 4), (10.0, 4), (60.0, 1), (1e4, 3)] {
            let settings = whole.within(Duration::from_secs_f64(seconds), contenders);
            let each = settings.warmup_us + settings.budget_us;
            let all = 2.0 * contenders as f64 * each * f64::from(settings.runs);
            assert!(all <= seconds * 1e6 * 1.001, "{all} of {seconds} s");
            // What there is time for is used.
            assert!(
                all >= 0.3 * seconds * 1e6 || settings == whole,
                "{all} of {seconds} s"
            );
        }
    }

    #[test]
    fn places_are_no_drift() {
        // 10, 20 and 30 µs in three places, 5 % more at the end; and nothing of it.
        let of = |n: usize, more: f64| [10.0, 20.0, 30.0][n % 3] * if n >= 6 { more } else { 1.0 };
        for more in [1.0, 1.05] {
            let samples: Vec<f64> = (0..9).map(|n| of(n, more)).collect();
            let found = drift(&[samples], &[3]);
            assert!((found - (more - 1.0)).abs() < 1e-9, "{found}");
        }
    }

    #[test]
    fn quantiles_lie_between_ranks() {
        let values = [40.0, 10.0, 30.0, 20.0, 50.0];
        for (q, expected) in [
            (0.0, 10.0),
            (0.1, 14.0),
            (0.5, 30.0),
            (0.9, 46.0),
            (1.0, 50.0),
        ] {
            assert!((quantile(&values, q) - expected).abs() < 1e-9, "{q}");
        }
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_copies_just_exceed_three_times_l2() {
        for (bytes, l2, expected) in [
            (100, 100, 4),
            (101, 100, 3),
            (301, 100, 1),
            (300, 100, 2),
            (1, 1 << 30, MAX_COPIES),
            (0, 100, 1),
        ] {
            assert_eq!(copies(bytes, l2), expected, "{bytes} {l2}");
        }
    }

    #[test]
    fn drift_is_what_all_contenders_share() {
        let flat = vec![10.0; 9];
        let rising: Vec<f64> = (0..9)
            .map(|index| if index < 5 { 10.0 } else { 11.0 })
            .collect();
        let spike: Vec<f64> = (0..9)
            .map(|index| if index == 8 { 90.0 } else { 10.0 })
            .collect();
        assert!(drift(&[flat.clone(), flat.clone()], &[1; 2]).abs() < 1e-9);
        assert!(
            (drift(&[rising.clone(), rising.clone(), flat.clone()], &[1; 3]) - 0.1).abs() < 1e-9
        );
        assert!(drift(&[rising, flat.clone(), flat.clone()], &[1; 3]).abs() < 1e-9);
        assert!(drift(&[spike, flat], &[1; 2]).abs() < 1e-9);
        assert!(drift(&[vec![1.0]], &[1]).abs() < 1e-9);
    }
}
