"""Functions of the language that JAX takes apart, found again: programs read better, and say the same.

Each looks at the arguments of an operation that is about to be written, and gives another one in its stead, or nothing. That the parts of a function are
the same value is told by their being one node: the module has no common subexpressions.
"""

import math

from tilewright.importing.axes import Group, extent, leaves
from tilewright.importing.graph import Graph, Node


def product(to: Graph, x: Node, y: Node) -> Node | None:
    """`silu(x)`, `gelu(x)`, `gelu_erf(x)`, and norms of `x * rsqrt(mean(x * x; a) + eps)`."""
    for one, other in ((x, y), (y, x)):
        if other.op == "sigmoid" and other.args[0] is one:
            return to.call("silu", one)
        if other.op == "rsqrt":
            found = _norm(to, one, other.args[0])
            if found is not None:
                return found
        if other.op == "mul" and other.args[0].op == "rsqrt":
            found = _norm(to, one, other.args[0].args[0])
            if found is not None:
                return Node("mul", (found, other.args[1]))
        if other.op == "mul" and _like(other, _gate(to, one)):
            return to.call("gelu", one)
        if one.op == "mul" and _is(one.args[1], 0.5) and _like(other, _erfc(to, one.args[0])):
            return to.call("gelu_erf", one.args[0])
    return None


def _gate(to: Graph, x: Node) -> Node:
    """0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))."""
    cubic = to.scaled(Node("mul", (Node("mul", (x, x)), x)), 0.044715)
    return to.scaled(to.shifted(to.call("tanh", to.scaled(Node("add", (x, cubic)), math.sqrt(2 / math.pi))), 1), 0.5)


def _erfc(to: Graph, x: Node) -> Node:
    """1 - erf(-x / sqrt(2))."""
    return to.shifted(to.negative(to.call("erf", to.scaled(to.negative(x), math.sqrt(0.5)))), 1)


def quotient(to: Graph, x: Node, y: Node) -> Node | None:
    """`sigmoid(x)`, `softmax(x; a)`, `mean(x; a)`, and norms of `x / sqrt(mean(x * x; a) + eps)`."""
    if _is(x, 1) and y.op == "add" and _is(y.args[1], 1) and y.args[0].op == "exp":
        return to.call("sigmoid", to.negative(y.args[0].args[0]))
    if y.op == "sum" and y.args[0] is x and x.op == "exp" and _without_maximum(x.args[0], y.over):
        return to.call("softmax", x.args[0].args[0], over=_hinted(y.over))
    if x.op == "sum" and _is(y, extent(x.over)):
        return to.call("mean", x.args[0], over=x.over, removes=True)
    return _norm(to, x, y.args[0]) if y.op == "sqrt" else None


def total(to: Graph, x: Node, y: Node) -> Node | None:
    """`softplus(x)`, which is `max(x, 0) + log(1 + exp(-abs(x)))`."""
    if x.op != "relu":
        return None
    rest = to.call("log", to.shifted(to.call("exp", to.negative(to.call("abs", x.args[0]))), 1))
    return to.call("softplus", x.args[0]) if _like(y, rest) else None


def difference(to: Graph, x: Node, y: Node) -> Node | None:
    """`log_softmax(x; a)`, which is `x - max(x; a) - log(sum(exp(x - max(x; a)); a))`."""
    if y.op != "log" or y.args[0].op != "sum":
        return None
    total = y.args[0]
    if total.args[0].op == "exp" and total.args[0].args[0] is x and _without_maximum(x, total.over):
        return to.call("log_softmax", x.args[0], over=_hinted(total.over))
    return None


def causal(to: Graph, x: Node) -> Node | None:
    """`causal(x; i, j)`, which is `select(iota(i) - iota(j) + (size(j) - size(i)), x, -inf)`."""
    if x.op != "select" or x.args[0].op != "sub" or not _is(x.args[2], float("-inf")):
        return None
    row, column = x.args[0].args
    shift = 0.0
    if row.op == "add" and row.args[1].op == "constant":
        row, shift = row.args[0], row.args[1].constants[0]
    if not row.op == column.op == "iota":
        return None
    i, j = leaves(row.over), leaves(column.over)
    own = x.args[1].axes()
    if len(i) != 1 or len(j) != 1 or j[0].extent - i[0].extent != shift or not {i[0], j[0]} <= set(own):
        return None
    for axis, name in ((i[0], "i"), (j[0], "j")):
        axis.pinned = True
        axis.hint(name, 4)
    return Node("causal", (x.args[1],), over=(i[0], j[0]))


def _norm(to: Graph, x: Node, shifted: Node) -> Node | None:
    """x divided by the root of `mean(x * x; a) + eps`."""
    if shifted.op != "add" or shifted.args[0].op != "mean" or shifted.args[1].op != "constant":
        return None
    mean, eps = shifted.args[0], shifted.args[1].constants[0]
    if mean.args[0].op != "mul" or any(arg is not x for arg in mean.args[0].args):
        return None
    if x.op == "sub" and x.args[1].op == "mean" and x.args[1].args[0] is x.args[0] and _same(x.args[1].over, mean.over):
        return to.call("layer_norm", x.args[0], over=mean.over, constants=(eps,))
    return to.call("rms_norm", x, over=mean.over, constants=(eps,))


def _without_maximum(x: Node, over: Group) -> bool:
    return x.op == "sub" and x.args[1].op == "max" and x.args[1].removes and x.args[1].args == (x.args[0],) and _same(x.args[1].over, over)


def _same(one: Group, other: Group) -> bool:
    return set(leaves(one)) == set(leaves(other))


def _like(one: Node, other: Node) -> bool:
    """Whether two expressions of elements are written alike."""
    if one is other:
        return True
    same = one.op == other.op and one.constants == other.constants and not (one.over or one.index or one.own) and len(one.args) == len(other.args)
    return same and all(map(_like, one.args, other.args))


def _is(x: Node, value: float) -> bool:
    return x.op == "constant" and x.constants[0] == value


def _hinted(over: Group) -> Group:
    for axis in over:
        axis.hint("j", 3)
    return over
