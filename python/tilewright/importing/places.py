"""The same elements in other places."""

import math
from collections.abc import Mapping, Sequence

from tilewright.importing.axes import Axis, Group, extent, fresh, leaves
from tilewright.importing.elements import total, unlike
from tilewright.importing.graph import Graph, Index, Kind, Node, Refusal, Value
from tilewright.importing.reductions import NEUTRAL


def replaced(x: Value, dim: int, group: Group) -> list[Group]:
    return [group if n == dim else own for n, own in enumerate(x.dims)]


def whole(to: Graph, x: Value, dim: int) -> tuple[Value, Axis]:
    """A value with one axis in a dimension, to be indexed."""
    group = x.dim(dim)
    if not group:
        # One element: an axis of one, so that an index can leave it.
        axis = Axis(1)
        axis.hint("one", 0)
        return x.with_(to.repeated(x.node, (axis,)), replaced(x, dim, (axis,))), axis
    if len(group) > 1:
        return to.merged(x, dim)
    return x.with_(to.repeated(x.node, group)), group[0]


def indexed(to: Graph, x: Value, dim: int, new: Group, index: Index, fill: float | None) -> Value:
    """x with dimension `dim` read at an index of new axes; truth outside is falsehood."""
    if x.kind == "bool" and fill is not None:
        x = Value(to.condition(x), x.dims, "bool")
        fill = -1
    x, axis = whole(to, x, dim)
    node = to.view(x.node, [(axis, index)], fill)
    return x.with_(node, replaced(x, dim, new))


def reshaped(to: Graph, x: Value, shape: Sequence[int]) -> Value:
    """The same elements in other dimensions. Of one that becomes several, the last ones are mostly a head and its elements."""
    made = to.reshaped(x, shape)
    for dim in x.dims:
        whole_dim = set(leaves(dim))
        parts = [group for group in map(leaves, made.dims) if group and whole_dim.issuperset(group)]
        if len(parts) > 1:
            for group, name in zip(reversed(parts), ("d", "h", "c")):
                for axis in group:
                    axis.hint(name, 2)
    return made


