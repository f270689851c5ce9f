"""Measures one example at a time on the GPU: ours and every peer, by one CUDA-graph harness in one process.

Run as a process it answers one JSON request a line. A kernel that faults takes only this process down.
"""

import contextlib
import functools
import importlib.util
import json
import os
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import lax
from programs import BENCHMARKS, Benchmark, Function

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
PEAK_FLOPS = {"f32": 60e12, "f16": 790e12, "bf16": 790e12}  # attainable on an H200
PEAK_BYTES = 4.3e12
GRAPH_US = 1500.0  # a replay should last this long, so that its launch does not count
MAX_CALLS = 400
MAX_COPIES = 1200
PLACES = 3  # and its limits: `places` in device/src/timing.rs
HOST_CALLS = 100
WARM_UP_S = 0.2  # until the clocks have settled under this load
SLOW_US, SLOW_ROUNDS = 10_000.0, 3  # what takes so long needs no more rounds


@dataclass(frozen=True)
class Request:
    """What to measure: an example, its artifact if there is one, that of an older version, and how much to try."""

    file: str
    path: str
    artifact: str | None
    before: str | None
    compile: bool
    autotune: bool
    rounds: int
    mode_timeout: int


class Graph:
    """A graph of `calls` calls that go round the sets of inputs. The current stream must not be the default one."""

    def __init__(self, function: Function, sets: list[list[Tensor]], calls: int, pool: Any) -> None:
        if torch.cuda.memory_reserved() > 32 << 30:
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            for n in range(calls):
                function(*sets[n % len(sets)])
        finally:
            self.graph.capture_end()
        self.replay()
        torch.cuda.synchronize()

    def replay(self) -> None:
        self.graph.replay()


class Calls:
    """Calls that no graph can hold, made anew each time: as those of what copies from the host."""

    def __init__(self, function: Function, sets: list[list[Tensor]], calls: int, _pool: Any) -> None:
        self.function, self.sets, self.calls = function, sets, calls

    def replay(self) -> None:
        for n in range(self.calls):
            self.function(*self.sets[n % len(self.sets)])


class Contender:
    """One function captured over one set of inputs or several in turns (warm), and over rotating copies (cold). What cannot be `captured` is called."""

    def __init__(self, function: Function, sets: list[list[Tensor]], captured: bool = True) -> None:
        self.sets = sets  # the graphs read them
        pool = torch.cuda.graph_pool_handle()  # for graphs that never overlap; lives as long as one of them
        capture = Graph if captured else Calls
        single = capture(function, sets[:1], 1, pool)
        estimate = min(replay_us(single) for _ in range(2))
        if estimate < GRAPH_US:  # a single call is mostly the launch of the graph
            several = capture(function, sets[:1], 10, pool)
            estimate = replay_us(several) / 10
        self.calls = min(MAX_CALLS, max(1, ceil(GRAPH_US / estimate)))
        self.cold_calls = len(sets) * ceil(self.calls / len(sets))
        self.warm = [capture(function, sets[n : n + 1], self.calls, pool) for n in range(places(sets))]
        self.cold = capture(function, sets, self.cold_calls, pool)
        self.warm_us: list[float] = []
        self.cold_us: list[float] = []

    def round(self) -> None:
        """One warm and one cold measurement; the warm one follows an unmeasured replay."""
        if len(self.warm_us) == SLOW_ROUNDS and self.warm_us[0] > SLOW_US:
            return
        warm = self.warm[len(self.warm_us) % len(self.warm)]
        warm.replay()
        self.warm_us.append(replay_us(warm) / self.calls)
        self.cold_us.append(replay_us(self.cold) / self.cold_calls)


