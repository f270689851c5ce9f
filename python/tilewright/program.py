"""Programs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import _native

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Tensor:
    """A parameter or a result of a program."""

    name: str
    """Of a result `out0`, `out1`, … in their order."""
    dtype: str
    dims: tuple[tuple[str, ...], ...]
    """The axes of each dimension, slowest first; more than one where a dimension in memory is a group of axes."""
    shape: tuple[int, ...]

    def __str__(self) -> str:
        dims = (dim[0] if len(dim) == 1 else f"({' '.join(dim)})" for dim in self.dims)
        return f"{self.name}: {self.dtype} [{', '.join(dims)}]"


class Program:
    """A pure tensor function over the reals, with named axes. Never changes.

    >>> program = Program("program double\\naxis i = 3\\nx = parameter f32 [i]\\nreturn f32 [i] 2 * x\\n")
    >>> program.eval(x=[1, 2, 3])
    array([2., 4., 6.])
    """

    __slots__ = ("_native", "_source", "bindings")

    bindings: Mapping[str, str]
    """Of a program that was imported: what the name of each parameter stands for, if it is no input of that name. From PyTorch, the parameter or buffer of
    the module; from JAX, the part of an argument."""

    def __init__(self, source: str, *, file: str = "program.lax", bindings: Mapping[str, str] | None = None) -> None:
        """Parses a text in the language; `file` is what messages call it.

        Raises `ProgramError` with a picture of each fault.
        """
        self._native = _native.Program.parse(source, file)
        self._source = source
        self.bindings = dict(bindings or {})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Program":
        """Parses a file."""
        return cls(_native.Program.read_text(os.fspath(path)), file=os.fspath(path))

    @property
    def name(self) -> str:
        return self._native.name

    @property
    def source(self) -> str:
        """The text that it was read from, with its sugar and comments. `str(program)` is the canonical text, with all sugar expanded."""
        return self._source

    @property
    def axes(self) -> dict[str, int]:
        """The extent of each axis."""
        return dict(self._native.axes)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return _tensors(self._native.parameters)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return _tensors(self._native.outputs)

    def eval(self, *arrays: "ArrayLike", **named: "ArrayLike") -> "NDArray[Any] | tuple[NDArray[Any], ...]":
        """Evaluates the program op by op in f64: the reference that kernels are judged by.

        Takes one array for each parameter, in their order or by name. Elements are taken as they are, not rounded to the parameter's dtype. Gives one
        array, or a tuple where there are several results: of f64, and of a result that is `i32`, `i64` or `bool` of int32, int64 or bool. Raises
        `EvalError`.
        """
        parameters = self.parameters
        if len(arrays) > len(parameters):
            raise _native.EvalError(f"{self.name}: the program has {len(parameters)} parameters, {len(arrays)} arrays given")
        given: dict[str, Any] = {p.name: array for p, array in zip(parameters, arrays)}
        twice = sorted(given.keys() & named.keys())
        unknown = sorted(named.keys() - {p.name for p in parameters})
        missing = [p.name for p in parameters if p.name not in given and p.name not in named]
        for what, names in [("given twice", twice), ("no parameter", unknown), ("not given", missing)]:
            if names:
                listed = ", ".join(f"`{name}`" for name in names)
                raise _native.EvalError(f"{self.name}: {what}: {listed}; the parameters are {', '.join(map(str, parameters))}")
        given |= named
        outputs = self._native.eval([_reals(p, given[p.name]) for p in parameters])
        dtypes = (_ELEMENTS.get(output.dtype, "<f8") for output in self.outputs)
        results = tuple(np.frombuffer(data, dtype=dtype).reshape(shape) for (shape, data), dtype in zip(outputs, dtypes))
        return results[0] if len(results) == 1 else results

    def operations(self) -> int:
        """How many element operations `eval` does. Raises `EvalError` where they are more than it would do."""
        return self._native.operations()

    def __str__(self) -> str:
        return str(self._native)

    def __repr__(self) -> str:
        parameters = ", ".join(map(str, self.parameters))
        return f"<Program {self.name}({parameters})>"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Program) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._source, dict(self.bindings))


def _again(source: str, bindings: dict[str, str]) -> Program:
    return Program(source, bindings=bindings)


def _tensors(declared: Sequence[tuple[str, str, Sequence[Sequence[str]], Sequence[int]]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, dtype, tuple(map(tuple, dims)), tuple(shape)) for name, dtype, dims, shape in declared)


_ELEMENTS = {"i32": "<i4", "i64": "<i8", "bool": "|b1"}  # and of floats f64


def _reals(parameter: Tensor, array: Any) -> tuple[tuple[int, ...], bytes]:
    """Shape and elements. The shape is compared here, where nothing was copied yet."""
    try:
        found = np.asarray(array)
        if found.dtype.kind not in "fiub" and found.dtype.name != "bfloat16":
            raise TypeError(f"elements of {found.dtype} are no real numbers")
        if found.shape != parameter.shape:
            raise ValueError(f"expected the shape {list(parameter.shape)}, found {list(found.shape)}")
        return found.shape, np.ascontiguousarray(found, dtype=np.float64).tobytes()
    except (TypeError, ValueError) as error:
        raise _native.EvalError(f"parameter `{parameter.name}`: {error}") from None
