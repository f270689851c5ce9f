"""Measures what a call costs the host: PyTorch's own `torch.add`, and artifacts launched by the compiled launcher and by ctypes.

    python bench/launch.py --make --out out/launch                                    # makes the artifacts on this machine's GPU
    python bench/launch.py --out out/launch --results bench/results/launch-h200.json

Needs PyTorch and the package `tilewright`. All are measured in one process, one after the other in every round, and the GPU is let catch up
between rounds: what is measured is the time until a call returns. `run` is the artifact's function, `op` the operator by its name, `direct` what
compiled code of PyTorch calls. An artifact is loaded twice, as copies under two names.
"""

import argparse
import datetime
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from measure import DTYPES

ROOT = Path(__file__).resolve().parent.parent
LAUNCHERS = ("ctypes", "compiled")

# One kernel; one with tensor maps on Hopper; one whose blocks wait for each other; several kernels, which are replayed as a graph; no parameters.
PROGRAMS = {
    "plus": "program plus\naxis i = 64, j = 64\nx = parameter f16 [i, j]\ny = parameter f16 [i, j]\nreturn f16 [i, j] x + y\n",
    "product": "program product\naxis i = 512, j = 512, k = 512\nx = parameter bf16 [i, k]\ny = parameter bf16 [k, j]\n"
    "return bf16 [i, j] dot(x, y; k)\n",
    "thin": "program thin\naxis t = 2, m = 4096, n = 6144\nx = parameter f16 [t, m]\nw = parameter f16 [m, n]\n"
    "return f16 [t, n] dot(rms_norm(x; m, 1e-5), w; m)\n",
    "layer": (ROOT / "examples/llama_decode_layer.lax").read_text(),
    "constant": "program constant\naxis i = 4096\nreturn f32 [i] iota(i)\n",
}
BUDGETS = {"layer": "60s"}  # seconds of a search, where not --budget's


