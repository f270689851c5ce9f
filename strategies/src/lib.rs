//! Random well-typed programs for property tests, as strategies of `proptest`: a program that fails shrinks to a small one.
//!
//! A strategy draws a *recipe*: choices that mean something wherever they stand. An operand is the result of one of the steps before,
//! whatever that is, and an axis one of those that there are. So each choice shrinks without the others, and every recipe makes a
//! program: a step that would make too many elements or too large numbers stands for its first operand, and so does a step that
//! shrinking leaves out.
//!
//! For inputs in `-1 .. 1` all values are finite and moderate, divisions, logarithms and roots stay away from their singularities, and
//! conditions from ties, so that comparing f64 results is meaningful. Programs are what [`ir::Builder::finish`] gives: canonical,
//! hash-consed, valid.
//!
//! Everything is a function of the seed: no clock, no system randomness.

mod bounded;
mod cascades;
mod choices;
mod programs;

pub use cascades::cascades;
pub use programs::{large_programs, programs};

use ir::Program;
use proptest::strategy::Strategy;
use proptest::test_runner::{
    Config, RngAlgorithm, TestError, TestRng, TestRunner, basic_result_cache,
};

/// Most choices of a recipe change nothing in the program: those cost a look into the cache. A large recipe has thousands of choices.
const MAX_SHRINK_ITERS: u32 = 200_000;

/// What draws so many cases of a strategy from a seed, and shrinks a case that fails.
///
/// ```
/// # use tilewright_strategies as strategies;
/// use proptest::test_runner::TestError;
/// let drawn = strategies::runner(1, 1000).run(&strategies::programs(), |program| {
///     proptest::prop_assert!(program.to_string().matches("exp(").count() < 2);
///     Ok(())
/// });
/// let Err(TestError::Fail(_, smallest)) = drawn else { panic!("no program has two exponentials") };
/// assert!(smallest.nodes.len() <= 4, "{smallest}");
/// ```
pub fn runner(seed: u64, cases: u32) -> TestRunner {
    let config = Config {
        cases,
        // What was found is kept as a program: a seed draws another one as soon as a strategy changes.
        failure_persistence: None,
        max_shrink_iters: MAX_SHRINK_ITERS,
        result_cache: basic_result_cache,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Gives so many programs from a seed to a test, which panics where it fails; then it panics with the smallest program.
pub fn check(
    strategy: &impl Strategy<Value = Program>,
    seed: u64,
    cases: u32,
    test: impl Fn(&Program),
) {
    let found = runner(seed, cases).run(strategy, |program| {
        test(&program);
        Ok(())
    });
    match found {
        Ok(()) => {}
        Err(TestError::Fail(why, program)) => panic!("{why}\n{program}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}
