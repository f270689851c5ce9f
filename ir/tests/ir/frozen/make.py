"""Makes cases.json: small programs, inputs and what NumPy computes for them.

Run with any Python that has NumPy: `python make.py`. The formulas are written from the definitions of the functions and
not from the prelude, so that one mistake cannot hide in both.
"""

import json
import math
import pathlib

import numpy as np

rng = np.random.default_rng(20240607)
cases = []


def case(name, covers, axes, body, inputs, *outputs):
    source = f"program case\naxis {', '.join(f'{a} = {n}' for a, n in axes.items())}\n{body}\n"
    tensors = lambda arrays: [{"shape": list(np.shape(a)), "data": np.ravel(a).astype(float).tolist()} for a in arrays]
    text = lambda t: [[("inf" if v == math.inf else "-inf" if v == -math.inf else v) for v in x["data"]] for x in t]
    ins, outs = tensors(inputs), tensors(outputs)
    for x, data in zip(ins + outs, text(ins) + text(outs)):
        x["data"] = data
    cases.append({"name": name, "covers": covers, "source": source, "inputs": ins, "outputs": outs})


def normal(*shape):
    return rng.standard_normal(shape)


def unary(name, formula, x, covers=None):
    case(name, [covers or name], {"i": 3, "j": 5},
         f"x = parameter f32 [i, j]\nreturn f32 [i, j] {name}(x)", [x], formula(x))


X, Y = normal(3, 5), normal(5, 4)
ab = "x = parameter f32 [i, j]\ny = parameter f32 [j, k]\n"
sizes = {"i": 3, "j": 5, "k": 4}

# The operations.
case("parameter and order", ["parameter"], sizes, "x = parameter f32 [i, (j k)]\nreturn f32 [k, (j i)] x",
     [(g := normal(3, 20))], g.reshape(3, 5, 4).transpose(2, 1, 0).reshape(4, 15))
case("constant", ["constant"], sizes, "x = parameter f32 [i, j]\nreturn f32 [i, j] x + 0.1, f32 [] -inf", [X], X + 0.1, -math.inf)
case("iota", ["iota"], sizes, "return f32 [j, i] iota(i) - 2 * iota(j)", [], np.arange(3)[None, :] - 2.0 * np.arange(5)[:, None])
case("add", ["add"], sizes, ab + "return f32 [i, j, k] x + y", [X, Y], X[:, :, None] + Y[None])
case("sub and neg", ["add", "mul"], sizes, ab + "return f32 [k, i, j] -x - y", [X, Y], (-X[:, :, None] - Y[None]).transpose(2, 0, 1))
case("mul", ["mul"], sizes, ab + "return f32 [i, j, k] x * y", [X, Y], np.einsum("ij,jk->ijk", X, Y))
case("div", ["div"], sizes, ab + "return f32 [i, j, k] x / y", [X, Y], X[:, :, None] / Y[None])
case("max", ["max"], sizes, ab + "return f32 [i, j, k] max(x, y)", [X, Y], np.maximum(X[:, :, None], Y[None]))
unary("exp", np.exp, X)
unary("log", np.log, np.abs(X))
unary("sqrt", np.sqrt, np.abs(X))
C = np.array([[0.0, -0.0, 1.0, -1.0, -1e-300]])
case("select", ["select"], {"i": 1, "j": 5}, "c = parameter f32 [i, j]\nreturn f32 [i, j] select(c, 7, c - 1)", [C], np.where(C >= 0, 7.0, C - 1))
case("sum", ["reduce"], sizes, "x = parameter f32 [i, j]\nreturn f32 [i] sum(x; j), f32 [j] sum(x; i), f32 [] sum(x; i, j)", [X], X.sum(1), X.sum(0), X.sum())
case("max over", ["reduce"], sizes, "x = parameter f32 [i, j]\nreturn f32 [i] max(x; j), f32 [] max(x; i, j)", [X], X.max(1), X.max())
case("prod over", ["reduce"], sizes, "x = parameter f32 [i, j]\nreturn f32 [i] prod(x; j), f32 [j] prod(x; i), f32 [] prod(x; i, j)", [X], X.prod(1), X.prod(0), X.prod())
case("dot", ["dot"], sizes, ab + "return f32 [i, k] dot(x, y; j)", [X, Y], np.einsum("ij,jk->ik", X, Y))
case("dot of one side", ["dot"], sizes, ab + "return f32 [k] dot(x, y; i, j)", [X, Y], np.einsum("ij,jk->k", X, Y))
case("dot batched", ["dot"], {"b": 2, "i": 3, "j": 5, "k": 4},
     "x = parameter f32 [b, i, j]\ny = parameter f32 [j, k, b]\nreturn f32 [k, i, b] dot(x, y; j)",
     [(p := normal(2, 3, 5)), (q := normal(5, 4, 2))], np.einsum("bij,jkb->kib", p, q))
