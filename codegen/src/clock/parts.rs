//! What the time of a kernel consists of.

use std::ops::{Add, Div, Index, IndexMut, Mul, Sub};

/// A part of a kernel's time. Units are busy beside each other, so parts do not add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// All of it.
    All,
    /// The launch.
    Launch,
    /// The schedulers of a multiprocessor issue instructions.
    Issue,
    /// Comparisons and conversions are carried out.
    Half,
    /// Special functions are.
    Special,
    /// Shared memory, or the first-level cache, is read or written.
    Shared,
    /// Matrix instructions are carried out.
    Tensor,
    /// The multiprocessor's share of L2 is busy.
    L2,
    /// Its share of device memory is.
    Memory,
    /// Warps that compute wait for loads into registers, in the mean over them: so are all waits.
    Loads,
    /// They wait for stages that copies fill.
    Stages,
    /// They wait for instructions that run in the background.
    Instructions,
    /// They wait at barriers of a block, or go through those of stages.
    Barriers,
    /// They wait for the turn of other warps to end.
    Turns,
    /// They wait for the blocks of a group.
    GridBarriers,
    /// They wait for results of their own instructions.
    Latency,
}

impl Part {
    /// Every part, in order.
    pub const ALL: [Self; 16] = [
        Self::All,
        Self::Launch,
        Self::Issue,
        Self::Half,
        Self::Special,
        Self::Shared,
        Self::Tensor,
        Self::L2,
        Self::Memory,
        Self::Loads,
        Self::Stages,
        Self::Instructions,
        Self::Barriers,
        Self::Turns,
        Self::GridBarriers,
        Self::Latency,
    ];
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Launch => "launch",
            Self::Issue => "issue",
            Self::Half => "half",
            Self::Special => "special",
            Self::Shared => "shared",
            Self::Tensor => "tensor",
            Self::L2 => "l2",
            Self::Memory => "memory",
            Self::Loads => "loads",
            Self::Stages => "stages",
            Self::Instructions => "instructions",
            Self::Barriers => "barriers",
            Self::Turns => "turns",
            Self::GridBarriers => "grid_barriers",
            Self::Latency => "latency",
        }
    }

    /// Units that carry things out.
    pub const UNITS: [Self; 7] = [
        Self::Issue,
        Self::Half,
        Self::Special,
        Self::Shared,
        Self::Tensor,
        Self::L2,
        Self::Memory,
    ];
    /// What warps that compute wait for.
    pub const WAITS: [Self; 7] = [
        Self::Loads,
        Self::Stages,
        Self::Instructions,
        Self::Barriers,
        Self::Turns,
        Self::GridBarriers,
        Self::Latency,
    ];
}

/// A value for each part: microseconds, or clocks while they are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts([f64; Part::ALL.len()]);

impl Index<Part> for Parts {
    type Output = f64;

    fn index(&self, part: Part) -> &f64 {
        &self.0[part as usize]
    }
}

impl IndexMut<Part> for Parts {
    fn index_mut(&mut self, part: Part) -> &mut f64 {
        &mut self.0[part as usize]
    }
}

impl Add for Parts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] + other.0[n]))
    }
}

impl Sub for Parts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] - other.0[n]))
    }
}

impl Mul<f64> for Parts {
    type Output = Self;

    fn mul(self, by: f64) -> Self {
        Self(self.0.map(|x| x * by))
    }
}

impl Div<f64> for Parts {
    type Output = Self;

    fn div(self, by: f64) -> Self {
        Self(self.0.map(|x| x / by))
    }
}
