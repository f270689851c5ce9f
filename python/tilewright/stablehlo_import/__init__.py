"""From a StableHLO module to a program: JAX's MLIR bindings, a table of rules, a text, and a comparison.

| module | what it holds |
|---|---|
| `module` | what a module says: its operations, its inputs, where in the source each operation is |
| `table`, `rules/` | one small function for each operation of StableHLO |
| `idioms` | functions of the language that JAX takes apart, found again |
| `check` | the program against XLA, both in f64 |

Axes, the graph and the text are those of `tilewright.importing`. Only `module` and `check` import JAX.
"""

from collections.abc import Sequence
from typing import Any

from tilewright._native import taken
from tilewright.errors import Unsupported, UnsupportedError
from tilewright.program import Program

try:
    import jax as _jax
except ImportError as error:
    raise ImportError("tilewright.from_stablehlo needs JAX 0.10, whose MLIR bindings read modules: pip install tilewright[jax]") from error
if _jax.__version_info__[:2] != (0, 10):
    # Its bindings are none of its public interfaces.
    raise ImportError(f"tilewright.from_stablehlo needs JAX 0.10, found {_jax.__version__}: pip install tilewright[jax]")

from tilewright.importing.axes import Group
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.importing.text import Text
from tilewright.importing.walk import LANGUAGE, POISON, flat, input_hints, listed, of_kind, result
from tilewright.stablehlo_import import check as checking
from tilewright.stablehlo_import import rules, table
from tilewright.stablehlo_import.module import Module, Operation, Type, operations

assert rules, "importing these fills the table"

MOST_STEPS = 1024
"""Of a loop: each is written on its own."""

HINTS = {"reduce": "r", "broadcast_in_dim": "x", "reshape": "x", "transpose": "x", "slice": "x", "gather": "x", "concatenate": "c"}
"""What results are called that no scope names; others `y`."""


LOOPS = frozenset({"body", "closed_call", "cond", "while"})
"""Scopes that JAX makes of its own."""


def import_program(given: Any, inputs: Sequence[Any] | None, name: str | None, check: bool) -> Program:
    """As `tilewright.from_stablehlo`."""
    module = Module(given, frozenset(table.RULES))
    made = _Import(module)
    with module.context:
        results = made.run()
    name = name or module.name
    text = Text(name, made.graph, results)
    source = text.source()
    paths = zip(text.parameter_names(), (given.path for given in module.inputs))
    program = Program(source, file=f"{name} (imported)", bindings={parameter: path for parameter, path in paths if path is not None})
    if check:
        checking.compare(program, module, inputs, [made.graph.limits.get(node) for node, _, _ in made.graph.parameters])
    return program


