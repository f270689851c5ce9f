//! What an artifact says of its machine programs: that they compute what its tile program says, in every order that the hardware may take.
//!
//! They run at smaller extents under the same schedule: with the tiles that are emitted, as many iterations as fill every stage twice (once where
//! twice is too much work), several blocks where blocks wait for each other, several tiles of a block where blocks are persistent, and the same part
//! of a last tile, so that what is copied how is the same. Where all kernels together are too much work, each runs by itself.

use codegen::atoms::{self, Instruction};
use codegen::check;
use codegen::machine::Machine;
use codegen::passes::{instruction, multicast, persistent, pipeline};
use ir::random::mix;
use ir::{
    AxisId, AxisSet, Kernel, KernelSchedule, Reject, Role, Schedule, Statement, Target, Tensor,
    TileOp, TileProgram,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use verify::SimulateOptions;

/// Element operations of one run of a tile program: about a second is spent here.
const WORK: u64 = 30_000_000;
/// The same of all kernels that run by themselves, on all cores.
const ALONE: u64 = 8 * WORK;
/// How many times as long one takes outside of matrix instructions, whose operands are read once.
const SLOWER: u64 = 10;
/// Drawn orders of warps.
const ORDERS: u64 = 2;
/// Inputs that are drawn anew where numbers differ.
const DRAWS: u64 = 3;
/// How far the order of sums may move a result: in parts of the largest, and by itself, since inputs are about 1.
const RELATIVE: f64 = 1e-7;
const ABSOLUTE: f64 = 1e-10;

/// What was found out of machine programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineEvidence {
    /// Of all kernels together.
    #[serde(flatten)]
    pub together: Ran,
    /// Of each kernel by itself, on numbers that are drawn for what it reads; empty where they ran together.
    pub alone: Vec<Ran>,
}

/// How machine programs ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// The extents that they had, by axis, where they are smaller than the program's.
    pub extents: BTreeMap<String, u64>,
    /// Drawn orders in which warps ran.
    pub orders: u64,
    /// Output elements that were compared with the tile program's, in each order; 0 where they did not run.
    pub elements: u64,
    /// Why they did not run.
    pub not_run: Option<String>,
}

impl fmt::Display for MachineEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(why) = &self.together.not_run else {
            let (elements, orders) = (self.together.elements, self.together.orders);
            let place = self.together.place();
            return write!(
                f,
                "machine: {elements} output elements of the machine programs at {place} are the tile program's, under {orders} orders of warps, and nothing in them races, waits forever or is read before it is there"
            );
        };
        let together = if self.alone.is_empty() {
            ""
        } else {
            " together"
        };
        write!(
            f,
            "machine: the machine programs were not run{together}: {why}"
        )?;
        for (kernel, ran) in self.alone.iter().enumerate() {
            match &ran.not_run {
                Some(why) => write!(f, "; kernel {kernel} was not run: {why}")?,
                None => write!(
                    f,
                    "; {} elements of kernel {kernel} by itself at {} are right under {} orders of warps",
                    ran.elements,
                    ran.place(),
                    ran.orders
                )?,
            }
        }
        Ok(())
    }
}

impl Ran {
    fn place(&self) -> String {
        let extents = self.extents.iter();
        let extents: Vec<String> = extents.map(|(axis, n)| format!("{axis} = {n}")).collect();
        match extents.as_slice() {
            [] => "the program's extents".to_owned(),
            some => some.join(", "),
        }
    }
}

fn not_run(why: impl Into<String>) -> Ran {
    Ran {
        extents: BTreeMap::new(),
        orders: 0,
        elements: 0,
        not_run: Some(why.into()),
    }
}

