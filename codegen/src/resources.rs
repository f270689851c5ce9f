//! What a block takes of a multiprocessor: how kernels are made.
//!
//! What the hardware has is in [`Target`].

use ir::{Reject, Target};

/// Threads of a block that fill rings, where that is all they do: registers move between threads by four warps.
pub(crate) const PRODUCER_THREADS: u64 = 128;

/// Registers that such a thread keeps where all of them copy, and its others give away.
const COPYING_REGISTERS: u64 = 40;

/// The same where one of them asks the hardware for boxes: as few as a thread may keep.
const ASKING_REGISTERS: u64 = 24;

/// The same where they split what others copied: chunks of several elements, all of which are on their way at once.
const SPLITTING_REGISTERS: u64 = 88;

/// What warps do that fill rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// One thread asks the hardware for boxes.
    Asking,
    /// All copy.
    Copying,
    /// All split what others copied.
    Splitting,
}

/// Registers that a thread keeps which fills rings.
pub(crate) fn producer_registers(filling: Filling) -> u64 {
    match filling {
        Filling::Asking => ASKING_REGISTERS,
        Filling::Copying => COPYING_REGISTERS,
        Filling::Splitting => SPLITTING_REGISTERS,
    }
}

/// Bytes after which a swizzle repeats: regions of shared memory that are swizzled begin at multiples.
pub(crate) const SWIZZLE_BYTES: u64 = 1024;

/// Warps of a block: it has at most 1024 threads.
pub(crate) const MOST_WARPS: u64 = 32;

/// Whether a block may have so many threads, and a multiprocessor so many blocks of them.
///
/// # Errors
/// What there is too much of.
pub(crate) fn threads_fit(target: &Target, threads: u64, blocks: u32) -> Result<(), Reject> {
    if threads > 32 * MOST_WARPS {
        return Err(Reject::Schedule(format!(
            "{} warps with those that fill rings: at most {MOST_WARPS} are possible",
            threads / 32
        )));
    }
    let all = threads * u64::from(blocks);
    if all > target.threads_per_sm.into() || blocks > target.blocks_per_sm {
        return Err(Reject::Schedule(format!(
            "{blocks} blocks an SM of {threads} threads each: it has room for {} threads and {} blocks",
            target.threads_per_sm, target.blocks_per_sm
        )));
    }
    Ok(())
}
