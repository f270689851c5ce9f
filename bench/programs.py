"""The benchmark programs in PyTorch: for every example its eager form, its other hand-written modes, and its work.

Shapes and dtypes come from the `.lax` files; a function here takes the parameters in their order there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from libraries import SPLITS, Foreign, Function, fa4, quack_matmul, quack_rmsnorm, quack_softmax

Extents = dict[str, int]
EPS = 1e-5


@dataclass(frozen=True)
class Benchmark:
    """One example: `flops` counts the work that no algorithm avoids (half of the scores if they are causal)."""

    row: int
    file: str
    eager: Function
    flops: Callable[[Extents], float]
    modes: dict[str, Function] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)  # standard deviation of an input, 1 if absent
    compiled: tuple[str, ...] = ("eager",)  # the modes that torch.compile is tried on
    slab_axis: int | None = None  # the dimension along which the f64 reference is computed in slabs
    libraries: dict[str, Foreign] = field(default_factory=dict)  # modes of libraries that may be missing
    peer: str = ""  # best known peer, warm/cold in µs, as measured elsewhere


# Attention


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Softmax attention as one writes it, over the last two dimensions; the others broadcast."""
    s = q @ k.transpose(-1, -2) * scale
    if causal:
        i, j = s.shape[-2:]
        s = s.masked_fill(torch.ones(i, j, dtype=torch.bool, device=s.device).tril(j - i).logical_not(), float("-inf"))
    return s.softmax(-1) @ v


def plain(scale: float, causal: bool = False, grouped: bool = False) -> Function:
    """Attention; `grouped` queries have a group dimension that keys and values lack."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k.unsqueeze(2) if grouped else k, v.unsqueeze(2) if grouped else v, scale, causal)

    return run


BACKENDS = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def sdpa(scale: float, causal: bool = False, grouped: bool = False, norm: str = "") -> dict[str, Function]:
    """`scaled_dot_product_attention`: the default choice, each back end, and for groups also other layouts."""

    def call(q: Tensor, k: Tensor, v: Tensor, layout: str) -> Tensor:
        q, k, v = (rms(x) if name in norm else x for name, x in zip("qkv", (q, k, v)))
        out_shape = (*q.shape[:-1], v.shape[-1])
        if q.dim() == 3:
            q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        elif grouped and layout == "folded":  # the group becomes query rows: only without a mask
            q = q.flatten(2, 3)
        elif grouped:
            g = q.shape[2]
            q = q.flatten(1, 2)
            if layout == "expanded":
                k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        shared = grouped and layout == "shared"
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=shared).reshape(out_shape)

    def forced(backend: SDPBackend, layout: str) -> Function:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return call(q, k, v, layout)

        return run

    modes: dict[str, Function] = {"sdpa": lambda q, k, v: call(q, k, v, "shared")}
    for name, backend in BACKENDS.items():
        modes[name] = forced(backend, "shared")
        if grouped:
            other = "expanded" if causal else "folded"
            modes[f"{name}-{other}"] = forced(backend, other)
    return modes


def attention_flops(x: Extents) -> float:
    """Two contractions over queries × keys."""
    return 2.0 * prod(x.get(a, 1) for a in "bhgij") * (x["d"] + x["e"])


def causal_flops(x: Extents) -> float:
    """As `attention_flops`, the masked half left out."""
    return attention_flops(x) / 2


def attention_row(
    row: int, file: str, scale: float, causal: bool, grouped: bool, peer: str, splits: tuple[int, ...] = ()
) -> Benchmark:
    """A row of `[b, h, i, d]` attention; its f64 reference is computed head by head."""
    flops = causal_flops if causal else attention_flops
    return Benchmark(
        row, file, plain(scale, causal, grouped), flops, sdpa(scale, causal, grouped),
        slab_axis=1, libraries=fa4(scale, causal, splits), peer=peer,
    )  # fmt: skip


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q.exp() @ k.exp().transpose(-1, -2)
    return s @ v / s.sum(-1, keepdim=True)


def linear_attention_reassociated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = q.exp(), k.exp()
    return q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2).unsqueeze(-1))


# Norms, projections, convolutions


def rms(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=EPS)


def normed(norm: str) -> Function:
    """Mirage's attention with the operands named in `norm` RMS-normalised."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rms(x) if name in norm else x for name, x in zip("qkv", (q, k, v)))
        return attention(q, k, v, 0.125, False)

    return run


def rmsnorm(x: Tensor, g: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], g, EPS)


