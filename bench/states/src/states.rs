//! How fast the search walks: e-nodes and candidates a second, and how both grow with the program.
//!
//! `cargo bench -p tilewright-states` measures saturation and enumeration of chains of 10 to 300 nodes, and prints, for each, the
//! states a second and after how long each candidate came that the model thinks better than all before.
#![allow(
    missing_docs,
    reason = "criterion's macros make functions without documentation"
)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use search::forms::extract::{Limits, expressions};
use search::targets::target;
use search::tiling::enumerate::{SearchOptions, candidates};
use std::time::Instant;

/// A chain of normalised products of about so many nodes: the depth that layers have.
fn chain(nodes: usize) -> ir::Program {
    let mut text = String::from(
        "program chain\naxis t = 64, m = 512, n = 512\nx = parameter f16 [t, m]\nw = parameter f16 [m, n]\ny0 = x\n",
    );
    let mut layer = 0;
    loop {
        let program: ir::Program = format!("{text}return f16 [t, m] y{layer}\n")
            .parse()
            .unwrap_or_else(|e| panic!("{e}"));
        if program.nodes.len() >= nodes {
            return program;
        }
        let step = format!(
            "y{} = view(silu(dot(rms_norm(y{layer}; m, 1e-5), w; m)); n -> m)\n",
            layer + 1
        );
        text.push_str(&step);
        layer += 1;
    }
}

const LIMITS: Limits = Limits {
    nodes: 4000,
    iterations: 4,
};
const CANDIDATES: usize = 32;

fn states(c: &mut Criterion) {
    let h200 = target("h200").expect("a known target");
    let mut group = c.benchmark_group("states");
    group.sample_size(10);
    for nodes in [10, 30, 100, 300] {
        let program = chain(nodes);
        group.bench_with_input(
            BenchmarkId::new("expressions", program.nodes.len()),
            &program,
            |b, p| b.iter(|| expressions(p, &LIMITS, 4).len()),
        );
        let walk = || {
            let start = Instant::now();
            let (mut best, mut improvements, mut seen) = (f64::INFINITY, Vec::new(), 0u64);
            let options = SearchOptions {
                max_candidates: CANDIDATES,
                ..SearchOptions::default()
            };
            let mut all = candidates(vec![program.clone()], &h200, &options);
            for candidate in all.by_ref() {
                seen += 1;
                if candidate.predicted.us < best {
                    best = candidate.predicted.us;
                    improvements.push((start.elapsed().as_secs_f64(), best));
                }
            }
            let rejected: u64 = all.rejected().iter().map(|r| r.1).sum();
            (seen + rejected, improvements, start.elapsed().as_secs_f64())
        };
        let (states, improvements, seconds) = walk();
        let improvements: Vec<String> = improvements
            .iter()
            .map(|(at, us)| format!("{us:.1} us after {:.0} ms", at * 1e3))
            .collect();
        #[allow(clippy::print_stderr, reason = "a benchmark's findings are for people")]
        {
            eprintln!(
                "{} nodes: {states} states, {:.0} a second; {}",
                program.nodes.len(),
                states as f64 / seconds,
                improvements.join(", ")
            );
        }
        group.throughput(Throughput::Elements(states));
        group.bench_function(BenchmarkId::new("candidates", program.nodes.len()), |b| {
            b.iter(&walk)
        });
    }
    group.finish();
}

criterion_group!(benches, states);
criterion_main!(benches);
