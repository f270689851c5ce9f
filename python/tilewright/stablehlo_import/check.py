"""An imported program against its module as XLA runs it on the CPU, both in f64.

The module runs as it was read, with every floating-point dtype replaced by f64 and every number by the shortest decimal that its dtype rounds to it: so
that what a module computes in f32 or bf16 on the way is no reason for a difference, and all that is left is what the importer did.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from tilewright.errors import MismatchError
from tilewright.importing import check
from tilewright.program import Program, Tensor
from tilewright.stablehlo_import.module import FLOATS, Module, number, operations


WHOLE = {"i32": np.int32, "i64": np.int64, "bool": np.bool_}
"""What holds the parameters of these dtypes; those of all others are in f64."""

FEW = 8
"""Whole numbers are drawn below it, where they are no places."""


def compare(program: Program, module: Module, inputs: Sequence[Any] | None, limits: Sequence[int | None]) -> None:
    """Raises `MismatchError` where the two differ at the inputs, or where there are none at numbers that are drawn, whole ones below the limit that
    their parameter has. Changes the module."""
    draw = np.random.default_rng(0)
    parameters = program.parameters
    shapes = [parameter.shape for parameter in parameters]
    if inputs is None:
        arrays = [_drawn(draw, parameter, limit or FEW) for parameter, limit in zip(parameters, limits)]
    else:
        found = [np.shape(given) for given in inputs]
        if found != shapes:
            expected, found = ([list(shape) for shape in listed] for listed in (shapes, found))
            raise MismatchError(f"{program.name}: expected inputs of the shapes {expected} to compare on, found {found}")
        arrays = [np.asarray(given, WHOLE.get(parameter.dtype, np.float64)) for parameter, given in zip(parameters, inputs)]

    def reference() -> list[tuple[np.ndarray, float]]:
        try:
            run = _compiled(module)
        except RuntimeError as error:
            raise MismatchError(
                f"{program.name}: XLA cannot run the module on the CPU to compare with it: {error}; check=False leaves it out"
            ) from error
        results, most = run(arrays)
        signs = [draw.integers(0, 2, array.shape) * 2.0 - 1 for array in arrays]
        others, _ = run([array * (1 + check.UNIT * sign) if array.dtype == np.float64 else array for array, sign in zip(arrays, signs)])
        pairs = ((np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in zip(results, others))
        return [(x, check.scale(x, y, most)) for (x, y), _ in zip(pairs, program.outputs)]

    check.compare(program, arrays, reference, "XLA")


def _drawn(draw: np.random.Generator, parameter: Tensor, limit: int) -> np.ndarray:
    if parameter.dtype not in WHOLE:
        return draw.standard_normal(parameter.shape)
    return draw.integers(0, 2 if parameter.dtype == "bool" else limit, parameter.shape).astype(WHOLE[parameter.dtype])


def _compiled(module: Module) -> Callable[[Sequence[np.ndarray]], tuple[list[np.ndarray], float]]:
    """The module in f64 as a function that gives all numbers, those of its results first, and the largest finite one."""
    with module.context, ir.Location.unknown():
        _replaced(module)
        cpu = jax.devices("cpu")[0]
        executable = cpu.client.compile_and_load(module.module, xla_client.DeviceList((cpu,)), xla_client.CompileOptions())

    def run(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], float]:
        with jax.enable_x64(True):
            given = [jax.device_put(array, cpu) for array in arrays]
        parts = executable.execute_sharded(given).disassemble_into_single_device_arrays()
        found = [np.asarray(part[0]) for part in parts]
        return found, max((float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in found), default=0.0)

    return run


def _replaced(module: Module) -> None:
    """The module in f64; its function also gives every number on the way."""
    _in_double(module.main)
    listed, results = operations(module.block)
    results += [x for operation in listed for x in operation.results if _is_float(x.type)]
    end = list(module.block.operations)[-1]
    with ir.InsertionPoint(end):
        func.ReturnOp(results)
    end.operation.erase()
    type_ = ir.FunctionType.get([argument.type for argument in module.block.arguments], [x.type for x in results])
    module.main.attributes["function_type"] = ir.TypeAttr.get(type_)
    for name in ("arg_attrs", "res_attrs"):
        if name in module.main.attributes:
            del module.main.attributes[name]


def _in_double(op: Any) -> None:
    for x in op.results:
        x.set_type(_double(x.type))
    if op.name == "stablehlo.constant":
        op.attributes["value"] = _constant(op.attributes["value"])
    if op.name == "stablehlo.reduce_precision":
        for name, bits in (("exponent_bits", 11), ("mantissa_bits", 52)):
            op.attributes[name] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), bits)
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                argument.set_type(_double(argument.type))
            for inner in block.operations:
                _in_double(inner.operation)


def _constant(value: Any) -> Any:
    if not _is_float(value.type):
        return value
    if value.is_splat:
        exact = number(value.get_splat_value().value, str(value.type.element_type))
        return ir.DenseElementsAttr.get_splat(_double(value.type), ir.FloatAttr.get(ir.F64Type.get(), exact))
    return ir.DenseElementsAttr.get(np.array(value).astype(np.float64))  # type: ignore[call-overload]


def _is_float(type_: Any) -> bool:
    return isinstance(type_, ir.RankedTensorType) and str(type_.element_type) in FLOATS


def _double(type_: Any) -> Any:
    return ir.RankedTensorType.get(type_.shape, ir.F64Type.get()) if _is_float(type_) else type_
