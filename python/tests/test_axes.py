"""Axes that are united, kept apart and split: what the importer's programs rest on."""

from tilewright.importing.axes import Axis, are_apart, extent, separate, split, unite
from tilewright.importing.graph import Graph, Node


def test_axes_of_one_tensor_are_never_united() -> None:
    i, j, k, other = Axis(6), Axis(6), Axis(6), Axis(4)
    separate([i, j])
    assert not unite(i, j) and not unite(i, other)
    assert unite(i, k) and i.root() is k.root()
    # What one of them is apart from, both are.
    assert not unite(k, j) and are_apart(k.root(), j)
    assert unite(k, i) and k.leaves() == i.leaves()


def test_the_parts_of_an_axis_are_apart_from_what_it_was_apart_from() -> None:
    whole, beside, later = Axis(6), Axis(3), Axis(3)
    separate([whole, beside])
    assert split(whole, (2, 3)) is not None
    slow, fast = whole.leaves()
    assert (slow.extent, fast.extent, extent(whole.leaves())) == (2, 3, 6)
    assert not unite(fast, beside) and not unite(beside, fast)
    assert unite(fast, later) and whole.leaves() == (slow, later.root())


def test_renamed_axes_are_split_together_and_pinned_ones_never() -> None:
    i, j, k = Axis(8), Axis(8), Axis(8)
    separate([i, j, k])
    to = Graph()
    renamed = to.renamed(to.renamed(Node("parameter", own=(i,)), {i: j}), {j: k})
    assert split(j, (2, 4)) is not None
    assert [len(axis.leaves()) for axis in (i, j, k)] == [2, 2, 2] and renamed.axes() == k.leaves()
    # The parts are twins in their turn.
    assert split(i.leaves()[1], (2, 2)) is not None
    assert [[leaf.extent for leaf in axis.leaves()] for axis in (i, j, k)] == [[2, 2, 2]] * 3
    j.leaves()[0].pinned = True
    whole, twin = Axis(8), Axis(8)
    to.renamed(Node("parameter", own=(whole,)), {whole: twin})
    twin.pinned = True
    assert split(whole, (2, 4)) is None and whole.leaves() == (whole,)
