//! The fastest schedules of kernels that differ from one in sizes alone.
//!
//! Kernels are *alike* where their texts are equal but for names, constants, extents and sides of tiles: of one program under other tiles, or of others.
//! Values of such kernels are numbered alike, so a schedule of one can be read as one of the other. Whether it can be lowered there is not known here.
//!
//! How far two that are alike are from each other is `Σ |ln(s/s')| + |ln(e/e')|` over their axes, with sides `s` of tiles and extents `e`: twice
//! the side of one axis is as far as twice its extent, and as half of either.

use ir::{KernelSchedule, TileOp, TileProgram};
use std::collections::HashMap;

/// Schedules of a kernel that are known: the fastest.
const KNOWN: usize = 2;

/// What is known of kernels, found by what they are like.
#[derive(Debug, Default)]
pub(super) struct Nearest {
    alike: HashMap<blake3::Hash, Vec<Kernel>>,
}

/// One of those that are alike.
#[derive(Debug)]
struct Kernel {
    /// Of each axis, the side of a tile and the extent.
    sizes: Vec<[u64; 2]>,
    /// With their microseconds, fastest first.
    fastest: Vec<(f64, KernelSchedule)>,
}

impl Nearest {
    /// A kernel, alone in a tile program, took so many microseconds under a schedule. Nothing of a tile program of several kernels.
    pub(super) fn add(&mut self, tile: &TileProgram, schedule: KernelSchedule, us: f64) {
        let Some((like, sizes)) = parts(tile) else {
            return;
        };
        let alike = self.alike.entry(like).or_default();
        let at = alike.iter().position(|kernel| kernel.sizes == sizes);
        let at = at.unwrap_or_else(|| {
            let fastest = Vec::new();
            alike.push(Kernel { sizes, fastest });
            alike.len() - 1
        });
        let fastest = &mut alike[at].fastest;
        match fastest.iter_mut().find(|(_, known)| *known == schedule) {
            Some((before, _)) => *before = before.min(us),
            None => fastest.push((us, schedule)),
        }
        fastest.sort_by(|x, y| x.0.total_cmp(&y.0));
        fastest.truncate(KNOWN);
    }

    /// The fastest schedules of the nearest kernel, itself included; none where none is alike. Of kernels equally far, those of the first that was added.
    pub(super) fn of(&self, tile: &TileProgram) -> Vec<KernelSchedule> {
        let Some((like, sizes)) = parts(tile) else {
            return Vec::new();
        };
        let alike = self.alike.get(&like).into_iter().flatten();
        let far = |kernel: &&Kernel| distance(&kernel.sizes, &sizes);
        let nearest = alike.min_by(|x, y| far(x).total_cmp(&far(y)));
        let fastest = nearest.into_iter().flat_map(|kernel| &kernel.fastest);
        fastest.map(|(_, schedule)| schedule.clone()).collect()
    }
}

/// Of two that have the same axes.
fn distance(one: &[[u64; 2]], other: &[[u64; 2]]) -> f64 {
    let pairs = one.as_flattened().iter().zip(other.as_flattened());
    pairs.map(|(x, y)| (*x as f64 / *y as f64).ln().abs()).sum()
}

/// What a kernel is like, and its sizes.
fn parts(tile: &TileProgram) -> Option<(blake3::Hash, Vec<[u64; 2]>)> {
    let mut tile = tile.clone();
    let [kernel] = &mut tile.kernels[..] else {
        return None;
    };
    let mut sizes = Vec::new();
    for (id, own) in &mut kernel.axes {
        sizes.push([own.tile, tile.axes[id.index()].extent]);
        own.tile = 1;
    }
    tile.axes.iter_mut().for_each(|axis| axis.extent = 1);
    for value in &mut kernel.values {
        if let TileOp::Constant(number) = &mut value.op {
            *number = 0.0;
        }
    }
    Some((blake3::hash(tile.kernel_name(0).as_bytes()), sizes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::Schedule;

    /// A sum over rows, of a program with one more parameter or none, where names are others.
    fn sum(i: u64, j: u64, side: u64, other: bool) -> TileProgram {
        let [x, y, unused] = match other {
            true => ["p", "q", "buffer z = parameter 0 f16 [q]\n"],
            false => ["i", "j", ""],
        };
        let place = usize::from(other);
        let text = format!(
            "tile of_{x}\naxis {x} = {i}, {y} = {j}\n{unused}buffer in{x} = parameter {place} f16 [{x}, {y}]\n\
             buffer out0 = output 0 f16 [{x}]\nkernel grid({x}: {side}) whole({y}: {j}) values(v, s) {{\n  \
             v = load in{x}[{x}, {y}]\n  s = reduce_sum(v; {y})\n  store out0 = s\n}}\n"
        );
        TileProgram::unchecked(&text).expect("a tile program")
    }

    fn schedule(warps: u32) -> KernelSchedule {
        let text = format!("kernel 0\n  warps 1 x {warps}\n");
        let tile = sum(64, 64, 1, false);
        let read = Schedule::parse(&text, "test", &codegen::language(), &tile);
        read.expect("a schedule").kernels.remove(0)
    }

    /// Oracle: the distances, by hand.
    #[test]
    fn the_fastest_schedules_of_the_nearest_come() {
        let mut known = Nearest::default();
        let mine = sum(64, 100, 4, false);
        assert!(known.of(&mine).is_empty());
        // 2 ln 2 from it: twice the extent of the whole axis is twice its side.
        known.add(&sum(64, 200, 4, false), schedule(2), 1.0);
        assert_eq!(known.of(&mine), [schedule(2)]);
        // ln 3: nearer, though it is of another program.
        for (warps, us) in [(4, 9.0), (8, 7.0), (16, 8.0), (8, 7.5)] {
            known.add(&sum(192, 100, 4, true), schedule(warps), us);
        }
        assert_eq!(known.of(&mine), [schedule(8), schedule(16)]);
        // ln 2: nearer still.
        known.add(&sum(64, 100, 2, false), schedule(1), 50.0);
        assert_eq!(known.of(&mine), [schedule(1)]);
        // It is nearest to itself.
        known.add(&mine, schedule(32), 60.0);
        assert_eq!(known.of(&mine), [schedule(32)]);
    }

    #[test]
    fn what_computes_something_else_is_not_alike() {
        let mut known = Nearest::default();
        let mine = sum(64, 100, 4, false);
        let text = mine.to_string();
        for other in [
            text.replace("reduce_sum", "reduce_max"),
            text.replace("f16 [i, j]", "f32 [i, j]"),
            text.replace("whole(j", "loop(j"),
        ] {
            assert_ne!(other, text);
            let tile = TileProgram::unchecked(&other).expect("a tile program");
            known.add(&tile, schedule(2), 1.0);
        }
        assert!(known.of(&mine).is_empty());
    }
}
