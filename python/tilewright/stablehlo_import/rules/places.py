"""The same elements in other places."""

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.importing.axes import Group, extent, fresh
from tilewright.importing.elements import total
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.importing.places import affine, backwards, bounds, chosen, clamped, element, joined, padded, part, replaced, reshaped, written
from tilewright.stablehlo_import.table import rule


@rule("broadcast_in_dim")
def broadcast_in_dim(to: Graph, x: Value | Refusal, *, broadcast_dimensions: Sequence[int], shape: Sequence[int]) -> Value | Refusal:
    """A value lacks the axes along which it is repeated."""
    if isinstance(x, Refusal):
        return x
    dims = [fresh(size) for size in shape]
    for own, at in zip(x.dims, broadcast_dimensions):
        if own:
            dims[at] = own
    return x.with_(dims=dims)


@rule("reshape")
def reshape(to: Graph, x: Value, *, shape: Sequence[int]) -> Value:
    return reshaped(to, x, shape)


@rule("transpose")
def transpose(to: Graph, x: Value, *, permutation: Sequence[int]) -> Value:
    return transposed(x, permutation)


def transposed(x: Value, permutation: Sequence[int]) -> Value:
    return x.with_(dims=[x.dims[n] for n in permutation])


@rule("reverse")
def reverse(to: Graph, x: Value, *, dimensions: Sequence[int]) -> Value:
    return backwards(to, x, dimensions)


