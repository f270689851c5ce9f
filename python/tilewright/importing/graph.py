"""The imported program, before it has names: a graph of the language's operations over axes."""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilewright.importing.axes import Axis, Group, common, extent, fresh, leaves, separate, split, unite

Kind = Literal["real", "int", "bool"]

KINDS: dict[str, Kind] = {"i32": "int", "i64": "int", "bool": "bool"}
"""Of dtypes whose numbers are whole, or 1 and 0; of all others they are real."""

CERTAIN = 9
"""The weight of a name that nothing else takes the place of."""


class Refusal(Exception):
    """The language cannot say an operation, and why."""


@dataclass(frozen=True)
class Index:
    """A sum of axes, each times an integer, and an integer; divided by an integer, where what is no integer is outside."""

    terms: tuple[tuple[int, Axis], ...]
    offset: int = 0
    divisor: int = 1

    def expanded(self) -> list[tuple[int, Axis]]:
        """The terms over leaves: an axis that was split is the sum of its parts, each times what is faster."""
        found: dict[Axis, int] = {}
        for factor, axis in self.terms:
            parts = axis.leaves()
            for n, part in enumerate(parts):
                found[part] = found.get(part, 0) + factor * extent(parts[n + 1 :])
        return [(factor, axis) for axis, factor in found.items()]

    def lowest(self) -> "Index":
        """The same over leaves and in lowest terms."""
        terms = self.expanded()
        common = math.gcd(self.divisor, self.offset, *(factor for factor, _ in terms))
        return Index(tuple((factor // common, axis) for factor, axis in terms), self.offset // common, self.divisor // common)


@dataclass(eq=False)
class Node:
    """A value. `over` and `constants` stand behind the semicolon of a call; a view has indices, a renaming pairs of axes."""

    op: str
    args: tuple["Node", ...] = ()
    over: tuple[Axis, ...] = ()
    constants: tuple[float, ...] = ()
    index: tuple[tuple[Axis, Index], ...] = ()
    fill: float | None = None
    own: tuple[Axis, ...] = ()
    """The axes of what has no arguments."""
    removes: bool = False
    """Whether the axes behind the semicolon disappear."""
    hint: str = ""
    hint_weight: int = 0

    def __post_init__(self) -> None:
        # Once, from those of the arguments: a graph has exponentially many paths.
        found: dict[Axis, None] = dict.fromkeys(leaves(self.own))
        for arg in self.args:
            found.update(dict.fromkeys(arg.axes()))
        for gone in (*(self.over if self.removes else ()), *(source for source, _ in self.index)):
            for leaf in gone.leaves():
                found.pop(leaf, None)
        for _, index in self.index:
            found.update(dict.fromkeys(axis for _, axis in index.expanded()))
        self._axes = tuple(found)

    def axes(self) -> tuple[Axis, ...]:
        """The leaves, each once, in the order in which they are met."""
        return tuple(dict.fromkeys(leaves(self._axes)))

    def name(self, hint: str, weight: int) -> None:
        """What it might be called, if it is bound to a name."""
        if hint and weight > self.hint_weight:
            self.hint, self.hint_weight = hint, weight


@dataclass(frozen=True)
class Value:
    """A tensor of the framework: a node, and the axes of each dimension. A node may lack axes of its dimensions: it is repeated along them. A boolean
    tensor is true where its node is not negative, or with `negated` where it is."""

    node: Node
    dims: tuple[Group, ...]
    kind: Kind = "real"
    negated: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent(dim) for dim in self.dims)

    @property
    def rank(self) -> int:
        return len(self.dims)

    def dim(self, at: int) -> Group:
        return leaves(self.dims[at])

    def axes(self) -> Group:
        return leaves(axis for dim in self.dims for axis in dim)

    def with_(self, node: Node | None = None, dims: Sequence[Group] | None = None, kind: Kind | None = None) -> "Value":
        made = Value(node or self.node, tuple(dims if dims is not None else self.dims), kind or self.kind, self.negated)
        separate(made.axes())
        return made


@dataclass
class Graph:
    """The operations that rules are written in."""

    parameters: list[tuple[Node, tuple[Group, ...], str]] = field(default_factory=list)
    """Each with the axes of its dimensions and its dtype."""
    truths: dict[Node, Node] = field(default_factory=dict)
    """Of a truth value that is a parameter, 1 and 0 themselves."""
    whole: set[Node] = field(default_factory=set)
    """What is computed and is a whole number."""
    limits: dict[Node, int] = field(default_factory=dict)
    """Of parameters from which places are computed, the extent that the places are within, if there is one."""

    # --- Leaves -------------------------------------------------------------------------------------------------------

    def parameter(self, name: str, dtype: str, shape: Sequence[int], hints: Sequence[str]) -> Value:
        dims = tuple((Axis(size, hint, 1),) for size, hint in zip(shape, hints))
        node = Node("parameter", own=tuple(axis for dim in dims for axis in dim), hint=name, hint_weight=CERTAIN)
        self.parameters.append((node, dims, dtype))
        separate(node.own)
        # In memory a dimension of one element is an axis; in the program it is none, so that it lines up with anything.
        single = tuple((axis, Index(())) for (axis,) in dims if axis.extent == 1)
        for axis, _ in single:
            axis.pinned = True
            axis.hint("one", 2)
        read = Node("view", (node,), index=single, hint=name, hint_weight=CERTAIN) if single else node
        kind = KINDS.get(dtype, "real")
        if kind == "bool":
            # 1 and 0 become 0 and -1: not negative where it is true.
            read, held = self.shifted(read, -1), read
            self.truths[read] = held
        return Value(read, tuple(() if dim[0].extent == 1 else dim for dim in dims), kind)

    def number(self, value: float | int | bool) -> Value:
        if isinstance(value, bool):
            return Value(Node("constant", constants=(1 if value else -1,)), (), "bool")
        if isinstance(value, float) and math.isnan(value):
            raise Refusal("NaN is no number of the language")
        return Value(Node("constant", constants=(value,)), (), "int" if isinstance(value, int) else "real")

    def empty(self, shape: Sequence[int], kind: Kind) -> Value:
        """A tensor without elements: the language has none, so nothing may come of it but others, and `cat` passes it over."""
        return Value(Node("constant", constants=(0,)), tuple(fresh(size) for size in shape), kind)

    def iota(self, group: Group) -> Node:
        """The index along a dimension."""
        found: Node | None = None
        for n, axis in enumerate(group):
            term = self.scaled(Node("iota", over=(axis,), own=(axis,)), extent(group[n + 1 :]))
            found = term if found is None else Node("add", (found, term))
        return found or Node("constant", constants=(0,))

    # --- Numbers and truth ----------------------------------------------------------------------------------------------

    def value(self, x: "Value | float | int | bool") -> Value:
        return x if isinstance(x, Value) else self.number(x)

    def real(self, x: "Value | float | int | bool") -> Value:
        """A number: 1 and 0 of a truth value."""
        x = self.value(x)
        if x.kind != "bool":
            return x
        if x.node in self.truths and not x.negated:
            return Value(self.truths[x.node], x.dims, "int")
        yes, no = (0, 1) if x.negated else (1, 0)
        node = Node("select", (x.node, Node("constant", constants=(yes,)), Node("constant", constants=(no,))))
        return Value(node, x.dims, "int")

    def truth(self, x: "Value | float | int | bool") -> Value:
        """A truth value: a number is true where it is not zero."""
        x = self.value(x)
        if x.kind == "bool":
            return x
        if x.node.op == "constant":
            return Value(self.number(x.node.constants[0] != 0).node, x.dims, "bool")
        return Value(self.negative(self.call("abs", x.node)), x.dims, "bool", negated=True)

    def condition(self, x: Value) -> Node:
        """A node that is not negative where a truth value is true."""
        if not x.negated:
            return x.node
        return Node("select", (x.node, Node("constant", constants=(-1,)), Node("constant", constants=(1,))))

    def holds(self, x: Value) -> bool:
        """Whether a constant truth value is true."""
        return (x.node.constants[0] >= 0) != x.negated

    def negation(self, x: Value) -> Value:
        return Value(x.node, x.dims, "bool", not x.negated)

    # --- Nodes ------------------------------------------------------------------------------------------------------------

    def constant(self, value: float) -> Node:
        return Node("constant", constants=(value,))

    def call(self, function: str, *args: Node, over: Iterable[Axis] = (), constants: Sequence[float] = (), removes: bool = False) -> Node:
        return Node(function, args, tuple(over), tuple(constants), removes=removes)

    def negative(self, x: Node) -> Node:
        if x.op == "constant":
            return self.constant(-x.constants[0])
        return x.args[0] if x.op == "neg" else Node("neg", (x,))

    def scaled(self, x: Node, factor: float) -> Node:
        if factor == 1:
            return x
        if x.op == "constant":
            return self.constant(x.constants[0] * factor)
        return Node("mul", (x, self.constant(factor)))

    def shifted(self, x: Node, by: float) -> Node:
        if by == 0:
            return x
        if x.op == "constant":
            return self.constant(x.constants[0] + by)
        if x.op in ("add", "sub") and isinstance(by, int):
            # Whole numbers, which add up exactly.
            first, second = x.args
            if first.op == "constant" and isinstance(first.constants[0], int):
                return Node(x.op, (self.constant(first.constants[0] + by), second))
            if second.op == "constant" and isinstance(second.constants[0], int):
                return self.shifted(first, by + (second.constants[0] if x.op == "add" else -second.constants[0]))
        return Node("sub", (x, self.constant(-by))) if by < 0 else Node("add", (x, self.constant(by)))

    def view(self, x: Node, index: Sequence[tuple[Axis, Index]], fill: float | None = None) -> Node:
        """Reads at computed places; the axes on the left stay whole from now on."""
        for source, _ in index:
            source.root().pinned = True
        # In the index, and beside it: those of the source that stay.
        made = Node("view", (x,), index=tuple(index), fill=fill)
        separate(made.axes())
        return made

    def renamed(self, x: Node, pairs: Mapping[Axis, Axis]) -> Node:
        """The same under other names; pairs of axes that it lacks are passed over."""
        own = x.axes()
        pairs = {source: target for source, target in pairs.items() if source in own and source is not target}
        if not pairs:
            return x
        if x.op == "iota" and own == tuple(pairs):
            return Node("iota", over=tuple(pairs.values()), own=tuple(pairs.values()))
        for source, target in pairs.items():
            source.twins.append(target)
            target.twins.append(source)
        return Node("rename", (x,), index=tuple((source, Index(((1, target),))) for source, target in pairs.items()))

    def sources(self, x: Node) -> list[str]:
        """The dtypes of the parameters that a node is computed from."""
        return [dtype for node, _, dtype in self.parameters if node in self._below(x)]

    def limit(self, x: Node, size: int) -> None:
        """The whole numbers that a node is computed from are places within this extent."""
        for node in self._below(x):
            if node.op == "parameter":
                self.limits[node] = min(self.limits.get(node, size), size)

    def is_of_whole(self, x: Node) -> bool:
        """Whether a truth value is one of nothing but whole numbers."""
        below = self._below(x, self.whole)
        return all(dtype in KINDS for node, _, dtype in self.parameters if node in below)

    def _below(self, x: Node, until: Container[Node] = ()) -> set[Node]:
        found, todo = {x}, [x]
        while todo:
            node = todo.pop()
            new = [arg for arg in node.args if arg not in found] if node not in until else []
            found.update(new)
            todo += new
        return found

    def repeated(self, x: Node, group: Iterable[Axis]) -> Node:
        """With axes that it lacks, along which it does not vary."""
        own = x.axes()
        for axis in leaves(group):
            if axis not in own:
                index = Node("iota", over=(axis,), own=(axis,))
                x = Node("add", (x, index if axis.extent == 1 else Node("mul", (self.constant(0), index))))
        return x

    def merged(self, x: Value, dim: int) -> tuple[Value, Axis]:
        """A value with one axis in a dimension that is a group."""
        node, new = self.gathered(x, x.dim(dim))
        return x.with_(node, [(new,) if n == dim else own for n, own in enumerate(x.dims)]), new

    def gathered(self, x: Value, group: Group) -> tuple[Node, Axis]:
        """A node with one axis in the place of several, `sum(view(x; 4*h -> u - d; fill = 0); d)`: for each u there is one d that leaves a multiple."""
        new = Axis(extent(group))
        new.hints = [(weight - 1, name) for axis in group for weight, name in axis.hints]
        separate((*x.axes(), new))
        slow, rest = group[0], group[1:]
        terms = ((1, new), *((-extent(rest[n + 1 :]), axis) for n, axis in enumerate(rest)))
        read = self.view(self.repeated(x.node, (slow,)), [(slow, Index(terms, divisor=extent(rest)))], 0)
        return self.call("sum", read, over=rest, removes=True), new

    # --- Dimensions ---------------------------------------------------------------------------------------------------------

    def replaced(self, x: Value, old: Axis, new: Group, index: Index) -> Value:
        """A value whose axis `old` is read as `index` of the axes `new`."""
        node = self.view(x.node, [(old, index)]) if old in x.node.axes() else x.node
        dims = [tuple(a for leaf in leaves(dim) for a in (new if leaf is old else (leaf,))) for dim in x.dims]
        return x.with_(node, dims)

    def split_leaf(self, x: Value, leaf: Axis, slow: int) -> Value:
        """Splits a leaf of a value in two: everywhere, or if an index needs it whole, in this value alone."""
        sizes = (slow, leaf.extent // slow)
        if split(leaf, sizes):
            return x
        new = (Axis(sizes[0]), Axis(sizes[1]))
        return self.replaced(x, leaf, new, Index(((sizes[1], new[0]), (1, new[1]))))

    def reshaped(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in other dimensions."""
        if 0 in shape:
            return self.empty(shape, x.kind)
        while True:
            found = self._cut(x, shape)
            if isinstance(found, list):
                return x.with_(dims=found)
            x = found

    def _cut(self, x: Value, shape: Sequence[int]) -> "list[Group] | Value":
        """The axes of each of these dimensions; or a value with other axes, of which that is asked again."""
        todo, dims = list(x.axes()), []
        for at, size in enumerate(shape):
            group: list[Axis] = []
            while extent(group) < size:
                have, leaf = extent(group), todo.pop(0)
                if size % (have * leaf.extent) == 0:
                    group.append(leaf)
                elif size % have == 0 and leaf.extent % (size // have) == 0:
                    return self.split_leaf(x, leaf, size // have)
                else:
                    return self._uncut(x, [*group, leaf, *todo], shape[at:])
            dims.append(tuple(group))
        return dims

    def _uncut(self, x: Value, rest: Sequence[Axis], shape: Sequence[int]) -> Value:
        """With one axis for the first ones that are several of the dimensions together: the factors of neither are those of the other."""
        taken, wanted = 1, 1
        while taken == 1 or extent(rest[:taken]) != math.prod(shape[:wanted]):
            if extent(rest[:taken]) < math.prod(shape[:wanted]) or taken == 1:
                taken += 1
            else:
                wanted += 1
        run = tuple(rest[:taken])
        node, new = self.gathered(x, run)
        return x.with_(node, [(new,) if leaf is run[0] else (leaf,) for leaf in x.axes() if leaf is run[0] or leaf not in run])

    def aligned(self, values: Sequence[Value]) -> tuple[list[Value], tuple[Group, ...]]:
        """Values whose dimensions are the same from the last one on, and these dimensions: what broadcasting does."""
        values = list(values)
        rank = max(x.rank for x in values)
        for n in range(1, len(values)):
            while True:
                changed = self._factored(values, n, rank)
                if not changed:
                    break
        dims: list[Group] = [()] * rank
        for n, x in enumerate(values):
            pairs: dict[Axis, Axis] = {}
            missing: list[tuple[int, Group]] = []
            for at in range(x.rank):
                place = rank - x.rank + at
                group = x.dim(at)
                if not group:
                    continue
                if not dims[place]:
                    missing.append((place, group))
                    continue
                pairs.update(zip(group, leaves(dims[place])))
            x = self.matched(x, pairs, [a for _, group in missing for a in group], leaves(a for dim in dims for a in dim))
            for place, _ in missing:
                dims[place] = x.dim(place - rank + x.rank)
            values[n] = x
            # Before the next one is lined up, which may know one of them under a name that another one has here.
            separate(a for dim in dims for a in dim)
        return values, tuple(leaves(dim) for dim in dims)

    def _factored(self, values: list[Value], last: int, rank: int) -> bool:
        """Splits leaves until the dimensions of the first values have the same factors; whether it did something."""
        for place in range(rank):
            groups = [(n, values[n].dim(place - rank + values[n].rank)) for n in range(last + 1) if place - rank + values[n].rank >= 0]
            groups = [(n, group) for n, group in groups if group]
            for (m, one), (n, other) in zip(groups, groups[1:]):
                for a, b in zip(one, other):
                    if a.extent == b.extent:
                        continue
                    slow = common(a.extent, b.extent)
                    if slow is None:
                        # One axis for the one, which can be split as the other is.
                        values[m], _ = self.merged(values[m], place - rank + values[m].rank)
                        return True
                    which, leaf = (m, a) if a.extent > slow else (n, b)
                    values[which] = self.split_leaf(values[which], leaf, slow)
                    return True
        return False

    def matched(self, x: Value, pairs: Mapping[Axis, Axis], free: Sequence[Axis], present: Sequence[Axis]) -> Value:
        """A value whose axes are those that they are paired with: the same axis from now on if they may be, and renamed otherwise. Axes that stay
        `free` get names that are not `present`."""
        names: dict[Axis, Axis] = {}
        for own, other in pairs.items():
            if not unite(other, own):
                names[own.root()] = other.root()
        present = [axis.root() for axis in present]
        taken = {*present, *(other.root() for other in pairs.values())}
        for axis in (a.root() for a in free):
            if axis in taken:
                new = Axis(axis.extent)
                new.hints = [(weight - 1, name) for weight, name in axis.hints]
                names[axis] = new
        if not names:
            return x
        # An axis that stays must not get the name that another one takes.
        node = self.renamed(x.node, names)
        dims = [tuple(names.get(leaf, leaf) for leaf in leaves(dim)) for dim in x.dims]
        return x.with_(node, dims)

    # --- What most rules are ---------------------------------------------------------------------------------------------------

    def pointwise(self, make: Callable[..., Node], *values: "Value | float | int | bool", kind: Kind | None = None) -> Value:
        """A function of numbers, element by element."""
        found, dims = self.aligned([self.real(x) for x in values])
        kinds: Kind = "int" if all(x.kind == "int" for x in found) else "real"
        return Value(make(*(x.node for x in found)), dims, kind or kinds)

    def select(self, condition: Value, x: "Value | float | int | bool", y: "Value | float | int | bool") -> Value:
        condition = self.truth(condition)
        x, y = self.value(x), self.value(y)
        if x.kind == y.kind == "bool" and x.node.op == y.node.op == "constant" and x.rank == y.rank == 0:
            if self.holds(x) != self.holds(y):
                return condition if self.holds(x) else self.negation(condition)
        if x.kind == y.kind == "bool":
            x, y, kind = Value(self.condition(x), x.dims, "bool"), Value(self.condition(y), y.dims, "bool"), "bool"
        else:
            x, y = self.real(x), self.real(y)
            kind = "int" if x.kind == y.kind == "int" else "real"
        (c, x, y), dims = self.aligned([condition, x, y])
        first, second = (y, x) if condition.negated else (x, y)
        return Value(Node("select", (c.node, first.node, second.node)), dims, kind)  # type: ignore[arg-type]

    def product(self, x: Value, y: Value, over: Sequence[Axis]) -> Node:
        """The sum of products over axes; of lined up values."""
        own = {*x.node.axes(), *y.node.axes()}
        present = [axis for axis in leaves(over) if axis in own]
        times = extent(axis for axis in leaves(over) if axis not in own)
        separate([*own, *leaves(over)])
        if present:
            return self.scaled(self.call("dot", x.node, y.node, over=present, removes=True), times)
        one, other = (y.node, x.node) if x.node.op == "constant" else (x.node, y.node)
        return self.scaled(self.scaled(one, other.constants[0]) if other.op == "constant" else Node("mul", (one, other)), times)

    def reduced(self, function: str, x: Node, over: Iterable[Axis]) -> Node:
        """`sum`, `mean`, `max`, `min` or `prod` over axes; it does not vary along those that it lacks."""
        if function == "prod":
            x = self.repeated(x, leaves(over))
        own = x.axes()
        present = [axis for axis in leaves(over) if axis in own]
        times = extent(axis for axis in leaves(over) if axis not in own) if function == "sum" else 1
        made = self.call(function, x, over=present, removes=True) if present else x
        return self.scaled(made, times)
