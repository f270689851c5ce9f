"""What a walk over a framework's operations needs, whichever they are."""

import math
from collections.abc import Sequence
from typing import Any

from tilewright.importing.axes import Axis, Group, leaves
from tilewright.importing.graph import Graph, Kind, Node, Refusal, Value

LANGUAGE = ("f32", "f16", "bf16", "i32", "i64", "bool")
"""Dtypes that parameters and results of the language have."""

INPUT_HINTS = {1: "m", 2: "tm", 3: "btm", 4: "bhtd", 5: "bcthw"}
"""What the dimensions of an input are called where nothing else says it."""


class _Poison:
    """What comes of an operation that was not imported."""

    def __repr__(self) -> str:
        return "what was not imported"


POISON = _Poison()


def listed(dtypes: Sequence[str]) -> str:
    """As a sentence has them."""
    return f"{', '.join(dtypes[:-1])} or {dtypes[-1]}"


def flat(values: Sequence[Any]) -> list[Any]:
    """What the lists among the values hold, and the others."""
    found: list[Any] = []
    for value in values:
        found += flat(value) if isinstance(value, (list, tuple)) else [value]
    return found


def input_hints(rank: int) -> list[str]:
    """What the dimensions of an input might be called."""
    return list(INPUT_HINTS.get(rank, "")) or [f"a{n}" for n in range(rank)]


def of_kind(to: Graph, found: Value, shape: tuple[int, ...], kind: Kind, framework: str, is_last: bool = False) -> Value:
    """What a rule made, with the shape that the framework says, and as a number where that has one. A number that is cut to a whole one is one where it
    `is_last`, a result and nothing else: results lose their fractions where they are stored."""
    if found.shape != shape:
        raise AssertionError(f"a rule gives the shape {found.shape}, and {framework} {shape}")
    if kind == "bool":
        return to.truth(found)
    found = to.real(found)
    if kind == "int" and found.kind == "real" and is_last:
        return Value(found.node, found.dims, kind)
    if kind == "int" and found.kind == "real":
        constant = found.node.constants[0] if found.node.op == "constant" else math.nan
        if constant != constant or constant != int(constant):
            raise Refusal("a number that is cut to a whole one")
    if kind == "int":
        to.whole.add(found.node)
    return Value(found.node, found.dims, kind)


def result(to: Graph, value: Value) -> tuple[Node, tuple[Group, ...]]:
    """A result of the program: a node that has the axes of all dimensions, each of which has some."""
    value = to.real(value)
    dims = tuple(leaves(dim) or (Axis(1, "one", 2),) for dim in value.dims)
    return to.repeated(value.node, [axis for dim in dims for axis in dim]), dims
