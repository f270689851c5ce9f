//! Who gets time next: the job that promises to save most, for each second that is spent on it.
//!
//! The best time `y` of a search falls with the time `T` that was spent on it, and ever more slowly; below a floor `f` ([`floor_us`]) it never falls.
//! What is above the floor is taken to fall as a power of the time,
//!
//! > `y(T) - f = c · T^-p`, so `ln (y - f) = ln c - p · ln T`,
//!
//! and `p` is fitted to the job's own curve: Bayesian linear regression of `ln (y - f)` over `ln T`, with a normal prior around [`PRIOR`] that
//! counts as much as one doubling of the time that was looked at. A curve with one point promises what the prior says, which is much where it is far from
//! its floor; a curve that was flat over some doublings promises hardly anything. The next slice, of `s` seconds, is expected to save
//!
//! > `weight · (y(T) - f) · (1 - (1 + s / T)^-p)` microseconds,
//!
//! each time the user's model runs. The job of which this is most *a second of the slice* has the next one. What was not looked at yet comes first.
//!
//! Each slice of a job is twice as long as the one before: a search walks over what it knows before it finds anything new, and so that
//! takes a constant share of the time at most.

use ir::{Op, Program, Target};
use std::time::Duration;

/// How fast what is above the floor falls of which nothing is known: by 10 % each time that its time doubles, which is 3.4 % of a time that is one and a
/// half floors. Somewhat more than what long searches were seen to gain, so that what is not known well is looked at.
pub const PRIOR: f64 = 0.15;
/// Of a time: what counts as above the floor at least. The floor is estimated, and may be too high.
const ABOVE: f64 = 0.05;
/// Points that the fit sees, the last ones: how a curve began says little about its end.
const POINTS: usize = 4;
/// What the prior counts, in squares of logarithms of time: as two points whose times are one doubling apart.
const WEIGHT: f64 = std::f64::consts::LN_2 * std::f64::consts::LN_2 / 2.0;
/// Each slice is so many times as long as the one before.
const GROWTH: u32 = 2;
/// The share of all time that first slices take where nothing else is said: shorter ones go by before anything is tried.
const FIRST_SHARE: f64 = 0.5;
/// A first slice is no longer than this where nothing else is said.
const MOST_FIRST: Duration = Duration::from_secs(60);

/// A point of a curve: the seconds that were spent on a job until then, and its best time in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Seconds, all slices together.
    pub seconds: f64,
    /// Microseconds.
    pub us: f64,
}

/// Microseconds in which a program might run at best: its parameters and results moved once, as many of them from L2 as it holds, or its products at the
/// rate of the target's fastest matrix instructions, whichever takes longer, and one launch. An estimate, neither bound: an expression that multiplies
/// less is faster, one without 16-bit operands has no such instructions.
pub fn floor_us(program: &Program, target: &Target) -> f64 {
    let extent = |axis| program.extent(axis) as f64;
    let parameters = program.parameters().map(|(_, _, dtype, dims)| {
        let elements: f64 = program.shape(dims).iter().map(|n| *n as f64).product();
        elements * dtype.bytes() as f64
    });
    let results = program.outputs.iter().map(|output| {
        let elements: f64 = program
            .shape(&output.dims)
            .iter()
            .map(|n| *n as f64)
            .product();
        elements * output.dtype.bytes() as f64
    });
    let bytes: f64 = parameters.chain(results).sum();
    let near = bytes.min(target.l2_bytes as f64);
    let moved = near / (target.l2_tb_s * 1e6) + (bytes - near) / (target.memory_tb_s * 1e6);
    let products = program
        .nodes
        .iter()
        .filter(|n| matches!(n.op, Op::Dot { .. }));
    let operations = products.map(|node| {
        let axes = (node.args.iter()).fold(node.axes.clone(), |all, arg| {
            all.union(&program.node(*arg).axes)
        });
        2.0 * axes.iter().map(extent).product::<f64>()
    });
    let rates = target.matrix.values().map(|rate| rate.tflops);
    let rate = rates.fold(target.f32_tflops, f64::max) * 1e6;
    moved.max(operations.sum::<f64>() / rate) + target.launch_us
}

/// What of a time is above the floor, as far as that is known.
fn above(us: f64, floor: f64) -> f64 {
    (us - floor).max(ABOVE * us)
}

/// How fast what is above the floor falls, as the exponent `p`; never below 0.
pub fn exponent(curve: &[Point], floor: f64) -> f64 {
    let last = &curve[curve.len().saturating_sub(POINTS)..];
    let logs = last.iter().filter(|p| p.seconds > 0.0 && p.us > 0.0);
    let logs: Vec<(f64, f64)> = logs
        .map(|p| (p.seconds.ln(), above(p.us, floor).ln()))
        .collect();
    let count = logs.len().max(1) as f64;
    let mean = |which: fn(&(f64, f64)) -> f64| logs.iter().map(which).sum::<f64>() / count;
    let (x, y) = (mean(|l| l.0), mean(|l| l.1));
    let square: f64 = logs.iter().map(|l| (l.0 - x).powi(2)).sum();
    let product: f64 = logs.iter().map(|l| (l.0 - x) * (l.1 - y)).sum();
    ((WEIGHT * PRIOR - product) / (WEIGHT + square)).max(0.0)
}

