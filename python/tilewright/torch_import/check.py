"""An imported program against PyTorch, on the example inputs, both in f64.

PyTorch runs the graph as it was exported, before anything was taken apart, with every number in f64: so that what a module computes in f32 or bf16 on
the way is no reason for a difference, and all that is left is what the importer did.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tilewright._native import EvalError
from tilewright.errors import MismatchError
from tilewright.program import Program
from tilewright.torch_import.exported import NOTHING, Exported, Input, _name

TOLERANCE = 1e-12
"""Of the scale of a result: of its largest element, or where results cancel, of what f64 itself leaves open. That is what inputs that differ by a
unit in their last places make of the result, in such units, and at most the largest number on the way."""

UNIT = 2.0**-52

LONG = 2e10
"""Element operations that take about a minute on one core."""


class InDouble(torch.fx.Interpreter):
    """Runs a graph with every floating-point dtype replaced by f64."""

    largest = 0.0
    """The largest finite number of all values."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if _name(target) in NOTHING:
            return None
        if _name(target).startswith("rms_norm") and (len(args) < 4 or args[3] is None) and kwargs.get("eps") is None:
            # Of the dtype that the module has.
            eps = torch.finfo(self._dtype).eps
            args, kwargs = [*args, *[None] * (4 - len(args))][:3] + [eps], {}
        return super().call_function(target, _double(args), _double(kwargs))

    def run_node(self, n: Any) -> Any:
        first = n.args[0] if n.args else None
        meta = first.meta.get("val") if isinstance(first, torch.fx.Node) else None
        self._dtype = meta.dtype if isinstance(meta, torch.Tensor) else torch.float32
        result = super().run_node(n)
        for part in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(part, torch.Tensor) and part.is_floating_point() and part.numel():
                self.largest = max(self.largest, float(torch.nan_to_num(part, 0, 0, 0).abs().max()))
        return result


def _double(x: Any) -> Any:
    if isinstance(x, torch.dtype) and x.is_floating_point:
        return torch.float64
    if isinstance(x, (list, tuple)):
        return type(x)(_double(part) for part in x)
    if isinstance(x, dict):
        return {name: _double(part) for name, part in x.items()}
    return torch.device("cpu") if isinstance(x, torch.device) else x


def reference(exported: Exported) -> list[tuple[np.ndarray, float]]:
    """What PyTorch computes, in f64 on the CPU, each result with its scale."""
    graph = exported.original
    by_name = {given.node.name: given.value for given in exported.inputs}
    generator = torch.Generator().manual_seed(0)

    def inputs(unit: float) -> list[Any]:
        found = []
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                value = by_name.get(node.name)
                value = value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    value = value.double()
                    sign = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.float64) * 2 - 1
                    value = value * (1 + unit * sign)
                found.append(value)
        return found

    with torch.no_grad(), _in_double():
        machine = InDouble(graph.graph_module)
        results = [x.double().numpy() for x in machine.run(*inputs(0))]
        others = [x.double().numpy() for x in InDouble(graph.graph_module).run(*inputs(UNIT))]
    return [(x, _scale(x, y, machine.largest)) for x, y in zip(results, others)]


@contextlib.contextmanager
def _in_double() -> Iterator[None]:
    """What has no dtype is in f64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _scale(x: np.ndarray, y: np.ndarray, most: float) -> float:
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        return 1.0
    largest, difference = float(np.abs(x[finite]).max()), float(np.abs(x[finite] - y[finite]).max())
    return max(largest, min(difference / UNIT, most))


def compare(program: Program, exported: Exported, inputs: Sequence[Input]) -> None:
    """Raises `MismatchError` where the two differ."""
    if any(given.value is None or given.value.device.type == "meta" for given in exported.inputs if given.is_used):
        raise MismatchError(f"{program.name}: there are no numbers to compare on: give tensors that have some, or check=False")
    try:
        operations = program.operations()
    except EvalError as error:
        raise MismatchError(f"{program.name}: {error}; import it at smaller extents first, and at these with check=False") from error
    if operations > LONG:
        warnings.warn(f"comparing {program.name} takes {operations:.1e} element operations; check=False leaves it out", stacklevel=4)
    found = program.eval(*(given.value.detach().cpu().double().numpy() for given in inputs))
    outputs = found if isinstance(found, tuple) else (found,)
    for n, (ours, (theirs, scale)) in enumerate(zip(outputs, reference(exported), strict=True)):
        if ours.shape != theirs.shape:
            raise MismatchError(
                f"{program.name}: PyTorch exports result {n} with the shape {list(ours.shape)}, and computes it with {list(theirs.shape)}"
            )
        off = relative_error(ours, theirs, scale)
        if not off <= TOLERANCE:
            raise MismatchError(
                f"{program.name}: result {n} differs from PyTorch's by {off:.1e} of its scale, at most {TOLERANCE:.0e} was expected; "
                f"this is a fault of the importer. The program:\n{program.source}"
            )


def relative_error(ours: np.ndarray, theirs: np.ndarray, scale: float) -> float:
    """The largest difference, as a part of the scale. Infinities and NaNs have to be the same."""
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    difference = float(np.abs(ours[finite] - theirs[finite]).max())
    return difference and difference / max(scale, np.finfo(np.float64).tiny)
