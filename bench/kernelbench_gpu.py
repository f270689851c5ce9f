"""How fast problems of KernelBench run, at their own extents in f32: searched kernels beside eager PyTorch and `torch.compile`.

    python bench/kernelbench_gpu.py ../KernelBench --every 4 --budget 60s --results bench/results/kernelbench-h200.json

Needs a GPU, the Python package, PyTorch and a checkout of KernelBench that is kept elsewhere. Each problem is a process of its own with a time limit.
Its module, in inference mode, is given to `tilewright.from_torch` and the program to `tilewright.optimize`; the artifact is imported as any user
imports it. What PyTorch computes is f32 throughout, TF32 is off. All contenders are captured in CUDA graphs and timed in turns, on inputs that are
rotated through more than the L2 cache; a figure is a ratio within one problem. `--every n` takes each n-th problem of a level, so that none is chosen.
"""

import argparse
import datetime
import json
import multiprocessing.connection
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import kernelbench
import measure
import tilewright
import torch
from torch import Tensor

ROUNDS = 9
WARM_UP_S = 0.2
MODES = ("eager", "compile")
FASTER = (1.0, 1.5, 2.0)
SLOWER = 1.03  # of eager's time
TOLERANCE = 1e-4  # KernelBench's own for f32, of a result's size and whatever its size


def tensors(given: Any) -> list[Tensor]:
    return [x for x in (given if isinstance(given, tuple | list) else (given,)) if isinstance(x, Tensor)]


def like(x: Any) -> Any:
    """An input to import with: of numbers only shape and dtype matter, of indices what they are."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_like(x, device="cpu") if x.is_floating_point() else x.cpu()


def example(path: Path) -> tuple[torch.nn.Module, list[Any]]:
    """The problem's module, in the host's memory, and its inputs, in the GPU's."""
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), names)
    torch.manual_seed(0)
    module = names["Model"](*names["get_init_inputs"]()).eval()
    with torch.device("cuda"):
        inputs = [x.cuda() if isinstance(x, Tensor) else x for x in names["get_inputs"]()]
    return module, inputs


