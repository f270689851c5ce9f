"""The text of an imported program: names for axes and values, and what is written in one line."""

import re
from collections.abc import Callable, Iterable, Sequence

from tilewright._native import taken
from tilewright.importing.axes import Axis, Group, extent, leaves
from tilewright.importing.graph import Graph, Index, Node

WIDTH = 110
"""Longer expressions are bound to names, piece by piece."""

INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2)}
"""How tightly they bind."""
ATOM = 4
NEGATIVE = 3


class Names:
    """Names that are free, each given once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def give(self, wanted: str) -> str:
        """The name, or the first free one that is it and a number."""
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII).strip("_") or "x"
        if base[0].isdigit():
            base = f"x{base}"
        base = base[:100]
        name, n = base, 1
        while name in self._given or taken(name):
            n += 1
            name = f"{base}{'_' if base[-1].isdigit() else ''}{n}"
        self._given.add(name)
        return name


class Text:
    """Prints one graph."""

    def __init__(self, name: str, graph: Graph, outputs: Sequence[tuple[Node, tuple[Group, ...], str]]) -> None:
        self._graph = graph
        self._outputs = outputs
        self._program = Names().give(name)
        self._axes: dict[Axis, str] = {}
        self._axis_names = Names()
        self._value_names = Names()
        self._bound: dict[Node, str] = {}
        self._lines: list[str] = []
        self._uses: dict[Node, int] = {}
        self._texts: dict[Node, tuple[str, int]] = {}

    def source(self) -> str:
        """The text of the program."""
        order = self._order()
        self._name_axes(order)
        for node, dims, dtype in self._graph.parameters:
            self._bound[node] = self._value_names.give(node.hint)
            self._lines.append(f"{self._bound[node]} = parameter {dtype} {self._dims(dims)}")
        written = self._texts
        for node in order:
            written[node] = self._written(node, written)
            text, level = written[node]
            if level == ATOM and not node.args:
                continue
            if self._uses[node] > 1 or len(text) > WIDTH:
                self._bind(node, text, written)
        results = []
        for node, dims, dtype in self._outputs:
            text, _ = written[node]
            if len(self._outputs) > 1 and len(text) > WIDTH // 2:
                self._bind(node, text, written)
                text = self._bound[node]
            results.append(f"{dtype} {self._dims(dims)} {text}")
        axes = [f"{name} = {axis.extent}" for axis, name in self._axes.items()]
        lines = [f"program {self._program}"]
        lines += ["axis " + ", ".join(axes[n : n + 12]) for n in range(0, len(axes), 12)]
        return "\n".join([*lines, *self._lines, "return " + ", ".join(results)]) + "\n"

    def parameter_names(self) -> list[str]:
        """Of the parameters, in their order; once the text was made."""
        return [self._bound[node] for node, _, _ in self._graph.parameters]

    def _bind(self, node: Node, text: str, written: dict[Node, tuple[str, int]]) -> None:
        if node not in self._bound:
            self._bound[node] = self._value_names.give(node.hint or "y")
            self._lines.append(f"{self._bound[node]} = {text}")
        written[node] = self._bound[node], ATOM

    def _order(self) -> list[Node]:
        """The nodes that the results need, arguments first. Not recursive: programs are long."""
        order: dict[Node, None] = {}
        self._uses = {}
        todo: list[tuple[Node, bool]] = [(node, False) for node, _, _ in reversed(self._outputs)]
        seen: set[Node] = set()
        while todo:
            node, is_done = todo.pop()
            if is_done:
                order[node] = None
                continue
            if node in seen:
                continue
            seen.add(node)
            todo.append((node, True))
            todo.extend((arg, False) for arg in reversed(node.args))
        for node in order:
            for arg in node.args:
                self._uses[arg] = self._uses.get(arg, 0) + 1
        for node, _, _ in self._outputs:
            self._uses[node] = self._uses.get(node, 0) + 1
        return list(order)

    # --- Axes -----------------------------------------------------------------------------------------------------------

    def _name_axes(self, order: Sequence[Node]) -> None:
        """In the order in which they are met: those of the parameters first."""
        met: dict[Axis, None] = {}
        for _, dims, _ in self._graph.parameters:
            met.update(dict.fromkeys(leaves(a for dim in dims for a in dim)))
        for node in order:
            for axis in (*node.own, *node.over, *(a for source, index in node.index for a in (source, *(t for _, t in index.terms)))):
                met.update(dict.fromkeys(axis.leaves()))
        for _, dims, _ in self._outputs:
            met.update(dict.fromkeys(leaves(a for dim in dims for a in dim)))
        for axis in met:
            hints = sorted(axis.root().hints, key=lambda hint: -hint[0])
            self._axes[axis] = self._axis_names.give(hints[0][1] if hints else "a")

    def _axis(self, axis: Axis) -> str:
        return self._axes[axis.root()]

    def _listed(self, axes: Iterable[Axis]) -> list[str]:
        return [self._axis(leaf) for leaf in leaves(axes)]

    def _dims(self, dims: Sequence[Group]) -> str:
        parts = []
        for dim in dims:
            names = self._listed(dim)
            parts.append(names[0] if len(names) == 1 else f"({' '.join(names)})")
        return f"[{', '.join(parts)}]"

    # --- Expressions ----------------------------------------------------------------------------------------------------------

    def _written(self, node: Node, written: dict[Node, tuple[str, int]]) -> tuple[str, int]:
        """A node's text, and how tightly it binds."""
        if node in self._bound:
            return self._bound[node], ATOM
        args = [written[arg] for arg in node.args]
        if node.op in INFIX:
            return self._infix(node, args, written)
        if node.op == "neg":
            text, level = args[0]
            return f"-{text if level >= NEGATIVE else f'({text})'}", NEGATIVE
        special = SPECIAL.get(node.op)
        if special is not None:
            return special(self, node, [text for text, _ in args])
        behind = [*self._listed(node.over), *map(number, node.constants)]
        text = ", ".join(text for text, _ in args)
        return f"{node.op}({text}{'; ' if behind else ''}{', '.join(behind)})", ATOM

    def _infix(self, node: Node, args: Sequence[tuple[str, int]], written: dict[Node, tuple[str, int]]) -> tuple[str, int]:
        sign, level = INFIX[node.op]
        (left, of_left), (right, of_right) = args
        if len(left) + len(right) > WIDTH:
            longer = max(node.args, key=lambda arg: len(written[arg][0]))
            if longer.args and longer not in self._bound:
                self._bind(longer, written[longer][0], written)
                return self._infix(node, [written[arg] for arg in node.args], written)
        left = left if of_left >= level else f"({left})"
        right = right if of_right > level else f"({right})"
        return f"{left} {sign} {right}", level

    def constant(self, node: Node, _: Sequence[str]) -> tuple[str, int]:
        value = node.constants[0]
        return number(value), NEGATIVE if value < 0 else ATOM

    def iota(self, node: Node, _: Sequence[str]) -> tuple[str, int]:
        parts = node.over[0].leaves()
        terms = []
        for n, part in enumerate(parts):
            factor = extent(parts[n + 1 :])
            terms.append(f"iota({self._axis(part)})" if factor == 1 else f"{factor} * iota({self._axis(part)})")
        return " + ".join(terms), ATOM if len(terms) == 1 else 1

    def view(self, node: Node, args: Sequence[str]) -> tuple[str, int]:
        """A view of a view is one, where they index different axes and fill nothing or the same."""
        parts, base, text, fill = self._parts(node), node.args[0], args[0], node.fill
        read = {leaf for source, _ in node.index for leaf in source.leaves()}
        while base.op in ("view", "rename") and base not in self._bound and (fill is None or base.fill in (None, fill)):
            if any(axis in read for _, index in base.index for _, axis in index.expanded()):
                break
            read.update(leaf for source, _ in base.index for leaf in source.leaves())
            parts, base, fill = {**self._parts(base), **parts}, base.args[0], base.fill if fill is None else fill
            text = self._bound.get(base) or self._texts[base][0]
        listed = [f"{name} -> {index}" for name, index in parts.items() if name != index]
        if not listed:
            return text, 0
        filled = "" if fill is None else f"; fill = {number(fill)}"
        return f"view({text}; {', '.join(listed)}{filled})", ATOM

    def _parts(self, node: Node) -> dict[str, str]:
        """By the axes, each with its factor, what they are read at."""
        parts = {}
        for source, index in node.index:
            for n, leaf in enumerate(source.leaves()):
                at = (Index(((1, index.terms[0][1].leaves()[n]),)) if node.op == "rename" else index).lowest()
                parts[_times(at.divisor, self._axis(leaf))] = self._index(at)
        return parts

    def causal(self, node: Node, args: Sequence[str]) -> tuple[str, int]:
        i, j = node.over
        return f"causal({args[0]}; {self._axis(i)}, {self._axis(j)})", ATOM

    def _index(self, index: Index) -> str:
        text = ""
        for factor, axis in index.terms:
            term = _times(abs(factor), self._axis(axis))
            sign = "-" if factor < 0 else "+"
            text += f" {sign} {term}" if text else (f"-{term}" if factor < 0 else term)
        if not text:
            return str(index.offset)
        if index.offset:
            text += f" {'-' if index.offset < 0 else '+'} {abs(index.offset)}"
        return text


def _times(factor: int, name: str) -> str:
    return name if factor == 1 else f"{factor}*{name}"


SPECIAL: dict[str, Callable[[Text, Node, Sequence[str]], tuple[str, int]]] = {
    "constant": Text.constant,
    "iota": Text.iota,
    "view": Text.view,
    "rename": Text.view,
    "causal": Text.causal,
}


def number(value: float) -> str:
    """A number as the language writes it, exactly."""
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    whole = int(value)
    return str(whole) if whole == value and abs(whole) < 1 << 53 else repr(float(value))
