//! Loops, branches, counters of stages, and what holds threads together.

use super::Printer;
use crate::atoms::BACKGROUND;
use crate::cuda::{Node, Unroll, line};
use crate::families::Family;
use crate::machine::{
    Among, At, Condition, Counter, LoopId, SplitStages, Stage, Statement, Sync, Turn,
};

fn counter_name(counter: Counter) -> String {
    let name = match (counter.split, counter.delayed) {
        (None, false) => "stage",
        (None, true) => "delayed",
        (Some(SplitStages::Wholes), _) => "wholes",
        (Some(SplitStages::Halves), _) => "halves",
    };
    format!("{name}{}", counter.number)
}

fn next_name(counter: Counter) -> &'static str {
    match counter.delayed {
        true => "into_delayed",
        false => "into",
    }
}

/// A group, as an argument of a barrier's functions.
fn group(turn: Turn, groups: u64) -> String {
    match turn {
        Turn::Own => "group".into(),
        Turn::First => "0".into(),
        Turn::Next => format!("(group + 1) % {groups}"),
    }
}

impl Printer<'_> {
    pub(super) fn repeat(&mut self, number: LoopId, body: &[Statement]) -> Node {
        Node::For {
            variable: format!("n{number}"),
            from: format!("first{number}"),
            to: format!("last{number}"),
            unroll: Unroll::By(1),
            body: self.statements(body),
        }
    }

    pub(super) fn condition(&self, condition: Condition) -> String {
        match condition {
            Condition::Exists(at) => {
                let number = at.number();
                let at = match at {
                    At::First(n) => format!("first{n}"),
                    At::FirstAnd(n, more) => format!("first{n} + {more}"),
                    At::Now(n) => format!("n{n}"),
                    At::NowAnd(n, more) => format!("(n{n} + {more})"),
                };
                format!("{at} < last{number}")
            }
            Condition::NotFirst(n) => format!("n{n} > first{n}"),
            Condition::NotEmpty(n) => format!("first{n} < last{n}"),
            Condition::Group(n) => format!("group == {n}"),
            Condition::Flag(id) => self.name(id).to_string(),
            Condition::Lane0 => "lane == 0".into(),
            Condition::FirstBlock => "rank == 0".into(),
        }
    }

    pub(super) fn stage(stage: Stage) -> String {
        match stage {
            Stage::At(n) => n.to_string(),
            Stage::Current(counter) => counter_name(counter),
            Stage::Next(counter) => next_name(counter).into(),
            Stage::Previous(number) => format!("before{number}"),
        }
    }

    pub(super) fn open_stages(counter: Counter) -> Node {
        line(format!("int {} = 0;", counter_name(counter)))
    }

    pub(super) fn next_stage(counter: Counter, stages: u64, ahead: u64) -> Node {
        let (name, into) = (counter_name(counter), next_name(counter));
        let back = stages - ahead;
        line(format!(
            "const int {into} = {name} < {back} ? {name} + {ahead} : {name} - {back};"
        ))
    }

    pub(super) fn previous_stage(number: LoopId, stages: u64) -> Node {
        line(format!(
            "const int before{number} = delayed{number} == 0 ? {} : delayed{number} - 1;",
            stages - 1
        ))
    }

    pub(super) fn advance_stage(counter: Counter, stages: u64) -> Node {
        let name = counter_name(counter);
        line(format!(
            "{name} = {name} == {} ? 0 : {name} + 1;",
            stages - 1
        ))
    }

    pub(super) fn barrier(&self, among: Among) -> Node {
        line(match among {
            Among::Computing => format!("tw_compute_barrier<{}>();", self.machine.computing()),
            Among::Block => "__syncthreads();".into(),
        })
    }

    pub(super) fn sync(&mut self, sync: Sync) -> Node {
        let groups = self.machine.groups();
        line(match sync {
            Sync::Barrier(among) => return self.barrier(among),
            Sync::ClusterBegins => "tw_cluster_begins();".into(),
            Sync::ClusterEnds => "tw_cluster_meets();".into(),
            Sync::Warp => "__syncwarp();".into(),
            Sync::CopyCommit => {
                self.families.insert(Family::Async);
                "tw_copy_commit();".into()
            }
            Sync::CopyWait(n) => format!("tw_copy_wait<{n}>();"),
            Sync::ProxyFence => "tw_proxy_fence();".into(),
            Sync::Commit => BACKGROUND.commit.into(),
            Sync::Wait(n) => (BACKGROUND.wait)(n),
            Sync::Keep(id) => {
                let fragment = self.fragment(id);
                format!("tw_keep<{}>({});", fragment.registers(), fragment.name)
            }
            Sync::Full(ring) => self.wait_full(ring),
            Sync::Empty(ring) => self.wait_empty(ring),
            Sync::Release(ring) => self.release(ring),
            Sync::ReleasePrevious(ring) => self.release_previous(ring),
            Sync::ReleasePeers(ring) => self.release_peers(ring),
            Sync::ReleasePreviousPeers(ring) => self.release_previous_peers(ring),
            Sync::CopyArrive(ring) => self.copy_arrive(ring),
            Sync::Filled(ring) => self.filled(ring),
            Sync::CopiesEnd => "tw_copies_end();".into(),
            Sync::TurnWait(turn) => format!("tw_turn_wait<256>({});", group(turn, groups)),
            Sync::TurnPass(turn) => format!("tw_turn_pass<256>({});", group(turn, groups)),
            Sync::Vote(flag) => {
                let flag = self.name(flag);
                // A literal number leaves the other barriers to other blocks.
                let group = if groups == 1 { "0" } else { "group" };
                format!("{flag} = tw_any_of_group({group}, {flag});")
            }
            Sync::StartNext => {
                self.families.insert(Family::DependentLaunch);
                "tw_start_next();".into()
            }
            Sync::WaitBefore => {
                self.families.insert(Family::DependentLaunch);
                "tw_wait_before();".into()
            }
        })
    }
}
