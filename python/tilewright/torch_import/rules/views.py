"""The same elements in other places."""

import math
from collections.abc import Sequence

from tilewright.importing.axes import Axis, extent, fresh, leaves
from tilewright.importing.graph import Graph, Index, Node, Refusal, Value
from tilewright.importing.places import affine, backwards, element, indexed, joined, padded, part, replaced, reshaped, whole
from tilewright.torch_import.table import rule


def at(x: Value, dim: int) -> int:
    return dim % x.rank if x.rank else 0


@rule("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy")
def reshape(to: Graph, self: Value, size: Sequence[int] | None = None, shape: Sequence[int] | None = None) -> Value:
    sizes = list(size if size is not None else shape or ())
    if -1 in sizes:
        rest = math.prod(n for n in sizes if n != -1)
        sizes[sizes.index(-1)] = math.prod(self.shape) // rest
    return reshaped(to, self, sizes)


@rule("flatten")
def flatten(to: Graph, self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    if not self.rank:
        return self.with_(dims=[()])
    first, last = at(self, start_dim), at(self, end_dim)
    return self.with_(dims=[*self.dims[:first], tuple(a for dim in self.dims[first : last + 1] for a in dim), *self.dims[last + 1 :]])


@rule("unflatten")
def unflatten(to: Graph, self: Value, dim: int, sizes: Sequence[int]) -> Value:
    n = at(self, dim)
    return reshape(to, self, [*self.shape[:n], *_known(sizes, self.shape[n]), *self.shape[n + 1 :]])


def _known(sizes: Sequence[int], total: int) -> list[int]:
    rest = math.prod(n for n in sizes if n != -1)
    return [total // rest if n == -1 else n for n in sizes]


@rule("permute")
def permute(to: Graph, self: Value, dims: Sequence[int]) -> Value:
    return self.with_(dims=[self.dims[at(self, n)] for n in dims])


@rule("transpose", "swapaxes")
def transpose(to: Graph, self: Value, dim0: int = -1, dim1: int = -2) -> Value:
    order = list(range(self.rank))
    a, b = at(self, dim0), at(self, dim1)
    order[a], order[b] = order[b], order[a]
    return permute(to, self, order)


@rule("t", "mT", "numpy_T", "adjoint")
def turned(to: Graph, self: Value) -> Value:
    return transpose(to, self) if self.rank > 1 else self


@rule("movedim")
def movedim(to: Graph, self: Value, source: "Sequence[int] | int", destination: "Sequence[int] | int") -> Value:
    sources = [at(self, n) for n in ([source] if isinstance(source, int) else source)]
    targets = [at(self, n) for n in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(n for n in range(self.rank) if n not in sources)
    return permute(to, self, [sources[targets.index(n)] if n in targets else next(rest) for n in range(self.rank)])


@rule("expand", "broadcast_to")
def expand(to: Graph, self: Value, size: Sequence[int]) -> Value:
    before = len(size) - self.rank
    dims = [fresh(n) for n in size[:before]]
    for own, n in zip(self.dims, size[before:]):
        dims.append(own if n == -1 or extent(own) == n else fresh(n))
    return self.with_(dims=dims)


@rule("expand_as")
def expand_as(to: Graph, self: Value, other: Value) -> Value:
    return expand(to, self, other.shape)


@rule("repeat")
def repeat(to: Graph, self: Value, repeats: Sequence[int]) -> Value:
    before = len(repeats) - self.rank
    dims = [fresh(n) for n in repeats[:before]]
    return self.with_(dims=[*dims, *((*fresh(n), *own) for own, n in zip(self.dims, repeats[before:]))])


@rule("tile")
def tile(to: Graph, self: Value, dims: Sequence[int]) -> Value:
    return repeat(to, self.with_(dims=[*[()] * max(len(dims) - self.rank, 0), *self.dims]), [*[1] * max(self.rank - len(dims), 0), *dims])


@rule("repeat_interleave.self_int")
def repeat_interleave(to: Graph, self: Value, repeats: int, dim: int | None = None) -> Value:
    if dim is None:
        self, dim = flatten(to, self), 0
    n = at(self, dim)
    return self.with_(dims=replaced(self, n, (*self.dims[n], *fresh(repeats, "g", 3))))


@rule("squeeze")
def squeeze(to: Graph, self: Value, dim: "Sequence[int] | int | None" = None) -> Value:
    named = range(self.rank) if dim is None else [at(self, n) for n in ([dim] if isinstance(dim, int) else dim)]
    return self.with_(dims=[own for n, own in enumerate(self.dims) if own or n not in named])


@rule("unsqueeze")
def unsqueeze(to: Graph, self: Value, dim: int) -> Value:
    n = dim % (self.rank + 1)
    return self.with_(dims=[*self.dims[:n], (), *self.dims[n:]])


@rule("slice.Tensor", "slice_copy.Tensor")
def slice_of(to: Graph, self: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    dim = at(self, dim)
    first, last, _ = slice(start, end, step).indices(self.shape[dim])
    return part(to, self, dim, first, max(0, -(-(last - first) // step)), step)


@rule("select.int", "select_copy.int")
def select_int(to: Graph, self: Value, dim: int, index: int) -> Value:
    dim = at(self, dim)
    return element(to, self, dim, index % self.shape[dim], keep=False)


@rule("narrow")
def narrow(to: Graph, self: Value, dim: int, start: int, length: int) -> Value:
    return slice_of(to, self, dim, start, start + length)


@rule("split.Tensor", "split")
def split(to: Graph, self: Value, split_size: "Sequence[int] | int", dim: int = 0) -> list[Value]:
    if not isinstance(split_size, int):
        return split_with_sizes(to, self, split_size, dim)
    size = self.shape[at(self, dim)]
    return [slice_of(to, self, dim, first, first + split_size) for first in range(0, size, split_size)]


@rule("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(to: Graph, self: Value, split_sizes: Sequence[int], dim: int = 0) -> list[Value]:
    first, parts = 0, []
    for size in split_sizes:
        parts.append(slice_of(to, self, dim, first, first + size))
        first += size
    return parts


@rule("chunk")
def split_evenly(to: Graph, self: Value, chunks: int, dim: int = 0) -> list[Value]:
    return split(to, self, -(-self.shape[at(self, dim)] // chunks), dim)


@rule("tensor_split.sections")
def tensor_split(to: Graph, self: Value, sections: int, dim: int = 0) -> list[Value]:
    small, more = divmod(self.shape[at(self, dim)], sections)
    return split_with_sizes(to, self, [small + (n < more) for n in range(sections)], dim)


@rule("unbind.int")
def unbind(to: Graph, self: Value, dim: int = 0) -> list[Value]:
    return [select_int(to, self, dim, n) for n in range(self.shape[at(self, dim)])]


@rule("stack")
def stack(to: Graph, tensors: Sequence[Value], dim: int = 0) -> Value:
    return cat(to, [unsqueeze(to, x, dim) for x in tensors], dim)


@rule("cat", "concat", "concatenate")
def cat(to: Graph, tensors: Sequence[Value], dim: int = 0) -> Value:
    return joined(to, tensors, at(next((x for x in tensors if math.prod(x.shape)), tensors[0]), dim))


@rule("constant_pad_nd", "pad")
def pad(to: Graph, self: Value, pad: Sequence[int], value: float | None = None, mode: str = "constant") -> Value:
    """From the last dimension on, how many elements are added before and behind; fewer than none take some away."""
    if mode != "constant":
        raise Refusal(f"padding by {mode}")
    for n in range(len(pad) // 2):
        self = padded(to, self, self.rank - 1 - n, pad[2 * n], pad[2 * n + 1], float(value or 0))
    return self


@rule("flip")
def flip(to: Graph, self: Value, dims: Sequence[int]) -> Value:
    return backwards(to, self, [at(self, dim) for dim in dims])


@rule("roll")
def roll(to: Graph, self: Value, shifts: "Sequence[int] | int", dims: "Sequence[int] | int" = ()) -> Value:
    """The last elements come first: two views, and a choice between them by the index."""
    shift_list, dim_list = ([x] if isinstance(x, int) else list(x) for x in (shifts, dims))
    if not dim_list:
        return to.reshaped(roll(to, flatten(to, self), shift_list, [0]), self.shape)
    for shift, dim in zip(shift_list, dim_list):
        n = at(self, dim)
        by = shift % self.shape[n]
        if by:
            self = cat(to, [part(to, self, n, self.shape[n] - by, by), part(to, self, n, 0, self.shape[n] - by)], n)
    return self


def diagonal_of(to: Graph, x: Value, first: int, second: int) -> Value:
    """Both dimensions by the index of the first, which keeps its place."""
    one, other = x.dim(first), x.dim(second)
    for dim, group in ((first, one), (second, other)):
        if len(group) > 1:
            x, _ = to.merged(x, dim)
    one, other, node = x.dim(first), x.dim(second), x.node
    if one and other and other[0] in node.axes():
        node = to.view(node, [(other[0], Index(((1, one[0]),)))])
    return x.with_(node, [own for n, own in enumerate(x.dims) if n != second])


@rule("diagonal")
def diagonal(to: Graph, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    first, second = at(self, dim1), at(self, dim2)
    rows, columns = self.shape[first], self.shape[second]
    if offset > 0:
        self = slice_of(to, self, second, offset)
    elif offset < 0:
        self = slice_of(to, self, first, -offset)
    count = min(rows + min(offset, 0), columns - max(offset, 0))
    self = slice_of(to, slice_of(to, self, first, 0, count), second, 0, count)
    order = [n for n in range(self.rank) if n not in (first, second)]
    return diagonal_of(to, permute(to, self, [*order, first, second]), self.rank - 2, self.rank - 1)


@rule("unfold")
def unfold(to: Graph, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows of a dimension: its place, and behind all others the place within the window."""
    n = at(self, dimension)
    count = (self.shape[n] - size) // step + 1
    out, within = fresh(count, "o", 1), fresh(size, "k", 1)
    terms = (*((step, axis) for axis in out), *((1, axis) for axis in within))
    made = indexed(to, self, n, (*out, *within), Index(terms), None)
    return made.with_(dims=[*(out if m == n else own for m, own in enumerate(made.dims)), within])


def taken(to: Graph, x: Value, indices: dict[int, Value]) -> Value:
    """Elements of dimensions at places that are sums of indices: a view. The dimensions of the indices, which line up, stand in the place of the first
    one if those of x are next to each other, and in front of all others otherwise."""
    indexed_dims = sorted(indices)
    lined_up, across = to.aligned([indices[dim] for dim in indexed_dims])
    # The axes of an index may be those of other dimensions of x, which are others.
    own = {axis for n, group in enumerate(x.dims) if n not in indices for axis in leaves(group)}
    names = {axis: (Axis(axis.extent) if axis in own else axis) for group in across for axis in group}
    index = []
    for dim, found in zip(indexed_dims, lined_up):
        terms, offset = _places(found.node, x.shape[dim])
        x, axis = whole(to, x, dim)
        index.append((axis, Index(tuple((factor, names[a]) for factor, a in terms), offset)))
    made = tuple(tuple(names[axis] for axis in group) for group in across)
    first = indexed_dims[0] if indexed_dims == list(range(indexed_dims[0], indexed_dims[-1] + 1)) else 0
    rest = [group for n, group in enumerate(x.dims) if n not in indices]
    return x.with_(to.view(x.node, index), [*rest[:first], *made, *rest[first:]])


def _places(node: Node, size: int) -> tuple[list[tuple[int, Axis]], int]:
    """An index as a sum of axes and an integer, within a dimension of this size."""
    places = affine(node)
    if places is None:
        raise Refusal("an index that is read from a tensor: the language has no parameters of whole numbers yet")
    offset = places.pop(None, 0)
    terms = [(factor, axis) for axis, factor in places.items() if axis is not None and factor]
    low = offset + sum(factor * (axis.extent - 1) for factor, axis in terms if factor < 0)
    high = offset + sum(factor * (axis.extent - 1) for factor, axis in terms if factor > 0)
    if low < 0 <= high:
        raise Refusal("an index that is negative in places, and counts from the end there")
    return terms, offset + size if high < 0 else offset


@rule("embedding")
def embedding(to: Graph, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Value:
    return taken(to, weight, {0: indices})


@rule("index_select")
def index_select(to: Graph, self: Value, dim: int, index: Value) -> Value:
    return taken(to, self, {at(self, dim): index})


@rule("index.Tensor")
def index(to: Graph, self: Value, indices: Sequence[Value | None]) -> Value:
    found = {n: i for n, i in enumerate(indices) if i is not None}
    if any(i.kind == "bool" for i in found.values()):
        raise Refusal("a mask as an index: how many elements there are depends on the data")
    return taken(to, self, found)


@rule("copy")
def copy(to: Graph, self: Value, src: Value) -> Value:
    return expand(to, src, self.shape)


@rule("slice_scatter")
def slice_scatter(to: Graph, self: Value, src: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    """What stands before, the part that is written, and what stands behind."""
    dim = at(self, dim)
    first, last, _ = slice(start, end, step).indices(self.shape[dim])
    if step != 1:
        raise Refusal(f"writing to every element in {step}")
    return cat(to, [slice_of(to, self, dim, 0, first), src, slice_of(to, self, dim, max(first, last))], dim)


@rule("select_scatter")
def select_scatter(to: Graph, self: Value, src: Value, dim: int, index: int) -> Value:
    first = index % self.shape[at(self, dim)]
    return slice_scatter(to, self, unsqueeze(to, src, at(self, dim)), dim, first, first + 1)
