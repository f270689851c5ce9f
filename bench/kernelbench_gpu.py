"""How fast what is imported from PyTorch runs, at sizes that are used: searched kernels beside eager PyTorch and `torch.compile`.

    python bench/kernelbench_gpu.py ../KernelBench --every 4 --budget 60s --results bench/results/kernelbench-h200.json
    python bench/kernelbench_gpu.py ../KernelBench --levels "" --transformers --blocks --results bench/results/blocks-h200.json

Needs a GPU, the Python package, PyTorch and, for its problems, a checkout of KernelBench that is kept elsewhere; `--transformers` and `--blocks` need
the packages that `kernelbench.py` names. Each module is a process of its own with a time limit. In inference mode it is given to
`tilewright.from_torch` and the program to `tilewright.optimize`; the artifact is imported as any user imports it. All contenders are captured in CUDA
graphs, where they can be, and timed in turns, on inputs that are rotated through more than the L2 cache; a figure is a ratio within one module.
`--every n` takes each n-th problem of a level, so that none is chosen. `--gpus n` takes as many problems at a time.

Problems are f32, at their own extents; TF32 is off, and results are compared with eager's. Layers and blocks are bf16, at the sizes of models that are
used (`LAYERS`, `BLOCKS`); ours and eager's results are compared with the module's in f64, and ours may be twice as far off.
"""

import argparse
import datetime
import json
import multiprocessing.connection
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any

import kernelbench
import measure
import tilewright
import torch
from torch import Tensor

Function = Callable[..., Any]
Judge = Callable[[Function, Function, torch.nn.Module, list[Any]], dict[str, Any]]


def sized(hidden: int, intermediate: int, heads: int, of_keys: int, **rest: Any) -> dict[str, Any]:
    """A part of a configuration of `transformers`."""
    about = {"hidden_size": hidden, "intermediate_size": intermediate, "num_attention_heads": heads, "num_key_value_heads": of_keys}
    return {**about, "num_hidden_layers": 1, **rest}


ROUNDS = 9
WARM_UP_S = 0.2
MODES = ("eager", "compile")
# Of a layer what its model's configuration says, how many sequences, and of how many tokens; one token each where experts are chosen, for `batched_mm`
# gathers the weights of all that are.
LAYERS: dict[str, tuple[dict[str, Any], int, int]] = {
    "llama": (sized(4096, 14336, 32, 8, head_dim=128), 1, 1024),  # Llama 3.1 8B
    "qwen3": (sized(4096, 12288, 32, 8, head_dim=128), 1, 1024),  # Qwen3 8B
    "mistral": (sized(4096, 14336, 32, 8, head_dim=128), 1, 1024),  # Mistral 7B
    "gemma3": (sized(2560, 10240, 8, 4, head_dim=256), 1, 1024),  # Gemma 3 4B
    "phi3": (sized(3072, 8192, 32, 32), 1, 1024),  # Phi-3 mini
    "mixtral": (sized(4096, 14336, 32, 8, head_dim=128, num_local_experts=8), 4, 1),  # Mixtral 8x7B
    "olmoe": (sized(2048, 1024, 16, 16, num_experts=64, num_experts_per_tok=8), 16, 1),  # OLMoE 1B-7B
}
STABLE_DIFFUSION = {"temb_channels": 1280, "resnet_groups": 32}
BLOCKS: dict[str, Any] = {
    "torchvision ViT": ("torchvision.models.vision_transformer", "EncoderBlock", (12, 768, 3072, 0.0, 0.0), {}, [(32, 197, 768)], {}),  # ViT-B/16
    "torchvision ResNet": ("torchvision.models.resnet", "Bottleneck", (1024, 256), {}, [(32, 1024, 14, 14)], {}),  # ResNet-50, its third stage
    "diffusers UNet": (
        "diffusers.models.unets.unet_2d_blocks",
        "UpBlock2D",
        (),
        {**STABLE_DIFFUSION, "in_channels": 640, "prev_output_channel": 1280, "out_channels": 1280, "num_layers": 2},
        [(2, 1280, 16, 16), [(2, 640, 16, 16), (2, 1280, 16, 16)], (2, 1280)],
        {},
    ),
    "diffusers UNet with attention": (
        "diffusers.models.unets.unet_2d_blocks",
        "CrossAttnUpBlock2D",
        (),
        {
            **STABLE_DIFFUSION,
            **{"in_channels": 320, "prev_output_channel": 640, "out_channels": 320, "num_layers": 1},
            **{"num_attention_heads": 8, "cross_attention_dim": 768, "add_upsample": False},
        },
        [(2, 640, 64, 64), [(2, 320, 64, 64)], (2, 1280)],
        {"encoder_hidden_states": (2, 77, 768)},
    ),
    "transformers ViT": ("transformers.models.vit.modeling_vit", "ViTLayer", ("ViTConfig",), sized(768, 3072, 12, 12), [(32, 197, 768)], {}),
    "transformers Mamba-2": (
        "transformers.models.mamba2.modeling_mamba2",
        "Mamba2Block",
        ("Mamba2Config", 0),
        {"hidden_size": 768, "num_heads": 24, "head_dim": 64, "expand": 2, "state_size": 128, "n_groups": 1, "chunk_size": 256, "num_hidden_layers": 1},
        [(1, 1024, 768)],
        {},
    ),  # Mamba-2 130M
}
FASTER = (1.0, 1.5, 2.0)
SLOWER = 1.03  # of eager's time
TOLERANCE = 1e-4  # KernelBench's own for f32, of a result's size and whatever its size


