"""Sums and maxima of what stands before each element."""

import math

from tilewright.importing.axes import Axis
from tilewright.importing.graph import Graph, Node, Value

NEUTRAL = {"sum": 0, "max": -math.inf, "min": math.inf}
"""What each of them is of nothing."""


def running(to: Graph, function: str, x: Value, dim: int, from_behind: bool = False) -> Value:
    """A sum, maximum or minimum over a triangle: y[i] is that of x[j] for j up to i, or for j from i on."""
    group = x.dim(dim)
    if not group:
        return x
    before = tuple(Axis(axis.extent, "j", 2) for axis in group)
    source = to.renamed(to.repeated(x.node, group), dict(zip(group, before)))
    own, other = to.iota(group), to.iota(before)
    reach = Node("sub", (other, own) if from_behind else (own, other))
    node = Node("select", (reach, source, to.constant(NEUTRAL[function])))
    return x.with_(to.call(function, node, over=before, removes=True))
