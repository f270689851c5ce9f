"""From a PyTorch function to a program: `torch.export`, a table of rules, a text, and a comparison.

| module | what it holds |
|---|---|
| `exported` | what PyTorch says of a function: the graph, its inputs, where in the source each operation is |
| `table`, `rules/` | one small function for each operation of PyTorch |
| `check` | the program against PyTorch, both in f64 |

Axes, the graph and the text are those of `tilewright.importing`. Only `exported` and `check` import PyTorch.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.errors import Unsupported, UnsupportedError
from tilewright.program import Program

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("tilewright.from_torch needs PyTorch, 2.11 or newer: pip install torch") from error

from tilewright.importing.axes import Axis, Group, separate
from tilewright.importing.graph import Graph, Kind, Node, Refusal, Value
from tilewright.importing.text import Text
from tilewright.importing.walk import LANGUAGE, POISON, flat, input_hints, listed, of_kind, result
from tilewright.torch_import import check as checking
from tilewright.torch_import import rules, table
from tilewright.torch_import.exported import DTYPES, Exported, Input

assert _torch and rules, "importing these fills the table"


def import_program(function: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any], name: str | None, check: bool) -> Program:
    """As `tilewright.from_torch`."""
    exported = Exported.of(function, inputs, kwargs, table.of)
    made = _Import(exported)
    results = made.run()
    text = Text(name or exported.name, made.graph, results)
    source = text.source()
    program = Program(source, file=f"{name or exported.name} (imported)", bindings=_bindings(exported.inputs, made.used, text.parameter_names()))
    if check:
        checking.compare(program, exported, [exported.inputs[n] for n in made.used])
    return program


def _bindings(inputs: Sequence[Input], used: Sequence[int], names: Sequence[str]) -> dict[str, str]:
    targets = ((name, inputs[n].target) for name, n in zip(names, used))
    return {name: target for name, target in targets if target is not None}


class _Import:
    """One walk over the graph of a function."""

    def __init__(self, exported: Exported) -> None:
        self.graph = Graph()
        self.used: list[int] = []
        """The inputs that are parameters of the program."""
        self._exported = exported
        self._values: dict[Any, Any] = {}
        self._faults: list[Unsupported] = []

    def run(self) -> list[tuple[Node, tuple[Group, ...], str]]:
        """The results of the program: their nodes, dimensions and dtypes."""
        self._parameters()
        for node in self._exported.calls():
            self._values[node] = self._called(node)
        results = [self._result(n, node) for n, node in enumerate(self._exported.results())]
        if self._faults:
            raise UnsupportedError(self._faults)
        return [result for result in results if result is not None]

    def _fault(self, node: Any, reason: str) -> Any:
        operation, source = self._exported.described(node)
        self._faults.append(Unsupported(str(node), operation, reason, source))
        return POISON

    def _parameters(self) -> None:
        for n, given in enumerate(self._exported.inputs):
            # What of a module nothing uses is no parameter; an input always is, since it is passed.
            if given.target is not None and not given.is_used:
                continue
            if given.constant is not None:
                self._values[given.node] = self.graph.number(given.constant)
                continue
            if given.arange is not None:
                self._values[given.node] = self._index(given)
                continue
            dtype = DTYPES.get(given.dtype)
            if dtype is None:
                reason = f"a parameter of {given.dtype}: parameters of the language are {listed(LANGUAGE)}"
                self._values[given.node] = self._fault(given.node, reason)
                continue
            if 0 in given.shape:
                self._values[given.node] = self._fault(given.node, "a tensor without elements")
                continue
            hints = input_hints(len(given.shape)) if given.target is None else [""] * len(given.shape)
            self._values[given.node] = self.graph.parameter(given.name, dtype, given.shape, hints)
            self.used.append(n)

    def _index(self, given: Input) -> Value:
        """A buffer of whole numbers that count up along its last dimension: no parameter, since it is known."""
        start, step = given.arange or (0, 0)
        dims = tuple(() if size == 1 else (Axis(size, "t", 1),) for size in given.shape)
        separate(axis for dim in dims for axis in dim)
        node = self.graph.shifted(self.graph.scaled(self.graph.iota(dims[-1]), step), start)
        return Value(node, dims, "int")

    def _called(self, node: Any) -> Any:
        given = self._exported.arguments(node, self._values)
        if any(part is POISON for part in flat(list(given.values()))):
            return POISON
        try:
            if node.target is operator.getitem:
                found = given["self"][given["index"]]
                if isinstance(found, Refusal):
                    raise found
            else:
                name = self._exported.operation(node)
                rule = table.of(name)
                if rule is None:
                    raise Refusal("no rule says it in the language")
                found = rule(self.graph, given, self._exported.defaults(node))
            return self._checked(node, found, [x for x in flat(list(given.values())) if isinstance(x, Value)])
        except Refusal as refusal:
            return self._fault(node, str(refusal))
        except Exception as error:
            # A fault of a rule. Whoever imports still learns of all others at once, and which operation it is.
            return self._fault(node, f"its rule failed: {type(error).__name__}: {error}")

    def _checked(self, node: Any, found: Any, given: Sequence[Value]) -> Any:
        """A result has the shape that PyTorch says, and is a number where PyTorch has one."""
        if any(0 in x.shape for x in given) and not self._exported.operation(node).startswith("cat"):
            if any(0 not in shape for shape, _ in self._exported.tensors(node)):
                raise Refusal("a tensor without elements")
        if isinstance(found, (list, tuple)):
            return [self._of_kind(x, meta, False) if isinstance(x, Value) else x for x, meta in zip(found, self._exported.tensors(node))]
        hint, weight = self._exported.hint(node)
        found.node.name(hint, weight)
        return self._of_kind(found, self._exported.tensors(node)[0], all(user.op == "output" for user in node.users))

    def _of_kind(self, found: Value, expected: tuple[tuple[int, ...], Kind], is_last: bool) -> Value:
        return of_kind(self.graph, found, *expected, "PyTorch", is_last)

    def _result(self, n: int, node: Any) -> tuple[Node, tuple[Group, ...], str] | None:
        found = self._values.get(node)
        if found is POISON:
            return None
        if not isinstance(found, Value):
            self._fault(node, f"result {n} is no tensor")
            return None
        _, dtype = self._exported.dtype(node)
        if dtype not in DTYPES:
            self._fault(node, f"result {n} is {dtype}: results of the language are {listed(LANGUAGE)}")
            return None
        if 0 in found.shape:
            self._fault(node, f"result {n} has no elements")
            return None
        return *result(self.graph, found), DTYPES[dtype]
