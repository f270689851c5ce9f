"""Inputs of which some are whole numbers or truth values: what a test says of each is a function of a generator."""

from collections.abc import Callable
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], np.ndarray]


def real(*shape: int) -> Draw:
    return lambda draw: draw.standard_normal(shape).astype("float32")


def below(limit: int, *shape: int, least: int = 0, dtype: str = "int64") -> Draw:
    """From the least one on."""
    return lambda draw: draw.integers(least, limit, shape).astype(dtype)


def distinct(limit: int, count: int) -> Draw:
    """Each at most once."""
    return lambda draw: draw.permutation(limit)[:count].astype("int64")


def held(values: Any, dtype: str = "int64") -> Draw:
    return lambda draw: np.array(values, dtype)


def truth(*shape: int) -> Draw:
    return lambda draw: draw.integers(0, 2, shape).astype("bool")


def drawn(draws: dict[str, Draw]) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [one(draw) for one in draws.values()]