def replay_us(graph: Graph | Calls) -> float:
    """The GPU time of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


@contextlib.contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Raises `TimeoutError` when the body takes longer."""

    def expired(_signal: int, _frame: Any) -> None:
        raise TimeoutError(f"no result after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make_inputs(benchmark: Benchmark, header: lax.Header) -> list[Tensor]:
    """Normal inputs of the benchmark's scales; a `label` is a whole number below the extent that it indexes."""
    generator = torch.Generator("cuda").manual_seed(benchmark.row)
    inputs = []
    for name, tensor in header.parameters.items():
        shape = tensor.shape(header.extents)
        if name == "label":
            value = torch.randint(header.extents["n"], shape, device="cuda", generator=generator).float()
        else:
            value = torch.randn(shape, device="cuda", generator=generator) * benchmark.scale.get(name, 1.0)
        inputs.append(value.to(DTYPES[tensor.dtype]))
    return inputs


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def reference(benchmark: Benchmark, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """The eager program in float64, in slabs where the benchmark says so."""
    axis = benchmark.slab_axis
    if axis is None:
        return as_tuple(benchmark.eager(*(x.double() for x in inputs)))
    slabs = [
        as_tuple(benchmark.eager(*(x.narrow(axis, n, 1).double() for x in inputs))) for n in range(inputs[0].shape[axis])
    ]
    return tuple(torch.cat(parts, axis) for parts in zip(*slabs))


def relative_rms(outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest over the outputs of rms(output - expected) / rms(expected); raises where it is no finite number."""
    worst = 0.0
    for output, wanted in zip(outputs, expected, strict=True):
        if output.shape != wanted.shape:
            raise ValueError(f"expected the shape {list(wanted.shape)}, found {list(output.shape)}")
        error = ((output.double() - wanted).norm() / wanted.norm()).item()
        if not isfinite(error):
            raise ValueError("the output holds a NaN or an infinity")
        worst = max(worst, error)
    return worst


def floor_us(benchmark: Benchmark, header: lax.Header) -> float:
    """The larger of the times that memory and arithmetic need at the attainable peaks."""
    tensors = [*header.parameters.values(), *header.results]
    traffic = sum(tensor.nbytes(header.extents) for tensor in tensors)
    dtype = next(iter(header.parameters.values())).dtype
    return max(traffic / PEAK_BYTES, benchmark.flops(header.extents) / PEAK_FLOPS[dtype]) * 1e6


@functools.cache
def load(artifact: Path) -> ModuleType:
    """The artifact, imported as the package that it is."""
    name = f"artifact_{artifact.parent.name}_{artifact.name}"
    spec = importlib.util.spec_from_file_location(name, artifact / "__init__.py", submodule_search_locations=[str(artifact)])
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"no package in {artifact}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def host_us(function: Callable[..., Any], *inputs: Tensor) -> float:
    """The host's time to issue one call."""
    for _ in range(10):
        function(*inputs)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        function(*inputs)
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return seconds / HOST_CALLS * 1e6


def check_ours(module: ModuleType, inputs: list[Tensor]) -> dict[str, Any]:
    """What must hold of a wrapper beside accuracy: one result every time, compiled and in a graph; a sound operator."""
    first = as_tuple(module.run(*inputs))
    kept = [x.clone() for x in inputs]

    def same(outputs: tuple[Tensor, ...]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(outputs, first, strict=True))

    def compiled() -> bool:
        torch._dynamo.reset()
        return same(as_tuple(torch.compile(lambda *xs: module.run(*xs), fullgraph=True, dynamic=False)(*inputs)))

    def replayed() -> bool:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            outputs = as_tuple(module.run(*inputs))
        finally:
            graph.capture_end()
        for output in outputs:
            output.zero_()
        graph.replay()
        torch.cuda.synchronize()
        return same(outputs)

    checks: dict[str, Callable[[], Any]] = {
        "repeats": lambda: same(as_tuple(module.run(*inputs))),
        "compiled": compiled,
        "graph": replayed,
        "opcheck": lambda: torch.library.opcheck(module.op, tuple(inputs)) and True,
        "inputs_kept": lambda: all(torch.equal(a, b) for a, b in zip(inputs, kept)),
        "host_us": lambda: host_us(module.run, *inputs),
        "add_host_us": lambda: host_us(torch.add, *(torch.zeros(1, device="cuda") for _ in range(2))),
    }
    results: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            results[name] = check()
        except Exception as error:  # a failed check is a result
            results[name] = describe(error)
    return results


def describe(error: BaseException) -> str:
    """The first lines of an error."""
    return f"{type(error).__name__}: {error}"[:800]


def spread(samples: list[float]) -> dict[str, float]:
    """Median and the tenth and ninetieth percentiles, in µs."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return {"median": statistics.median(ordered), "p10": ordered[round(0.1 * last)], "p90": ordered[round(0.9 * last)]}


def drift(samples: list[float]) -> float:
    """How much slower the later half ran than the earlier one: clocks that moved during the run."""
    half = len(samples) // 2
    return statistics.median(samples[half:]) / statistics.median(samples[:half]) - 1 if half else 0.0


def modes_of(benchmark: Benchmark, request: Request) -> dict[str, Callable[[], Function]]:
    """How to make each peer; where its library is missing, that raises `ImportError`."""
    plain: dict[str, Function] = {"eager": benchmark.eager, **benchmark.modes}
    modes: dict[str, Callable[[], Function]] = {name: (lambda f=f: f) for name, f in plain.items()}

    def compiled(function: Function, mode: str) -> Function:
        torch._dynamo.reset()
        return torch.compile(function, dynamic=False, mode=mode)

    kinds = {"compile": "default"} if request.compile else {}
    if request.autotune:
        kinds["max-autotune"] = "max-autotune-no-cudagraphs"
    for label, mode in kinds.items():
        for name in benchmark.compiled:
            modes[label if name == "eager" else f"{label}-{name}"] = lambda f=plain[name], m=mode: compiled(f, m)
    return modes | {name: foreign.load for name, foreign in benchmark.libraries.items()}


def input_sets(inputs: list[Tensor]) -> list[list[Tensor]]:
    """The inputs, and copies of them: all together exceed three times L2."""
    nbytes = sum(x.numel() * x.element_size() for x in inputs)
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    copies = min(MAX_COPIES, max(2, ceil(3.2 * l2 / nbytes) + 1))
    return [inputs, *([x.clone() for x in inputs] for _ in range(copies - 1))]


def places(sets: list[list[Tensor]]) -> int:
    """How many sets are warm in turns: how much of what hardly fits stays in L2 seems to depend on where it lies. What a function keeps itself stays."""
    nbytes = sum(x.numel() * x.element_size() for x in sets[0] if isinstance(x, Tensor))
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return min(PLACES, len(sets)) if l2 / 4 <= nbytes < 3 * l2 else 1


def timed(contenders: dict[str, Contender], rounds: int) -> dict[str, dict[str, Any]]:
    """The times of contenders that are measured in turns."""
    start = time.monotonic()
    while contenders and time.monotonic() - start < WARM_UP_S:
        for contender in contenders.values():
            replay_us(contender.warm[0])
    for _ in range(rounds):
        for contender in contenders.values():
            contender.round()
    return {
        name: {"warm": spread(contender.warm_us), "cold": spread(contender.cold_us), "drift": drift(contender.warm_us)}
        for name, contender in contenders.items()
    }


def measure(request: Request) -> dict[str, Any]:
    """One example: errors against float64, then interleaved times of all that ran."""
    benchmark = next(b for b in BENCHMARKS if b.file == request.file)
    header = lax.read(Path(request.path))
    inputs = make_inputs(benchmark, header)
    expected = reference(benchmark, inputs)
    result: dict[str, Any] = {"floor_us": floor_us(benchmark, header), "modes": {}, "left_out": {}}
    makers = modes_of(benchmark, request)
    artifact = Path(request.artifact) if request.artifact is not None else None
    if artifact is not None:
        makers = {"ours": lambda: load(artifact).run, **makers}
    if request.before is not None:
        older = Path(request.before)
        makers = {"before": lambda: load(older).run, **makers}

    sets = input_sets(inputs)
    contenders: dict[str, Contender] = {}
    for name, make in makers.items():
        entry: dict[str, Any] = {}
        result["modes"][name] = entry
        try:
            with deadline(request.mode_timeout):
                function = make()
                library = benchmark.libraries.get(name)
                own_sets = sets if library is None else [library.lay_out(*each) for each in sets]
                outputs = as_tuple(function(*own_sets[0]))
                if library is not None:
                    outputs = (library.restore(outputs[0], expected[0].shape),)
                entry["rms"] = relative_rms(outputs, expected)
                del outputs
                function(*own_sets[0])
                if name == "ours" and artifact is not None:
                    result["checks"] = check_ours(load(artifact), inputs)
                contenders[name] = Contender(function, own_sets)
        except Exception as error:  # a mode that fails is a result
            if isinstance(error, ImportError) and name in benchmark.libraries:
                del result["modes"][name]
                result["left_out"][name] = describe(error)
                continue
            entry["error"] = describe(error)
            torch.cuda.synchronize()  # where the fault is sticky this raises and ends the process
    del expected
    for name, times in timed(contenders, request.rounds).items():
        result["modes"][name] |= times
    return result


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers requests, one JSON object a line, until the input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not mix with the replies
    warnings.filterwarnings("ignore")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_stream(torch.cuda.Stream())
    with torch.no_grad():
        for line in sys.stdin:
            reply = answer(json.loads(line))
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


if __name__ == "__main__":
    serve(lambda request: measure(Request(**request)))
