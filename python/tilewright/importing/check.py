"""An imported program against what it was imported from, both in f64."""

import math
import warnings
from collections.abc import Callable, Iterable

import numpy as np

from tilewright._native import EvalError
from tilewright.errors import MismatchError
from tilewright.program import Program

TOLERANCE = 1e-12
"""Of the scale of a result: of its largest element, or where results cancel, of what f64 itself leaves open. That is what inputs that differ by a
unit in their last places make of the result, in such units, and at most the largest number on the way."""

UNIT = 2.0**-52

LONG = 2e10
"""Element operations that take about a minute on one core."""


def compare(program: Program, arrays: Iterable[np.ndarray], reference: Callable[[], list[tuple[np.ndarray, float]]], framework: str) -> None:
    """Raises `MismatchError` where they differ. The reference gives each result with its scale, once the program turned out not to be too large."""
    try:
        operations = program.operations()
    except EvalError as error:
        raise MismatchError(f"{program.name}: {error}; import it at smaller extents first, and at these with check=False") from error
    if operations > LONG:
        warnings.warn(f"comparing {program.name} takes {operations:.1e} element operations; check=False leaves it out", stacklevel=5)
    found = program.eval(*arrays)
    outputs = found if isinstance(found, tuple) else (found,)
    for n, (ours, (theirs, largest)) in enumerate(zip(outputs, reference(), strict=True)):
        if ours.shape != theirs.shape:
            raise MismatchError(
                f"{program.name}: {framework} exports result {n} with the shape {list(ours.shape)}, and computes it with {list(theirs.shape)}"
            )
        off = relative_error(ours.astype(np.float64), theirs, largest)
        if not off <= TOLERANCE:
            raise MismatchError(
                f"{program.name}: result {n} differs from {framework}'s by {off:.1e} of its scale, at most {TOLERANCE:.0e} was expected; "
                f"this is a fault of the importer. The program:\n{program.source}"
            )


def scale(x: np.ndarray, y: np.ndarray, most: float) -> float:
    """Of a result `x`, which is `y` where the inputs differ by a unit in their last places; `most` is the largest number on the way."""
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        return 1.0
    largest, difference = float(np.abs(x[finite]).max()), float(np.abs(x[finite] - y[finite]).max())
    return max(largest, min(difference / UNIT, most))


def relative_error(ours: np.ndarray, theirs: np.ndarray, scale: float) -> float:
    """The largest difference, as a part of the scale. Infinities and NaNs have to be the same."""
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    difference = float(np.abs(ours[finite] - theirs[finite]).max())
    return difference and difference / max(scale, np.finfo(np.float64).tiny)