/// Runs the machine programs that a schedule makes of a tile program.
///
/// # Errors
/// When they compute something else, or might in another order.
pub fn evidence(
    tile: &TileProgram,
    schedule: &Schedule,
    target: &Target,
) -> Result<MachineEvidence, Reject> {
    let together = ran(tile, schedule, target, WORK)?;
    let kernels = match (&together.not_run, schedule.kernels.as_slice()) {
        (None, _) | (_, [] | [_]) => &[],
        (Some(_), several) => several,
    };
    let work = WORK.min(ALONE / kernels.len().max(1) as u64);
    let alone = kernels.par_iter().enumerate().map(|(number, kernel)| {
        let own = Schedule {
            kernels: vec![kernel.clone()],
        };
        let found = ran(&tile.by_itself(number), &own, target, work);
        found.map_err(|reject| Reject::InKernel {
            kernel: number,
            reject: Box::new(reject),
        })
    });
    let alone: Vec<Result<Ran, Reject>> = alone.collect();
    // Of several that are wrong always the same one is told.
    let alone = alone.into_iter().collect::<Result<_, _>>()?;
    Ok(MachineEvidence { together, alone })
}

/// The same for a tile program and no part of it, with so many element operations.
fn ran(tile: &TileProgram, schedule: &Schedule, target: &Target, most: u64) -> Result<Ran, Reject> {
    let whole = codegen::machines(tile, schedule, target)?;
    let malformed = whole.iter().flat_map(|m| [m.malformed(), m.beyond(target)]);
    let malformed: Vec<String> = malformed.flatten().map(|f| f.to_string()).collect();
    if !malformed.is_empty() {
        return Err(Reject::Wrong(malformed.join("; ")));
    }
    let paired: Vec<Option<AxisId>> = whole.iter().map(Machine::paired).collect();
    let Some((small, extents)) = smaller(tile, schedule, &paired, most) else {
        return Ok(not_run("one run of the tile program is too much work"));
    };
    // What is impossible at small extents may be possible at large ones.
    let machines = match codegen::machines(&small, schedule, target) {
        Ok(machines) => machines,
        Err(reject) => {
            let why = format!("at extents that are small enough it cannot be lowered: {reject}");
            return Ok(not_run(why));
        }
    };
    if machines.iter().map(kind).ne(whole.iter().map(kind)) {
        return Ok(not_run(
            "at extents that are small enough the same schedule is another machine program",
        ));
    }
    let mut unlike = String::new();
    // Where rounding decides, as between equal numbers, another order of sums may decide otherwise: what is wrong is so on all inputs.
    for draw in 0..DRAWS {
        match compared(&small, &machines, draw)? {
            Compared::Alike(0) => return Ok(not_run("no output element is a finite number")),
            Compared::Alike(elements) => {
                return Ok(Ran {
                    extents,
                    orders: ORDERS,
                    elements,
                    not_run: None,
                });
            }
            Compared::Unlike(what) => unlike = what,
            Compared::Unknown(why) => return Ok(not_run(why)),
        }
    }
    Err(Reject::Wrong(unlike))
}

/// What machine programs and a tile program gave on the same inputs.
enum Compared {
    /// So many finite output elements, and none that differs.
    Alike(u64),
    /// The first that differs.
    Unlike(String),
    /// The tile program gives nothing, and why.
    Unknown(String),
}

/// # Errors
/// What may go wrong in some order.
fn compared(tile: &TileProgram, machines: &[Machine], draw: u64) -> Result<Compared, Reject> {
    let inputs = inputs(tile, draw);
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, tensor)| tensor.clone()).collect();
    let want = match verify::simulate(tile, &tensors, SimulateOptions::default()) {
        Ok(want) => want,
        Err(why) => return Ok(Compared::Unknown(why.to_string())),
    };
    let inputs: Vec<Vec<f64>> = inputs.into_iter().map(|(data, _)| data).collect();
    let finite = |t: &Tensor| t.data.iter().filter(|x| x.is_finite()).count() as u64;
    for seed in 0..ORDERS {
        let got = check::run(tile, machines, &inputs, seed);
        let got = got.map_err(|fault| Reject::Wrong(format!("machine program: {fault}")))?;
        for (number, (got, want)) in got.iter().zip(&want).enumerate() {
            let finite = want.data.iter().filter(|x| x.is_finite());
            let top = finite.fold(0.0f64, |top, x| top.max(x.abs()));
            let alike = |g: f64, w: f64| {
                g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= RELATIVE * top + ABSOLUTE
            };
            let mut pairs = got.iter().zip(&want.data).enumerate();
            if let Some((at, (g, w))) = pairs.find(|(_, (g, w))| !alike(**g, **w)) {
                return Ok(Compared::Unlike(format!(
                    "machine program: element {at} of output {number} is {g:e}, and {w:e} by the tile program"
                )));
            }
        }
    }
    Ok(Compared::Alike(want.iter().map(finite).sum()))
}

