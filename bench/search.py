"""Searches every example without timing anything, and checks the promises of the search: its time and its memory.

    python bench/search.py --binary target/release/tilewright --budget 20s

Needs no GPU and no package. One example at a time, on as many cores as the search takes.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60.0  # a search without a GPU ends within this
FIRST = 10.0  # and holds something verified within this
GIBIBYTES = 4.0  # and never holds more


def search(arguments: argparse.Namespace, program: Path, scratch: Path) -> dict[str, Any]:
    """One search: wall time, peak memory, exit code, and the report."""
    words = ["optimize", program, "--target", arguments.target, "--budget", arguments.budget, "-o", scratch / program.stem, "--json"]
    report, errors = scratch / "report.json", scratch / "errors"
    start = time.monotonic()
    with report.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen([str(arguments.binary), *map(str, words)], stdout=out, stderr=err)
        watchdog = threading.Timer(2 * SECONDS, process.kill)
        watchdog.start()
        _, status, usage = os.wait4(process.pid, 0)  # the memory of this process alone
        watchdog.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
    result: dict[str, Any] = {
        "seconds": time.monotonic() - start,
        "gibibytes": usage.ru_maxrss / 2**20,
        "exit": process.returncode,
    }
    try:
        result["report"] = json.loads(report.read_text())
    except json.JSONDecodeError:
        lines = errors.read_text().strip().splitlines()
        result["error"] = lines[-1][:160] if lines else "no report"
    return result


def faults(result: dict[str, Any]) -> list[str]:
    """The promises that a search broke."""
    best = result.get("report", {}).get("best") or {}
    broken = {
        f"exit code {result['exit']}": result["exit"] != 0,
        f"took more than {SECONDS:.0f} s": result["seconds"] > SECONDS,
        f"nothing held within {FIRST:.0f} s": not result.get("report", {}).get("first_held_seconds", math.inf) <= FIRST,
        f"held more than {GIBIBYTES:.0f} GiB": result["gibibytes"] > GIBIBYTES,
        "nothing simulated": not best.get("claims"),
    }
    return [fault for fault, holds in broken.items() if holds] + ([result["error"]] if "error" in result else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tilewright")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--budget", default="20s")
    parser.add_argument("--only", default="", help="only files whose name contains this")
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    arguments = parser.parse_args()
    programs = sorted(path for path in (ROOT / "examples").glob("*.lax") if arguments.only in path.stem)
    if not programs:
        print("no example to search", file=sys.stderr)
        return 1
    bad, rows = 0, []
    print(f"{'example':<46} {'s':>6} {'first':>5} {'GiB':>5} {'candidates':>10} {'rejected':>8} {'kernels':>7} {'predicted µs':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for program in programs:
            result = search(arguments, program, Path(folder))
            report = result.get("report", {})
            best, broken = report.get("best") or {}, faults(result)
            bad += bool(broken)
            rows.append(
                {
                    "file": program.stem,
                    "seconds": round(result["seconds"], 2),
                    "gibibytes": round(result["gibibytes"], 3),
                    "first_held_seconds": report.get("first_held_seconds"),
                    "candidates": report.get("candidates"),
                    "rejected": report.get("rejected"),
                    "kernels": best.get("kernels"),
                    "predicted_us": best.get("predicted_us"),
                    "broken": broken,
                }
            )
            print(
                f"{program.stem:<46} {result['seconds']:6.1f} {report.get('first_held_seconds') or 0.0:5.1f} {result['gibibytes']:5.2f} {report.get('candidates', 0):>10} "
                f"{sum(report.get('rejected', {}).values()):>8} {best.get('kernels', '–')!s:>7} {best.get('predicted_us', 0.0):12.1f} "
                + "; ".join(broken),
                flush=True,
            )
    if arguments.results:
        about = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "target": arguments.target,
            "budget": arguments.budget,
            "units": "seconds from the start of the process; GiB at its peak, without its workers; µs by the model",
        }
        arguments.results.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
    print(f"{len(programs)} examples searched, {bad} broke a promise")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