@dataclass(frozen=True)
class Share:
    """One of so many equal parts of the machine: a GPU and a share of the cores."""

    number: int
    of: int

    def take(self) -> None:
        """Leaves this process, and those that it starts, nothing else; before CUDA is begun."""
        if self.of > 1:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            devices = visible.split(",") if visible else [str(n) for n in range(self.of)]
            os.environ["CUDA_VISIBLE_DEVICES"] = devices[self.number]
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores[self.number :: self.of])


def tensors(given: Any) -> list[Tensor]:
    return [x for x in (given if isinstance(given, tuple | list) else (given,)) if isinstance(x, Tensor)]


def like(x: Any) -> Any:
    """An input to import with: of numbers only shape and dtype matter, of indices what they are."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_like(x, device="cpu") if x.is_floating_point() else x.cpu()


def problem(path: Path) -> kernelbench.Example:
    """A problem's module, in the host's memory, and its inputs, in the GPU's."""
    file = sys.modules[path.stem] = ModuleType(path.stem)  # `torch.compile` looks there for what the module's functions name
    exec(compile(path.read_text(), str(path), "exec"), file.__dict__)
    torch.manual_seed(0)
    module = file.Model(*file.get_init_inputs()).eval()
    with torch.device("cuda"):
        return module, tuple(x.cuda() if isinstance(x, Tensor) else x for x in file.get_inputs()), {}


def decoder_layer(family: str) -> kernelbench.Example:
    sizes, *shape = LAYERS[family]
    with torch.device("cuda"):
        example, _ = kernelbench.decoder_layer(family, "sdpa", sizes, tuple(shape), masked=False)
    return halved(example)


def block(name: str) -> kernelbench.Example:
    with torch.device("cuda"):
        example, _ = kernelbench.block(name, BLOCKS)
    return halved(example)


def halved(example: kernelbench.Example) -> kernelbench.Example:
    """The same in bf16, its module in the host's memory."""
    module, *inputs = example
    args, kwargs = torch.utils._pytree.tree_map(lambda x: x.bfloat16() if isinstance(x, Tensor) else x, inputs)
    return module.bfloat16().cpu(), args, kwargs


def searched(example: Callable[[], kernelbench.Example], judge: Judge, budget: str, share: Share, answer: multiprocessing.connection.Connection) -> None:
    """Imports, searches and times one module, in a process of its own; each stage is told when it begins."""
    warnings.simplefilter("ignore")
    share.take()
    found: dict[str, Any] = {}

    def tell(stage: str) -> None:
        answer.send({**found, "outcome": "timeout", "stage": stage})

    try:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        tell("import")
        module, args, kwargs = example()
        inputs, tree = torch.utils._pytree.tree_flatten((args, kwargs))
        args, kwargs = torch.utils._pytree.tree_unflatten(map(like, inputs), tree)
        program = tilewright.from_torch(module, *args, kwargs=kwargs, check=False)
        tell("search")
        begun = time.monotonic()
        optimized = tilewright.optimize(program, budget=budget, seed=1, gpu=1, log=False, progress=False)
        report = optimized.report
        found |= {"search_s": round(time.monotonic() - begun, 1), "state": report.state, "kernels": len(report.kernels), "rejected": report.rejected}
        tell("time")
        module = module.cuda()
        weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        rest = [weights[program.bindings[p.name]].detach() for p in program.parameters if p.name in program.bindings]

        def eager(*inputs: Any) -> Any:
            args, kwargs = torch.utils._pytree.tree_unflatten(inputs, tree)
            return module(*args, **kwargs)

        with tempfile.TemporaryDirectory() as folder, torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            optimized.save(Path(folder) / "artifact")
            run = measure.load(Path(folder) / "artifact").run

            def ours(*inputs: Any) -> Any:
                return run(*tensors(inputs), *rest)

            found |= timed(ours, eager, inputs, rest)
            found |= judge(ours, eager, module, inputs)
        found["outcome"] = "timed"
    except tilewright.UnsupportedError as error:
        found |= {"outcome": "refused", "operations": [operation.operation for operation in error.operations]}
    except Exception as error:
        found |= {"outcome": "error", "error": measure.describe(error)}
    answer.send(found)


