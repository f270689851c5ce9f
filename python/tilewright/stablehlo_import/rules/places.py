"""The same elements in other places."""

from collections.abc import Sequence
from typing import Any

from tilewright.importing.axes import Axis, Group, fresh, leaves
from tilewright.importing.elements import total
from tilewright.importing.graph import Graph, Index, Node, Refusal, Value
from tilewright.importing.places import affine, backwards, bounds, element, joined, padded, part, replaced, reshaped, whole
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
        x, behind = spread(to, x, dim, gap + 1, fill)
        x = padded(to, x, dim, low, high - behind, fill)
    return x


def spread(to: Graph, x: Value, dim: int, stride: int, fill: float) -> tuple[Value, int]:
    """x with its elements `stride` apart, and how many places stand behind the last one: the dimension is that of x and the place behind each."""
    if stride == 1 or x.shape[dim] == 1:
        return x, 0
    rest = fresh(stride, "r", 2)
    chosen = Node("select", (to.negative(to.iota(rest)), x.node, to.constant(fill)))
    return x.with_(chosen, replaced(x, dim, (*x.dim(dim), *rest))), stride - 1


@rule("dynamic_slice")
def dynamic_slice(to: Graph, x: Value, *starts: Value, slice_sizes: Sequence[int]) -> Value:
    for dim, (first, count) in enumerate(zip(_starts(x.shape, starts, slice_sizes), slice_sizes)):
        x = part(to, x, dim, first, count)
    return x


@rule("dynamic_update_slice")
def dynamic_update_slice(to: Graph, x: Value, update: Value, *starts: Value) -> Value:
    return _written(to, x, update, _starts(x.shape, starts, update.shape))


def _starts(shape: Sequence[int], starts: Sequence[Value], sizes: Sequence[int]) -> list[int]:
    """Places that are known, moved so that the part is within the tensor."""
    found = []
    for size, start, count in zip(shape, starts, sizes):
        found.append(min(max(_known(start.node), 0), size - count))
    return found


def _known(place: Node) -> int:
    places = affine(place)
    if places is None or set(places) - {None}:
        raise Refusal("a place that is read from a tensor: the language has no parameters of whole numbers yet")
    return places.get(None, 0)


def _written(to: Graph, x: Value, update: Value, starts: Sequence[int]) -> Value:
    """What stands before, the part that is written, and what stands behind, along the first dimension that is written in part."""
    dim = next((n for n, (size, count) in enumerate(zip(x.shape, update.shape)) if size != count), None)
    if dim is None:
        return update
    first, count = starts[dim], update.shape[dim]
    inner = _written(to, part(to, x, dim, first, count), update, [0 if n == dim else start for n, start in enumerate(starts)])
    behind = first + count
    return joined(to, [part(to, x, dim, 0, first), inner, part(to, x, dim, behind, x.shape[dim] - behind)], dim)


@rule("scatter")
def scatter(to: Graph, *operands: Value, scatter_dimension_numbers: Any, body: str | None) -> Value:
    """Writing, or adding to, one part whose place is known."""
    if len(operands) != 3:
        raise Refusal("writing to several tensors at once")
    if body not in ("second", "stablehlo.add"):
        raise Refusal(f"writing by {body}" if body else "writing by several operations")
    x, indices, update = operands
    numbers = scatter_dimension_numbers
    at = numbers.index_vector_dim
    if at == indices.rank:
        indices = indices.with_(dims=[*indices.dims, ()])
    batch = [n for n in range(indices.rank) if n != at]
    across = [n for n in range(update.rank) if n not in numbers.update_window_dims]
    shared = dict(zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims))
    if any(indices.shape[n] > 1 for n in batch if n not in shared.values()):
        raise Refusal("writing at several places")
    window = iter(numbers.update_window_dims)
    dims: list[Group] = []
    for dim in range(x.rank):
        own = across[batch.index(shared[dim])] if dim in shared else None if dim in numbers.inserted_window_dims else next(window)
        dims.append(() if own is None else update.dims[own])
    part_of_x, starts = x, [0] * x.rank
    update = update.with_(dims=dims)
    for n, dim in enumerate(numbers.scattered_dims_to_operand_dims):
        starts[dim] = _known(element(to, indices, at, n, keep=False).node)
        if not 0 <= starts[dim] <= x.shape[dim] - update.shape[dim]:
            raise Refusal("writing outside of the tensor, which is passed over")
    if body == "stablehlo.add":
        for dim, (first, size) in enumerate(zip(starts, update.shape)):
            part_of_x = part(to, part_of_x, dim, first, size)
        update = to.pointwise(lambda a, b: total(to, a, b), part_of_x, update)
    return _written(to, x, update, starts)


@rule("gather")
def gather(to: Graph, x: Value, indices: Value, *, dimension_numbers: Any, slice_sizes: Sequence[int], shape: Sequence[int]) -> Value:
    """A view, where the indices are sums of indices: each dimension at the sum of where the part begins and the place within it."""
    numbers = dimension_numbers
    at = numbers.index_vector_dim
    if at == indices.rank:
        indices = indices.with_(dims=[*indices.dims, ()])
    starts = {dim: element(to, indices, at, n, keep=False) for n, dim in enumerate(numbers.start_index_map)}
    batch = [group for n, group in enumerate(indices.dims) if n != at]
    for dim, n in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims):
        n -= n > at
        starts[dim] = Value(to.iota(leaves(batch[n])), tuple(group if m == n else () for m, group in enumerate(batch)), "int")
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    lined_up, across = to.aligned([*starts.values(), indices.with_(to.constant(0), batch)])
    for dim, size in enumerate(slice_sizes):
        if dim not in starts:
            x = part(to, x, dim, 0, size)
    # The axes of an index may be those of other dimensions of x, which are others.
    own = {axis for dim, group in enumerate(x.dims) if dim not in starts for axis in leaves(group)}
    names = {axis: (Axis(axis.extent) if axis in own else axis) for group in across for axis in leaves(group)}
    index, dims = [], list(x.dims)
    for dim, found in zip(starts, lined_up):
        terms, offset = _places(found.node, x.shape[dim] - slice_sizes[dim])
        dims[dim] = fresh(slice_sizes[dim])
        x, axis = whole(to, x, dim)
        index.append((axis, Index((*((factor, names[a]) for factor, a in terms), *((1, a) for a in dims[dim])), offset)))
    made = iter([tuple(names[axis] for axis in leaves(group)) for group in across])
    rest = iter([dims[dim] for dim in range(x.rank) if dim not in gone])
    result: list[Group] = [next(rest) if n in numbers.offset_dims else next(made) for n in range(len(shape))]
    return x.with_(to.view(x.node, index) if index else x.node, result)


def _places(node: Node, last: int) -> tuple[list[tuple[int, Axis]], int]:
    """An index as a sum of axes and an integer; from 0 to the last place."""
    places = affine(node)
    if places is None:
        raise Refusal("an index that is read from a tensor: the language has no parameters of whole numbers yet")
    low, high = bounds(places)
    if low < 0 or high > last:
        raise Refusal(f"an index that runs from {low} to {high} and leaves 0 to {last}, where the nearest place is meant")
    return [(factor, axis) for axis, factor in places.items() if axis is not None and factor], places.get(None, 0)
