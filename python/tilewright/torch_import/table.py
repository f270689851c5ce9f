"""The table of rules: one small function for each operation of PyTorch, by the operation's name.

A rule takes the graph and the operation's arguments, by the names of its schema, and gives a value, or several. It names the arguments that it knows:
another one that was given something else than its default is refused, so no argument is ever passed over.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.importing.graph import Graph, Refusal, Value

RULES: dict[str, "Rule"] = {}
"""By `add.Tensor`, or by `add` where one rule serves every overload."""

NO_MEANING = frozenset(
    {"copy", "cudnn_enable", "cudnn_enabled", "device", "generator", "implicit", "layout", "memory_format", "non_blocking", "pin_memory"}
)
"""Arguments that say where or how something is computed, and nothing of what. So does a dtype: programs are over the reals, and whether a result is a
number, a whole number or a truth value is looked at for each."""


@dataclass(frozen=True)
class Rule:
    """How an operation is said in the language."""

    function: Callable[..., Any]
    arguments: frozenset[str]

    def __call__(self, graph: Graph, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
        # PyTorch's defaults, and not the rule's: those of overloads differ.
        known = {name: value for name, value in defaults.items() if name in self.arguments}
        for name, value in given.items():
            if name in self.arguments:
                known[name] = value
            elif name not in NO_MEANING and name != "dtype" and not _same(value, defaults.get(name)):
                raise Refusal(f"its argument {name}={'a tensor' if isinstance(value, Value) else repr(value)} is not supported")
        return self.function(graph, **known)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function into the table."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            put_rule(name, function)
        return function

    return put


def put_rule(name: str, function: Callable[..., Any]) -> None:
    """Puts a function into the table under a name."""
    if name in RULES:
        raise ValueError(f"two rules for {name}")
    RULES[name] = Rule(function, frozenset(list(inspect.signature(function).parameters)[1:]))


def of(overload: str) -> Rule | None:
    """The rule of an operation such as `add.Tensor`."""
    return RULES.get(overload) or RULES.get(overload.split(".")[0])
