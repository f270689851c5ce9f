//! A GPU described by numbers. The data files live with the search; everything that depends on a GPU reads this type.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The numbers of one GPU model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The name on the command line, such as `h200`.
    pub name: String,
    /// What the driver calls such a device: a substring of its name.
    pub device: String,
    /// The architecture that the compiler is asked for, such as `sm_90a`.
    pub arch: String,
    /// Compute capability as major · 10 + minor, such as 90.
    pub capability: u32,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Sustained clock in GHz.
    pub clock_ghz: f64,
    /// Achievable device-memory bandwidth in TB/s (10¹² bytes).
    pub memory_tb_s: f64,
    /// Device memory in bytes, as the driver reports it.
    pub memory_bytes: u64,
    /// L2 capacity in bytes.
    pub l2_bytes: u64,
    /// Achievable L2 to SM bandwidth in TB/s, all SMs together.
    pub l2_tb_s: f64,
    /// The same of what feeds warpgroup instructions, which neighbouring blocks read side by side and the hardware copies; 0 where
    /// the GPU has no such instruction.
    #[serde(default)]
    pub l2_ring_tb_s: f64,
    /// Shared memory that one block may ask for, in bytes.
    pub shared_per_block: u64,
    /// Shared memory of one SM, in bytes.
    pub shared_per_sm: u64,
    /// Shared memory of an SM that each resident block takes beside what it asks for, in bytes.
    pub reserved_shared_per_block: u64,
    /// 32-bit registers of one SM.
    pub registers_per_sm: u32,
    /// Most registers of one thread.
    pub registers_per_thread: u32,
    /// A thread's registers are given out in multiples of so many.
    pub register_unit: u32,
    /// Most threads resident on one SM.
    pub threads_per_sm: u32,
    /// Most blocks resident on one SM.
    pub blocks_per_sm: u32,
    /// Most blocks of a cluster that any kernel may have; 1 where there are no clusters.
    pub cluster_blocks: u32,
    /// What the kinds of matrix instructions reach that the GPU has, by the names that the table of instructions gives them.
    pub matrix: BTreeMap<String, MatrixRate>,
    /// Achievable f32 TFLOP/s on CUDA cores.
    pub f32_tflops: f64,
    /// Special-function results (exp2, reciprocal, square root) a clock an SM.
    pub special_per_clock: f64,
    /// Microseconds between dependent kernels of a graph replay.
    pub launch_us: f64,
    /// Clocks from the place of a block becoming free to the first instruction of the next one.
    pub block_clocks: f64,
    /// Microseconds in which the blocks of a group wait for each other once.
    pub grid_barrier_us: f64,
    /// The same where the group is a cluster.
    pub cluster_barrier_us: f64,
    /// Bytes a clock that one SM takes from L2 at most.
    pub l2_bytes_per_clock: f64,
    /// Bytes a clock of an SM's shared memory.
    pub shared_bytes_per_clock: f64,
    /// Clocks from a read to its first bytes, where they are in L2.
    pub l2_latency_clocks: f64,
    /// The same where they are in device memory.
    pub memory_latency_clocks: f64,
    /// Clocks from a read of shared memory to its first bytes.
    pub shared_latency_clocks: f64,
    /// Clocks from one lane giving a value to another one having it.
    pub shuffle_latency_clocks: f64,
    /// Clocks of a barrier that all its threads have reached, and of a wait for a stage that is full.
    pub barrier_clocks: f64,
}

/// What a kind of matrix instruction reaches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixRate {
    /// Achievable TFLOP/s with f32 accumulation, each multiplication and each addition counted.
    pub tflops: f64,
    /// Clocks from an instruction to its result; of one that runs in the background, from its being issued to tensor cores that work on it.
    pub latency_clocks: f64,
}

impl Target {
    /// Most registers that a thread can have where so many threads of an SM share them.
    pub fn registers(&self, threads: u64) -> u64 {
        let share = u64::from(self.registers_per_sm) / threads.max(1);
        share.min(self.registers_per_thread.into())
    }

    /// The same as the hardware gives them out.
    pub fn whole_registers(&self, threads: u64) -> u64 {
        self.registers(threads) / u64::from(self.register_unit) * u64::from(self.register_unit)
    }

    /// Bytes of an SM's shared memory that a block which asks for so many takes.
    pub fn taken_shared(&self, asked: u64) -> u64 {
        asked + self.reserved_shared_per_block
    }
}
