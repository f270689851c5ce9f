"""Searches examples on this machine's GPU, and compares what the clock said of each candidate with how long it took.

    python bench/clock.py --binary target/release/tilewright --budget 20s --results bench/results/clock.json
    python bench/clock.py --predict out/clock/*.jsonl

Needs no package. For each program: the rank correlation (Spearman's) of predicted and measured times over the candidates that were timed, that of
the roofline beside it, and the place that the fastest one has by the clock. A candidate that was timed more than once counts once, with its
shortest time.

The trials of each search stay in the folder of artifacts, a file a program. With --predict nothing is searched, and no GPU is needed: such files
are predicted again, by the binary as it is now.
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


def candidates(lines: str) -> dict[str, list[dict[str, Any]]]:
    """The trials of whole programs among lines of JSON, by program; of equal ones the fastest."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for trial in map(json.loads, lines.splitlines()):
        if trial["whole"]:
            same = found.setdefault(trial["program"], {})
            known = same.setdefault((trial["tile"], trial["schedule"]), trial)
            if us(trial) < us(known):
                same[trial["tile"], trial["schedule"]] = trial
    return {program: list(same.values()) for program, same in found.items()}


def us(trial: dict[str, Any]) -> float:
    """What a trial took."""
    return trial["measured"]["warm"]["median_us"]


def search(binary: Path, program: Path, target: str, budget: str, out: Path) -> tuple[str, str | None]:
    """The trials of a search, and why it failed if it did."""
    trials = out / f"{program.stem}.jsonl"
    trials.parent.mkdir(parents=True, exist_ok=True)
    trials.unlink(missing_ok=True)
    command = [binary, "optimize", program, "--target", target, "--budget", budget, "-o", out / program.stem, "--force", "--trials", trials]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    enough = re.search(r"a budget of (\d+s) would do", done.stderr)
    if done.returncode != 0 and enough is not None and enough[1] != budget:
        return search(binary, program, target, enough[1], out)
    lines = trials.read_text() if trials.exists() else ""
    return lines, None if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"


def row(program: str, trials: list[dict[str, Any]], error: str | None) -> dict[str, Any]:
    """What is said of a program; prints it too."""
    pairs = [(trial["clock_us"], us(trial)) for trial in trials]
    said: dict[str, Any] = {"program": program, "timed": len(pairs), "error": error, "predicted_measured_us": pairs}
    if len(pairs) >= FEWEST:
        predicted, measured = [p for p, _ in pairs], [m for _, m in pairs]
        best = min(pairs, key=lambda pair: pair[1])
        said["correlation"] = correlation(predicted, measured)
        said["roofline_correlation"] = correlation([trial["roofline_us"] for trial in trials], measured)
        said["place_of_fastest"] = 1 + sum(p < best[0] for p in predicted)
        said["fastest_us"] = best[1]
    figures = [f"{said[name]:.2f}" if name in said else "–" for name in ("correlation", "roofline_correlation")]
    place = said.get("place_of_fastest", "–")
    print(f"{program:<50} {len(pairs):>5} {figures[0]:>11} {figures[1]:>8} {place!s:>5} {said.get('fastest_us', 0.0):>10.1f} {error or ''}", flush=True)
    return said


def summary(programs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said of all programs together; prints it too."""
    known = [row for row in programs if "correlation" in row]
    if not known:
        return {}
    about = {
        "median_correlation": statistics.median(row["correlation"] for row in known),
        "fastest_in_first_ten": sum(row["place_of_fastest"] <= 10 for row in known),
    }
    timed_in_all = sum(row["timed"] for row in known)
    print(
        f"{len(known)} programs, {timed_in_all} candidates: median correlation {about['median_correlation']:.2f}, "
        f"the fastest among the clock's first ten in {about['fastest_in_first_ten']}"
    )
    return about


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
    parser.add_argument("--predict", type=Path, nargs="+", metavar="FILE", help="files of trials, instead of searches")
    parser.add_argument("--commit", help="the commit to name in the results")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    title = f"{'program':<50} {'timed':>5} {'correlation':>11} {'roofline':>8} {'place':>5} {'fastest µs':>10}"
    if arguments.predict is not None:
        print(title, flush=True)
        done = subprocess.run([arguments.binary, "predict", *arguments.predict], stdout=subprocess.PIPE, text=True, check=True)
        return 0 if summary([row(program, trials, None) for program, trials in sorted(candidates(done.stdout).items())]) else 1
    found = gpu()
    if found is None:
        print("no GPU: nothing is timed here", file=sys.stderr)
        return 2
    begin = datetime.datetime.now(datetime.UTC)
    about: dict[str, Any] = {"gpu": found, "commit": arguments.commit, "date": begin.isoformat(timespec="seconds"), "budget": arguments.budget}
    programs: list[dict[str, Any]] = []
    print(title, flush=True)
    for program in sorted(arguments.examples.glob("*.lax")):
        spent = (datetime.datetime.now(datetime.UTC) - begin).total_seconds()
        if not re.search(arguments.only, program.name) or spent > arguments.total:
            continue
        lines, error = search(arguments.binary, program, arguments.target, arguments.budget, arguments.out)
        trials = [trial for same in candidates(lines).values() for trial in same]
        programs.append(row(program.stem, trials, error))
    about |= summary(programs)
    if arguments.results is not None:
        arguments.results.write_text(json.dumps({**about, "programs": programs}, indent=1))
    return 0 if "median_correlation" in about and not any(row["error"] for row in programs) else 1


if __name__ == "__main__":
    sys.exit(main())