v = normal(7)
case("view reverse", ["view"], {"i": 7}, "x = parameter f32 [i]\nreturn f32 [i] view(x; i -> 6 - i)", [v], v[::-1])
case("view slice and stride", ["view"], {"i": 7, "o": 3}, "x = parameter f32 [i]\nreturn f32 [o] view(x; i -> 2*o + 1)", [v], v[1::2])
case("view one element", ["view"], {"i": 7}, "x = parameter f32 [i]\nreturn f32 [] view(x; i -> 4)", [v], v[4])
case("view pad", ["view"], {"i": 7, "o": 12}, "x = parameter f32 [i]\nreturn f32 [o] view(x; i -> o - 2; fill = -inf)", [v],
     np.pad(v, (2, 3), constant_values=-math.inf))
windows = np.lib.stride_tricks.sliding_window_view(np.pad(v, 1), 3)
case("view windows", ["view"], {"i": 7, "o": 7, "w": 3}, "x = parameter f32 [i]\nreturn f32 [o, w] view(x; i -> o + w - 1; fill = 0)", [v], windows)
s = normal(4, 4)
case("view diagonal", ["view"], {"i": 4, "j": 4}, "x = parameter f32 [i, j]\nreturn f32 [i] view(x; j -> i)", [s], np.diag(s))
case("view transpose", ["view"], {"i": 4, "j": 4}, "x = parameter f32 [i, j]\nreturn f32 [i, j] view(x; i -> j, j -> i)", [s], s.T)
case("view merge", ["view"], {"i": 12, "a": 3, "c": 4}, "x = parameter f32 [i]\nreturn f32 [c, a] view(x; i -> 4*a + c)",
     [(w := normal(12))], w.reshape(3, 4).T)

# The prelude.
case("min", ["min"], sizes, ab + "return f32 [i, j, k] min(x, y)", [X, Y], np.minimum(X[:, :, None], Y[None]))
unary("rsqrt", lambda x: x ** -0.5, np.abs(X))
unary("sigmoid", lambda x: 0.5 + 0.5 * np.tanh(0.5 * x), X)
unary("silu", lambda x: x * (0.5 + 0.5 * np.tanh(0.5 * x)), X)
unary("relu", lambda x: np.where(x > 0, x, 0.0), X)
unary("tanh", np.tanh, X)
unary("gelu", lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))), X)
case("mean", ["mean"], sizes, "x = parameter f32 [i, j]\nreturn f32 [j] mean(x; i)", [X], X.mean(0))


def softmax(x, axis):
    # log-sum-exp, another road than the prelude's
    return np.exp(x - np.logaddexp.reduce(x, axis=axis, keepdims=True))


case("softmax", ["softmax"], sizes, "x = parameter f32 [i, j]\nreturn f32 [i, j] softmax(x; j)", [X], softmax(X, 1))
big = X * 300
case("softmax of large logits", ["softmax"], sizes, "x = parameter f32 [i, j]\nreturn f32 [i, j] softmax(x; i)", [big], softmax(big, 0))
case("rms_norm", ["rms_norm"], sizes, "x = parameter f32 [i, j]\nreturn f32 [i, j] rms_norm(x; j, 1e-6)", [X],
     X / np.sqrt(np.linalg.norm(X, axis=1, keepdims=True) ** 2 / 5 + 1e-6))
