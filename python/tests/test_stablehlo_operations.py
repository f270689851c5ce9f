"""Operations of JAX, each imported alone. The oracle is JAX in f64 on the CPU; `from_stablehlo` also compares with XLA, and that this fails on faults is
known (`test_stablehlo.py`)."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from draws import Draw, below, distinct, drawn, held, real, truth

import tilewright

Shape = tuple[int, ...]

# What is computed of arrays x, y, z of these shapes.
# fmt: off
CASES: dict[str, tuple[list[Shape], str]] = {
    # Elements.
    "arithmetic":        ([(3, 4), (4,)],             "x + 2 * y - x / (y * y + 1) + (1 - x) - 3"),
    "unary":             ([(3, 4)],                   "abs(x) + (-x) + jnp.exp(x) + jnp.square(x) + 1 / x + jax.nn.sigmoid(x) + jnp.tanh(x) + lax.erf(x) + lax.erfc(x)"),
    "logarithms":        ([(3, 4)],                   "jnp.log(abs(x) + 1) + jnp.log1p(abs(x)) + jnp.log2(abs(x) + 1) + jnp.log10(abs(x) + 1) + jnp.expm1(x) + jnp.exp2(x)"),
    "roots":             ([(3, 4)],                   "jnp.sqrt(abs(x) + 1) + lax.rsqrt(abs(x) + 1) + jnp.sinh(x) + jnp.cosh(x) + jnp.sign(x)"),
    "logistic":          ([(3, 4)],                   "lax.logistic(x) + lax.tanh(x)"),
    "powers":            ([(3, 4)],                   "x**2 + x**3 + x**7 + x**-2 + (x * x + 1)**0.5 + (x * x + 1)**-0.5 + (x * x + 1)**1.7 + x**0 + 2**x"),
    "powers of arrays":  ([(3, 4), (3, 1)],           "(x * x + 1) ** y"),
    "activations":       ([(3, 40)],                  "jax.nn.relu(x) + jax.nn.silu(x) + jax.nn.gelu(x, approximate=False) + jax.nn.gelu(x) + jax.nn.softplus(x) + jax.nn.relu6(x)"),
    "more activations":  ([(3, 40)],                  "jax.nn.elu(x) + jax.nn.selu(x) + jax.nn.celu(x) + jax.nn.leaky_relu(x) + jax.nn.log_sigmoid(x) + jax.nn.mish(x)"),
    "hard activations":  ([(3, 40)],                  "jax.nn.hard_swish(4 * x) + jax.nn.hard_sigmoid(4 * x) + jax.nn.hard_tanh(x) + jax.nn.soft_sign(x) + jax.nn.glu(x).sum()"),
    "extremes":          ([(3, 4), (4,)],             "jnp.maximum(x, y) + jnp.minimum(x, y) + jnp.clip(x, -0.5, 0.5) + jnp.clip(x, min=0.1) + jnp.clip(x, y, y + 1) + lax.clamp(-1.0, x, 0.5)"),
    "comparisons":       ([(3, 4), (3, 4)],           "(x > y) + 2.0 * (x < y) + 4.0 * (x >= y) + 8.0 * (x <= y) + 16.0 * (x == x) + 32.0 * (x != y)"),
    "truth":             ([(3, 4), (3, 4)],           "jnp.where((x > 0) & (y < 0) | ~(x < y) ^ (y > 0.5), x, y) + 1.0 * jnp.logical_or(jnp.logical_and(x > 0, y > 0), x > 1)"),
    "any and all":       ([(3, 4)],                   "(x > 0).astype(x.dtype).astype(bool) * (1.0 * (x > 9)).astype(bool).any() + 1.0 * (x > 0).any(1)[:, None] + (x > -1).all(1)[:, None] + 2.0 * (x > 9).any()"),
    "where":             ([(3, 4), (4,)],             "jnp.where(x > 0, y, 1.0) + jnp.where(x > 0, 0.0, 2.0) + jnp.where(x.sum() > 0, x, -x) + jnp.where(jnp.isfinite(x), x, 0.0)"),
    "dtypes":            ([(3, 4)],                   "lax.reduce_precision(x.astype(jnp.float64).astype(x.dtype), 11, 52) + lax.optimization_barrier(x)"),
    "numbers":           ([(3, 4)],                   "x * jnp.float64(0.1) / jnp.sqrt(64) + jnp.arange(4) * 1e-5 + np.arange(12.0).reshape(3, 4) + jnp.int32(3)"),

    # Reductions.
    "sums":              ([(2, 3, 4)],                "x.sum() + x.sum(1, keepdims=True) + x.sum((0, 2)).sum() + x.mean() + x.mean(-1, keepdims=True) + x.mean((0, 1))"),
    "maxima":            ([(2, 3, 4)],                "x.max(1, keepdims=True) + x.min((0, 2), keepdims=True) + x.max() + x.min() + x.max(initial=0.5) + jnp.ptp(x)"),
    "where maxima are":  ([(2, 3, 4)],                "jnp.argmax(x, 1, keepdims=True) * x + jnp.argmin(x, 2)[..., None] + jnp.argmax(jnp.clip(x, -0.1, 0.1), 2, keepdims=True) + jnp.argmax(jnp.where(jnp.arange(4) < 2, jnp.inf, x), 2)[..., None] + jnp.argmax(x)"),
    "largest elements":  ([(3, 9)],                   "lax.top_k(x, 3)[0].sum(0) * lax.top_k(x, 3)[1] + jnp.take_along_axis(x, lax.top_k(x, 3)[1], 1) + lax.top_k(jnp.where(jnp.arange(9) < 3, -jnp.inf, jnp.clip(x, -0.3, 0.3)), 3)[1] + lax.top_k(jnp.where(jnp.arange(9) > 1, -jnp.inf, x), 3)[1]"),
    "variances":         ([(2, 3, 4)],                "x.var() + x.var(1, keepdims=True) + x.std(-1, keepdims=True) + x.var(1, ddof=1, keepdims=True)"),
    "norms of vectors":  ([(2, 3, 4)],                "jnp.linalg.norm(x, axis=1, keepdims=True) + jnp.linalg.norm(x, ord=1, axis=2, keepdims=True)"),
    "softmax":           ([(2, 3, 4)],                "jax.nn.softmax(x, 1) + jax.nn.log_softmax(x, -1) + jax.nn.logsumexp(x, 1, keepdims=True) + jax.nn.standardize(x)"),
    "running":           ([(2, 5)],                   "jnp.cumsum(x, 1) + jnp.cumsum(x, 0) + lax.cumsum(x, 1, reverse=True) + lax.cummax(x, 1) + lax.cummin(x, 0)"),
    "repeated numbers":  ([(3, 1)],                   "jnp.broadcast_to(x, (3, 4)).sum(1) + jnp.broadcast_to(x, (3, 4)).mean(1) + jax.nn.softmax(jnp.broadcast_to(x, (3, 4)), 1).sum(1)"),

    # Products.
    "matrix products":   ([(3, 4), (4, 5)],           "x @ y"),
    "batched":           ([(2, 3, 4), (2, 4, 5)],     "x @ y + jnp.matmul(x, y) + jnp.einsum('bij,bjk->bik', x, y)"),
    "broadcast batches": ([(2, 1, 3, 4), (6, 4, 5)],  "x @ y"),
    "of vectors":        ([(4,), (4, 5), (4,)],       "x @ y + jnp.outer(x, z).sum(0) @ y + (x @ z) * (y.T @ x) + jnp.dot(x, z)"),
    "with itself":       ([(4, 4)],                   "x @ x + x @ x.T + x.T @ x + x @ x @ x"),
    "einsum":            ([(2, 3, 4), (2, 5, 4)],     "jnp.einsum('bid,bjd->bij', x, y) + jnp.einsum('bid,bjd->ij', x, y) + jnp.einsum('bid,bjd->jbi', x, y).sum()"),
    "einsum of three":   ([(3, 4), (4, 5), (5, 6)],   "jnp.einsum('ij,jk,kl->il', x, y, z) + jnp.einsum('ij,jk,kl->l', x, y, z)"),
    "einsum diagonal":   ([(4, 4)],                   "jnp.einsum('ij->ji', x).sum(0) + jnp.trace(x) + jnp.diagonal(x)"),
    "tensordot":         ([(2, 3, 4), (4, 3, 5)],     "jnp.tensordot(x, y, axes=((1, 2), (1, 0)))"),
    "of masks":          ([(3, 4), (4, 5)],           "(x > 0).astype(x.dtype) @ y"),
    "one hot":           ([(5, 2)],                   "jax.nn.one_hot(jnp.arange(3), 5, dtype=x.dtype) @ x + jnp.eye(3, 5) @ x"),

    # What functions of functions give.
    "rows of caches":    ([(2, 7, 4), (2, 1, 4)],                     "jax.vmap(lambda cache, row: lax.dynamic_update_slice(cache, row, (3, 0)))(x, y)"),
    "mapped":            ([(2, 5, 4), (2, 7, 4)],                     "jax.vmap(lambda q, k: jax.nn.softmax(q @ k.T) @ k)(x, y)"),
    "gradients":         ([(3, 4), (4, 5)],                           "sum(g.sum() for g in jax.grad(lambda x, y: jnp.square(jax.nn.silu(x @ y)).sum(), (0, 1))(x, y)) + x"),
    "scans":             ([(3, 4, 4), (2, 4)],                        "lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), y, x)[0] + lax.scan(lambda c, w: (c + 1, w * c), 0.0, x)[1].sum()"),
    "counted loops":     ([(3, 4)],                                   "lax.fori_loop(0, 3, lambda n, c: c * n + x, x) + lax.map(lambda row: jnp.exp(row).sum(), x)[:, None]"),
    "checkpoints":       ([(3, 4), (4, 4)],                           "jax.grad(lambda x: jax.checkpoint(lambda x: jnp.tanh(x @ y))(x).sum())(x)"),

    # Places.
    "reshapes":          ([(4, 6)],                   "x.reshape(4, 2, 3).sum(1) + x.reshape(2, 2, 3, 2).transpose(1, 0, 2, 3).reshape(4, 6)[:, :3] + x.ravel().reshape(4, 6)[:, 3:]"),
    "one element":       ([(1, 4, 1)],                "x.squeeze() + x.squeeze(0)[:, 0] + x[None].sum((0, 1, 3)) + x.reshape(4)"),
    "transposes":        ([(2, 3, 4)],                "jnp.moveaxis(x.swapaxes(0, 2), 0, 2).transpose(2, 0, 1).sum(1) + x.mT.sum(2).T.sum()"),
    "slices":            ([(6, 8)],                   "x[1:5, 2:6] + x[::2, 4:].sum() + x[2, 3] + x[-4:, :4] + x[:4, 4:8] + lax.slice_in_dim(x, 1, 5)[:, 1:5] + x[5:6, :4] + x[4:0:-1, 7:3:-1]"),
    "parts":             ([(2, 12)],                  "sum(jnp.split(x, 3, 1)) + jnp.split(x, (4, 10), 1)[1][:, :4] + lax.dynamic_slice(x, (0, 9), (2, 4)) + lax.dynamic_slice_in_dim(x, 2, 4, 1)"),
    "concatenations":    ([(2, 3), (2, 5)],           "jnp.concatenate([x, y, x], 1) * jnp.concatenate([y, x, x], 1) + jnp.concatenate([x, x], 0)[:, :1].sum()"),
    "stack":             ([(2, 3), (2, 3)],           "jnp.stack([x, y, x], 1) + jnp.stack([y, x], 2).sum() + jnp.concatenate([x, y], 1).reshape(2, 2, 3).sum(1, keepdims=True)"),
    "repeats":           ([(2, 3)],                   "jnp.tile(x, (2, 2)).reshape(2, 2, 2, 3).sum(2).sum(1) + jnp.repeat(x, 2, 1)[:, ::2] + jnp.broadcast_to(x, (4, 2, 3)).sum(0)"),
    "padding":           ([(3, 4)],                   "jnp.pad(x, ((0, 0), (1, 2))).sum(1) + lax.pad(x, 3.0, ((1, -1, 0), (-1, 1, 0)))[:, 0] + lax.pad(x, -jnp.inf, ((2, 2, 0), (0, 0, 0))).max(1)[2:5]"),
    "interior padding":  ([(3, 4)],                   "lax.pad(x, 2.0, ((0, 1, 1), (1, 0, 2))).sum(1)[:3] + lax.pad(x, 0.0, ((0, 0, 1), (0, 0, 0)))[::2].sum(1)"),
    "padded truth":      ([(3, 4)],                   "1.0 * jnp.pad(~(x > 0), ((0, 0), (1, 2)))[:, 1:5] + lax.pad(x < 0.5, False, ((0, 0, 0), (1, 0, 1)))[:, :4]"),
    "rolls and flips":   ([(4, 6)],                   "jnp.roll(x, 2, 1) + jnp.roll(x, (1, -2), (0, 1)) + jnp.flip(x, 0) + jnp.flip(x)"),
    "made of nothing":   ([(4, 4)],                   "x + jnp.arange(4) + jnp.arange(1, 9, 2).reshape(4, 1) + jnp.eye(4) + jnp.ones_like(x) + jnp.full((4,), 2.0) + jnp.linspace(0, 1, 4) + jnp.zeros(4)"),
    "triangles":         ([(4, 5)],                   "jnp.tril(x) + jnp.triu(x, 1) + jnp.tril(x, -2)"),
    "masks of indices":  ([(5, 5)],                   "jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((5, 5), bool)), x, -jnp.inf), 1) + jnp.where(jnp.arange(5)[:, None] - jnp.arange(5) < 2, x, 0.0)"),
    "masks of tables":   ([(4, 5)],                   "jnp.where(np.tri(4, 5, dtype=bool), x, -2.0) + jnp.where(~np.tri(4, 5, 1, dtype=bool), x, 0.5) * np.tri(4, 5, -2, dtype=bool)"),
    "places of indices": ([(9, 4)],                   "x[jnp.arange(5)] + x[jnp.arange(5) + 2] + jnp.take(x, jnp.arange(5), axis=0) + x[jnp.arange(8, -1, -2)]"),
    "several indices":   ([(5, 4), (1, 2, 5, 5)],     "x[jnp.arange(3)[:, None] + 1, jnp.arange(2)] + y[:, jnp.arange(2)[:, None], :, jnp.arange(3)].sum() + y[0, 1, 1:4, 2:4]"),
    "along an axis":     ([(3, 4)],                   "jnp.take_along_axis(x, jnp.broadcast_to(jnp.arange(3, 0, -1), (3, 3)), axis=1) + jax.vmap(lambda row: lax.dynamic_slice(row, (1,), (3,)))(x)"),
    "written parts":     ([(5, 4), (2, 3)],           "lax.dynamic_update_slice(x, y, (1, 1)) + lax.dynamic_update_slice(x, y, (9, 0)) + lax.dynamic_update_slice_in_dim(x, x[:2], 3, 0)"),

    "set and added":     ([(5, 4), (2, 4)],           "x.at[0].set(1.5) + x.at[1:3].set(y) + x.at[2, 1:3].add(2.0) + x.at[:, -1].set(y[0, 0]) + x.at[3:].add(y)"),

    # Windows.
    "conv1d":            ([(2, 3, 9), (4, 3, 3)],             "lax.conv_general_dilated(x, y, (2,), [(1, 2)], rhs_dilation=(2,))"),
    "conv2d":            ([(2, 6, 7, 4), (3, 2, 2, 6)],       "lax.conv_general_dilated(x, y, (1, 2), [(1, 1), (0, 1)], dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count=2)"),
    "conv2d other":      ([(6, 4, 2, 7), (6, 3, 2, 4)],       "lax.conv_general_dilated(x, y, (1, 1), 'SAME', dimension_numbers=('HCNW', 'OHWI', 'WCHN'))"),
    "conv2d depthwise":  ([(2, 6, 7, 3), (3, 3, 1, 3)],       "lax.conv_general_dilated(x, y, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'), feature_group_count=3)"),
    "conv2d patches":    ([(2, 8, 8, 3), (4, 4, 3, 5)],       "lax.conv_general_dilated(x, y, (4, 4), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')).reshape(2, 4, 5)"),
    "conv3d":            ([(1, 2, 4, 5, 4), (3, 2, 2, 3, 2)], "lax.conv_general_dilated(x, y, (1, 2, 1), [(0, 0), (1, 1), (0, 0)])"),
    "conv same, np":     ([(9,), (3,)],                       "jnp.convolve(x, y) + jnp.convolve(x, y, mode='full') + jnp.correlate(x, y, mode='full')"),
    "conv transposed":   ([(2, 4, 3), (3, 3, 5)],             "lax.conv_transpose(x, y, (2,), 'SAME', dimension_numbers=('NHC', 'HIO', 'NHC'))"),
    "conv transposed odd": ([(2, 4, 3), (3, 3, 5)],           "lax.conv_transpose(x, y, (2,), 'VALID', dimension_numbers=('NHC', 'HIO', 'NHC')) + lax.conv_transpose(x, y, (2,), 'VALID', rhs_dilation=(2,), dimension_numbers=('NHC', 'HIO', 'NHC')).sum() + lax.conv_transpose(x, y, (3,), [(2, 2)], dimension_numbers=('NHC', 'HIO', 'NHC')).sum()"),
    "conv apart":        ([(2, 3, 5, 4), (4, 3, 3, 2)],       "lax.conv_general_dilated(x, y, (1, 2), [(2, 1), (0, 3)], lhs_dilation=(2, 3), rhs_dilation=(1, 2)) + sum(lax.conv_general_dilated(x, y, (1, 1), [(a, b), (b, a)], lhs_dilation=(3, 2)).sum() * (a + 1) for a in range(4) for b in range(5))"),
    "conv gradients":    ([(2, 3, 7, 6), (4, 3, 3, 2)],       "sum((g * g).sum() for g in jax.grad(lambda x, y: jnp.square(lax.conv_general_dilated(x, y, (2, 1), [(1, 0), (1, 1)])).sum(), (0, 1))(x, y))"),
    "pools apart":       ([(2, 4, 5)],                        "lax.reduce_window(x, 0.0, lax.add, (1, 3, 2), (1, 2, 1), ((0, 0), (1, 2), (0, 1)), base_dilation=(1, 2, 3)) + lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 3), (1, 1, 1), 'VALID', base_dilation=(2, 3, 1)).max()"),
    "products":          ([(3, 7), (2, 3, 4)],                "jnp.prod(x, 1).sum() + jnp.prod(y) * jnp.cumprod(x, 1).sum() + jnp.prod(y, (0, 2)) + lax.cumprod(y, 1, reverse=True) .sum() + lax.reduce(y, 2.0, lax.mul, (0, 2)) + jnp.prod(y[:1], 0).sum()"),
    "products of windows": ([(2, 9)],                      "lax.reduce_window(x, 1.0, lax.mul, (1, 3), (1, 2), 'VALID') + lax.reduce_window(x, 2.0, lax.mul, (1, 3), (1, 2), ((0, 0), (1, 1)))[:, :4]"),
    "running products":  ([(2, 40), (3, 18)],                "jnp.cumprod(x, 1).sum() + (lax.cumprod(x, 1, reverse=True) * jnp.arange(40)).sum() + (lax.cumprod(y, 1, reverse=True) * y).sum()"),
    "max pools":         ([(2, 7, 8, 3)],                     "lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), 'SAME') + lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0), (1, 0), (0, 0), (0, 0)))"),
    "min pool dilated":  ([(2, 7, 8, 3)],                     "lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 2, 1), (1, 1, 1, 1), 'VALID', window_dilation=(1, 2, 1, 1))"),
    "mean pools":        ([(2, 7, 8, 3)],                     "lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), 'SAME') / lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), 'SAME')"),
    "tiled pools":       ([(2, 6, 8, 3)],                     "lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID') / 4 + x.reshape(2, 3, 2, 4, 2, 3).max((2, 4))"),
    "patches":           ([(2, 3, 6, 5)],                     "lax.conv_general_dilated_patches(x, (2, 2), (1, 1), 'VALID')"),
    "resize":            ([(2, 3, 4)],                        "jnp.repeat(jnp.repeat(x, 2, 1), 3, 2)"),
}

# What is computed of these inputs, some of which are whole numbers or truth values.
WHOLE: dict[str, tuple[dict[str, Draw], str]] = {
    "whole numbers":     ({"x": real(3, 4), "i": below(9, 4), "j": below(9, 3, 1, dtype="int32")}, "x * i + j - (2 * i - j) * x / (i + 1) + abs(i - 4) + i.clip(2, 5) + i.sum()"),
    "whole comparisons": ({"x": real(3, 4), "i": below(3, 4), "j": below(3, 3, 1)}, "(i > j) * 1.0 + 2 * (i < j) + 4 * (i >= 1) * x + 8 * (i <= j) + jnp.where(i == j, x, 3.0) + 32 * (i != 2)"),
    "truth values":      ({"x": real(3, 4), "b": truth(3, 4), "c": truth(4)}, "jnp.where(b & ~c, x, 0.0) + (b | c) + (~b) * x + b * x + (b ^ c).sum() + b.astype(x.dtype).mean() + b.any(1, keepdims=True) + c.all()"),
    "masks":             ({"x": real(3, 4), "b": truth(3, 4), "c": truth(1, 4)}, "jnp.exp(jnp.where(b, -jnp.inf, x)) + jnp.where(c, x, 0.0) + jnp.where(b, x, -jnp.inf).max()"),
    "lengths":           ({"x": real(3, 4), "i": held([1, 4, 2], "int32")}, "jax.nn.softmax(jnp.where(jnp.arange(4) < i[:, None], x, -jnp.inf), 1)"),

    "places":            ({"x": real(5, 4, 6), "i": below(5, 3, 1, least=-5), "j": below(4, 2, dtype="int32")}, "x[i, j] + x[i[:, 0]][:, j] + jnp.exp(x[:, j][i[:, 0]]) + x[i, j].sum() + jnp.take(x, j, 1)[i[:, 0]]"),
    "places apart":      ({"x": real(5, 4, 6), "i": below(5, 3, least=-5), "j": below(6, 3, least=-6)}, "x[i, :, j] + x[i][:, :, 0] + x[i, :, j + 0].mean() + jnp.moveaxis(x[:3, :, j], 0, 1).T[:, 0]"),
    "mixed places":      ({"x": real(5, 4, 6), "i": below(4, 3)}, "x[jnp.arange(3), i] + x[jnp.arange(3) + 1, i, 2:3] + x[-1, i] + x[jnp.arange(-1, 2), i] + x[0][i]"),
    "places outside":    ({"x": real(5, 4), "i": held([0, 4, 5, 9, -1, -5, -6, -11])}, "x.at[i].get(mode='clip') + x.at[i].get(mode='fill', fill_value=7.0) + jnp.take(x, i, axis=0, mode='clip')"),
    "places of truth":   ({"x": real(3, 4), "b": truth(5, 4), "i": below(5, 3), "j": below(9, 5, 4)}, "jnp.where(b[i], x, 0.0) + (b[i] & (x > 0)) + j[i] * x"),
    "along an axis":     ({"x": real(3, 9, 4), "i": below(9, 3, 5, 4), "j": below(9, 1, 5, 4)}, "jnp.take_along_axis(x, i, axis=1) + jnp.take_along_axis(x, j, axis=1)"),
    "mapped places":     ({"x": real(3, 9, 4), "i": below(9, 3, 2), "j": below(9, 3)}, "jax.vmap(lambda x, i: x[i])(x, i) + jax.vmap(lambda x, j: x[j])(x, j)[:, None] + jax.vmap(lambda x, j: lax.dynamic_slice(x, (j, 1), (2, 3)))(x, j).sum(2, keepdims=True)"),
    "infinite places":   ({"x": real(6, 4), "i": below(3, 5)}, "x.at[4].set(-jnp.inf)[i] + x.at[5].set(jnp.inf)[i]"),
    "one hot":           ({"x": real(3, 5), "i": below(5, 3)}, "jax.nn.one_hot(i, 5) * x + jax.nn.one_hot(i, 5, dtype=x.dtype) @ x.T @ x"),
    "class targets":     ({"x": real(6, 5), "i": below(5, 6)}, "-jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None], axis=-1).mean() - jax.nn.log_softmax(x)[jnp.arange(6), i]"),
    "dynamic slices":    ({"x": real(7, 5), "i": below(7), "j": held(9), "k": held(-9)}, "lax.dynamic_slice(x, (i, 1), (3, 2)) + lax.dynamic_slice(x, (j, i), (3, 2)) + lax.dynamic_slice(x, (k, j), (3, 2)) + lax.dynamic_index_in_dim(x, i, 0, False)[:2] + lax.dynamic_slice_in_dim(x, i, 3)[:, 3:]"),
    "dynamic updates":   ({"x": real(7, 5), "y": real(3, 2), "i": below(7), "j": held(9), "k": held(-3)}, "lax.dynamic_update_slice(x, y, (i, 1)) + lax.dynamic_update_slice(x, y, (j, i)) + lax.dynamic_update_slice(x, y, (k, j)) + lax.dynamic_update_slice(x, x[:2], (i, 0)) + lax.dynamic_update_slice(x, x + 1, (i, j)) + lax.dynamic_slice(x, (i, 1), (7, 1)) + lax.dynamic_update_slice(x, y[:1], (i, 2))"),
    "caches":            ({"x": real(2, 7, 4), "y": real(2, 1, 4), "i": below(7, 2), "j": below(7)}, "jax.vmap(lambda c, r, i: lax.dynamic_update_slice(c, r, (i, 0)))(x, y, i) + lax.dynamic_update_slice(x, y, (0, j, 0)) + x.at[jnp.arange(2), i].set(y[:, 0])"),
    "set and added":     ({"x": real(6, 4), "y": real(3, 4), "i": distinct(6, 3), "j": below(6, 3, least=-6)}, "x.at[i].set(y) + x.at[j].add(y) + x.at[j].max(y) + x.at[j].min(y) + x.at[i].set(2.0) + x.at[i, jnp.arange(3)].set(y[0, 0]) + x.at[j[:, None], jnp.arange(4)].add(y)"),
    "set outside":       ({"x": real(6, 4), "y": real(2, 4), "i": held([0, 6]), "j": held(5), "k": held(-7)}, "x.at[i].set(y) + x.at[i].add(y) + x.at[j + 1].set(1.0) + lax.scatter(x, jnp.stack([j]), y, lax.ScatterDimensionNumbers((0, 1), (), (0,))) + lax.scatter(x, jnp.stack([j - 1]), y, lax.ScatterDimensionNumbers((0, 1), (), (0,))) + x.at[9].set(1.0) + x.at[k].set(1.0)"),
    "set truth":         ({"x": real(5, 4), "b": truth(5, 4), "c": truth(2, 4), "i": distinct(5, 2), "j": below(9, 5, 4)}, "jnp.where(b.at[i].set(c), x, 0.0) + j.at[i].set(3) + j.at[i].add(2)"),
    "set several":       ({"x": real(5, 4), "y": real(2, 4)}, "x.at[jnp.arange(2)].set(y) + x.at[jnp.arange(2) * 2 + 1].add(y) + x.at[::2].set(1.0)"),
}

# Results that are whole numbers or truth values, and the dtypes that the language has them in.
RESULTS: dict[str, tuple[dict[str, Draw], str, str]] = {
    "places of maxima":  ({"x": real(3, 4, 5)}, "x.argmax(1), x.argmin(), jnp.argmax(x, -1, keepdims=True), lax.top_k(x, 3)[1]", "i32 i32 i32 i32"),
    "conditions":        ({"x": real(3, 4), "y": real(4)}, "x > y, x <= y, x == x, ~(x > 0) & (y > 0), (x > 1).any(1), (x > -9).all()", "bool " * 6),
    "numbers cut":       ({"x": real(3, 40)}, "(100 * x).astype('int32'), x.astype(bool), (x.sum(1) * 10).astype('int32')", "i32 bool i32"),
    "counts":            ({"x": real(3, 40), "b": truth(5, 7)}, "(x > 0).sum(1), b.sum(), jnp.cumsum(x > 0.5, 1), jnp.arange(4), b.astype('int32')", "i32 i32 i32 i32 i32"),
    "of whole numbers":  ({"i": below(9, 4, dtype="int32"), "j": below(9, 3, 1, dtype="int32"), "b": truth(4)}, "i, b, j + 2 * i, i - 1, ~b, i == j, jnp.where(b, i, -i)", "i32 bool i32 i32 bool bool i32"),
    "chosen":            ({"x": real(6, 5), "i": below(9, 5, dtype="int32")}, "i[x.argmax(1)], jax.nn.one_hot(x.argmax(1), 5, dtype='int32')", "i32 i32"),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_that_of_jax(name: str, jax: ModuleType) -> None:
    shapes, text = CASES[name]
    draw = np.random.default_rng(0)
    program = compared(jax, text, {letter: draw.standard_normal(shape) for letter, shape in zip("xyz", shapes)}, None)
    assert [p.shape for p in program.parameters] == shapes


@pytest.mark.parametrize("name", WHOLE)
def test_an_operation_on_whole_numbers_is_that_of_jax(name: str, jax: ModuleType) -> None:
    draws, text = WHOLE[name]
    inputs = dict(zip(draws, drawn(draws)))
    program = compared(jax, text, inputs, list(inputs.values()))
    languages = {"float32": "f32", "int32": "i32", "int64": "i64", "bool": "bool"}
    assert [p.dtype for p in program.parameters] == [languages[x.dtype.name] for x in inputs.values()]


def compared(jax: ModuleType, text: str, inputs: dict[str, np.ndarray], given: list[np.ndarray] | None) -> tilewright.Program:
    """A program against JAX itself at inputs, beside the importer's comparison at those that are given to it."""
    context = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, "np": np}
    function: Callable[..., Any] = eval(f"lambda {', '.join(inputs)}: {text}", context)

    def wide(x: Any) -> Any:
        return x.astype("float64") if x.dtype.kind == "f" else x

    def narrow(*given: Any) -> Any:
        """Parameters and results of f32, and f64 between them: so that no number of the function is rounded."""
        return function(*map(wide, given)).astype("float32")

    with jax.enable_x64(True):
        dtypes = ["float32" if x.dtype.kind == "f" else x.dtype for x in inputs.values()]
        lowered = jax.jit(narrow).lower(*(jax.ShapeDtypeStruct(x.shape, dtype) for x, dtype in zip(inputs.values(), dtypes)))
        expected = np.asarray(function(*(jax.numpy.asarray(wide(x)) for x in inputs.values())))
    program = tilewright.from_stablehlo(lowered.as_text(debug_info=True), inputs=given, name="f")
    assert expected.dtype == np.float64
    # Of the largest element, and of what cancels in sums such as these.
    assert np.abs(program.eval(*inputs.values()) - expected).max() <= 1e-12 * max(1.0, np.abs(expected).max())
    # The printed text is the program, with its sugar or without.
    assert tilewright.Program(program.source) == program == tilewright.Program(str(program))
    return program


@pytest.mark.parametrize("name", RESULTS)
def test_whole_results_are_those_of_jax(name: str, jax: ModuleType) -> None:
    draws, text, dtypes = RESULTS[name]
    function: Callable[..., Any] = eval(f"lambda {', '.join(draws)}: ({text})", {"jax": jax, "jnp": jax.numpy, "lax": jax.lax})
    arrays = drawn(draws)
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays))
    program = tilewright.from_stablehlo(lowered.as_text(debug_info=True), inputs=arrays, name="f")
    assert [output.dtype for output in program.outputs] == dtypes.split()
    for ours, theirs in zip(program.eval(*arrays), jax.jit(function)(*arrays), strict=True):
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
