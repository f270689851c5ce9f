"""What PyTorch says of a function: its graph over ATen, its inputs, and where in the source each operation is."""

import inspect
import operator
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright._native import TilewrightError, taken
from tilewright.importing.graph import Kind

DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "bool": "bool"}
"""What the language calls those that it has."""

CONSTANT_ELEMENTS = 1 << 20
"""Longer buffers of whole numbers are not looked into."""

HINTS = {"linear": "y", "matmul": "y", "mm": "y", "bmm": "y", "softmax": "p", "layer_norm": "z", "rms_norm": "z", "cat": "c", "getitem": "x"}
"""What results are called whose operation has the name of one of the language."""


@dataclass(frozen=True)
class Input:
    """A tensor that the graph takes."""

    node: Any
    name: str
    target: str | None
    """The parameter, buffer or constant of the module; nothing for an input."""
    shape: tuple[int, ...]
    dtype: str
    value: Any
    is_used: bool
    constant: float | int | bool | None
    """Its value, if it is a number that the function holds."""
    arange: tuple[int, int] | None
    """Start and step, where it holds whole numbers that count up along the last dimension."""


class _Function(torch.nn.Module):
    """A function as a module, which is what PyTorch exports. A method brings its own module along."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if isinstance(function, types.FunctionType):
            # PyTorch keeps lines of source of what is called `forward`, and of nothing else.
            code = function.__code__.replace(co_name="forward")
            copy = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
            copy.__kwdefaults__ = function.__kwdefaults__
            function = copy
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Exported:
    """An exported function."""

    def __init__(self, name: str, original: Any, program: Any, names: Sequence[str] | None, rule_of: Callable[[str], Any]) -> None:
        self.name = name
        self._names = names
        self.original = original
        """Before anything was decomposed: what the imported program is compared with."""
        self._program = program
        self._rule_of = rule_of
        self.inputs = self._inputs()

    @classmethod
    def of(cls, function: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any], rule_of: Callable[[str], Any]) -> "Exported":
        """Exports, and takes apart what has no rule."""
        if not callable(function):
            raise TypeError(f"expected a function or a torch.nn.Module, found {type(function).__name__}")
        for n, given in enumerate([*inputs, *kwargs.values()]):
            _dense(n, given)
        module = function if isinstance(function, torch.nn.Module) else _Function(function)
        name = type(function).__name__ if module is function else getattr(function, "__name__", "f")
        try:
            with torch.no_grad(), warnings.catch_warnings():
                # Those of PyTorch about itself.
                warnings.simplefilter("ignore", FutureWarning)
                warnings.simplefilter("ignore", DeprecationWarning)
                original = torch.export.export(module, tuple(inputs), dict(kwargs), strict=False)
        except Exception as error:
            raise TilewrightError(f"PyTorch cannot export {name}: {error}") from error
        table = torch.export.default_decompositions()
        for operation in list(table):
            if rule_of(_name(operation)) is not None:
                del table[operation]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            program = original.run_decompositions(table)
        return cls("f" if name == "<lambda>" else name, original, program, _names(function, inputs, kwargs), rule_of)

    # --- Inputs -----------------------------------------------------------------------------------------------------------

    def _inputs(self) -> list[Input]:
        signature = self._program.graph_signature
        state = {**self._program.state_dict, **self._program.constants}
        example, names = iter(self._flat_examples()), iter(self._names or ())
        found = []
        placeholders = [node for node in self._program.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, signature.input_specs):
            target = spec.target
            if spec.kind == torch.export.graph_signature.InputKind.USER_INPUT:
                value = next(example, None)
                target, name = None, next(names, node.name)
            else:
                value, name = state.get(target), target
            if not isinstance(node.meta.get("val"), torch.Tensor):
                if node.users:
                    raise TilewrightError(f"{self.name}: the input `{node.name}` is no tensor, and is used: bind it by functools.partial or a lambda")
                continue
            meta = node.meta["val"]
            found.append(
                Input(
                    node=node,
                    name=name.removeprefix("function.").replace(".", "_"),
                    target=target,
                    shape=tuple(int(n) for n in meta.shape),
                    dtype=str(meta.dtype).removeprefix("torch."),
                    value=value,
                    is_used=bool(node.users),
                    constant=_constant(target, value),
                    arange=_arange(target, value),
                )
            )
        # Inputs first, in the order in which they are passed; then what the module holds.
        return sorted(found, key=lambda given: given.target is not None)

    def _flat_examples(self) -> list[Any]:
        args, kwargs = self._program.example_inputs
        return list(torch.utils._pytree.tree_leaves((args, kwargs)))

    # --- The graph ------------------------------------------------------------------------------------------------------------

    def calls(self) -> Iterator[Any]:
        """The operations, in order."""
        for node in self._program.graph.nodes:
            if node.op == "call_function" and _name(node.target) not in NOTHING and (node.users or node.target is not operator.getitem):
                yield node

    def results(self) -> list[Any]:
        """What the function gives; what it writes into buffers is refused."""
        output = next(node for node in self._program.graph.nodes if node.op == "output")
        for spec in self._program.graph_signature.output_specs:
            if spec.kind != torch.export.graph_signature.OutputKind.USER_OUTPUT:
                written = spec.target or spec.arg.name
                raise TilewrightError(f"{self.name}: it writes `{written}`, and a program has no effects; is the module in training? .eval() ends it")
        found = [node for node in output.args[0] if isinstance(node, torch.fx.Node)]
        for n, node in enumerate(found):
            if not isinstance(node.meta.get("val"), torch.Tensor):
                raise TilewrightError(f"{self.name}: its result {n} is no tensor")
        if not found:
            raise TilewrightError(f"{self.name}: it gives no tensor")
        return found

    def operation(self, node: Any) -> str:
        """Such as `add.Tensor`."""
        return _name(node.target)

    def arguments(self, node: Any, values: Mapping[Any, Any]) -> dict[str, Any]:
        """Its arguments by the names of the schema, tensors as what was made of them."""

        def known(argument: Any) -> Any:
            if isinstance(argument, torch.fx.Node):
                return values.get(argument)
            if isinstance(argument, (list, tuple)):
                return [known(part) for part in argument]
            return argument

        if node.target is operator.getitem:
            return {"self": known(node.args[0]), "index": node.args[1]}
        if not isinstance(node.target, torch._ops.OpOverload):
            return {"argument": [known(argument) for argument in node.args]}
        schema = node.target._schema.arguments
        given = {argument.name: known(value) for argument, value in zip(schema, node.args)}
        given |= {name: known(value) for name, value in node.kwargs.items()}
        if self.operation(node).startswith("rms_norm") and given.get("eps") is None:
            given["eps"] = torch.finfo(node.args[0].meta["val"].dtype).eps
        return given

    def defaults(self, node: Any) -> dict[str, Any]:
        """What its arguments are where they are not given."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return {}
        return {argument.name: argument.default_value for argument in node.target._schema.arguments if argument.has_default_value()}

    def tensors(self, node: Any) -> list[tuple[tuple[int, ...], Kind]]:
        """Shape and kind of each of its results."""
        found = node.meta["val"]
        return [_described(x) for x in (found if isinstance(found, (list, tuple)) else [found])]

    def dtype(self, node: Any) -> tuple[tuple[int, ...], str]:
        meta = node.meta["val"]
        return tuple(int(n) for n in meta.shape), str(meta.dtype).removeprefix("torch.")

    def hint(self, node: Any) -> tuple[str, int]:
        """What its result might be called: as the innermost module that it belongs to, or as the operation."""
        operation = self.operation(node).split(".")[0].strip("_")
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0] if stack else ""
        last = [part for part in path.split(".") if part and not part.isdigit() and part not in ("function", "L['self']")]
        if (
            operation in ("linear", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "group_norm", "batch_norm")
            and last
            and taken(last[-1]) is None
        ):
            return last[-1], 3
        hint = HINTS.get(operation, operation)
        return ("y" if taken(hint) else hint), 1 if hint == operation else 2

    def described(self, node: Any) -> tuple[str, str | None]:
        """The operation, and the innermost line of source that is not PyTorch's own."""
        operation = "parameter" if node.op == "placeholder" else str(node.target)
        trace = node.meta.get("stack_trace") or ""
        frames = [f"File {part.strip()}" for part in trace.split("File ")[1:]]
        own = (str(Path(torch.__file__).parent), __file__)
        theirs = [frame for frame in frames if not any(path in frame.splitlines()[0] for path in own)]
        if not theirs:
            return operation, None
        lines = [line.strip() for line in theirs[-1].splitlines() if line.strip()]
        return operation, ": ".join(lines[:2])