def load_as(folder: Path, launcher: str, scratch: Path) -> ModuleType:
    """A copy of an artifact, launched this way, under a name of its own."""
    copy = scratch / f"{folder.name}_{launcher}"
    copy.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["namespace"] += f"_{launcher}"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    spec = importlib.util.spec_from_file_location(copy.name, copy / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[copy.name] = module
    before = os.environ.get("TILEWRIGHT_LAUNCHER")
    os.environ["TILEWRIGHT_LAUNCHER"] = launcher
    try:
        spec.loader.exec_module(module)
    finally:
        del os.environ["TILEWRIGHT_LAUNCHER"]
        if before is not None:
            os.environ["TILEWRIGHT_LAUNCHER"] = before
    return module


def make(arguments: argparse.Namespace) -> int:
    """Makes the artifacts that are not there yet."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, text in PROGRAMS.items():
        folder = arguments.out / name
        if (folder / "manifest.json").exists():
            continue
        program = arguments.out / f"{name}.lax"
        program.write_text(text)
        command = [sys.executable, "-m", "tilewright", "optimize", str(program), "--target", arguments.target, "--no-log", "--no-db"]
        command += ["--budget", BUDGETS.get(name, arguments.budget), "-o", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        print(f"{name}: {'made' if done.returncode == 0 else done.stderr.strip()[-500:]}", flush=True)
        failed += done.returncode != 0
    return failed


def draw(module: ModuleType) -> list[torch.Tensor]:
    return [torch.randn(p["shape"], device="cuda").to(DTYPES[p["dtype"]]) for p in module.manifest["parameters"]]


def spread(samples: list[float]) -> dict[str, float]:
    """Median, least, and the tenth and ninetieth percentiles, in us."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    points = {"median": statistics.median(ordered), "min": ordered[0], "p10": ordered[round(0.1 * last)], "p90": ordered[round(0.9 * last)]}
    return {name: round(value, 3) for name, value in points.items()}


def us_a_call(function: Callable, inputs: list[torch.Tensor], calls: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function(*inputs)
    return (time.perf_counter() - start) / calls * 1e6


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each artifact."""
    small = [torch.randn(64, 64, device="cuda", dtype=torch.float16) for _ in range(2)]
    rows, contenders = [], {("", "torch.add"): (torch.add, small)}
    with tempfile.TemporaryDirectory() as scratch:
        for name in PROGRAMS:
            folder = arguments.out / name
            if not (folder / "manifest.json").exists():
                continue
            row: dict[str, Any] = {"artifact": name}
            for launcher in LAUNCHERS:
                module = load_as(folder, launcher, Path(scratch))
                inputs = draw(module)
                launches = module.manifest["launches"]
                row |= {
                    "state": module.manifest["state"],
                    "parameters": len(inputs),
                    "kernels": len(launches),
                    "tensor_maps": sum(len(launch.get("maps", ())) for launch in launches),
                    "split_workspaces": sum(launch["split_workspace"]["bytes"] > 0 for launch in launches),
                }
                if module.launcher != launcher:
                    row[launcher] = module.why_ctypes
                    continue
                contenders[name, f"{launcher} run"] = module.run, inputs
                contenders[name, f"{launcher} op"] = module.op, inputs
                if module._direct is not None:
                    contenders[name, f"{launcher} direct"] = module._direct, inputs
            rows.append(row)
        samples: dict[tuple[str, str], list[float]] = {key: [] for key in contenders}
        for function, inputs in contenders.values():
            us_a_call(function, inputs, 4 * arguments.calls)
        for _ in range(arguments.rounds):
            for key, (function, inputs) in contenders.items():
                samples[key].append(us_a_call(function, inputs, arguments.calls))
    add = statistics.median(samples["", "torch.add"])
    for row in rows:
        row["host_us"] = {"torch.add": spread(samples["", "torch.add"])}
        row["host_us"] |= {what: spread(found) for (name, what), found in samples.items() if name == row["artifact"]}
        row["times_torch_add"] = {what: round(found["median"] / add, 2) for what, found in row["host_us"].items()}
    return rows


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a time depends on."""

    def output(*command: str) -> str | None:
        try:
            return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30).stdout.strip() or None
        except (OSError, subprocess.TimeoutExpired):
            return None

    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"),
        "cpu": output("sh", "-c", "grep -m 1 'model name' /proc/cpuinfo | cut -d: -f2"),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "commit": arguments.commit or output("git", "rev-parse", "HEAD"),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "rounds": arguments.rounds,
        "calls": arguments.calls,
        "units": "us of the host per call: median of the rounds, least, tenth and ninetieth percentiles",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "out/launch", help="folder of the artifacts")
    parser.add_argument("--make", action="store_true", help="make the artifacts that are missing, and measure nothing")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--budget", default="15s", help="search budget of each program but the largest")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=50, help="calls of a round: few enough that no queue fills")
    parser.add_argument("--results", type=Path, help="the JSON file to write")
    parser.add_argument("--commit", help="the commit to name in the results, where there is no git checkout")
    arguments = parser.parse_args()
    if arguments.make:
        return 1 if make(arguments) else 0
    if not torch.cuda.is_available():
        print("expected a GPU, found none", file=sys.stderr)
        return 1
    rows = measure(arguments)
    if not rows:
        print(f"no artifacts in {arguments.out}: make them with --make", file=sys.stderr)
        return 1
    for row in rows:
        print(f"{row['artifact']}: {row['kernels']} kernels, {row['tensor_maps']} tensor maps, {row['split_workspaces']} split-K workspaces")
        for what, found in row["host_us"].items():
            times = row["times_torch_add"][what]
            print(f"  {what:<16} {found['median']:7.2f} us ({found['p10']:.2f} to {found['p90']:.2f}), {times:.2f} times torch.add")
    if arguments.results:
        arguments.results.parent.mkdir(parents=True, exist_ok=True)
        arguments.results.write_text(json.dumps(environment(arguments) | {"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