def rmsnorm_linear(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return rmsnorm(x, g) @ w


def gated_mlp(x: Tensor, wg: Tensor, wu: Tensor) -> Tensor:
    return F.silu(x @ wg) * (x @ wu)


def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w + (x @ a) @ b


def ntrans(x: Tensor, h: Tensor, alpha: Tensor) -> Tensor:
    return rms(x + alpha * (rms(h) - x))


def expert_mlp(a: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return (a @ w1).exp() @ w2


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def conv2d(x: Tensor, f: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, f, b, stride=4, padding=2)


def conv2d_relu_pool(x: Tensor, f: Tensor, b: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(conv2d(x, f, b)), 3, 2)


def channels_last(function: Function) -> Function:
    """The same with its image converted, as part of the call."""
    return lambda x, f, b: function(x.contiguous(memory_format=torch.channels_last), f, b)


def tf32(function: Function) -> Function:
    """The same with TF32 allowed: a time to know, but not of an f32-accurate result."""

    def run(*inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        try:
            return function(*inputs)
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    return run


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def layernorm(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], g, b, EPS)


def cross_entropy(x: Tensor, w: Tensor, label: Tensor) -> Tensor:
    z = (x @ w.T).to(label.dtype)
    return F.cross_entropy(z, label.long(), reduction="none")


def llama_decode_layer(
    x: Tensor, ga: Tensor, gm: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, wg: Tensor, wu: Tensor, wd: Tensor,
    kc: Tensor, vc: Tensor, cos: Tensor, sin: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    heads, _, dim = kc.shape

    def rope(y: Tensor) -> Tensor:
        low, high = y.unflatten(-1, (2, dim // 2)).unbind(-2)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(y.dtype)

    y = rmsnorm(x, ga).unsqueeze(0)
    q = rope((y @ wq).view(1, -1, 1, dim))
    kn = rope((y @ wk).view(heads, dim))
    vn = (y @ wv).view(heads, dim)
    k = torch.cat((kc[:, :-1], kn.unsqueeze(1)), 1)
    v = torch.cat((vc[:, :-1], vn.unsqueeze(1)), 1)
    p = F.scaled_dot_product_attention(q, k.unsqueeze(0), v.unsqueeze(0), scale=0.125, enable_gqa=True)
    u = x + p.view(1, -1) @ wo
    z = rmsnorm(u, gm)
    return (u + gated_mlp(z, wg, wu) @ wd).squeeze(0), kn, vn


def linear_flops(x: Extents) -> float:
    """One `t × m × n` product."""
    return 2.0 * x["t"] * x["m"] * x["n"]


def conv_flops(x: Extents) -> float:
    return 2.0 * prod(x[a] for a in ("n", "co", "oh", "ow", "ci", "kh", "kw"))


def no_flops(_: Extents) -> float:
    """Work that memory traffic always exceeds."""
    return 0.0


def llama_flops(x: Extents) -> float:
    width = x["h"] * x["t"] * x["c"]
    return 2.0 * (x["a"] * width * (2 * x["g"] + 2) + 3 * x["o"] * x["n"] + 2 * x["j"] * width * x["g"])


D128, D64, D1024 = 128**-0.5, 0.125, 1024**-0.5
M = 4096**-0.5  # weights of fan-in 4096 that keep the variance
GQA, GQA_FA4 = sdpa(0.125), fa4(0.125, splits=SPLITS)
QUACK_MATMUL = {"quack": Foreign(quack_matmul)}
CONV_SCALE = {"f": 363**-0.5}


def short_rows() -> list[Benchmark]:
    """Row 7: one sequence, full and grouped heads, six lengths."""
    peers = {128: "7.4", 256: "9.1", 512: "13.0", 1024: "31.4", 2048: "84", 4096: "262"}
    return [
        attention_row(7, f"attention_causal_{heads}s{s}d128_f16", D128, True, grouped, f"cuDNN {peer}")
        for s, peer in peers.items()
        for heads, grouped in (("b1h32", False), ("gqa_b1h32kv8", True))
    ]


BENCHMARKS: list[Benchmark] = [
    attention_row(1, "attention_b4h32s4096d128_bf16", D128, False, False, "FA4 1501/1663"),
    attention_row(2, "attention_causal_b4h32s4096d128_bf16", D128, True, False, "FA4 837/841"),
    attention_row(3, "attention_causal_b1h32s16384d128_bf16", D128, True, False, "FA4 3431/3378"),
    attention_row(4, "attention_causal_gqa_b1h32kv8s8192d128_bf16", D128, True, True, "FA4 770/774"),
    attention_row(5, "attention_b4h32s4096d64_bf16", D64, False, False, "FA4 1004/1007"),
    attention_row(6, "attention_causal_b4h32s4096d64_bf16", D64, True, False, "FA4 586/589"),
    *short_rows(),
    attention_row(8, "attention_b32h32s512d1024_f16", D1024, False, False, "eager 2545"),
    attention_row(9, "decode_gqa_b1h32kv8s8192d128_bf16", D128, False, True, "cuDNN 11.2/21.4", SPLITS),
    attention_row(10, "decode_gqa_b16h32kv8s8192d128_bf16", D128, False, True, "FA4 120/132", SPLITS),
    attention_row(11, "decode_b8h32s4096d64_bf16", D64, False, False, "cuDNN 62.5/74", SPLITS),
    Benchmark(12, "gqa", plain(0.125), attention_flops, GQA, libraries=GQA_FA4, peer="flash 12.4/16"),
    Benchmark(12, "gqa_bs8", plain(0.125), attention_flops, GQA, libraries=GQA_FA4, peer="flash 23.2/27.5"),
    Benchmark(13, "mha_bs1", plain(0.125), attention_flops, GQA, libraries=GQA_FA4, peer="flash 17.2/24"),
    Benchmark(13, "mha_bs8", plain(0.125), attention_flops, GQA, libraries=GQA_FA4, peer="compile 77/84"),
    Benchmark(14, "qvnorm_gqa_bs1", normed("qv"), attention_flops, sdpa(0.125, norm="qv"), compiled=("eager", "sdpa"), peer="21.3/26"),
    Benchmark(14, "qvnorm_gqa_bs8", normed("qv"), attention_flops, sdpa(0.125, norm="qv"), compiled=("eager", "sdpa"), peer="compile 47.8/52"),
    Benchmark(14, "qknorm_gqa_bs1", normed("qk"), attention_flops, sdpa(0.125, norm="qk"), compiled=("eager", "sdpa")),
    Benchmark(14, "qknorm_gqa_bs8", normed("qk"), attention_flops, sdpa(0.125, norm="qk"), compiled=("eager", "sdpa")),
    Benchmark(15, "rmsnorm_linear_t2", rmsnorm_linear, linear_flops, scale={"w": M}, peer="max-autotune 16.2/23.6"),
    Benchmark(15, "rmsnorm_linear_t16", rmsnorm_linear, linear_flops, scale={"w": M}, peer="max-autotune 16.2/23.6"),
    Benchmark(16, "gated_mlp_t1", gated_mlp, lambda x: 2 * linear_flops(x), scale={"wg": M, "wu": M}, peer="21.4/27.7"),
    Benchmark(16, "gated_mlp_t8", gated_mlp, lambda x: 2 * linear_flops(x), scale={"wg": M, "wu": M}, peer="28.6/36.4"),
    Benchmark(17, "lora_m256", lora, linear_flops, scale={"w": 1 / 16, "a": 1 / 16, "b": 0.25}, peer="6.9/12.5"),
    Benchmark(17, "lora_m4096", lora, linear_flops, scale={"w": M, "a": M, "b": 0.25}, peer="19.6/30"),
    Benchmark(18, "ntrans_t8", ntrans, no_flops, scale={"alpha": 0.5}, peer="compile 2.5/4.7"),
    Benchmark(18, "ntrans_t64", ntrans, no_flops, scale={"alpha": 0.5}, peer="compile 2.5/4.7"),
    Benchmark(
        19, "expert_mlp", expert_mlp, lambda x: 2.0 * x["x"] * x["t"] * x["n"] * (x["m"] + x["o"]),
        scale={"w1": M, "w2": M}, peer="125/136",
    ),
    Benchmark(20, "gated_mlp_prefill", gated_mlp, lambda x: 2 * linear_flops(x), scale={"wg": M, "wu": M}, peer="compile 1294/1438"),
    Benchmark(21, "matmul_4096_bf16", matmul, lambda x: 2.0 * x["m"] * x["n"] * x["k"], scale={"b": M}, libraries=QUACK_MATMUL, peer="172/175"),
    Benchmark(21, "matmul_8192_bf16", matmul, lambda x: 2.0 * x["m"] * x["n"] * x["k"], scale={"b": M}, libraries=QUACK_MATMUL, peer="1425/1491"),
    Benchmark(22, "matmul_4096_f32", matmul, lambda x: 2.0 * x["m"] * x["n"] * x["k"], {"tf32": tf32(matmul)}, {"b": M}, peer="cuBLAS 2725"),
    Benchmark(
        23, "conv2d", conv2d, conv_flops, {"channels-last": channels_last(conv2d), "tf32": tf32(conv2d)}, CONV_SCALE,
        peer="cuDNN 1072; TF32 607",
    ),
    Benchmark(
        24, "conv2d_relu_pool", conv2d_relu_pool, conv_flops,
        {"channels-last": channels_last(conv2d_relu_pool), "tf32": tf32(conv2d_relu_pool)}, CONV_SCALE, peer="cuDNN 1132; TF32 646",
    ),
    Benchmark(25, "softmax_f32", softmax, no_flops, libraries={"quack": Foreign(quack_softmax)}, peer="QuACK 522"),
    Benchmark(26, "layernorm_f32", layernorm, no_flops, peer="compile 307/314"),
    Benchmark(27, "rmsnorm_bf16", rmsnorm, no_flops, libraries={"quack": Foreign(quack_rmsnorm(EPS))}, peer="compile 127/129"),
    Benchmark(
        28, "linear_attention", linear_attention, lambda x: 2.0 * x["b"] * x["h"] * x["i"] * x["d"] * (2 * x["e"] + 1),
        {"reassociated": linear_attention_reassociated}, compiled=("eager", "reassociated"), slab_axis=1, peer="re-associated, compiled 251",
    ),
    Benchmark(29, "cross_entropy", cross_entropy, linear_flops, scale={"w": M}, peer="compile 6950"),
    Benchmark(
        30, "llama_decode_layer", llama_decode_layer, llama_flops,
        scale={"wq": 2048**-0.5, "wk": 2048**-0.5, "wv": 2048**-0.5, "wo": 2048**-0.5, "wg": 2048**-0.5, "wu": 2048**-0.5, "wd": 8192**-0.5},
        peer="compile 69/79",
    ),
]  # fmt: skip
