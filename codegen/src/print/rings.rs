//! Rings of slots, and the warps that do nothing but fill them.
//!
//! Each slot has two barriers. The one of *full* slots ends a phase when every copy of the slot has landed; the one of *empty* slots when
//! every warp that computes has done with it. Nothing else holds the warps of a loop together, so groups of them may drift apart by as
//! many iterations as there are slots.

use super::text::times;
use super::{Family, Printer};
use crate::cuda::{self, Node, line};
use crate::machine::{Producer, RegionId, Ring, RingId, Slot};

/// The parameter that describes what a region is copied from.
pub(super) fn map_name(region: RegionId) -> String {
    format!("map{}", region.0)
}

fn full(ring: &Ring, slot: &str) -> String {
    format!("shared + {} + 8 * {slot}", ring.barriers)
}

fn empty(ring: &Ring, slot: &str) -> String {
    full(ring, &format!("({} + {slot})", ring.slots))
}

fn previous(ring: &Ring, slot: &str) -> String {
    format!("({slot} == 0 ? {} : {slot} - 1)", ring.slots - 1)
}

impl Printer<'_> {
    fn ring(&self, id: RingId) -> (&Ring, String) {
        let ring = self.machine.ring(id);
        (ring, Self::slot(Slot::Current(ring.counter)))
    }

    pub(super) fn wait_full(&self, id: RingId) -> String {
        let (ring, slot) = self.ring(id);
        let wait = match self.machine.rings_are_fenced() {
            true => "tw_tile_wait",
            false => "tw_barrier_wait",
        };
        format!("{wait}({}, {slot}_parity);", full(ring, &slot))
    }

    pub(super) fn wait_empty(&self, id: RingId) -> String {
        let (ring, slot) = self.ring(id);
        format!("tw_barrier_wait({}, {slot}_parity);", empty(ring, &slot))
    }

    pub(super) fn release(&self, id: RingId) -> String {
        let (ring, slot) = self.ring(id);
        format!("tw_barrier_arrive({});", empty(ring, &slot))
    }

    pub(super) fn release_previous(&self, id: RingId) -> String {
        let (ring, slot) = self.ring(id);
        format!(
            "tw_barrier_arrive({});",
            empty(ring, &previous(ring, &slot))
        )
    }

    pub(super) fn release_peers(&self, id: RingId) -> String {
        let (ring, slot) = self.ring(id);
        self.arrive_at_peers(&empty(ring, &slot))
    }

    pub(super) fn release_previous_peers(&self, id: RingId) -> String {
        let (ring, slot) = self.ring(id);
        self.arrive_at_peers(&empty(ring, &previous(ring, &slot)))
    }

    fn arrive_at_peers(&self, barrier: &str) -> String {
        let size = self.machine.cluster;
        format!("tw_peers_arrive<{size}>({barrier}, rank);")
    }

    pub(super) fn copy_arrive(&self, id: RingId) -> String {
        let (ring, slot) = self.ring(id);
        format!("tw_copy_arrive({});", full(ring, &slot))
    }

    pub(super) fn open_ring(&self, id: RingId, parity: u32) -> Node {
        let slot = self.ring(id).1;
        line(format!("int {slot} = 0, {slot}_parity = {parity};"))
    }

    pub(super) fn advance_ring(&self, id: RingId) -> Node {
        let (ring, slot) = self.ring(id);
        line(format!(
            "if (++{slot} == {}) {slot} = 0, {slot}_parity ^= 1;",
            ring.slots
        ))
    }

    /// Asks for the boxes of a slot's regions.
    pub(super) fn copy_boxes(&self, id: RingId) -> Vec<Node> {
        let (ring, slot) = self.ring(id);
        let full = full(ring, &slot);
        let boxes = |r: &RegionId| Some((*r, self.machine.region(*r).boxes.as_ref()?));
        let all: Vec<_> = ring.regions.iter().filter_map(boxes).collect();
        let cluster = self.machine.cluster;
        let bytes: u64 = all.iter().map(|(_, b)| b.bytes(cluster)).sum();
        let mut nodes = vec![line(format!("tw_box_expect({full}, {bytes});"))];
        for (region, b) in all {
            let to = self.region_pointer(region, Slot::Current(ring.counter));
            let origins = b.axes.iter().map(|a| self.origin(*a));
            let mut coordinates: Vec<String> =
                origins.map(|o| o.unwrap_or_else(|| "0".into())).collect();
            let part = b.part(cluster);
            let ask = |to: String, coordinates: &[String]| {
                let (map, at) = (map_name(region), coordinates.join(", "));
                let name = match b.share {
                    None => "tw_box".to_owned(),
                    Some(_) => format!("tw_box_to_all<{cluster}>"),
                };
                line(format!("{name}({to}, {map}, {full}, {at});"))
            };
            // In a panel, and from panel to panel.
            let mut place = vec![to];
            if let Some((dimension, each)) = part.later {
                coordinates[dimension] = format!("{} + {each} * rank", coordinates[dimension]);
                place.push(format!("{} * rank", part.before));
            }
            let panel = match (part.panels, part.panels_before) {
                (1, 0) => None,
                (1, before) => Some(times(before as i64, "rank")),
                (_, 0) => Some("panel".to_owned()),
                (_, before) => Some(format!("({} + panel)", times(before as i64, "rank"))),
            };
            if let Some(panel) = panel {
                coordinates[0] = format!("{} + {} * {panel}", coordinates[0], b.span);
                place.push(format!("{} * {panel}", b.panel_elements(cluster)));
            }
            let asked = ask(place.join(" + "), &coordinates);
            match part.panels {
                1 => nodes.push(asked),
                several => nodes.push(cuda::unrolled("panel", several, vec![asked])),
            }
        }
        nodes
    }

    /// The barriers of a kernel in which some warps only copy.
    pub(super) fn make_barriers(&mut self, producer: &Producer) -> Vec<Node> {
        self.families.extend([Family::Async, Family::Barrier]);
        if producer.boxed {
            self.families.insert(Family::Box);
        }
        let warps = self.machine.computing() / 32;
        let arrivals = if producer.boxed { 1 } else { producer.threads };
        let mut init = Vec::new();
        for ring in &self.machine.rings {
            for slot in 0..ring.slots {
                let slot = slot.to_string();
                let (full, empty) = (full(ring, &slot), empty(ring, &slot));
                init.push(line(format!("tw_barrier_init({full}, {arrivals});")));
                let releases = warps * ring.readers;
                init.push(line(format!("tw_barrier_init({empty}, {releases});")));
            }
        }
        if producer.boxed {
            init.push(line("tw_barriers_made();"));
            init.extend(
                self.maps()
                    .map(|(r, _)| line(format!("tw_map_fetch({});", map_name(r)))),
            );
        }
        vec![
            Node::If {
                condition: "threadIdx.x == 0".into(),
                then: init,
                otherwise: Vec::new(),
            },
            line("__syncthreads();"),
        ]
    }

    /// Where the warps that only copy and the others part.
    pub(super) fn split_warps(&mut self, producer: &Producer) -> Vec<Node> {
        let warps = self.machine.computing() / 32;
        let mut copying = Vec::new();
        if let Some((fewer, _)) = producer.registers {
            copying.push(line(format!("tw_registers_less<{fewer}>();")));
        }
        let mut body = self.statements(&producer.body);
        if producer.boxed {
            body = vec![Node::If {
                condition: format!("threadIdx.x == {}", self.machine.computing()),
                then: body,
                otherwise: Vec::new(),
            }];
        }
        copying.extend(body);
        copying.extend(self.statements(&self.machine.epilogue));
        copying.push(line("return;"));
        let mut nodes = vec![Node::If {
            condition: format!("warp >= {warps}"),
            then: copying,
            otherwise: Vec::new(),
        }];
        if let Some((_, more)) = producer.registers {
            nodes.push(line(format!("tw_registers_more<{more}>();")));
        }
        nodes
    }
}
