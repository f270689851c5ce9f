//! Reductions across the blocks of a team: each posts its parts on the board, all meet, and each combines all parts in the
//! same order. Where nobody but one needs the result, the last to come does that, and nobody waits.

use super::elements::combine;
use super::{BUSY, Emitter, Family, Source, line, literal, sum, times};
use crate::Board;
use crate::cuda::{Node, Unroll};
use crate::layout::Layout;
use ir::{AxisId, AxisSet, Kernel, ReduceOp, Reject, Target, TileOp, TileProgram, ValueId};

/// Bytes between the counters of two teams: a sector.
const COUNTER: u64 = 32;
/// Reads that a thread has under way at a time, and half of them where it has few registers.
const AHEAD: u64 = 64;

/// The teams of a kernel, and what they post.
pub(super) struct Team {
    /// The grid axes along which the blocks of a team differ.
    pub(super) axes: AxisSet,
    /// Blocks of a team.
    size: u64,
    /// Teams of the grid.
    teams: u64,
    /// What each meeting reduces.
    meetings: Vec<Vec<ValueId>>,
    /// Whether all go on after the last meeting.
    all_go_on: bool,
    /// Floats that each block posted up to now.
    posted: u64,
    /// Loops around what is lowered of which members do different iterations.
    pub(super) apart: u32,
}

impl Team {
    pub(super) fn of(tile: &TileProgram, kernel: &Kernel) -> Option<Self> {
        let axes = kernel.team();
        if axes.is_empty() {
            return None;
        }
        let blocks = |inside: bool| {
            let wanted = kernel.grid.iter().filter(|a| axes.contains(**a) == inside);
            tile.points(kernel, &wanted.copied().collect())
        };
        Some(Self {
            size: blocks(true),
            teams: blocks(false),
            meetings: kernel.meetings(),
            all_go_on: kernel.all_go_on(),
            posted: 0,
            apart: 0,
            axes,
        })
    }

    /// Bytes of all counters: the tickets', then one a team.
    fn counters(&self) -> u64 {
        (128 + self.teams * COUNTER).next_multiple_of(128)
    }

    /// Whether blocks wait for others at all.
    fn waits(&self) -> bool {
        self.all_go_on || self.meetings.len() > 1
    }
}

/// A result that a team makes of its members' parts.
struct Post {
    op: ReduceOp,
    name: String,
    layout: Layout,
    /// (axis, floats a step) of a part; none where a part lies as threads hold it.
    strides: Option<Vec<(AxisId, u64)>>,
    /// Floats of a part.
    floats: u64,
    /// The C++ name of the team's parts.
    parts: String,
}

