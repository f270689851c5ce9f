"""Sums, products, maxima and what is made of them."""

from collections.abc import Sequence

from tilewright.importing.axes import Group, extent
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.importing.places import joined
from tilewright.importing.reductions import extreme, extremes, running
from tilewright.torch_import.table import rule

Dims = Sequence[int] | int | None


def places(rank: int, dim: Dims) -> list[int]:
    """The dimensions that are meant; all where none is named."""
    listed = [dim] if isinstance(dim, int) else list(dim or ())
    return sorted({at % rank if rank else 0 for at in listed}) if listed else list(range(rank))


def over(x: Value, dim: Dims) -> Group:
    return tuple(axis for at in places(x.rank, dim) if x.rank for axis in x.dim(at))


def without(x: Value, dim: Dims, keepdim: bool) -> list[Group]:
    """The dimensions that are left."""
    gone = set(places(x.rank, dim))
    return [() if at in gone else group for at, group in enumerate(x.dims) if keepdim or at not in gone]


def reduced(to: Graph, function: str, x: Value, dim: Dims, keepdim: bool) -> Value:
    x = to.real(x)
    return x.with_(to.reduced(function, x.node, over(x, dim)), without(x, dim, keepdim), kind="real" if function == "mean" else x.kind)


@rule("sum")
def sum(to: Graph, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return reduced(to, "sum", self, dim, keepdim)


@rule("mean")
def mean(to: Graph, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return reduced(to, "mean", self, dim, keepdim)


@rule("amax", "max.default")
def amax(to: Graph, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return reduced(to, "max", self, dim, keepdim)


@rule("amin", "min.default")
def amin(to: Graph, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return reduced(to, "min", self, dim, keepdim)


def _extreme(to: Graph, function: str, x: Value, dim: int | None, keepdim: bool) -> tuple[Value, Value]:
    """With the first place; PyTorch promises no more of `max` and `min` than that it is one of those where the element is."""
    kept = without(x, dim, keepdim)
    if dim is None or not x.rank:
        x, dim = x.with_(dims=[tuple(axis for own in x.dims for axis in own)]), 0
    value, place = extreme(to, function, to.real(x), places(x.rank, dim)[0])
    return value.with_(dims=kept), place.with_(dims=kept)


@rule("max.dim")
def max_dim(to: Graph, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme(to, "max", self, dim, keepdim)


@rule("min.dim")
def min_dim(to: Graph, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme(to, "min", self, dim, keepdim)


@rule("argmax")
def argmax(to: Graph, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _extreme(to, "max", self, dim, keepdim)[1]


@rule("argmin")
def argmin(to: Graph, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _extreme(to, "min", self, dim, keepdim)[1]


@rule("topk")
def topk(to: Graph, self: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    """Of equal elements the first ones, where PyTorch promises none; and always sorted."""
    (at,) = places(self.rank, dim)
    found = extremes(to, "max" if largest else "min", self, at, k)
    values, where = ([y.with_(dims=[*y.dims[:at], (), *y.dims[at:]]) for y in several] for several in zip(*found))
    return joined(to, values, at), joined(to, where, at)


NO_PLACE = Refusal("where the maximum of a window is")


@rule("any")
def any_true(to: Graph, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    x = to.real(to.truth(self))
    found = reduced(to, "max", x, dim, keepdim)
    return Value(to.shifted(found.node, -1), found.dims, "bool")


@rule("all")
def all_true(to: Graph, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    x = to.real(to.truth(self))
    found = reduced(to, "min", x, dim, keepdim)
    return Value(to.shifted(found.node, -1), found.dims, "bool")


@rule("logsumexp")
def logsumexp(to: Graph, self: Value, dim: Dims, keepdim: bool = False) -> Value:
    axes = [axis for axis in over(self, dim)]
    x = to.repeated(self.node, axes)
    return self.with_(to.call("logsumexp", x, over=axes, removes=True) if axes else x, without(self, dim, keepdim), kind="real")


def _variance(to: Graph, x: Value, dim: Dims, correction: float | None, unbiased: bool) -> Node:
    """The sum of squared distances from the mean, divided by the number of elements less the correction."""
    axes = over(x, dim)
    less = correction if correction is not None else (1.0 if unbiased else 0.0)
    distance = Node("sub", (x.node, to.reduced("mean", x.node, axes)))
    square = Node("mul", (distance, distance))
    if less == 0:
        return to.reduced("mean", square, axes)
    count = extent(axes) - less
    if count <= 0:
        raise Refusal(f"a variance of {extent(axes)} elements with the correction {less}")
    return Node("div", (to.reduced("sum", square, axes), to.constant(count)))


@rule("var")
def var(to: Graph, self: Value, dim: Dims = None, correction: float | None = None, unbiased: bool = True, keepdim: bool = False) -> Value:
    return self.with_(_variance(to, self, dim, correction, unbiased), without(self, dim, keepdim))


@rule("std")
def std(to: Graph, self: Value, dim: Dims = None, correction: float | None = None, unbiased: bool = True, keepdim: bool = False) -> Value:
    return self.with_(to.call("sqrt", _variance(to, self, dim, correction, unbiased)), without(self, dim, keepdim))


@rule("var_mean")
def var_mean(
    to: Graph, self: Value, dim: Dims = None, correction: float | None = None, unbiased: bool = True, keepdim: bool = False
) -> tuple[Value, Value]:
    return var(to, self, dim, correction, unbiased, keepdim), mean(to, self, dim, keepdim)


@rule("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def vector_norm(to: Graph, self: Value, ord: float = 2, dim: Dims = None, keepdim: bool = False, p: float | None = None) -> Value:
    kind, axes, x = ord if p is None else p, over(self, dim), self.node
    if kind == 2:
        node = to.call("sqrt", to.reduced("sum", Node("mul", (x, x)), axes))
    elif kind == 1:
        node = to.reduced("sum", to.call("abs", x), axes)
    elif kind == float("inf"):
        node = to.reduced("max", to.call("abs", x), axes)
    elif kind == float("-inf"):
        node = to.reduced("min", to.call("abs", x), axes)
    elif kind > 0:
        power = to.call("exp", to.scaled(to.call("log", to.call("abs", x)), kind))
        node = to.call("exp", to.scaled(to.call("log", to.reduced("sum", power, axes)), 1 / kind))
    else:
        raise Refusal(f"the norm of order {kind}")
    return self.with_(node, without(self, dim, keepdim))


@rule("softmax", "_softmax")
def softmax(to: Graph, self: Value, dim: int) -> Value:
    return _along(to, "softmax", self, dim)


@rule("log_softmax", "_log_softmax")
def log_softmax(to: Graph, self: Value, dim: int) -> Value:
    return _along(to, "log_softmax", self, dim)


def _along(to: Graph, function: str, x: Value, dim: int) -> Value:
    axes = over(x, dim)
    if not axes:
        return x.with_(to.constant(1 if function == "softmax" else 0))
    for axis in axes:
        axis.hint("j", 2)
    return x.with_(to.call(function, to.repeated(x.node, axes), over=axes))


@rule("prod")
def prod(to: Graph, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return reduced(to, "prod", to.real(self), dim, keepdim)


@rule("cumprod")
def cumprod(to: Graph, self: Value, dim: int) -> Value:
    (at,) = places(self.rank, dim)
    return running(to, "prod", to.real(self), at)


@rule("cumsum")
def cumsum(to: Graph, self: Value, dim: int) -> Value:
    (at,) = places(self.rank, dim)
    return running(to, "sum", to.real(self), at)
