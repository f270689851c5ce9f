"""What of PyTorch is imported: the problems of KernelBench at reduced extents, decoder layers of `transformers`, and blocks of other packages.

    python bench/kernelbench.py ../KernelBench --levels 1,2 --results bench/results/kernelbench-import.json
    python bench/kernelbench.py ../KernelBench --transformers --blocks

Needs the Python package, PyTorch and a checkout of KernelBench that is kept elsewhere; `--transformers` needs that package, and `--blocks` it, torchvision
and diffusers. Needs no GPU.
Each problem is a process of its own with a time limit. Its module, in inference mode, is given to `tilewright.from_torch`, which compares what it
imported with the module in f64: what is counted as held was compared.

Nobody waits for f64 at a problem's own extents. They are reduced by rules that know no problem: of the whole numbers that a problem's file gives
names to at its top level, alone or in a tuple, those from 24 on become 8, those from 64 on 16, those from 512 on 32, and odd ones one more than that.
So windows, strides and the like stay what they are, what was even stays even, and numbers that were equal stay equal. What is named a batch is 2 at
most; if PyTorch does not run the module then, as where a batch has to be equal to something else, it is reduced as the others. A problem that PyTorch
runs at neither is an error, and counted as not held. Other numbers are left as they are, those within modules as well.
"""

import argparse
import ast
import datetime
import json
import multiprocessing
import multiprocessing.connection
import platform
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tilewright
import torch

OUTCOMES = ("held", "refused", "mismatch", "timeout", "error")
REDUCTIONS = ("batch of 2", "uniform")
# Grouped queries, so that heads are groups; Phi-3's configuration has no width of a head.
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LAYERS = {
    "llama": ("Llama", "LlamaConfig", {"head_dim": 8}),
    "qwen3": ("Qwen3", "Qwen3Config", {"head_dim": 8}),
    "mistral": ("Mistral", "MistralConfig", {"head_dim": 8}),
    "gemma3": ("Gemma3", "Gemma3TextConfig", {"head_dim": 8}),
    "phi3": ("Phi3", "Phi3Config", {"pad_token_id": 0}),
    "mixtral": ("Mixtral", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}),
    "qwen3_moe": ("Qwen3Moe", "Qwen3MoeConfig", {"moe_intermediate_size": 24, "norm_topk_prob": True, "head_dim": 8, **EXPERTS}),
    "olmoe": ("Olmoe", "OlmoeConfig", {"pad_token_id": 0, **EXPERTS}),
}
# A block of a package: its module, its class and its arguments, of `transformers` a configuration first; then the shapes of its inputs.
IMAGES = [(2, 16, 4, 4), [(2, 8, 4, 4), (2, 16, 4, 4)], (2, 12)]  # below, what was left on the way down, time
WITHIN = {"in_channels": 8, "prev_output_channel": 16, "out_channels": 16, "temb_channels": 12, "num_layers": 2, "resnet_groups": 4}
BLOCKS = {
    "torchvision ViT": ("torchvision.models.vision_transformer", "EncoderBlock", (4, 32, 48, 0.0, 0.0), {}, [(2, 17, 32)], {}),
    "torchvision ResNet": ("torchvision.models.resnet", "Bottleneck", (32, 8), {}, [(2, 32, 8, 8)], {}),
    "diffusers UNet": ("diffusers.models.unets.unet_2d_blocks", "UpBlock2D", (), WITHIN, IMAGES, {}),
    "diffusers UNet with attention": (
        "diffusers.models.unets.unet_2d_blocks",
        "CrossAttnUpBlock2D",
        (),
        {**WITHIN, "num_attention_heads": 2, "cross_attention_dim": 12},
        IMAGES,
        {"encoder_hidden_states": (2, 5, 12)},
    ),
    "transformers ViT": ("transformers.models.vit.modeling_vit", "ViTLayer", ("ViTConfig",), SIZES, [(2, 17, 32)], {}),
    "transformers Mamba-2": (
        "transformers.models.mamba2.modeling_mamba2",
        "Mamba2Block",
        ("Mamba2Config", 0),
        {"hidden_size": 16, "num_heads": 4, "head_dim": 8, "expand": 2, "state_size": 6, "n_groups": 2, "chunk_size": 4, "num_hidden_layers": 1},
        [(2, 12, 16)],
        {},
    ),
}
Example = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
Making = Callable[[], tuple[Example, str | None]]  # an example, and how it was reduced


