"""Functions of elements, comparisons and choices."""

import math
import operator
from collections.abc import Callable
from typing import Any

from tilewright.importing import elements
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.importing.places import affine, bounds
from tilewright.stablehlo_import import idioms
from tilewright.stablehlo_import.table import put_rule, rule

LARGEST = 3.4028234663852886e38
"""Of f32, in which kernels compute."""

# StableHLO's name: the language's, of one operand.
NAMED = {
    "abs": "abs",
    "exponential": "exp",
    "log": "log",
    "logistic": "sigmoid",
    "rsqrt": "rsqrt",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "chlo.erf": "erf",
}

# name: what it is of x
# fmt: off
UNARY: dict[str, Callable[[Graph, Node], Node]] = {
    "negate":                lambda to, x: to.negative(x),
    "exponential_minus_one": lambda to, x: to.shifted(to.call("exp", x), -1),
    "log_plus_one":          lambda to, x: to.call("log", to.shifted(x, 1)),
    "chlo.square":           lambda to, x: Node("mul", (x, x)),
    "chlo.erfc":             lambda to, x: to.shifted(to.negative(to.call("erf", x)), 1),
    "chlo.sinh":             lambda to, x: to.scaled(Node("sub", (to.call("exp", x), to.call("exp", to.negative(x)))), 0.5),
    "chlo.cosh":             lambda to, x: to.scaled(Node("add", (to.call("exp", x), to.call("exp", to.negative(x)))), 0.5),
}
# fmt: on


def _put() -> None:
    def named(function: str) -> Callable[..., Value]:
        return lambda to, x: to.pointwise(lambda a: to.call(function, a), x, kind=x.kind if function == "abs" else "real")

    def unary(make: Callable[[Graph, Node], Node]) -> Callable[..., Value]:
        return lambda to, x: to.pointwise(lambda a: make(to, a), x)

    for name, function in NAMED.items():
        put_rule(name, named(function))
    for name, make in UNARY.items():
        put_rule(name, unary(make))


_put()


@rule("add")
def add(to: Graph, x: Value, y: Value) -> Value:
    if x.kind == y.kind == "bool":
        return elements.either(to, x, y)
    return to.pointwise(lambda a, b: idioms.total(to, a, b) or elements.total(to, a, b), x, y)


@rule("subtract")
def subtract(to: Graph, x: Value, y: Value) -> Value:
    return to.pointwise(lambda a, b: idioms.difference(to, a, b) or elements.difference(to, a, b), x, y)


@rule("multiply")
def multiply(to: Graph, x: Value, y: Value) -> Value:
    if x.node.op == "constant":
        x, y = y, x
    if y.node.op == "constant" or x.kind == y.kind == "bool":
        return elements.product(to, x, y)
    return to.pointwise(lambda a, b: idioms.product(to, a, b) or Node("mul", (a, b)), x, y)


@rule("divide")
def divide(to: Graph, x: Value, y: Value) -> Value:
    if x.kind == y.kind == "int":
        raise Refusal("a quotient of whole numbers is cut to a whole one, which is no function of the language")

    def make(a: Node, b: Node) -> Node:
        if a.op == b.op == "constant" and b.constants[0]:
            return to.constant(a.constants[0] / b.constants[0])
        if b.op == "constant" and b.constants[0] == 1:
            return a
        return idioms.quotient(to, a, b) or Node("div", (a, b))

    return to.pointwise(make, x, y, kind="real")


@rule("maximum")
def maximum(to: Graph, x: Value, y: Value) -> Value:
    if x.kind == y.kind == "bool":
        return elements.either(to, x, y)
    return _extreme(to, "max", x, y)


@rule("minimum")
def minimum(to: Graph, x: Value, y: Value) -> Value:
    if x.kind == y.kind == "bool":
        return elements.both(to, x, y)
    return _extreme(to, "min", x, y)


def _extreme(to: Graph, function: str, x: Value, y: Value) -> Value:
    neutral = -math.inf if function == "max" else math.inf

    def make(a: Node, b: Node) -> Node:
        if a.op == "constant":
            a, b = b, a
        if b.op != "constant":
            return to.call(function, a, b)
        if a.op == "constant":
            return to.constant((max if function == "max" else min)(a.constants[0], b.constants[0]))
        if b.constants[0] == neutral:
            return a
        return to.call("relu", a) if function == "max" and b.constants[0] == 0 else to.call(function, a, b)

    return to.pointwise(make, x, y)


@rule("clamp")
def clamp(to: Graph, low: Value, x: Value, high: Value) -> Value:
    ends = (low.node, high.node)
    if all(end.op == "constant" and math.isfinite(end.constants[0]) for end in ends):
        return to.pointwise(lambda a: to.call("clamp", a, constants=[end.constants[0] for end in ends]), x)
    return minimum(to, maximum(to, x, low), high)