case("layer_norm", ["layer_norm"], sizes, "x = parameter f32 [i, j]\nreturn f32 [i, j] layer_norm(x; j, 1e-5)", [X],
     (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5))
for rows, columns in [(3, 5), (5, 3), (4, 4)]:
    x = normal(rows, columns)
    case(f"causal {rows} {columns}", ["causal"], {"i": rows, "j": columns}, "x = parameter f32 [i, j]\nreturn f32 [i, j] causal(x; i, j)",
         [x], np.where(np.tri(rows, columns, columns - rows, dtype=bool), x, -math.inf))

# Whole programs.
q, k, v = normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 6)
scores = np.where(np.tri(3, 5, 2, dtype=bool), np.einsum("bid,bjd->bij", q, k) / 2, -math.inf)
case("attention", ["dot", "softmax", "causal"], {"b": 2, "i": 3, "j": 5, "d": 4, "e": 6},
     "q = parameter f16 [b, i, d]\nk = parameter f16 [b, j, d]\nv = parameter f16 [b, j, e]\n"
     "s = causal(dot(q, k; d) * 0.5; i, j)\nreturn f16 [b, i, e] dot(softmax(s; j), v; j)",
     [q, k, v], softmax(scores, 2) @ v)
x, f, bias = normal(2, 3, 9, 8), normal(4, 3, 3, 3), normal(4)
padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
case("convolution", ["view", "dot"], {"n": 2, "ci": 3, "h": 9, "w": 8, "co": 4, "oh": 5, "ow": 4, "kh": 3, "kw": 3},
     "x = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\nb = parameter f32 [co]\n"
     "return f32 [n, co, oh, ow] dot(view(x; h -> 2*oh + kh - 1, w -> 2*ow + kw - 1; fill = 0), f; ci, kh, kw) + b",
     [x, f, bias], np.einsum("nchwij,ocij->nohw", patches, f) + bias[:, None, None])
x, angle = normal(3, 2, 8), normal(3, 4)
z = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angle)[:, None]
case("rotary embedding", ["view", "iota"], {"s": 3, "h": 2, "t": 2, "c": 4},
     "x = parameter bf16 [s, h, (t c)]\ncos = parameter f32 [s, c]\nsin = parameter f32 [s, c]\n"
     "return bf16 [s, h, (t c)] x * cos + (2 * iota(t) - 1) * view(x; t -> 1 - t) * sin",
     [x, np.cos(angle), np.sin(angle)], np.concatenate([z.real, z.imag], axis=2))

# More of the prelude, after what was here before it: the inputs above stay.
T = np.concatenate([normal(3, 9) * 3, [[-700.0, -40.0, -1e-3, -0.0, 0.0, 1e-3, 40.0, 350.0, 700.0]]])


def mapped(name, formula, call=None):
    case(call or name, [name], {"i": 4, "j": 9}, f"x = parameter f32 [i, j]\nreturn f32 [i, j] {call or name + '(x)'}", [T], formula(T))


def expm1_below(x):
    return np.expm1(np.minimum(x, 0))


mapped("abs", np.abs)
mapped("clamp", lambda x: np.clip(x, -0.5, 2), "clamp(x, -0.5, 2)")
mapped("clamp", lambda x: np.clip(x, -0.5, 2), "clamp(x; -0.5, 2)")
case("clamp by values", ["clamp"], sizes, ab + "return f32 [i, j, k] clamp(y, x - 1, x + 1)", [X, Y],
     np.clip(Y[None], X[:, :, None] - 1, X[:, :, None] + 1))
