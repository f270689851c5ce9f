"""Libraries of hand-written kernels as peers: FlashAttention-4's Hopper path and QuACK, where they can be imported.

A library is imported when its first mode is made. Until then nothing here needs one to be installed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

Function = Callable[..., Tensor | tuple[Tensor, ...]]

PACKAGES = ("flash-attn-4", "quack-kernels", "nvidia-cutlass-dsl")  # the last one compiles the kernels of the others
SPLITS = (8, 16, 32)  # parts into which the keys of a short query are divided; version 4.0.0b36 refuses that on Hopper


def versions() -> dict[str, str]:
    """The versions of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def as_they_are(*inputs: Tensor) -> list[Tensor]:
    return list(inputs)


def as_it_is(output: Tensor, _shape: torch.Size) -> Tensor:
    return output


@dataclass(frozen=True)
class Foreign:
    """A function of a library and the layout that it wants. Only the function is timed, not the ways to that layout and back."""

    load: Callable[[], Function]  # raises ImportError where the library is missing
    lay_out: Callable[..., list[Tensor]] = as_they_are  # the example's inputs as the function takes them
    restore: Callable[[Tensor, torch.Size], Tensor] = as_it_is  # the function's output in the example's shape


# FlashAttention-4


def heads_inside(*inputs: Tensor) -> list[Tensor]:
    """`[b, h, s, d]`, `[b, h, g, s, d]` or `[b, s, d]` as a contiguous `[b, s, heads, d]`."""
    return [(x.unsqueeze(1) if x.dim() == 3 else x.flatten(1, -3)).transpose(1, 2).contiguous() for x in inputs]


def heads_outside(output: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `heads_inside`."""
    return output.transpose(1, 2).reshape(shape)


def fa4(scale: float, causal: bool = False, splits: tuple[int, ...] = ()) -> dict[str, Foreign]:
    """Attention with the keys undivided, and in each of these numbers of parts."""

    def divided(parts: int) -> Foreign:
        def load() -> Function:
            from flash_attn.cute.interface import flash_attn_func

            return lambda q, k, v: flash_attn_func(q, k, v, softmax_scale=scale, causal=causal, num_splits=parts)[0]

        return Foreign(load, heads_inside, heads_outside)

    return {"fa4": divided(1), **{f"fa4-split{parts}": divided(parts) for parts in splits}}


# QuACK


def quack_matmul() -> Function:
    from quack.gemm_interface import gemm

    return gemm


def quack_softmax() -> Function:
    from quack.softmax import softmax_fwd

    return softmax_fwd


def quack_rmsnorm(eps: float) -> Callable[[], Function]:
    def load() -> Function:
        from quack.rmsnorm import rmsnorm_fwd

        return lambda x, g: rmsnorm_fwd(x, g, eps=eps)[0]

    return load
