//! The device functions that the text calls.

/// A family of device functions that a kernel may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Base,
    Convert,
    Math,
    Exp,
    Async,
    Mma,
    Split,
    Team,
    Wgmma,
    Tf32,
    Barrier,
    Box,
    Cluster,
    Chain,
    Common,
    Vector,
    Halves,
}

impl Family {
    pub(super) const ALL: [Self; 17] = [
        Self::Base,
        Self::Convert,
        Self::Math,
        Self::Exp,
        Self::Async,
        Self::Mma,
        Self::Split,
        Self::Team,
        Self::Wgmma,
        Self::Tf32,
        Self::Barrier,
        Self::Box,
        Self::Cluster,
        Self::Chain,
        Self::Common,
        Self::Vector,
        Self::Halves,
    ];

    /// Those that every program has.
    pub(super) const ALWAYS: [Self; 4] = [Self::Base, Self::Convert, Self::Common, Self::Vector];

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Base => include_str!("../../cuda/base.cuh"),
            Self::Convert => include_str!("../../cuda/convert.cuh"),
            Self::Math => include_str!("../../cuda/math.cuh"),
            Self::Exp => include_str!("../../cuda/exp.cuh"),
            Self::Async => include_str!("../../cuda/async.cuh"),
            Self::Mma => include_str!("../../cuda/mma.cuh"),
            Self::Split => include_str!("../../cuda/split.cuh"),
            Self::Team => include_str!("../../cuda/team.cuh"),
            Self::Wgmma => include_str!("../../cuda/wgmma.cuh"),
            Self::Tf32 => include_str!("../../cuda/tf32.cuh"),
            Self::Barrier => include_str!("../../cuda/barrier.cuh"),
            Self::Box => include_str!("../../cuda/box.cuh"),
            Self::Cluster => include_str!("../../cuda/cluster.cuh"),
            Self::Chain => include_str!("../../cuda/chain.cuh"),
            Self::Common => include_str!("../../cuda/common.cuh"),
            Self::Vector => include_str!("../../cuda/vector.cuh"),
            Self::Halves => include_str!("../../cuda/halves.cuh"),
        }
    }

    /// Whether the family is plain C++: the others wrap single instructions.
    pub(super) fn plain(self) -> bool {
        matches!(self, Self::Common | Self::Vector | Self::Halves)
    }
}
