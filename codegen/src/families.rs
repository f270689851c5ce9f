//! The device functions that the text calls.

use crate::atoms::{INSTRUCTIONS, Instruction, Printed, Scope};
use ir::Atom;
use std::collections::BTreeSet;

/// A family of device functions that a kernel may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Base,
    Convert,
    Math,
    Precise,
    Async,
    /// What matrix instructions of single warps share, and they themselves.
    Warp,
    BlockGroup,
    /// The same of warpgroups.
    Warpgroup,
    Barrier,
    Box,
    Cluster,
    Multicast,
    DependentLaunch,
    Common,
    Vector,
    Halves,
}

impl Family {
    pub(crate) const ALL: [Self; 16] = [
        Self::Base,
        Self::Convert,
        Self::Math,
        Self::Precise,
        Self::Async,
        Self::Warp,
        Self::BlockGroup,
        Self::Warpgroup,
        Self::Barrier,
        Self::Box,
        Self::Cluster,
        Self::Multicast,
        Self::DependentLaunch,
        Self::Common,
        Self::Vector,
        Self::Halves,
    ];

    /// Those that every program has.
    pub(crate) const ALWAYS: [Self; 4] = [Self::Base, Self::Convert, Self::Common, Self::Vector];

    /// The functions of the family, whatever is used of it.
    fn functions(self) -> &'static str {
        match self {
            Self::Base => include_str!("../cuda/base.cuh"),
            Self::Convert => include_str!("../cuda/convert.cuh"),
            Self::Math => include_str!("../cuda/math.cuh"),
            Self::Precise => include_str!("../cuda/precise.cuh"),
            Self::Async => include_str!("../cuda/async.cuh"),
            Self::Warp => include_str!("../cuda/warp.cuh"),
            Self::BlockGroup => include_str!("../cuda/block_group.cuh"),
            Self::Warpgroup => include_str!("../cuda/warpgroup.cuh"),
            Self::Barrier => include_str!("../cuda/barrier.cuh"),
            Self::Box => include_str!("../cuda/box.cuh"),
            Self::Cluster => include_str!("../cuda/cluster.cuh"),
            Self::Multicast => include_str!("../cuda/multicast.cuh"),
            Self::DependentLaunch => include_str!("../cuda/dependent_launch.cuh"),
            Self::Common => include_str!("../cuda/common.cuh"),
            Self::Vector => include_str!("../cuda/vector.cuh"),
            Self::Halves => include_str!("../cuda/halves.cuh"),
        }
    }

    /// Appends what the text calls of the family, where these instructions are used.
    pub(crate) fn print(self, used: &BTreeSet<Atom>, out: &mut String) {
        let scope = match self {
            Self::Warp => Some(Scope::Warp),
            Self::Warpgroup => Some(Scope::Warpgroup),
            Self::Base
            | Self::Convert
            | Self::Math
            | Self::Precise
            | Self::Async
            | Self::BlockGroup
            | Self::Barrier
            | Self::Box
            | Self::Cluster
            | Self::Multicast
            | Self::DependentLaunch
            | Self::Common
            | Self::Vector
            | Self::Halves => None,
        };
        let own = INSTRUCTIONS.into_iter().filter(|i| Some(i.scope) == scope);
        let (always, wanted): (Vec<&Instruction>, Vec<&Instruction>) =
            own.partition(|i| i.printed == Printed::WithScope);
        out.push('\n');
        out.push_str(self.functions());
        always.iter().for_each(|i| out.push_str(i.text));
        for one in wanted.iter().filter(|i| used.contains(&i.atom)) {
            out.push('\n');
            out.push_str(one.text);
        }
    }

    /// Whether the family is plain C++: the others wrap single instructions.
    pub(crate) fn plain(self) -> bool {
        matches!(self, Self::Common | Self::Vector | Self::Halves)
    }
}
