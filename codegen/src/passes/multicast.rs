//! Lets the blocks of a cluster copy what they all read once: each asks for a part of a tile, and the hardware writes it to all of them.
//!
//! ```text
//! before                                       after, in a cluster of two
//!                                              prologue: ClusterBegins
//! producer:                                    producer:
//!   Empty(k)                                     Empty(k)
//!   CopyBoxes(k)                                 CopyBoxes(k)            a half of the shared region, to both blocks
//!   AdvanceRing(k)                               AdvanceRing(k)
//! body:                                        body:
//!   Full(k)                                      Full(k)                 its own copies have landed, and the other block's
//!   …                                            …
//!   If(Lane0) Release(k)                         If(Lane0) Release(k), ReleasePeers(k)
//!                                              epilogue: ClusterEnds
//! rings: k: readers: 1                         rings: k: readers: 2
//! regions: boxes: share: None                  regions: boxes: share: Some(SwizzleAtoms)
//! ```
//!
//! Blocks with neighbouring numbers are a cluster, so their tiles differ along one axis of the grid. A region is shared whose boxes do not depend
//! on that axis, and whose swizzle atoms, or lines of each swizzle atom, are as many for each block. A stage of its ring is empty when the warps of
//! all blocks have done with it, since each of these is written by all. The blocks meet before any of them uses another's barriers, and before any of
//! them ends.
//!
//! It is legal where the blocks of a cluster go through the same iterations: no loop has bounds along that axis, and each block has as many tiles.

use super::{Apply, Behind, Pass};
use crate::machine::{Boxes, Grid, Machine, RegionId, Share, Statement, Sync};
use ir::{Argument, AxisId, Bound, Form, KernelSchedule, Part, Reject, Step};

/// Blocks of the clusters that there are.
const SIZE: u64 = 2;

pub(crate) static PASS: Pass = Pass {
    form: Form {
        word: "cluster",
        parts: &[Part::Count {
            name: "N",
            of: "blocks of a cluster",
            // No GPU has larger ones.
            most: 16,
        }],
        required: false,
        help: "blocks with neighbouring numbers copy once what all of them read",
    },
    behind: &[Behind::needs(
        "roles",
        "the hardware copies to several blocks for warps that do nothing else",
    )],
    apply: Apply::Synchronised(|machine, step, _, _| multicast(machine, step.count().into())),
};

/// Clusters of so many blocks, which copy once what all of them read.
pub fn step(blocks: u32) -> Step {
    Step::new(&PASS.form, [Argument::Count(blocks)])
}

/// Blocks of a cluster; 1 where each copies for itself.
pub fn of(schedule: &KernelSchedule) -> u32 {
    let [blocks] = schedule.counts(&PASS.form);
    blocks
}

/// The machine program in clusters of so many blocks.
///
/// # Errors
/// [`Reject::Schedule`] where its blocks cannot share what they copy, and why.
pub(crate) fn multicast(mut machine: Machine, size: u64) -> Result<Machine, Reject> {
    if size <= 1 {
        return Ok(machine);
    }
    let refused = |why: String| Reject::Schedule(format!("{}: a cluster {why}", machine.name));
    if size != SIZE {
        return Err(refused(format!("of {size} blocks, where {SIZE} are known")));
    }
    if !machine.producers.iter().any(|p| p.boxed) {
        return Err(refused(
            "whose tiles no warps of their own copy in boxes".into(),
        ));
    }
    if machine.block_group.is_some() {
        return Err(refused("of blocks that make a result together".into()));
    }
    let axis = paired(&machine.grid, size).map_err(|why| refused(why.into()))?;
    let name = machine.axes.get(&axis).map_or("?", |a| &a.name);
    let producers = machine.producers.iter().flat_map(|p| &p.body);
    if machine
        .body
        .iter()
        .chain(producers)
        .any(|s| is_bounded(s, axis))
    {
        return Err(refused(format!(
            "whose loops run longer for one block than for another: their bounds depend on {name}"
        )));
    }
    let regions = machine.rings.iter().flat_map(|ring| &ring.regions);
    let boxes = regions.filter_map(|id| Some((*id, machine.region(*id).boxes.as_ref()?)));
    let alike: Vec<(RegionId, &Boxes)> = boxes.filter(|(_, b)| !b.axes.contains(&axis)).collect();
    if alike.is_empty() {
        return Err(refused(format!(
            "whose blocks read nothing alike: everything depends on {name}"
        )));
    }
    let parts = alike
        .iter()
        .filter_map(|(id, b)| Some((*id, share(b, size)?)));
    let shares: Vec<(RegionId, Share)> = parts.collect();
    if shares.is_empty() {
        return Err(refused(
            "whose blocks read nothing alike that is as much for each".into(),
        ));
    }
    for (id, share) in &shares {
        if let Some(boxes) = &mut machine.regions[id.0 as usize].boxes {
            boxes.share = Some(*share);
            if let Share::Dimension(d) = share {
                boxes.map.sizes[*d] /= size as u32;
            }
        }
    }
    for ring in &mut machine.rings {
        if ring
            .regions
            .iter()
            .any(|id| shares.iter().any(|s| s.0 == *id))
        {
            ring.readers = size;
        }
    }
    machine.cluster = size;
    let mut body = std::mem::take(&mut machine.body);
    release(&machine, &mut body);
    machine.body = body;
    machine.prologue.push(Statement::Sync(Sync::ClusterBegins));
    machine.epilogue.push(Statement::Sync(Sync::ClusterEnds));
    Ok(machine)
}

