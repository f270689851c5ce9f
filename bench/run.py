"""Optimises the examples on this machine's GPU and compares each with the best of PyTorch's modes and of hand-written libraries.

    python bench/run.py --rows 12-18 --budget 10s

Prints one line an example and keeps `bench/results/<gpu>-<date>.json` up to date after each, so that a kill loses nothing.
"""

import argparse
import datetime
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

import lax
import libraries
from programs import BENCHMARKS, Benchmark

ROOT = Path(__file__).resolve().parent.parent
EPSILON = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
HOST_RATIO = 4  # a call may cost the host this many calls of torch.add
DEFAULT_ROWS = "1-6,9-27"
QUICK_COMPILE_ROWS = "8-20,24-30"  # elsewhere torch.compile calls the library that eager calls, or is many times slower


class Worker:
    """A process that measures; started again after it died."""

    def __init__(self, script: str = "measure.py") -> None:
        self.script = script
        self.process: subprocess.Popen[str] | None = None
        self.replies: queue.Queue[str] = queue.Queue()

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The measurements, or `{"error": ...}` when the process died or took too long."""
        if self.process is None:
            command = [sys.executable, str(ROOT / "bench" / self.script)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.replies = queue.Queue()
            threading.Thread(target=self._listen, args=(self.process, self.replies), daemon=True).start()
        process = self.process
        assert process.stdin is not None, "the worker should have been started with pipes"
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            reply = self.replies.get(timeout=timeout)
        except (queue.Empty, BrokenPipeError) as error:
            self.stop()
            return {"error": f"no result after {timeout:.0f} s" if isinstance(error, queue.Empty) else "the process is gone"}
        if not reply:
            self.stop()
            return {"error": f"the process died with exit code {process.returncode}"}
        return dict(json.loads(reply))

    def stop(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @staticmethod
    def _listen(process: subprocess.Popen[str], replies: queue.Queue[str]) -> None:
        """Passes the lines on, and an empty one at the end."""
        assert process.stdout is not None, "the worker should have been started with pipes"
        for line in process.stdout:
            replies.put(line)
        replies.put("")


def row_set(text: str) -> set[int]:
    """`1-3,7` as {1, 2, 3, 7}; `none` is empty."""
    rows: set[int] = set()
    for part in text.split(",") if text != "none" else []:
        first, _, last = part.partition("-")
        rows |= set(range(int(first), int(last or first) + 1))
    return rows


def seconds_of(duration: str) -> float:
    """`90s`, `5m`, `4h`, or a number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", duration)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a duration such as 90s, 5m or 4h, found {duration}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def optimize(arguments: argparse.Namespace, binary: Path, benchmark: Benchmark, artifact: Path) -> dict[str, Any]:
    """Runs `tilewright optimize` into the folder; what it reported, or `{"error": ...}`."""
    program = arguments.examples / f"{benchmark.file}.lax"
    command = [binary, "optimize", program, "--target", arguments.target, "--budget", arguments.budget, "-o", artifact, "--json"]
    if binary == arguments.binary:
        command.append("--force")
    elif (artifact / "manifest.json").exists():
        # Some versions replace nothing.
        shutil.rmtree(artifact)
    start = time.monotonic()
    limit = 2 * seconds_of(arguments.budget) + 120  # the reference and its comparisons come on top
    try:
        with tempfile.TemporaryDirectory() as data:
            # A log of its own: a search knows nothing of those before it.
            own = {**os.environ, "XDG_DATA_HOME": data}
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit, env=own)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    wall = time.monotonic() - start
    if done.returncode != 0:
        return {"error": f"exit code {done.returncode}: {done.stderr.strip()[-400:]}", "wall_seconds": wall}
    try:
        return {**json.loads(done.stdout), "wall_seconds": wall}
    except json.JSONDecodeError as error:
        return {"error": f"unreadable report: {error}", "wall_seconds": wall}


