//! Programs, tile programs and schedules: the plain values through which the other crates meet.
//!
//! * [`program`]: a pure tensor function in index notation, the 14 operations of the language.
//! * [`ops`] and [`functions`]: the tables of those operations, whose rows are [`row`]'s; [`builder`] and [`text`] make and print programs, [`eval`](mod@eval) is
//!   their meaning in f64.
//! * [`limits`]: what a program may have at most.
//! * [`number`]: numbers in which identities are judged; [`field`]: those in which they are exact; [`interval`]: what is known of one; [`random`]: numbers that look random and follow from a seed.
//! * [`tile`]: a list of kernels, each a structured loop over tiles; what is interpreted, priced and printed as CUDA;
//!   [`tile_check`] says which are well formed, [`tile_axes`] over which axes an operation varies, [`tile_split`] which loops run over
//!   a part of their axis, and [`tile_resize`] makes the same one at other extents.
//! * [`schedule`]: how each kernel is mapped to the machine, and the text of it.
//! * [`target`]: a GPU described by numbers.
//!
//! This crate knows nothing about rewriting, CUDA or devices.

pub mod affine;
pub mod axes;
pub mod builder;
mod divide;
pub mod eval;
pub mod field;
pub mod functions;
pub mod interval;
pub mod limits;
pub mod number;
pub mod ops;
mod prelude;
pub mod program;
pub mod random;
pub mod reject;
pub mod row;
pub mod schedule;
pub mod target;
pub mod tensor;
pub mod text;
pub mod tile;
pub mod tile_axes;
pub mod tile_check;
pub mod tile_name;
pub mod tile_resize;
pub mod tile_split;

pub use affine::{Affine, Quotient, common_multiple};
pub use axes::{Axis, AxisId, AxisSet};
pub use builder::{BuildError, Builder};
pub use eval::{EvalError, eval};
pub use functions::{Domain, Function, FunctionRow};
pub use interval::Interval;
pub use program::{Dim, Dtype, MapOp, Node, NodeId, Op, Output, Program, ReduceOp};
pub use reject::Reject;
pub use row::{AxesRule, Fact, OpRow, Work};
pub use schedule::{
    Argument, Atom, Form, KernelSchedule, Language, Part, Schedule, ScheduleText, Step, Wishes,
};
pub use target::{MatrixRate, Target};
pub use tensor::Tensor;
pub use text::{Diagnostic, Diagnostics, parse};
pub use tile::{
    AxisTile, Bound, Buffer, BufferId, BufferRole, Carry, Corner, Entry, Kernel, Loop, Product,
    Reduction, Role, Statement, TileOp, TileProgram, Value, ValueId, stores,
};
pub use tile_axes::affine_of;
