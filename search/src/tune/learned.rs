//! A correction of the clock that is learned from trials.
//!
//! A search compares kernels of one program. So rows come in groups, and what is learned is by how much more a kernel takes than the clock says beside
//! others of its group: a ridge regression of `ln(measured / clock)` on what the clock's time consists of, both less their means in a group. Of a
//! tile program with several kernels each counts by its share of the time, which is what a sum of corrected times comes to in the first order.
//!
//! It knows no program and no operation by name. With few rows or none it says what the clock says.

use crate::cost::cost;
use codegen::clock::{self, Part, Parts};
use ir::{KernelSchedule, Reject, Schedule, Target, TileProgram};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a group below which it says nothing, and rows of all groups together below which nothing is learned.
const FEWEST_OF_GROUP: usize = 4;
const FEWEST: usize = 32;
/// What slopes cost, times the number of rows, where features have deviation 1.
const RIDGE: f64 = 0.1;
/// The logarithm that a row counts with at most: single kernels may be far off for reasons of their own.
const OUTLIER: f64 = 0.5;
/// The logarithm of a correction at most: a factor of three.
const MOST: f64 = 1.1;
/// Deviations below which a feature says nothing.
const FLAT: f64 = 1e-6;

/// Features that no single part is.
const OTHERS: [&str; 5] = ["busiest", "second_busiest", "busy", "waits", "roofline"];
/// How many features there are.
const COUNT: usize = Part::ALL.len() - 1 + OTHERS.len();

/// What of a kernel a correction follows from: the clock's time, and what it consists of as shares of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// The clock's time in microseconds.
    pub clock_us: f64,
    values: [f64; COUNT],
}

impl Features {
    /// Of a kernel that the clock gives these parts, and the roofline so many microseconds.
    pub fn new(parts: &Parts, roofline_us: f64) -> Self {
        let all = parts[Part::All];
        let share = |part: Part| parts[part] / all;
        let mut busy = Part::UNITS.map(share);
        busy.sort_by(f64::total_cmp);
        let [.., second, busiest] = busy;
        let others = [
            busiest,
            second,
            busy.iter().sum(),
            Part::WAITS.into_iter().map(share).sum(),
            (roofline_us / all).ln(),
        ];
        let mut values = [0.0; COUNT];
        for (value, found) in values.iter_mut().zip(shares().map(share).chain(others)) {
            *value = found;
        }
        Self {
            clock_us: all,
            values,
        }
    }

    /// Of every kernel of a tile program under a schedule. The clock is asked once.
    ///
    /// # Errors
    /// What cannot be lowered.
    pub fn all(
        tile: &TileProgram,
        schedule: &Schedule,
        target: &Target,
    ) -> Result<Vec<Self>, Reject> {
        let machines = codegen::machines(tile, schedule, target)?;
        let parts = clock::parts(tile, &machines, target);
        let rooflines = cost(tile, None, target).kernels;
        let both = parts.iter().zip(&rooflines);
        Ok(both
            .map(|(p, roofline)| Self::new(p, roofline.us))
            .collect())
    }

    /// Of a kernel that stands alone in a tile program.
    ///
    /// # Errors
    /// What cannot be lowered.
    pub fn of(
        tile: &TileProgram,
        schedule: &KernelSchedule,
        target: &Target,
    ) -> Result<Self, Reject> {
        let schedule = Schedule {
            kernels: vec![schedule.clone()],
        };
        let mut all = Self::all(tile, &schedule, target)?.into_iter();
        match (all.next(), all.next()) {
            (Some(one), None) => Ok(one),
            _ => Err(Reject::Schedule("not one kernel".to_owned())),
        }
    }

    /// The name and the value of each.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        names().zip(self.values)
    }
}

/// Parts of which features are shares.
fn shares() -> impl Iterator<Item = Part> {
    Part::ALL.into_iter().filter(|p| *p != Part::All)
}

/// What features are called.
fn names() -> impl Iterator<Item = &'static str> {
    shares().map(Part::name).chain(OTHERS)
}

/// What was timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is compared with: rows of the same group compute the same.
    pub group: String,
    /// Its kernels.
    pub kernels: Vec<Features>,
    /// Microseconds that were measured, of all together.
    pub measured_us: f64,
}

/// By how much more kernels take than the clock says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// By how much the logarithm of the time changes with each feature; empty where nothing is learned.
    slopes: BTreeMap<String, f64>,
    /// What all kernels have in common.
    offset: f64,
}

impl Correction {
    /// What rows of many programs say. Nothing where they are few.
    pub fn fit(rows: &[Row]) -> Self {
        let groups = Groups::of(rows);
        if groups.rows < FEWEST {
            return Self::default();
        }
        let ridge = RIDGE * groups.rows as f64;
        let deviations = groups.deviations();
        Self::solved(deviations, &groups, ridge)
    }

    /// The slopes b for which `Σ weight · (log - values · b)² + ridge · |deviations · b|²` is least, over rows less the means of their group.
    fn solved(deviations: [f64; COUNT], groups: &Groups, ridge: f64) -> Self {
        let mut matrix = [[0.0; COUNT]; COUNT];
        let mut right = [0.0; COUNT];
        for (n, row) in matrix.iter_mut().enumerate() {
            row[n] = ridge;
        }
        let says = |n: usize| deviations[n] > FLAT;
        for (weight, point) in groups.centred() {
            let left = point.log.clamp(-OUTLIER, OUTLIER);
            let unit = |n: usize| {
                if says(n) {
                    point.values[n] / deviations[n]
                } else {
                    0.0
                }
            };
            let units: [f64; COUNT] = std::array::from_fn(unit);
            for n in 0..COUNT {
                right[n] += weight * units[n] * left;
                for m in 0..COUNT {
                    matrix[n][m] += weight * units[n] * units[m];
                }
            }
        }
        let scaled = solve(matrix, right);
        let by = |n: usize| {
            if says(n) {
                scaled[n] / deviations[n]
            } else {
                0.0
            }
        };
        let by: [f64; COUNT] = std::array::from_fn(by);
        Self {
            slopes: names().map(str::to_owned).zip(by).collect(),
            offset: groups.offset(&by),
        }
    }

