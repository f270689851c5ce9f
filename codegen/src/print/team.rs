//! Reductions across the blocks of a team: each posts its parts on the board, all meet, and each combines all parts in the
//! same order. Where nobody but one needs the result, the last to come does that, and nobody waits.

use super::elements::combine;
use super::text::{literal, sum, times};
use super::{Digits, Family, Printer};
use crate::cuda::{Node, Unroll, line};
use crate::machine::{COUNTER_BYTES, Post};

/// Where a team's counter is on the board.
fn counter() -> String {
    format!("(u32*)(board + 128) + team * {}", COUNTER_BYTES / 4)
}

fn parts_name(post: &Post) -> String {
    format!("parts{}", post.before)
}

impl Printer<'_> {
    /// Declares `block`: where blocks wait for others by the order in which they start, so that nobody waits for a block that
    /// has no room before somebody else leaves.
    pub(super) fn block_number(&mut self) -> Vec<Node> {
        let grid = &self.machine.grid;
        let visit = match grid.persistent {
            true => " + visit * gridDim.x",
            false => "",
        };
        let plain = format!("int block = blockIdx.x{visit};");
        let Some(team) = self.machine.team else {
            return vec![line(plain), line("(void)block;")];
        };
        self.families.insert(Family::Team);
        let mut nodes = if team.waits {
            let place = format!("*(int*){}", self.scratch());
            vec![
                line(format!(
                    "if (threadIdx.x == 0) {place} = (int)tw_ticket((u32*)board, {});",
                    grid.tiles - 1
                )),
                line("__syncthreads();"),
                line(format!("int block = {place};")),
            ]
        } else {
            vec![line(plain)]
        };
        let size = team.size;
        nodes.push(line(format!(
            "const int member = block % {size}, team = block / {size};"
        )));
        nodes.push(line("(void)member; (void)team;"));
        nodes
    }

    fn sizes(&self) -> (u64, u64) {
        self.machine.team.map_or((1, 0), |t| (t.size, t.meetings))
    }

    pub(super) fn meet(&self, round: u64) -> Node {
        let (size, rounds) = self.sizes();
        line(format!(
            "tw_meet({}, {size}, {round}, {rounds});",
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

    /// Writes what this block has of a value to its place among the team's parts.
    pub(super) fn post(&mut self, post: &Post, out: &mut Vec<Node>) {
        let (parts, floats, name) = (parts_name(post), post.floats, self.name(post.fragment));
        out.push(line(format!(
            "float* const {parts} = (float*)(board + {}) + (long long)team * {};",
            post.start,
            self.sizes().0 * floats
        )));
        let writes = self.registers(&post.layout, 1, |me, d| {
            let at = me.place_in_part(post, d);
            vec![line(format!(
                "tw_post({parts} + member * {floats} + ({at}), {name}[{}]);",
                Self::own_index(&post.layout, d)
            ))]
        });
        match self.first_copy(&post.layout) {
            None => out.extend(writes),
            Some(condition) => out.push(Node::If {
                condition,
                then: writes,
                otherwise: Vec::new(),
            }),
        }
    }

    fn place_in_part(&mut self, post: &Post, d: &Digits) -> String {
        let Some(strides) = &post.strides else {
            let register = Self::own_index(&post.layout, d);
            return format!("({register}) * {} + threadIdx.x", self.machine.computing());
        };
        let terms = strides
            .iter()
            .map(|(axis, stride)| {
                let at = self.local(&post.layout, *axis, d);
                times(*stride as i64, &format!("({at})"))
            })
            .collect();
        sum(terms)
    }

    /// Combines the parts of all members into the registers that held this one's.
    pub(super) fn gather(&mut self, post: &Post, out: &mut Vec<Node>) {
        let (size, name) = (self.sizes().0, self.name(post.fragment));
        // Where all lanes hold the same, each reads other members' parts.
        let alike = post.layout.copy_masks().0 == 31;
        let neutral = literal(post.op.neutral());
        let steps = if alike { size.div_ceil(32) } else { size };
        let unroll = if steps <= post.ahead {
            Unroll::Full
        } else {
            Unroll::By(post.ahead as u32)
        };
        let (parts, floats) = (parts_name(post), post.floats);
        let part = if alike { "32 * p + lane" } else { "p" };
        let guarded = alike && !size.is_multiple_of(32);
        let starts = self.registers(&post.layout, 1, |_, d| {
            let own = Self::own_index(&post.layout, d);
            vec![line(format!("{name}[{own}] = {neutral};"))]
        });
        out.extend(starts);
        // Part by part, so that a thread's reads of one part are under way together.
        let adds = self.registers(&post.layout, 1, |me, d| {
            let at = me.place_in_part(post, d);
            let to = format!("{name}[{}]", Self::own_index(&post.layout, d));
            let mut from = format!("tw_peek({parts} + ({part}) * {floats} + ({at}))");
            if guarded {
                from = format!("({part} < {size} ? {from} : {neutral})");
            }
            vec![line(format!("{to} = {};", combine(post.op, &to, &from)))]
        });
        out.push(Node::For {
            variable: "p".into(),
            from: "0".into(),
            to: steps.to_string(),
            unroll,
            body: adds,
        });
        if alike {
            let nodes = self.registers(&post.layout, 1, |_, d| {
                let to = format!("{name}[{}]", Self::own_index(&post.layout, d));
                (0..5)
                    .map(|i| {
                        let other = format!("__shfl_xor_sync(0xffffffffu, {to}, {})", 1 << i);
                        line(format!("{to} = {};", combine(post.op, &to, &other)))
                    })
                    .collect()
            });
            out.extend(nodes);
        }
    }
}
