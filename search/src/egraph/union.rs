//! The unions of classes, as a log has them: what a derivation is found from.

use crate::egraph::enode::Enode;
use egg::Id;

/// The name of the step that is no rule: arithmetic on constants.
pub const FOLD: &str = "fold-constants";

/// A union that a rule made.
#[derive(Clone, Debug)]
pub struct Union {
    /// The rule, or [`FOLD`].
    pub rule: egg::Symbol,
    /// What it matched.
    pub found: Found,
    /// What it is equal to.
    pub given: Id,
}

/// What a union starts from.
#[derive(Clone, Debug)]
pub enum Found {
    /// A term with these operands.
    Node(Enode),
    /// A class.
    Class(Id),
}
