"""Sums of products."""

from collections.abc import Sequence

from tilewright.importing.axes import Axis, Group
from tilewright.importing.graph import Graph, Value


def contracted(
    to: Graph,
    x: Value,
    y: Value,
    batch: Sequence[tuple[int | None, int | None]],
    of_x: Sequence[int],
    of_y: Sequence[int],
    summed: Sequence[tuple[int, int]],
) -> Value:
    """The sum of products over pairs of dimensions. The result has the batch dimensions, which line up, then those of x and of y alone."""
    x, y = _factored(to, x, y, [(a, b) for a, b in [*batch, *summed] if a is not None and b is not None])
    pairs: dict[Axis, Axis] = {}
    free: list[Axis] = [axis for at in of_y for axis in y.dim(at)]
    for a, b in [*batch, *summed]:
        if b is None or not y.dim(b):
            continue
        if a is None or not x.dim(a):
            free += y.dim(b)
        else:
            pairs.update(zip(y.dim(b), x.dim(a)))
    y = to.matched(y, pairs, free, x.axes())
    dims: list[Group] = []
    for a, b in batch:
        mine = x.dim(a) if a is not None else ()
        dims.append(mine or (y.dim(b) if b is not None else ()))
    dims += [x.dim(at) for at in of_x] + [y.dim(at) for at in of_y]
    # A dimension of one element has no axis: it lines up with any.
    over = dict.fromkeys(axis for a, b in summed for axis in (x.dim(a) or y.dim(b)))
    made = to.product(to.real(x), to.real(y), tuple(over))
    return Value(made, tuple(dims)).with_()


def _factored(to: Graph, x: Value, y: Value, pairs: Sequence[tuple[int, int]]) -> tuple[Value, Value]:
    """With the same factors in dimensions that line up."""
    for a, b in pairs:
        while x.dim(a) and y.dim(b):
            unequal = next(((p, q) for p, q in zip(x.dim(a), y.dim(b)) if p.extent != q.extent), None)
            if unequal is None:
                break
            p, q = unequal
            small, large = sorted((p.extent, q.extent))
            if large % small:
                # One axis for the one, which can be split as the other is.
                x, _ = to.merged(x, a)
            elif p.extent > small:
                x = to.split_leaf(x, p, small)
            else:
                y = to.split_leaf(y, q, small)
    return x, y
