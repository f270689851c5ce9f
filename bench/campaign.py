"""What a second GPU buys a campaign, and what the division of the time buys one on one GPU.

    python bench/campaign.py --binary target/release/tilewright --budget 20m --seeds 1,2 --results bench/results/campaign-h100x2.json
    python bench/campaign.py --even --budget 20m --results bench/results/campaign-even-h100.json

Needs PyTorch and two GPUs, with `--even` one. A plan of 24 jobs from `examples/` is written, unless there is `--plan` or programs are named. For each seed,
and as often as `--repeat` says:

* the campaign on one GPU with the whole budget, on two with 0.55 of it (`--share`), and the latter again in a new folder from the database of artifacts
  that it left, which has to time nothing; or,
* with `--even`, the campaign on one GPU, and behind it one `optimize` for each job, with an equal share of the budget.

Each of these has a folder of its own for its log and caches. What both found is then timed in turns on one GPU, job by job: times of two runs differ by what the
board's power allows. What is done is kept in `--out` and not done again.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARE = 0.55  # of the budget, on two GPUs
CLOSE = 0.03
NO_RESULT = 3  # an exit code: a job of the campaign has no result
LIMIT_S = 120  # to time one pair
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PROGRAMS: list[dict[str, Any]] = [
    {"file": "gqa.lax", "extents": {"j": [1024, 4096]}},
    {"file": "attention_causal_gqa_b1h32kv8s512d128_f16.lax", "name": "causal", "shapes": [{"i": 512, "j": 512}, {"i": 1024, "j": 1024}]},
    {"file": "mha_bs1.lax"},
    {"file": "decode_gqa_b1h32kv8s8192d128_bf16.lax", "name": "decode_gqa", "extents": {"j": [2048, 8192]}},
    {"file": "decode_b8h32s4096d64_bf16.lax", "name": "decode", "extents": {"b": [1, 8]}},
    {"file": "gated_mlp_t8.lax", "name": "gated_mlp", "extents": {"t": [1, 8, 64]}},
    {"file": "rmsnorm_bf16.lax", "extents": {"t": [256, 4096]}},
    {"file": "layernorm_f32.lax", "shapes": [{"t": 1024, "m": 8192}]},
    {"file": "rmsnorm_linear_t16.lax", "name": "rmsnorm_linear", "extents": {"t": [2, 16]}},
    {"file": "ntrans_t8.lax", "name": "ntrans", "extents": {"t": [8, 64]}},
    {"file": "softmax_f32.lax", "shapes": [{"t": 4096, "m": 4096}, {"t": 512, "m": 65536}]},
    {"file": "matmul_4096_bf16.lax", "name": "matmul", "shapes": [{"m": n, "n": n, "k": n} for n in (1024, 2048)]},
    {"file": "lora_m256.lax"},
]


class Failed(Exception):
    """Something that cannot go on."""


# --- Plans --------------------------------------------------------------------------------------------------------------


def seconds_of(text: str) -> float:
    """A budget as the command line takes it: 90s, 1h30m, 1.5h."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    total = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not total > 0:
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 20m or 1h30m, found `{text}`")
    return total


