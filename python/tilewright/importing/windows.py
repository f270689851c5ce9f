"""Convolutions and other windows: a view whose index is a sum of the place of the window and the place within it."""

from collections.abc import Sequence

from tilewright.importing.axes import Group, fresh
from tilewright.importing.graph import Graph, Index, Value
from tilewright.importing.places import whole
from tilewright.importing.products import contracted

SPACE = {1: ("l",), 2: ("h", "w"), 3: ("t", "h", "w")}
"""What the dimensions of space are called."""


def named(group: Group, name: str, weight: int = 4) -> Group:
    for axis in group:
        axis.hint(name, weight)
    return group


def windows(
    to: Graph,
    x: Value,
    first: int,
    sizes: Sequence[int],
    counts: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    dilation: Sequence[int],
    fill: float,
    apart: Sequence[int] = (),
) -> tuple[Value, list[Group]]:
    """x with each dimension from `first` on, whose elements are `apart`, read as `stride * place + dilation * within - before`: places, then what is
    within, which is also given by itself."""
    names, apart = SPACE[len(sizes)], apart or [1] * len(sizes)
    tiled_by = zip(stride, sizes, dilation, before, counts, x.shape[first:], apart)
    if all(s == k and d == g == 1 and b == 0 and c * k == n for s, k, d, b, c, n, g in tiled_by):
        # Windows side by side are no index: a dimension is the place and the place within.
        cut = to.reshaped(x, [*x.shape[:first], *(size for pair in zip(counts, sizes) for size in pair)])
        tiled = [(named(cut.dims[first + 2 * n], f"o{name}", 3), named(cut.dims[first + 2 * n + 1], f"k{name}")) for n, name in enumerate(names)]
        return cut.with_(dims=[*cut.dims[:first], *(place for place, _ in tiled), *(inner for _, inner in tiled)]), [inner for _, inner in tiled]
    places, within, index = [], [], []
    node = x.node
    leaves_source = False
    for n, (size, count) in enumerate(zip(sizes, counts)):
        x, axis = whole(to, x.with_(node), first + n)
        node = x.node
        axis.hint(names[n], 4)
        place, inner = named(fresh(count), f"o{names[n]}", 3), named(fresh(size), f"k{names[n]}")
        places.append(place)
        within.append(inner)
        index.append((axis, Index((*((stride[n], a) for a in place), *((dilation[n], a) for a in inner)), -before[n], apart[n])))
        ends = [stride[n] * (count - 1), dilation[n] * (size - 1)]
        lowest = sum(min(end, 0) for end in ends) - before[n]
        highest = sum(max(end, 0) for end in ends) - before[n]
        leaves_source |= lowest < 0 or highest >= axis.extent or apart[n] > 1
    node = to.view(node, index, fill if leaves_source else None)
    return Value(node, (*x.dims[:first], *places, *within)), within


def convolved(
    to: Graph,
    x: Value,
    weight: Value,
    counts: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    apart: Sequence[int],
) -> Value:
    """x of batch, channels and space by a weight of channels of the result, channels within a group and space: the sum over all places k of the filter of
    x[(stride * o + dilation * k - before) / apart] * w[k], where that is an integer. A transposed convolution goes backwards, and its stride is how far
    apart the elements of x are.
    """
    space, sizes = weight.rank - 2, list(weight.shape[2:])
    named(x.dims[0], "n")
    named(weight.dims[0], "co")
    read, _ = windows(to, x, 2, sizes, counts, stride, before, dilation, 0.0, apart)
    channels = x.shape[1]
    # Batch, group, channel within it, places; then what is within the windows, which the weight has too.
    grouped = to.reshaped(read, [read.shape[0], groups, channels // groups, *read.shape[2:]])
    weight = to.reshaped(weight, [groups, weight.shape[0] // groups, *weight.shape[1:]])
    if groups > 1:
        named(grouped.dims[1], "g" if channels > groups else "c")
        named(weight.dims[1], "co" if weight.shape[1] > 1 else "")
    named(grouped.dims[2], "ci")
    rank = grouped.rank
    made = contracted(
        to,
        grouped,
        weight,
        [(1, 0)],
        [0, *range(3, 3 + space)],
        [1],
        [(2, 2), *((rank - space + n, 3 + n) for n in range(space))],
    )
    # Group, batch, places, channel within the group: the result has the batch in front, and group and channel as one dimension.
    return made.with_(dims=[made.dims[1], (*made.dims[0], *made.dims[-1]), *made.dims[2:-1]])


def count_of(length: int, size: int, around: int, stride: int, dilation: int) -> int:
    """How many windows there are of so many places."""
    return (length + around - dilation * (size - 1) - 1) // stride + 1