def beside_eager(ours: Function, eager: Function, module: torch.nn.Module, inputs: list[Any]) -> dict[str, Any]:
    """By the tolerance that KernelBench has for f32."""
    return {"rms": max(difference(*both) for both in zip(tensors(ours(*inputs)), tensors(eager(*inputs)), strict=True))}


def beside_f64(ours: Function, eager: Function, module: torch.nn.Module, inputs: list[Any]) -> dict[str, Any]:
    """As `bench/run.py` compares: at most twice as far from f64 as eager is, and a few roundings of the result."""
    found, theirs = tensors(ours(*inputs)), tensors(eager(*inputs))
    module.double()
    expected = tensors(eager(*(x.double() if isinstance(x, Tensor) else x for x in inputs)))
    rms, of_eager = (measure.relative_rms(tuple(results), tuple(expected)) for results in (found, theirs))
    if rms > 2 * of_eager + 4 * torch.finfo(found[0].dtype).eps:
        raise ValueError(f"the result differs from f64 by {rms:.1e} where eager's differs by {of_eager:.1e}")
    return {"rms": rms, "rms_of_eager": of_eager}


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


def timed(ours: Function, eager: Function, inputs: list[Any], weights: list[Tensor]) -> dict[str, Any]:
    """Medians of all contenders in turns. Weights are the same each time: where they are more than the L2 cache holds, two copies of the inputs do."""

    def size(all_of: list[Tensor]) -> int:
        return sum(x.numel() * x.element_size() for x in all_of)

    nbytes = max(1, size(tensors(inputs)))
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    copies = min(measure.MAX_COPIES, max(2, ceil(3.2 * l2 / (nbytes + size(weights))) + 1))
    # Each contender's recordings keep results for each copy.
    if (nbytes + size(tensors(eager(*inputs)))) * copies > 16 << 30:
        copies = 1
    sets = [inputs, *([x.clone() if isinstance(x, Tensor) else x for x in inputs] for _ in range(copies - 1))]
    run = {"ours": ours, "eager": eager, "compile": torch.compile(eager, dynamic=False)}
    found: dict[str, Any] = {}
    contenders = {}
    for name, function in run.items():
        try:
            for xs in sets:  # what PyTorch compiles may be tuned once more for other addresses
                function(*xs)
        except Exception as error:  # of any kind that a compiler has
            if name != "compile":
                raise
            found["compile_failed"] = measure.describe(error)
            continue
        torch.cuda.empty_cache()  # recordings have memory of their own, and cannot free what others keep
        try:
            contenders[name] = measure.Contender(function, sets)
        except RuntimeError as error:  # of what it does on the way
            if name == "ours":
                raise
            found[f"{name}_not_captured"] = measure.describe(error)
            contenders[name] = measure.Contender(function, sets, captured=False)
    begun = time.monotonic()
    while time.monotonic() - begun < WARM_UP_S:
        for contender in contenders.values():
            measure.replay_us(contender.warm[0])
    for _ in range(ROUNDS):
        for contender in contenders.values():
            contender.round()
    for name, contender in contenders.items():
        found[name] = {"warm": measure.spread(contender.warm_us), "cold": measure.spread(contender.cold_us)}
    for name in MODES:
        if name in found:
            found[f"of_{name}"] = round(found[name]["cold"]["median"] / found["ours"]["cold"]["median"], 3)
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all problems, those that were refused included, the shares that are faster than a contender so many times, as KernelBench counts it."""
    done = [one for one in found if one["outcome"] == "timed"]
    told: dict[str, Any] = {"of": len(found), "timed": len(done), "verified": sum(one["state"] == "verified" for one in done)}
    for name in MODES:
        speeds = [one[f"of_{name}"] for one in done if f"of_{name}" in one]
        told[name] = {f"faster_{p}": sum(x > p for x in speeds) / len(found) for p in FASTER}
        told[name]["geometric_mean"] = round(statistics.geometric_mean(speeds), 3) if speeds else None
    told["slower_than_eager"] = sum(one["of_eager"] < 1 / SLOWER for one in done)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, metavar="PATH", help="a checkout of KernelBench")
    parser.add_argument("--levels", type=lambda text: [int(word) for word in text.split(",") if word], default=[1, 2])
    parser.add_argument("--transformers", action="store_true", help="decoder layers of transformers as well")
    parser.add_argument("--blocks", action="store_true", help="blocks of torchvision, diffusers and transformers as well")
    parser.add_argument("--only", help="of these, those whose names hold this")
    parser.add_argument("--problems", type=lambda text: text.split(","), help="as in 1/29,2/77: problems by level and number, in this order; else all")
    parser.add_argument("--every", type=int, default=1, help="each n-th problem of a level")
    parser.add_argument("--first", type=int, default=1, help="the number of the first of them")
    parser.add_argument("--budget", default="60s", help="of each search")
    parser.add_argument("--limit", type=float, default=180, help="seconds of a problem, the search included")
    parser.add_argument("--gpus", type=int, default=1, help="so many problems at a time, each on a GPU of its own and an equal share of the cores")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds after which no problem is begun")
    parser.add_argument("--commit", help="the commit to name in the results")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()

    if arguments.gpus > 1 and torch.cuda.device_count() < arguments.gpus:
        parser.error(f"--gpus {arguments.gpus}: this machine shows {torch.cuda.device_count()}")
    begun = time.monotonic()
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": arguments.commit,
        "gpu": gpu(),
        "versions": {"tilewright": tilewright.__version__, "torch": torch.__version__, "cuda": torch.version.cuda},
        "kernelbench": kernelbench.checked_out(arguments.path),
        "budget": arguments.budget,
        "gpus": arguments.gpus,
        "every": arguments.every,
        "first": arguments.first,
        "packages": {name: version(name) for name in ("transformers", "torchvision", "diffusers") if arguments.transformers or arguments.blocks},
        "units": "\u00b5s per call; of_x: that contender's time over ours, both on rotated inputs",
        "summary": {},
    }

    jobs: list[tuple[str, dict[str, Any], Callable[[], kernelbench.Example], Judge]] = []
    numbered = {f"{level}/{number}": path for level in arguments.levels for number, path in kernelbench.problems(arguments.path, level)}
    for level in arguments.levels:
        if not any(name.startswith(f"{level}/") for name in numbered):
            parser.error(f"{arguments.path} has no problems of level {level}")
    if unknown := set(arguments.problems or ()) - set(numbered):
        parser.error(f"{arguments.path} has no problems {', '.join(sorted(unknown))}")
    for name in arguments.problems or numbered:
        level, number = map(int, name.split("/"))
        if arguments.problems or (number - arguments.first) % arguments.every == 0:
            jobs.append((f"level{level}", {"problem": number}, partial(problem, numbered[name]), beside_eager))
    for part, kind, names, make in (
        ("decoder_layers", "layer", LAYERS if arguments.transformers else (), decoder_layer),
        ("blocks", "block", BLOCKS if arguments.blocks else (), block),
    ):
        for name in names:
            if (arguments.only or "") in name:
                jobs.append((part, {kind: name}, partial(make, name), beside_f64))

    shares: queue.Queue[Share] = queue.Queue()
    for number in range(arguments.gpus):
        shares.put(Share(number, arguments.gpus))
    writing = threading.Lock()

    def attempt(part: str, about: dict[str, Any], example: Callable[[], kernelbench.Example], judge: Judge) -> None:
        share = shares.get()
        try:
            if time.monotonic() - begun > arguments.stop_after:
                return
            work = partial(searched, example, judge, arguments.budget, share)
            found = {**about, **kernelbench.attempt(work, arguments.limit, "spawn")}  # CUDA cannot be forked
        finally:
            shares.put(share)
        with writing:
            results.setdefault(part, []).append(found)
            results["summary"][part] = summary(results[part])
            print(part, json.dumps({k: v for k, v in found.items() if not isinstance(v, dict)}), flush=True)
            if arguments.results:
                arguments.results.write_text(json.dumps(results, indent=1) + "\n")

    with ThreadPoolExecutor(arguments.gpus) as pool:
        for done in [pool.submit(attempt, *job) for job in jobs]:
            done.result()
    print(json.dumps(results["summary"], indent=1))
    return 0


def gpu() -> str:
    """The GPUs as the driver's tool names them, like ones once."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    return "; ".join(sorted(set(lines)))


if __name__ == "__main__":
    sys.exit(main())
