//! Rings of slots, and the warps that do nothing but fill them.
//!
//! Each slot has two barriers. The one of *full* slots ends a phase when every copy of the slot has landed; the one of *empty* slots when
//! every warp that computes has done with it. Nothing else holds the warps of a loop together, so groups of them may drift apart by as
//! many iterations as there are slots.

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
        let before = format!("({slot} == 0 ? {} : {slot} - 1)", ring.slots - 1);
        format!("tw_barrier_arrive({});", empty(ring, &before))
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
        let bytes: u64 = all.iter().map(|(_, b)| b.bytes()).sum();
        let mut nodes = vec![line(format!("tw_box_expect({full}, {bytes});"))];
        for (region, b) in all {
            let to = self.region_pointer(region, Slot::Current(ring.counter));
            let origins = b.axes.iter().map(|a| self.origin(*a));
            let mut coordinates: Vec<String> =
                origins.map(|o| o.unwrap_or_else(|| "0".into())).collect();
            let ask = |to: String, coordinates: &[String]| {
                let (map, at) = (map_name(region), coordinates.join(", "));
                line(format!("tw_box({to}, {map}, {full}, {at});"))
            };
            if b.panels == 1 {
                nodes.push(ask(to, &coordinates));
                continue;
            }
            coordinates[0] = format!("{} + {} * panel", coordinates[0], b.span);
            let to = format!("{to} + {} * panel", b.elements());
            let asks = vec![ask(to, &coordinates)];
            nodes.push(cuda::unrolled("panel", b.panels, asks));
        }
        nodes
    }

    /// The beginning of a kernel in which some warps only copy: barriers, and the ways part.
    pub(super) fn split_warps(&mut self, producer: &Producer) -> Vec<Node> {
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
                init.push(line(format!("tw_barrier_init({empty}, {warps});")));
            }
        }
        if producer.boxed {
            init.push(line("tw_barriers_made();"));
            init.extend(
                self.maps()
                    .map(|(r, _)| line(format!("tw_map_fetch({});", map_name(r)))),
            );
        }
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
        copying.push(line("return;"));
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
        if let Some((_, more)) = producer.registers {
            nodes.push(line(format!("tw_registers_more<{more}>();")));
        }
        nodes
    }
}
