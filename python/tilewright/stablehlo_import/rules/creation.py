"""Tensors that are made of nothing: numbers and indices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.importing.axes import fresh
from tilewright.importing.elements import total
from tilewright.importing.graph import Graph, Kind, Node, Refusal, Value
from tilewright.stablehlo_import.table import rule


@rule("constant")
def constant(to: Graph, *, value: Any, shape: tuple[int, ...]) -> Value | Refusal:
    """One number, whole numbers that are a sum of indices, each times an integer, or what is true on one side of a diagonal."""
    if isinstance(value, np.ndarray) and value.size and not any(value.strides):
        try:
            made = to.number(value.flat[0].item())
        except Refusal as nan:
            # It may stand where nobody looks, as in the choice of a condition that always holds.
            return nan
        return Value(made.node, tuple(fresh(size) for size in shape), made.kind)
    if 0 in shape:
        return to.empty(shape, "real")
    found = (_triangle(to, value) if value.dtype == np.bool_ else _counted(to, value)) if isinstance(value, np.ndarray) else None
    if found is None:
        size = "x".join(map(str, shape))
        raise Refusal(f"a table of {size} numbers, which the language has none of: make it an argument of the function")
    return found


def _counted(to: Graph, value: np.ndarray) -> Value | None:
    if not np.array_equal(value, np.trunc(value)):
        return None
    first = value[(0,) * value.ndim]
    steps = [(value[tuple(int(m == n) for m in range(value.ndim))] - first) if size > 1 else 0 for n, size in enumerate(value.shape)]
    places = _indices(value)
    if not np.array_equal(value, first + sum(step * place for step, place in zip(steps, places))):
        return None
    dims = tuple(fresh(size, "t", 1) for size in value.shape)
    node: Node = to.constant(int(first))
    for step, dim in zip(steps, dims):
        if step:
            node = total(to, node, to.scaled(to.iota(dim), int(step)))
    kind: Kind = "int" if value.dtype == np.int64 else "real"
    return Value(node, dims).with_(kind=kind)


def _indices(value: np.ndarray) -> list[np.ndarray]:
    """The index along each dimension."""
    return list(np.indices(value.shape, sparse=True))


def _triangle(to: Graph, value: np.ndarray) -> Value | None:
    """Where j - i is at most what it is at most where the table is true; or at least what it is at least."""
    dims = tuple(fresh(size, "t", 1) for size in value.shape)
    long = [n for n, dim in enumerate(dims) if dim]
    if len(long) != 2:
        return None
    i, j = (_indices(value)[n] for n in long)
    distance = Node("sub", (to.iota(dims[long[0]]), to.iota(dims[long[1]])))
    most, least = int((j - i)[value].max()), int((j - i)[value].min())
    if np.array_equal(value, j - i <= most):
        return Value(to.shifted(distance, most), dims, "bool").with_()
    if np.array_equal(value, j - i >= least):
        return Value(to.negative(to.shifted(distance, least)), dims, "bool").with_()
    return None


@rule("iota")
def iota(to: Graph, *, iota_dimension: int, shape: Sequence[int]) -> Value:
    dims = [fresh(size, "t", 1) for size in shape]
    return Value(to.iota(dims[iota_dimension]), tuple(dims), "int").with_()