def reduced(number: int) -> int:
    if number < 24:
        return number
    return (8 if number < 64 else 16 if number < 512 else 32) + number % 2


class Reduce(ast.NodeTransformer):
    """Reduces what a file's top level names; what is computed of names is computed of the reduced ones."""

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        try:
            value = eval(compile(ast.Expression(node.value), "", "eval"), {"__builtins__": {}})
        except Exception:  # it is computed of names
            return node
        several = value if isinstance(value, tuple | list) else [value]
        if not several or not all(type(number) is int for number in several):
            return node
        batch = any(isinstance(target, ast.Name) and "batch" in target.id.lower() for target in node.targets)
        few = [min(number, 2) if batch and self.reduction == "batch of 2" else reduced(number) for number in several]
        node.value = ast.parse(repr(type(value)(few) if isinstance(value, tuple | list) else few[0]), mode="eval").body
        return ast.fix_missing_locations(node)


def problem(path: Path, reduction: str) -> Example:
    tree = Reduce(reduction).visit(ast.parse(path.read_text()))
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(tree, str(path), "exec"), names)
    torch.manual_seed(0)
    module = names["Model"](*names["get_init_inputs"]()).eval()
    return module, tuple(names["get_inputs"]()), {}


def reduced_problem(path: Path) -> tuple[Example, str]:
    """The problem at the first reduction at which PyTorch runs it."""
    failed: Exception | None = None
    for reduction in REDUCTIONS:
        try:
            module, inputs, _ = problem(path, reduction)
            with torch.no_grad():
                module(*inputs)
        except Exception as error:
            failed = failed or error
            continue
        return problem(path, reduction), reduction  # anew: the module may have written to its inputs
    assert failed
    raise failed


def decoder_layer(
    family: str, attention: str, sizes: dict[str, Any] = SIZES, shape: tuple[int, int] = (2, 16), masked: bool = True
) -> tuple[Example, None]:
    """A layer as `transformers` defines it, with arguments such as the model around it passes, for a batch of sequences of so many tokens."""
    prefix, config_class, extra = LAYERS[family]
    config = getattr(import_module("transformers"), config_class)(**{**SIZES, **extra, **sizes})
    config._attn_implementation = attention
    # Reads the weights of the experts that are chosen. The other ways loop over those that are hit, which PyTorch does not export, or sort.
    config._experts_implementation = "batched_mm"
    torch.manual_seed(0)
    layer = getattr(import_module(f"transformers.models.{family}.modeling_{family}"), f"{prefix}DecoderLayer")(config, 0)
    batch, tokens = shape
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # Without one, `scaled_dot_product_attention` is told that it is causal.
    causal = torch.zeros(1, 1, tokens, tokens).masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -1e9) if masked else None
    rotation = (torch.randn(1, tokens, width), torch.randn(1, tokens, width))
    named = {"position_embeddings": rotation, "attention_mask": causal}
    return (filled(layer), (torch.randn(batch, tokens, config.hidden_size),), named), None


def block(name: str, blocks: dict[str, Any] = BLOCKS) -> tuple[Example, None]:
    """A block as its package defines it, in inference mode."""
    module, kind, arguments, about, shapes, named = blocks[name]
    torch.manual_seed(0)
    if arguments and isinstance(arguments[0], str):
        config, *rest = arguments
        arguments = (getattr(import_module("transformers"), config)(**about),)
        made = getattr(import_module(module), kind)(*arguments, *rest)
    else:
        made = getattr(import_module(module), kind)(*arguments, **about)

    def drawn(shape: Any) -> Any:
        return tuple(map(drawn, shape)) if isinstance(shape, list) else torch.randn(shape)

    return (filled(made), tuple(map(drawn, shapes)), {argument: drawn(shape) for argument, shape in named.items()}), None


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """As if it had been trained: a norm's weight is all ones, or all zeros, until then. Sums over rows of weights keep their size."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=min(0.3, 1.7 * parameter[0].numel() ** -0.5) if parameter.dim() > 1 else 0.3)
        for buffer in module.buffers():  # statistics, of which variances are positive
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5)
    return module.eval()


def imported(example: Making, answer: multiprocessing.connection.Connection) -> None:
    """What comes of an example, in a process of its own."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    try:
        (module, inputs, kwargs), reduction = example()
        if reduction:
            found["reduction"] = reduction
        tilewright.from_torch(module, *inputs, kwargs=kwargs)
        found["outcome"] = "held"
    except tilewright.UnsupportedError as error:
        found["outcome"] = "refused"
        found["operations"] = [{"operation": operation.operation, "reason": operation.reason} for operation in error.operations]
    except Exception as error:
        found["outcome"] = "mismatch" if isinstance(error, tilewright.MismatchError) else "error"
        found["error"] = f"{type(error).__name__}: {error}"[:400]
    answer.send(found)


