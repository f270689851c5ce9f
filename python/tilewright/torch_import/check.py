"""An imported program against PyTorch, on the example inputs, both in f64.

PyTorch runs the graph as it was exported, before anything was taken apart, with every number in f64: so that what a module computes in f32 or bf16 on
the way is no reason for a difference, and all that is left is what the importer did.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tilewright.errors import MismatchError
from tilewright.importing import check
from tilewright.program import Program
from tilewright.torch_import.exported import NOTHING, Exported, Input, _name


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
        others = [x.double().numpy() for x in InDouble(graph.graph_module).run(*inputs(check.UNIT))]
    return [(x, check.scale(x, y, machine.largest)) for x, y in zip(results, others)]


@contextlib.contextmanager
def _in_double() -> Iterator[None]:
    """What has no dtype is in f64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def compare(program: Program, exported: Exported, inputs: Sequence[Input]) -> None:
    """Raises `MismatchError` where the two differ."""
    if any(given.value is None or given.value.device.type == "meta" for given in exported.inputs if given.is_used):
        raise MismatchError(f"{program.name}: there are no numbers to compare on: give tensors that have some, or check=False")
    arrays = (given.value.detach().cpu().double().numpy() for given in inputs)
    check.compare(program, arrays, lambda: reference(exported), "PyTorch")
