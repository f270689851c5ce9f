"""What every program computes, written a second time in NumPy, and small extents at which to try it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray
Formula = Callable[..., Array | tuple[Array, ...]]


@dataclass(frozen=True)
class Case:
    """Programs whose names match `pattern`; the formula takes the parameters in order. Without extents: the file's own."""

    pattern: str
    formula: Formula
    extents: dict[str, int] | None = None


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def logsumexp(x: Array) -> Array:
    m = x.max(-1, keepdims=True)
    return (m + np.log(np.exp(x - m).sum(-1, keepdims=True)))[..., 0]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def rms(x: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def scores(q: Array, k: Array, scale: float) -> Array:
    return np.einsum("...id,...jd->...ij", q, k) * scale


def attention(scale: float, causal: bool = False, grouped: bool = False, norm: str = "") -> Formula:
    def run(q: Array, k: Array, v: Array) -> Array:
        q, k, v = (rms(x) if name in norm else x for name, x in zip("qkv", (q, k, v)))
        if grouped:
            k, v = k[:, :, None], v[:, :, None]
        s = scores(q, k, scale)
        if causal:
            i, j = s.shape[-2:]
            s = np.where(np.tri(i, j, j - i, dtype=bool), s, -np.inf)
        return softmax(s) @ v

    return run


def variant(change: Callable[..., Array]) -> Formula:
    """Attention of scale 1/4 with `change` made to the scores; `change` also gets the inputs after the values."""
    return lambda q, k, v, *rest: softmax(change(scores(q, k, 0.25), *rest)) @ v


def distance(s: Array) -> Array:
    """`j - i` for every score."""
    i, j = s.shape[-2:]
    return np.arange(j) - np.arange(i)[:, None]


def window(s: Array) -> Array:
    away = -distance(s)
    return np.where((away >= 0) & (away < 7), s, -np.inf)


def attention_lse(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    s = scores(q, k, 0.25)
    return softmax(s) @ v, logsumexp(s)


def gated_mlp(x: Array, wg: Array, wu: Array) -> Array:
    g = x @ wg
    return g * sigmoid(g) * (x @ wu)


def convolution(x: Array, f: Array, stride: int, pad: int) -> Array:
    """Two-dimensional, by explicit windows of the padded image."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = sliding_window_view(x, f.shape[-2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nihwkl,oikl->nohw", windows, f)


def conv2d(x: Array, f: Array, b: Array) -> Array:
    return convolution(x, f, 4, 2) + b[:, None, None]


def conv2d_relu_pool(x: Array, f: Array, b: Array) -> Array:
    y = np.maximum(conv2d(x, f, b), 0)
    return sliding_window_view(y, (3, 3), axis=(2, 3))[:, :, ::2, ::2].max((-1, -2))


def depthwise(x: Array, f: Array) -> Array:
    return np.concatenate([convolution(x[:, c : c + 1], f[None, c : c + 1], 1, 1) for c in range(len(f))], 1)


def conv1d_dilated(x: Array, f: Array) -> Array:
    padded, length = np.pad(x, ((0, 0), (0, 0), (2, 2))), x.shape[-1]
    return sum(np.einsum("nil,oi->nol", padded[:, :, 2 * k : 2 * k + length], f[:, :, k]) for k in range(f.shape[-1]))


def layer_norm(x: Array, g: Array, b: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b


def long_rows(x: Array, g: Array) -> tuple[Array, Array]:
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return y * g, (y * np.arange(x.shape[-1])).mean(-1)


def group_norm(x: Array, w: Array) -> Array:
    n, channels, length = x.shape
    y = x.reshape(n, 4, -1)
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    return y.reshape(n, channels, length) * w[:, None]


def batch_norm(x: Array) -> Array:
    return (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True) + 1e-5)


def linear_attention(q: Array, k: Array, v: Array) -> Array:
    s = scores(np.exp(q), np.exp(k), 1)
    return s @ v / s.sum(-1, keepdims=True)


def cross_entropy(x: Array, w: Array, label: Array) -> Array:
    z = x @ w.T
    return logsumexp(z) - z[np.arange(len(z)), label.astype(int)]


def kl_divergence(x: Array, y: Array) -> Array:
    p = softmax(x)
    return np.array((p * (np.log(p) - np.log(softmax(y)))).sum())


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    low, high = np.split(x, 2, -1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def llama(
    x: Array, ga: Array, gm: Array, wq: Array, wk: Array, wv: Array, wo: Array, wg: Array, wu: Array, wd: Array,
    kc: Array, vc: Array, cos: Array, sin: Array,
) -> tuple[Array, ...]:  # fmt: skip
    heads, _, dim = kc.shape
    y = rms(x) * ga
    q = rotate((y @ wq).reshape(heads, -1, dim), cos, sin)
    kn = rotate((y @ wk).reshape(heads, dim), cos, sin)
    vn = (y @ wv).reshape(heads, dim)
    k, v = kc.copy(), vc.copy()
    k[:, -1], v[:, -1] = kn, vn
    u = x + (softmax(scores(q, k, 0.125)) @ v).reshape(-1) @ wo
    return u + gated_mlp(rms(u) * gm, wg, wu) @ wd, kn, vn


def llama_prefill(
    x: Array, ga: Array, gm: Array, wq: Array, wk: Array, wv: Array, wo: Array, wg: Array, wu: Array, wd: Array,
    cos: Array, sin: Array,
) -> tuple[Array, ...]:  # fmt: skip
    length, dim = len(x), 2 * cos.shape[-1]
    heads = wk.shape[-1] // dim
    y = rms(x) * ga
    q = rotate((y @ wq).reshape(length, heads, -1, dim).transpose(1, 2, 0, 3), cos, sin)
    k = rotate((y @ wk).reshape(length, heads, dim).transpose(1, 0, 2), cos, sin)
    v = (y @ wv).reshape(length, heads, dim).transpose(1, 0, 2)
    s = np.where(np.tri(length, dtype=bool), scores(q, k[:, None], 0.125), -np.inf)
    u = x + (softmax(s) @ v[:, None]).transpose(2, 0, 1, 3).reshape(length, -1) @ wo
    return u + gated_mlp(rms(u) * gm, wg, wu) @ wd, k, v


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: Array) -> Array:
    return x * np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2


def token_shift(x: Array, mu: Array) -> Array:
    before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    return (1 - mu) * x + mu * before


def conv_bn_residual(
    x: Array, f: Array, mu: Array, var: Array, g: Array, b: Array, r: Array,
) -> Array:  # fmt: skip
    y = convolution(x, f, 1, 1)
    mu, var, g, b = (v[:, None, None] for v in (mu, var, g, b))
    return np.maximum((y - mu) / np.sqrt(var + 1e-5) * g + b + r, 0)


def moe_top2(x: Array, wg: Array, w1: Array, w2: Array) -> Array:
    gates = softmax(x @ wg)
    kept = np.where(gates >= np.sort(gates)[:, -2:-1], gates, 0)
    h = np.einsum("td,edm->tem", x, w1)
    return np.einsum("te,tem,emo->to", kept / kept.sum(-1, keepdims=True), h * sigmoid(h), w2)


def latent_attention(qc: Array, qr: Array, kc: Array, kr: Array) -> Array:
    q, k = np.concatenate([qc, qr], -1), np.concatenate([kc, kr], -1)
    return softmax(scores(q, k[:, None], 0.07)) @ kc[:, None]


def padded_attention(q: Array, k: Array, v: Array, length: Array, mask: Array) -> Array:
    s = scores(q, k, 0.25) + (mask[:, None, None] - 1) * 10000
    return softmax(np.where(np.arange(k.shape[2]) < length[:, None, None, None], s, -np.inf)) @ v


def ragged_attention(q: Array, k: Array, v: Array, length: Array, keep: Array) -> Array:
    ended = np.arange(k.shape[2]) >= length[:, None, None]
    s = np.where((keep & ~ended)[:, None], scores(q, k, 0.25), -np.inf)
    return softmax(s) @ v


def nearest_code(x: Array, code: Array) -> tuple[Array, Array, Array]:
    far = np.square(x[:, None] - code).sum(-1)
    return far.argmin(-1), far.min(-1) <= 30, np.trunc(10 * far.min(-1)).astype(np.int32)


def position_bias(q: Array, k: Array, v: Array, bias: Array) -> Array:
    s = scores(q, k, 0.25)
    return softmax(s + bias[:, distance(s) + len(q[0]) - 1]) @ v


def differential_attention(q1: Array, q2: Array, k1: Array, k2: Array, v: Array, lam: Array) -> Array:
    return (softmax(scores(q1, k1, 0.25)) - lam[:, None, None] * softmax(scores(q2, k2, 0.25))) @ v


def sink_attention(q: Array, k: Array, v: Array, sink: Array) -> Array:
    s = scores(q, k, 0.25)
    sink = np.broadcast_to(sink[:, None, None], s[..., :1].shape)
    return softmax(np.concatenate([s, sink], -1))[..., :-1] @ v


def state_space(x: Array, a: Array, b: Array, c: Array) -> Array:
    """Step by step."""
    state = np.zeros((x.shape[0], *x.shape[2:], b.shape[-1]))
    steps = []
    for t in range(x.shape[1]):
        state = state * np.exp(-(a[:, t] ** 2))[..., None, None] + np.einsum("nhp,nk->nhpk", x[:, t], b[:, t])
        steps.append(np.einsum("nhpk,nk->nhp", state, c[:, t]))
    return np.stack(steps, 1)


def transposed_convolution(x: Array, f: Array) -> Array:
    n, _, h, w = x.shape
    y = np.zeros((n, f.shape[1], 2 * h + 2, 2 * w + 2))
    for a in range(4):
        for b in range(4):
            y[:, :, a : a + 2 * h : 2, b : b + 2 * w : 2] += np.einsum("nchw,co->nohw", x, f[:, :, a, b])
    return y


def transposed_strided(x: Array, f: Array, b: Array) -> Array:
    n, _, h, w = x.shape
    kh, kw = f.shape[2:]
    y = np.zeros((n, f.shape[1], 3 * h + 2 * kh, 3 * w + 2 * kw))
    for p in range(kh):
        for q in range(kw):
            y[:, :, 2 * p : 2 * p + 3 * h : 3, 2 * q : 2 * q + 3 * w : 3] += np.einsum("nchw,co->nohw", x, f[:, :, p, q])
    # One place of padding is cut off; the places behind the last element have no share of it.
    return np.maximum(y[:, :, 1:23, 1:18] + b[:, None, None], 0)


def clip_loss(x: Array, y: Array, t: Array) -> Array:
    z = (x / np.linalg.norm(x, axis=1, keepdims=True)) @ (y / np.linalg.norm(y, axis=1, keepdims=True)).T * np.exp(t)
    return np.array((logsumexp(z).mean() + logsumexp(z.T).mean()) / 2 - np.diag(z).mean())


def huber(x: Array, y: Array) -> tuple[Array, Array]:
    r = np.abs(x - y)
    loss = np.where(r <= 1.5, r**2 / 2, 1.5 * (r - 0.75))
    return np.array(loss.mean()), loss


def normalised(x: Array, axes: tuple[int, ...]) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def group_norm_silu(x: Array, w: Array, b: Array) -> Array:
    y = normalised(x.reshape(len(x), 3, -1), (2,)).reshape(x.shape) * w[:, None, None] + b[:, None, None]
    return y * sigmoid(y)


def instance_norm(x: Array) -> Array:
    y = normalised(x, (2, 3))
    return np.where(y > 0, y, 0.2 * y)


def spatial_softmax(x: Array) -> tuple[Array, Array]:
    p = softmax(x.reshape(*x.shape[:2], -1)).reshape(x.shape)
    return p.sum(3) @ np.arange(x.shape[2]), p.sum(2) @ np.arange(x.shape[3])


def focal_loss(x: Array, y: Array) -> Array:
    lp = x - logsumexp(x)[:, None]
    return np.array(-(softmax(y) * (1 - np.exp(lp)) ** 2 * lp).sum(-1).mean())


def scale_to_range(x: Array) -> Array:
    low, high = x.min((1, 2), keepdims=True), x.max((1, 2), keepdims=True)
    return np.clip((x - low) / (high - low + 1e-6), 0, 1)


def mish(x: Array) -> Array:
    return x * np.tanh(np.logaddexp(0, x))


def activations(x: Array) -> tuple[Array, ...]:
    below = np.expm1(np.minimum(x, 0))
    elu, selu = np.where(x > 0, x, below), 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * below)
    return np.logaddexp(0, x), mish(x), elu, selu, np.where(x > 0, x, 0.01 * x), x * np.clip(x + 3, 0, 6) / 6


def conv_pool_mish(x: Array, f: Array) -> Array:
    y = mish(convolution(x, f, 2, 1))
    padded = np.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2].max((-1, -2)).mean((-1, -2))


def lstm_cell(x: Array, h: Array, c: Array, w: Array, u: Array, b: Array) -> tuple[Array, Array]:
    i, f, g, o = np.moveaxis(np.einsum("td,dgm->tgm", x, w) + np.einsum("tr,rgm->tgm", h, u) + b, 1, 0)
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


D128, D64, D1024 = 128**-0.5, 0.125, 1024**-0.5
FULL = {"b": 2, "h": 3, "i": 17, "j": 67, "d": 13, "e": 11}
CAUSAL = {"b": 1, "h": 2, "i": 37, "j": 37, "d": 16, "e": 11}
MIRAGE = {"b": 3, "i": 19, "j": 71, "d": 17, "e": 24}
CONV = {"n": 2, "ci": 3, "h": 19, "w": 23, "co": 5, "oh": 5, "ow": 7, "kh": 5, "kw": 3}
ROWS = {"t": 5, "m": 1009}

EXAMPLES: list[Case] = [
    Case("attention_causal_gqa_*d128_*", attention(D128, True, True), CAUSAL | {"g": 3}),
    Case("attention_causal_*d128_*", attention(D128, True), CAUSAL),
    Case("attention_causal_*d64_*", attention(D64, True), CAUSAL),
    Case("attention_b*d128_*", attention(D128), FULL),
    Case("attention_b*d64_*", attention(D64), FULL),
    Case("attention_b*d1024_*", attention(D1024), FULL | {"d": 67}),
    Case("decode_gqa_*", attention(D128, False, True), {"b": 2, "h": 2, "g": 3, "i": 1, "j": 131, "d": 13, "e": 11}),
    Case("decode_b*", attention(D64), {"b": 2, "h": 3, "i": 1, "j": 131, "d": 13, "e": 11}),
    Case("qvnorm_gqa_*", attention(0.125, norm="qv"), MIRAGE),
    Case("qknorm_gqa_*", attention(0.125, norm="qk"), MIRAGE),
    Case("gqa*", attention(0.125), MIRAGE),
    Case("mha_*", attention(0.125), MIRAGE),
    Case("rmsnorm_linear_*", lambda x, g, w: (rms(x) * g) @ w, {"t": 3, "m": 101, "n": 37}),
    Case("gated_mlp_*", gated_mlp, {"t": 5, "m": 67, "n": 41}),
    Case("lora_*", lambda x, w, a, b: x @ w + x @ a @ b, {"t": 7, "m": 53, "n": 43, "r": 3}),
    Case("ntrans_*", lambda x, h, alpha: rms(x + alpha * (rms(h) - x)), {"t": 3, "m": 131}),
    Case("expert_mlp", lambda a, w1, w2: np.exp(a @ w1) @ w2, {"x": 3, "t": 5, "m": 11, "n": 37, "o": 29}),
    Case("matmul_*", np.matmul, {"m": 43, "n": 67, "k": 131}),
    Case("conv2d", conv2d, CONV),
    Case("conv2d_relu_pool", conv2d_relu_pool, CONV | {"ph": 2, "pw": 3, "rh": 3, "rw": 3}),
    Case("softmax_f32", softmax, ROWS),
    Case("layernorm_f32", layer_norm, ROWS),
    Case("rmsnorm_bf16", lambda x, g: rms(x) * g, ROWS),
    Case("linear_attention", linear_attention, FULL),
    Case("cross_entropy", cross_entropy, {"t": 7, "m": 31, "n": 127}),
    Case("llama_decode_layer", llama, {"h": 2, "g": 3, "t": 2, "c": 5, "j": 37, "a": 23, "o": 23, "n": 31}),
    Case(
        "llama_prefill_layer", llama_prefill,
        {"s": 19, "j": 19, "h": 2, "g": 3, "t": 2, "c": 5, "a": 23, "o": 23, "n": 31},
    ),
]  # fmt: skip

PROGRAMS: list[Case] = [
    Case("alibi", variant(lambda s, slope: s + slope[:, None, None] * distance(s))),
    Case("sliding_window", variant(window)),
    Case("softcap", variant(lambda s: 20 * np.tanh(s / 20))),
    Case("score_bias", variant(lambda s, bias: s + bias)),
    Case("sigmoid_attention", lambda q, k, v: sigmoid(scores(q, k, 0.25) - 4) @ v),
    Case("attention_lse", attention_lse),
    Case("group_norm", group_norm),
    Case("group_norm_silu", group_norm_silu),
    Case("instance_norm", instance_norm),
    Case("layer_norm_2d", lambda x, g, b: normalised(x, (1, 2)) * g + b),
    Case("spatial_softmax", spatial_softmax),
    Case("focal_loss", focal_loss),
    Case("scale_to_range", scale_to_range),
    Case("activations", activations),
    Case("conv_pool_mish", conv_pool_mish),
    Case("batch_norm", batch_norm),
    Case("long_rows", long_rows),
    Case("l2_normalize", lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)),
    Case("soft_cross_entropy", lambda z, y: logsumexp(z) - (softmax(y) * z).sum(-1)),
    Case("kl_divergence", kl_divergence),
    Case("conv1d_dilated", conv1d_dilated),
    Case("conv2d_depthwise", depthwise),
    Case("mlp_gelu_erf", lambda x, w1, b1, w2: gelu_erf(x @ w1 + b1) @ w2),
    Case("mlp_residual", lambda x, w1, b1, w2: x + gelu(x @ w1 + b1) @ w2),
    Case("moments", lambda x: (x.mean(0), x.var(0))),
    Case("rope", lambda x, cos, sin: rotate(x, cos[:, None], sin[:, None])),
    Case("cosine_similarity", lambda x, y: x @ y.T / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1))),
    Case("pairwise_distance", lambda x, y: ((x[:, None] - y) ** 2).sum(-1).min(-1)),
    Case("softmax_2d", lambda x: softmax(x.reshape(len(x), -1)).reshape(x.shape)),
    Case("prefix_sum", lambda x: x.cumsum(-1)),
    Case("token_shift", token_shift),
    Case("conv_bn_residual", conv_bn_residual),
    Case("moe_top2", moe_top2),
    Case("latent_attention", latent_attention),
    Case("padded_attention", padded_attention),
    Case("ragged_attention", ragged_attention),
    Case("nearest_code", nearest_code),
    Case("embedding", lambda ids, table, position: rms(table[ids] + position)),
    Case("position_bias", position_bias),
    Case("differential_attention", differential_attention),
    Case("sink_attention", sink_attention),
    Case("state_space", state_space),
    Case("transposed_convolution", transposed_convolution),
    Case("transposed_strided", transposed_strided),
    Case("clip_loss", clip_loss),
    Case("huber", huber),
    Case("binary_cross_entropy", lambda p, y: -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(-1)),
    Case("lstm_cell", lstm_cell),
    Case("norms", lambda x: (np.abs(x).max(-1), np.abs(x).sum(-1), np.linalg.norm(x, axis=-1))),
    Case("log_sum_exp_all", lambda x, b: logsumexp(x.reshape(-1)) + b),
]


def case_of(name: str, cases: list[Case]) -> Case:
    """The first case that the name matches."""
    for case in cases:
        if fnmatch(name, case.pattern):
            return case
    raise LookupError(f"no formula for {name}")