impl Machine {
    /// The axis along which the tiles of a cluster's blocks differ; none where blocks are alone.
    pub fn paired(&self) -> Option<AxisId> {
        let several = self.cluster > 1;
        several
            .then(|| paired(&self.grid, self.cluster).ok())
            .flatten()
    }
}

/// The axis along which the tiles of so many blocks differ whose numbers follow one another, from a multiple on.
fn paired(grid: &Grid, size: u64) -> Result<AxisId, &'static str> {
    let mut moving = grid.coordinates.iter().filter(|c| c.count > 1);
    let Some(fast) = moving.next() else {
        return Err("of one block alone: the grid has one tile");
    };
    let Some(raster) = grid.raster else {
        return match fast.count.is_multiple_of(size) {
            true => Ok(fast.axis),
            false => Err(
                "whose last one is not whole: the tiles along the fastest axis of the grid are no multiple of its blocks",
            ),
        };
    };
    // A raster goes over its height first, which is less in the last one.
    if !raster.height.is_multiple_of(size) {
        return Err(
            "whose blocks are in different columns: the tiles that the raster walks together are no multiple of them",
        );
    }
    if !raster.slow.is_multiple_of(size) {
        return Err(
            "whose last one is not whole: the tiles along the second fastest axis of the grid are no multiple of its blocks",
        );
    }
    moving
        .next()
        .map(|slow| slow.axis)
        .ok_or("whose raster has one axis")
}

/// Whether how far a loop goes depends on where the tile is along an axis.
fn is_bounded(statement: &Statement, axis: AxisId) -> bool {
    if let Statement::Range { low, high, .. } = statement {
        let mut axes = low.iter().chain(high).flat_map(Bound::axes);
        return axes.any(|a| a == axis);
    }
    let mut inside = statement.lists().into_iter().flatten();
    inside.any(|s| is_bounded(s, axis))
}

/// How so many blocks share out a region, if each can copy as much of it.
fn share(boxes: &Boxes, size: u64) -> Option<Share> {
    /// Lines after which chunks are permuted as before.
    const PERIOD: u64 = 8;
    if boxes.swizzle_atoms.is_multiple_of(size) {
        return Some(Share::SwizzleAtoms);
    }
    // The outermost dimension of a box: its parts lie one behind the other.
    let last = boxes.map.sizes.iter().rposition(|n| *n > 1)?;
    let lines = boxes.elements() / boxes.span;
    let whole = last > 0
        && u64::from(boxes.map.sizes[last]).is_multiple_of(size)
        && lines.is_multiple_of(size * PERIOD);
    whole.then_some(Share::Dimension(last))
}

