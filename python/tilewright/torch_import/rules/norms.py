"""Norms."""

from collections.abc import Sequence

from tilewright.importing.axes import Group
from tilewright.importing.graph import Graph, Refusal, Value
from tilewright.torch_import.rules.pointwise import add, mul
from tilewright.torch_import.rules.reductions import over
from tilewright.torch_import.table import rule


def _scaled(to: Graph, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = mul(to, x, weight)
    return x if bias is None else add(to, x, bias)


def _of_channels(x: Value, rank: int) -> Value:
    """A tensor of one number a channel, to line up with tensors whose second dimension are the channels."""
    return x.with_(dims=[x.dims[0], *[()] * (rank - 2)])


def _hinted(axes: Group, name: str) -> Group:
    for axis in axes:
        axis.hint(name, 2)
    return axes


@rule("layer_norm")
def layer_norm(
    to: Graph, input: Value, normalized_shape: Sequence[int], weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Value:
    axes = _hinted(over(input, range(-len(normalized_shape), 0)), "m")
    made = input.with_(to.call("layer_norm", to.repeated(input.node, axes), over=axes, constants=(eps,)))
    return _scaled(to, made, weight, bias)


@rule("rms_norm")
def rms_norm(to: Graph, input: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None) -> Value:
    assert eps is not None, "the driver fills it in: it hangs on the dtype"
    axes = _hinted(over(input, range(-len(normalized_shape), 0)), "m")
    made = input.with_(to.call("rms_norm", to.repeated(input.node, axes), over=axes, constants=(eps,)))
    return _scaled(to, made, weight, None)


@rule("group_norm")
def group_norm(to: Graph, input: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5) -> Value:
    """The channels are a group of axes: the number of the group, and the channel within it."""
    shape = input.shape
    grouped = to.reshaped(input, [shape[0], num_groups, shape[1] // num_groups, *shape[2:]])
    for axis in grouped.dims[1]:
        axis.hint("g", 4)
    for axis in grouped.dims[2]:
        axis.hint("c", 4)
    axes = over(grouped, range(2, grouped.rank))
    made = (
        grouped.with_(to.call("group_norm", to.repeated(grouped.node, axes), over=axes, constants=(eps,))) if axes else grouped.with_(to.constant(0))
    )
    made = to.reshaped(made, shape)
    return _scaled(to, made, *(None if x is None else _of_channels(x, input.rank) for x in (weight, bias)))


@rule("batch_norm")
def batch_norm(
    to: Graph,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    weight, bias = (None if x is None else _of_channels(x, input.rank) for x in (weight, bias))
    if training or running_mean is None or running_var is None:
        if running_mean is not None:
            raise Refusal("a batch norm in training writes its running statistics: call .eval() on the module first")
        axes = over(input, [0, *range(2, input.rank)])
        return _scaled(to, input.with_(to.call("batch_norm", to.repeated(input.node, axes), over=axes, constants=(eps,))), weight, bias)
    mean, variance = _of_channels(running_mean, input.rank), _of_channels(running_var, input.rank)
    made = to.pointwise(lambda x, m, v: to.call("batch_norm", x, m, v, constants=(eps,)), input, mean, variance)
    return _scaled(to, made, weight, bias)


@rule("_native_batch_norm_legit_no_training")
def batch_norm_of_statistics(
    to: Graph, input: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value, momentum: float, eps: float
) -> tuple[Value, Refusal, Refusal]:
    none = Refusal("statistics of a batch norm that has computed none")
    return batch_norm(to, input, weight, bias, running_mean, running_var, False, momentum, eps), none, none


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    to: Graph, input: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, Refusal, Refusal]:
    none = Refusal("statistics of a batch norm as a result")
    return batch_norm(to, input, weight, bias, None, None, training, momentum, eps), none, none


@rule("instance_norm")
def instance_norm(
    to: Graph,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    weight, bias = (None if x is None else _of_channels(x, input.rank) for x in (weight, bias))
    if not use_input_stats:
        return batch_norm(to, input, weight, bias, running_mean, running_var, False, momentum, eps)
    if running_mean is not None:
        raise Refusal("an instance norm in training writes its running statistics: call .eval() on the module first")
    axes = over(input, range(2, input.rank))
    return _scaled(to, input.with_(to.call("instance_norm", to.repeated(input.node, axes), over=axes, constants=(eps,))), weight, bias)
