"""Matrix products, einsum and layers that are one."""

from collections.abc import Sequence

from tilewright.importing.axes import leaves
from tilewright.importing.graph import Graph, Value
from tilewright.importing.products import contracted
from tilewright.torch_import.rules.pointwise import add
from tilewright.torch_import.table import rule


@rule("linear")
def linear(to: Graph, input: Value, weight: Value, bias: Value | None = None) -> Value:
    for group, name in ((weight.dims[-1], "m"), (weight.dims[0], "n")):
        for axis in group:
            axis.hint(name, 2)
    rest = list(range(input.rank - 1))
    made = contracted(to, input, weight, [], rest, [0] if weight.rank == 2 else [], [(input.rank - 1, weight.rank - 1)])
    return made if bias is None else add(to, made, bias)


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(
    to: Graph,
    self: Value,
    other: Value | None = None,
    mat2: Value | None = None,
    tensor2: Value | None = None,
    vec: Value | None = None,
    tensor: Value | None = None,
) -> Value:
    y = next(v for v in (other, mat2, tensor2, vec, tensor) if v is not None)
    x = self
    rows, columns = max(x.rank - 1, 0), max(y.rank - 1, 0)
    of_x, of_y = ([rows - 1] if x.rank > 1 else []), ([columns] if y.rank > 1 else [])
    batch_x, batch_y = max(x.rank - 2, 0), max(y.rank - 2, 0)
    count = max(batch_x, batch_y)
    batch = [
        (n - count + batch_x if n - count + batch_x >= 0 else None, n - count + batch_y if n - count + batch_y >= 0 else None) for n in range(count)
    ]
    for at, value, name in [*((a, x, "i") for a in of_x), *((b, y, "j") for b in of_y), (x.rank - 1, x, "k")]:
        for axis in value.dims[at]:
            axis.hint(name, 1)
    return contracted(to, x, y, batch, of_x, of_y, [(x.rank - 1, y.rank - 2 if y.rank > 1 else 0)])


@rule("addmm", "baddbmm", "addmv", "addbmm")
def addmm(
    to: Graph,
    self: Value,
    mat1: Value | None = None,
    mat2: Value | None = None,
    batch1: Value | None = None,
    batch2: Value | None = None,
    mat: Value | None = None,
    vec: Value | None = None,
    beta: float = 1,
    alpha: float = 1,
) -> Value:
    x = next(v for v in (mat1, batch1, mat) if v is not None)
    y = next(v for v in (mat2, batch2, vec) if v is not None)
    made = to.pointwise(lambda p: to.scaled(p, alpha), matmul(to, x, y))
    return made if beta == 0 else add(to, made, to.pointwise(lambda p: to.scaled(p, beta), self))


@rule("outer", "ger")
def outer(to: Graph, self: Value, vec2: Value) -> Value:
    return contracted(to, self, vec2, [], [0], [0], [])


@rule("einsum")
def einsum(to: Graph, equation: str, tensors: Sequence[Value], path: Sequence[int] | None = None) -> Value:
    """Operands are multiplied from the left; an index is summed where its last operand comes in."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in equation:
        rank = max(tensor.rank - len(term.replace("...", "")) for term, tensor in zip(terms, tensors) if "..." in term)
        names = [chr(0x100 + n) for n in range(rank)]
        terms = [
            term.replace("...", "".join(names[rank - (tensor.rank - len(term.replace("...", ""))) :])) if "..." in term else term
            for term, tensor in zip(terms, tensors)
        ]
        right = right.replace("...", "".join(names)) if arrow else "".join(names)
    if not arrow:
        letters = "".join(terms)
        right += "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c.isascii()))
    for term, tensor in zip(terms, tensors):
        for letter, group in zip(term, tensor.dims):
            if letter.isascii() and len(leaves(group)) == 1:
                leaves(group)[0].hint(letter.lower(), 3)
    value, names_of = _distinct(to, tensors[0], terms[0])
    for n, (tensor, term) in enumerate(zip(tensors[1:], terms[1:]), 1):
        other, theirs = _distinct(to, tensor, term)
        later = set(right).union(*terms[n + 1 :])
        summed = [c for c in names_of if c in theirs and c not in later]
        batch = [c for c in names_of if c in theirs and c in later]
        of_x = [c for c in names_of if c not in theirs]
        of_y = [c for c in theirs if c not in names_of]
        value = contracted(
            to,
            value,
            other,
            [(names_of.index(c), theirs.index(c)) for c in batch],
            [names_of.index(c) for c in of_x],
            [theirs.index(c) for c in of_y],
            [(names_of.index(c), theirs.index(c)) for c in summed],
        )
        names_of = [*batch, *of_x, *of_y]
    gone = [axis for c, group in zip(names_of, value.dims) if c not in right for axis in leaves(group)]
    node = to.reduced("sum", value.node, gone) if gone else value.node
    return value.with_(node, [value.dims[names_of.index(c)] for c in right])


def _distinct(to: Graph, x: Value, term: str) -> tuple[Value, list[str]]:
    """A tensor in which no letter stands twice: a letter that does reads the diagonal."""
    from tilewright.torch_import.rules.views import diagonal_of

    names = list(term)
    while len(set(names)) < len(names):
        twice = next(c for c in names if names.count(c) > 1)
        first = names.index(twice)
        second = names.index(twice, first + 1)
        x = diagonal_of(to, x, first, second)
        del names[second]
    return x, names