@rule("slice")
def slice_of(to: Graph, x: Value, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int]) -> Value:
    for dim, (first, last, step) in enumerate(zip(start_indices, limit_indices, strides)):
        x = part(to, x, dim, first, max(0, -(-(last - first) // step)), step)
    return x


@rule("concatenate")
def concatenate(to: Graph, *parts: Value, dimension: int) -> Value:
    return joined(to, parts, dimension)


@rule("pad")
def pad(
    to: Graph, x: Value, value: Value, *, edge_padding_low: Sequence[int], edge_padding_high: Sequence[int], interior_padding: Sequence[int]
) -> Value:
    if value.node.op != "constant":
        raise Refusal("padding with a number that is computed")
    fill = value.node.constants[0]
    if x.kind == "bool":
        if to.holds(value):
            raise Refusal("padding with truth")
        x, fill = Value(to.condition(x), x.dims, "bool"), -1
    for dim, (low, high, gap) in enumerate(zip(edge_padding_low, edge_padding_high, interior_padding)):
        x = padded(to, x, dim, low, high, fill, gap + 1)
    return x


@rule("dynamic_slice")
def dynamic_slice(to: Graph, x: Value, *starts: Value, slice_sizes: Sequence[int]) -> Value:
    return _parts(to, x, dict(enumerate(starts)), 0, slice_sizes)


@rule("dynamic_update_slice")
def dynamic_update_slice(to: Graph, x: Value, update: Value, *starts: Value) -> Value:
    within = [clamped(to, start, size - count) for size, start, count in zip(x.shape, starts, update.shape)]
    known = [_known(start) for start in within]
    if None not in known:
        return _joined(to, x, update, [place for place in known if place is not None])
    return _put(to, x, update, {n: start for n, start in enumerate(within) if x.shape[n] != update.shape[n]}, None)


def _known(place: Value) -> int | None:
    """A place that is the same whatever the inputs are."""
    places = affine(place.node)
    return places.get(None, 0) if places is not None and not set(places) - {None} else None


def _parts(to: Graph, x: Value, starts: Mapping[int, Value], front: int, sizes: Sequence[int]) -> Value:
    """Parts that begin at places, or at the nearest ones where they are within the tensor. The `front` first dimensions of x, and those of the places, say
    which part."""
    for n, start in starts.items():
        dim, size = front + n, sizes[n]
        start = clamped(to, start, x.shape[dim] - size)
        known = _known(start)
        if known is not None:
            x = part(to, x, dim, known, size)
        else:
            behind = [fresh(size) if n == dim else () for n in range(front, x.rank)]
            x = chosen(to, x, dim, _span(to, start.with_(dims=[*start.dims, *[()] * len(behind)]), behind))
    return x


def _span(to: Graph, start: Value, along: Sequence[Group]) -> Value:
    """The places from a start on, along a dimension of those that are given."""
    step = Value(to.iota(tuple(axis for group in along for axis in group)), tuple(along), "int")
    return to.pointwise(lambda a, b: total(to, a, b), start, step)


def _put(to: Graph, x: Value, update: Value, starts: Mapping[int, Value], function: str | None) -> Value:
    """x with parts written that begin at places. The dimensions of the update that x has not stand in front, and say which part."""
    front, rank = update.rank - x.rank, len(starts) + update.rank
    moved, dims = [update.dim(front + dim) for dim in starts], list(update.dims)
    for dim in starts:
        dims[front + dim] = ()
    along = [[group if n == m else () for m in range(rank)] for n, group in enumerate(moved)]
    places = {dim: _span(to, start, behind) for (dim, start), behind in zip(starts.items(), along)}
    return written(to, x, update.with_(dims=[*moved, *dims]), places, function)


def _joined(to: Graph, x: Value, update: Value, starts: Sequence[int]) -> Value:
    """What stands before, the part that is written, and what stands behind, along the first dimension that is written in part."""
    dim = next((n for n, (size, count) in enumerate(zip(x.shape, update.shape)) if size != count), None)
    if dim is None:
        return update
    first, count = starts[dim], update.shape[dim]
    inner = _joined(to, part(to, x, dim, first, count), update, [0 if n == dim else start for n, start in enumerate(starts)])
    behind = first + count
    return joined(to, [part(to, x, dim, 0, first), inner, part(to, x, dim, behind, x.shape[dim] - behind)], dim)


WRITING = {"second": None, "stablehlo.add": "sum", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}
"""What is written to a place that holds something, by the operation of the two."""


@rule("scatter")
def scatter(to: Graph, *operands: Value, scatter_dimension_numbers: Any, body: str | None) -> Value:
    if len(operands) != 3:
        raise Refusal("writing to several tensors at once")
    if body not in WRITING:
        raise Refusal(f"writing by {body}" if body else "writing by several operations")
    function = WRITING[body]
    x, indices, update = operands
    numbers = scatter_dimension_numbers
    at = numbers.index_vector_dim
    if at == indices.rank:
        indices = indices.with_(dims=[*indices.dims, ()])
    batch = [n for n in range(indices.rank) if n != at]
    across = [n for n in range(update.rank) if n not in numbers.update_window_dims]
    # Which of the dimensions that say which part it is each dimension of x lines up with, and those that are left.
    shared = {dim: batch.index(n) for dim, n in zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims)}
    left = [n for n in range(len(batch)) if n not in shared.values()]
    window = iter(numbers.update_window_dims)
    own = [across[shared[dim]] if dim in shared else None if dim in numbers.inserted_window_dims else next(window) for dim in range(x.rank)]
    update = update.with_(dims=[*(update.dims[across[n]] for n in left), *(() if n is None else update.dims[n] for n in own)])
    starts, known = {}, [0] * x.rank
    for n, dim in enumerate(numbers.scattered_dims_to_operand_dims):
        start = element(to, indices, at, n, keep=False)
        start = start.with_(dims=[*(start.dims[n] for n in left), *(start.dims[shared[m]] if m in shared else () for m in range(x.rank))])
        last = x.shape[dim] - update.shape[len(left) + dim]
        place = _known(start)
        if place is not None and 0 <= place <= last:
            known[dim] = place
        starts[dim] = _within(to, start, last, x.shape[dim])
    if len(starts) == sum(_known(start) == known[dim] for dim, start in starts.items()) and all(size == 1 for size in update.shape[: len(left)]):
        update = update.with_(dims=update.dims[len(left) :])
        if function is None:
            return _joined(to, x, update, known)
        if function == "sum":
            there = _parts(to, x, {dim: to.number(place) for dim, place in enumerate(known)}, 0, update.shape)
            return _joined(to, x, to.pointwise(lambda a, b: total(to, a, b), there, update), known)
    return _put(to, x, update, starts, function)


def _within(to: Graph, start: Value, last: int, size: int) -> Value:
    """The start of a part that is written, or one behind the end: a part that is not within the tensor is passed over as a whole."""
    places = affine(start.node)
    if last == size - 1 or places is not None and bounds(places)[0] >= 0 and bounds(places)[1] <= last:
        return start
    inside = to.call("min", start.node, Node("sub", (to.constant(last), start.node)))
    return start.with_(Node("select", (inside, start.node, to.constant(size))))


@rule("gather")
def gather(to: Graph, x: Value, indices: Value, *, dimension_numbers: Any, slice_sizes: Sequence[int], shape: Sequence[int]) -> Value:
    """Parts that begin at places: in front of the dimensions of x those that say which part, some of which x has itself."""
    numbers = dimension_numbers
    at = numbers.index_vector_dim
    if at == indices.rank:
        indices = indices.with_(dims=[*indices.dims, ()])
    batch = [group for n, group in enumerate(indices.dims) if n != at]
    front, dims = len(batch), [*[()] * len(batch), *x.dims]
    for dim, n in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims):
        dims[n - (n > at)], dims[front + dim] = dims[front + dim], ()
    starts = {dim: element(to, indices, at, n, keep=False) for n, dim in enumerate(numbers.start_index_map)}
    starts |= {dim: to.number(0) for dim in range(x.rank) if dim not in starts}
    x = _parts(to, x.with_(dims=dims), starts, front, slice_sizes)
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    made = iter([own or fresh(extent(group)) for own, group in zip(x.dims, batch)])
    rest = iter([x.dims[front + dim] for dim in range(len(slice_sizes)) if dim not in gone])
    return x.with_(dims=[next(rest) if n in numbers.offset_dims else next(made) for n in range(len(shape))])