mapped("softplus", lambda x: np.logaddexp(0, x))
mapped("mish", lambda x: x * np.tanh(np.logaddexp(0, x)))
mapped("elu", lambda x: np.where(x > 0, x, expm1_below(x)), "elu(x)")
mapped("elu", lambda x: np.where(x > 0, x, 0.3 * expm1_below(x)), "elu(x; 0.3)")
selu_alpha, selu_scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
mapped("selu", lambda x: selu_scale * np.where(x > 0, x, selu_alpha * expm1_below(x)))
mapped("leaky_relu", lambda x: np.maximum(x, 0) + 0.01 * np.minimum(x, 0), "leaky_relu(x)")
mapped("leaky_relu", lambda x: np.maximum(x, 0) - 2 * np.minimum(x, 0), "leaky_relu(x; -2)")
mapped("hardswish", lambda x: np.where(x <= -3, 0, np.where(x >= 3, x, x * (x + 3) / 6)))

# Over several axes: (axes in the text, the same for NumPy).
V = normal(3, 4, 5) + 0.5
cube, of_cube = {"n": 3, "h": 4, "w": 5}, "x = parameter f32 [n, h, w]\n"
for text, axes in [("h", 1), ("w, h", (1, 2)), ("n, h, w", (0, 1, 2)), ("n, w", (0, 2))]:
    left = ", ".join(a for at, a in enumerate(cube) if at not in np.atleast_1d(axes))
    less = lambda name, value: case(f"{name} over {text}", [name], cube, of_cube + f"return f32 [{left}] {name}(x; {text})", [V], value)
    less("mean", V.mean(axes))
    less("min", V.min(axes))
    less("logsumexp", np.logaddexp.reduce(np.moveaxis(V, axes, range(-np.size(axes), 0)).reshape(*np.delete(V.shape, axes), -1), axis=-1))
    total = np.log(np.exp(V).sum(axes, keepdims=True))
    whole = lambda name, value, eps="": case(
        f"{name} over {text}", [name], cube, of_cube + f"return f32 [n, h, w] {name}(x; {text}{eps})", [V], value)
    whole("softmax", np.exp(V - total))
    whole("log_softmax", V - total)
    whole("rms_norm", V / np.sqrt(np.square(V).mean(axes, keepdims=True) + 1e-3), ", 1e-3")
    normalised = (V - V.mean(axes, keepdims=True)) / np.sqrt(V.var(axes, keepdims=True) + 1e-3)
    for name in ["layer_norm", "instance_norm", "group_norm", "batch_norm"]:
        whole(name, normalised, ", 1e-3")
case("large logits over two axes", ["log_softmax", "logsumexp"], cube,
     of_cube + "return f32 [n, h, w] log_softmax(300 * x; h, w), f32 [n] logsumexp(300 * x; h, w)", [V],
     300 * V - np.logaddexp.reduce((300 * V).reshape(3, -1), axis=1)[:, None, None], np.logaddexp.reduce((300 * V).reshape(3, -1), axis=1))
x, mu, var = normal(2, 3, 5), normal(3), normal(3) ** 2
case("batch_norm of given statistics", ["batch_norm"], {"n": 2, "c": 3, "l": 5},
     "x = parameter f32 [n, c, l]\nmu = parameter f32 [c]\nvar = parameter f32 [c]\nreturn f32 [n, c, l] batch_norm(x, mu, var; 1e-5)",
     [x, mu, var], (x - mu[:, None]) / np.sqrt(var[:, None] + 1e-5))
x = normal(2, 3, 8)
case("group_norm of groups of channels", ["group_norm"], {"n": 2, "g": 3, "c": 2, "l": 4},
     "x = parameter f32 [n, g, (c l)]\nreturn f32 [n, g, (c l)] group_norm(x; c, l, 1e-5)",
     [x], (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5))


def windows(x, axis, size, stride, pad, fill):
    widths = [(pad, pad) if at == axis else (0, 0) for at in range(x.ndim)]
    all_of_them = np.lib.stride_tricks.sliding_window_view(np.pad(x, widths, constant_values=fill), size, axis)
    return np.moveaxis(np.moveaxis(all_of_them, axis, 0)[::stride], 0, axis)


x = normal(2, 9)
for stride, pad, out in [(1, 0, 7), (2, 1, 5), (3, 2, 4)]:
    for name, formula, fill in [("max_pool", np.max, -math.inf), ("avg_pool", np.mean, 0)]:
        case(f"{name} {stride} {pad}", [name], {"n": 2, "h": 9, "oh": out, "kh": 3},
             f"x = parameter f32 [n, h]\nreturn f32 [n, oh] {name}(x; h, oh, kh, {stride}, {pad})",
             [x], formula(windows(x, 1, 3, stride, pad, fill), axis=-1))
