"""Products over a dimension, which the language has none of: by halves, in as many steps as the extent can be halved.

    y = view(x; i -> h) * view(x; i -> h + 4; fill = 1)          of 7 elements; the same of the 4 that are left, and of 2

A running product takes as many: after a step that reads 1 place back, one that reads 2 back, and one that reads 4 back, each element is the product of 8.
"""

from collections.abc import Iterable

from tilewright.importing.axes import Axis, leaves
from tilewright.importing.graph import Graph, Index, Node, Value
from tilewright.importing.places import whole


def multiplied(to: Graph, x: Node, over: Iterable[Axis]) -> Node:
    """The product over axes."""
    group = leaves(over)
    x = to.repeated(x, group)
    for axis in group:
        while axis.extent > 2:
            half = Axis(-(-axis.extent // 2))
            half.hints = [(weight - 1, name) for weight, name in axis.root().hints]
            first = to.view(x, [(axis, Index(((1, half),)))])
            behind = to.view(x, [(axis, Index(((1, half),), half.extent))], 1 if axis.extent % 2 else None)
            x, axis = Node("mul", (first, behind)), half
        ends = [to.view(x, [(axis, Index((), place))]) for place in range(axis.extent)]
        x = Node("mul", (ends[0], ends[1])) if len(ends) > 1 else ends[0]
    return x


def running_product(to: Graph, x: Value, dim: int, from_behind: bool = False) -> Value:
    """y[i] is the product of x[j] for j up to i, or for j from i on."""
    if not x.dim(dim):
        return x
    x, axis = whole(to, x, dim)
    node, step = x.node, 1
    while step < axis.extent:
        other = to.view(node, [(axis, Index(((1, axis),), step if from_behind else -step))], 1)
        node, step = Node("mul", (node, other)), 2 * step
    return x.with_(node)
