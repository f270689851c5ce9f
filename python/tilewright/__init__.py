"""Tilewright, an offline superoptimizer for tensor programs.

A `Program` is a pure tensor function with named axes: read from text or built by `Builder`. `optimize` searches
the GPU kernels that could compute it, verifies what it found, and gives the fastest; `Optimized.save` writes it as a folder that PyTorch imports.
"""

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
    "Optimized",
    "Program",
    "ProgramError",
    "Progress",
    "Report",
    "SearchError",
    "Tensor",
    "TilewrightError",
    "__version__",
    "optimize",
    "targets",
]
