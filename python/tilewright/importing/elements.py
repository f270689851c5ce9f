"""Functions of elements, comparisons and choices."""

import math
from collections.abc import Callable

from tilewright.importing.graph import Graph, Node, Refusal, Value

Operand = Value | float | int | bool

# fmt: off
# name: of whole numbers the one that is not negative where `x name y` is true; of others the same, or with True where it is false
COMPARISONS: dict[str, tuple[Callable[[Graph, Node, Node], Node], Callable[[Graph, Node, Node], Node], bool]] = {
    "ge": (lambda to, x, y: difference(to, x, y),                                  lambda to, x, y: difference(to, x, y), False),
    "le": (lambda to, x, y: difference(to, y, x),                                  lambda to, x, y: difference(to, y, x), False),
    "gt": (lambda to, x, y: to.shifted(difference(to, x, y), -1),                  lambda to, x, y: difference(to, y, x), True),
    "lt": (lambda to, x, y: to.shifted(difference(to, y, x), -1),                  lambda to, x, y: difference(to, x, y), True),
    "eq": (lambda to, x, y: unlike(to, x, y),                                lambda to, x, y: unlike(to, x, y), False),
    "ne": (lambda to, x, y: to.shifted(to.call("abs", difference(to, x, y)), -1),  lambda to, x, y: unlike(to, x, y), True),
}
# fmt: on


def compared(to: Graph, direction: str, x: Operand, y: Operand) -> Value:
    """Whether `x` is `ge`, `le`, `gt`, `lt`, `eq` or `ne` to `y`."""
    of_whole, of_any, is_negated = COMPARISONS[direction]
    x, y = to.real(x), to.real(y)
    for operand in (x, y):
        # The difference of two infinities is NaN, of which nothing holds.
        if operand.node.op == "constant" and math.isinf(operand.node.constants[0]):
            raise Refusal("a comparison with an infinity")
    is_whole = x.kind == y.kind == "int"
    found = to.pointwise(lambda a, b: (of_whole if is_whole else of_any)(to, a, b), x, y)
    return Value(found.node, found.dims, "bool", is_negated and not is_whole)


def unlike(to: Graph, x: Node, y: Node) -> Node:
    """How far apart two numbers are, negated: not negative where they are the same."""
    return to.negative(to.call("abs", difference(to, x, y)))


def total(to: Graph, x: Node, y: Node) -> Node:
    """x + y."""
    if x.op == "constant":
        x, y = y, x
    return to.shifted(x, y.constants[0]) if y.op == "constant" else Node("add", (x, y))


def difference(to: Graph, x: Node, y: Node) -> Node:
    """x - y."""
    return to.shifted(x, -y.constants[0]) if y.op == "constant" else Node("sub", (x, y))


def product(to: Graph, x: Operand, y: Operand) -> Value:
    """x * y; of truth values, whether both are true."""
    x, y = to.value(x), to.value(y)
    if x.kind == y.kind == "bool":
        return both(to, x, y)
    # A product with a truth value is a choice, but for an infinite or undefined factor, which it would hide.
    return to.pointwise(lambda a, b: to.scaled(a, b.constants[0]) if b.op == "constant" else Node("mul", (a, b)), x, y)


def power(to: Graph, x: Value, exponent: float) -> Value:
    """Whole powers as products, halves as roots; any other is exp(exponent * log(x)), which is NaN below zero as PyTorch's is."""
    if exponent == 0:
        return to.pointwise(lambda x: to.constant(1), x)
    size = abs(exponent)
    if size == 0.5:
        return to.pointwise(lambda x: to.call("sqrt" if exponent > 0 else "rsqrt", x), x)
    if size == int(size) and size <= 64:
        return to.pointwise(lambda x: _whole_power(to, x, int(exponent)), x)
    return to.pointwise(lambda x: to.call("exp", to.scaled(to.call("log", x), exponent)), x)


def _whole_power(to: Graph, x: Node, exponent: int) -> Node:
    found: Node | None = None
    for bit in bin(abs(exponent))[2:]:
        found = None if found is None else Node("mul", (found, found))
        if bit == "1":
            found = x if found is None else Node("mul", (found, x))
    assert found is not None
    return Node("div", (to.constant(1), found)) if exponent < 0 else found


def sign(to: Graph, x: Value) -> Value:
    one, none, less = to.constant(1), to.constant(0), to.constant(-1)
    return to.pointwise(lambda a: Node("select", (to.negative(to.call("abs", a)), none, Node("select", (a, one, less)))), x)


def both(to: Graph, x: Value, y: Value) -> Value:
    """Whether both are true."""
    return _both(to, x, y, negate=False)


def either(to: Graph, x: Value, y: Value) -> Value:
    """Whether one of them is true: not (not x and not y)."""
    return to.negation(_both(to, x, y, negate=True))


def exclusive(to: Graph, x: Value, y: Value) -> Value:
    """Whether one of them is true, and the other is not."""
    if not x.kind == y.kind == "bool":
        raise Refusal("bits of whole numbers")
    return to.select(x, to.negation(y), y)


def _both(to: Graph, x: Value, y: Value, negate: bool) -> Value:
    """x and y, or not x and not y: true where the smaller of two numbers is not negative; or, where both are told by being negative, where the
    larger one is."""
    if not x.kind == y.kind == "bool":
        raise Refusal("bits of whole numbers")
    if negate:
        x, y = to.negation(x), to.negation(y)
    is_negated = x.negated and y.negated
    (a, b), dims = to.aligned([x, y])
    one, other = (a.node, b.node) if is_negated else (to.condition(a), to.condition(b))
    return Value(to.call("max" if is_negated else "min", one, other), dims, "bool", is_negated)
