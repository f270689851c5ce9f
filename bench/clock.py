"""Searches examples on this machine's GPU, and compares what the clock said of each candidate with how long it took.

    python bench/clock.py --binary target/release/tilewright --budget 20s --results bench/results/clock.json
    python bench/clock.py --predict out/clock/*.jsonl
    python bench/clock.py --predict out/clock/*.jsonl --held-back program

Needs no package. For each program: the rank correlation (Spearman's) of predicted and measured times over the candidates that were timed, that of
the roofline beside it, and the place that the fastest one has by the clock. A candidate that was timed more than once counts once, with its
shortest time.

The trials of each search stay in the folder of artifacts, a log and a file of JSON lines a program. With --predict nothing is searched, and no GPU is
needed: such files are predicted again, by the binary as it is now. With --held-back a correction of the clock is fitted to all programs but one (or all
but those whose names begin with the same word), and what it says of that one stands beside what the clock says: of whole programs, and of kernels alone.
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


def candidates(lines: str, whole: bool = True) -> dict[str, list[dict[str, Any]]]:
    """The trials of whole programs among lines of JSON, or those of kernels alone, by program; of equal ones the fastest."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for trial in map(json.loads, lines.splitlines()):
        if trial["whole"] == whole:
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
    out.mkdir(parents=True, exist_ok=True)
    log = out / f"{program.stem}.sqlite"
    for ending in ("", "-wal", "-shm"):
        log.with_name(log.name + ending).unlink(missing_ok=True)
    command = [binary, "optimize", program, "--target", target, "--budget", budget, "-o", out / program.stem, "--force", "--no-db", "--database", log]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    enough = re.search(r"a budget of (\d+s) would do", done.stderr)
    if done.returncode != 0 and enough is not None and enough[1] != budget:
        return search(binary, program, target, enough[1], out)
    command = [binary, "log", "--database", log, "--format", "jsonl"]
    lines = subprocess.run([str(word) for word in command], capture_output=True, text=True).stdout
    (out / f"{program.stem}.jsonl").write_text(lines)
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


def beside(predictor: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """How well times that a field of trials says order them."""
    predicted, measured = [trial[predictor] for trial in trials], [us(trial) for trial in trials]
    fastest, first = min(trials, key=us), min(trials, key=lambda trial: trial[predictor])
    return {
        "correlation": correlation(predicted, measured),
        "place_of_fastest": 1 + sum(p < fastest[predictor] for p in predicted),
        "first_by_fastest": us(first) / us(fastest),
    }


def compare(lines: str, whole: bool) -> dict[str, Any]:
    """What the clock and its correction say of each program; prints it too."""
    predictors = {"clock": "clock_us", "corrected": "corrected_us"}
    about: dict[str, Any] = {"programs": []}
    for program, trials in sorted(candidates(lines, whole).items()):
        if len(trials) < FEWEST:
            continue
        row = {"program": program, "timed": len(trials), **{name: beside(field, trials) for name, field in predictors.items()}}
        about["programs"].append(row)
        figures = [f"{row[n]['correlation']:6.2f} {row[n]['place_of_fastest']:4} {row[n]['first_by_fastest']:6.2f}" for n in predictors]
        print(f"{program:<50} {len(trials):>5} {'  '.join(figures)}", flush=True)
    for name in predictors:
        rows = [row[name] for row in about["programs"]]
        if rows:
            about[name] = {
                "median_correlation": statistics.median(r["correlation"] for r in rows),
                "mean_correlation": statistics.mean(r["correlation"] for r in rows),
                "fastest_in_first_ten": sum(r["place_of_fastest"] <= 10 for r in rows),
                "first_by_fastest": statistics.mean(r["first_by_fastest"] for r in rows),
            }
            print(name, " ".join(f"{what} {figure:.3g}" for what, figure in about[name].items()), flush=True)
    return about


def held_back(arguments: argparse.Namespace) -> int:
    """Compares the clock with corrections that did not see what they are asked about."""
    command = [arguments.binary, "predict", *arguments.predict, "--held-back", arguments.held_back]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    about: dict[str, Any] = {"commit": arguments.commit, "held_back": arguments.held_back, "files": sorted(map(str, arguments.predict))}
    title = f"{'correlation, place of the fastest, first by fastest':<50} {'timed':>5} {'clock':>18} {'corrected':>19}"
    for whole, name in ((True, "whole_programs"), (False, "kernels_alone")):
        print(f"{name}\n{title}", flush=True)
        about[name] = compare(done.stdout, whole)
    if arguments.results is not None:
        arguments.results.write_text(json.dumps(about, indent=1))
    return 0


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
    parser.add_argument("--held-back", choices=["program", "family"], help="what a correction of the clock is not fitted to that predicts it")
    parser.add_argument("--commit", help="the commit to name in the results")
    arguments = parser.parse_args()
    if arguments.held_back is not None and arguments.predict is None:
        parser.error("--held-back wants --predict")
    return arguments


def main() -> int:
    arguments = parse()
    if arguments.held_back is not None:
        return held_back(arguments)
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
