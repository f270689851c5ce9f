"""Functions of elements, comparisons and choices."""

import math
from collections.abc import Callable

from tilewright.importing.elements import COMPARISONS, Operand, both, compared, difference, either, exclusive, power, product, sign, total
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.torch_import.table import put_rule, rule

# PyTorch's name, and the language's: one operand, no arguments.
NAMED = ["abs", "erf", "exp", "hardswish", "log", "mish", "relu", "rsqrt", "selu", "sigmoid", "silu", "sqrt", "tanh"]

# name: what it is of x
# fmt: off
UNARY: dict[str, Callable[[Graph, Node], Node]] = {
    "neg":         lambda to, x: to.negative(x),
    "reciprocal":  lambda to, x: Node("div", (to.constant(1), x)),
    "square":      lambda to, x: Node("mul", (x, x)),
    "exp2":        lambda to, x: to.call("exp", to.scaled(x, math.log(2))),
    "expm1":       lambda to, x: to.shifted(to.call("exp", x), -1),
    "log1p":       lambda to, x: to.call("log", to.shifted(x, 1)),
    "log2":        lambda to, x: to.scaled(to.call("log", x), 1 / math.log(2)),
    "log10":       lambda to, x: to.scaled(to.call("log", x), 1 / math.log(10)),
    "log_sigmoid": lambda to, x: to.negative(to.call("softplus", to.negative(x))),
    "relu6":       lambda to, x: to.call("clamp", x, constants=(0, 6)),
    "hardsigmoid": lambda to, x: Node("div", (to.call("clamp", to.shifted(x, 3), constants=(0, 6)), to.constant(6))),
    "softsign":    lambda to, x: Node("div", (x, to.shifted(to.call("abs", x), 1))),
    "erfc":        lambda to, x: to.shifted(to.negative(to.call("erf", x)), 1),
    "sinh":        lambda to, x: to.scaled(Node("sub", (to.call("exp", x), to.call("exp", to.negative(x)))), 0.5),
    "cosh":        lambda to, x: to.scaled(Node("add", (to.call("exp", x), to.call("exp", to.negative(x)))), 0.5),
}

# fmt: on


def _put() -> None:
    def named(function: str) -> Callable[..., Value]:
        return lambda to, self: to.pointwise(
            lambda x: to.call(function, x), self, kind="int" if function in ("abs", "relu") and self.kind == "int" else "real"
        )

    def unary(make: Callable[[Graph, Node], Node]) -> Callable[..., Value]:
        return lambda to, self: to.pointwise(lambda x: make(to, x), self)

    def comparison(direction: str) -> Callable[..., Value]:
        return lambda to, self, other: compared(to, direction, self, other)

    for name in NAMED:
        put_rule(name, named(name))
    for name, make in UNARY.items():
        put_rule(name, unary(make))
    for name in COMPARISONS:
        put_rule(name, comparison(name))


_put()


@rule("add")
def add(to: Graph, self: Operand, other: Operand, alpha: float = 1) -> Value:
    return to.pointwise(lambda x, y: total(to, x, to.scaled(y, alpha)), self, other)


@rule("sub")
def sub(to: Graph, self: Operand, other: Operand, alpha: float = 1) -> Value:
    return to.pointwise(lambda x, y: difference(to, x, to.scaled(y, alpha)), self, other)


@rule("rsub")
def rsub(to: Graph, self: Operand, other: Operand, alpha: float = 1) -> Value:
    return to.pointwise(lambda x, y: difference(to, y, to.scaled(x, alpha)), self, other)


@rule("mul")
def mul(to: Graph, self: Operand, other: Operand) -> Value:
    return product(to, self, other)


