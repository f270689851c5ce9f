//! Reductions across the blocks of a group: each stores its partial result in the split-K workspace, or in its own shared memory where the group is
//! a cluster, all wait at a grid barrier, and each reduces all partial results in the same order. Where nobody but one needs the result, the last to
//! come does that, and nobody waits.

use super::elements::combine;
use super::text::{literal, sum, times};
use super::{Digits, Printer};
use crate::cuda::{Node, Unroll, line};
use crate::families::Family;
use crate::machine::{COUNTER_BYTES, Partial, Parts};

/// Where a block group's counter is in the split-K workspace.
fn counter() -> String {
    format!(
        "(u32*)(split_workspace + 128) + block_group * {}",
        COUNTER_BYTES / 4
    )
}

fn parts_name(partial: &Partial) -> String {
    format!("parts{}", partial.before)
}

impl Printer<'_> {
    /// Declares `block`: where blocks wait for others by the order in which they start, so that nobody waits for a block that
    /// has no room before somebody else leaves.
    pub(super) fn block_number(&mut self) -> Vec<Node> {
        let grid = &self.machine.grid;
        let plain = match grid.persistent {
            true => format!(
                "int block = tw_work_tile<{}>(work_tile);",
                self.machine.cluster
            ),
            false => "int block = blockIdx.x;".into(),
        };
        // A cluster's blocks know their ranks, and need not know their groups.
        let workspace = self
            .machine
            .block_group
            .filter(|_| self.machine.cluster == 1);
        let Some(block_group) = workspace else {
            return vec![line(plain), line("(void)block;")];
        };
        self.families.insert(Family::BlockGroup);
        let mut nodes = if block_group.waits {
            let place = format!("*(int*){}", self.scratch());
            vec![
                line(format!(
                    "if (threadIdx.x == 0) {place} = (int)tw_ticket((u32*)split_workspace, {});",
                    grid.tiles - 1
                )),
                line("__syncthreads();"),
                line(format!("int block = {place};")),
            ]
        } else {
            vec![line(plain)]
        };
        let size = block_group.size;
        nodes.push(line(format!(
            "const int rank = block % {size}, block_group = block / {size};"
        )));
        nodes.push(line("(void)rank; (void)block_group;"));
        nodes
    }

    fn sizes(&self) -> (u64, u64) {
        self.machine
            .block_group
            .map_or((1, 0), |t| (t.size, t.grid_barriers))
    }

    pub(super) fn grid_barrier(&self, round: u64) -> Node {
        if self.machine.cluster > 1 {
            return line("tw_cluster_meets();");
        }
        let (size, rounds) = self.sizes();
        line(format!(
            "tw_grid_barrier({}, {size}, {round}, {rounds});",
            counter()
        ))
    }

    pub(super) fn last_goes_on(&self) -> Node {
        let ((size, rounds), place) = (self.sizes(), self.scratch());
        line(format!(
            "if (!tw_last({}, {size}, {rounds}, (int*){place})) return;",
            counter()
        ))
    }

    /// Writes what this block has of a value to its place among the group's partial results.
    pub(super) fn store_partial(&mut self, partial: &Partial, out: &mut Vec<Node>) {
        let (parts, floats, name) = (
            parts_name(partial),
            partial.floats,
            self.name(partial.fragment),
        );
        out.push(line(match partial.home {
            Parts::Workspace(start) => format!(
                "float* const {parts} = (float*)(split_workspace + {start}) + (long long)block_group * {};",
                self.sizes().0 * floats
            ),
            Parts::Region(id) => format!(
                "float* const {parts} = (float*)(shared + {});",
                self.machine.region(id).offset
            ),
        }));
        let writes = self.registers(&partial.layout, 1, |me, d| {
            let at = me.place_in_part(partial, d);
            let own = Self::own_index(&partial.layout, d);
            vec![line(match partial.home {
                Parts::Workspace(_) => {
                    format!("tw_store_partial({parts} + rank * {floats} + ({at}), {name}[{own}]);")
                }
                Parts::Region(_) => format!("{parts}[{at}] = {name}[{own}];"),
            })]
        });
        match self.first_copy(&partial.layout) {
            None => out.extend(writes),
            Some(condition) => out.push(Node::If {
                condition,
                then: writes,
                otherwise: Vec::new(),
            }),
        }
    }

    fn place_in_part(&mut self, partial: &Partial, d: &Digits) -> String {
        let Some(strides) = &partial.strides else {
            let mut register = Self::own_index(&partial.layout, d);
            if !partial.layout.blocks.is_empty() {
                register = format!("rank * {} + {register}", partial.layout.register_count());
            }
            return format!("({register}) * {} + threadIdx.x", self.machine.computing());
        };
        let terms = strides
            .iter()
            .map(|(axis, stride)| {
                let at = self.local(&partial.layout, *axis, d);
                times(*stride as i64, &format!("({at})"))
            })
            .collect();
        sum(terms)
    }

    /// Reduces the partial results of all ranks into the registers that held this one's.
    pub(super) fn reduce_partials(&mut self, partial: &Partial, out: &mut Vec<Node>) {
        let (size, name) = (self.sizes().0, self.name(partial.fragment));
        // Where all lanes hold the same, each reads other ranks' parts.
        let alike = partial.layout.copy_masks().0 == 31;
        let neutral = literal(partial.op.neutral());
        let steps = if alike { size.div_ceil(32) } else { size };
        let unroll = if steps <= partial.ahead {
            Unroll::Full
        } else {
            Unroll::By(partial.ahead as u32)
        };
        let (parts, floats) = (parts_name(partial), partial.floats);
        let part = if alike { "32 * p + lane" } else { "p" };
        let guarded = alike && !size.is_multiple_of(32);
        let starts = self.registers(&partial.layout, 1, |_, d| {
            let own = Self::own_index(&partial.layout, d);
            vec![line(format!("{name}[{own}] = {neutral};"))]
        });
        out.extend(starts);
        // Part by part, so that a thread's reads of one part are under way together.
        let adds = self.registers(&partial.layout, 1, |me, d| {
            let at = me.place_in_part(partial, d);
            let to = format!("{name}[{}]", Self::own_index(&partial.layout, d));
            let mut from = match partial.home {
                Parts::Workspace(_) => {
                    format!("tw_load_partial({parts} + ({part}) * {floats} + ({at}))")
                }
                Parts::Region(_) => format!("tw_load_peer({parts} + ({at}), {part})"),
            };
            if guarded {
                from = format!("({part} < {size} ? {from} : {neutral})");
            }
            vec![line(format!("{to} = {};", combine(partial.op, &to, &from)))]
        });
        out.push(Node::For {
            variable: "p".into(),
            from: "0".into(),
            to: steps.to_string(),
            unroll,
            body: adds,
        });
        if alike {
            let nodes = self.registers(&partial.layout, 1, |_, d| {
                let to = format!("{name}[{}]", Self::own_index(&partial.layout, d));
                (0..5)
                    .map(|i| {
                        let other = format!("__shfl_xor_sync(0xffffffffu, {to}, {})", 1 << i);
                        line(format!("{to} = {};", combine(partial.op, &to, &other)))
                    })
                    .collect()
            });
            out.extend(nodes);
        }
    }
}
