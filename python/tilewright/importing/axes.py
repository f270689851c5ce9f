"""Axes whose identity is found out on the way.

Frameworks line dimensions up by position, the language by name. So every dimension of every tensor begins as an axis of its own, and operations tell
which of them are the same: a union-find. An axis that is later seen as several dimensions (`view(b, t, h, d)` of `[b, t, h*d]`) is *split*, wherever it
stands, so that what is one dimension in memory is a group `(h d)` of axes and no operation. Two axes that stand in one tensor are *apart*: they never
become one. An axis that an index reads at computed places is *pinned*: it is never split, since the index of a part would be a
quotient that is cut to a whole number.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Optional


class Axis:
    """An axis, or a name for another one that it was found to be."""

    __slots__ = ("apart", "extent", "hints", "parts", "pinned", "same", "twins")

    def __init__(self, extent: int, hint: str = "", weight: int = 0) -> None:
        self.extent = extent
        self.same: Axis | None = None
        """The axis that it is."""
        self.parts: tuple[Axis, ...] | None = None
        """Slowest first."""
        self.apart: set[Axis] = set()
        self.pinned = False
        self.twins: list[Axis] = []
        """Those that it is renamed to or from: they are split with it."""
        self.hints: list[tuple[int, str]] = []
        """Names that it might have, each with a weight."""
        if hint:
            self.hint(hint, weight)

    def root(self) -> "Axis":
        axis = self
        while axis.same is not None:
            axis = axis.same
        return axis

    def leaves(self) -> tuple["Axis", ...]:
        """What it is split into, or itself."""
        root = self.root()
        if root.parts is None:
            return (root,)
        return tuple(leaf for part in root.parts for leaf in part.leaves())

    def hint(self, name: str, weight: int) -> None:
        self.root().hints.append((weight, name))


Group = tuple[Axis, ...]
"""What one dimension of a tensor consists of, slowest first; nothing where its extent is 1."""


def leaves(group: Iterable[Axis]) -> Group:
    return tuple(leaf for axis in group for leaf in axis.leaves())


def extent(group: Iterable[Axis]) -> int:
    return math.prod(axis.extent for axis in group)


def fresh(size: int, hint: str = "", weight: int = 0) -> Group:
    """A dimension that is one axis of its own."""
    return () if size == 1 else (Axis(size, hint, weight),)


def are_apart(one: Axis, other: Axis) -> bool:
    return any(other in x.leaves() for x in one.apart) or any(one in x.leaves() for x in other.apart)


def separate(axes: Iterable[Axis]) -> None:
    """They stand in one tensor."""
    all_leaves = leaves(axes)
    for leaf in all_leaves:
        leaf.apart.update(x for x in all_leaves if x is not leaf)


def unite(one: Axis, other: Axis) -> bool:
    """Makes two leaves the same axis; whether they may be."""
    one, other = one.root(), other.root()
    if one is other:
        return True
    if one.extent != other.extent or are_apart(one, other):
        return False
    other.same = one
    one.apart |= other.apart
    one.pinned |= other.pinned
    one.twins += other.twins
    one.hints += other.hints
    return True


def _twins(axis: Axis) -> list[Axis]:
    """The leaf and all that are split with it."""
    found, todo = [], [axis.root()]
    while todo:
        at = todo.pop()
        if at not in found:
            found.append(at)
            todo.extend(twin.root() for twin in at.twins)
    return found


def split(axis: Axis, sizes: Sequence[int]) -> Group | None:
    """Splits a leaf everywhere; nothing where an index needs it whole."""
    twins = _twins(axis)
    if any(twin.pinned for twin in twins):
        return None
    for twin in twins:
        twin.parts = tuple(Axis(size) for size in sizes)
        separate(twin.parts)
        twin.parts[-1].hints = [(weight - 2, name) for weight, name in twin.hints]
    for twin in twins:
        for other in twin.twins:
            for part, its in zip(twin.parts or (), other.root().parts or ()):
                part.twins.append(its)
    return axis.root().parts


def common(one: int, other: int) -> Optional[int]:
    """The slower factor by which the larger of two extents has to be split to line up with the smaller one."""
    small, large = sorted((one, other))
    return small if large % small == 0 else None
