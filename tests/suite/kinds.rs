//! Small programs, one of each kind of kernel, that the tests of generated code share.

use ir::Program;

/// A name, and a program at small, mostly odd extents.
#[rustfmt::skip]
pub(crate) const KINDS: &[(&str, &str)] = &[
    ("attention",
     "axis b = 2, i = 37, j = 75, d = 32, e = 24\n\
      q = parameter bf16 [b, i, d]\nk = parameter bf16 [b, j, d]\nv = parameter bf16 [b, j, e]\n\
      return bf16 [b, i, e] dot(softmax(dot(q, k; d) * 0.18; j), v; j)"),
    ("running_sum",
     "axis r = 5, i = 300, j = 300\nx = parameter f32 [r, i]\n\
      return f32 [r, i] sum(select(iota(i) - iota(j) - 1, view(x; i -> j), 0); j)"),
    ("integers",
     "axis t = 13, v = 37, m = 24, n = 40\nids = parameter i64 [t]\ntable = parameter bf16 [v, m]\n\
      keep = parameter bool [t, n]\nlen = parameter i32 [t]\nw = parameter bf16 [m, n]\n\
      y = dot(sum(select(0 - abs(iota(v) - ids), table, 0); v), w; m)\n\
      return bf16 [t, n] select(len - 1 - iota(n), keep * y, 0)"),
    ("whole_results",
     "axis t = 11, n = 45\nx = parameter bf16 [t, n]\nkeep = parameter bool [t, n]\nlen = parameter i32 [t]\n\
      at = min(select(x - max(x; n), iota(n), size(n)); n)\n\
      return i64 [t] at, bool [n, t] relu(keep - x), i32 [t] sum(keep; n) - 3 * len"),
    ("computed_place",
     "axis b = 3, n = 40, a = 40, k = 24, m = 136\nx = parameter bf16 [b, m]\np = parameter f32 [b, n]\nw = parameter bf16 [a, k, m]\n\
      place = min(select(p - max(p; n), iota(n), 40); n)\n\
      return bf16 [b, k] sum(select(-abs(iota(a) - place), w, 0) * x; a, m)"),
    ("collapsed",
     "axis b = 5, t = 13, g = 3, c = 40, n = 72\nx = parameter bf16 [b, t, (g c)]\nw = parameter bf16 [n, (g c)]\n\
      s = parameter f32 [b, t, n]\nreturn bf16 [b, t, n] silu(dot(x, w; g, c)) + s"),
    ("transposed",
     "axis n = 2, ci = 24, h = 9, w = 7, co = 20, oh = 19, ow = 14, kh = 3, kw = 2\n\
      x = parameter bf16 [n, ci, h, w]\nf = parameter bf16 [ci, co, kh, kw]\n\
      return bf16 [n, co, oh, ow] dot(view(x; 2*h -> oh - kh + 1, 2*w -> ow + 1 - kw; fill = 0), f; ci, kh, kw)"),
    ("causal",
     "axis h = 2, i = 70, j = 70, d = 16, e = 16\n\
      q = parameter f16 [h, i, d]\nk = parameter f16 [h, j, d]\nv = parameter f16 [h, j, e]\n\
      return f16 [h, i, e] dot(softmax(causal(dot(q, k; d) * 0.25; i, j); j), v; j)"),
    ("grouped",
     "axis b = 1, h = 2, g = 3, i = 19, j = 53, d = 16, e = 16\n\
      q = parameter f16 [b, h, g, i, d]\nk = parameter f16 [b, h, j, d]\nv = parameter f16 [b, h, j, e]\n\
      return f16 [b, h, g, i, e] dot(softmax(dot(q, k; d) * 0.25; j), v; j)"),
    ("one_query",
     "axis h = 2, g = 2, i = 1, j = 1021, d = 32, e = 32\n\
      q = parameter bf16 [h, g, i, d]\nk = parameter bf16 [h, j, d]\nv = parameter bf16 [h, j, e]\n\
      return bf16 [h, g, i, e] dot(softmax(dot(q, k; d) * 0.18; j), v; j)"),
    ("product_bf16",
     "axis i = 67, j = 56, k = 104\nx = parameter bf16 [i, k]\ny = parameter bf16 [k, j]\n\
      return bf16 [i, j] dot(x, y; k)"),
    ("product_f32",
     "axis i = 45, j = 37, k = 51\nx = parameter f32 [i, k]\ny = parameter f32 [j, k]\n\
      return f32 [i, j] dot(x, y; k)"),
    ("convolution",
     "axis n = 2, ci = 3, h = 17, w = 19, co = 10, oh = 9, ow = 10, kh = 3, kw = 3\n\
      x = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\n\
      return f32 [n, co, oh, ow] dot(view(x; h -> 2*oh + kh - 1, w -> 2*ow + kw - 1; fill = 0), f; ci, kh, kw)"),
    ("norm_linear",
     "axis t = 5, m = 136, n = 72\nx = parameter f16 [t, m]\ng = parameter f16 [m]\nw = parameter f16 [m, n]\n\
      return f16 [t, n] dot(rms_norm(x; m, 1e-5) * g, w; m)"),
    ("gated",
     "axis t = 9, m = 80, n = 48\nx = parameter f16 [t, m]\nwg = parameter f16 [m, n]\nwu = parameter f16 [m, n]\n\
      return f16 [t, n] silu(dot(x, wg; m)) * dot(x, wu; m)"),
    ("low_rank",
     "axis t = 21, m = 64, n = 40, r = 8\nx = parameter f16 [t, m]\nw = parameter f16 [m, n]\n\
      a = parameter f16 [m, r]\nb = parameter f16 [r, n]\n\
      return f16 [t, n] dot(x, w; m) + dot(dot(x, a; m), b; r)"),
    ("softmax",
     "axis t = 5, m = 1003\nx = parameter f32 [t, m]\nreturn f32 [t, m] softmax(x; m)"),
    ("long_softmax",
     "axis t = 2, m = 70001\nx = parameter f32 [t, m]\nreturn f32 [t, m] softmax(x; m)"),
    ("layer_norm",
     "axis t = 7, m = 300\nx = parameter bf16 [t, m]\ng = parameter bf16 [m]\nb = parameter bf16 [m]\n\
      return bf16 [t, m] layer_norm(x; m, 1e-5) * g + b"),
    ("pooled_convolution",
     "axis n = 1, ci = 2, h = 15, w = 15, co = 5, oh = 13, ow = 13, kh = 3, kw = 3, ph = 6, pw = 6, rh = 3, rw = 3\n\
      x = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\nb = parameter f32 [co]\n\
      y = relu(dot(view(x; h -> oh + kh, w -> ow + kw), f; ci, kh, kw) + b)\n\
      return f32 [n, co, ph, pw] max(view(y; oh -> 2*ph + rh, ow -> 2*pw + rw); rh, rw)"),
    ("two_results",
     "axis t = 59, m = 37\nx = parameter f32 [t, m]\nmu = mean(x; t)\n\
      return f32 [m] mu, f32 [m] mean((x - mu) * (x - mu); t)"),
];

/// The program of a row of the table.
pub(crate) fn program(name: &str, text: &str) -> Program {
    let text = format!("program {name}\n{text}\n");
    ir::text::parse(&text, name).unwrap_or_else(|e| panic!("{e}"))
}
