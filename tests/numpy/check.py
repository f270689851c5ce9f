"""Checks `tilewright eval` and `tilewright simulate` against NumPy on every example and test program, at small extents.

    python tests/numpy/check.py --binary target/release/tilewright

`eval` is checked for every file, `optimize` and `simulate` once for programs that differ in extents alone.
"""

import argparse
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired, run

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import lax  # noqa: E402  (found through the line above)
from formulas import EXAMPLES, PROGRAMS, Case, case_of  # noqa: E402

EVAL_TOLERANCE = 1e-9  # both are f64: only the order of sums differs
SIMULATE_TOLERANCE = 1e-9  # the interpreter computes in f64 too


class Failed(Exception):
    """A check that did not hold."""


@dataclass(frozen=True)
class Job:
    """One program file, and whether to search it too."""

    path: Path
    case: Case
    search: bool


def jobs_of(folder: Path, cases: list[Case], only: str) -> list[Job]:
    """A job for every file; the first file of each body is searched."""
    seen: set[tuple[str, str]] = set()
    jobs = []
    for path in sorted(folder.glob("*.lax")):
        if only not in path.stem:
            continue
        case = case_of(path.stem, cases)
        body = lax.read(path).body.partition("\n")[2]
        jobs.append(Job(path, case, (case.pattern, body) not in seen))
        seen.add((case.pattern, body))
    return jobs


def make_inputs(header: lax.Header, extents: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Normal inputs, but for a few names: labels, row numbers, lengths, masks, variances and probabilities. Integers are of their dtypes."""
    random = np.random.default_rng(seed)
    drawn = {
        "label": lambda shape: random.integers(extents.get("n", 2), size=shape).astype(float),
        "len": lambda shape: random.integers(1, extents["j"] + 1, size=shape).astype(float),
        "ids": lambda shape: random.integers(extents.get("v", 2), size=shape),
        "keep": lambda shape: (random.random(shape) < 0.7) | (np.arange(shape[-1]) == 0),
        # The first one of a row stays.
        "mask": lambda shape: np.maximum(random.random(shape) < 0.7, np.arange(shape[-1]) == 0).astype(float),
        "var": lambda shape: 0.5 + random.random(shape),
        "prob": lambda shape: random.uniform(0.01, 0.99, shape),
    }
    usual = lambda shape: random.normal(size=shape)  # noqa: E731  (one of a kind with those above)
    kinds = {"i32": np.int32, "i64": np.int64, "bool": np.bool_}
    return {
        name: drawn.get(name, usual)(tensor.shape(extents)).astype(kinds.get(tensor.dtype, np.float64))
        for name, tensor in header.parameters.items()
    }


def call(arguments: argparse.Namespace, *words: object) -> None:
    """Runs the program under test and raises when it fails."""
    command = [str(arguments.binary), *(str(word) for word in words)]
    try:
        done: CompletedProcess[str] = run(command, capture_output=True, text=True, timeout=arguments.timeout)
    except TimeoutExpired as error:
        raise Failed(f"{words[0]} took more than {arguments.timeout} s") from error
    if done.returncode != 0:
        raise Failed(f"{words[0]} ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")


def worst_error(outputs: Path, expected: tuple[np.ndarray, ...], tolerance: float, what: str) -> float:
    """The largest error relative to the largest value; raises when it is above the tolerance, or on NaN."""
    with np.load(outputs) as found:
        names = [f"out{n}" for n in range(len(expected))]
        if sorted(found.files) != sorted(names):
            raise Failed(f"{what}: expected the arrays {names}, found {found.files}")
        worst = 0.0
        for name, wanted in zip(names, expected):
            if wanted.dtype != found[name].dtype:
                raise Failed(f"{what} {name}: expected elements of {wanted.dtype}, found {found[name].dtype}")
            if found[name].shape != wanted.shape:
                raise Failed(f"{what} {name}: expected the shape {wanted.shape}, found {found[name].shape}")
            found_reals, reals = found[name].astype(np.float64), wanted.astype(np.float64)
            error = float(np.abs(found_reals - reals).max() / (np.abs(reals).max() or 1.0))
            if not error <= tolerance:  # so that a NaN fails
                raise Failed(f"{what} {name}: relative error {error:.1e} is above {tolerance:.0e}")
            worst = max(worst, error)
    return worst


def check(arguments: argparse.Namespace, job: Job, scratch: Path) -> str:
    """Checks one program; a line for people. Raises `Failed`."""
    header = lax.read(job.path)
    extents = job.case.extents or header.extents
    scratch.mkdir()
    program = scratch / job.path.name
    program.write_text(lax.resize(job.path, extents))
    inputs = make_inputs(header, extents, zlib.crc32(job.path.stem.encode()))
    given, got = scratch / "in.npz", scratch / "out.npz"
    np.savez(given, **inputs)
    values = job.case.formula(*inputs.values())
    expected = values if isinstance(values, tuple) else (values,)
    for result, value in zip(header.results, expected, strict=True):
        if value.shape != result.shape(extents) or not np.isfinite(value).all():
            raise Failed(f"the formula gives a bad value: shape {value.shape}, wanted {result.shape(extents)}")

    call(arguments, "eval", program, "--inputs", given, "--outputs", got)
    line = f"eval {worst_error(got, expected, EVAL_TOLERANCE, 'eval'):.1e}"
    if job.search and not arguments.eval_only:
        artifact, simulated = scratch / "artifact", scratch / "simulated.npz"
        call(arguments, "optimize", program, "--target", "h200", "--budget", arguments.budget, "-o", artifact, "--no-log", "--no-db")
        call(arguments, "simulate", artifact, "--inputs", given, "--outputs", simulated)
        line += f", simulate {worst_error(simulated, expected, SIMULATE_TOLERANCE, 'simulate'):.1e}"
    return line


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tilewright")
    parser.add_argument("--budget", default="2s", help="search budget of each program")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that one command may take")
    parser.add_argument("--eval-only", action="store_true", help="leave out optimize and simulate")
    parser.add_argument("--only", default="", help="only files whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    jobs = jobs_of(ROOT / "examples", EXAMPLES, arguments.only) + jobs_of(ROOT / "tests/programs", PROGRAMS, arguments.only)
    idle = [c.pattern for c in EXAMPLES + PROGRAMS if c.pattern not in {job.case.pattern for job in jobs}]
    if not jobs or (idle and not arguments.only):
        print(f"formulas without a program: {idle}" if jobs else "no program to check", file=sys.stderr)
        return 1
    failures = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [pool.submit(check, arguments, job, Path(folder) / str(n)) for n, job in enumerate(jobs)]
        for job, future in zip(jobs, futures):
            try:
                print(f"ok   {job.path.stem}: {future.result()}", flush=True)
            except (Failed, OSError, ValueError, LookupError) as error:
                failures.append(job.path.stem)
                print(f"FAIL {job.path.stem}: {error}", flush=True)
    searched = 0 if arguments.eval_only else sum(job.search for job in jobs)
    print(f"{len(jobs)} programs evaluated, {searched} searched and simulated, {len(failures)} failed {' '.join(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
