"""Scaled dot product attention, with all its arguments."""

import math

from tilewright.importing.axes import are_apart, leaves
from tilewright.importing.graph import Graph, Node, Refusal, Value
from tilewright.importing.products import contracted
from tilewright.torch_import.rules.pointwise import add
from tilewright.torch_import.rules.views import expand
from tilewright.torch_import.table import rule


@rule("scaled_dot_product_attention")
def attention(
    to: Graph,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(q · k * scale + mask) · v. Heads of queries that share one of keys are an axis beside theirs."""
    if dropout_p > 0:
        raise Refusal("dropout draws numbers")
    rank, shape = query.rank, query.shape
    if enable_gqa and rank > 2 and shape[-3] != key.shape[-3]:
        query, key, value = _shared(to, query, key, value)
    _hinted(query, key, value)
    count = query.rank - 2
    # Keys and values may have fewer dimensions in front, or of one element, which all queries share.
    key, value = (expand(to, x, [*x.shape[:-2], *x.shape[-2:]]) for x in (key, value))

    def batch(x: Value, y: Value) -> list[tuple[int | None, int | None]]:
        more = max(x.rank, y.rank) - 2
        return [tuple(n - more + v.rank - 2 if n - more + v.rank - 2 >= 0 else None for v in (x, y)) for n in range(more)]  # type: ignore[misc]

    scores = contracted(to, query, key, batch(query, key), [query.rank - 2], [key.rank - 2], [(query.rank - 1, key.rank - 1)])
    factor = 1 / math.sqrt(shape[-1]) if scale is None else scale
    scores = scores.with_(to.scaled(scores.node, factor))
    for axis in scores.dims[-2]:
        axis.hint("i", 4)
    for axis in scores.dims[-1]:
        axis.hint("j", 5)
    if is_causal:
        scores = _causal(to, scores)
    if attn_mask is not None:
        if count != rank - 2 and attn_mask.rank == rank:
            heads = attn_mask.shape[-3]
            if heads > 1:
                shares = scores.shape[-3]
                attn_mask = to.reshaped(attn_mask, [*attn_mask.shape[:-3], heads // shares, shares, *attn_mask.shape[-2:]])
            else:
                attn_mask = attn_mask.with_(dims=[*attn_mask.dims[:-2], (), *attn_mask.dims[-2:]])
        masked = attn_mask.kind == "bool"
        scores = to.select(attn_mask, scores, -math.inf) if masked else add(to, scores, attn_mask)
    rows, seen = scores.dim(-1), None
    if attn_mask is not None and attn_mask.kind == "bool" and to.sources(attn_mask.node):
        # A row that sees nothing is 0, and its softmax would be 0 / 0. What is computed of indices is taken to leave no such row.
        seen = Value(to.reduced("max", to.condition(attn_mask), attn_mask.dim(-1)), (*attn_mask.dims[:-1], ()), "bool")
    scores.node.name("s", 1)
    if rows:
        weights = scores.with_(to.call("softmax", to.repeated(scores.node, rows), over=rows))
    else:
        weights = scores.with_(to.constant(1))
    weights.node.name("p", 1)
    made = contracted(to, weights, value, batch(weights, value), [weights.rank - 2], [value.rank - 1], [(weights.rank - 1, value.rank - 2)])
    made = made if seen is None else to.select(seen, made, 0.0)
    return made if made.rank == rank else made.with_(dims=[*made.dims[:-4], (*made.dims[-4], *made.dims[-3]), *made.dims[-2:]])


def _hinted(query: Value, key: Value, value: Value) -> None:
    names = [(query, -1, "d"), (key, -1, "d"), (value, -1, "e"), (key, -2, "j")]
    if query.rank >= 4:
        names += [(query, 0, "b"), (key, 0, "b")]
    if query.rank == 4:
        names += [(query, 1, "h"), (key, 1, "h")]
    for x, dim, name in names:
        for axis in leaves(x.dims[dim]):
            axis.hint(name, 3)


def _shared(to: Graph, query: Value, key: Value, value: Value) -> tuple[Value, Value, Value]:
    """The heads of queries as heads of keys and the queries that share one."""
    shape, heads = query.shape, key.shape[-3]
    query = to.reshaped(query, [*shape[:-3], heads, shape[-3] // heads, *shape[-2:]])
    for axis in query.dims[-4]:
        axis.hint("h", 4)
    for axis in query.dims[-3]:
        axis.hint("g", 4)
    key, value = (x.with_(dims=[*x.dims[:-2], (), *x.dims[-2:]]) for x in (key, value))
    return query, key, value


def _causal(to: Graph, scores: Value) -> Value:
    """Row i sees columns up to i. Where there are as many of both that is the language's `causal`, which lines up the last of both."""
    rows, columns = scores.dim(-2), scores.dim(-1)
    if len(rows) == len(columns) == 1 and rows[0].extent == columns[0].extent and are_apart(rows[0], columns[0]):
        rows[0].pinned = columns[0].pinned = True
        return scores.with_(Node("causal", (to.repeated(scores.node, (*rows, *columns)),), over=(rows[0], columns[0])))
    reach = Node("sub", (to.iota(rows), to.iota(columns)))
    return scores.with_(Node("select", (reach, scores.node, to.constant(-math.inf))))
