"""What a StableHLO module says: one flat list of operations, its inputs and results, and where in the source each operation is.

Read by the MLIR bindings that JAX brings along.
"""

import linecache
import math
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import ml_dtypes
import numpy as np
from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from tilewright._native import TilewrightError
from tilewright.importing.graph import Kind, Refusal

BYTECODE = b"ML\xefR"
"""What MLIR bytecode begins with."""

FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

KNOWN = (math.sqrt(0.5), math.sqrt(2), math.sqrt(2 / math.pi), math.log(2), 1 / math.log(2), math.pi)
"""Numbers that modules hold rounded."""

MOST_CALLS = 1 << 16
"""Modules may call functions that call others, each twice: more than this is no program of the language."""

DIALECT = (
    stablehlo.ComparisonDirectionAttr,
    stablehlo.ConvDimensionNumbers,
    stablehlo.DotDimensionNumbers,
    stablehlo.GatherDimensionNumbers,
    stablehlo.ScatterDimensionNumbers,
)
"""Attributes of the dialect that have fields."""


@dataclass(frozen=True)
class Type:
    """Of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    """As MLIR writes it: `f32`, `bf16`, `i32`, `i1`, …"""

    @property
    def kind(self) -> Kind:
        if self.dtype == "i1":
            return "bool"
        return "real" if re.fullmatch(r"b?f\d.*", self.dtype) else "int"

    @property
    def in_language(self) -> str:
        """The dtype as the language calls it, if it has it."""
        return "bool" if self.dtype == "i1" else self.dtype

    @classmethod
    def of(cls, type_: Any) -> "Type":
        """Raises `Refusal` for what is no tensor of numbers with known extents."""
        if not isinstance(type_, ir.RankedTensorType):
            raise Refusal(f"{type_} is no tensor of known rank")
        if not type_.has_static_shape:
            raise Refusal(f"{type_} has extents that are not known")
        dtype = str(type_.element_type)
        if not re.fullmatch(r"(b?f|[su]?i)\d\w*", dtype):
            raise Refusal(f"elements of {dtype} are no real numbers")
        return cls(tuple(type_.shape), dtype)


@dataclass(frozen=True)
class Input:
    """An argument of the module's main function."""

    value: Any
    name: str
    path: str | None
    """Where JAX has it in its arguments, if that is no name: `params['w']`."""


class Module:
    """A module with one function and no calls."""

    def __init__(self, given: "str | bytes | jax.export.Exported", composites: frozenset[str]) -> None:
        """Parses, and puts every function where it is called, but for the composite operations of these names."""
        if isinstance(given, jax.export.Exported):
            given = given.mlir_module_serialized
        elif not isinstance(given, (str, bytes)):
            raise TypeError(f"expected StableHLO as text, as bytecode or as a jax.export.Exported, found {type(given).__name__}")
        self._lines = given.splitlines() if isinstance(given, str) else []
        self.context = make_ir_context()
        self.context.allow_unregistered_dialects = True
        with self.context, ir.Location.unknown():
            self.module = _parsed(self.context, given)
            self.main = _flat(self.module, composites)
            PassManager.parse("builtin.module(cse)").run(self.module.operation)
            self.inputs = [_input(n, argument) for n, argument in enumerate(self.block.arguments)]

    @property
    def name(self) -> str:
        """Of the function that was lowered."""
        attributes = self.module.operation.attributes
        name = attributes["sym_name"].value.removeprefix("jit_") if "sym_name" in attributes else "main"
        return "f" if "lambda" in name else name

    @property
    def block(self) -> Any:
        """What the function does."""
        return self.main.regions[0].blocks[0]

    def source(self, location: Any) -> str | None:
        """The line at a location: of the source, or of the text itself."""
        places = _files(location)
        if not places:
            return None
        # The innermost one that is not a library's.
        file, line = next((place for place in places if "site-packages" not in place[0]), places[0])
        if file != "-":
            text = linecache.getline(file, line).strip()
            return f'File "{file}", line {line}' + (f": {text}" if text else "")
        text = self._lines[line - 1].strip() if 0 < line <= len(self._lines) else ""
        return f"line {line}" + (f": {text}" if text else "")


