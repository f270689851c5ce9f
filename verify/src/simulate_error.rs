//! Why a tile program has no result.

/// Why a tile program has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// The tile program breaks a rule of its form.
    #[error("malformed tile program: {0}")]
    Malformed(String),
    /// The inputs do not fit the parameters.
    #[error("input {index}: expected {expected}, found {found}")]
    Input {
        /// Which parameter.
        index: usize,
        /// Its shape or number of elements.
        expected: String,
        /// What was given.
        found: String,
    },
    /// An element of an output or workspace that no grid point wrote.
    #[error("`{buffer}` is unwritten at {coordinate:?}")]
    Unwritten {
        /// The buffer's name.
        buffer: String,
        /// The coordinate along each of its axes.
        coordinate: Vec<u64>,
    },
    /// An element that two stores wrote.
    #[error("`{buffer}` is written twice at {coordinate:?}")]
    WrittenTwice {
        /// The buffer's name.
        buffer: String,
        /// The coordinate along each of its axes.
        coordinate: Vec<u64>,
    },
    /// More arithmetic than anybody waits for.
    #[error(
        "interpreting this takes {:.1e} element operations, at most {:.0e} are done (hours): give smaller extents",
        *operations as f64,
        *limit as f64
    )]
    TooLong {
        /// Operations needed.
        operations: u64,
        /// Operations allowed.
        limit: u64,
    },
    /// Buffers, or the tiles of one block group, that would not fit the memory that the interpreter allows itself.
    #[error("interpreting this takes {elements} elements at a time, at most {limit} are held")]
    TooLarge {
        /// Elements needed.
        elements: u64,
        /// Elements allowed.
        limit: u64,
    },
    /// A load of an element that nobody wrote.
    #[error("kernel {kernel} reads `{buffer}` at {coordinate:?}, which is unwritten")]
    ReadUnwritten {
        /// The kernel's number.
        kernel: usize,
        /// The buffer's name.
        buffer: String,
        /// The coordinate along each of its axes.
        coordinate: Vec<u64>,
    },
}