NOTHING = frozenset({"_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.msg", "sym_constrain_range_for_size.default"})
"""Operations that give nothing."""


def _name(target: Any) -> str:
    """Such as `add.Tensor`; with the library where it is not ATen."""
    if target is operator.getitem:
        return "getitem"
    name = str(target)
    return name.removeprefix("aten.")


def _described(meta: Any) -> tuple[tuple[int, ...], Kind]:
    if not isinstance(meta, torch.Tensor):
        return (), "real"
    kind: Kind = "bool" if meta.dtype == torch.bool else "real" if meta.dtype.is_floating_point else "int"
    return tuple(int(n) for n in meta.shape), kind


def _names(function: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str] | None:
    """What a function calls its inputs; nothing where one of them is no tensor, or it does not say."""
    try:
        forward = function.forward if isinstance(function, torch.nn.Module) else function
        bound = inspect.signature(forward).bind(*inputs, **kwargs)
    except (TypeError, ValueError):
        return None
    parts = bound.arguments.values()
    return list(bound.arguments) if all(isinstance(part, torch.Tensor) for part in parts) else None


def _dense(n: int, given: Any) -> None:
    if isinstance(given, torch.Tensor) and (given.layout != torch.strided or given.is_quantized or given.is_complex()):
        raise TilewrightError(f"input {n} is {given.layout}, {given.dtype}: programs take dense tensors of real numbers")


def _constant(target: str | None, value: Any) -> float | int | bool | None:
    """A number that the function holds: PyTorch lifts each into a tensor without dimensions. A parameter is none, whatever it is now."""
    is_held = target is not None and isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    if is_held and value.dim() == 0 and "lifted_tensor" in (target or "") and value.device.type != "meta":
        return value.item()
    return None


def _arange(target: str | None, value: Any) -> tuple[int, int] | None:
    if target is None or not isinstance(value, torch.Tensor) or value.device.type == "meta" or value.dim() == 0 or value.numel() > CONSTANT_ELEMENTS:
        return None
    if value.dtype.is_floating_point or value.dtype == torch.bool or value.numel() == 0:
        return None
    rows = value.reshape(-1, value.shape[-1])
    start, step = int(rows[0, 0]), int(rows[0, 1] - rows[0, 0]) if rows.shape[1] > 1 else 0
    counted = torch.arange(rows.shape[1], dtype=value.dtype, device=value.device) * step + start
    return (start, step) if bool((rows == counted).all()) else None
