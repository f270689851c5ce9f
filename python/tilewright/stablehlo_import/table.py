"""The table of rules: one small function for each operation of StableHLO, by the operation's name.

A rule takes the graph and the operands, and as keywords the attributes that it knows: another one is refused, so no attribute is ever passed over. The
keyword `shape` is that of the result, `body` the operation that a reduction applies, `scope` what JAX calls the place where the operation is.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.importing.graph import Graph, Refusal

RULES: dict[str, "Rule"] = {}
"""By names such as `stablehlo.add`."""

NO_MEANING = frozenset(
    {
        "algorithm",
        "compare_type",
        "composite_attributes",
        "decomposition",
        "indices_are_sorted",
        "name",
        "precision_config",
        "result_accuracy",
        "unique_indices",
        "version",
    }
)
"""Attributes that say how something is computed, and nothing of what. So do those of other dialects, which have a dot in their names."""

LAZY = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.select"})
"""Operations that may be given a number that the language lacks: nobody looks at it where the condition of a choice never holds."""


@dataclass(frozen=True)
class Rule:
    """How an operation is said in the language."""

    function: Callable[..., Any]
    attributes: frozenset[str]

    def __call__(self, graph: Graph, operands: Sequence[Any], attributes: Mapping[str, Any], about: Mapping[str, Callable[[], Any]]) -> Any:
        known = {name: find() for name, find in about.items() if name in self.attributes}
        for name, value in attributes.items():
            if name in self.attributes:
                known[name] = value
            elif name not in NO_MEANING and "." not in name:
                raise Refusal(f"its attribute {name} = {value} is not supported")
        return self.function(graph, *operands, **known)


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function into the table; the dialect is StableHLO where none is named."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            put_rule(name, function)
        return function

    return put


def put_rule(name: str, function: Callable[..., Any]) -> None:
    """Puts a function into the table under a name."""
    name = name if "." in name else f"stablehlo.{name}"
    if name in RULES:
        raise ValueError(f"two rules for {name}")
    keywords = (n for n, p in inspect.signature(function).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY)
    RULES[name] = Rule(function, frozenset(keywords))