/// What may not depend on extents: who copies, how, and whether blocks wait for each other or are persistent.
fn kind(machine: &Machine) -> (Vec<bool>, Vec<bool>, bool, bool) {
    let boxes = machine.regions.iter().map(|r| r.boxes.is_some());
    (
        machine.producers.iter().map(|p| p.boxed).collect(),
        boxes.collect(),
        machine.block_group.is_some_and(|t| t.size > 1),
        machine.grid.persistent && machine.grid.tiles > 2,
    )
}

/// The same at extents at which it can be run, and those that are smaller by name; none where there are none. `paired`: of each kernel the axis
/// along which the blocks of its clusters differ.
fn smaller(
    tile: &TileProgram,
    schedule: &Schedule,
    paired: &[Option<AxisId>],
    most: u64,
) -> Option<(TileProgram, BTreeMap<String, u64>)> {
    let stages = schedule.kernels.iter().map(|k| u64::from(pipeline::of(k)));
    let stages = stages.max().unwrap_or(1);
    let keep = |_: usize, _: AxisId| None;
    // Tiles of a loop, fewer each time.
    for loops in [2 * stages + 2, stages + 2, stages + 1] {
        // Coordinates that the kernels want of an axis; none of one that they do not mention.
        let wanted = |id: AxisId| {
            let axis = &tile.axes[id.index()];
            let each = tile
                .kernels
                .iter()
                .zip(&schedule.kernels)
                .zip(paired)
                .filter_map(|((k, s), paired)| {
                    let how = k.axes.get(&id)?;
                    let tiles = match how.role {
                        Role::Grid => {
                            let all = blocks(tile, k, s, id).max(reach(k, &k.body, id, loops));
                            let last = u64::from(!axis.extent.is_multiple_of(how.tile));
                            match *paired == Some(id) {
                                // Whole clusters.
                                true => {
                                    (all + last).next_multiple_of(u64::from(multicast::of(s)))
                                        - last
                                }
                                false => all,
                            }
                        }
                        Role::Loop => loops.max(reach(k, &k.body, id, loops)),
                        // Of an axis that is in one tile somewhere nothing can be left out.
                        Role::Whole => return Some(axis.extent),
                    };
                    Some(how.tile * tiles + axis.extent % how.tile)
                });
            each.max()
        };
        // What the kernels want of collapsed axes, by what these stand for.
        let of_collapsed = tile.collapsed.iter().flat_map(|(collapsed, members)| {
            let extents: Vec<u64> = members.iter().map(|m| tile.extent(*m)).collect();
            let shares = wanted(*collapsed).map(|wanted| shares(&extents, wanted));
            members.iter().copied().zip(shares.into_iter().flatten())
        });
        let of_collapsed: Vec<(AxisId, u64)> = of_collapsed.collect();
        let mut extents: BTreeMap<AxisId, u64> = BTreeMap::new();
        for alike in alike(tile) {
            let within = of_collapsed.iter().filter(|(a, _)| alike.contains(*a));
            let all = alike.iter().filter_map(wanted).chain(within.map(|x| x.1));
            let first = alike.iter().next();
            let extent = first.map_or(1, |a| tile.extent(a));
            let wanted = all.max().unwrap_or(extent);
            if wanted < extent {
                let mut shorter = extents.clone();
                shorter.extend(alike.iter().map(|a| (a, wanted)));
                if tile.resized(&shorter, keep).is_ok() {
                    extents = shorter;
                }
            }
        }
        let Ok(small) = tile.resized(&extents, keep) else {
            continue;
        };
        if work(&small, schedule).is_some_and(|work| work <= most) {
            let named = extents.iter().map(|(id, extent)| {
                let name = &tile.axes[id.index()].name;
                (name.clone(), *extent)
            });
            return Some((small, named.collect()));
        }
    }
    None
}