def operations(block: Any) -> tuple[list["Operation"], list[Any]]:
    """The operations of a block, in their order, and what it returns."""
    *found, end = (op.operation for op in block.operations)
    return [Operation(op) for op in found], list(end.operands)


class Operation:
    """One operation."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.operands = list(op.operands)
        self.results = list(op.results)
        self.location = op.location

    def get_name(self) -> str:
        """Of its first result, as values have it."""
        return self.results[0].get_name() if self.results else "nothing"

    @property
    def name(self) -> str:
        """Such as `stablehlo.add`; of a composite operation, its own name."""
        return self.op.attributes["name"].value if self.op.name == "stablehlo.composite" else self.op.name

    @property
    def described(self) -> str:
        """The operation as messages call it."""
        if self.op.name == "stablehlo.custom_call":
            return f"{self.op.name} @{self.op.attributes['call_target_name'].value}"
        return self.name

    def scope(self) -> list[str]:
        """JAX's functions and scopes that it is in, from the outermost one on: `jit(f)`, `attention`, …"""
        return self.location.name_str.split("/")[:-1] if isinstance(self.location, ir.NameLoc) else []

    def attributes(self) -> dict[str, Any]:
        """As Python has them."""
        return {name: _plain(self.op.attributes[name]) for name in self.op.attributes}

    def branches(self) -> list[Any]:
        """The blocks that it chooses from, or repeats."""
        return [region.blocks[0] for region in self.op.regions]

    def body(self) -> str | None:
        """The operation that a reduction applies to its two arguments, `second` where it takes that one, or `max` or `min` where it also says where that
        is; nothing where it does more."""
        (block,) = self.branches()
        inner, results = operations(block)
        if len(block.arguments) == 4:
            return _with_place(block)
        if not inner and results == [block.arguments[1]]:
            return "second"
        if len(inner) != 1 or set(inner[0].operands) != set(block.arguments) or results != inner[0].results:
            return None
        return inner[0].name


COMPARED = {"max": "GT", "min": "LT"}


def _with_place(block: Any) -> str | None:
    """Whether it is what JAX writes for the maximum or minimum of numbers, and the first place where it is."""
    inner, results = operations(block)
    names = {value: n for n, value in enumerate([*block.arguments, *(operation.results[0] for operation in inner)])}
    found = [
        (
            operation.name.split(".")[-1],
            getattr(operation.attributes().get("comparison_direction"), "value", None),
            *(names[x] for x in operation.operands),
        )
        for operation in inner
    ]
    for function, direction in COMPARED.items():
        # Of x and its place i, y and its place j: x where it is more extreme or NaN; i there, or where both are equal and it is before j.
        x, i, y, j = 0, 1, 2, 3
        compared = [("compare", direction, x, y), ("compare", "NE", x, x), ("or", None, 4, 5), ("compare", "EQ", x, y), ("compare", "LT", i, j)]
        joined = [("and", None, 7, 8), ("or", None, 6, 9), ("select", None, 6, x, y), ("select", None, 10, i, j)]
        if found == compared + joined and [names[value] for value in results] == [11, 12]:
            return function
    return None


def _parsed(context: Any, given: str | bytes) -> Any:
    if isinstance(given, bytes) and not given.startswith(BYTECODE):
        raise TilewrightError("these bytes are no MLIR bytecode: it is `exported.mlir_module_serialized` that is, and not `exported.serialize()`")
    try:
        if isinstance(given, bytes):
            return stablehlo.deserialize_portable_artifact(context, given)
        return ir.Module.parse(given)
    except (ir.MLIRError, ValueError) as error:
        raise TilewrightError(f"MLIR cannot read the module: {error}") from error