def value(of: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(of, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {value(one)}" for key, one in of.items()) + " }"
    if isinstance(of, list):
        return "[" + ", ".join(map(value, of)) + "]"
    if isinstance(of, bool | int | float | str):
        return json.dumps(of)
    raise Failed(f"a plan has no {type(of).__name__}")


def toml(plan: dict[str, Any]) -> str:
    """A plan as its file has it: a table for each program behind all else."""
    lines = [f"{key} = {value(of)}" for key, of in plan.items() if key != "program"]
    for program in plan["program"]:
        lines += ["", "[[program]]", *(f"{key} = {value(of)}" for key, of in program.items())]
    return "\n".join(lines) + "\n"


def plan_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The plan without budget and seed, which each run has for itself; files by their whole paths."""
    if arguments.plan is None:
        programs = [{"file": str(path)} for path in arguments.programs] or PROGRAMS
        plan, folder = {"target": arguments.target or "auto", "program": programs}, Path.cwd() if arguments.programs else ROOT / "examples"
    else:
        try:
            plan, folder = tomllib.loads(arguments.plan.read_text()), arguments.plan.parent
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise Failed(f"{arguments.plan}: {error}") from error
        if arguments.target is not None:
            plan["target"] = arguments.target
    programs = plan.get("program")
    if not isinstance(programs, list) or not all(isinstance(p, dict) and isinstance(p.get("file"), str) for p in programs):
        raise Failed(f"{arguments.plan}: expected a [[program]] with a `file` for each program")
    programs = [{**program, "file": str((folder / program["file"]).resolve())} for program in programs]
    return {key: of for key, of in plan.items() if key not in ("budget", "seed", "program")} | {"program": programs}


def check(binary: Path, plan: dict[str, Any], out: Path) -> None:
    """Lets the command line read the plan, before anything that takes long."""
    path = out / "plan.toml"
    path.write_text(toml({"budget": "1h", "seed": 1, **plan}))
    tilewright(binary, ["campaign", "plan", path, "--dry-run"], os.environ.copy())


# --- Runs ---------------------------------------------------------------------------------------------------------------


def tilewright(binary: Path, words: list[Any], environment: dict[str, str], limit: float = 600, fine: tuple[int, ...] = (0,)) -> tuple[int, str]:
    """The exit code and what was printed."""
    command = [str(word) for word in (binary, *words)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{' '.join(command)}: {error}") from error
    if done.returncode not in fine:
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.returncode, done.stdout


def own(folder: Path) -> dict[str, str]:
    """The environment of a run whose log, kernels and locks are in its folder."""
    cache = folder / "cache"
    return {**os.environ, "XDG_DATA_HOME": str(folder / "data"), "XDG_CACHE_HOME": str(cache), "TILEWRIGHT_CACHE": str(cache / "kernels")}


def write(path: Path, value: Any) -> None:
    """The whole file or nothing."""
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)


def kept(path: Path) -> Any:
    """What was done before; none if nothing was."""
    return json.loads(path.read_text()) if path.exists() else None


def trials(binary: Path, log: Path, environment: dict[str, str]) -> int:
    """How many times were written into a log."""
    if not log.exists():
        return 0
    _, lines = tilewright(binary, ["log", "--database", log, "--format", "jsonl"], environment)
    return len(lines.splitlines())


def campaign(binary: Path, folder: Path, plan: dict[str, Any], gpus: int, budget: float, seed: int, db: Path | None = None) -> dict[str, Any]:
    """One campaign from its beginning to its end, and a copy of the best artifacts in `best-<name of the folder>`."""
    if done := kept(folder / "done.json"):
        return done
    # One that was cut short has no wall time.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "plan.toml").write_text(toml({"budget": f"{budget:.3f}s", "seed": seed, **plan}))
    log, environment = folder / "trials.sqlite", own(folder)
    words = ["campaign", "run", folder / "plan.toml", "-o", folder / "campaign", "--gpus", gpus, "--database", log, "--db", db or folder / "kernels.sqlite"]
    begun = time.monotonic()
    code, _ = tilewright(binary, words, environment, 2 * budget + 1200, (0, NO_RESULT))
    wall = time.monotonic() - begun
    _, status = tilewright(binary, ["campaign", "status", folder / "campaign", "--json"], environment)
    tilewright(binary, ["campaign", "best", folder / "campaign", "-o", folder / f"best-{folder.name}"], environment)
    done = {"gpus": gpus, "budget_seconds": budget, "wall_seconds": wall, "exit": code, "timed": trials(binary, log, environment), **jobs_of(json.loads(status))}
    write(folder / "done.json", done)
    return done


def jobs_of(status: dict[str, Any]) -> dict[str, Any]:
    """What of a campaign's status is kept."""

    def job(of: dict[str, Any]) -> dict[str, Any]:
        slices = of["slices"]
        return {
            "target": of["target"],
            "weight": of["weight"],
            "us": of["us"],
            "verified": of["verified"],
            "reason": of["reason"],
            "slices": len(slices),
            "seconds": sum(one["seconds"] or 0 for one in slices),
            "trials": sum(one["trials"] or 0 for one in slices),
        }

    return {"spent_seconds": status["spent_seconds"], "jobs": {of["name"]: job(of) for of in status["jobs"]}}


def even(binary: Path, folder: Path, programs: Path, jobs: dict[str, Any], budget: float, seed: int) -> dict[str, Any]:
    """One search for each job behind the other, each with an equal share of the budget; the programs are those of the artifacts in a folder."""
    each, found = budget / len(jobs), {}
    for name, job in jobs.items():
        path = folder / f"{name}.json"
        folder.mkdir(parents=True, exist_ok=True)
        if done := kept(path):
            found[name] = done
            continue
        program, artifact = programs / name / "program.lax", folder / "best-even" / name
        words = ["optimize", program, "--target", job["target"], "--budget", f"{each:.3f}s", "--seed", seed, "--gpus", 1, "-o", artifact]
        begun = time.monotonic()
        try:
            if not program.exists():
                raise Failed("the campaign has no artifact of it")
            tilewright(binary, [*words, "--force", "--json"], own(folder), 2 * each + 600)
            found[name] = {"wall_seconds": time.monotonic() - begun}
        except Failed as error:  # a budget that is too small is a result
            found[name] = {"wall_seconds": time.monotonic() - begun, "error": str(error)}
        write(path, found[name])
    return {"budget_seconds": budget, "wall_seconds": sum(one["wall_seconds"] for one in found.values()), "jobs": found}


# --- Comparisons --------------------------------------------------------------------------------------------------------


def compared(worker: Any, first: Path, second: Path, jobs: dict[str, Any], path: Path, rounds: int) -> dict[str, Any]:
    """Times the artifacts of both folders, job by job, in turns. What was timed before is in the file."""
    pairs: dict[str, Any] = kept(path) or {}
    for name in jobs:
        if name in pairs and "error" not in pairs[name]:
            continue
        missing = [str(folder) for folder in (first, second) if not (folder / name / "__init__.py").exists()]
        if missing:
            pairs[name] = {"error": f"no artifact in {' and '.join(missing)}"}
        else:
            pairs[name] = worker.ask({"first": str(first / name), "second": str(second / name), "rounds": rounds}, LIMIT_S)
        write(path, pairs)
    return {name: pairs[name] for name in jobs}


def summary(pairs: dict[str, Any], jobs: dict[str, Any]) -> dict[str, Any]:
    """Over all jobs; ratios are the second one's time over the first one's."""
    done = {name: pair for name, pair in pairs.items() if "error" not in pair}
    ratios = {name: pair["ratio"] for name, pair in done.items()}
    sums = [sum(jobs[name]["weight"] * pair[which] for name, pair in done.items()) for which in ("first_us", "second_us")]
    worst = max(ratios, key=lambda name: ratios[name], default=None)
    return {
        "of": len(pairs),
        "compared": len(done),
        "missing": sorted(pairs.keys() - done.keys()),
        f"within_{CLOSE:.0%}": sum(abs(ratio - 1) <= CLOSE for ratio in ratios.values()),
        f"no_more_than_{CLOSE:.0%}_slower": sum(ratio <= 1 + CLOSE for ratio in ratios.values()),
        "worst": None if worst is None else {"job": worst, "ratio": ratios[worst]},
        "weighted_us": sums,
        "weighted_ratio": sums[1] / sums[0] if done else None,
    }


def two_gpus(arguments: argparse.Namespace, plan: dict[str, Any], worker: Any, folder: Path, seed: int) -> dict[str, Any]:
    """One GPU beside two, and the second again from its database."""
    budget, share = arguments.budget, arguments.share * arguments.budget
    one = campaign(arguments.binary, folder / "one", plan, 1, budget, seed)
    two = campaign(arguments.binary, folder / "two", plan, 2, share, seed)
    again = campaign(arguments.binary, folder / "again", plan, 2, share, seed, folder / "two/kernels.sqlite")
    pairs = compared(worker, folder / "one/best-one", folder / "two/best-two", one["jobs"], folder / "pairs.json", arguments.rounds)
    return {
        "one": one,
        "two": two,
        "again": again,
        "wall_ratio": two["wall_seconds"] / one["wall_seconds"],
        "again_wall_ratio": again["wall_seconds"] / two["wall_seconds"],
        "timed_again": max(again["timed"], sum(job["trials"] for job in again["jobs"].values())),
        "first": "one GPU",
        "second": "two GPUs",
        "summary": summary(pairs, one["jobs"]),
        "pairs": pairs,
    }


def against_even(arguments: argparse.Namespace, plan: dict[str, Any], worker: Any, folder: Path, seed: int) -> dict[str, Any]:
    """The time shared evenly, beside the campaign."""
    one = campaign(arguments.binary, folder / "one", plan, 1, arguments.budget, seed)
    best = folder / "one/best-one"
    shared = even(arguments.binary, folder / "even", best, one["jobs"], arguments.budget, seed)
    pairs = compared(worker, folder / "even/best-even", best, one["jobs"], folder / "pairs-even.json", arguments.rounds)
    return {
        "one": one,
        "even": shared,
        "wall_ratio": one["wall_seconds"] / shared["wall_seconds"],
        "first": "shared evenly",
        "second": "the campaign",
        "summary": summary(pairs, one["jobs"]),
        "pairs": pairs,
    }


def is_fine(run: dict[str, Any]) -> bool:
    """Whether every job has both results, and nothing was timed that was in the database."""
    return not run["summary"]["missing"] and run.get("timed_again", 0) == 0


# --- The command --------------------------------------------------------------------------------------------------------


def gpus() -> list[str]:
    """Each GPU with its driver and what it may draw; none without one."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in lines.splitlines() if line.strip()]


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, found `{text}`")
    return int(text)


def seeds(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words) or len({int(word) for word in words}) < len(words):
        raise argparse.ArgumentTypeError(f"expected different numbers such as 1,2,3, found `{text}`")
    return [int(word) for word in words]


def share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"expected a share of the budget, above 0 and up to 1, found `{text}`")
    return number


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, nargs="*", metavar="PROGRAM", help=".lax files, in place of the plan of 24 jobs")
    parser.add_argument("--plan", type=Path, help="a campaign's plan; its budget and seed are not used")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tilewright")
    parser.add_argument("--target", help="default: the plan's, or auto")
    parser.add_argument("--budget", type=seconds_of, default="20m", help="of the campaign on one GPU; default 20m")
    parser.add_argument("--share", type=share, default=SHARE, help=f"of the budget on two GPUs; default {SHARE}")
    parser.add_argument("--seeds", type=seeds, default=[1], help="comma-separated; default 1")
    parser.add_argument("--repeat", type=positive, default=1, help="how often with each seed")
    parser.add_argument("--even", action="store_true", help="one GPU, beside a time that is shared evenly")
    parser.add_argument("--rounds", type=positive, default=11, help="of timing a pair")
    parser.add_argument("--out", type=Path, default=ROOT / "out/campaign-bench", help="keeps what was done; a second call goes on")
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    parser.add_argument("--commit", help="the commit to name in the results, where there is no git checkout")
    arguments = parser.parse_args(words)
    if arguments.plan is not None and arguments.programs:
        parser.error("--plan and programs exclude each other")
    for path in [*arguments.programs, *([arguments.plan] if arguments.plan else [])]:
        if not path.is_file():
            parser.error(f"{path} is no file")
    if not arguments.binary.is_file():
        parser.error(f"{arguments.binary} is no file: --binary says where tilewright is")
    arguments.binary = arguments.binary.resolve()
    return arguments


def harness(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """What times pairs, and what times depend on. Refuses a machine on which this cannot be done."""
    found, needed = gpus(), 1 if arguments.even else 2
    if not found:
        raise Failed("no GPU: `nvidia-smi` shows none, and nothing can be measured here")
    if len(found) < needed:
        raise Failed(f"one GPU alone ({found[0]}): two are needed; --even needs one")
    try:
        import run
        import torch
    except ImportError as error:
        raise Failed(f"PyTorch is needed to time artifacts beside each other: {error}") from error
    if not torch.cuda.is_available():
        raise Failed("PyTorch has no CUDA device")
    about = run.environment(argparse.Namespace(commit=arguments.commit, budget=arguments.budget, mode_set=None))
    del about["mode_set"]
    units = "\u00b5s per call; warm: inputs in L2; cold: inputs rotated through more than 3 times L2; ratio: the second one's over the first one's; wall_ratio: see first and second"
    return run.Worker("pairs.py"), about | {"gpus": found, "units": units}


def settle(arguments: argparse.Namespace, plan: dict[str, Any]) -> None:
    """Refuses a folder whose runs had other settings."""
    binary = arguments.binary.stat()
    settings = {
        "plan": plan,
        "budget": arguments.budget,
        "share": arguments.share,
        "binary": [str(arguments.binary), binary.st_size, binary.st_mtime],
    }
    path = arguments.out / "settings.json"
    arguments.out.mkdir(parents=True, exist_ok=True)
    before = kept(path)
    if before is None and any(arguments.out.iterdir()):
        raise Failed(f"{arguments.out} holds something else")
    if before is not None and before != settings:
        differ = [key for key in settings if before.get(key) != settings[key]]
        raise Failed(f"{arguments.out} holds what was done with another {' and '.join(differ)}: remove it, or name another folder with --out")
    write(path, settings)


def main() -> int:
    arguments = parse()
    try:
        plan = plan_of(arguments)
        worker, about = harness(arguments)
        settle(arguments, plan)
        check(arguments.binary, plan, arguments.out)
        results = {**about, "share": arguments.share, "plan": toml(plan).replace(f"{ROOT}/", ""), "runs": []}
        for seed in arguments.seeds:
            for repeat in range(arguments.repeat):
                folder = arguments.out / f"seed{seed}-{repeat + 1}"
                how = against_even if arguments.even else two_gpus
                run = {"seed": seed, "repeat": repeat + 1, **how(arguments, plan, worker, folder, seed)}
                results["runs"].append(run)
                print(json.dumps({key: of for key, of in run.items() if not isinstance(of, dict)} | run["summary"]), flush=True)
                if arguments.results:
                    write(arguments.results, results)
        worker.stop()
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(map(is_fine, results["runs"])) else 1


if __name__ == "__main__":
    sys.exit(main())
