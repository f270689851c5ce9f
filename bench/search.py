"""Searches every example, and checks the promises of the search: its time, its memory, and what it says of the result.

    python bench/search.py --binary target/release/tilewright --budget 20s

Needs no package. Without a GPU nothing is timed; on one, results are verified, and a budget that is refused as too small is
replaced by the one that would do. One example at a time, on as many cores as the search takes.
"""

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIRST = 10.0  # a search without a GPU holds something simulated within so many seconds
GIBIBYTES = 4.0  # and never holds more
BUDGET_TOO_SMALL = 6  # an exit code
CANDIDATES = ("the plainest", "expressions", "tilings", "measuring", "verifying", "finals")  # stages that look at candidates


def gpu() -> str | None:
    """The GPU and its driver; none without one."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader", "-i", "0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def search(arguments: argparse.Namespace, program: Path, budget: float, folder: Path) -> dict[str, Any]:
    """One search: wall time, peak memory, exit code, and the report."""
    words = ["optimize", program, "--target", arguments.target, "--budget", f"{budget:g}s", "-o", folder / program.stem, "--json", "--force"]
    with tempfile.TemporaryDirectory() as scratch:
        report, errors = Path(scratch) / "report.json", Path(scratch) / "errors"
        start = time.monotonic()
        with report.open("w") as out, errors.open("w") as err:
            # A log of its own: a search knows nothing of those before it.
            own = {**os.environ, "XDG_DATA_HOME": scratch}
            process = subprocess.Popen([str(arguments.binary), *map(str, words)], stdout=out, stderr=err, env=own)
            watchdog = threading.Timer(2 * longest(budget) + 60, process.kill)
            watchdog.start()
            _, status, usage = os.wait4(process.pid, 0)  # the memory of this process alone
            watchdog.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
        result: dict[str, Any] = {
            "budget": budget,
            "seconds": time.monotonic() - start,
            "gibibytes": usage.ru_maxrss / 2**20,
            "exit": process.returncode,
        }
        try:
            result["report"] = json.loads(report.read_text())
        except json.JSONDecodeError:
            result["report"] = {}
        if process.returncode != 0:
            lines = errors.read_text().strip().splitlines()
            result["error"] = str(result["report"].get("error") or (lines[-1] if lines else "no report"))[:2000]
    return result


def longest(budget: float) -> float:
    """What a search with a budget may take at most."""
    return 1.25 * budget + 5


def enough(result: dict[str, Any]) -> float | None:
    """The budget that a search asked for instead of its own."""
    found = re.search(r"a budget of (\d+)s would do", result.get("error", "")) if result["exit"] == BUDGET_TOO_SMALL else None
    return float(found[1]) if found else None


def faults(result: dict[str, Any], device: str | None) -> list[str]:
    """The promises that a search broke."""
    report, budget = result["report"], result["budget"]
    stages = report.get("stage_seconds") or {}
    looked = sum(stages.get(stage, 0.0) for stage in CANDIDATES)
    state = "verified" if device else "simulated"
    broken = {
        f"exit code {result['exit']}": result["exit"] != 0,
        f"took more than {longest(budget):.1f} s": result["seconds"] > longest(budget),
        f"nothing held within {FIRST:.0f} s": not device and not report.get("first_held_seconds", math.inf) <= FIRST,
        f"held more than {GIBIBYTES:.0f} GiB": not device and result["gibibytes"] > GIBIBYTES,
        f"not {state}": report.get("state") != state,
        # A search that ends by itself has looked at everything.
        "less than half of the budget for candidates": looked < budget / 2 and result["seconds"] >= budget,
    }
    return [fault for fault, holds in broken.items() if holds] + ([result["error"]] if "error" in result else [])


def write(arguments: argparse.Namespace, device: str | None, rows: list[dict[str, Any]]) -> None:
    """Keeps the results up to date, so that a kill loses nothing."""
    if not arguments.results:
        return
    about = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "gpu": device,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "target": arguments.target,
        "budget": arguments.budget,
        "commit": arguments.commit,
        "units": "seconds of the whole process; GiB at its peak, without its workers; µs measured, and by the model",
    }
    partial = arguments.results.with_suffix(".tmp")
    partial.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
    partial.replace(arguments.results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tilewright")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--budget", type=lambda text: float(text.removesuffix("s")), default=20.0, help="seconds; default 20s")
    parser.add_argument("--most", type=float, default=120.0, help="a larger budget than this many seconds is not given")
    parser.add_argument("--examples", type=Path, nargs="*", default=[ROOT / "examples"], help="folders of programs")
    parser.add_argument("--out", type=Path, help="a folder that keeps the artifacts")
    parser.add_argument("--total", type=float, default=math.inf, help="start no search after so many seconds")
    parser.add_argument("--only", default="", help="only files in whose name this regular expression is found")
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    parser.add_argument("--commit", help="the commit to name in the results")
    arguments = parser.parse_args()
    programs = sorted(path for folder in arguments.examples for path in folder.glob("*.lax") if re.search(arguments.only, path.stem))
    if not programs:
        print("no example to search", file=sys.stderr)
        return 1
    bad, rows, device, begun = 0, [], gpu(), time.monotonic()
    print(f"{'example':<46} {'budget':>6} {'s':>6} {'first':>5} {'GiB':>5} {'candidates':>10} {'kernels':>7} {'µs':>9} {'predicted':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for program in programs:
            if time.monotonic() - begun > arguments.total:
                rows.append({"file": program.stem, "broken": ["not started: no time was left"]})
                write(arguments, device, rows)
                continue
            result = search(arguments, program, arguments.budget, folder)
            refused = result if (wanted := enough(result)) else None
            if wanted and wanted <= arguments.most:
                result = search(arguments, program, wanted, folder)
            report = result["report"]
            best, broken = report.get("best") or {}, faults(result, device)
            bad += bool(broken)
            measured = (best.get("measured_us") or {}).get("warm")
            rows.append(
                {
                    "file": program.stem,
                    "budget": result["budget"],
                    "refused_after": refused and round(refused["seconds"], 2),
                    "seconds": round(result["seconds"], 2),
                    "gibibytes": round(result["gibibytes"], 3),
                    "state": report.get("state"),
                    "first_held_seconds": report.get("first_held_seconds"),
                    "stage_seconds": report.get("stage_seconds"),
                    "candidates": report.get("candidates"),
                    "rejected": report.get("rejected"),
                    "kernels": best.get("kernels"),
                    "predicted_us": best.get("predicted_us"),
                    "measured_us": best.get("measured_us"),
                    "broken": broken,
                }
            )
            print(
                f"{program.stem:<46} {result['budget']:6g} {result['seconds']:6.1f} {report.get('first_held_seconds') or 0.0:5.1f} {result['gibibytes']:5.2f} "
                f"{report.get('candidates', 0):>10} {best.get('kernels', '–')!s:>7} {measured or 0.0:9.1f} {best.get('predicted_us', 0.0):9.1f} "
                + "; ".join(broken),
                flush=True,
            )
            write(arguments, device, rows)
    searched = sum("seconds" in row for row in rows)
    print(f"{searched} of {len(programs)} examples searched, {bad} broke a promise")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
