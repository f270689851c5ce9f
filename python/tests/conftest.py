"""What the tests share. They run against the installed package; those of an importer need PyTorch or JAX, and those of
`tilewright.ray` Ray. They are skipped with a message where it is missing, unless TILEWRIGHT_REQUIRE_TORCH=1, TILEWRIGHT_REQUIRE_JAX=1 or TILEWRIGHT_REQUIRE_RAY=1 says that it must
be there."""

import importlib
import os
from types import ModuleType

import pytest

ATTENTION = """\
program attention
axis i = 16, j = 32, d = 8, e = 8
q = parameter f16 [i, d]
k = parameter f16 [j, d]
v = parameter f16 [j, e]
return f16 [i, e] dot(softmax(dot(q, k; d) * 0.25; j), v; j)
"""


FRAMEWORKS = ("torch", "jax", "ray")
"""By the fixtures of their names."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for name in FRAMEWORKS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if os.environ.get(f"TILEWRIGHT_REQUIRE_{name.upper()}") == "1":
                raise
            for item in items:
                if name in getattr(item, "fixturenames", ()):
                    item.add_marker(pytest.mark.skip(reason=f"{name} is missing: {error}"))


@pytest.fixture
def ray() -> ModuleType:
    import ray

    return ray


@pytest.fixture
def torch() -> ModuleType:
    import torch

    torch.manual_seed(0)
    return torch


@pytest.fixture
def jax() -> ModuleType:
    import jax

    return jax


@pytest.fixture
def attention() -> str:
    return ATTENTION