/// The axes but for collapsed ones, in sets of which all have to keep one extent: what a collapsed axis stands for, and what that is called in the buffers that
/// are loaded along it.
fn alike(tile: &TileProgram) -> Vec<AxisSet> {
    let all = (0..tile.axes.len() as u32).map(AxisId);
    let all = all.filter(|a| !tile.collapsed.contains_key(a));
    let mut sets: Vec<AxisSet> = all.map(|a| a.into_iter().collect()).collect();
    for value in tile.kernels.iter().flat_map(|k| &k.values) {
        let TileOp::Load { buffer, index, .. } = &value.op else {
            continue;
        };
        let mut own = tile.buffer(*buffer).axes();
        for along in tile.axes_loaded(*buffer, index) {
            let members = tile.members(*buffer, along);
            for (member, own) in members.iter().zip(own.by_ref()) {
                let met = |set: &AxisSet| set.contains(*member) || set.contains(own);
                if members.len() > 1 && *member != own {
                    let (met, apart): (Vec<AxisSet>, Vec<AxisSet>) =
                        sets.into_iter().partition(met);
                    sets = apart;
                    sets.push(met.iter().fold(AxisSet::new(), |all, set| all.union(set)));
                }
            }
        }
    }
    sets
}

/// Extents of what a collapsed axis stands for, slowest first, at most these, such that it has so many coordinates where that can be, and more where it cannot.
fn shares(extents: &[u64], wanted: u64) -> Vec<u64> {
    let (mut left, mut exact) = (wanted.max(1), Vec::with_capacity(extents.len()));
    for extent in extents.iter().skip(1).rev() {
        let mut lengths = (1..=left.min(*extent)).rev();
        let share = lengths.find(|n| left.is_multiple_of(*n)).unwrap_or(1);
        exact.push(share);
        left /= share;
    }
    exact.push(left);
    exact.reverse();
    if exact
        .iter()
        .zip(extents)
        .all(|(share, extent)| share <= extent)
    {
        return exact;
    }
    let each = extents.iter().enumerate().map(|(n, extent)| {
        let faster: u64 = extents[n + 1..].iter().product();
        wanted.div_ceil(faster).min(*extent)
    });
    each.collect()
}

/// Whole tiles that are wanted of a grid axis: two where blocks wait for each other along it, three of one axis where they are persistent.
fn blocks(tile: &TileProgram, kernel: &Kernel, schedule: &KernelSchedule, axis: AxisId) -> u64 {
    let several = |(a, how): (&AxisId, &ir::AxisTile)| {
        (how.role == Role::Grid && tile.extent(*a) > how.tile).then_some(*a)
    };
    if persistent::of(schedule) && kernel.axes.iter().find_map(several) == Some(axis) {
        3
    } else if kernel.block_group().iter().any(|a| a == axis) {
        2
    } else {
        1
    }
}

/// Tiles of an axis that bounds of loops mention, such that these loops have so many iterations somewhere.
fn reach(kernel: &Kernel, body: &[Statement], axis: AxisId, loops: u64) -> u64 {
    let of = |statement: &Statement| -> u64 {
        let Statement::Loop(l) = statement else {
            return 0;
        };
        let each = kernel.axes.get(&l.axis).map_or(1, |how| how.tile);
        let bounds = l.low.iter().chain(&l.high);
        let terms = bounds.flat_map(|b| b.terms.iter().map(move |t| (t, b.divisor)));
        let coordinates = terms.filter(|((c, a, _), _)| *a == axis && *c != 0);
        let needed = coordinates.map(|((c, _, _), divisor)| {
            let wanted = (loops * each).saturating_mul(divisor.unsigned_abs());
            wanted.div_ceil(c.unsigned_abs())
        });
        let own = kernel.axes.get(&axis).map_or(1, |how| how.tile);
        let here = needed.max().unwrap_or(0).div_ceil(own);
        here.max(reach(kernel, &l.body, axis, loops))
    };
    body.iter().map(of).max().unwrap_or(0)
}