impl Emitter<'_> {
    /// Declares `block`: where blocks wait for others by the order in which they start, so that nobody waits for a block that
    /// has no room before somebody else leaves.
    pub(super) fn block_number(&mut self, blocks: u64) -> Vec<Node> {
        let visit = if self.schedule.persistent {
            " + visit * gridDim.x"
        } else {
            ""
        };
        let plain = format!("int block = blockIdx.x{visit};");
        let Some(team) = &self.team else {
            return vec![line(plain), line("(void)block;")];
        };
        let (size, waits) = (team.size, team.waits());
        self.families.insert(Family::Team);
        let mut nodes = if waits {
            let place = format!("*(int*){}", self.scratch(1));
            vec![
                line(format!(
                    "if (threadIdx.x == 0) {place} = (int)tw_ticket((u32*)board, {});",
                    blocks - 1
                )),
                line("__syncthreads();"),
                line(format!("int block = {place};")),
            ]
        } else {
            vec![line(plain)]
        };
        nodes.push(line(format!(
            "const int member = block % {size}, team = block / {size};"
        )));
        nodes.push(line("(void)member; (void)team;"));
        nodes
    }

    /// The board of the whole kernel; teams that wait must find room.
    pub(super) fn board(&self, shared: u64, target: &Target) -> Result<Board, Reject> {
        let Some(team) = &self.team else {
            return Ok(Board::default());
        };
        let resident = u64::from(self.schedule.blocks_per_sm)
            .min(target.shared_per_sm / target.taken_shared(shared))
            .min(u64::from(target.threads_per_sm) / self.plan.threads())
            .max(1);
        let room = resident * u64::from(target.sms);
        if team.waits() && team.size > room {
            return Err(Reject::Grid(format!(
                "teams of {} blocks, and room for {room}",
                team.size
            )));
        }
        let counters = team.counters();
        Ok(Board {
            bytes: counters + team.teams * team.size * team.posted * 4,
            counters,
            together: if team.waits() { team.size } else { 1 },
        })
    }

    /// The condition under which this block stores what its whole team has alike.
    pub(super) fn stores_alone(&self, axes: &AxisSet) -> Option<String> {
        let team = self.team.as_ref()?;
        let alike = team.apart == 0 && !axes.intersects(&team.axes);
        (team.all_go_on && alike).then(|| "member == 0".to_string())
    }

    /// The number of the meeting that makes a value.
    pub(super) fn meeting_of(&self, v: ValueId) -> Option<usize> {
        let team = self.team.as_ref()?;
        team.meetings.iter().position(|m| m.contains(&v))
    }

    /// Lowers a meeting, unless that is done.
    pub(super) fn meet(&mut self, round: usize, out: &mut Vec<Node>) -> Result<(), Reject> {
        let Some(team) = &self.team else {
            return Ok(());
        };
        let group = team.meetings[round].clone();
        if group.iter().any(|v| self.find(*v, None).is_some()) {
            return Ok(());
        }
        let (size, rounds) = (team.size, team.meetings.len());
        let wait = team.all_go_on || round + 1 < rounds;
        let mut posts = Vec::new();
        for v in group {
            let TileOp::Reduce { op, value, axes } = self.plan.op(v) else {
                return Err(Reject::Schedule("a meeting that reduces nothing".into()));
            };
            self.reduce_block(v, *op, *value, axes, out)?;
            posts.push(self.post(v, *op, axes, out)?);
        }
        let counter = format!("(u32*)(board + 128) + team * {}", COUNTER / 4);
        out.push(line(if wait {
            format!("tw_meet({counter}, {size}, {}, {rounds});", round + 1)
        } else {
            let place = self.scratch(1);
            format!("if (!tw_last({counter}, {size}, {rounds}, (int*){place})) return;")
        }));
        for post in &posts {
            self.gather(post, size, out);
        }
        Ok(())
    }

    /// Writes what this block has of a value to its place among the team's parts.
    fn post(
        &mut self,
        v: ValueId,
        op: ReduceOp,
        axes: &AxisSet,
        out: &mut Vec<Node>,
    ) -> Result<Post, Reject> {
        let Some(Source::Array { name, layout }) = self.find(v, None) else {
            return Err(Reject::Schedule("a reduction without registers".into()));
        };
        let Some(team) = &mut self.team else {
            return Err(Reject::Schedule("a meeting without a team".into()));
        };
        if !team.axes.is_subset(axes) {
            return Err(Reject::Schedule(
                "a reduction over some of a team's axes".into(),
            ));
        }
        // All members hold alike parts alike: threads without copies write and read side by side.
        let (strides, floats) = if layout.copy_masks() == (0, 0) {
            (None, layout.register_count() * self.plan.threads())
        } else {
            let (mut strides, mut floats) = (Vec::new(), 1);
            for axis in layout.axes().iter() {
                strides.push((axis, floats));
                floats *= layout.cover(axis);
            }
            (Some(strides), floats)
        };
        // What was posted before, of all teams, comes first.
        let start = team.counters() + team.teams * team.size * team.posted * 4;
        let (size, before) = (team.size, team.posted);
        team.posted += floats;
        let post = Post {
            op,
            name,
            layout,
            strides,
            floats,
            parts: format!("parts{before}"),
        };
        out.push(line(format!(
            "float* const {} = (float*)(board + {start}) + (long long)team * {};",
            post.parts,
            size * floats
        )));
        let writes = self.registers(&post.layout, 1, |me, d| {
            let at = me.place_in_part(&post, d);
            vec![line(format!(
                "tw_post({} + member * {floats} + ({at}), {}[{}]);",
                post.parts,
                post.name,
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
        Ok(post)
    }

    fn place_in_part(&mut self, post: &Post, d: &Vec<String>) -> String {
        let Some(strides) = &post.strides else {
            let register = Self::own_index(&post.layout, d);
            return format!("({register}) * {} + threadIdx.x", self.plan.threads());
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
    fn gather(&mut self, post: &Post, size: u64, out: &mut Vec<Node>) {
        // Where all lanes hold the same, each reads other members' parts.
        let alike = post.layout.copy_masks().0 == 31;
        let neutral = literal(post.op.neutral());
        let steps = if alike { size.div_ceil(32) } else { size };
        let threads = self.plan.block_threads() * u64::from(self.schedule.blocks_per_sm);
        let ahead = if threads > BUSY { AHEAD / 2 } else { AHEAD };
        let ahead = (ahead / post.layout.register_count()).max(1);
        let unroll = if steps <= ahead {
            Unroll::Full
        } else {
            Unroll::By(ahead as u32)
        };
        let (parts, floats) = (&post.parts, post.floats);
        let part = if alike { "32 * p + lane" } else { "p" };
        let guarded = alike && !size.is_multiple_of(32);
        let starts = self.registers(&post.layout, 1, |_, d| {
            let own = Self::own_index(&post.layout, d);
            vec![line(format!("{}[{own}] = {neutral};", post.name))]
        });
        out.extend(starts);
        // Part by part, so that a thread's reads of one part are under way together.
        let adds = self.registers(&post.layout, 1, |me, d| {
            let at = me.place_in_part(post, d);
            let to = format!("{}[{}]", post.name, Self::own_index(&post.layout, d));
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
                let to = format!("{}[{}]", post.name, Self::own_index(&post.layout, d));
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
