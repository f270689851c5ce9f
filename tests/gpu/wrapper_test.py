"""Checks the PyTorch side of artifacts on a GPU: eager, compiled, in graphs, by threads, on streams that come and go; refusals, host time.

    python tests/gpu/wrapper_test.py ARTIFACT...

Who launches is up to the environment, as for any user of an artifact; launcher_test.py runs this with both launchers.

One of the artifacts at least must have blocks that count each other (a sum in parts, as of a product of few rows), one three kernels,
and one no parameters, as of `program constant`, `axis i = 4096`, `return f32 [i] iota(i)`.

What a kernel computes is compared with the artifact's own reference: `tilewright simulate` is too slow at full shapes, so the results of
all ways of calling are compared with the eager result, bit for bit, and that one was verified when the artifact was made.
"""

import ctypes
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

HOST_TIME_LIMITS = {"ctypes": 4, "compiled": 1.5}  # times torch.add, by launcher
CALLS = 2000
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
STRESS = "--full-queue"  # the word that starts the test of full queues
STRESS_SECONDS = 120


def load(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"artifact_{folder.name}", folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where torch.compile looks for what it traces
    spec.loader.exec_module(module)
    return module


def draw(module: ModuleType, device: str = "cuda") -> list[torch.Tensor]:
    """Inputs for the parameters."""
    return [torch.randn(p["shape"], device=device).to(DTYPES[p["dtype"]]) for p in module.manifest["parameters"]]


def host_time(call: Callable, *arguments: torch.Tensor) -> float:
    """Seconds of the host a call, the least of several rounds; the GPU is let catch up between rounds."""
    best = float("inf")
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS // 20):
            call(*arguments)
        best = min(best, (time.perf_counter() - start) / (CALLS // 20))
    return best


def refuses(kind: type, part: str, call: Callable, *arguments: object) -> str:
    try:
        call(*arguments)
    except kind as error:
        assert part in str(error), f"expected `{part}` in: {error}"
        return str(error)
    raise AssertionError(f"expected {kind.__name__} with `{part}`, found a result")


def outputs(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def same(found: object, wanted: object) -> None:
    for f, w in zip(outputs(found), outputs(wanted), strict=True):
        assert torch.equal(f.reshape(-1).view(torch.uint8), w.reshape(-1).view(torch.uint8)), "the result differs from the eager one"


def launches(folder: Path) -> list[dict]:
    return json.loads((folder / "manifest.json").read_text())["launches"]


def counts(folder: Path) -> bool:
    """Whether blocks of the artifact's kernels count each other, on a split-K workspace that a call must have for itself."""
    return any(launch["split_workspace"]["counters"] > 0 for launch in launches(folder))


def many(folder: Path) -> bool:
    """Whether the artifact has so many kernels that its calls are replayed."""
    return len(launches(folder)) >= 3


def constant(folder: Path) -> bool:
    """Whether the artifact has no parameters."""
    return not json.loads((folder / "manifest.json").read_text())["parameters"]


def recorded(module: ModuleType) -> int:
    """How many calls are replayed as graphs."""
    return len(module._recorded) if module._compiled is None else module._compiled.recorded()


# --- What each artifact is asked ----------------------------------------------------------------------------------------


def check_streams(module: ModuleType, inputs: list[torch.Tensor], first: object) -> None:
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

    # Streams that come and go: the driver may give their handles to the next ones.
    driver = ctypes.CDLL("libcuda.so.1")
    for _ in range(20):
        handle = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            results = [module.run(*inputs) for _ in range(4)]
        torch.cuda.synchronize()
        assert driver.cuStreamDestroy_v2(handle) == 0
        for result in results:
            same(result, first)


def check_threads(module: ModuleType, inputs: list[torch.Tensor], first: object) -> None:
    """Threads on one stream, and a call in the middle of a call."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            copies = [t.clone() for t in inputs]
            for result in [module.run(*copies) for _ in range(20)]:
                same(result, first)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, f"in a thread: {failed[0]}"

    others = [t.clone() for t in inputs]
    inner: list[object] = []

    def interrupt(*_: object) -> None:
        inner.append(module.run(*others))
        signal.setitimer(signal.ITIMER_REAL, 3e-4 if len(inner) < 50 else 0)

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1e-3)
    try:
        end, outer = time.monotonic() + 10, []
        while len(inner) < 50 and time.monotonic() < end:
            outer = [module.run(*inputs), *outer[:20]]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert len(inner) == 50, "signals did not come"
    torch.cuda.synchronize()
    for result in [*inner, *outer]:
        same(result, first)


def check_replays(folder: Path, module: ModuleType, inputs: list[torch.Tensor]) -> None:
    """What is replayed reads what its addresses hold now; calls with other addresses are launched anew."""
    for scale in (0.5, 0.25):
        inputs[0].mul_(scale)
        wanted = module.run(*[t.clone() for t in inputs])
        for _ in range(3):
            same(module.run(*inputs), wanted)
        copies = [t.clone() for t in inputs]
        for _ in range(3):
            same(module.run(*copies), wanted)
    assert not many(folder) or recorded(module), "no call was replayed"


def check_graphs(folder: Path, module: ModuleType, inputs: list[torch.Tensor], first: object) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = module.run(*inputs)
        again = module.run(*inputs)
    for _ in range(2):
        for output in (*outputs(captured), *outputs(again)):
            output.zero_()
        graph.replay()
        torch.cuda.synchronize()
        same(captured, first)
        same(again, first)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    same(captured, first)

    # Two streams of one graph.
    forked, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(forked):
        side.wait_stream(torch.cuda.current_stream())
        here = module.run(*inputs)
        with torch.cuda.stream(side):
            there = module.run(*inputs)
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(5):
        forked.replay()
    torch.cuda.synchronize()
    same(here, first)
    same(there, first)

    # Graphs that come and go leave no memory behind.
    for _ in range(30):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = module.run(*inputs)
        graph.replay()
        torch.cuda.synchronize()
        same(captured, first)
        del captured, graph
        time.sleep(0.005)  # the driver lets go on a thread of its own
    lent = sum(map(len, module._lent.values()))
    assert (0 < lent < 12) if counts(folder) else lent <= 12, f"{lent} split-K workspaces for three graphs and one more at a time"


def check_compiled(module: ModuleType, inputs: list[torch.Tensor], first: object) -> None:
    compiled = torch.compile(lambda *tensors: module.run(*tensors), fullgraph=True)
    same(compiled(*inputs), first)
    reduced = torch.compile(lambda *tensors: module.run(*tensors), fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        same(reduced(*inputs), first)
    if inputs:
        between = torch.compile(lambda *tensors: module.run(*(t * 1 for t in tensors)), fullgraph=True)
        same(between(*inputs), first)
        wanted = inputs[0].clone().requires_grad_()
        refuses(Exception, "derivative", compiled, wanted, *inputs[1:])
        with torch.no_grad():
            same(compiled(wanted, *inputs[1:]), first)


def check_derivatives(module: ModuleType, inputs: list[torch.Tensor], first: object) -> None:
    one, rest = inputs[0], inputs[1:]
    wanted = one.clone().requires_grad_()
    for call in (module.run, module.op, getattr(torch.ops, module.manifest["namespace"]).run):
        refuses(RuntimeError, "derivative", call, wanted, *rest)
        with torch.no_grad():
            same(call(wanted, *rest), first)
        with torch.inference_mode():
            same(call(wanted, *rest), first)
    total = torch.func.grad(lambda t: sum(o.float().sum() for o in outputs(module.run(t, *rest))))
    refuses(RuntimeError, "derivative", total, one)
    refuses(RuntimeError, "derivative", torch.func.jvp, lambda t: module.run(t, *rest), (one,), (one,))
    batched = torch.vmap(module.run)(*[t.expand(2, *t.shape) for t in inputs])
    for n in range(2):
        same(tuple(o[n] for o in outputs(batched)), first)


def check_faults(module: ModuleType, inputs: list[torch.Tensor]) -> None:
    """What is refused on the GPU is refused in the same words where there is no data."""
    name, one, rest = module.manifest["parameters"][0]["name"], inputs[0], inputs[1:]
    cases = [
        (f"`{name}`: expected", lambda t: t.to(torch.float64)),
        ("CUDA tensor", lambda t: t.cpu()),
        ("shape", lambda t: t[None]),
    ]
    if one.dim() > 1 and min(one.shape[-2:]) > 1:
        cases.append(("contiguous", lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2)))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in inputs]
        assert all(o.device == one.device for o in outputs(module.run(*fakes)))
    for part, change in cases:
        message = refuses(ValueError, part, module.run, change(one), *rest)
        with mode:
            found = refuses(ValueError, part, module.run, change(fakes[0]), *fakes[1:])
        assert found == message, f"{found}\nis not\n{message}"
    assert all(o.device.type == "meta" for o in outputs(module.run(*draw(module, "meta"))))
    refuses(TypeError, "expected", module.run, *rest)
    shifted = torch.empty(one.numel() + 1, dtype=one.dtype, device="cuda")[1:].view(one.shape)
    refuses(ValueError, "aligned", module.run, shifted, *rest)


def check_devices(module: ModuleType, inputs: list[torch.Tensor], first: object) -> None:
    """Tensors decide the device, and the current one stays."""
    if torch.cuda.device_count() < 2:
        print("  one GPU: not checked on a second")
        return
    far = [t.to("cuda:1") for t in inputs]
    torch.cuda.synchronize(1)
    for _ in range(3):
        for o, w in zip(outputs(module.run(*far)), outputs(first), strict=True):
            assert o.device.index == 1
            same(o.to("cuda:0"), w)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend((module.run(*far), torch.cuda.current_device())))
    thread.start()
    thread.join()
    assert len(found) == 2 and found[1] == torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    if len(inputs) > 1:
        refuses(ValueError, "like the others", module.run, far[0], *inputs[1:])


def check_host_time(folder: Path, module: ModuleType, inputs: list[torch.Tensor]) -> None:
    small = torch.randn(16, device="cuda")
    for _ in range(50):
        torch.add(small, small)
        module.run(*inputs)
    with torch.no_grad():
        ours, theirs = host_time(module.run, *inputs), host_time(torch.add, small, small)
    print(f"{folder.name}: host {ours * 1e6:.1f} us a call ({module.launcher}), torch.add {theirs * 1e6:.1f} us")
    assert ours <= HOST_TIME_LIMITS[module.launcher] * theirs, f"host time is {ours / theirs:.1f} times torch.add"


def check(folder: Path) -> None:
    module = load(folder)
    inputs = draw(module)
    first = module.run(*inputs)
    torch.cuda.synchronize()
    same(module.run(*inputs), first)
    if inputs:
        check_replays(folder, module, inputs)
        first = module.run(*inputs)
    # Before threads have used up the graphs that are kept.
    check_host_time(folder, module, inputs)
    check_streams(module, inputs, first)
    check_threads(module, inputs, first)
    check_graphs(folder, module, inputs, first)
    check_compiled(module, inputs, first)
    torch.library.opcheck(module.op, tuple(inputs))
    if inputs:
        check_derivatives(module, inputs, first)
        check_faults(module, inputs)
        check_devices(module, inputs, first)


# --- Full queues --------------------------------------------------------------------------------------------------------


def fill_queues(folders: list[Path]) -> None:
    """Launches more than a queue holds behind a host function that needs Python's lock. Where a launch keeps that lock, this never ends."""
    driver = ctypes.CDLL("libcuda.so.1")
    for folder in folders:
        module = load(folder)
        inputs = draw(module)
        first = [module.run(*inputs) for _ in range(4)][0]
        torch.cuda.synchronize()

        def function(_: object) -> None:
            for _ in range(250):
                time.sleep(0.004)

        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
        stream, side = torch.cuda.Stream(), torch.cuda.Stream()
        elsewhere: list[object] = []
        with torch.cuda.stream(stream):
            assert driver.cuLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), call, None) == 0

            def rank() -> None:
                time.sleep(0.3)  # the queue is full
                with torch.cuda.stream(side):
                    elsewhere.append(module.run(*inputs))

            thread = threading.Thread(target=rank)
            thread.start()
            start, last = time.monotonic(), None
            for _ in range(4096):
                last = module.run(*inputs)
            taken = time.monotonic() - start
        thread.join()
        torch.cuda.synchronize()
        same(last, first)
        same(elsewhere[0], first)
        assert taken > 0.5, f"{folder.name}: launching took {taken:.2f} s: the queue was never full"
        print(f"ok   {folder.name}: a full queue, {taken:.2f} s")


def stress(folders: list[str]) -> bool:
    """Whether `fill_queues` ends, in a process of its own."""
    try:
        return subprocess.run([sys.executable, __file__, STRESS, *folders], timeout=STRESS_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"FAIL full queues: no end after {STRESS_SECONDS} s")
        return False


def main() -> int:
    if not torch.cuda.is_available():
        print("skipped: no GPU", file=sys.stderr)
        return 1
    if sys.argv[1:2] == [STRESS]:
        fill_queues([Path(folder) for folder in sys.argv[2:]])
        return 0
    failed = 0
    for what, found in (
        ("blocks that count each other", counts),
        ("three kernels", many),
        ("no parameters", constant),
    ):
        if not any(found(Path(folder)) for folder in sys.argv[1:]):
            failed += 1
            print(f"FAIL: no artifact has {what}")
    for folder in map(Path, sys.argv[1:]):
        try:
            check(folder)
            print(f"ok   {folder.name}")
        except Exception as error:  # every artifact is checked, whatever happens to the others
            failed += 1
            print(f"FAIL {folder.name}: {type(error).__name__}: {error}")
    failed += not stress(sys.argv[1:])
    return 1 if failed or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
