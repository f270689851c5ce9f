//! A whole kernel: its arguments, where its blocks are, and what its roles do.

use super::Printer;
use super::rings::map_name;
use super::text::{holder, identifier, times};
use crate::cuda::{self, Node, Unroll, line};
use crate::families::Family;
use crate::machine::{Argument, Boxes, Raster, RegionId, Statement};
use crate::resources::SWIZZLE_BYTES;
use ir::BufferId;

impl Printer<'_> {
    /// Appends the kernel's text.
    pub(super) fn kernel(&mut self, out: &mut String) {
        let machine = self.machine;
        let blocks = if machine.grid.persistent {
            Vec::new()
        } else {
            self.grid()
        };
        let (barriers, split) = match machine.producers.is_empty() {
            true => (Vec::new(), Vec::new()),
            false => (self.make_barriers(), self.split_warps()),
        };
        let prologue = self.statements(&machine.prologue);
        let body = self.statements(&machine.body);
        let epilogue = self.statements(&machine.epilogue);
        let mut nodes = vec![
            line("const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;"),
            line("(void)lane; (void)warp;"),
        ];
        if machine.cluster > 1 {
            self.families.insert(Family::Cluster);
            if machine.rings.iter().any(|r| r.readers > 1) {
                self.families.insert(Family::Multicast);
            }
            let size = machine.cluster;
            nodes.push(line(format!("const int rank = tw_cluster_rank<{size}>();")));
        }
        nodes.extend(barriers);
        nodes.extend(prologue);
        let aligned = if self.families.contains(&Family::Warpgroup) {
            nodes.push(line(
                "const int group = __shfl_sync(0xffffffffu, warp >> 2, 0);",
            ));
            SWIZZLE_BYTES
        } else {
            128
        };
        nodes.extend(blocks);
        nodes.extend(self.thread_parts());
        nodes.extend(split);
        nodes.extend(body);
        nodes.extend(epilogue);
        let cluster = match machine.cluster {
            1 => String::new(),
            size => format!("__cluster_dims__({size}, 1, 1) "),
        };
        out.push_str(&format!(
            "\nextern \"C\" __global__ void __launch_bounds__({}, {}) {cluster}{}({}) {{\n",
            machine.threads(),
            machine.blocks_per_sm,
            machine.name,
            self.parameters().join(", ")
        ));
        if machine.shared_bytes() > 0 {
            out.push_str(&format!(
                "  extern __shared__ __align__({aligned}) unsigned char shared[];\n"
            ));
        }
        cuda::print(&nodes, 1, out);
        out.push_str("}\n");
    }

    fn parameters(&self) -> Vec<String> {
        let machine = self.machine;
        let pointer = |(buffer, argument): (&BufferId, &Argument)| {
            let constant = if argument.written { "" } else { "const " };
            // What is written while the kernel waits may not be read ahead.
            let alone = if argument.dependent {
                ""
            } else {
                "__restrict__ "
            };
            let kind = holder(argument.dtype);
            format!("{constant}{kind}* {alone}{}", self.pointer(*buffer))
        };
        let mut parameters: Vec<String> = machine.buffers.iter().map(pointer).collect();
        if machine.split_workspace.bytes > 0 {
            parameters.push("unsigned char* split_workspace".into());
        }
        parameters.extend(
            self.maps()
                .map(|(r, _)| format!("const __grid_constant__ tw_map {}", map_name(r))),
        );
        parameters
    }

    /// The regions that the hardware copies.
    pub(super) fn maps(&self) -> impl Iterator<Item = (RegionId, &Boxes)> {
        let regions = self.machine.regions.iter().enumerate();
        regions.filter_map(|(i, r)| Some((RegionId(i as u32), r.boxes.as_ref()?)))
    }

    pub(super) fn pointer(&self, buffer: BufferId) -> String {
        let name = &self.machine.buffers[&buffer].name;
        format!("p{}_{}", buffer.0, identifier(name))
    }

    /// The block's coordinates.
    pub(super) fn grid(&mut self) -> Vec<Node> {
        let machine = self.machine;
        let mut nodes = self.block_number();
        nodes.extend(machine.grid.raster.map(raster));
        for own in &machine.grid.coordinates {
            let (name, count) = (self.base(own.axis), own.count);
            let digit = match own.descending {
                true => format!("({} - block % {count})", count - 1),
                false => format!("(block % {count})"),
            };
            let tile = machine.axes[&own.axis].tile;
            nodes.push(line(format!(
                "const int {name} = {};",
                times(tile as i64, &digit)
            )));
            nodes.push(line(format!("(void){name};")));
            nodes.push(line(format!("block /= {count};")));
            nodes.extend(self.limit_line(own.axis));
        }
        nodes
    }

    /// The tiles of a persistent block, one after another.
    pub(super) fn tiles(&mut self, body: &[Statement]) -> Node {
        let (tiles, cluster) = (self.machine.grid.tiles, self.machine.cluster);
        let mut all = self.grid();
        all.extend(self.statements(body));
        Node::For {
            variable: "work_tile".into(),
            from: "0".into(),
            to: format!("tw_work_tiles<{cluster}>({tiles})"),
            unroll: Unroll::By(1),
            body: all,
        }
    }
}

/// Renumbers blocks, so that some tiles of the grid's second fastest axis are gone over before the fastest one moves on.
fn raster(raster: Raster) -> Node {
    let Raster { fast, slow, height } = raster;
    let (size, width) = (fast.saturating_mul(slow), height * fast);
    Node::Scope(vec![
        line(format!(
            "const int at = block % {size}, from = at / {width} * {height}, rest = at % {width};"
        )),
        line(format!(
            "const int height = tw_min({height}, {slow} - from);"
        )),
        line(format!(
            "block += (from + rest % height) * {fast} + rest / height - at;"
        )),
    ])
}
