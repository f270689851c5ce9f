"""Searches examples on this machine's GPU, and compares what the clock said of each candidate with how long it took.

    python bench/clock.py --binary target/release/tilewright --budget 20s --results bench/results/clock.json

Needs no package. For each program: the rank correlation (Spearman's) of predicted and measured times over the candidates that were timed, and
the place that the fastest one has by the clock. A candidate that was timed more than once counts once, with its shortest time.
"""

import argparse
import datetime
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(r"candidate (\d+): predicted ([\d.]+) us; (?:measured|verified,) ([\d.]+) us")
FEWEST = 4  # timed candidates below which a correlation says nothing


def ranks(values: list[float]) -> list[float]:
    """The rank of each value; equal ones share the mean."""
    order = sorted(values)
    return [(order.index(v) + len(order) - 1 - order[::-1].index(v)) / 2 for v in values]


def correlation(x: list[float], y: list[float]) -> float:
    """Spearman's rank correlation; 0 where one side does not vary."""
    a, b = ranks(x), ranks(y)
    try:
        return statistics.correlation(a, b)
    except statistics.StatisticsError:
        return 0.0


def timed(log: str) -> list[tuple[float, float]]:
    """(predicted, measured) of each candidate that was timed, in µs."""
    found: dict[str, tuple[float, float]] = {}
    for number, predicted, measured in LINE.findall(log):
        known = found.get(number)
        us = min(float(measured), known[1]) if known else float(measured)
        found[number] = (float(predicted), us)
    return list(found.values())


def search(binary: Path, program: Path, target: str, budget: str, out: Path) -> tuple[str, str | None]:
    """What the search said of its candidates, and why it failed if it did."""
    command = [binary, "optimize", program, "--target", target, "--budget", budget, "-o", out / program.stem, "--force", "-v"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    enough = re.search(r"a budget of (\d+s) would do", done.stderr)
    if done.returncode != 0 and enough is not None and enough[1] != budget:
        return search(binary, program, target, enough[1], out)
    return done.stderr, None if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"


def gpu() -> str | None:
    """What nvidia-smi says of the GPU."""
    query = "name,driver_version,clocks.sm,power.limit"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tilewright")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--budget", default="20s", help="of each search")
    parser.add_argument("--examples", type=Path, default=ROOT / "examples")
    parser.add_argument("--only", default=".", help="only files in whose name this regular expression is found")
    parser.add_argument("--total", type=float, default=float("inf"), help="start no search after so many seconds")
    parser.add_argument("--out", type=Path, default=ROOT / "out/clock", help="folder of the artifacts")
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    parser.add_argument("--commit", help="the commit to name in the results")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    found = gpu()
    if found is None:
        print("no GPU: nothing is timed here", file=sys.stderr)
        return 2
    begin = datetime.datetime.now(datetime.UTC)
    about: dict[str, Any] = {"gpu": found, "commit": arguments.commit, "date": begin.isoformat(timespec="seconds"), "budget": arguments.budget}
    programs: list[dict[str, Any]] = []
    print(f"{'program':<50} {'timed':>5} {'correlation':>11} {'place':>5} {'fastest µs':>10}", flush=True)
    for program in sorted(arguments.examples.glob("*.lax")):
        spent = (datetime.datetime.now(datetime.UTC) - begin).total_seconds()
        if not re.search(arguments.only, program.name) or spent > arguments.total:
            continue
        log, error = search(arguments.binary, program, arguments.target, arguments.budget, arguments.out)
        pairs = timed(log)
        row: dict[str, Any] = {"program": program.stem, "timed": len(pairs), "error": error, "predicted_measured_us": pairs}
        if len(pairs) >= FEWEST:
            predicted, measured = [p for p, _ in pairs], [m for _, m in pairs]
            best = min(pairs, key=lambda pair: pair[1])
            row["correlation"] = correlation(predicted, measured)
            row["place_of_fastest"] = 1 + sum(p < best[0] for p in predicted)
            row["fastest_us"] = best[1]
        programs.append(row)
        place, rho = row.get("place_of_fastest", "–"), row.get("correlation")
        print(f"{program.stem:<50} {len(pairs):>5} {'–' if rho is None else f'{rho:.2f}':>11} {place!s:>5} {row.get('fastest_us', 0.0):>10.1f} {error or ''}", flush=True)
    known = [row for row in programs if "correlation" in row]
    if known:
        about["median_correlation"] = statistics.median(row["correlation"] for row in known)
        about["fastest_in_first_ten"] = sum(row["place_of_fastest"] <= 10 for row in known)
        timed_in_all = sum(row["timed"] for row in known)
        print(
            f"{len(known)} programs, {timed_in_all} candidates: median correlation {about['median_correlation']:.2f}, "
            f"the fastest among the clock's first ten in {about['fastest_in_first_ten']}"
        )
    if arguments.results is not None:
        arguments.results.write_text(json.dumps({**about, "programs": programs}, indent=1))
    return 0 if known and not any(row["error"] for row in programs) else 1


if __name__ == "__main__":
    sys.exit(main())
