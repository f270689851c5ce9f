"""Convolutions, pools and sums of what stands before."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.importing.graph import Graph, Refusal, Value
from tilewright.importing.places import backwards, padded
from tilewright.importing.reductions import NEUTRAL, running
from tilewright.importing.windows import SPACE, convolved, windows
from tilewright.stablehlo_import.rules.places import spread, transposed
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
    for n, gap in enumerate(lhs_dilation or ones):
        x, behind = spread(to, x, 2 + n, gap, 0.0)
        pads[n] = (pads[n][0], pads[n][1] - behind)
    made = convolved(to, x, weight, window_strides or ones, pads, rhs_dilation or ones, feature_group_count)
    places = [numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions]
    return transposed(made, [places.index(n) for n in range(made.rank)])


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
    steps, gaps = window_strides or ones, window_dilations or ones
    pads = [(int(low), int(high)) for low, high in padding] if padding is not None else [(0, 0)] * x.rank
    for n, gap in enumerate(base_dilations or ones):
        x, behind = spread(to, x, n, gap, fill)
        pads[n] = (pads[n][0], pads[n][1] - behind)
    left = []
    for n, size in enumerate(window_dimensions):
        if size == x.shape[n] > 1 and steps[n] == gaps[n] == 1 and pads[n] in ((size - 1, 0), (0, size - 1)):
            x = running(to, function, x, n, from_behind=pads[n][0] == 0)
        elif size == 1 and steps[n] == 1:
            x = padded(to, x, n, *pads[n], fill)
        else:
            left.append(n)
    if left:
        if len(left) not in SPACE:
            raise Refusal(f"windows of {len(left)} dimensions")
        order = [*(n for n in range(x.rank) if n not in left), *left]
        x = transposed(x, order)
        first = x.rank - len(left)
        sizes = [window_dimensions[n] for n in left]
        counts = [(x.shape[first + m] + sum(pads[n]) - gaps[n] * (window_dimensions[n] - 1) - 1) // steps[n] + 1 for m, n in enumerate(left)]
        read, within = windows(to, x, first, sizes, counts, [steps[n] for n in left], [pads[n][0] for n in left], [gaps[n] for n in left], fill)
        made = to.reduced(function, read.node, [axis for group in within for axis in group])
        x = transposed(Value(made, read.dims[: x.rank], x.kind), [order.index(n) for n in range(x.rank)])
    return x.with_(from_start(to, function, x.node, start.node))
