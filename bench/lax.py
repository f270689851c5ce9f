"""Reads the header of a `.lax` file: axes, parameters and results. It does not know what a program computes."""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path

BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "i64": 8, "bool": 1}
_AXIS = re.compile(r"^axis\s+(.*)$", re.MULTILINE)
_EXTENT = re.compile(r"(\w+)\s*=\s*(\d+)")
_PARAMETER = re.compile(r"^(\w+)\s*=\s*parameter\s+(\w+)\s*\[([^\]]*)\]", re.MULTILINE)
_RESULT = re.compile(rf"\b({'|'.join(BYTES)})\s*\[([^\]]*)\]")


@dataclass(frozen=True)
class Tensor:
    """A parameter or a result: its dtype and its dimensions, each a list of axis names (more than one in a group)."""

    dtype: str
    dims: list[list[str]]

    def axes(self) -> list[str]:
        """The axis names in memory order, groups flattened."""
        return [axis for dim in self.dims for axis in dim]

    def shape(self, extents: dict[str, int]) -> tuple[int, ...]:
        """The extents in memory, a group being one dimension."""
        return tuple(prod(extents[axis] for axis in dim) for dim in self.dims)

    def nbytes(self, extents: dict[str, int]) -> int:
        """The bytes it holds in memory."""
        return prod(self.shape(extents)) * BYTES[self.dtype]


@dataclass(frozen=True)
class Header:
    """What a program takes and gives; `body` is the text without comments and without its axis lines."""

    extents: dict[str, int]
    parameters: dict[str, Tensor]
    results: list[Tensor]
    body: str


def read(path: Path) -> Header:
    """The header of the program in the file at `path`."""
    text = "\n".join(line.split("#")[0].rstrip() for line in path.read_text().splitlines())
    extents = {name: int(n) for line in _AXIS.findall(text) for name, n in _EXTENT.findall(line)}
    parameters = {name: Tensor(dtype, _dims(dims)) for name, dtype, dims in _PARAMETER.findall(text)}
    results = [Tensor(dtype, _dims(dims)) for dtype, dims in _RESULT.findall(text[text.rindex("\nreturn") :])]
    return Header(extents, parameters, results, _AXIS.sub("", text))


def resize(path: Path, extents: dict[str, int]) -> str:
    """The program's text with other extents, which must name every axis."""
    header = read(path)
    if set(extents) != set(header.extents):
        raise ValueError(f"{path.name} has the axes {sorted(header.extents)}, got {sorted(extents)}")
    line = "axis " + ", ".join(f"{name} = {n}" for name, n in extents.items())
    text = path.read_text()
    first = _AXIS.search(text)
    assert first is not None, "a program with extents should have an axis line"
    return text[: first.start()] + line + _AXIS.sub("", text[first.start() :])


def _dims(text: str) -> list[list[str]]:
    """`b, (h d)` as `[["b"], ["h", "d"]]`."""
    return [dim.strip().strip("()").split() for dim in text.split(",") if dim.strip()]