class _Import:
    """One walk over the operations of a module."""

    def __init__(self, module: Module) -> None:
        self.graph = Graph()
        self._module = module
        self._values: dict[Any, Any] = {}
        self._faults: list[Unsupported] = []

    def run(self) -> list[tuple[Node, tuple[Group, ...], str]]:
        """The results of the program: their nodes, dimensions and dtypes."""
        for given in self._module.inputs:
            self._values[given.value] = self._parameter(given.value, given.name)
        walked = self._walked(self._module.block)
        results = [self._result(n, found, value) for n, (found, value) in enumerate(zip(walked, operations(self._module.block)[1]))]
        if self._faults:
            raise UnsupportedError(self._faults)
        return [found for found in results if found is not None]

    def _fault(self, of: Any, operation: str, reason: str) -> Any:
        """Of an operation, or of an argument or result."""
        fault = Unsupported(of.get_name(), operation, reason, self._module.source(of.location))
        if fault not in self._faults:
            self._faults.append(fault)
        return POISON

    def _parameter(self, value: Any, name: str) -> Any:
        try:
            type_ = Type.of(value.type)
        except Refusal as refusal:
            return self._fault(value, "parameter", str(refusal))
        if type_.in_language not in LANGUAGE:
            return self._fault(value, "parameter", f"`{name}` is of {type_.dtype}: parameters of the language are {listed(LANGUAGE)}")
        if 0 in type_.shape:
            return self._fault(value, "parameter", f"`{name}` has no elements")
        return self.graph.parameter(name, type_.in_language, type_.shape, input_hints(len(type_.shape)))

    def _walked(self, block: Any) -> list[Any]:
        """What a block gives."""
        listed, results = operations(block)
        for operation in listed:
            self._values.update(zip(operation.results, self._called(operation)))
        return [self._values[value] for value in results]

    def _called(self, operation: Operation) -> Sequence[Any]:
        """What is known of each result of an operation."""
        operands = [self._values[operand] for operand in operation.operands]
        if any(operand is POISON for operand in operands) and operation.name != "stablehlo.while":
            return [POISON] * len(operation.results)
        try:
            if operation.name in ("stablehlo.case", "stablehlo.if"):
                return self._walked(self._branch(operation, operands[0]))
            if operation.name == "stablehlo.while":
                return self._repeated(operation, operands)
            rule = table.RULES.get(operation.name)
            if rule is None:
                raise Refusal("no rule says it in the language")
            types = [Type.of(value.type) for value in operation.results]
            for operand in operands:
                if isinstance(operand, Refusal) and operation.name not in table.LAZY:
                    raise operand
            if any(0 in operand.shape for operand in operands if isinstance(operand, Value)) and any(0 not in type_.shape for type_ in types):
                if operation.name not in ("stablehlo.concatenate", "stablehlo.pad"):
                    raise Refusal("a tensor without elements")
            about = {"shape": lambda: types[0].shape, "body": operation.body, "scope": operation.scope}
            found = rule(self.graph, operands, operation.attributes(), about)
            lasts = (all(use.owner.name == "func.return" for use in value.uses) for value in operation.results)
            return [self._checked(operation, x, type_, is_last) for x, type_, is_last in zip(flat([found]), types, lasts)]
        except Refusal as refusal:
            reason = str(refusal)
        except Exception as error:
            # A fault of a rule. Whoever imports still learns of all others at once, and which operation it is.
            reason = f"its rule failed: {type(error).__name__}: {error}"
        return [self._fault(operation, operation.described, reason)] * len(operation.results)

    def _branch(self, operation: Operation, chosen: Value) -> Any:
        """The branch that is taken, if that is known, as in what JAX writes for several platforms."""
        if chosen.node.op != "constant":
            raise Refusal("a branch that is chosen by a number that is computed")
        branches = operation.branches()
        if chosen.kind == "bool":
            return branches[0 if self.graph.holds(chosen) else 1]
        n = int(chosen.node.constants[0])
        return branches[n if 0 <= n < len(branches) else -1]

    def _repeated(self, operation: Operation, carried: list[Any]) -> list[Any]:
        """A loop, step by step, whose steps are counted by numbers that are known: as `scan` is."""
        condition, body = operation.branches()
        for _ in range(MOST_STEPS):
            self._values.update(zip(condition.arguments, carried))
            (goes_on,) = self._walked(condition)
            if goes_on is POISON:
                return [POISON] * len(carried)
            if goes_on.node.op != "constant":
                raise Refusal("a loop that ends by a number that is computed")
            if not self.graph.holds(goes_on):
                return carried
            self._values.update(zip(body.arguments, carried))
            carried = self._walked(body)
        raise Refusal(f"a loop of more than {MOST_STEPS} steps")

    def _checked(self, operation: Operation, found: Any, type_: Type, is_last: bool) -> Any:
        """A result has the shape that its type says, and is a number where that has one."""
        if isinstance(found, Refusal):
            return found
        scope = operation.scope()[-1].removeprefix("jit(").removesuffix(")") if len(operation.scope()) > 1 else ""
        if scope.isidentifier() and scope not in LOOPS and taken(scope) is None:
            found.node.name(scope, 2)
        else:
            found.node.name(HINTS.get(operation.name.split(".")[-1], "y"), 1)
        return of_kind(self.graph, found, type_.shape, type_.kind, "the module", is_last)

    def _result(self, n: int, found: Any, value: Any) -> tuple[Node, tuple[Group, ...], str] | None:
        if found is POISON:
            return None
        if isinstance(found, Refusal):
            self._fault(value, "return", f"result {n}: {found}")
            return None
        type_ = Type.of(value.type)
        if type_.in_language not in LANGUAGE:
            self._fault(value, "return", f"result {n} is {type_.dtype}: results of the language are {listed(LANGUAGE)}")
            return None
        if 0 in found.shape:
            self._fault(value, "return", f"result {n} has no elements")
            return None
        return *result(self.graph, found), type_.in_language
