"""Tilewright, an offline superoptimizer for tensor programs.

A `Program` is a pure tensor function with named axes: read from text, built by `Builder`, taken from PyTorch by `from_torch`, or from JAX and whatever
else gives StableHLO by `from_stablehlo`. `optimize` searches the GPU kernels that could compute it, verifies what it found, and gives the fastest;
`Optimized.save` writes it as a folder that PyTorch imports.
"""

from collections.abc import Callable as _Callable
from collections.abc import Mapping as _Mapping
from collections.abc import Sequence as _Sequence
from typing import Any as _Any

from tilewright._native import (
    ArtifactError,
    BudgetError,
    EvalError,
    GpuError,
    ProgramError,
    SearchError,
    TilewrightError,
    __version__,
    targets,
)
from tilewright.builder import Builder, Expr
from tilewright.errors import MismatchError, Unsupported, UnsupportedError
from tilewright.program import Program, Tensor
from tilewright.search import Kernel, Measured, Optimized, Progress, Report, optimize

__all__ = [
    "ArtifactError",
    "BudgetError",
    "Builder",
    "EvalError",
    "Expr",
    "GpuError",
    "Kernel",
    "Measured",
    "MismatchError",
    "Optimized",
    "Program",
    "ProgramError",
    "Progress",
    "Report",
    "SearchError",
    "Tensor",
    "TilewrightError",
    "Unsupported",
    "UnsupportedError",
    "__version__",
    "from_stablehlo",
    "from_torch",
    "optimize",
    "targets",
]


def from_torch(
    function: _Callable[..., _Any],
    *example_inputs: _Any,
    kwargs: _Mapping[str, _Any] | None = None,
    name: str | None = None,
    check: bool = True,
) -> Program:
    """The program that a PyTorch function or module computes at the shapes and dtypes of the example inputs.

    Parameters and buffers that it uses become parameters of the program behind the inputs, in PyTorch's own layouts; `Program.bindings` says which
    is which. With `check`, the program is evaluated in f64 on the example inputs and compared with PyTorch, in f64 too; what differs by more than
    1e-12 of the largest element is a `MismatchError`. Whole numbers and truth values are taken as they are given, so those that are places have to be
    within what they index. What cannot be said in the language is an `UnsupportedError`, with every such operation and
    its line of source.

    PyTorch is imported when this is called, and not before.
    """
    from tilewright.torch_import import import_program

    return import_program(function, example_inputs, dict(kwargs or {}), name, check)


def from_stablehlo(module: _Any, *, inputs: _Sequence[_Any] | None = None, name: str | None = None, check: bool = True) -> Program:
    """The program that a StableHLO module computes: MLIR as text, bytecode as `bytes`, or a `jax.export.Exported`.

    The arguments of its function `main` become the parameters, in their order and in their layouts. They are named as in JAX; of one that is a part of
    another, such as `params['w']`, `Program.bindings` says which. With `check`, the program is evaluated in f64 and compared with XLA on the CPU, in f64
    too, on the `inputs`, one array for each parameter, or where there are none on numbers that are drawn; what differs by more than 1e-12 of the largest
    element is a `MismatchError`. Whole numbers and truth values of `inputs` are taken as they are; whole numbers that are drawn are within what they
    index, and below 8 where they index nothing. What cannot be said in the language is an `UnsupportedError`, with every such operation and its line of source. What is
    no module is a `TilewrightError`.

    JAX is imported when this is called, and not before.
    """
    from tilewright.stablehlo_import import import_program

    return import_program(module, inputs, name, check)