def _flat(module: Any, composites: frozenset[str]) -> Any:
    """The main function, once it calls no other."""
    functions = {op.attributes["sym_name"].value: op.operation for op in module.body.operations if op.operation.name == "func.func"}
    main = functions.get("main")
    if main is None and len(functions) == 1:
        (main,) = functions.values()
    if main is None or len(main.regions[0].blocks) != 1:
        raise TilewrightError(f"expected a module with a function `main`, found {', '.join(f'`{name}`' for name in functions) or 'no function'}")
    count = 0
    for _ in functions:
        for call, callee in _calls(main, composites):
            count += 1
            if count > MOST_CALLS:
                raise TilewrightError(f"the module calls functions more than {MOST_CALLS} times")
            if callee not in functions or len(functions[callee].regions[0].blocks) != 1:
                raise TilewrightError(f"the module calls `{callee}`, which is no function of one block in it")
            with ir.InsertionPoint(call):
                found = _jax_mlir_ext.inlined_func_call(functions[callee], list(call.operands), call.location)
            for old, new in zip(call.results, found):
                old.replace_all_uses_with(new)
            call.erase()
    if _calls(main, composites):
        raise TilewrightError("a function of the module calls itself")
    for name, function in functions.items():
        if function is not main:
            function.erase()
    return main


def _calls(op: Any, composites: frozenset[str]) -> list[tuple[Any, str]]:
    """The operations in an operation that stand for a function, and which."""
    found = []
    for inner in (op for region in op.regions for block in region.blocks for op in block.operations):
        inner = inner.operation
        if inner.name == "func.call":
            found.append((inner, inner.attributes["callee"].value))
        elif inner.name == "stablehlo.composite" and inner.attributes["name"].value not in composites:
            found.append((inner, inner.attributes["decomposition"].value))
        else:
            found += _calls(inner, composites)
    return found


def _input(n: int, argument: Any) -> Input:
    """Named as JAX does in the location of the argument, or else by its place."""
    location = argument.location
    path = location.name_str if isinstance(location, ir.NameLoc) else f"arg{n}"
    name = "_".join(re.findall(r"\w+", path, re.ASCII)) or f"arg{n}"
    return Input(argument, name, path if path != name else None)


def _files(location: Any) -> list[tuple[str, int]]:
    """The lines of source files, from the innermost one on."""
    if isinstance(location, ir.FileLineColLoc):
        return [(location.filename, location.start_line)]
    if isinstance(location, ir.NameLoc):
        return _files(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return _files(location.callee) + _files(location.caller)
    if isinstance(location, ir.FusedLoc):
        return [place for part in location.locations for place in _files(part)]
    return []


def number(value: float, dtype: str) -> float:
    """The shortest decimal that is this number once it is rounded to the dtype: 1e-5, where f32 has 0.00000999999974…; or a number of mathematics."""
    rounded = FLOATS.get(dtype, np.float64)
    with np.errstate(over="ignore"):
        for digits in range(1, 18):
            short = float(f"{value:.{digits}g}")
            if rounded(short) == value:
                return short if digits < 7 else next((known for known in KNOWN if rounded(known) == value), short)
    return value


def _plain(attribute: Any) -> Any:
    """Numbers, truth values, strings, lists and arrays; what is none of them as it is."""
    if isinstance(attribute, (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr)):
        return attribute.value
    if isinstance(attribute, (ir.DenseI64ArrayAttr, ir.DenseBoolArrayAttr, ir.ArrayAttr)):
        return list(attribute) if not isinstance(attribute, ir.ArrayAttr) else [_plain(part) for part in attribute]
    if isinstance(attribute, ir.DenseElementsAttr):
        return _array(attribute)
    return next((known(attribute) for known in DIALECT if known.isinstance(attribute)), attribute)


def _array(attribute: Any) -> np.ndarray | None:
    """In f64, int64 or bool; nothing where the bindings do not read its elements one by one."""
    type_ = Type.of(attribute.type)
    wide = {"real": np.float64, "int": np.int64, "bool": np.bool_}[type_.kind]
    if attribute.is_splat:
        value = attribute.get_splat_value().value
        return np.broadcast_to(np.array(number(value, type_.dtype) if type_.kind == "real" else value, wide), type_.shape)
    try:
        return np.array(attribute).astype(wide)
    except TypeError:
        return None