def compare(row: dict[str, Any], epsilon: float) -> None:
    """Adds the best peer, the ratios and the verdict. TF32 times are listed, but are no peer of an f32-accurate result."""
    modes = row.get("modes", {})
    own = {"ours", "before"}
    peers = {name: m for name, m in modes.items() if name not in own and "tf32" not in name and "warm" in m}
    ours, eager, before = (modes.get(name, {}) for name in ("ours", "eager", "before"))
    for kind in ("warm", "cold"):
        best = min(peers, key=lambda name: peers[name][kind]["median"], default=None)
        row[f"best_{kind}"] = best
        if best is not None and kind in ours:
            row[f"ratio_{kind}"] = peers[best][kind]["median"] / ours[kind]["median"]
            row[f"floor_fraction_{kind}"] = row["floor_us"] / ours[kind]["median"]
            if kind in eager:
                row[f"ratio_eager_{kind}"] = eager[kind]["median"] / ours[kind]["median"]
        if kind in ours and kind in before:
            row[f"ratio_before_{kind}"] = before[kind]["median"] / ours[kind]["median"]
    if "rms" in ours and "rms" in eager:
        row["accurate"] = ours["rms"] <= 2 * eager["rms"] + 4 * epsilon


def left_out(row: dict[str, Any]) -> str:
    """Which modes had no library."""
    return f"without {', '.join(row['left_out'])}" if row.get("left_out") else ""


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    modes, ours = row.get("modes", {}), row.get("modes", {}).get("ours", {})
    best, cold = row.get("best_warm"), row.get("best_cold")
    peer = f"{modes[best]['warm']['median']:9.1f} {best:<22}" if best else f"{'–':>9} {'':<22}"
    if "warm" not in ours:
        reason = row.get("error") or row.get("optimize", {}).get("error") or ours.get("error") or "no artifact"
        return f"{row['row']:>3} {row['file']:<46} {'–':>9} {peer} {reason[:120]} {left_out(row)}".rstrip()
    checks = row.get("checks", {})
    failed = [name for name, good in checks.items() if good is not True and not name.endswith("host_us")]
    host, add = checks.get("host_us"), checks.get("add_host_us")
    doubts = {
        "INACCURATE": not row.get("accurate"),
        "below the floor": ours["cold"]["median"] < 0.85 * row["floor_us"],
        "slow host call": not isinstance(host, float) or not isinstance(add, float) or host > HOST_RATIO * add,
        "drift": abs(ours["drift"]) > 0.03,
    }
    flags = [doubt for doubt, holds in doubts.items() if holds] + failed
    if "ratio_before_warm" in row:
        flags.append(f"before: {modes['before']['warm']['median']:.1f}, ratio {row['ratio_before_warm']:.2f}")
    elif "before" in modes or "optimize_before" in row:
        flags.append("nothing before")
    if row.get("left_out"):
        flags.append(left_out(row))
    colds = f"{ours['cold']['median']:9.1f} {modes[cold]['cold']['median']:9.1f} {row['ratio_cold']:6.2f}" if cold else ""
    return (
        f"{row['row']:>3} {row['file']:<46} {ours['warm']['median']:9.1f} {peer} {row.get('ratio_warm', 0.0):6.2f} "
        f"{100 * row.get('floor_fraction_warm', 0.0):5.0f}% {colds} {ours['rms']:.1e} {' '.join(flags)}"
    )


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a time depends on."""

    def output(*command: str) -> str | None:
        try:
            return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30).stdout.strip() or None
        except (OSError, subprocess.TimeoutExpired):
            return None

    query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"
    return {
        "gpu": torch.cuda.get_device_name(0),
        "nvidia_smi": {"query": query, "answer": output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0")},
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "versions": libraries.versions(),
        "commit": arguments.commit or output("git", "rev-parse", "HEAD"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "budget": arguments.budget,
        "mode_set": arguments.mode_set,
        "units": "µs per call; warm: inputs in L2; cold: inputs rotated through more than 3 times L2",
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tilewright")
    parser.add_argument("--before", type=Path, help="the binary of an older version, whose kernels are timed beside ours")
    parser.add_argument("--examples", type=Path, default=ROOT / "examples")
    parser.add_argument("--only", help="comma-separated example names instead of rows, measured in this order")
    parser.add_argument("--rows", type=row_set, default=row_set(DEFAULT_ROWS), help=f"default {DEFAULT_ROWS}")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--budget", default="10s", help="search budget of each program")
    parser.add_argument("--out", type=Path, default=ROOT / "out/bench", help="folder of the artifacts")
    parser.add_argument("--skip-optimize", action="store_true", help="reuse the artifacts in --out")
    parser.add_argument("--optimize-only", action="store_true", help="only fill --out")
    parser.add_argument("--mode-set", choices=("quick", "full"), default="quick", help="full adds max-autotune and compiles every row")
    parser.add_argument("--compile-rows", type=row_set, default=None, help=f"rows for torch.compile, or none; quick: {QUICK_COMPILE_ROWS}")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--mode-timeout", type=int, default=60, help="seconds to prepare one mode")
    parser.add_argument("--row-timeout", type=int, default=240, help="seconds to measure one example")
    parser.add_argument("--total-budget", type=seconds_of, default=float("inf"), help="start no example after this long")
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--commit", help="the commit to name in the results, where there is no git checkout")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing can be measured here", file=sys.stderr)
        return 2
    names = arguments.only.split(",") if arguments.only else [b.file for b in BENCHMARKS if b.row in arguments.rows]
    known = {b.file: b for b in BENCHMARKS}
    chosen = [known[name] for name in names if name in known]
    unknown = set(names) - known.keys()
    if unknown or not chosen:
        print(f"no such example: {', '.join(sorted(unknown)) or arguments.rows}", file=sys.stderr)
        return 2
    full = arguments.mode_set == "full"
    compile_rows = arguments.compile_rows
    if compile_rows is None:
        compile_rows = {b.row for b in BENCHMARKS} if full else row_set(QUICK_COMPILE_ROWS)
    about = environment(arguments)
    gpu = re.sub(r"\W+", "-", about["gpu"].lower()).strip("-")
    results = arguments.results or ROOT / "bench/results" / f"{gpu}-{about['date'][:16].replace(':', '')}.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)

    found = about["versions"]
    print("libraries:", ", ".join(f"{name} {found.get(name, 'missing')}" for name in libraries.PACKAGES))
    rows: list[dict[str, Any]] = []
    worker, start = Worker(), time.monotonic()
    print(f"  # {'example':<46} {'ours µs':>9} {'peer µs':>9} {'mode':<22} {'ratio':>6} {'floor':>6} {'cold':>9} {'peer':>9} {'ratio':>6} error", flush=True)
    for benchmark in chosen:
        if time.monotonic() - start > arguments.total_budget:
            rows.append({"row": benchmark.row, "file": benchmark.file, "error": "not started: the total budget is spent"})
        else:
            rows.append(one(arguments, benchmark, worker, benchmark.row in compile_rows, full))
        print(line(rows[-1]), flush=True)
        partial = results.with_suffix(".tmp")
        partial.write_text(json.dumps({**about, "rows": rows}, indent=1))
        partial.replace(results)
    worker.stop()
    print(f"written to {results}")
    if arguments.optimize_only:
        return 0 if all("error" not in row.get("optimize", {"error": ""}) for row in rows) else 1
    return 0 if all(row.get("accurate") for row in rows) else 1


def one(arguments: argparse.Namespace, benchmark: Benchmark, worker: Worker, compiled: bool, full: bool) -> dict[str, Any]:
    """Optimises and measures one example; when ours takes the process down, its peers are measured alone."""
    row: dict[str, Any] = {"row": benchmark.row, "file": benchmark.file, "known_peer": benchmark.peer}
    artifact, older = arguments.out / benchmark.file, arguments.out / "before" / benchmark.file
    if not arguments.skip_optimize:
        row["optimize"] = optimize(arguments, arguments.binary, benchmark, artifact)
        if arguments.before is not None:
            row["optimize_before"] = optimize(arguments, arguments.before, benchmark, older)
        if arguments.optimize_only:
            return row
    present = (artifact / "__init__.py").exists() and "error" not in row.get("optimize", {})
    has_older = arguments.before is not None and (older / "__init__.py").exists() and "error" not in row.get("optimize_before", {})
    request = {
        "file": benchmark.file,
        "path": str(arguments.examples / f"{benchmark.file}.lax"),
        "artifact": str(artifact) if present else None,
        "before": str(older) if has_older else None,
        "compile": compiled,
        "autotune": full,
        "rounds": arguments.rounds,
        "mode_timeout": arguments.mode_timeout,
    }
    start = time.monotonic()
    reply = worker.ask(request, arguments.row_timeout)
    if present and "error" in reply:
        row["error"] = reply["error"]
        reply = worker.ask(request | {"artifact": None, "before": None}, arguments.row_timeout)
    row |= {key: value for key, value in reply.items() if key != "error" or "error" not in row}
    row["measure_seconds"] = time.monotonic() - start
    compare(row, max(EPSILON[tensor.dtype] for tensor in lax.read(Path(request["path"])).results))
    return row


if __name__ == "__main__":
    sys.exit(main())
