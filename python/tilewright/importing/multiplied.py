"""Products over a dimension, which the language has none of: by halves, in as many steps as the extent can be halved.

    y = view(x; i -> h) * view(x; i -> h + 4; fill = 1)          of 7 elements; the same of the 4 that are left, and of 2

A running product is one of blocks of a few elements: in each its elements times those before them, and before that the product of the blocks in front,
which is a running product of fewer elements (G. E. Blelloch, "Prefix sums and their applications", 1990). An extent that cannot be divided so takes as many
steps as it can be halved: after a step that reads 1 place back, one that reads 2 back, and one that reads 4 back, each element is the product of 8.
"""

from collections.abc import Iterable, Sequence

from tilewright.importing.axes import Axis, Group, leaves
from tilewright.importing.graph import Graph, Index, Node, Value

BLOCKS = (4, 5, 3, 7, 2, 11, 13)
"""Elements of a block, the first number that divides: each is read so many times, and so many times fewer are left for the next level."""

MOST = 16
"""So few elements are no blocks."""


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
    x = x.with_(to.repeated(x.node, x.dim(dim)))
    while True:
        parts = ((leaf, size) for leaf in x.dim(dim) if leaf.extent > MOST for size in BLOCKS if leaf.extent % size == 0)
        leaf, size = next(parts, (None, 1))
        if leaf is None:
            return x.with_(_running(to, x.node, x.dim(dim), -1 if from_behind else 1, 0))
        x = to.split_leaf(x, leaf, leaf.extent // size)


def _running(to: Graph, x: Node, group: Group, step: int, first: int) -> Node:
    """The product of each element and of all before it, or of these alone where the first place back is 1 and not 0. A step of -1 goes from behind."""
    *rest, axis = group

    def back(node: Node, places: int) -> Node:
        return to.view(node, [(axis, Index(((1, axis),), -step * places))], 1) if places else node

    if axis.extent <= MOST:
        within = _product([back(x, places) for places in range(first, axis.extent)])
    else:
        within, places = back(x, first), 1
        while places < axis.extent:
            within, places = Node("mul", (within, back(within, places))), 2 * places
    if not rest:
        return within
    ends = [to.view(x, [(axis, Index((), place))]) for place in range(axis.extent)]
    total = _product(ends) if axis.extent <= MOST else multiplied(to, x, (axis,))
    return Node("mul", (_running(to, total, tuple(rest), step, 1), within))


def _product(factors: Sequence[Node]) -> Node:
    """In halves, so that no factor waits for all others."""
    half = len(factors) // 2
    return Node("mul", (_product(factors[:half]), _product(factors[half:]))) if half else factors[0]
