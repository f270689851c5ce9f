"""Sums, maxima and minima."""

from collections.abc import Sequence

from tilewright.importing.elements import total
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.importing.reductions import NEUTRAL
from tilewright.stablehlo_import.table import rule

FUNCTIONS = {"stablehlo.add": "sum", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}

# What a sum, a maximum and a minimum are of truth values, as of 1 and 0.
OF_TRUTH = {"stablehlo.or": "max", "stablehlo.and": "min", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}


def function_of(x: Value, body: str | None) -> str:
    """What a reduction computes: `sum`, `max` or `min`."""
    found = (OF_TRUTH if x.kind == "bool" else FUNCTIONS).get(body or "")
    if found is None:
        raise Refusal(f"a reduction by {body}" if body else "a reduction by several operations")
    return found


def single(operands: Sequence[Value]) -> tuple[Value, Value]:
    """What is reduced, and from where on."""
    if len(operands) != 2:
        raise Refusal("a reduction of several tensors at once: where a maximum is has no words in the language")
    return operands[0], operands[1]


def from_start(to: Graph, function: str, made: Node, start: Node) -> Node:
    """A reduction that begins with a number."""
    if start.op == "constant" and start.constants[0] == NEUTRAL[function]:
        return made
    return total(to, made, start) if function == "sum" else to.call(function, made, start)


@rule("reduce")
def reduce(to: Graph, *operands: Value, dimensions: Sequence[int], body: str | None) -> Value:
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
    made = to.reduced(function, x.node, [axis for n in dimensions for axis in x.dim(n)])
    return x.with_(from_start(to, function, made, start.node), dims)
