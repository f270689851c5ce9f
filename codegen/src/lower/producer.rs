//! Loops whose rings are filled by warps that do nothing else.
//!
//! Each slot has two barriers. The one of *full* slots ends a phase when every copy of the slot's tile has landed; the one of
//! *empty* slots when every warp that computes has done with the tile. Nothing else holds the warps of a loop together, so groups
//! of them may drift apart by as many iterations as there are slots. What a delayed contraction reads has a ring of its own,
//! which is emptied one iteration later.
//!
//! Where every tile is made of boxes of a tensor, one thread asks the hardware for them; else all threads of those warps copy.

use super::{Emitter, Family, line};
use crate::cuda::{self, Node, Unroll};
use crate::plan::SharedTile;
use crate::resources::{PRODUCER_REGISTERS, PRODUCER_THREADS};
use ir::{Reject, Target};

/// Registers of a thread beyond which there is nothing to gain from the others.
const ENOUGH_REGISTERS: u64 = 232;

/// The parameter that describes what a tile is copied from.
pub(super) fn map_name(tile: usize) -> String {
    format!("map{tile}")
}

/// A loop around others.
pub(super) struct Around {
    pub(super) number: usize,
    /// How far it goes.
    pub(super) bounds: Vec<Node>,
    /// Where an iteration is.
    pub(super) here: Vec<Node>,
}

/// The slots of one kind, and the tiles that have them.
struct Ring {
    /// The variable that counts slots.
    slot: String,
    tiles: Vec<usize>,
    slots: u64,
    /// Whether slots are emptied one iteration late.
    late: bool,
    /// Where the barriers of full slots begin in shared memory; those of empty slots follow.
    barriers: u64,
}

impl Ring {
    fn full(&self, slot: &str) -> String {
        format!("shared + {} + 8 * {slot}", self.barriers)
    }

    fn empty(&self, slot: &str) -> String {
        self.full(&format!("({} + {slot})", self.slots))
    }

    /// A slot is done with.
    fn release(&self, slot: &str) -> Node {
        line(format!("tw_barrier_arrive({});", self.empty(slot)))
    }

    /// The slot before the current one is done with.
    fn release_before(&self) -> Node {
        let slot = &self.slot;
        self.release(&format!("({slot} == 0 ? {} : {slot} - 1)", self.slots - 1))
    }

    fn open(&self, parity: u32) -> Node {
        let slot = &self.slot;
        line(format!("int {slot} = 0, {slot}_parity = {parity};"))
    }

    fn advance(&self) -> Node {
        let slot = &self.slot;
        line(format!(
            "if (++{slot} == {}) {slot} = 0, {slot}_parity ^= 1;",
            self.slots
        ))
    }
}

