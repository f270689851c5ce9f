"""Convolutions, pools and other windows: a view whose index is a sum of the place of the window and the place within it."""

import math
from collections.abc import Sequence

from tilewright.importing.axes import fresh
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.importing.windows import SPACE, convolved, count_of, windows
from tilewright.torch_import.rules.pointwise import add
from tilewright.torch_import.rules.reductions import NO_PLACE, reduced
from tilewright.torch_import.rules.views import reshape
from tilewright.torch_import.table import put_rule, rule


def listed(x: "Sequence[int] | int", count: int) -> list[int]:
    found = [x] if isinstance(x, int) else list(x)
    return found * count if len(found) == 1 else found


def convolution_of(
    to: Graph,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: "Sequence[int] | int",
    padding: "Sequence[int] | int | str",
    dilation: "Sequence[int] | int",
    groups: int,
) -> Value:
    space = weight.rank - 2
    batched = x.rank == weight.rank
    if not batched:
        x = x.with_(dims=[(), *x.dims])
    steps, gaps = listed(stride, space), listed(dilation, space)
    if padding == "same":
        around = [d * (k - 1) for d, k in zip(gaps, weight.shape[2:])]
        pads = [(a // 2, a - a // 2) for a in around]
    else:
        pads = [(n, n) for n in ([0] * space if isinstance(padding, str) else listed(padding, space))]
    counts = [count_of(n, k, sum(p), s, d) for n, k, p, s, d in zip(x.shape[2:], weight.shape[2:], pads, steps, gaps)]
    made = convolved(to, x, weight, counts, steps, [before for before, _ in pads], gaps, groups, [1] * space)
    return _biased(to, made, bias, batched)


def _biased(to: Graph, made: Value, bias: Value | None, batched: bool) -> Value:
    if bias is not None:
        made = add(to, made, bias.with_(dims=[*bias.dims, *[()] * (made.rank - 2)]))
    return made if batched else made.with_(dims=made.dims[1:])


def _conv(
    to: Graph, input: Value, weight: Value, bias: Value | None = None, stride: object = 1, padding: object = 0, dilation: object = 1, groups: int = 1
) -> Value:
    return convolution_of(to, input, weight, bias, stride, padding, dilation, groups)  # type: ignore[arg-type]


for _name in ("conv1d", "conv2d", "conv3d"):
    put_rule(_name, _conv)


@rule("convolution")
def convolution(
    to: Graph,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    if transposed:
        return transposed_convolution(to, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolution_of(to, input, weight, bias, stride, padding, dilation, groups)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(
    to: Graph,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: "Sequence[int] | int" = 1,
    padding: "Sequence[int] | int" = 0,
    output_padding: "Sequence[int] | int" = 0,
    groups: int = 1,
    dilation: "Sequence[int] | int" = 1,
) -> Value:
    """y[o] is the sum of x[h] * w[k] over all o + padding = stride * h + dilation * k."""
    space = weight.rank - 2
    steps, pads, more, gaps = (listed(x, space) for x in (stride, padding, output_padding, dilation))
    batched = input.rank == weight.rank
    x = input if batched else input.with_(dims=[(), *input.dims])
    sizes = zip(x.shape[2:], weight.shape[2:], steps, pads, gaps, more)
    counts = [s * (n - 1) + d * (k - 1) + 1 + rest - 2 * pad for n, k, s, pad, d, rest in sizes]
    # Of groups, channels within them, and channels of the result within them, to those of the result, and channels within a group.
    filters = to.reshaped(weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])
    filters = filters.with_(dims=[(*filters.dims[0], *filters.dims[2]), filters.dims[1], *filters.dims[3:]])
    made = convolved(to, x, filters, counts, [1] * space, [-pad for pad in pads], [-d for d in gaps], groups, steps)
    return _biased(to, made, bias, batched)


def _counts(
    shape: Sequence[int], sizes: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool
) -> list[int]:
    """How many windows there are; with `ceil_mode` also one that the end cuts off, if it begins within the tensor or the padding before it."""
    counts = []
    for n, k, s, p, d in zip(shape, sizes, stride, padding, dilation):
        reach = n + 2 * p - d * (k - 1) - 1
        count = (-(-reach // s) if ceil_mode else reach // s) + 1
        counts.append(count - (ceil_mode and (count - 1) * s >= n + p))
    return counts


def _pool(space: int, maximum: bool) -> None:
    def of_maxima(
        to: Graph, self: Value, kernel_size: object, stride: object = (), padding: object = 0, dilation: object = 1, ceil_mode: bool = False
    ) -> Value:
        sizes, pads, gaps = (listed(x, space) for x in (kernel_size, padding, dilation))  # type: ignore[arg-type]
        steps = listed(stride, space) if stride not in ((), [], None) else sizes  # type: ignore[arg-type]
        first = self.rank - space
        counts = _counts(self.shape[first:], sizes, steps, pads, gaps, ceil_mode)
        read, within = windows(to, self, first, sizes, counts, steps, pads, gaps, -math.inf)
        return Value(to.reduced("max", read.node, [a for group in within for a in group]), read.dims[:-space])

    def with_places(
        to: Graph, self: Value, kernel_size: object, stride: object = (), padding: object = 0, dilation: object = 1, ceil_mode: bool = False
    ) -> tuple[Value, Refusal]:
        return of_maxima(to, self, kernel_size, stride, padding, dilation, ceil_mode), NO_PLACE

    def of_means(
        to: Graph,
        self: Value,
        kernel_size: object,
        stride: object = (),
        padding: object = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        sizes, pads = (listed(x, space) for x in (kernel_size, padding))  # type: ignore[arg-type]
        steps = listed(stride, space) if stride not in ((), [], None) else sizes  # type: ignore[arg-type]
        first = self.rank - space
        shape = self.shape[first:]
        counts = _counts(shape, sizes, steps, pads, [1] * space, ceil_mode)
        read, within = windows(to, self, first, sizes, counts, steps, pads, [1] * space, 0.0)
        axes = [a for group in within for a in group]
        if divisor_override is not None:
            node = Node("div", (to.reduced("sum", read.node, axes), to.constant(divisor_override)))
            return Value(node, read.dims[:-space])
        reach = [(count - 1) * s + k - p for count, s, k, p in zip(counts, steps, sizes, pads)]
        padded = [n + (p if count_include_pad else 0) for n, p in zip(shape, pads)]
        if (count_include_pad or not any(pads)) and all(r <= n for r, n in zip(reach, padded)):
            return Value(to.reduced("mean", read.node, axes), read.dims[:-space])
        # How many places of a window count: those in the source, or in the source and its padding.
        around = pads if count_include_pad else [0] * space
        ones = Value(to.constant(1), tuple(fresh(n + 2 * p) for n, p in zip(shape, around)))
        ones = ones.with_(to.repeated(ones.node, ones.axes()))
        counted, inner = windows(to, ones, 0, sizes, counts, steps, [p - a for p, a in zip(pads, around)], [1] * space, 0.0)
        number = Value(to.reduced("sum", counted.node, [a for group in inner for a in group]), counted.dims[:-space])
        total = Value(to.reduced("sum", read.node, axes), read.dims[:-space])
        return to.pointwise(lambda x, n: Node("div", (x, n)), total, number)

    if maximum:
        put_rule(f"max_pool{space}d", of_maxima)
        put_rule(f"max_pool{space}d_with_indices", with_places)
    else:
        put_rule(f"avg_pool{space}d", of_means)


for _space in SPACE:
    _pool(_space, maximum=True)
    _pool(_space, maximum=False)


def _adaptive(to: Graph, x: Value, output_size: "Sequence[int | None] | int", space: int, function: str) -> Value:
    """Windows of one size, where the output divides the input: a dimension is the window and the place within it."""
    wanted = listed(output_size, space)  # type: ignore[arg-type]
    first = x.rank - space
    sizes = [n if size is None else size for n, size in zip(x.shape[first:], wanted)]
    if any(n % size for n, size in zip(x.shape[first:], sizes)):
        raise Refusal(f"windows of different sizes: {list(x.shape[first:])} to {sizes}")
    cut = reshape(to, x, [*x.shape[:first], *(k for n, size in zip(x.shape[first:], sizes) for k in (size, n // size))])
    return reduced(to, function, cut, [first + 2 * n + 1 for n in range(space)], keepdim=False)


@rule("adaptive_avg_pool1d")
def adaptive_mean_1d(to: Graph, self: Value, output_size: Sequence[int]) -> Value:
    return _adaptive(to, self, output_size, 1, "mean")


@rule("adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def adaptive_mean_2d(to: Graph, self: Value, output_size: Sequence[int]) -> Value:
    return _adaptive(to, self, output_size, 2, "mean")


@rule("adaptive_avg_pool3d", "_adaptive_avg_pool3d")
def adaptive_mean_3d(to: Graph, self: Value, output_size: Sequence[int]) -> Value:
    return _adaptive(to, self, output_size, 3, "mean")


@rule("adaptive_max_pool1d")
def adaptive_max_1d(to: Graph, self: Value, output_size: Sequence[int]) -> tuple[Value, Refusal]:
    return _adaptive(to, self, output_size, 1, "max"), NO_PLACE


@rule("adaptive_max_pool2d")
def adaptive_max_2d(to: Graph, self: Value, output_size: Sequence[int]) -> tuple[Value, Refusal]:
    return _adaptive(to, self, output_size, 2, "max"), NO_PLACE


@rule("adaptive_max_pool3d")
def adaptive_max_3d(to: Graph, self: Value, output_size: Sequence[int]) -> tuple[Value, Refusal]:
    return _adaptive(to, self, output_size, 3, "max"), NO_PLACE


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def upsample(
    to: Graph,
    self: Value | None = None,
    input: Value | None = None,
    output_size: Sequence[int] | None = None,
    scale_factors: Sequence[float] | None = None,
    scales: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
    scales_d: float | None = None,
) -> Value:
    """Each element several times: along an axis that the value lacks."""
    x = self if self is not None else input
    assert x is not None
    space = x.rank - 2
    sizes = list(output_size) if output_size is not None else [int(n * s) for n, s in zip(x.shape[2:], scale_factors or ())]
    if len(sizes) != space or any(size % n for size, n in zip(sizes, x.shape[2:])):
        raise Refusal(f"nearest neighbours of {list(x.shape[2:])} at {sizes}: no whole factors")
    return x.with_(dims=[*x.dims[:2], *((*own, *fresh(size // n, "r", 2)) for own, size, n in zip(x.dims[2:], sizes, x.shape[2:]))])
