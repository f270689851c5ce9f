"""Tensors that are made of nothing: numbers and indices."""

from collections.abc import Sequence

from tilewright.importing.axes import Group, fresh
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.torch_import.rules.pointwise import logical_and
from tilewright.torch_import.table import rule


def filled(to: Graph, shape: Sequence[int], value: "Value | float") -> Value:
    made = to.value(value)
    return Value(made.node, tuple(fresh(size) for size in shape), made.kind, made.negated)


@rule("full", "new_full")
def full(to: Graph, size: Sequence[int], fill_value: float, self: Value | None = None) -> Value:
    return filled(to, size, fill_value)


@rule("full_like")
def full_like(to: Graph, self: Value, fill_value: float) -> Value:
    return Value(to.number(fill_value).node, self.dims, to.number(fill_value).kind)


@rule("zeros", "new_zeros")
def zeros(to: Graph, size: Sequence[int], self: Value | None = None) -> Value:
    return filled(to, size, 0)


@rule("ones", "new_ones")
def ones(to: Graph, size: Sequence[int], self: Value | None = None) -> Value:
    return filled(to, size, 1)


@rule("zeros_like")
def zeros_like(to: Graph, self: Value) -> Value:
    return Value(to.constant(0), self.dims, "int")


@rule("ones_like")
def ones_like(to: Graph, self: Value) -> Value:
    return Value(to.constant(1), self.dims, "int")


@rule("scalar_tensor")
def scalar_tensor(to: Graph, s: float) -> Value:
    return to.number(s)


@rule("fill.Scalar")
def fill(to: Graph, self: Value, value: float) -> Value:
    return full_like(to, self, value)


@rule("arange")
def arange(to: Graph, end: float, start: float = 0, step: float = 1) -> Value:
    count = int(-(-(end - start) // step))
    whole = all(isinstance(x, int) for x in (end, start, step))
    group = fresh(count, "t", 1)
    node = to.shifted(to.scaled(to.iota(group), step), start)
    return Value(node, (group,), "int" if whole else "real")


@rule("linspace")
def linspace(to: Graph, start: float, end: float, steps: int) -> Value:
    group: Group = fresh(steps, "t", 1)
    step = (end - start) / (steps - 1) if steps > 1 else 0
    return Value(to.shifted(to.scaled(to.iota(group), step), start), (group,))


@rule("eye")
def eye(to: Graph, n: int, m: int | None = None) -> Value:
    rows, columns = fresh(n, "i", 1), fresh(n if m is None else m, "j", 1)
    same = to.negative(to.call("abs", Node("sub", (to.iota(rows), to.iota(columns)))))
    return Value(Node("select", (same, to.constant(1), to.constant(0))), (rows, columns), "int").with_()


@rule("tril")
def tril(to: Graph, self: Value, diagonal: int = 0) -> Value:
    return _triangle(to, self, diagonal, lower=True)


@rule("triu")
def triu(to: Graph, self: Value, diagonal: int = 0) -> Value:
    return _triangle(to, self, diagonal, lower=False)


def _triangle(to: Graph, x: Value, diagonal: int, lower: bool) -> Value:
    """Row i and column j are kept where j - i is at most the diagonal, or at least it."""
    if x.rank < 2:
        raise Refusal("a triangle of a tensor with fewer than two dimensions")
    rows, columns = to.iota(x.dim(-2)), to.iota(x.dim(-1))
    distance = Node("sub", (rows, columns)) if lower else Node("sub", (columns, rows))
    inside = Value(to.shifted(distance, diagonal if lower else -diagonal), x.dims, "bool")
    if x.kind == "bool":
        is_true = x.node.op == "constant" and to.holds(x)
        return inside if is_true else logical_and(to, inside, x)
    return to.select(inside, x, 0 if x.kind == "int" else 0.0)