x, f = normal(2, 3, 9), normal(4, 3, 3)
case("conv1d", ["conv1d"], {"n": 2, "ci": 3, "l": 9, "co": 4, "ol": 5, "kl": 3},
     "x = parameter f32 [n, ci, l]\nf = parameter f32 [co, ci, kl]\nreturn f32 [n, co, ol] conv1d(x, f; ci, l, ol, kl, 2, 1)",
     [x, f], np.einsum("nilk,oik->nol", windows(x, 2, 3, 2, 1, 0), f))
x, f = normal(2, 3, 7, 6), normal(4, 3, 3, 2)
case("conv2d", ["conv2d"], {"n": 2, "ci": 3, "h": 7, "w": 6, "co": 4, "oh": 4, "ow": 4, "kh": 3, "kw": 2},
     "x = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\n"
     "return f32 [n, co, oh, ow] conv2d(x, f; ci, h, oh, kh, w, ow, kw, 2, 1)",
     [x, f], np.einsum("nihwkl,oikl->nohw", windows(windows(x, 2, 3, 2, 1, 0), 3, 2, 2, 1, 0), f))

# The error function, close enough that nothing hides between two points, and far out.
E = np.concatenate([np.linspace(-8, 8, 641), [-3e38, -1e4, -27.0, -9.0, -1e-9, 0.0, 1e-9, 9.0, 27.0, 1e4, 3e38]])
erf = np.vectorize(math.erf)
line = {"i": len(E)}
case("erf", ["erf", "erf_rest", "erf_above", "erf_below"], line, "x = parameter f32 [i]\nreturn f32 [i] erf(x)", [E], erf(E))
case("gelu_erf", ["gelu_erf", "gelu_within"], line, "x = parameter f32 [i]\nreturn f32 [i] gelu_erf(x)", [E], E * np.vectorize(math.erfc)(-E / math.sqrt(2)) / 2)



def transposed(x, f, stride, pad, extents):
    """Every element of x adds its filters at `stride` times its own place, in all dimensions behind the second."""
    (n, channels, *places), window = x.shape, f.shape[2:]
    full = [(p - 1) * stride + k + e for p, k, e in zip(places, window, extents)]
    result = np.zeros((n, len(f), *full))
    for at in np.ndindex(*places):
        here = tuple(slice(stride * p, stride * p + k) for p, k in zip(at, window))
        result[:, :, *here] += np.tensordot(x[:, :, *at], f, (1, 1))
    return result[:, :, *(slice(pad, pad + e) for e in extents)]


x, f = normal(2, 3, 5), normal(4, 3, 3)
case("conv_transpose1d", ["conv_transpose1d"], {"n": 2, "ci": 3, "l": 5, "co": 4, "ol": 10, "kl": 3},
     "x = parameter f32 [n, ci, l]\nf = parameter f32 [co, ci, kl]\n"
     "return f32 [n, co, ol] conv_transpose1d(x, f; ci, l, ol, kl, 2, 1)", [x, f], transposed(x, f, 2, 1, [10]))
x, f = normal(2, 3, 4, 3), normal(4, 3, 3, 2)
case("conv_transpose2d", ["conv_transpose2d"], {"n": 2, "ci": 3, "h": 4, "w": 3, "co": 4, "oh": 12, "ow": 8, "kh": 3, "kw": 2},
     "x = parameter f32 [n, ci, h, w]\nf = parameter f32 [co, ci, kh, kw]\n"
     "return f32 [n, co, oh, ow] conv_transpose2d(x, f; ci, h, oh, kh, w, ow, kw, 3, 0)", [x, f], transposed(x, f, 3, 0, [12, 8]))

pathlib.Path(__file__).with_name("cases.json").write_text(json.dumps(cases, indent=None, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")
print(len(cases), "cases")
