"""Sums, maxima and products of what stands before each element, and where maxima are."""

import math
from collections.abc import Sequence

from tilewright.importing.axes import Axis, extent
from tilewright.importing.elements import unlike
from tilewright.importing.graph import Graph, Node, Refusal, Value

NEUTRAL = {"sum": 0, "max": -math.inf, "min": math.inf, "prod": 1}
"""What each of them is of nothing."""


def running(to: Graph, function: str, x: Value, dim: int, from_behind: bool = False) -> Value:
    """A sum, product, maximum or minimum over a triangle: y[i] is that of x[j] for j up to i, or for j from i on."""
    group = x.dim(dim)
    if not group:
        return x
    before = tuple(Axis(axis.extent, "j", 2) for axis in group)
    source = to.renamed(to.repeated(x.node, group), dict(zip(group, before)))
    own, other = to.iota(group), to.iota(before)
    reach = Node("sub", (other, own) if from_behind else (own, other))
    node = Node("select", (reach, source, to.constant(NEUTRAL[function])))
    return x.with_(to.call(function, node, over=before, removes=True))


MOST_PLACES = 16
"""Of the largest elements: each is looked for behind those before it."""


def extreme(to: Graph, function: str, x: Value, dim: int, before: Sequence[Value] = ()) -> tuple[Value, Value]:
    """The maximum or minimum along a dimension, and the first place where it is, which is gone; but for elements at the places `before`.

        m = max(x; j), min(select(-relu(m - x), iota(j), size(j)); j)

    Two infinities that are the same have no difference: it is NaN, and `relu` makes it 0.
    """
    group, dims = x.dim(dim), [own for n, own in enumerate(x.dims) if n != dim]
    node, index = to.repeated(x.node, group), to.iota(group)
    gone = [unlike(to, index, place.node) for place in before]
    for at in gone:
        node = Node("select", (at, to.constant(NEUTRAL[function]), node))
    found = to.reduced(function, node, group)
    less = Node("sub", (found, node) if function == "max" else (node, found))
    there = to.negative(to.call("relu", less))
    for at in gone:
        there = Node("select", (at, to.constant(-1), there))
    place = to.reduced("min", Node("select", (there, index, to.constant(extent(group)))), group) if group else to.constant(0)
    return Value(found, tuple(dims), x.kind), Value(place, tuple(dims), "int")


def extremes(to: Graph, function: str, x: Value, dim: int, count: int) -> list[tuple[Value, Value]]:
    """The largest or smallest elements, from the most extreme one on, each with its place."""
    if count > MOST_PLACES:
        raise Refusal(f"the {count} most extreme elements: at most {MOST_PLACES} are looked for one by one")
    found: list[tuple[Value, Value]] = []
    for _ in range(count):
        found.append(extreme(to, function, x, dim, [place for _, place in found]))
    return found
