"""Checks the PyTorch side of artifacts on a GPU: eager, on two streams at once, compiled, in a graph, opcheck, refusals, host time.

    python tests/gpu/wrapper_test.py ARTIFACT...

One of the artifacts at least must have blocks that wait for each other, and one must have three kernels.

What a kernel computes is compared with the artifact's own reference: `tilewright simulate` is too slow at full shapes, so the results of
all ways of calling are compared with the eager result, bit for bit, and that one was verified when the artifact was made.
"""

import importlib.util
import json
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import torch

HOST_TIME_LIMIT = 4  # times torch.add
CALLS = 2000


def load(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"artifact_{folder.name}", folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where torch.compile looks for what it traces
    spec.loader.exec_module(module)
    return module


def host_time(call, *arguments) -> float:
    """Seconds of the host a call, the least of several rounds; the GPU is let catch up between rounds."""
    best = float("inf")
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS // 20):
            call(*arguments)
        best = min(best, (time.perf_counter() - start) / (CALLS // 20))
    return best


def refuses(kind: type, part: str, call, *arguments) -> None:
    try:
        call(*arguments)
    except kind as error:
        assert part in str(error), f"expected `{part}` in: {error}"
    else:
        raise AssertionError(f"expected {kind.__name__} with `{part}`, found a result")


def outputs(value) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def same(found, wanted) -> None:
    for f, w in zip(outputs(found), outputs(wanted), strict=True):
        assert torch.equal(f.view(torch.uint8), w.view(torch.uint8)), "the result differs from the eager one"


def waits(folder: Path) -> bool:
    """Whether blocks of the artifact's kernels wait for each other."""
    launches = json.loads((folder / "manifest.json").read_text())["launches"]
    return any(launch["board"]["together"] > 1 for launch in launches)


def many(folder: Path) -> bool:
    """Whether the artifact has so many kernels that its calls are replayed."""
    return len(json.loads((folder / "manifest.json").read_text())["launches"]) >= 3


def check(folder: Path) -> None:
    module = load(folder)
    names = [p["name"] for p in module.manifest["parameters"]]
    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    inputs = [torch.randn(p["shape"], device="cuda").to(dtypes[p["dtype"]]) for p in module.manifest["parameters"]]
    first = module.run(*inputs)
    torch.cuda.synchronize()
    same(module.run(*inputs), first)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        elsewhere = module.run(*inputs)
    side.synchronize()
    same(elsewhere, first)

    streams = [torch.cuda.Stream() for _ in range(2)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    at_once = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                at_once.append(module.run(*inputs))
    torch.cuda.synchronize()
    for result in at_once:
        same(result, first)

    found = []
    thread = threading.Thread(target=lambda: found.append(module.run(*inputs)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert found, "a call from another thread failed"
    same(found[0], first)

    # What is replayed reads what its addresses hold now; calls with other addresses are launched anew.
    for scale in (0.5, 0.25):
        inputs[0].mul_(scale)
        wanted = module.run(*[t.clone() for t in inputs])
        for _ in range(3):
            same(module.run(*inputs), wanted)
        copies = [t.clone() for t in inputs]
        for _ in range(3):
            same(module.run(*copies), wanted)
    first = module.run(*inputs)
    launcher = module._threads.launchers[inputs[0].get_device()]
    assert (launcher.replays is not None) == many(folder)
    assert not many(folder) or launcher.replays.graphs, "no call was replayed"

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = module.run(*inputs)
    for _ in range(2):
        for output in outputs(captured):
            output.zero_()
        graph.replay()
        torch.cuda.synchronize()
        same(captured, first)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    same(captured, first)

    compiled = torch.compile(lambda *tensors: module.run(*tensors), fullgraph=True)
    same(compiled(*inputs), first)
    reduced = torch.compile(lambda *tensors: module.run(*tensors), fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        same(reduced(*inputs), first)

    torch.library.opcheck(module.op, tuple(inputs))

    wrong = torch.float64
    refuses(ValueError, f"`{names[0]}`: expected", module.run, inputs[0].to(wrong), *inputs[1:])
    refuses(ValueError, "CUDA tensor", module.run, inputs[0].cpu(), *inputs[1:])
    refuses(ValueError, "shape", module.run, inputs[0][None], *inputs[1:])
    refuses(TypeError, "expected", module.run, *inputs[1:])
    refuses(RuntimeError, "derivative", module.run, inputs[0].clone().requires_grad_(), *inputs[1:])
    if inputs[0].dim() > 1 and min(inputs[0].shape[-2:]) > 1:
        strided = inputs[0].transpose(-1, -2).contiguous().transpose(-1, -2)
        refuses(ValueError, "contiguous", module.run, strided, *inputs[1:])

    small = torch.randn(16, device="cuda")
    for _ in range(50):
        torch.add(small, small)
        module.run(*inputs)
    with torch.no_grad():
        ours, theirs = host_time(module.run, *inputs), host_time(torch.add, small, small)
    print(f"{folder.name}: host {ours * 1e6:.1f} us a call, torch.add {theirs * 1e6:.1f} us")
    assert ours <= HOST_TIME_LIMIT * theirs, f"host time is {ours / theirs:.1f} times torch.add"


def main() -> int:
    if not torch.cuda.is_available():
        print("skipped: no GPU", file=sys.stderr)
        return 1
    failed = 0
    if not any(waits(Path(folder)) for folder in sys.argv[1:]):
        failed += 1
        print("FAIL: no artifact has blocks that wait for each other")
    if not any(many(Path(folder)) for folder in sys.argv[1:]):
        failed += 1
        print("FAIL: no artifact has three kernels")
    for folder in map(Path, sys.argv[1:]):
        try:
            check(folder)
            print(f"ok   {folder.name}")
        except Exception as error:  # every artifact is checked, whatever happens to the others
            failed += 1
            print(f"FAIL {folder.name}: {type(error).__name__}: {error}")
    return 1 if failed or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