def searched(path: Path, budget: str, answer: multiprocessing.connection.Connection) -> None:
    """Imports, searches and times one problem, in a process of its own; each stage is told when it begins."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}

    def tell(stage: str) -> None:
        answer.send({**found, "outcome": "timeout", "stage": stage})

    try:
        torch.set_num_threads(os.cpu_count() or 1)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        tell("import")
        module, inputs = example(path)
        program = tilewright.from_torch(module, *map(like, inputs), check=False)
        tell("search")
        begun = time.monotonic()
        optimized = tilewright.optimize(program, budget=budget, seed=1, gpu=1, log=False, progress=False)
        report = optimized.report
        found |= {"search_s": round(time.monotonic() - begun, 1), "state": report.state, "kernels": len(report.kernels)}
        tell("time")
        module = module.cuda()
        weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        rest = [weights[program.bindings[p.name]].detach() for p in program.parameters if p.name in program.bindings]
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            optimized.save(Path(folder) / "artifact")
            found |= timed(measure.load(Path(folder) / "artifact").run, module, inputs, rest)
        found["outcome"] = "timed"
    except tilewright.UnsupportedError as error:
        found |= {"outcome": "refused", "operations": [operation.operation for operation in error.operations]}
    except Exception as error:
        found |= {"outcome": "error", "error": measure.describe(error)}
    answer.send(found)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """rms(ours - theirs) / rms(theirs), within the tolerance. Of places, of which equal elements have several, at most one."""
    if ours.shape != theirs.shape:
        raise ValueError(f"expected the shape {list(theirs.shape)}, found {list(ours.shape)}")
    off, size = (ours.double() - theirs).norm().item(), theirs.double().norm().item()
    # What is zero but for rounding, as the mean of what was normalised, has rounding alone to be compared with.
    most = max(TOLERANCE * size, TOLERANCE * theirs.numel() ** 0.5) if theirs.is_floating_point() else size
    if not off <= most:  # NaN is not
        raise ValueError(f"the result differs by {off:.1e} where PyTorch's norm is {size:.1e}")
    return off / size if size else 0.0


def timed(ours: Any, module: torch.nn.Module, inputs: list[Any], rest: list[Tensor]) -> dict[str, Any]:
    """Medians of all contenders in turns, and how far our results are from eager's."""

    def size(all_of: list[Tensor]) -> int:
        return sum(x.numel() * x.element_size() for x in all_of)

    nbytes = max(1, size(tensors(inputs)))
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    copies = min(measure.MAX_COPIES, max(2, ceil(3.2 * l2 / nbytes) + 1))
    # Each contender's recordings keep results for each copy.
    if (nbytes + size(tensors(module(*inputs)))) * copies > 16 << 30:
        copies = 1
    sets = [inputs, *([x.clone() if isinstance(x, Tensor) else x for x in inputs] for _ in range(copies - 1))]
    run = {
        "ours": lambda *xs: ours(*tensors(xs), *rest),
        "eager": module,
        "compile": torch.compile(module, dynamic=False),
    }
    found: dict[str, Any] = {"rms": max(map(difference, tensors(run["ours"](*inputs)), tensors(module(*inputs))))}
    contenders = {}
    for name, function in run.items():
        for xs in sets:  # what PyTorch compiles may be tuned once more for other addresses
            function(*xs)
        torch.cuda.empty_cache()  # recordings have memory of their own, and cannot free what others keep
        contenders[name] = measure.Contender(function, sets)
    begun = time.monotonic()
    while time.monotonic() - begun < WARM_UP_S:
        for contender in contenders.values():
            measure.replay_us(contender.warm)
    for _ in range(ROUNDS):
        for contender in contenders.values():
            contender.round()
    for name, contender in contenders.items():
        found[name] = {"warm": measure.spread(contender.warm_us), "cold": measure.spread(contender.cold_us)}
    for name in MODES:
        found[f"of_{name}"] = round(found[name]["cold"]["median"] / found["ours"]["cold"]["median"], 3)
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all problems, those that were refused included, the shares that are faster than a contender so many times, as KernelBench counts it."""
    done = [one for one in found if one["outcome"] == "timed"]
    told: dict[str, Any] = {"of": len(found), "timed": len(done), "verified": sum(one["state"] == "verified" for one in done)}
    for name in MODES:
        speeds = [one[f"of_{name}"] for one in done]
        told[name] = {f"faster_{p}": sum(x > p for x in speeds) / len(found) for p in FASTER}
        told[name]["geometric_mean"] = round(statistics.geometric_mean(speeds), 3) if speeds else None
    told["slower_than_eager"] = sum(one["of_eager"] < 1 / SLOWER for one in done)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, metavar="PATH", help="a checkout of KernelBench")
    parser.add_argument("--levels", type=lambda text: [int(word) for word in text.split(",") if word], default=[1, 2])
    parser.add_argument("--every", type=int, default=1, help="each n-th problem of a level")
    parser.add_argument("--first", type=int, default=1, help="the number of the first of them")
    parser.add_argument("--budget", default="60s", help="of each search")
    parser.add_argument("--limit", type=float, default=180, help="seconds of a problem, the search included")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds after which no problem is begun")
    parser.add_argument("--commit", help="the commit to name in the results")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()

    begun = time.monotonic()
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": arguments.commit,
        "gpu": gpu(),
        "versions": {"tilewright": tilewright.__version__, "torch": torch.__version__, "cuda": torch.version.cuda},
        "kernelbench": kernelbench.checked_out(arguments.path),
        "budget": arguments.budget,
        "every": arguments.every,
        "first": arguments.first,
        "units": "\u00b5s per call; of_x: that contender's time over ours, both on rotated inputs",
        "summary": {},
    }
    for level in arguments.levels:
        numbered = kernelbench.problems(arguments.path, level)
        if not numbered:
            parser.error(f"{arguments.path} has no problems of level {level}")
        for number, path in numbered:
            if (number - arguments.first) % arguments.every or time.monotonic() - begun > arguments.stop_after:
                continue
            found = kernelbench.attempt(partial(searched, path, arguments.budget), arguments.limit, "spawn")  # CUDA cannot be forked
            results.setdefault(f"level{level}", []).append({"problem": number, **found})
            results["summary"][f"level{level}"] = summary(results[f"level{level}"])
            print(level, path.stem, json.dumps({k: v for k, v in found.items() if not isinstance(v, dict)}), flush=True)
            if arguments.results:
                arguments.results.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["summary"], indent=1))
    return 0


def gpu() -> str:
    """The GPU as the driver's tool names it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