    /// Microseconds of a kernel, between a third and three times what the clock says.
    pub fn us(&self, kernel: &Features) -> f64 {
        let by = |name| self.slopes.get(name).copied().unwrap_or_default();
        let log = kernel.named().map(|(name, value)| by(name) * value);
        let log = self.offset + log.sum::<f64>();
        match log.is_finite() {
            true => kernel.clock_us * log.clamp(-MOST, MOST).exp(),
            false => kernel.clock_us,
        }
    }
}

/// For each row what a correction says of it, in microseconds, that is fitted to those rows alone which have another key.
pub fn held_back(rows: &[(String, Row)]) -> Vec<f64> {
    let keys: BTreeSet<&str> = rows.iter().map(|(key, _)| key.as_str()).collect();
    let fit = |held: &str| {
        let others = rows.iter().filter(|(key, _)| key != held);
        Correction::fit(&others.map(|(_, row)| row.clone()).collect::<Vec<_>>())
    };
    let fits: BTreeMap<&str, Correction> = keys.into_iter().map(|k| (k, fit(k))).collect();
    let us = |(key, row): &(String, Row)| {
        let kernels = row.kernels.iter();
        kernels.map(|k| fits[key.as_str()].us(k)).sum()
    };
    rows.iter().map(us).collect()
}

/// A row as the regression has it.
struct Point {
    values: [f64; COUNT],
    /// `ln(measured / clock)`.
    log: f64,
}

impl Point {
    /// None where anything is no number.
    fn of(row: &Row) -> Option<Self> {
        let all: f64 = row.kernels.iter().map(|k| k.clock_us).sum();
        let share = |n: usize| {
            row.kernels
                .iter()
                .map(|k| k.clock_us / all * k.values[n])
                .sum()
        };
        let values: [f64; COUNT] = std::array::from_fn(share);
        let log = (row.measured_us / all).ln();
        let is_sound = log.is_finite() && values.iter().all(|v| v.is_finite());
        is_sound.then_some(Self { values, log })
    }

    fn mean(points: &[Self]) -> Self {
        let count = points.len() as f64;
        let value = |n: usize| points.iter().map(|p| p.values[n]).sum::<f64>() / count;
        Self {
            values: std::array::from_fn(value),
            log: points.iter().map(|p| p.log).sum::<f64>() / count,
        }
    }
}

fn dot(x: &[f64; COUNT], y: &[f64; COUNT]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Rows by group.
struct Groups {
    groups: Vec<Vec<Point>>,
    /// Of all groups together.
    rows: usize,
}

impl Groups {
    /// Those that have enough rows.
    fn of(rows: &[Row]) -> Self {
        let mut groups: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
        for row in rows {
            if let Some(point) = Point::of(row) {
                groups.entry(&row.group).or_default().push(point);
            }
        }
        let large = groups.into_values().filter(|g| g.len() >= FEWEST_OF_GROUP);
        let groups: Vec<Vec<Point>> = large.collect();
        Self {
            rows: groups.iter().map(Vec::len).sum(),
            groups,
        }
    }

    /// Rows less the mean of their group, and how much each counts, 1 in the mean: a group of many rows counts as much as the root of its number.
    fn centred(&self) -> impl Iterator<Item = (f64, Point)> + '_ {
        let root = |g: &Vec<Point>| (g.len() as f64).sqrt();
        let all = self.groups.iter().map(root).sum::<f64>();
        self.groups.iter().flat_map(move |group| {
            let mean = Point::mean(group);
            let weight = self.rows as f64 / all / root(group);
            group.iter().map(move |point| {
                let value = |n: usize| point.values[n] - mean.values[n];
                let values = std::array::from_fn(value);
                let log = point.log - mean.log;
                (weight, Point { values, log })
            })
        })
    }

    /// How much each feature differs within groups.
    fn deviations(&self) -> [f64; COUNT] {
        let mut squares = [0.0; COUNT];
        for (weight, point) in self.centred() {
            for (square, value) in squares.iter_mut().zip(point.values) {
                *square += weight * value * value / self.rows as f64;
            }
        }
        squares.map(f64::sqrt)
    }

    /// What slopes leave of the logarithms, in the mean over groups.
    fn offset(&self, by: &[f64; COUNT]) -> f64 {
        let means = self.groups.iter().map(|g| Point::mean(g));
        let left = means.map(|mean| mean.log - dot(by, &mean.values));
        left.sum::<f64>() / self.groups.len() as f64
    }
}

/// The solution of linear equations with a symmetric, positive definite matrix, which needs no pivots: Gauss's elimination.
fn solve(mut matrix: [[f64; COUNT]; COUNT], mut right: [f64; COUNT]) -> [f64; COUNT] {
    for n in 0..COUNT {
        let pivot = matrix[n];
        for m in n + 1..COUNT {
            let times = matrix[m][n] / pivot[n];
            for (x, own) in matrix[m].iter_mut().zip(pivot) {
                *x -= times * own;
            }
            right[m] -= times * right[n];
        }
    }
    for n in (0..COUNT).rev() {
        let known: f64 = (n + 1..COUNT).map(|m| matrix[n][m] * right[m]).sum();
        right[n] = (right[n] - known) / matrix[n][n];
    }
    right
}

#[cfg(test)]
mod tests;