@rule("power")
def power(to: Graph, x: Value, y: Value) -> Value:
    """Of a constant exponent, or exp(y * log(x)), which is NaN below zero also where the exponent is a whole number."""
    if y.node.op == "constant":
        return elements.power(to, x, y.node.constants[0])
    if x.node.op == "constant" and x.node.constants[0] > 0:
        return to.pointwise(lambda b: to.call("exp", to.scaled(b, math.log(x.node.constants[0]))), y, kind="real")
    return to.pointwise(lambda a, b: to.call("exp", Node("mul", (b, to.call("log", a)))), x, y, kind="real")


@rule("sign")
def sign(to: Graph, x: Value) -> Value:
    return elements.sign(to, x)


@rule("is_finite")
def is_finite(to: Graph, x: Value) -> Value:
    """Nothing is less than an infinity and beyond the largest number, so that kernels need no infinity for it."""
    return Value(to.shifted(to.negative(to.call("abs", to.real(x).node)), LARGEST), x.dims, "bool")


@rule("not")
def negation(to: Graph, x: Value) -> Value:
    if x.kind != "bool":
        raise Refusal("bits of whole numbers")
    if x.node.op == "constant":
        return _truth(to, x, not to.holds(x))
    return to.negation(x)


@rule("and")
def both(to: Graph, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        if one.kind == other.kind == "bool" and one.node.op == "constant":
            return other if to.holds(one) else one
    return elements.both(to, x, y)


@rule("or")
def either(to: Graph, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        if one.kind == other.kind == "bool" and one.node.op == "constant":
            return one if to.holds(one) else other
    return elements.either(to, x, y)


@rule("xor")
def exclusive(to: Graph, x: Value, y: Value) -> Value:
    return elements.exclusive(to, x, y)


@rule("compare")
def compare(to: Graph, x: Value, y: Value, *, comparison_direction: Any) -> Value:
    direction = comparison_direction.value.lower()
    known = _decided(to, direction, x, y)
    if known is not None:
        return _truth(to, x, known)
    if x.node.op == "select" and all(node.op == "constant" for node in (*x.node.args[1:], y.node)):
        # Of a truth value that became a number.
        yes, no = (getattr(operator, direction)(arg.constants[0], y.node.constants[0]) for arg in x.node.args[1:])
        return _truth(to, x, yes) if yes == no else Value(x.node.args[0], x.dims, "bool", negated=no)
    return elements.compared(to, direction, x, y)


def _truth(to: Graph, like: Value, holds: bool) -> Value:
    return Value(to.number(holds).node, like.dims, "bool")


def _shaped(condition: Value, like: Value) -> Value:
    """A condition of one element or of all, with the dimensions of a value."""
    return condition if condition.rank else condition.with_(dims=like.dims)


def _decided(to: Graph, direction: str, x: Value, y: Value) -> bool | None:
    """What a comparison of indices and numbers gives, if it gives the same everywhere. A number is equal to itself: over the reals there is no NaN."""
    if x.node is y.node and x.dims == y.dims:
        return direction in ("eq", "ge", "le")
    if x.kind != y.kind or x.kind == "bool":
        return None
    if x.node.op == y.node.op == "constant":
        low = high = x.node.constants[0] - y.node.constants[0]
        if math.isnan(low):
            return None
    elif x.kind == "int":
        found = to.pointwise(lambda a, b: elements.difference(to, a, b), x, y)
        places = affine(found.node)
        if places is None:
            return None
        low, high = bounds(places)
    else:
        return None
    if low > 0 or high < 0:
        return direction == "ne" or direction in (("gt", "ge") if low > 0 else ("lt", "le"))
    if low == high == 0:
        return direction in ("eq", "ge", "le")
    if low == 0 and direction in ("ge", "lt"):
        return direction == "ge"
    if high == 0 and direction in ("le", "gt"):
        return direction == "le"
    return None


@rule("select")
def select(to: Graph, condition: Value, x: Value | Refusal, y: Value | Refusal) -> Value | Refusal:
    if condition.node.op == "constant":
        return x if to.holds(condition) else y
    for chosen, other in ((x, y), (y, x)):
        if isinstance(chosen, Refusal):
            if isinstance(other, Value) and to.is_of_whole(condition.node):
                # What JAX gives where a place is outside: nobody looks there.
                return other
            raise chosen
    assert isinstance(x, Value) and isinstance(y, Value)
    if x.kind == y.kind == "bool" and x.node.op == y.node.op == "constant":
        if to.holds(x) == to.holds(y):
            return x
        return _shaped(condition if to.holds(x) else to.negation(condition), x)
    made = to.select(condition, x, y)
    return made.with_(idioms.causal(to, made.node) or made.node)


@rule("convert", "reduce_precision")
def convert(to: Graph, x: Value | Refusal, *, exponent_bits: int = 0, mantissa_bits: int = 0) -> Value | Refusal:
    """Dtypes are nothing over the reals. Whether a number may become a whole one is looked at for every result."""
    return x


@rule("optimization_barrier")
def unchanged(to: Graph, *operands: Value) -> list[Value]:
    return list(operands)