@rule("div")
def div(to: Graph, self: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise Refusal("a quotient that is rounded to a whole number is no function of the language")
    return to.pointwise(lambda x, y: Node("div", (x, y)), self, other, kind="real")


@rule("xlogy")
def xlogy(to: Graph, self: Operand, other: Operand) -> Value:
    """x * log(y), and 0 where x is."""

    def make(x: Node, y: Node) -> Node:
        return Node("select", (to.negative(to.call("abs", x)), to.constant(0), Node("mul", (x, to.call("log", y)))))

    return to.pointwise(make, self, other, kind="real")


@rule("maximum", "max.other")
def maximum(to: Graph, self: Value, other: Value) -> Value:
    return to.pointwise(lambda x, y: to.call("max", x, y), self, other)


@rule("minimum", "min.other")
def minimum(to: Graph, self: Value, other: Value) -> Value:
    return to.pointwise(lambda x, y: to.call("min", x, y), self, other)


@rule("clamp", "hardtanh")
def clamp(
    to: Graph, self: Value, min: Operand | None = None, max: Operand | None = None, min_val: float | None = None, max_val: float | None = None
) -> Value:
    low, high = (min_val, max_val) if min is None and max is None else (min, max)
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        return to.pointwise(lambda x: to.call("clamp", x, constants=(low, high)), self)
    if low is not None:
        self = maximum(to, self, to.value(low))
    return self if high is None else minimum(to, self, to.value(high))


@rule("clamp_min")
def clamp_min(to: Graph, self: Value, min: Operand) -> Value:
    return maximum(to, self, to.value(min))


@rule("clamp_max")
def clamp_max(to: Graph, self: Value, max: Operand) -> Value:
    return minimum(to, self, to.value(max))


@rule("pow.Tensor_Scalar")
def power_of_number(to: Graph, self: Value, exponent: float) -> Value:
    return power(to, self, exponent)


@rule("pow.Scalar")
def exponential(to: Graph, self: float, exponent: Value) -> Value:
    if self <= 0:
        raise Refusal("a power of a number that is not positive")
    return to.pointwise(lambda x: to.call("exp", to.scaled(x, math.log(self))), exponent)


@rule("pow.Tensor_Tensor")
def general_power(to: Graph, self: Value, exponent: Value) -> Value:
    return to.pointwise(lambda x, y: to.call("exp", Node("mul", (y, to.call("log", x)))), self, exponent)


@rule("sign", "sgn")
def sign_of(to: Graph, self: Value) -> Value:
    return sign(to, self)


@rule("gelu")
def gelu(to: Graph, self: Value, approximate: str = "none") -> Value:
    return to.pointwise(lambda x: to.call("gelu_erf" if approximate == "none" else "gelu", x), self)


@rule("elu")
def elu(to: Graph, self: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    """scale * (x above zero, and alpha * (exp(input_scale * x) - 1) below)."""

    def make(x: Node) -> Node:
        if input_scale == 1:
            return to.scaled(to.call("elu", x, constants=() if alpha == 1 else (alpha,)), scale)
        below = to.scaled(to.shifted(to.call("exp", to.scaled(to.call("min", x, to.constant(0)), input_scale)), -1), alpha)
        return to.scaled(Node("add", (to.call("relu", x), below)), scale)

    return to.pointwise(make, self)


@rule("celu")
def celu(to: Graph, self: Value, alpha: float = 1) -> Value:
    return elu(to, self, alpha=alpha, input_scale=1 / alpha)


@rule("leaky_relu")
def leaky_relu(to: Graph, self: Value, negative_slope: float = 0.01) -> Value:
    return to.pointwise(lambda x: to.call("leaky_relu", x, constants=() if negative_slope == 0.01 else (negative_slope,)), self)


@rule("prelu")
def prelu(to: Graph, self: Value, weight: Value) -> Value:
    if weight.rank == 1 and self.rank > 1:
        weight = weight.with_(dims=[(), weight.dims[0], *[()] * (self.rank - 2)])
    return to.select(_is_positive(to, self), self, mul(to, weight, self))


@rule("softplus")
def softplus(to: Graph, self: Value, beta: float = 1, threshold: float = 20) -> Value:
    """log(1 + exp(beta * x)) / beta; PyTorch gives x itself from the threshold on."""

    def make(x: Node) -> Node:
        scaled = to.scaled(x, beta)
        soft = to.call("softplus", scaled)
        return Node("select", (to.shifted(scaled, -threshold), x, soft if beta == 1 else Node("div", (soft, to.constant(beta)))))

    return to.pointwise(make, self)


@rule("threshold")
def threshold(to: Graph, self: Value, threshold: float, value: float) -> Value:
    above = to.pointwise(lambda x: to.negative(to.shifted(x, -threshold)), self)
    return to.select(Value(above.node, above.dims, "bool", True), self, value)


@rule("hardshrink")
def hardshrink(to: Graph, self: Value, lambd: float = 0.5) -> Value:
    inside = to.pointwise(lambda x: to.shifted(to.negative(to.call("abs", x)), lambd), self)
    return to.select(Value(inside.node, inside.dims, "bool"), 0.0, self)


@rule("softshrink")
def softshrink(to: Graph, self: Value, lambd: float = 0.5) -> Value:
    return to.pointwise(lambda x: Node("sub", (x, to.call("clamp", x, constants=(-lambd, lambd)))), self)


@rule("glu")
def glu(to: Graph, self: Value, dim: int = -1) -> Value:
    from tilewright.torch_import.rules.views import split_evenly

    value, gate = split_evenly(to, self, 2, dim)
    return to.pointwise(lambda x, y: Node("mul", (x, to.call("sigmoid", y))), value, gate)


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(to: Graph, condition: Value, self: Operand, other: Operand) -> Value:
    return to.select(condition, self, other)


@rule("masked_fill")
def masked_fill(to: Graph, self: Value, mask: Value, value: Operand) -> Value:
    return to.select(to.negation(to.truth(mask)), self, value)


@rule("logical_not", "bitwise_not")
def logical_not(to: Graph, self: Value) -> Value:
    if self.kind != "bool":
        raise Refusal("bits of whole numbers")
    return to.negation(self)


@rule("logical_and", "bitwise_and", "__and__")
def logical_and(to: Graph, self: Value, other: Value) -> Value:
    return both(to, self, other)


@rule("logical_or", "bitwise_or", "__or__")
def logical_or(to: Graph, self: Value, other: Value) -> Value:
    return either(to, self, other)


@rule("logical_xor", "bitwise_xor")
def logical_xor(to: Graph, self: Value, other: Value) -> Value:
    return exclusive(to, self, other)


def _is_positive(to: Graph, x: Value) -> Value:
    return Value(to.negative(x.node), x.dims, "bool", True)


@rule("_to_copy", "to", "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh", "lift", "float", "double", "half", "bfloat16")
def same(to: Graph, self: Value) -> Value:
    """Dtypes, copies and layouts: nothing over the reals. Whether a number may become a whole one is looked at for every result."""
    return self


@rule("type_as", "to.other")
def same_as(to: Graph, self: Value, other: Value) -> Value:
    return self


@rule("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def dropout(to: Graph, input: Value, p: float = 0.5, train: bool = False) -> Value:
    if train and p > 0:
        raise Refusal("dropout in training draws numbers: call .eval() on the module first")
    return input