impl Emitter<'_> {
    fn rings(&self, number: usize) -> Vec<Ring> {
        let stages = u64::from(self.schedule.stages);
        let mut barriers = self.plan.tile_bytes();
        let mut rings = Vec::new();
        for late in [false, true] {
            let tiles = (0..self.plan.tiles.len())
                .filter(|t| self.plan.tiles[*t].in_loop == Some(number) && self.late(*t) == late);
            let ring = Ring {
                slot: format!("{}{number}", if late { "late" } else { "slot" }),
                tiles: tiles.collect(),
                slots: stages + u64::from(late),
                late,
                barriers,
            };
            barriers += 16 * ring.slots;
            if !ring.tiles.is_empty() {
                rings.push(ring);
            }
        }
        rings
    }

    /// What the warps do that fill the rings of a loop; `bounds` are the lines that say how far it goes, `here` those that say
    /// where an iteration is.
    pub(super) fn produce(
        &mut self,
        number: usize,
        bounds: &[Node],
        here: &dyn Fn(&Self) -> Vec<Node>,
    ) -> Result<(), Reject> {
        self.families.insert(Family::Async);
        self.families.insert(Family::Barrier);
        let rings = self.rings(number);
        let mut nodes = Vec::new();
        let mut tiles = rings.iter().flat_map(|r| &r.tiles);
        if self.waited && tiles.any(|t| self.is_filled_late(*t)) {
            nodes.push(line("tw_wait_before();"));
        }
        nodes.extend(rings.iter().map(|r| r.open(1)));
        let boxed = !self.plan.boxes.is_empty();
        let mut body = here(self);
        for ring in &rings {
            let slot = &ring.slot;
            body.push(line(format!(
                "tw_barrier_wait({}, {slot}_parity);",
                ring.empty(slot)
            )));
            if boxed {
                body.extend(self.fill_with_boxes(ring));
            } else {
                for t in &ring.tiles {
                    body.extend(self.fill(*t, slot)?);
                }
                body.push(line(format!("tw_copy_arrive({});", ring.full(slot))));
            }
            body.push(ring.advance());
        }
        let repeated = |number: usize, bounds: &[Node], body: Vec<Node>| -> Vec<Node> {
            let mut nodes = bounds.to_vec();
            nodes.push(Node::For {
                variable: format!("n{number}"),
                from: format!("first{number}"),
                to: format!("last{number}"),
                unroll: Unroll::By(1),
                body,
            });
            nodes
        };
        let mut all = repeated(number, bounds, body);
        for l in self.around.iter().rev() {
            let body = l.here.iter().cloned().chain(all).collect();
            all = repeated(l.number, &l.bounds, body);
        }
        if self.schedule.persistent {
            all = self.over_tiles(all);
        }
        nodes.extend(all);
        if boxed {
            self.families.insert(Family::Box);
            nodes = vec![Node::If {
                condition: format!("threadIdx.x == {}", self.plan.threads()),
                then: nodes,
                otherwise: Vec::new(),
            }];
        } else {
            nodes.push(line("tw_copies_end();"));
        }
        nodes.push(line("return;"));
        self.producer = nodes;
        Ok(())
    }

    /// Asks for the boxes of a slot's tiles.
    fn fill_with_boxes(&self, ring: &Ring) -> Vec<Node> {
        let full = ring.full(&ring.slot);
        let boxes = |t: &usize| &self.plan.boxes[t];
        let bytes: u64 = ring.tiles.iter().map(|t| boxes(t).bytes()).sum();
        let mut nodes = vec![line(format!("tw_box_expect({full}, {bytes});"))];
        for t in &ring.tiles {
            let b = boxes(t);
            let to = self.tile_pointer(*t, &ring.slot);
            let origins = b.axes.iter().map(|a| self.origin(*a));
            let mut coordinates: Vec<String> =
                origins.map(|o| o.unwrap_or_else(|| "0".into())).collect();
            let ask = |to: String, coordinates: &[String]| {
                let (map, at) = (map_name(*t), coordinates.join(", "));
                line(format!("tw_box({to}, {map}, {full}, {at});"))
            };
            if b.panels == 1 {
                nodes.push(ask(to, &coordinates));
                continue;
            }
            coordinates[0] = format!("{} + {} * panel", coordinates[0], b.span);
            let to = format!("{to} + {} * panel", b.elements());
            nodes.push(cuda::unrolled(
                "panel",
                b.panels,
                vec![ask(to, &coordinates)],
            ));
        }
        nodes
    }

    /// The beginning of a kernel in which some warps only copy: barriers, and the ways part.
    pub(super) fn split_warps(&self, target: &Target) -> Vec<Node> {
        let Some(number) = self.plan.produced else {
            return Vec::new();
        };
        let warps = self.plan.threads() / 32;
        let boxed = !self.plan.boxes.is_empty();
        let arrivals = if boxed { 1 } else { PRODUCER_THREADS };
        let mut init = Vec::new();
        for ring in self.rings(number) {
            for slot in 0..ring.slots {
                let slot = slot.to_string();
                let (full, empty) = (ring.full(&slot), ring.empty(&slot));
                init.push(line(format!("tw_barrier_init({full}, {arrivals});")));
                init.push(line(format!("tw_barrier_init({empty}, {warps});")));
            }
        }
        if boxed {
            let maps = self.plan.boxes.keys();
            init.push(line("tw_barriers_made();"));
            init.extend(maps.map(|t| line(format!("tw_map_fetch({});", map_name(*t)))));
        }
        let blocks = u64::from(self.schedule.blocks_per_sm);
        let all = self.plan.block_threads();
        let each = target.whole_registers(all * blocks);
        let left = each * all - PRODUCER_REGISTERS * PRODUCER_THREADS;
        let more = (left / self.plan.threads()).min(ENOUGH_REGISTERS + 8) / 8 * 8;
        let moves = each < ENOUGH_REGISTERS && each > PRODUCER_REGISTERS;
        let mut copying = Vec::new();
        if moves {
            copying.push(line(format!("tw_registers_less<{PRODUCER_REGISTERS}>();")));
        }
        copying.extend(self.producer.clone());
        let mut nodes = vec![
            Node::If {
                condition: "threadIdx.x == 0".into(),
                then: init,
                otherwise: Vec::new(),
            },
            line("__syncthreads();"),
            Node::If {
                condition: format!("warp >= {warps}"),
                then: copying,
                otherwise: Vec::new(),
            },
        ];
        if moves {
            nodes.push(line(format!("tw_registers_more<{more}>();")));
        }
        nodes
    }

    /// The tiles of a persistent block, one after another.
    fn over_tiles(&self, tile: Vec<Node>) -> Vec<Node> {
        let (grid, blocks) = self.grid.clone();
        let visits = format!("({blocks} - 1 - (int)blockIdx.x) / (int)gridDim.x + 1");
        vec![Node::For {
            variable: "visit".into(),
            from: "0".into(),
            to: visits,
            unroll: Unroll::By(1),
            body: grid.into_iter().chain(tile).collect(),
        }]
    }

    /// What the warps that compute do in a persistent block, where `tile` is what they do for one tile.
    pub(super) fn visited(&self, mut tile: Vec<Node>) -> Vec<Node> {
        let Some(number) = self.plan.produced else {
            return tile;
        };
        // What is not in a ring is written again for the next tile; and the first turn is given before the last one was taken.
        let beside = |t: &SharedTile| t.in_loop != Some(number);
        if self.plan.tiles.iter().any(beside) || self.turns(number) {
            tile.push(self.barrier());
        }
        let mut nodes = Vec::new();
        self.open_rings(number, &mut nodes);
        nodes.extend(self.over_tiles(tile));
        nodes
    }

    /// Before such a loop and those around it: its counters of slots.
    pub(super) fn open_rings(&self, number: usize, out: &mut Vec<Node>) {
        out.extend(self.rings(number).iter().map(|r| r.open(0)));
    }

    /// Before such a loop: the first turn.
    pub(super) fn open_turns(&self, number: usize, out: &mut Vec<Node>) {
        if self.turns(number) {
            out.push(Node::If {
                condition: format!("group == {}", self.plan.groups() - 1),
                then: vec![line("tw_turn_pass<256>(0);")],
                otherwise: Vec::new(),
            });
        }
    }

    /// The beginning of an iteration: its tiles have to be there.
    pub(super) fn await_tiles(&self, number: usize, body: &mut Vec<Node>) {
        // What the hardware copied, warpgroup instructions see without more.
        let wait = match self.plan.boxes.is_empty() {
            true => "tw_tile_wait",
            false => "tw_barrier_wait",
        };
        for ring in self.rings(number) {
            let slot = &ring.slot;
            body.push(line(format!("{wait}({}, {slot}_parity);", ring.full(slot))));
        }
    }

    /// The end of an iteration: its warp has done with its tiles, or with those of the iteration before.
    pub(super) fn give_back(&self, number: usize, body: &mut Vec<Node>) {
        body.push(line("__syncwarp();"));
        let rings = self.rings(number);
        for ring in &rings {
            let (condition, then) = if ring.late {
                let later = format!("lane == 0 && n{number} > first{number}");
                (later, ring.release_before())
            } else {
                ("lane == 0".to_string(), ring.release(&ring.slot))
            };
            body.push(Node::If {
                condition,
                then: vec![then],
                otherwise: Vec::new(),
            });
        }
        body.extend(rings.iter().map(Ring::advance));
    }

    /// Behind such a loop, if it runs again: its warp has done with the last tiles too.
    pub(super) fn give_back_last(&self, number: usize, out: &mut Vec<Node>) {
        if self.plan.outermost(number) == number && !self.schedule.persistent {
            return;
        }
        for ring in self.rings(number).iter().filter(|r| r.late) {
            out.push(line("__syncwarp();"));
            out.push(Node::If {
                condition: format!("lane == 0 && last{number} > first{number}"),
                then: vec![ring.release_before()],
                otherwise: Vec::new(),
            });
        }
    }
}