/// What running machine programs takes, in element operations of matrix instructions; none where a tile program cannot be run.
fn work(tile: &TileProgram, schedule: &Schedule) -> Option<u64> {
    let of = |(number, s): (usize, &KernelSchedule)| {
        let work = verify::operations(&tile.alone(number)).ok()?;
        let all: Vec<_> = instruction::all(s)
            .map(|(_, c)| atoms::instruction(c.atom))
            .collect();
        let matrix = |i: &Option<&Instruction>| i.is_some_and(Instruction::is_matrix);
        let multiplies = !all.is_empty() && all.iter().all(matrix);
        let times = if multiplies { 1 } else { SLOWER };
        Some(work.saturating_mul(times))
    };
    let all = schedule.kernels.iter().enumerate().map(of);
    all.sum::<Option<u64>>()
}

/// Numbers for each parameter, multiples of 1/64 between −1 and 1, or of 1/128 between ½ and 3/2.
fn inputs(tile: &TileProgram, draw: u64) -> Vec<(Vec<f64>, Tensor)> {
    let mut parameters = BTreeMap::new();
    for buffer in &tile.buffers {
        if let ir::BufferRole::Parameter(n) = buffer.role {
            let dim = |d: &ir::Dim| d.0.iter().map(|a| tile.extent(*a) as usize).product();
            let shape: Vec<usize> = buffer.dims.iter().map(dim).collect();
            let count: usize = shape.iter().product();
            let number = |at: u64| {
                let bits = mix(mix(mix(draw) ^ u64::from(n)) ^ at);
                let signed = (bits % 129) as f64 / 64.0 - 1.0;
                // What another kernel would have stored may have to be positive, as a sum of squares is.
                match draw % 2 {
                    0 => signed,
                    _ => 1.0 + signed / 2.0,
                }
            };
            let data: Vec<f64> = (0..count as u64).map(number).collect();
            parameters.insert(n, (shape, data));
        }
    }
    let tensor = |(shape, data): (Vec<usize>, Vec<f64>)| {
        let tensor = Tensor::new(shape, data.clone()).ok()?;
        Some((data, tensor))
    };
    parameters.into_values().filter_map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_collapsed_axis_stands_for_is_short_together() {
        // Exactly, with the fastest as long as can be; else no less.
        assert_eq!(shares(&[32, 197], 288), [2, 144]);
        assert_eq!(shares(&[32, 40], 256), [8, 32]);
        assert_eq!(shares(&[32, 16, 80], 5120), [4, 16, 80]);
        assert_eq!(shares(&[32, 197], 257), [2, 197]);
        assert_eq!(shares(&[2, 3, 5], 17), [2, 3, 5]);
    }

    #[test]
    fn what_buffers_call_otherwise_is_short_with_it() {
        let text = "tile p\naxis b = 2, t = 3, p = 2, q = 3, n = 4, row = (b t)\nbuffer x = parameter 0 f32 [p, q, n]\n\
                    buffer out = output 0 f32 [b, t, n]\nkernel grid(row: 2, n: 2) {\n  xs = load x[row, n]\n  store out = xs\n}\n";
        let tile: TileProgram = text.parse().expect("well formed");
        let sets = alike(&tile);
        let named = |set: &AxisSet| -> Vec<&str> {
            set.iter()
                .map(|a| tile.axes[a.index()].name.as_str())
                .collect()
        };
        let mut named: Vec<Vec<&str>> = sets.iter().map(named).collect();
        named.sort();
        assert_eq!(named, [vec!["b", "p"], vec!["n"], vec!["t", "q"]]);
    }
}
