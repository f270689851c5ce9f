"""Operations of PyTorch, each imported alone. The oracle is PyTorch in f64: `from_torch` compares, and here the comparison is known to fail on faults
(`test_import.py`)."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from draws import Draw, below, distinct, drawn, held, real, truth

import tilewright

Shape = tuple[int, ...]

# What is computed of tensors x, y, z of these shapes. `F` is torch.nn.functional.
# fmt: off
CASES: dict[str, tuple[list[Shape], str]] = {
    # Elements.
    "arithmetic":        ([(3, 4), (4,)],             "x + 2 * y - x / (y * y + 1) + (1 - x) - 3"),
    "alpha":             ([(3, 4), (4,)],             "torch.add(x, y, alpha=3) + torch.sub(x, y, alpha=2) + torch.rsub(x, y)"),
    "unary":             ([(3, 4)],                   "x.abs() + x.neg() + x.exp() + x.square() + x.reciprocal() + x.sigmoid() + x.tanh() + x.erf() + x.erfc()"),
    "logarithms":        ([(3, 4)],                   "(x.abs() + 1).log() + x.abs().log1p() + (x.abs() + 1).log2() + (x.abs() + 1).log10() + x.expm1() + x.exp2()"),
    "roots":             ([(3, 4)],                   "(x.abs() + 1).sqrt() + (x.abs() + 1).rsqrt() + x.sinh() + x.cosh() + x.sign()"),
    "powers":            ([(3, 4)],                   "x**2 + x**3 + x**7 + x**-2 + (x * x + 1)**0.5 + (x * x + 1)**-0.5 + (x * x + 1)**1.7 + x**0 + 2**x"),
    "powers of tensors": ([(3, 4), (3, 1)],           "(x * x + 1) ** y"),
    "activations":       ([(3, 40)],                  "F.relu(x) + F.silu(x) + F.gelu(x) + F.gelu(x, approximate='tanh') + F.softplus(x) + F.mish(x) + F.relu6(x)"),
    "more activations":  ([(3, 40)],                  "F.elu(x) + F.elu(x, 0.3) + F.selu(x) + F.celu(x, 0.7) + F.leaky_relu(x) + F.leaky_relu(x, 0.2) + F.logsigmoid(x)"),
    "hard activations":  ([(3, 40)],                  "F.hardswish(4 * x) + F.hardsigmoid(4 * x) + F.hardtanh(x, -1, 1) + F.hardtanh(x, -0.3, 0.2) + F.softsign(x) + F.tanhshrink(x)"),
    "shrinking":         ([(3, 40)],                  "F.hardshrink(x) + F.softshrink(x, 0.3) + F.threshold(x, 0.1, -2.0) + F.softplus(30 * x, 2.0, 15.0) + F.glu(x).sum()"),
    "prelu":             ([(2, 3, 4), (3,)],          "F.prelu(x, y)"),
    "extremes":          ([(3, 4), (4,)],             "torch.maximum(x, y) + torch.minimum(x, y) + x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp(max=0.1) + x.clamp(y, y + 1)"),
    "comparisons":       ([(3, 4), (3, 4)],           "(x > y).float() + 2 * (x < y) + 4 * (x >= y) + 8 * (x <= y) + 16 * (x == x) + 32 * (x != y)"),
    "truth":             ([(3, 4), (3, 4)],           "torch.where((x > 0) & (y < 0) | ~(x < y) ^ (y > 0.5), x, y) + ((x > 0).logical_and(y > 0) | (x > 1)).float()"),
    "any and all":       ([(3, 4)],                   "(x > 0).any(1).float() + (x > -1).all(1).float() + 2 * (x > 9).any().float()"),
    "where":             ([(3, 4), (4,)],             "torch.where(x > 0, y, 1.0) + torch.where(x > 0, 0.0, 2.0) + x.masked_fill(x < 0, 7.0)"),
    "losses":            ([(3, 4), (3, 4)],           "F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y) + F.kl_div(x, y.softmax(1), reduction='batchmean') + F.l1_loss(x, y)"),
    "dtypes":            ([(3, 4)],                   "x.to(torch.float16).float().double().to(x.dtype) + x.bfloat16()"),

    # Reductions.
    "sums":              ([(2, 3, 4)],                "x.sum() + x.sum(1, keepdim=True) + x.sum((0, 2)).sum() + x.mean() + x.mean(-1, keepdim=True) + x.mean((0, 1))"),
    "maxima":            ([(2, 3, 4)],                "x.amax(1, keepdim=True) + x.amin((0, 2), keepdim=True) + x.max() + x.min() + x.max(1, keepdim=True)[0] + x.min(-1, keepdim=True).values"),
    "where maxima are":  ([(2, 3, 4)],                "x.argmax() + x.argmin(1, keepdim=True) * x.argmax(-1, keepdim=True) + x.max(1, keepdim=True)[1] + x.min(2, keepdim=True).indices * x.max(0)[0] + torch.maximum(x, -x.abs()).clamp(-0.1, 0.1).argmax(2, keepdim=True)"),
    "infinite maxima":   ([(3, 6)],                   "x.masked_fill(torch.arange(6) < 3, float('inf')).argmax(1) + x.masked_fill(torch.arange(6) > 1, float('-inf')).argmin(1) + torch.full_like(x, float('-inf')).argmax(1) + x.masked_fill(torch.arange(6) > 1, float('-inf')).topk(2, 1)[1].sum(1) * 1.0"),
    "largest elements":  ([(3, 9)],                   "x.topk(3, 1)[0].sum(0) * x.topk(3, 1).indices + x.topk(2, 0, largest=False)[1].sum() + x.topk(1)[0] * x.topk(3, -1, False)[0] + x.gather(1, x.topk(3)[1])"),
    "variances":         ([(2, 3, 4)],                "x.var() + x.var(1, keepdim=True) + x.std(-1, keepdim=True) + x.var(1, correction=0, keepdim=True) + torch.var_mean(x, 2, keepdim=True)[1]"),
    "norms of vectors":  ([(2, 3, 4)],                "x.norm(dim=1, keepdim=True) + x.norm(p=1, dim=2, keepdim=True) + x.norm(p=float('inf')) + torch.linalg.vector_norm(x, 3) + F.normalize(x, dim=1)"),
    "softmax":           ([(2, 3, 4)],                "x.softmax(1) + x.log_softmax(-1) + x.logsumexp(1, keepdim=True) + F.softmin(x, 0)"),
    "running sums":      ([(2, 5)],                   "x.cumsum(1) + x.cumsum(0) + x.flip(1).cumsum(1).flip(1)"),
    "products over":     ([(2, 7), (3, 2, 4)],        "x.prod() + x.prod(1) * y.prod(0).sum() + x.cumprod(1).sum() * x.cumprod(0) .mean() + y.cumprod(0)[2].sum(1) + y.prod(1, keepdim=True).sum() + y.view(3, 8).t().reshape(4, 6).cumprod(1).sum() + (y > 0).prod(0).sum() + y[:1].prod(0).sum() + y.expand(5, 3, 2, 4).prod(0).sum()"),
    "running products":  ([(2, 40), (2, 34), (3, 19)], "x.cumprod(1).sum() + x.flip(1).cumprod(1).mean() * y.cumprod(1).sum(1) + (y.view(2, 2, 17).cumprod(2) * y.view(2, 2, 17).cumprod(1)).sum((1, 2)) + z.cumprod(1).sum() + x.cumprod(1).view(2, 8, 5).cumprod(1).sum((1, 2))"),
    "factors apart":     ([(2, 40), (2, 8, 5)],       "x.cumprod(1) + y.reshape(2, 40) + x.view(2, 5, 8).cumsum(2).view(2, 40) * y.cumsum(1).view(2, 40) + (x.cumprod(1) @ y.reshape(2, 40).t()).sum() + (x.view(2, 5, 8).cumsum(1).view(2, 40) @ y.view(16, 5).reshape(40, 2)).mean()"),
    "repeated numbers":  ([(3, 1)],                   "x.expand(3, 4).sum(1) + x.expand(3, 4).mean(1) + x.expand(3, 4).amax(1) + x.expand(3, 4).softmax(1).sum(1) + x.expand(3, 4).logsumexp(1)"),

    # Products.
    "matrix products":   ([(3, 4), (4, 5)],           "x @ y"),
    "batched":           ([(2, 3, 4), (2, 4, 5)],     "x @ y + torch.bmm(x, y) + torch.baddbmm(x @ y, x, y, beta=0.5, alpha=2)"),
    "broadcast batches": ([(2, 1, 3, 4), (6, 4, 5)],  "x @ y"),
    "of vectors":        ([(4,), (4, 5), (4,)],       "x @ y + torch.outer(x, z).sum(0) @ y + (x @ z) * (y.t() @ x) + torch.dot(x, z)"),
    "with itself":       ([(4, 4)],                   "x @ x + x @ x.t() + x.t() @ x + x @ x @ x"),
    "addmm":             ([(3, 4), (4, 5), (5,)],     "torch.addmm(z, x, y) + torch.addmm(z, x, y, beta=0.5, alpha=3)"),
    "linear":            ([(2, 3, 4), (5, 4), (5,)],  "F.linear(x, y, z) + F.linear(x, y)"),
    "einsum":            ([(2, 3, 4), (2, 5, 4)],     "torch.einsum('bid,bjd->bij', x, y) + torch.einsum('bid,bjd->ij', x, y) + torch.einsum('b...,b...->...', x[:, :, 0], x[:, :, 1])[:, None]"),
    "einsum of three":   ([(3, 4), (4, 5), (5, 6)],   "torch.einsum('ij,jk,kl->il', x, y, z) + torch.einsum('ij,jk,kl->l', x, y, z)"),
    "einsum diagonal":   ([(4, 4)],                   "torch.einsum('ii->i', x) + torch.einsum('ii', x) + torch.einsum('ij->ji', x).sum(0)"),
    "of masks":          ([(3, 4), (4, 5)],           "(x > 0).float() @ y"),

    # Norms.
    "layer norm":        ([(2, 3, 4), (4,), (4,)],    "F.layer_norm(x, (4,), y, z) + F.layer_norm(x, (3, 4), eps=1e-3) + F.layer_norm(x, (4,), y)"),
    "rms norm":          ([(2, 3, 4), (4,)],          "F.rms_norm(x, (4,), y) + F.rms_norm(x, (4,), eps=1e-3) + F.rms_norm(x, (3, 4))"),
    "group norm":        ([(2, 6, 4, 3), (6,), (6,)], "F.group_norm(x, 3, y, z) + F.group_norm(x, 1) + F.group_norm(x, 6)"),
    "instance norm":     ([(2, 3, 4, 5), (3,), (3,)], "F.instance_norm(x, weight=y, bias=z) + F.instance_norm(x, eps=1e-3)"),
    "batch norm":        ([(2, 3, 4), (3,), (3,)],    "F.batch_norm(x, y, z.exp(), y, z) + F.batch_norm(x, None, None, training=True)"),

    # Places.
    "reshapes":          ([(4, 6)],                   "x.view(4, 2, 3).sum(1) + x.reshape(2, 2, 3, 2).permute(1, 0, 2, 3).reshape(4, 6)[:, :3] + x.flatten().unflatten(0, (4, 6))[:, 3:]"),
    "one element":       ([(1, 4, 1)],                "x.squeeze() + x.squeeze(0)[:, 0] + x.unsqueeze(0).sum((0, 1, 3)) + x.view(4)"),
    "transposes":        ([(2, 3, 4)],                "x.transpose(0, 2).movedim(0, 2).permute(2, 0, 1).sum(1) + x.mT.sum(2).t().sum() + x.permute(2, 0, 1).sum(2)"),
    "slices":            ([(6, 8)],                   "x[1:5, 2:6] + x[::2, 4:].sum() + x[2, 3] + x[-4:, :4] + x[:4, 4:8] + x.narrow(0, 1, 4)[:, 1:5] + x[5:6, :4]"),
    "parts":             ([(2, 12)],                  "sum(p for p in x.chunk(3, 1)) + sum(x.split(4, 1)) + x.split((4, 6, 2), 1)[0] + x.view(2, 4, 3).unbind(2)[1] + torch.tensor_split(x, 3, 1)[2]"),
    "cat":               ([(2, 3), (2, 5)],           "torch.cat([x, y, x], 1) * torch.cat([y, x, x], 1) + torch.cat([x, x], 0)[:, :1].sum()"),
    "stack":             ([(2, 3), (2, 3)],           "torch.stack([x, y, x], 1) + torch.stack([y, x], 2).sum() + torch.cat([x, y], 1).view(2, 2, 3).sum(1, keepdim=True)"),
    "repeats":           ([(2, 3)],                   "x.repeat(2, 2).view(2, 2, 2, 3).sum(2).sum(1) + x.repeat_interleave(2, 1, output_size=6)[:, ::2] + x.expand(4, 2, 3).sum(0) + torch.tile(x, (2,))[:, 3:]"),
    "padding":           ([(3, 4)],                   "F.pad(x, (1, 2)).sum(1) + F.pad(x, (-1, 1, 1, -1), value=3.0)[:, 0] + F.pad(x, (0, 0, 2, 2), value=float('-inf')).amax(1)[2:5]"),
    "rolls and flips":   ([(4, 6)],                   "x.roll(2, 1) + x.roll((1, -2), (0, 1)) + x.flip(0) + x.flip((0, 1)) + x.roll(5)"),
    "of groups":         ([(4, 6)],                   "x.view(4, 2, 3).permute(1, 0, 2).reshape(8, 3)[1:7].sum() + x.t().reshape(4, 6).roll(1, 1) + F.pad(x.view(2, 12).t().reshape(24), (3, 0))[:6]"),
    "diagonals":         ([(4, 5)],                   "x.diagonal() + x.diagonal(1)[:4] + x.diagonal(-1).sum() + x.tril().sum() + x.triu(1).sum() + x.tril(-2).sum()"),
    "unfold":            ([(2, 9)],                   "x.unfold(1, 3, 2).sum(2) + x[:, :4]"),
    "made of nothing":   ([(4, 4)],                   "x + torch.arange(4) + torch.arange(1, 9, 2).view(4, 1) + torch.eye(4) + torch.ones_like(x) + torch.full((4,), 2.0) + torch.linspace(0, 1, 4) + torch.zeros(4)"),
    "masks of indices":  ([(5, 5)],                   "x.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), float('-inf')).softmax(1) + torch.where(torch.arange(5)[:, None] - torch.arange(5) < 2, x, 0.0)"),
    "places of indices": ([(9, 4)],                   "F.embedding(torch.arange(5), x) + x[torch.arange(5) + 2] + x.index_select(0, torch.arange(8, -1, -2))"),
    "several indices":   ([(5, 4), (1, 2, 5, 5)],     "x[torch.arange(3)[:, None] + 1, torch.arange(2)] + F.unfold(y, 3, padding=1).sum() + y[:, torch.arange(2)[:, None], :, torch.arange(3)].sum()"),
    "written parts":     ([(3, 4), (3, 2)],           "torch.slice_scatter(x, y, 1, 1, 3) + torch.select_scatter(x, y[:, 0], 1, 2) + torch.slice_scatter(x, x, 0)"),

    # Windows.
    "conv1d":            ([(2, 3, 9), (4, 3, 3), (4,)],       "F.conv1d(x, y, z, stride=2, padding=1, dilation=2)"),
    "conv2d":            ([(2, 4, 6, 7), (6, 2, 3, 2), (6,)], "F.conv2d(x, y, z, stride=(1, 2), padding=(1, 0), groups=2)"),
    "conv2d same":       ([(2, 2, 6, 7), (3, 2, 3, 2)],       "F.conv2d(x, y, padding='same') + F.conv2d(x, y, padding='valid').sum()"),
    "conv2d depthwise":  ([(2, 3, 6, 7), (3, 1, 3, 3)],       "F.conv2d(x, y, padding=1, groups=3)"),
    "conv2d patches":    ([(2, 3, 8, 8), (5, 3, 4, 4)],       "F.conv2d(x, y, stride=4).flatten(2).transpose(1, 2)"),
    "conv2d unbatched":  ([(3, 6, 7), (2, 3, 1, 1)],          "F.conv2d(x, y)"),
    "conv3d":            ([(1, 2, 4, 5, 4), (3, 2, 2, 3, 2)], "F.conv3d(x, y, stride=(1, 2, 1), padding=(0, 1, 1))"),
    "transposed":        ([(2, 3, 5, 4), (3, 2, 3, 2), (2,)], "F.conv_transpose2d(x, y, z, padding=(1, 0), dilation=(1, 2))"),
    "transposed grouped": ([(2, 4, 5), (4, 3, 3)],            "F.conv_transpose1d(x, y, groups=2)"),
    "transposed stride": ([(2, 3, 5, 4), (3, 2, 3, 4)],       "F.conv_transpose2d(x, y, stride=2, padding=1, output_padding=(1, 0))"),
    "transposed by 3":   ([(2, 3, 5), (3, 2, 5)],             "F.conv_transpose1d(x, y, stride=3, padding=1) + F.conv_transpose1d(x, y, stride=3, padding=2, output_padding=2)"),
    "transposed odd":    ([(2, 3, 5, 4), (3, 2, 3, 4), (2,)], "F.conv_transpose2d(x, y, z, stride=(2, 3), padding=(0, 1)) + F.conv_transpose2d(x, y, z, stride=(2, 3), padding=1, output_padding=(1, 2))[..., 0:1, 0:1]"),
    "transposed apart":  ([(2, 3, 4, 3), (3, 2, 3, 2)],       "F.conv_transpose2d(x, y, stride=2, dilation=2, padding=(1, 0)) + F.conv_transpose2d(x, y, stride=(3, 2), dilation=(2, 3), output_padding=(1, 0)).sum()"),
    "transposed groups": ([(2, 4, 5), (4, 3, 3), (6,)],       "F.conv_transpose1d(x, y, z, stride=2, groups=2) + F.conv_transpose1d(x, y, z, stride=2, groups=2, dilation=3).sum() + F.conv_transpose1d(x, y, z, stride=2, groups=2, padding=1, output_padding=1).mean()"),
    "transposed 3d":     ([(1, 2, 3, 2, 3), (2, 3, 3, 2, 2)], "F.conv_transpose3d(x, y, stride=(2, 3, 1), padding=(1, 0, 1), dilation=(1, 2, 1)) + F.conv_transpose3d(x, y, stride=2).sum()"),
    "transposed alone":  ([(3, 1, 4), (3, 2, 1, 3), (3, 2, 2, 2)], "F.conv_transpose2d(x, y, stride=3).sum() + F.conv_transpose2d(x, z, stride=(2, 5), padding=(0, 1), output_padding=(0, 4))"),
    "after upsampling":  ([(2, 3, 4, 5), (2, 3, 3, 3)],       "F.conv2d(F.interpolate(x, scale_factor=(2, 3)), y, padding=1, stride=2) + F.conv_transpose2d(F.interpolate(x, scale_factor=2), y.transpose(0, 1), stride=3).mean()"),
    "merged, then read": ([(4, 6)],                           "F.pad(x.t().reshape(24), (1, 2), value=2.0) * F.pad(x.view(2, 2, 3, 2).permute(3, 1, 0, 2).reshape(24), (1, 2)) + x.t().repeat(3, 1)[:, 0].roll(1).sum() + x.expand(2, 4, 6).reshape(48)[3:30].roll(3)"),
    "max pools":         ([(2, 3, 7, 8)],                     "F.max_pool2d(x, 2).sum() + F.max_pool2d(x, 3, 2, 1) + F.max_pool2d(x, 2, 2, ceil_mode=True)[..., :4, :4] + F.max_pool2d(x, 2, 1, dilation=2)[..., :4, :4]"),
    "mean pools":        ([(2, 3, 7, 8)],                     "F.avg_pool2d(x, 2, 2, 1) + F.avg_pool2d(x, 2, 2, 1, count_include_pad=False) + F.avg_pool2d(x, 2, 2, 1, divisor_override=3)"),
    "mean pools cut":    ([(2, 3, 7)],                        "F.avg_pool1d(x, 3, 2, 1, ceil_mode=True) + F.avg_pool1d(x, 2, 2, ceil_mode=True)"),
    "adaptive pools":    ([(2, 3, 6, 8)],                     "F.adaptive_avg_pool2d(x, (3, 2)) + F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, (3, 2))"),
    "one dimension":     ([(2, 3, 6)],                        "F.max_pool1d(x, 2) + F.avg_pool1d(x, 2) + F.adaptive_avg_pool1d(x, 3) + F.max_pool1d(x, 3, 2, 1)"),
    "three dimensions":  ([(1, 2, 4, 4, 4)],                  "F.max_pool3d(x, 2) + F.avg_pool3d(x, 2) + F.adaptive_avg_pool3d(x, 2) + F.max_pool3d(x, 3, 2, 1)"),
    "upsampling":        ([(2, 3, 4, 5)],                     "F.interpolate(x, scale_factor=2) * F.interpolate(x, size=(8, 10))"),
    "pixel shuffle":     ([(2, 8, 3, 4)],                     "F.pixel_shuffle(x, 2) + F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2).sum()"),

    # Attention.
    "attention":         ([(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)], "F.scaled_dot_product_attention(x, y, z)"),
    "causal":            ([(2, 3, 5, 4)],                             "F.scaled_dot_product_attention(x, x, x, is_causal=True)"),
    "causal rectangle":  ([(2, 3, 5, 4), (2, 3, 7, 4)],               "F.scaled_dot_product_attention(x, y, y, is_causal=True)"),
    "scaled and biased": ([(2, 3, 5, 4), (2, 3, 7, 4), (5, 7)],       "F.scaled_dot_product_attention(x, y, y, attn_mask=z, scale=0.3)"),
    "masked":            ([(2, 3, 5, 4), (2, 3, 7, 4)],               "F.scaled_dot_product_attention(x, y, y, attn_mask=torch.ones(5, 7, dtype=torch.bool).tril(2))"),
    "shared heads":      ([(2, 6, 5, 4), (2, 2, 7, 4)],               "F.scaled_dot_product_attention(x, y, y, enable_gqa=True)"),
    "shared and biased": ([(2, 6, 5, 4), (2, 2, 7, 4), (2, 6, 5, 7)], "F.scaled_dot_product_attention(x, y, y, attn_mask=z, enable_gqa=True)"),
    "shared, one bias":  ([(2, 6, 5, 4), (2, 2, 7, 4), (2, 1, 5, 7)], "F.scaled_dot_product_attention(x, y, y, attn_mask=z, enable_gqa=True)"),
    "one query":         ([(2, 3, 1, 4), (2, 3, 7, 4)],               "F.scaled_dot_product_attention(x, y, y)"),
    "without heads":     ([(5, 4), (7, 4)],                           "F.scaled_dot_product_attention(x, y, y)"),
}

# What is computed of these inputs, some of which are whole numbers or truth values.
WHOLE: dict[str, tuple[dict[str, Draw], str]] = {
    "whole numbers":     ({"x": real(3, 4), "i": below(9, 4), "j": below(9, 3, 1, dtype="int32")}, "x * i + j - (2 * i - j) * x / (i + 1) + (i - 4).abs().float() + i.clamp(2, 5) + i.sum()"),
    "whole comparisons": ({"x": real(3, 4), "i": below(3, 4), "j": below(3, 3, 1)}, "(i > j).float() + 2 * (i < j) + 4 * (i >= 1) * x + 8 * (i <= j) + torch.where(i == j, x, 3.0) + 32 * (i != 2) + (i > 0.5).float()"),
    "truth values":      ({"x": real(3, 4), "b": truth(3, 4), "c": truth(4)}, "torch.where(b & ~c, x, 0.0) + (b | c).float() + (~b) * x + b * x + (b ^ c).sum() + b.float().mean() + b.any(1, keepdim=True).float() + c.all()"),
    "truth of numbers":  ({"x": real(3, 4), "i": below(2, 3, 1)}, "x * i.bool() + torch.where(i != 0, x, -x) + (i.bool() & (x > 0)).to(x.dtype)"),
    "masks":             ({"x": real(3, 4), "b": truth(3, 4), "c": truth(1, 4)}, "x.masked_fill(b, float('-inf')).exp() + x.masked_fill(~c, 0.0) + torch.where(b, x, float('-inf')).amax() + x * ~b"),
    "lengths":           ({"x": real(3, 4), "i": held([1, 4, 2], "int32")}, "x.masked_fill(torch.arange(4) >= i[:, None], float('-inf')).softmax(1)"),

    "embedding":         ({"x": real(9, 4), "i": below(9, 2, 3), "j": below(9, 3, dtype="int32")}, "F.embedding(i, x, padding_idx=2) + F.embedding(j, x)"),
    "index select":      ({"x": real(4, 9), "i": below(9, 5)}, "x.index_select(1, i) + x[:, i] * x[..., i]"),
    "places":            ({"x": real(5, 4, 6), "i": below(5, 3, 1, least=-5), "j": below(4, 2)}, "x[i, j] + x[i[:, 0]][:, j] + x[:, j][i[:, 0]].exp() + x[i, j].sum()"),
    "places apart":      ({"x": real(5, 4, 6), "i": below(5, 3, least=-5), "j": below(6, 3, least=-6)}, "x[i, :, j] + x[i][:, :, 0] + x[:3, :, j].diagonal(0, 0, 2).T + x[i, 1:, j].sum()"),
    "mixed places":      ({"x": real(5, 4, 6), "i": below(4, 3)}, "x[torch.arange(3), i] + x[torch.arange(3) + 1, i, 2:3] + x[-1, i] + x[torch.arange(-1, 2), i]"),
    "places of truth":   ({"x": real(3, 4), "b": truth(5, 4), "i": below(5, 3)}, "torch.where(b[i], x, 0.0) + (b[i] & (x > 0)).float()"),
    "whole at places":   ({"x": real(3, 4), "j": below(9, 5, 4), "i": below(5, 3)}, "j[i] * x + F.embedding(j[i] % 1 if False else i, x.T)[:, :1].sum()"),
    "places of places":  ({"x": real(9, 4), "i": below(9, 5), "j": below(5, 3)}, "x[i[j]] + x[i][j]"),
    "of groups, places": ({"x": real(12, 4), "i": below(4, 5)}, "x.view(3, 4, 4)[:, i] + x.view(3, 4, 4).transpose(0, 1).reshape(12, 4)[i] + x.repeat(2, 1).view(8, 3, 4).transpose(0, 1)[:, i]"),
    "gather":            ({"x": real(3, 9, 4), "i": below(9, 3, 5, 4), "j": below(9, 2, 1, 4)}, "x.gather(1, i) + x.gather(1, j).sum() + x.gather(0, j * 0 + 1).sum()"),
    "take along":        ({"x": real(3, 9), "i": below(9, 3, 2, least=-9), "j": below(9, 1, 2)}, "torch.take_along_dim(x, i, 1) + torch.take_along_dim(x, j, 1) + torch.take_along_dim(x, i.clamp(min=0)) .sum() + x.take(i)"),
    "infinite places":   ({"x": real(6, 4), "i": below(3, 5)}, "x.masked_fill(torch.arange(6)[:, None] > 2, float('-inf'))[i] + x.masked_fill(torch.arange(6)[:, None] > 3, float('nan') if False else float('inf'))[i]"),
    "experts":           ({"x": real(3, 4), "y": real(5, 4, 6)}, "torch.einsum('tm,tkmn->tkn', x, y[(x @ y[:, :, 0].T).topk(2, 1)[1]])"),
    "one hot":           ({"x": real(3, 5), "i": below(5, 3)}, "F.one_hot(i, 5) * x + F.one_hot(i, 5).float() @ x.T @ x"),
    "class targets":     ({"x": real(6, 5), "i": below(5, 6), "y": real(5)}, "F.cross_entropy(x, i) + F.cross_entropy(x, i, reduction='none') + F.cross_entropy(x, i, weight=y.exp(), label_smoothing=0.1, reduction='sum') + F.nll_loss(x.log_softmax(1), i, y.exp())"),
    "targets ignored":   ({"x": real(6, 5), "i": held([0, -100, 3, 2, 4, 3])}, "F.cross_entropy(x, i) + F.cross_entropy(x, i.clamp(min=0), ignore_index=3, reduction='sum', label_smoothing=0.2) + F.nll_loss(x, i.clamp(min=0), ignore_index=2, reduction='none')"),
    "targets of pixels": ({"x": real(2, 5, 3, 4), "i": below(5, 2, 3, 4)}, "F.cross_entropy(x, i) + F.cross_entropy(x, i, reduction='none')"),
    "put":               ({"x": real(6, 4), "y": real(3, 4), "i": distinct(6, 3), "j": below(6, 3, least=-6)}, "x.index_put((i,), y) + x.index_put((i,), y[0]) + x.index_put((j,), y, accumulate=True) + x.index_put((i[:, None], torch.arange(4)), y) + x.index_copy(0, i, y) + x.index_add(0, j % 6 if False else i, y) + x.index_fill(0, i, 2.0)"),
    "put apart":         ({"x": real(5, 4, 6), "y": real(3, 4), "i": distinct(5, 3), "j": below(6, 3)}, "x.index_put((i, torch.tensor(1)), y.sum(1, keepdim=True)) + torch.ops.aten.index_put(x, [i, None, j], y) + torch.ops.aten.index_put(x, [None, i.clamp(max=3)], y[:, 0, None], True)"),
    "caches":            ({"x": real(2, 3, 7, 4), "y": real(2, 3, 1, 4), "i": held([5])}, "torch.ops.aten.index_put(x, [None, None, i], y) + torch.where((torch.arange(7) == i)[:, None], y, x)"),
    "caches of rows":    ({"x": real(3, 7, 4), "y": real(3, 4), "i": below(7, 3)}, "x.index_put((torch.arange(3), i), y)"),
    "put by masks":      ({"x": real(5, 4), "b": truth(5, 4), "c": truth(5)}, "x.index_put((b,), torch.tensor(2.0)) + x.index_put((c,), torch.tensor(float('-inf'))).exp()"),
    "scatter":           ({"x": real(6, 4), "y": real(3, 4), "i": held([[0, 1, 2, 3], [5, 4, 3, 2], [1, 0, 5, 4]])}, "x.scatter(0, i, y) + x.scatter(0, i[:, :2], y) + x.scatter(0, i, 3.0) + x.scatter_add(0, i[:1] * 0 + 2, y) + x.scatter(0, i, y, reduce='add') + x.T.scatter_add(1, i.T, y.T).T"),
    "scatter reduced":   ({"x": real(6, 4), "y": real(3, 4), "i": below(6, 3, 4)}, "x.scatter_add(0, i, y) + x.scatter_reduce(0, i, y, 'amax') + x.scatter_reduce(0, i, y, 'amin') + x.scatter_reduce(0, i, y, 'sum')"),
    "put truth":         ({"x": real(5, 4), "b": truth(5, 4), "c": truth(2, 4), "i": distinct(5, 2), "j": below(9, 5, 4)}, "torch.where(b.index_put((i,), c), x, 0.0) + j.index_put((i,), torch.tensor(3))"),
    "attention masks":   ({"x": real(2, 3, 5, 4), "y": real(2, 3, 7, 4), "b": held([[[[1, 0, 1, 0, 0, 1, 1]] * 5], [[[0, 0, 1, 0, 0, 1, 1], [1] * 7, [0] * 6 + [1], [0] * 7, [1] * 7]]], "bool")}, "F.scaled_dot_product_attention(x, y, y, attn_mask=b) + F.scaled_dot_product_attention(x, y, y, attn_mask=b[1, 0]) + F.scaled_dot_product_attention(x[:, :, :1], y, y, attn_mask=b[:, :, :1])"),
    "masked groups":     ({"x": real(2, 6, 5, 4), "y": real(2, 2, 7, 4), "b": truth(2, 6, 5, 7)}, "F.scaled_dot_product_attention(x, y, y, attn_mask=b, enable_gqa=True)"),
}

# Results that are whole numbers or truth values, and the dtypes that the language has them in.
RESULTS: dict[str, tuple[dict[str, Draw], str, str]] = {
    "places of maxima":  ({"x": real(3, 4, 5)}, "x.argmax(1), x.argmin(), x.argmax(-1, keepdim=True), x.max(0)[1], x.topk(3, 1)[1]", "i64 i64 i64 i64 i64"),
    "conditions":        ({"x": real(3, 4), "y": real(4)}, "x > y, x <= y, x == x, ~(x > 0) & (y > 0), (x > 1).any(1), (x > -9).all()", "bool " * 6),
    "numbers cut":       ({"x": real(3, 40)}, "(100 * x).long(), (7 * x).int(), x.bool(), (x.sum(1) * 10).to(torch.int64)", "i64 i32 bool i64"),
    "counts":            ({"x": real(3, 40), "b": truth(5, 7)}, "(x > 0).sum(1), b.sum(), (x > 0.5).int().cumsum(1), torch.arange(4), b.int()", "i64 i64 i64 i64 i32"),
    "of whole numbers":  ({"i": below(9, 4), "j": below(9, 3, 1, dtype="int32"), "b": truth(4)}, "i, b, j + 2 * i, i.int() - 1, ~b, i == j, torch.where(b, i, -i)", "i64 bool i64 i32 bool bool i64"),
    "chosen":            ({"x": real(6, 5), "i": below(9, 5)}, "i[x.argmax(1)], i.index_select(0, x.argmin(1)) * 2, F.one_hot(x.argmax(1), 5)", "i64 i64 i64"),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_that_of_pytorch(name: str, torch: ModuleType) -> None:
    shapes, text = CASES[name]
    names = "xyz"[: len(shapes)]
    function: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {text}", {"torch": torch, "F": torch.nn.functional})
    inputs = [torch.randn(shape) for shape in shapes]
    program = tilewright.from_torch(function, *inputs, name="f")
    assert [p.shape for p in program.parameters] == shapes
    # The printed text is the program, with its sugar or without.
    assert tilewright.Program(program.source) == program == tilewright.Program(str(program))


@pytest.mark.parametrize("name", WHOLE)
def test_an_operation_on_whole_numbers_is_that_of_pytorch(name: str, torch: ModuleType) -> None:
    draws, text = WHOLE[name]
    function: Callable[..., Any] = eval(f"lambda {', '.join(draws)}: {text}", {"torch": torch, "F": torch.nn.functional})
    inputs = [torch.tensor(array) for array in drawn(draws)]
    program = tilewright.from_torch(function, *inputs, name="f")
    languages = {"torch.float32": "f32", "torch.int32": "i32", "torch.int64": "i64", "torch.bool": "bool"}
    assert [p.dtype for p in program.parameters] == [languages[str(x.dtype)] for x in inputs]
    assert tilewright.Program(program.source) == program == tilewright.Program(str(program))


@pytest.mark.parametrize("name", RESULTS)
def test_whole_results_are_those_of_pytorch(name: str, torch: ModuleType) -> None:
    draws, text, dtypes = RESULTS[name]
    function: Callable[..., Any] = eval(f"lambda {', '.join(draws)}: ({text})", {"torch": torch, "F": torch.nn.functional})
    arrays = drawn(draws)
    inputs = [torch.tensor(array) for array in arrays]
    program = tilewright.from_torch(function, *inputs, name="f")
    assert [output.dtype for output in program.outputs] == dtypes.split()
    for ours, theirs in zip(program.eval(*arrays), function(*inputs), strict=True):
        assert ours.dtype == theirs.numpy().dtype and np.array_equal(ours, theirs.numpy())
