"""Artifacts that cases are about, and what is called with them."""

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from driver import Driver

SHAPE = (8, 64)

world: ModuleType
"""What gives cases what they need of PyTorch: `standin` or `real`."""


def base() -> dict:
    manifest = json.loads((Path(os.environ["SCRATCH"]) / "base/manifest.json").read_text())
    assert [b["role"] for b in manifest["buffers"]] == ["parameter", "parameter", "output"], "another base than expected"
    return manifest


def load(
    driver: Driver,
    kernels: int = 2,
    split_workspace: bool = False,
    tensor_map: bool = False,
    launcher: str | None = None,
    **changes: object,
) -> ModuleType:
    """The module of an artifact with so many kernels, which pass a workspace and, if asked for, have a split-K workspace or a map of x.
    A launcher is asked for as users do it."""
    manifest = base()
    manifest["buffers"].append({"name": "w", "dtype": "f32", "role": "workspace", "index": 0, "bytes": 300})
    one = manifest["launches"][0] | {"arguments": [0, 1, 2, 3]}
    sizes = (640, 128, 2) if split_workspace else (0, 0, 0)
    one["split_workspace"] = dict(zip(("bytes", "counters", "together"), sizes))
    tile = {"buffer": 0, "offset": 0, "extents": [64, 8], "strides": [128], "sizes": [64, 8], "line_bytes": 128}
    one["maps"] = [tile] if tensor_map else []
    manifest["launches"] = [one | {"entry": f"p_{n}", "overlaps": n > 0} for n in range(kernels)]
    manifest |= changes
    first = manifest["launches"][0]
    driver.set("arguments", len(first["arguments"]) + (first["split_workspace"]["bytes"] > 0) + len(first["maps"]))
    folder = Path(tempfile.mkdtemp(dir=os.environ["SCRATCH"]))
    for file in (Path(os.environ["SCRATCH"]) / "base").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    # One for each kernel.
    cubin = (folder / manifest["cubin"]["file"]).read_bytes()
    (folder / manifest["cubin"]["file"]).write_bytes(cubin * len(manifest["launches"]))
    manifest["cubin"] |= {"bytes": [len(cubin)] * len(manifest["launches"])}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "__init__.py").write_text(world.change((folder / "__init__.py").read_text()))
    if launcher is not None:
        os.environ["TILEWRIGHT_LAUNCHER"] = launcher
    spec = importlib.util.spec_from_file_location(folder.name, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where torch.compile looks for what it traces
    spec.loader.exec_module(module)
    return module


def inputs() -> list:
    return [world.Tensor(SHAPE, world.float16) for _ in range(2)]


def refusal(kind: type, call: Callable, *arguments: object) -> str:
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}, found a result")
