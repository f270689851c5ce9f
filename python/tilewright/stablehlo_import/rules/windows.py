"""Convolutions, pools and sums of what stands before."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.importing.graph import Graph, Refusal, Value
from tilewright.importing.places import backwards, padded
from tilewright.importing.reductions import NEUTRAL, running
from tilewright.importing.windows import SPACE, convolved, count_of, windows
from tilewright.stablehlo_import.rules.places import transposed
from tilewright.stablehlo_import.rules.reductions import from_start, function_of, single
from tilewright.stablehlo_import.table import rule


@rule("convolution")
def convolution(
    to: Graph,
    x: Value,
    weight: Value,
    *,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    window_strides: Sequence[int] | None = None,
    padding: np.ndarray | None = None,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    window_reversal: Sequence[bool] | None = None,
) -> Value:
    numbers, space = dimension_numbers, len(dimension_numbers.input_spatial_dimensions)
    if space not in SPACE:
        raise Refusal(f"a convolution of {space} dimensions")
    if batch_group_count != 1:
        raise Refusal(f"a convolution with {batch_group_count} groups of the batch")
    x = transposed(x, [numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions])
    order = [numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension, *numbers.kernel_spatial_dimensions]
    weight = backwards(to, transposed(weight, order), [2 + n for n, is_reversed in enumerate(window_reversal or ()) if is_reversed])
    ones = [1] * space
    pads = [(int(low), int(high)) for low, high in padding] if padding is not None else [(0, 0)] * space
    steps, gaps, apart = window_strides or ones, rhs_dilation or ones, lhs_dilation or ones
    counts = [_count(*about) for about in zip(x.shape[2:], weight.shape[2:], pads, steps, gaps, apart)]
    made = convolved(to, x, weight, counts, steps, [low for low, _ in pads], gaps, feature_group_count, apart)
    places = [numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions]
    return transposed(made, [places.index(n) for n in range(made.rank)])


def _count(length: int, size: int, around: tuple[int, int], stride: int, dilation: int, apart: int) -> int:
    return count_of(apart * (length - 1) + 1, size, sum(around), stride, dilation)


@rule("reduce_window")
def reduce_window(
    to: Graph,
    *operands: Value,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    base_dilations: Sequence[int] | None = None,
    window_dilations: Sequence[int] | None = None,
    padding: np.ndarray | None = None,
    body: str | None,
) -> Value:
    x, start = single(operands)
    if x.kind == "bool":
        raise Refusal("windows of truth values")
    function, ones = function_of(x, body), [1] * x.rank
    fill = NEUTRAL[function]
    steps, gaps, apart = window_strides or ones, window_dilations or ones, base_dilations or ones
    pads = [(int(low), int(high)) for low, high in padding] if padding is not None else [(0, 0)] * x.rank
    left = []
    for n, size in enumerate(window_dimensions):
        if size == x.shape[n] > 1 and steps[n] == gaps[n] == apart[n] == 1 and pads[n] in ((size - 1, 0), (0, size - 1)):
            from_behind = pads[n][0] == 0
            x = running(to, function, x, n, from_behind)
        elif size == 1 and steps[n] == 1:
            x = padded(to, x, n, *pads[n], fill, apart[n])
        else:
            left.append(n)
    if left:
        if len(left) not in SPACE:
            raise Refusal(f"windows of {len(left)} dimensions")
        order = [*(n for n in range(x.rank) if n not in left), *left]
        x = transposed(x, order)
        first = x.rank - len(left)
        sizes, strides, dilations, gap = ([listed[n] for n in left] for listed in (window_dimensions, steps, gaps, apart))
        counts = [_count(*about) for about in zip(x.shape[first:], sizes, [pads[n] for n in left], strides, dilations, gap)]
        read, within = windows(to, x, first, sizes, counts, strides, [pads[n][0] for n in left], dilations, fill, gap)
        made = to.reduced(function, read.node, [axis for group in within for axis in group])
        x = transposed(Value(made, read.dims[: x.rank], x.kind), [order.index(n) for n in range(x.rank)])
    return x.with_(from_start(to, function, x.node, start.node))
