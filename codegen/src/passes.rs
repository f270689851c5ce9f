//! Transformations of machine programs.

pub(crate) mod barriers;
