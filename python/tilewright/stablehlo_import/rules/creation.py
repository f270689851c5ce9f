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
    """One number, or whole numbers that are a sum of indices, each times an integer."""
    if isinstance(value, np.ndarray) and value.size and not any(value.strides):
        try:
            made = to.number(value.flat[0].item())
        except Refusal as nan:
            # It may stand where nobody looks, as in the choice of a condition that always holds.
            return nan
        return Value(made.node, tuple(fresh(size) for size in shape), made.kind)
    if 0 in shape:
        return to.empty(shape, "real")
    found = _counted(to, value) if isinstance(value, np.ndarray) else None
    if found is None:
        size = "x".join(map(str, shape))
        raise Refusal(f"a table of {size} numbers, which the language has none of: make it an argument of the function")
    return found


def _counted(to: Graph, value: np.ndarray) -> Value | None:
    if value.dtype == np.bool_ or not np.array_equal(value, np.trunc(value)):
        return None
    first = value[(0,) * value.ndim]
    steps = [(value[tuple(int(m == n) for m in range(value.ndim))] - first) if size > 1 else 0 for n, size in enumerate(value.shape)]
    places = np.indices(value.shape, sparse=True)
    if not np.array_equal(value, first + sum(step * place for step, place in zip(steps, places))):
        return None
    dims = tuple(fresh(size, "t", 1) for size in value.shape)
    node: Node = to.constant(int(first))
    for step, dim in zip(steps, dims):
        if step:
            node = total(to, node, to.scaled(to.iota(dim), int(step)))
    kind: Kind = "int" if value.dtype == np.int64 else "real"
    return Value(node, dims).with_(kind=kind)


@rule("iota")
def iota(to: Graph, *, iota_dimension: int, shape: Sequence[int]) -> Value:
    dims = [fresh(size, "t", 1) for size in shape]
    return Value(to.iota(dims[iota_dimension]), tuple(dims), "int").with_()
