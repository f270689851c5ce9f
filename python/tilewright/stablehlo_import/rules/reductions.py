"""Sums, products, maxima and minima."""

from collections.abc import Sequence

from tilewright.importing.elements import total
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.importing.places import affine, joined
from tilewright.importing.reductions import NEUTRAL, extreme, extremes
from tilewright.stablehlo_import.module import COMPARED
from tilewright.stablehlo_import.table import rule

FUNCTIONS = {"stablehlo.add": "sum", "stablehlo.maximum": "max", "stablehlo.minimum": "min", "stablehlo.multiply": "prod"}

# What a sum, a maximum and a minimum are of truth values, as of 1 and 0.
OF_TRUTH = {"stablehlo.or": "max", "stablehlo.and": "min", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}


def function_of(x: Value, body: str | None) -> str:
    """What a reduction computes: `sum`, `max`, `min` or `prod`."""
    found = (OF_TRUTH if x.kind == "bool" else FUNCTIONS).get(body or "")
    if found is None:
        raise Refusal(f"a reduction by {body}" if body else "a reduction by several operations")
    return found


def single(operands: Sequence[Value]) -> tuple[Value, Value]:
    """What is reduced, and from where on."""
    if len(operands) != 2:
        raise Refusal("a reduction of several tensors at once")
    return operands[0], operands[1]


def from_start(to: Graph, function: str, made: Node, start: Node) -> Node:
    """A reduction that begins with a number."""
    if start.op == "constant" and start.constants[0] == NEUTRAL[function]:
        return made
    if function == "prod":
        return Node("mul", (made, start))
    return total(to, made, start) if function == "sum" else to.call(function, made, start)


@rule("reduce")
def reduce(to: Graph, *operands: Value, dimensions: Sequence[int], body: str | None) -> Value | tuple[Value, Value]:
    if body in COMPARED:
        return _with_place(to, body, operands, dimensions)
    x, start = single(operands)
    function = function_of(x, body)
    dims = [own for n, own in enumerate(x.dims) if n not in dimensions]
    if x.kind == "bool":
        if x.node.op == start.node.op == "constant":
            held = [to.holds(x), to.holds(start)]
            return Value(to.number(any(held) if function == "max" else all(held)).node, tuple(dims), "bool")
        x, start = to.real(x), to.real(start)
        made = to.reduced(function, x.node, [axis for n in dimensions for axis in x.dim(n)])
        # True is 1: not less than 1.
        return Value(to.shifted(to.call(function, made, start.node), -1), tuple(dims), "bool")
    over = [axis for n in dimensions for axis in x.dim(n)]
    return x.with_(from_start(to, function, to.reduced(function, x.node, over), start.node), dims)


def _with_place(to: Graph, function: str, operands: Sequence[Value], dimensions: Sequence[int]) -> tuple[Value, Value]:
    """The maximum or minimum, and the first place where it is: of tensors of which the second one is the index along the dimension."""
    x, index, start, first = operands
    (dim,) = dimensions
    own = affine(to.pointwise(lambda i, j: Node("sub", (i, j)), index, Value(to.iota(x.dim(dim)), (x.dim(dim), *[()] * (x.rank - 1 - dim)))).node)
    is_known = all(places is not None and not any(places.values()) for places in (own, affine(first.node)))
    if not is_known or start.node.op != "constant" or start.node.constants[0] != NEUTRAL[function]:
        raise Refusal("a maximum with other numbers than its place")
    return extreme(to, function, x, dim)


@rule("chlo.top_k")
def top_k(to: Graph, x: Value, *, k: int) -> tuple[Value, Value]:
    last = x.rank - 1
    values, where = ([y.with_(dims=[*y.dims, ()]) for y in several] for several in zip(*extremes(to, "max", x, last, k)))
    return joined(to, values, last), joined(to, where, last)