/// Beside each release of a stage that other blocks write too, the same for these.
fn release(machine: &Machine, body: &mut Vec<Statement>) {
    for mut statement in std::mem::take(body) {
        for inside in statement.lists_mut() {
            release(machine, inside);
        }
        let peers = if let Statement::Sync(Sync::Release(ring)) = statement {
            Some((ring, Sync::ReleasePeers(ring)))
        } else if let Statement::Sync(Sync::ReleasePrevious(ring)) = statement {
            Some((ring, Sync::ReleasePreviousPeers(ring)))
        } else {
            None
        };
        body.push(statement);
        if let Some((_, sync)) = peers.filter(|(ring, _)| machine.ring(*ring).readers > 1) {
            body.push(Statement::Sync(sync));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// A product of 256 rows and 128 columns in tiles of 64 × 64: one thread asks for boxes of both operands.
    const PRODUCT: &str = r#"(
      name: "product",
      axes: {
        0: (name: "m", extent: 256, tile: 64, whole: false),
        1: (name: "n", extent: 128, tile: 64, whole: false),
        2: (name: "k", extent: 512, tile: 64, whole: false),
      },
      buffers: {}, warps: (4, 1), blocks_per_sm: 1, precise: false, fragments: [],
      regions: [
        (name: "a", dtype: Bf16, axes: [], elements: 4096, stages: 2, offset: 0, swizzle: None, patch: [],
         boxes: (map: (buffer: 0, offset: 0, extents: [512, 256], strides: [1024], sizes: [64, 64], line_bytes: 128),
                 axes: [2, 0], span: 64, swizzle_atoms: 1, share: None)),
        (name: "b", dtype: Bf16, axes: [], elements: 4096, stages: 2, offset: 16384, swizzle: None, patch: [],
         boxes: (map: (buffer: 1, offset: 0, extents: [128, 512], strides: [256], sizes: [64, 64], line_bytes: 128),
                 axes: [1, 2], span: 64, swizzle_atoms: 1, share: None)),
      ],
      rings: [
        (counter: (number: 0, delayed: false), regions: ["s0"], stages: 2, readers: 1, barriers: 32768),
        (counter: (number: 0, delayed: true), regions: ["s1"], stages: 2, readers: 1, barriers: 32800),
      ],
      scratch: (offset: 32832, bytes: 0),
      grid: (coordinates: [(axis: 1, count: 2, descending: false), (axis: 0, count: 4, descending: false)], raster: None, tiles: 8, persistent: false),
      block_group: None, cluster: 1, split_workspace: (bytes: 0, counters: 0, together: 0), prologue: [],
      registers: None, producers: [(threads: 128, boxed: true, registers: None, body: [
        Range(number: 0, axis: 2, low: [], high: []),
        Loop(number: 0, body: [
          Sync(Empty("ring0")), CopyBoxes("ring0"), AdvanceRing("ring0"), Sync(Empty("ring1")), CopyBoxes("ring1"), AdvanceRing("ring1"),
        ]),
      ])],
      body: [
        Range(number: 0, axis: 2, low: [], high: []),
        Loop(number: 0, body: [
          Sync(Full("ring0")), Sync(Warp), If(condition: Lane0, then: [Sync(Release("ring0"))], otherwise: []), AdvanceRing("ring0"),
          Sync(Full("ring1")), Sync(Warp), If(condition: Lane0, then: [Sync(ReleasePrevious("ring1"))], otherwise: []), AdvanceRing("ring1"),
        ]),
      ],
      epilogue: [], overlaps: false,
    )"#;

    fn read(text: &str) -> Machine {
        text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    /// The lines that the pass takes out and puts in, or why it does not.
    fn changes(machine: Machine, size: u64) -> String {
        let before = machine.to_string();
        let after = match multicast(machine, size) {
            Ok(after) => after.to_string(),
            Err(reject) => return reject.to_string(),
        };
        let (old, new): (Vec<&str>, Vec<&str>) =
            (before.lines().collect(), after.lines().collect());
        // Of the last lines of both, how many are alike at most, one behind the other.
        let mut alike = vec![vec![0; new.len() + 1]; old.len() + 1];
        for i in (0..old.len()).rev() {
            for j in (0..new.len()).rev() {
                alike[i][j] = match old[i] == new[j] {
                    true => alike[i + 1][j + 1] + 1,
                    false => alike[i + 1][j].max(alike[i][j + 1]),
                };
            }
        }
        let (mut i, mut j, mut out) = (0, 0, String::new());
        while i < old.len() || j < new.len() {
            if i < old.len() && j < new.len() && old[i] == new[j] {
                (i, j) = (i + 1, j + 1);
            } else if j == new.len() || i < old.len() && alike[i + 1][j] >= alike[i][j + 1] {
                out.push_str(&format!("- {}\n", old[i].trim()));
                i += 1;
            } else {
                out.push_str(&format!("+ {}\n", new[j].trim()));
                j += 1;
            }
        }
        out
    }

    #[test]
    fn what_both_read_is_copied_once() {
        expect![[r#"
            - (name: "a", dtype: Bf16, axes: [], elements: 4096, stages: 2, offset: 0, swizzle: None, patch: [], boxes: (map: (buffer: 0, offset: 0, extents: [512, 256], strides: [1024], sizes: [64, 64], line_bytes: 128), axes: [2, 0], span: 64, swizzle_atoms: 1, share: None)), // s0
            + (name: "a", dtype: Bf16, axes: [], elements: 4096, stages: 2, offset: 0, swizzle: None, patch: [], boxes: (map: (buffer: 0, offset: 0, extents: [512, 256], strides: [1024], sizes: [64, 32], line_bytes: 128), axes: [2, 0], span: 64, swizzle_atoms: 1, share: Dimension(1))), // s0
            - (counter: (number: 0, delayed: false), regions: ["s0"], stages: 2, readers: 1, barriers: 32768), // ring0
            + (counter: (number: 0, delayed: false), regions: ["s0"], stages: 2, readers: 2, barriers: 32768), // ring0
            - cluster: 1,
            + cluster: 2,
            - prologue: [],
            + prologue: [
            + Sync(ClusterBegins),
            + ],
            + Sync(ReleasePeers("ring0")),
            - epilogue: [],
            + epilogue: [
            + Sync(ClusterEnds),
            + ],
        "#]].assert_eq(&changes(read(PRODUCT), 2));
        // Blocks with other rows read the same columns.
        let raster = PRODUCT.replace("raster: None", "raster: (fast: 2, slow: 4, height: 2)");
        let swizzle_atoms = raster.replace(
            "sizes: [64, 64], line_bytes: 128),\n                 axes: [1, 2], span: 64, swizzle_atoms: 1",
            "sizes: [64, 64], line_bytes: 128),\n                 axes: [1, 2], span: 64, swizzle_atoms: 2",
        );
        expect![[r#"
            - (name: "b", dtype: Bf16, axes: [], elements: 4096, stages: 2, offset: 16384, swizzle: None, patch: [], boxes: (map: (buffer: 1, offset: 0, extents: [128, 512], strides: [256], sizes: [64, 64], line_bytes: 128), axes: [1, 2], span: 64, swizzle_atoms: 2, share: None)), // s1
            + (name: "b", dtype: Bf16, axes: [], elements: 4096, stages: 2, offset: 16384, swizzle: None, patch: [], boxes: (map: (buffer: 1, offset: 0, extents: [128, 512], strides: [256], sizes: [64, 64], line_bytes: 128), axes: [1, 2], span: 64, swizzle_atoms: 2, share: SwizzleAtoms)), // s1
            - (counter: (number: 0, delayed: true), regions: ["s1"], stages: 2, readers: 1, barriers: 32800), // ring1
            + (counter: (number: 0, delayed: true), regions: ["s1"], stages: 2, readers: 2, barriers: 32800), // ring1
            - cluster: 1,
            + cluster: 2,
            - prologue: [],
            + prologue: [
            + Sync(ClusterBegins),
            + ],
            + Sync(ReleasePreviousPeers("ring1")),
            - epilogue: [],
            + epilogue: [
            + Sync(ClusterEnds),
            + ],
        "#]].assert_eq(&changes(read(&swizzle_atoms), 2));
        assert_eq!(changes(read(PRODUCT), 1), "");
    }

    #[test]
    fn what_cannot_be_shared_says_why() {
        let with = |from: &str, to: &str| {
            assert!(PRODUCT.contains(from), "{from}");
            changes(read(&PRODUCT.replace(from, to)), 2)
        };
        let all = [
            changes(read(PRODUCT), 4),
            with("boxed: true", "boxed: false"),
            with(
                "block_group: None",
                "block_group: (size: 2, waits: false, grid_barriers: 0)",
            ),
            with(
                "count: 2, descending: false), (axis: 0, count: 4",
                "count: 1, descending: false), (axis: 0, count: 1",
            ),
            with("(axis: 1, count: 2", "(axis: 1, count: 3"),
            with("raster: None", "raster: (fast: 2, slow: 4, height: 3)"),
            with("raster: None", "raster: (fast: 2, slow: 3, height: 2)"),
            with(
                "Range(number: 0, axis: 2, low: [], high: [])",
                "Range(number: 0, axis: 2, low: [], high: [(terms: [(1, 1, Last)], offset: 1, divisor: 1)])",
            ),
            with("axes: [2, 0]", "axes: [2, 0, 1]"),
            with(
                "strides: [1024], sizes: [64, 64]",
                "strides: [1024], sizes: [64, 24]",
            ),
        ];
        expect![[r#"
            schedule: product: a cluster of 4 blocks, where 2 are known
            schedule: product: a cluster whose tiles no warps of their own copy in boxes
            schedule: product: a cluster of blocks that make a result together
            schedule: product: a cluster of one block alone: the grid has one tile
            schedule: product: a cluster whose last one is not whole: the tiles along the fastest axis of the grid are no multiple of its blocks
            schedule: product: a cluster whose blocks are in different columns: the tiles that the raster walks together are no multiple of them
            schedule: product: a cluster whose last one is not whole: the tiles along the second fastest axis of the grid are no multiple of its blocks
            schedule: product: a cluster whose loops run longer for one block than for another: their bounds depend on n
            schedule: product: a cluster whose blocks read nothing alike: everything depends on n
            schedule: product: a cluster whose blocks read nothing alike that is as much for each"#]].assert_eq(&all.join("\n"));
    }
}
