"""Checks both launchers of artifacts on a GPU: each by itself (wrapper_test.py), and that they agree.

    python tests/gpu/launcher_test.py ARTIFACT...

Needs PyTorch and the package `tilewright`. The artifacts are such as wrapper_test.py wants; `bench/launch.py --make` makes some. Without a GPU
this says so and passes; with TILEWRIGHT_REQUIRE_GPU=1 it fails instead.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

import torch
from wrapper_test import draw, outputs, refuses, same

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from launch import LAUNCHERS, load_as  # noqa: E402

SECONDS = 900  # a launcher by itself


def agree(folder: Path, scratch: Path) -> None:
    """Both ways give the same bits, eagerly, in graphs and from threads, and refuse in the same words."""
    modules = [load_as(folder, launcher, scratch) for launcher in LAUNCHERS]
    inputs = draw(modules[0])
    # Without parameters nothing says where to launch, and both are the same way.
    assert [m.launcher for m in modules] == (list(LAUNCHERS) if inputs else ["ctypes", "ctypes"]), [m.why_ctypes for m in modules]
    results = [[module.run(*inputs) for _ in range(4)] for module in modules]
    torch.cuda.synchronize()
    for result in results[1]:
        same(result, results[0][0])
    graphs = []
    for module in modules:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            graphs.append((graph, module.run(*inputs)))
    for graph, captured in graphs:
        for output in outputs(captured):
            output.zero_()
        graph.replay()
        torch.cuda.synchronize()
        same(captured, results[0][0])
    found: list[object] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found.extend(module.run(*inputs) for module in modules)
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160, "a thread ended early"
    for result in found:
        same(result, results[0][0])
    if not inputs:
        return
    one, rest = inputs[0], inputs[1:]
    wrong = [one.double(), one[None], one.cpu(), torch.empty(one.numel() + 1, dtype=one.dtype, device="cuda")[1:].view(one.shape)]
    for tensor in wrong:
        messages = {refuses(ValueError, "expected", call, tensor, *rest) for m in modules for call in (m.run, m.op)}
        assert len(messages) == 1, messages
    check_memory(modules, inputs)
    for module in modules:
        same(module.run(*inputs), results[0][0])


def check_memory(modules: list[ModuleType], inputs: list[torch.Tensor]) -> None:
    """Where no memory is left, PyTorch's own error says so, and is over when there is some."""
    for module in modules:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
        held = []
        try:
            for _ in range(100_000):
                held.append(module.run(*inputs))
            raise AssertionError(f"{module.launcher}: {len(held)} results found room")
        except torch.OutOfMemoryError as error:
            assert "out of memory" in str(error), error
        finally:
            held.clear()
            torch.cuda.set_per_process_memory_fraction(1.0)


def main() -> int:
    if not torch.cuda.is_available():
        required = os.environ.get("TILEWRIGHT_REQUIRE_GPU") == "1"
        print("TILEWRIGHT_REQUIRE_GPU is set, and there is no GPU" if required else "skipped: no GPU", file=sys.stderr)
        return int(required)
    folders = [Path(folder) for folder in sys.argv[1:]]
    failed = 0
    for launcher in LAUNCHERS:
        print(f"--- {launcher}", flush=True)
        command = [sys.executable, str(Path(__file__).with_name("wrapper_test.py")), *map(str, folders)]
        environment = os.environ | {"TILEWRIGHT_LAUNCHER": launcher}
        try:
            failed += subprocess.run(command, env=environment, timeout=SECONDS).returncode != 0
        except subprocess.TimeoutExpired:
            failed += 1
            print(f"FAIL {launcher}: no end after {SECONDS} s")
    print("--- both", flush=True)
    scratch = Path(tempfile.mkdtemp())
    try:
        for folder in folders:
            try:
                agree(folder, scratch)
                print(f"ok   {folder.name}")
            except Exception as error:  # every artifact is checked, whatever happens to the others
                failed += 1
                print(f"FAIL {folder.name}: {type(error).__name__}: {error}")
    finally:
        shutil.rmtree(scratch)
    print(f"{failed} failed")
    return 1 if failed or not folders else 0


if __name__ == "__main__":
    sys.exit(main())