def part(to: Graph, x: Value, dim: int, first: int, count: int, step: int = 1) -> Value:
    """Elements first, first + step, …"""
    if count == x.shape[dim]:
        return x
    if count == 0:
        return to.empty([0 if n == dim else own for n, own in enumerate(x.shape)], x.kind)
    group = x.dim(dim)
    if step == 1 and group:
        # A part of several of one size is one coordinate of an axis, and its parts share the other one.
        if len(group) == 1 and group[0].extent % count == 0 and first % count == 0 and count > 1:
            x = to.split_leaf(x, group[0], group[0].extent // count)
            group = x.dim(dim)
            group[0].hint("c", 1)
        inner = extent(group[1:])
        if len(group) > 1 and first % inner == 0 and count % inner == 0:
            slow, rest = group[0], group[1:]
            if count == inner:
                return _coordinate(to, x, dim, slow, first // inner, rest)
            new = Axis(count // inner)
            new.hints = [(weight - 1, name) for weight, name in slow.root().hints]
            node = to.view(x.node, [(slow, Index(((1, new),), first // inner))]) if slow in x.node.axes() else x.node
            return x.with_(node, replaced(x, dim, (new, *rest)))
    if count == 1:
        return element(to, x, dim, first, keep=True)
    new_group = fresh(count)
    if len(group) == 1:
        new_group[0].hints = [(weight - 1, name) for weight, name in group[0].root().hints]
    if not set(group) & set(x.node.axes()):
        return x.with_(dims=replaced(x, dim, new_group))
    return indexed(to, x, dim, new_group, Index(((step, new_group[0]),), first), None)


def _coordinate(to: Graph, x: Value, dim: int, axis: Axis, coordinate: int, rest: Group) -> Value:
    node = to.view(x.node, [(axis, Index((), coordinate))]) if axis in x.node.axes() else x.node
    return x.with_(node, replaced(x, dim, rest))


def element(to: Graph, x: Value, dim: int, index: int, keep: bool) -> Value:
    """One element of a dimension: a coordinate of each of its axes."""
    group, own = x.dim(dim), set(x.node.axes())
    places, rest = [], index
    for n, axis in enumerate(group):
        inner = extent(group[n + 1 :])
        if axis in own:
            places.append((axis, Index((), rest // inner)))
        rest %= inner
    node = to.view(x.node, places) if places else x.node
    dims = replaced(x, dim, ())
    return x.with_(node, dims if keep else [own for n, own in enumerate(dims) if n != dim])


def joined(to: Graph, parts: Sequence[Value], dim: int) -> Value:
    """Behind one another along a dimension: a choice by the index. Parts of one size lie along an axis of their own, and nothing moves; others are read
    at a distance."""
    parts = [x for x in parts if math.prod(x.shape)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    if any(x.kind == "bool" for x in parts):
        parts = [Value(to.condition(to.truth(x)), x.dims, "bool") for x in parts]
    kind: Kind = "bool" if parts[0].kind == "bool" else "int" if all(x.kind == "int" for x in parts) else "real"
    sizes = [x.shape[dim] for x in parts]
    if len(set(sizes)) == 1:
        values, dims = to.aligned(parts)
        which = fresh(len(values), "c", 1)
        node = values[-1].node
        chosen = to.iota(which)
        for n in reversed(range(len(values) - 1)):
            node = Node("select", (to.shifted(chosen, -n - 1), node, values[n].node))
        group = (*which, *dims[dim])
        return Value(node, tuple(group if n == dim else own for n, own in enumerate(dims)), kind).with_()
    new = Axis(sum(sizes))
    for axis in parts[0].dim(dim):
        new.hints += [(weight - 1, name) for weight, name in axis.root().hints]
    moved, first = [], 0
    for x, size in zip(parts, sizes):
        moved.append(_padded(to, x, dim, new, first, 0.0))
        first += size
    values, dims = to.aligned(moved)
    node, first = values[-1].node, sum(sizes)
    for n in reversed(range(len(values) - 1)):
        first -= sizes[n + 1]
        node = Node("select", (to.shifted(to.iota(leaves((new,))), -first), node, values[n].node))
    return Value(node, dims, kind)


def _padded(to: Graph, x: Value, dim: int, new: Axis, before: int, fill: float) -> Value:
    """x along a longer axis, from a place on."""
    if not x.dim(dim):
        # One element, wherever it is read.
        return x.with_(dims=replaced(x, dim, (new,)))
    return indexed(to, x, dim, (new,), Index(((1, new),), -before), fill)


def padded(to: Graph, x: Value, dim: int, before: int, behind: int, fill: float, stride: int = 1) -> Value:
    """With its elements `stride` apart, and others added before and behind; fewer than none take some away."""
    if before == behind == 0 and (stride == 1 or x.shape[dim] == 1):
        return x
    size = stride * (x.shape[dim] - 1) + 1 + before + behind
    if size < 1:
        raise Refusal("a tensor without elements")
    new = fresh(size)
    index = Index(((1, new[0]),) if new else (), -before, stride)
    for axis in new:
        for old in x.dim(dim):
            axis.hints += [(weight - 1, name) for weight, name in old.root().hints]
    return indexed(to, x, dim, new, index, fill if before > 0 or behind > 0 or stride > 1 else None)


def backwards(to: Graph, x: Value, dims: Sequence[int]) -> Value:
    """Each axis of a group backwards: together they are the dimension backwards."""
    for dim in dims:
        for leaf in x.dim(dim):
            if leaf in x.node.axes():
                new = Axis(leaf.extent)
                new.hints = [(weight - 1, name) for weight, name in leaf.root().hints]
                x = to.replaced(x, leaf, (new,), Index(((-1, new),), leaf.extent - 1))
    return x


def wrapped(to: Graph, place: Value, size: int) -> Value:
    """A place that counts from the end where it is negative."""
    places = affine(place.node)
    if places is not None:
        low, high = bounds(places)
        if low < -size or high >= size:
            raise Refusal(f"an index that runs from {low} to {high}, of {size} elements")
        if low >= 0:
            return place
        if high < 0:
            return place.with_(to.shifted(place.node, size))
    if _is_nowhere_negative(place.node):
        return place
    return place.with_(Node("select", (place.node, place.node, to.shifted(place.node, size))))


def _is_nowhere_negative(x: Node) -> bool:
    """Of what places are mostly made of, as where a maximum is; anything else may be."""
    if x.op == "constant":
        return x.constants[0] >= 0
    if x.op == "clamp":
        return bool(x.constants) and x.constants[0] >= 0
    if x.op == "max" and not x.removes:
        return any(map(_is_nowhere_negative, x.args))
    if x.op in ("view", "rename"):
        return (x.fill is None or x.fill >= 0) and _is_nowhere_negative(x.args[0])
    if x.op in ("min", "max", "sum", "prod", "add", "mul", "select"):
        return all(map(_is_nowhere_negative, x.args[1:] if x.op == "select" else x.args))
    return x.op in ("iota", "abs", "relu")


def clamped(to: Graph, place: Value, last: int) -> Value:
    """The place from 0 to the last one that is nearest."""
    if last == 0:
        return place.with_(to.constant(0))
    places = affine(place.node)
    if places is not None:
        low, high = bounds(places)
        if low >= 0 and high <= last:
            return place
    return place.with_(to.call("clamp", place.node, constants=(0, last)))


def chosen(to: Graph, x: Value, dim: int, place: Value) -> Value:
    """x at places along a dimension: a view where they are sums of indices, and `sum(select(-abs(iota(j) - t), x, 0); j)` where they are not, since a
    choice takes a branch and multiplies nothing. Both line up in all other dimensions; in this one the result has what the places have. Outside it is 0,
    or false."""
    if x.kind == "bool":
        found = chosen(to, to.real(x), dim, place)
        return Value(to.shifted(found.node, -1), found.dims, "bool")
    x = x.with_(dims=[*replaced(x, dim, ()), x.dim(dim)])
    (x, place), dims = to.aligned([x, place.with_(dims=[*place.dims, ()])])
    if not set(x.dim(-1)) & set(x.node.axes()):
        return Value(x.node, dims[:-1], x.kind)
    places = affine(place.node)
    if places is None:
        group = x.dim(-1)
        to.limit(place.node, extent(group))
        there = Node("select", (unlike(to, to.iota(group), place.node), x.node, to.constant(0)))
        return Value(to.call("sum", there, over=group, removes=True), dims[:-1], x.kind)
    x, axis = whole(to, x, x.rank - 1)
    low, high = bounds(places)
    terms = tuple((factor, term) for term, factor in places.items() if term is not None)
    node = to.view(x.node, [(axis, Index(terms, places.get(None, 0)))], None if 0 <= low and high < axis.extent else 0)
    return Value(node, dims[:-1], x.kind)


def written(to: Graph, x: Value, update: Value, places: Mapping[int, Value], function: str | None = None) -> Value:
    """x with updates at places along dimensions: in the stead of what was there, or by a sum, maximum or minimum with it; outside nothing is written. The
    updates and places have dimensions in front, of which each has one update, and line up with x in all others. Two updates of one place are both taken
    by a function; without one nothing says which it should be, and it is their sum.

        y[j] = select(max(-abs(j - t[u]); u), sum(select(-abs(j - t[u]), update[u], 0); u), x[j])
    """
    kind: Kind = x.kind if x.kind == to.value(update).kind else "real"
    if kind == "bool":
        if function is not None:
            raise Refusal(f"writing truth values by {function}")
        x, update = (Value(to.condition(value), value.dims) for value in (x, update))
    front = update.rank - x.rank
    (x, update, *lined_up), dims = to.aligned([to.real(x).with_(dims=[*[()] * front, *x.dims]), to.real(update), *places.values()])
    here: Node | None = None
    for dim, place in zip(places, lined_up):
        to.limit(place.node, extent(dims[front + dim]))
        distance = unlike(to, to.iota(dims[front + dim]), place.node)
        here = distance if here is None else to.call("min", here, distance)
    assert here is not None, "there are places"
    over = leaves(axis for dim in dims[:front] for axis in dim)
    if function is not None:
        taken = to.reduced(function, Node("select", (here, update.node, to.constant(NEUTRAL[function]))), over)
        node = total(to, x.node, taken) if function == "sum" else to.call(function, x.node, taken)
    else:
        several = tuple(axis for axis in over if axis in here.axes() or axis in update.node.axes())
        taken = update.node
        if several:
            taken = to.call("sum", Node("select", (here, taken, to.constant(0))), over=several, removes=True)
        node = Node("select", (to.reduced("max", here, over), taken, x.node))
    return Value(node, dims[front:], kind).with_()


Places = dict[Axis | None, int]
"""A sum of indices, each times an integer, and an integer, which is that of `None`."""


def affine(node: Node, at: Mapping[Axis, Places] | None = None) -> Places | None:
    """A whole number as a sum of indices, if it is one; where some axes are read at the places `at`."""
    at = at or {}
    if node.op == "constant":
        value = node.constants[0]
        return {None: int(value)} if value == int(value) else None
    if node.op == "iota":
        return _read(Index(((1, node.over[0]),)), at)
    if node.op in ("view", "rename"):
        if node.fill is not None:
            return None
        inner = dict(at)
        for source, index in node.index:
            if index.divisor != 1:
                return None
            for n, leaf in enumerate(source.leaves()):
                inner[leaf] = _read(Index(((1, index.terms[0][1].leaves()[n]),)) if node.op == "rename" else index, at)
        return affine(node.args[0], inner)
    if node.op == "select":
        condition = affine(node.args[0], at)
        least, most = bounds(condition) if condition is not None else (-1, 0)
        return affine(node.args[1 if least >= 0 else 2], at) if least >= 0 or most < 0 else None
    if node.op in ("max", "min") and not node.removes:
        return _extreme(node.op, *(affine(arg, at) for arg in node.args))
    if node.op == "relu":
        return _extreme("max", affine(node.args[0], at), {})
    if node.op == "clamp" and node.constants:
        ends: list[Places] = [{None: int(end)} for end in node.constants]
        return _extreme("min", _extreme("max", affine(node.args[0], at), ends[0]), ends[1])
    if node.op == "neg":
        return _sum([(-1, affine(node.args[0], at))])
    if node.op in ("add", "sub"):
        return _sum([(1, affine(node.args[0], at)), (1 if node.op == "add" else -1, affine(node.args[1], at))])
    if node.op == "mul":
        one, other = (affine(arg, at) for arg in node.args)
        for factor, places in ((one, other), (other, one)):
            if factor is not None and not set(factor) - {None}:
                return _sum([(factor.get(None, 0), places)])
    return None


def bounds(places: Places) -> tuple[int, int]:
    """The smallest and the largest number that it is."""
    ends = [factor * (axis.extent - 1) for axis, factor in places.items() if axis is not None]
    return places.get(None, 0) + sum(min(end, 0) for end in ends), places.get(None, 0) + sum(max(end, 0) for end in ends)


def _extreme(function: str, one: Places | None, other: Places | None) -> Places | None:
    """The larger or smaller one, where it is that everywhere."""
    distance = _sum([(1, one), (-1, other)])
    if distance is None:
        return None
    low, high = bounds(distance)
    if low >= 0:
        return one if function == "max" else other
    return (other if function == "max" else one) if high <= 0 else None


def _read(index: Index, at: Mapping[Axis, Places]) -> Places:
    found = _sum([*((factor, at.get(axis, {axis: 1})) for factor, axis in index.expanded()), (index.offset, {None: 1})])
    assert found is not None
    return found


def _sum(terms: Sequence[tuple[int, Places | None]]) -> Places | None:
    found: Places = {}
    for factor, places in terms:
        if places is None:
            return None
        for axis, its in places.items():
            found[axis] = found.get(axis, 0) + factor * its
    return {axis: factor for axis, factor in found.items() if factor}
