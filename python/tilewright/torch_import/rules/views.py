"""The same elements in other places."""

import math
from collections.abc import Collection, Sequence

from tilewright.importing.axes import extent, fresh
from tilewright.importing.graph import Graph, Index, Refusal, Value
from tilewright.importing.places import backwards, chosen, element, indexed, joined, padded, part, replaced, reshaped, wrapped, written
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
def repeat_interleave(to: Graph, self: Value, repeats: int, dim: int | None = None, output_size: int | None = None) -> Value:
    """PyTorch runs it where the size of the result is the one that is said, if one is."""
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
    """Elements of dimensions at places. The dimensions of the indices, which line up, stand in the place of the first one if those of x are next to
    each other, and in front of all others otherwise."""
    lined_up, across = to.aligned([indices[dim] for dim in sorted(indices)])
    front, rank = len(across), x.rank
    x = x.with_(dims=[*[()] * front, *x.dims])
    for dim, place in zip(sorted(indices), lined_up):
        x = chosen(to, x, front + dim, place.with_(dims=[*across, *[()] * rank]))
    made, rest = x.dims[:front], [group for n, group in enumerate(x.dims[front:]) if n not in indices]
    first = _first(indices)
    return x.with_(dims=[*rest[:first], *made, *rest[first:]])


def _first(indices: Collection[int]) -> int:
    """Which of the dimensions that are left those of the indices stand in front of."""
    return min(indices) if max(indices) - min(indices) + 1 == len(indices) else 0


@rule("embedding")
def embedding(to: Graph, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Value:
    for group, name in zip(weight.dims, "vm"):
        for axis in group:
            axis.hint(name, 2)
    return taken(to, weight, {0: indices})


@rule("index_select")
def index_select(to: Graph, self: Value, dim: int, index: Value) -> Value:
    return taken(to, self, {at(self, dim): index})


@rule("gather")
def gather(to: Graph, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """Each element of the index is a place along one dimension, and is its own along the others, which may be longer."""
    dim = at(self, dim)
    for n, size in enumerate(index.shape):
        if n != dim:
            self = part(to, self, n, 0, size)
    return chosen(to, self, dim, index)


@rule("take_along_dim")
def take_along_dim(to: Graph, self: Value, indices: Value, dim: int | None = None) -> Value:
    if dim is None:
        self, indices, dim = flatten(to, self), flatten(to, indices), 0
    dim = at(self, dim)
    return chosen(to, self, dim, wrapped(to, indices, self.shape[dim]))


@rule("index.Tensor")
def index(to: Graph, self: Value, indices: Sequence[Value | None]) -> Value:
    return taken(to, self, _places(to, self, indices))


def _places(to: Graph, x: Value, indices: Sequence[Value | None]) -> dict[int, Value]:
    found = {n: place for n, place in enumerate(indices) if place is not None}
    if any(place.kind == "bool" for place in found.values()):
        raise Refusal("a mask as an index: how many elements there are depends on the data")
    return {n: wrapped(to, place, x.shape[n]) for n, place in found.items()}


@rule("index_put")
def index_put(to: Graph, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    """One number where a mask is true, or values at places, in the dimensions that reading there would have."""
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.kind == "bool" and math.prod(values.shape) == 1 and not accumulate:
        return to.select(mask.with_(dims=[*mask.dims, *[()] * (self.rank - mask.rank)]), values.with_(dims=()), self)
    places = _places(to, self, indices)
    lined_up, across = to.aligned([places[dim] for dim in sorted(places)])
    front, first, rest = len(across), _first(places), self.rank - len(places)
    dims = [*[()] * (front + rest - values.rank), *values.dims]
    left = iter([*dims[:first], *dims[first + front :]])
    values = values.with_(dims=[*dims[first : first + front], *(() if n in places else next(left) for n in range(self.rank))])
    lined_up = [place.with_(dims=[*across, *[()] * self.rank]) for place in lined_up]
    return written(to, self, values, dict(zip(sorted(places), lined_up)), "sum" if accumulate else None)


REDUCTIONS = {"sum": "sum", "add": "sum", "amax": "max", "amin": "min", None: None}
"""What writing to a place that holds something is, by the name that PyTorch gives it."""


@rule("scatter")
def scatter(to: Graph, self: Value, dim: int, index: Value, src: Value | None = None, value: float = 0.0, reduce: str | None = None) -> Value:
    """Each element of the index is a place along one dimension, and is its own along the others, which may be longer."""
    if reduce not in REDUCTIONS:
        raise Refusal(f"writing by {reduce}")
    dim = at(self, dim)
    written_at = {n: Value(to.iota(group), tuple(group if m == n else () for m in range(self.rank)), "int") for n, group in enumerate(index.dims)}
    places = {n: index if n == dim else own for n, own in written_at.items() if n == dim or index.shape[n] != self.shape[n]}
    update = Value(to.constant(value), index.dims) if src is None else src
    for n, size in enumerate(index.shape):
        update = part(to, update, n, 0, size)

    def in_front(x: Value) -> Value:
        return x.with_(dims=[*(x.dims[n] for n in places), *(() if n in places else group for n, group in enumerate(x.dims))])

    return written(to, self, in_front(update), {n: in_front(place) for n, place in places.items()}, REDUCTIONS[reduce])


@rule("scatter_add")
def scatter_add(to: Graph, self: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter(to, self, dim, index, src, reduce="sum")


@rule("scatter_reduce.two")
def scatter_reduce(to: Graph, self: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True) -> Value:
    if not include_self:
        raise Refusal("writing by a reduction that leaves out what was there")
    return scatter(to, self, dim, index, src, reduce=reduce)


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