/// Microseconds that a slice of so many seconds is expected to save, for each of its seconds; 0 for a curve without points.
pub fn promise(weight: f64, curve: &[Point], floor: f64, slice: f64) -> f64 {
    let Some(last) = curve.last() else { return 0.0 };
    let (slice, spent) = (slice.max(1e-9), last.seconds.max(1e-9));
    let left = (1.0 + slice / spent).powf(-exponent(curve, floor));
    weight * above(last.us, floor) * (1.0 - left) / slice
}

/// How long first slices are, where so many workers share a budget among so many jobs.
pub fn first(budget: Duration, workers: u32, jobs: u32) -> Duration {
    let each = budget.saturating_mul(workers.max(1)) / jobs.max(1);
    each.mul_f64(FIRST_SHARE).min(MOST_FIRST)
}

/// How long the next slice of a job is, behind one of `last`, where so much is `left`; none where it would hardly get beyond what is known.
pub fn next(last: Duration, left: Duration) -> Option<Duration> {
    let whole = last.saturating_mul(GROWTH);
    (left.saturating_mul(2) >= last).then(|| whole.min(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Vec<Point> {
        let point = |&(seconds, us)| Point { seconds, us };
        points.iter().map(point).collect()
    }

    /// Against the law that made them: with many doublings the fit is the exponent, but for what the prior adds.
    #[test]
    fn the_exponent_of_a_power_law_is_found() {
        for p in [0.0, 0.02, 0.3] {
            let points = (0..8).map(|n| 2f64.powi(n));
            let points: Vec<(f64, f64)> = points.map(|t| (t, 900.0 * t.powf(-p))).collect();
            // Above a floor it is the same curve.
            let raised: Vec<(f64, f64)> = points.iter().map(|p| (p.0, p.1 + 70.0)).collect();
            let found = exponent(&curve(&points), 0.0);
            assert!((found - exponent(&curve(&raised), 70.0)).abs() < 1e-9);
            let between = (p.min(PRIOR), p.max(PRIOR));
            assert!((between.0..=between.1).contains(&found), "{p}: {found}");
            assert!((found - p).abs() < 0.12 * (p - PRIOR).abs(), "{p}: {found}");
        }
        assert_eq!(exponent(&[], 0.0), PRIOR);
        assert_eq!(exponent(&curve(&[(3.0, 10.0)]), 4.0), PRIOR);
        // Time that rises is none that falls.
        assert_eq!(exponent(&curve(&[(1.0, 10.0), (2.0, 20.0)]), 0.0), 0.0);
    }

    #[test]
    fn time_goes_where_weight_times_gain_is_highest() {
        let (fresh, flat) = ([(10.0, 100.0)], [(2.5, 100.0), (5.0, 100.0), (10.0, 100.0)]);
        let falling = [(2.5, 144.0), (5.0, 120.0), (10.0, 100.0)];
        let of = |weight, points: &[(f64, f64)]| promise(weight, &curve(points), 0.0, 20.0);
        assert!(of(1.0, &falling) > of(1.0, &fresh));
        assert!(of(1.0, &fresh) > 2.0 * of(1.0, &flat));
        assert!(of(9.0, &fresh) > of(1.0, &falling));
        assert!(
            (of(3.0, &fresh) / of(1.0, &fresh) - 3.0).abs() < 1e-9,
            "what runs three times as often counts for three"
        );
        // In slower programs there is more to save.
        assert!(of(1.0, &[(10.0, 200.0)]) > of(1.0, &fresh));
        // The gain of the fit, by hand: ten seconds and twenty more, with the prior's exponent.
        let gain = 100.0 * (1.0 - 3f64.powf(-PRIOR)) / 20.0;
        assert!((of(1.0, &fresh) - gain).abs() < 1e-12);
        // What is near its floor has little left to save; what is said to be below it, hardly anything.
        let above = |floor| promise(1.0, &curve(&fresh), floor, 20.0);
        assert!((above(80.0) - 0.2 * gain).abs() < 1e-12);
        assert!((above(300.0) - ABOVE * gain).abs() < 1e-12);
    }

    #[test]
    fn slices_double_until_nothing_is_left() {
        let s = Duration::from_secs;
        assert_eq!(next(s(10), s(100)), Some(s(20)));
        assert_eq!(next(s(10), s(15)), Some(s(15)));
        assert_eq!(next(s(10), s(5)), Some(s(5)));
        assert_eq!(next(s(10), s(4)), None);
        assert_eq!(first(s(800), 2, 40), s(20));
        assert_eq!(first(s(800_000), 1, 2), MOST_FIRST);
    }
}