def attempt(work: Callable[[multiprocessing.connection.Connection], None], limit: float, start: str = "fork") -> dict[str, Any]:
    """The last that a process of its own told before it ended, or before its time was over. Of what is forked PyTorch is imported once."""
    processes = multiprocessing.get_context(start)
    mine, other = processes.Pipe(duplex=False)
    process = processes.Process(target=work, args=(other,))
    begun = time.monotonic()
    process.start()
    other.close()
    found: dict[str, Any] = {"outcome": "timeout"}
    try:
        while mine.poll(max(0, limit - (time.monotonic() - begun))):
            found = mine.recv()
    except EOFError:
        process.join()
        if found["outcome"] == "timeout":
            found |= {"outcome": "error", "error": f"the process ended with {process.exitcode}"}
    seconds = time.monotonic() - begun
    process.kill()
    process.join()
    return {**found, "seconds": round(seconds, 2)}


def counts(found: list[dict[str, Any]]) -> dict[str, int]:
    outcomes = Counter(one["outcome"] for one in found)
    return {"of": len(found), **{outcome: outcomes[outcome] for outcome in OUTCOMES}}


def checked_out(path: Path) -> str | None:
    """The commit of a checkout; none if it is no checkout of its own."""
    words = ["git", "-C", str(path), "rev-parse", "--show-toplevel", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True)
    top, _, commit = done.stdout.strip().partition("\n")
    return commit if done.returncode == 0 and Path(top) == path.resolve() else None


def problems(path: Path, level: int) -> list[tuple[int, Path]]:
    """The problems of a level in a checkout, with their numbers."""
    files = (path / "KernelBench" / f"level{level}").glob("*.py")
    return sorted((int(file.name.split("_")[0]), file) for file in files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, metavar="PATH", help="a checkout of KernelBench")
    parser.add_argument("--levels", type=lambda text: [int(word) for word in text.split(",") if word], default=[1, 2])
    parser.add_argument("--transformers", action="store_true", help="decoder layers of transformers as well")
    parser.add_argument("--blocks", action="store_true", help="blocks of torchvision, diffusers and transformers as well")
    parser.add_argument("--limit", type=float, default=60, help="seconds of a problem")
    parser.add_argument("--commit", help="the commit to name in the results")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # what is forked must not have begun threads
    torch.export.export(torch.nn.Identity(), (torch.zeros(1),))  # imports what exporting needs, once
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "commit": arguments.commit,
        "versions": {
            "tilewright": tilewright.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "transformers": version("transformers") if arguments.transformers or arguments.blocks else None,
            **({package: version(package) for package in ("torchvision", "diffusers")} if arguments.blocks else {}),
        },
        "kernelbench": checked_out(arguments.path),
        "limit_s": arguments.limit,
        "counts": {},
    }

    def add(part: str, about: dict[str, Any], example: Making) -> None:
        found = {**about, **attempt(partial(imported, example), arguments.limit)}
        results.setdefault(part, []).append(found)
        results["counts"][part] = counts(results[part])
        print(part, json.dumps(found), flush=True)
        if arguments.results:
            arguments.results.write_text(json.dumps(results, indent=1) + "\n")

    for level in arguments.levels:
        numbered = problems(arguments.path, level)
        if not numbered:
            parser.error(f"{arguments.path} has no problems of level {level}")
        for number, path in numbered:
            add(f"level{level}", {"problem": number}, partial(reduced_problem, path))
    if arguments.transformers:
        for family in LAYERS:
            for attention in ("eager", "sdpa"):
                add("decoder_layers", {"layer": family, "attention": attention}, partial(decoder_layer, family, attention))
    if arguments.blocks:
        for name in BLOCKS:
            add("blocks", {"block": name}, partial(block, name))
    print(json.dumps(results["counts"]))
    return int(any(found["mismatch"] for found in results["counts"].values()))


if __name__ == "__main__":
    sys.exit(main())
