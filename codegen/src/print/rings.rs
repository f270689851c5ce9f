//! Rings of stages, and the warps that do nothing but fill them.
//!
//! Each stage has two barriers. The one of *full* stages ends a phase when every copy of the stage has landed; the one of *empty* stages when
//! every warp that computes has done with it. Nothing else holds the warps of a loop together, so groups of them may drift apart by as
//! many iterations as there are stages.

use super::Printer;
use super::text::times;
use crate::cuda::{self, Node, line};
use crate::families::Family;
use crate::machine::{Boxes, RegionId, Ring, RingId, Stage};

/// The parameter that describes what a region is copied from.
pub(super) fn map_name(region: RegionId) -> String {
    format!("map{}", region.0)
}

fn full(ring: &Ring, stage: &str) -> String {
    format!("shared + {} + 8 * {stage}", ring.barriers)
}

fn empty(ring: &Ring, stage: &str) -> String {
    full(ring, &format!("({} + {stage})", ring.stages))
}

fn previous(ring: &Ring, stage: &str) -> String {
    format!("({stage} == 0 ? {} : {stage} - 1)", ring.stages - 1)
}

impl Printer<'_> {
    fn ring(&self, id: RingId) -> (&Ring, String) {
        let ring = self.machine.ring(id);
        (ring, Self::stage(Stage::Current(ring.counter)))
    }

    pub(super) fn wait_full(&self, id: RingId) -> String {
        let (ring, stage) = self.ring(id);
        let wait = match self.machine.is_fenced(ring) {
            true => "tw_tile_wait",
            false => "tw_barrier_wait",
        };
        format!("{wait}({}, {stage}_parity);", full(ring, &stage))
    }

    pub(super) fn wait_empty(&self, id: RingId) -> String {
        let (ring, stage) = self.ring(id);
        format!("tw_barrier_wait({}, {stage}_parity);", empty(ring, &stage))
    }

    pub(super) fn release(&self, id: RingId) -> String {
        let (ring, stage) = self.ring(id);
        format!("tw_barrier_arrive({});", empty(ring, &stage))
    }

    pub(super) fn release_previous(&self, id: RingId) -> String {
        let (ring, stage) = self.ring(id);
        format!(
            "tw_barrier_arrive({});",
            empty(ring, &previous(ring, &stage))
        )
    }

    pub(super) fn release_peers(&self, id: RingId) -> String {
        let (ring, stage) = self.ring(id);
        self.arrive_at_peers(&empty(ring, &stage))
    }

    pub(super) fn release_previous_peers(&self, id: RingId) -> String {
        let (ring, stage) = self.ring(id);
        self.arrive_at_peers(&empty(ring, &previous(ring, &stage)))
    }

    fn arrive_at_peers(&self, barrier: &str) -> String {
        let size = self.machine.cluster;
        format!("tw_peers_arrive<{size}>({barrier}, rank);")
    }

    pub(super) fn copy_arrive(&self, id: RingId) -> String {
        let (ring, stage) = self.ring(id);
        format!("tw_copy_arrive({});", full(ring, &stage))
    }

    pub(super) fn filled(&self, id: RingId) -> String {
        let (ring, stage) = self.ring(id);
        format!("tw_barrier_arrive({});", full(ring, &stage))
    }

    pub(super) fn open_ring(&self, id: RingId, parity: u32) -> Node {
        let stage = self.ring(id).1;
        line(format!("int {stage} = 0, {stage}_parity = {parity};"))
    }

    pub(super) fn advance_ring(&self, id: RingId) -> Node {
        let (ring, stage) = self.ring(id);
        line(format!(
            "if (++{stage} == {}) {stage} = 0, {stage}_parity ^= 1;",
            ring.stages
        ))
    }

    /// Asks for the boxes of a stage's regions.
    pub(super) fn copy_boxes(&self, id: RingId) -> Vec<Node> {
        let (ring, stage) = self.ring(id);
        let full = full(ring, &stage);
        let boxes = |r: &RegionId| Some((*r, self.machine.region(*r).boxes.as_ref()?));
        let all: Vec<_> = ring.regions.iter().filter_map(boxes).collect();
        let cluster = self.machine.cluster;
        let bytes: u64 = all.iter().map(|(_, b)| b.bytes(cluster)).sum();
        let mut nodes = vec![line(format!("tw_box_expect({full}, {bytes});"))];
        for (region, b) in all {
            let to = self.region_pointer(region, Stage::Current(ring.counter));
            let name = match b.share {
                None => "tw_box".to_owned(),
                Some(_) => format!("tw_box_to_all<{cluster}>"),
            };
            nodes.push(self.each_box(b, |place, at| {
                let place: String = place.iter().map(|p| format!(" + {p}")).collect();
                let map = map_name(region);
                line(format!("{name}({to}{place}, {map}, {full}, {at});"))
            }));
        }
        nodes
    }

    /// Asks L2 for the boxes of regions.
    pub(super) fn prefetch_boxes(&self, regions: &[RegionId]) -> Vec<Node> {
        let boxes = |r: &RegionId| Some((*r, self.machine.region(*r).boxes.as_ref()?));
        let all = regions.iter().filter_map(boxes);
        let asked = all.map(|(region, b)| {
            self.each_box(b, |_, at| {
                line(format!("tw_box_prefetch({}, {at});", map_name(region)))
            })
        });
        asked.collect()
    }

    /// What is done for each box that this block copies of a region: by its place in the region, as terms, and its coordinates.
    fn each_box(&self, b: &Boxes, done: impl Fn(&[String], &str) -> Node) -> Node {
        let cluster = self.machine.cluster;
        let origins = b.axes.iter().map(|a| self.origin(*a));
        let mut coordinates: Vec<String> =
            origins.map(|o| o.unwrap_or_else(|| "0".into())).collect();
        let part = b.part(cluster);
        // In a swizzle atom, and from swizzle atom to swizzle atom.
        let mut place = Vec::new();
        if let Some((dimension, each)) = part.later {
            coordinates[dimension] = format!("{} + {each} * rank", coordinates[dimension]);
            place.push(format!("{} * rank", part.before));
        }
        let swizzle_atom = match (part.swizzle_atoms, part.swizzle_atoms_before) {
            (1, 0) => None,
            (1, before) => Some(times(before as i64, "rank")),
            (_, 0) => Some("swizzle_atom".to_owned()),
            (_, before) => Some(format!("({} + swizzle_atom)", times(before as i64, "rank"))),
        };
        if let Some(swizzle_atom) = swizzle_atom {
            coordinates[0] = format!("{} + {} * {swizzle_atom}", coordinates[0], b.span);
            place.push(format!(
                "{} * {swizzle_atom}",
                b.swizzle_atom_elements(cluster)
            ));
        }
        let one = done(&place, &coordinates.join(", "));
        match part.swizzle_atoms {
            1 => one,
            several => cuda::unrolled("swizzle_atom", several, vec![one]),
        }
    }

    /// The barriers of a kernel in which some warps only copy.
    pub(super) fn make_barriers(&mut self) -> Vec<Node> {
        self.families.extend([Family::Async, Family::Barrier]);
        let boxed = self.machine.producers.iter().any(|p| p.boxed);
        if boxed {
            self.families.insert(Family::Box);
        }
        let mut init = Vec::new();
        for ring in &self.machine.rings {
            let filler = self.machine.filler(ring);
            let arrivals = filler.map_or(0, |p| if p.boxed { 1 } else { p.threads });
            for stage in 0..ring.stages {
                let stage = stage.to_string();
                let (full, empty) = (full(ring, &stage), empty(ring, &stage));
                init.push(line(format!("tw_barrier_init({full}, {arrivals});")));
                let releases = self.machine.readers(ring) * ring.readers;
                init.push(line(format!("tw_barrier_init({empty}, {releases});")));
            }
        }
        if boxed {
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

    /// Where the warps that only fill rings and the others part: the last kind first.
    pub(super) fn split_warps(&mut self) -> Vec<Node> {
        let machine = self.machine;
        let mut nodes = Vec::new();
        for (number, producer) in (0u32..)
            .zip(&machine.producers)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let first = machine.threads_of(Some(number)).start;
            let mut filling = Vec::new();
            if let Some(fewer) = producer.registers {
                filling.push(line(format!("tw_registers_less<{fewer}>();")));
            }
            self.fills = Some(number);
            let mut body = self.statements(&producer.body);
            self.fills = None;
            if producer.boxed {
                body = vec![Node::If {
                    condition: format!("threadIdx.x == {first}"),
                    then: body,
                    otherwise: Vec::new(),
                }];
            }
            filling.extend(body);
            filling.extend(self.statements(&machine.epilogue));
            filling.push(line("return;"));
            nodes.push(Node::If {
                condition: format!("warp >= {}", first / 32),
                then: filling,
                otherwise: Vec::new(),
            });
        }
        if let Some(more) = machine.registers {
            nodes.push(line(format!("tw_registers_more<{more}>();")));
        }
        nodes
    }
}
