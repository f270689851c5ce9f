//! The reference on a GPU, as text: held against the baseline of the CPU, and compiled.

use crate::emulator;
use codegen::{ReferenceMode, ReferenceProgram, reference};
use device::nvrtc::Options;
use ir::{Dtype, Program};
use verify::inputs::{DISTRIBUTIONS, draw_inputs};
use verify::tolerance::{baseline, ulp};

/// Programs whose intermediate results lose digits where a product takes them, and nowhere else.
const CAREFUL: [&str; 4] = [
    "program a\naxis h = 2, i = 19, j = 70, d = 24, e = 17\nq = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\n\
     v = parameter bf16 [h, j, e]\nreturn bf16 [h, i, e] dot(softmax(dot(q, k; d) * 0.2; j), v; j), f32 [h, i] max(dot(q, k; d); j)\n",
    "program m\naxis i = 33, j = 20, k = 40, l = 18\nx = parameter f16 [i, k]\nu = parameter f16 [k, j]\nw = parameter bf16 [j, l]\n\
     h = dot(x, u; k)\nreturn f32 [i, l] dot(h * 1.5, w; j), f16 [i, j] h / (1 + exp(-h))\n",
    "program r\naxis i = 40, j = 300, l = 12\nx = parameter bf16 [i, j]\ng = parameter bf16 [j]\nw = parameter bf16 [j, l]\n\
     y = x / sqrt(sum(x * x; j) / 300 + 0.00001) * g\nreturn f32 [i, l] dot(y, w; j), bf16 [i, j] y\n",
    "program n\naxis i = 9, k = 500\nx = parameter bf16 [i, k]\ny = parameter bf16 [k]\nreturn f32 [i] dot(exp(x), y * y; k)\n",
];

/// Oracle: `verify::tolerance::baseline`, which evaluates on the CPU. Both round the same numbers; they differ in the order of
/// sums, and in the last digit of exponentials, which now and then rounds an operand to the other side.
#[test]
fn careful_references_are_the_baseline() {
    if !emulator::available() {
        return;
    }
    let mut dithers = false;
    for text in CAREFUL {
        let program: Program = text.parse().expect("a program");
        let inputs = draw_inputs(&program, &DISTRIBUTIONS[0], 3);
        let want = baseline(&program, &inputs).expect("a value");
        let tensors: Vec<ir::Tensor> = program
            .parameters()
            .zip(&inputs)
            .map(|((_, _, _, dims), data)| {
                let shape = program.shape(dims).iter().map(|e| *e as usize).collect();
                ir::Tensor::new(shape, data.clone()).expect("the shape of its data")
            })
            .collect();
        let exact = ir::eval(&program, &tensors).expect("a value");
        let run = |mode: ReferenceMode| {
            let chain = reference(&program, mode).expect("a chain");
            let extent = chain.slab.map_or(1, |s| s.1);
            emulator::run_reference(&program, &chain, &inputs, extent).expect("it runs")
        };
        let (orders, dithered) = (run(ReferenceMode::Careful), run(ReferenceMode::Dithered));
        for n in 0..program.outputs.len() {
            let (got, want, exact) = (&orders[0][n], &want[n], &exact[n].data);
            let dithered = &dithered[0][n];
            let rms = |f: &dyn Fn(usize) -> f64| {
                let squares = (0..got.len()).map(|at| f(at) * f(at)).sum::<f64>();
                (squares / got.len() as f64).sqrt()
            };
            let apart = rms(&|at| got[at] - want[at]);
            let error = rms(&|at| want[at] - exact[at]);
            let unit = ulp(Dtype::F32, rms(&|at| exact[at]));
            // An f32 output shows whether operands were rounded: that error is some 100 units. The two share it.
            assert!(
                apart <= 0.2 * error + 4.0 * unit,
                "{}: output {n} is off by {apart:e}, the baseline from the exact value by {error:e}",
                program.name
            );
            // Rounded to either neighbour an operand is off by √2 times as much as rounded to the nearer one; of few elements luck has its say.
            let by_chance = rms(&|at| dithered[at] - exact[at]) / error;
            let is_many = got.len() > 100 && program.outputs[n].dtype == Dtype::F32;
            let is_rounded = is_many && error > 20.0 * unit;
            assert!(
                !is_rounded || (1.1..1.9).contains(&by_chance),
                "{}: output {n}, dithered, is off by {by_chance} times as much",
                program.name
            );
            dithers |= is_rounded;
        }
    }
    assert!(dithers);
}

/// Large products, folds of both kinds and in parts, and expressions: what a GPU has to hold.
const COMPILED: [&str; 5] = [
    "program m\naxis i = 8192, j = 8192, k = 8192\nx = parameter bf16 [i, k]\ny = parameter bf16 [k, j]\nreturn bf16 [i, j] dot(x, y; k)\n",
    "program t\naxis i = 8192, j = 8192, k = 8192\nx = parameter f32 [k, i]\ny = parameter f32 [j, k]\nreturn f32 [i, j] dot(x, y; k)\n",
    "program a\naxis h = 256, i = 8192, j = 8192, d = 64, e = 64\nq = parameter bf16 [h, i, d]\nk = parameter bf16 [h, j, d]\n\
     v = parameter bf16 [h, j, e]\nreturn bf16 [h, i, e] dot(softmax(causal(30 * tanh(dot(q, k; d) * 0.004); i, j); j), v; j)\n",
    "program g\naxis n = 64, g = 32, c = 16, h = 300, w = 300\nx = parameter bf16 [n, (g c), h, w]\nm = sum(x; c, h, w) / 1440000\n\
     d = x - m\nreturn bf16 [n, (g c), h, w] d / sqrt(sum(d * d; c, h, w) / 1440000 + 0.00001)\n",
    "program c\naxis n = 32, ci = 64, h = 112, w = 112, co = 64, oh = 112, ow = 112, kh = 3, kw = 3\nx = parameter bf16 [n, ci, h, w]\n\
     f = parameter bf16 [co, ci, kh, kw]\n\
     return bf16 [n, co, oh, ow] dot(view(x; h -> oh + kh - 1, w -> ow + kw - 1; fill = 0), f; ci, kh, kw)\n",
];

#[test]
fn references_compile_without_spills() {
    let Some(nvrtc) = crate::matrix::nvrtc() else {
        return;
    };
    let options = Options {
        unfused: true,
        ..Options::default()
    };
    for text in COMPILED {
        let program: Program = text.parse().expect("a program");
        let modes = [
            ReferenceMode::Exact,
            ReferenceMode::Careful,
            ReferenceMode::Dithered,
        ];
        for mode in modes {
            let chain: ReferenceProgram = reference(&program, mode).expect("a chain");
            let compiled = nvrtc
                .compile(&chain.source, "sm_90a", &options)
                .unwrap_or_else(|e| panic!("{}: {e}", program.name));
            assert!(!compiled.log.contains("warning"), "{}", compiled.log);
            for kernel in &compiled.kernels {
                let name = (&program.name, &kernel.name);
                eprintln!("{name:?}: {} registers", kernel.registers);
                let spills = kernel.spill_stores + kernel.spill_loads + kernel.stack_bytes;
                assert_eq!(spills, 0, "{name:?} {}", kernel.registers);
            }
        }
    }
}
