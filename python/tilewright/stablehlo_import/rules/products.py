"""Sums of products."""

import re
from collections.abc import Sequence
from typing import Any

from tilewright.importing.graph import Graph, Value
from tilewright.importing.products import contracted
from tilewright.stablehlo_import.rules.places import transposed
from tilewright.stablehlo_import.table import rule


@rule("dot_general")
def dot_general(to: Graph, x: Value, y: Value, *, dot_dimension_numbers: Any, scope: Sequence[str]) -> Value:
    numbers = dot_dimension_numbers
    batch = list(zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions))
    summed = list(zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions))
    of_x = [n for n in range(x.rank) if n not in {a for a, _ in [*batch, *summed]}]
    of_y = [n for n in range(y.rank) if n not in {b for _, b in [*batch, *summed]}]
    order = _lettered(x, y, [*batch, *summed], scope)
    if order is None:
        # What is summed and has a name is that of a product before: the second one of attention.
        is_first = not any(weight > 1 for a, b in summed for axis in (*x.dim(a), *y.dim(b)) for weight, _ in axis.root().hints)
        _hint(x, [a for a, _ in summed], "d" if batch else "m")
        _hint(x, of_x, ("i" if is_first else "e") if batch else "")
        _hint(y, of_y, ("j" if is_first else "e") if batch else "n")
    across = {axis for n in of_y for axis in y.dim(n)}
    if order == "swapped" or any(axis in across for a, _ in summed for axis in x.dim(a)):
        # As it was written, and so that what gets another name is the axis that is summed, and not one of the result.
        made = contracted(to, y, x, [(b, a) for a, b in batch], of_y, of_x, [(b, a) for a, b in summed])
        first, second = len(batch), len(batch) + len(of_y)
        return transposed(made, [*range(first), *range(second, made.rank), *range(first, second)])
    return contracted(to, x, y, batch, of_x, of_y, summed)


def _lettered(x: Value, y: Value, pairs: Sequence[tuple[int, int]], scope: Sequence[str]) -> str | None:
    """Names axes by the letters of `einsum`, whose equation is a scope of JAX, and tells whether it has the operands in this order; nothing where it is
    not this product's."""
    terms = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->[a-zA-Z]*", scope[-1].replace(" ", "")) if scope else None
    if terms is None:
        return None
    for one, other, order in ((terms[1], terms[2], "same"), (terms[2], terms[1], "swapped")):
        if (len(one), len(other)) == (x.rank, y.rank) and all(one[a] == other[b] for a, b in pairs) and len(pairs) == len({*one} & {*other}):
            for value, term in ((x, one), (y, other)):
                for n, letter in enumerate(term):
                    _hint(value, [n], letter.lower(), 5)
            return order
    return None


def _hint(x: Value, dims: Sequence[int], name: str, weight: int = 2) -> None:
    """Names the longest of the dimensions, unless it has a name as good."""
    longest = max(dims, key=lambda dim: x.shape[dim], default=None)
    for axis in x.dim(longest) if longest is not None and name else ():
        if not any(given >= weight for given, _ in axis.root().hints):
            axis.hint(name, weight)


@rule("dot")
def dot(to: Graph, x: Value, y: Value) -> Value:
    """Of matrices and vectors."""
    return contracted(to, x, y, [], list(range(x.rank - 1)), list(range(1, y.rank)), [(x.rank - 1, 0)])
