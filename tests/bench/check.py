"""Checks what of bench/campaign.py needs neither a GPU nor PyTorch: arguments, plans, the order of its runs, what it makes of their results.

    python tests/bench/check.py --binary target/debug/tilewright

Campaigns are real ones that simulate, of a program that is soon done. What times pairs of artifacts is a stand-in; that is what a GPU alone can show.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import campaign  # noqa: E402  (found through the line above)

PROGRAM = "program rows\naxis i = 2, j = 10\nx = parameter f32 [i, j]\nreturn f32 [i] sum(x; j) / size(j)\n"
PLAN = 'budget = "9h"\nseed = 4\nfirst = "2s"\ntarget = "a100"\n[[program]]\nfile = "rows.lax"\nextents = { i = [1, 3] }\nweight = 2.5\n'
PAIR = {"first_us": 10.0, "second_us": 10.2, "ratio": 1.02}


class Timer:
    """What is asked is written down; an answer is always there."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def ask(self, request: dict[str, Any], _timeout: float) -> dict[str, Any]:
        self.asked.append(request)
        return PAIR


def expect(found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")


def fails(with_: str, work: Callable[[], Any]) -> None:
    try:
        found = work()
    except campaign.Failed as error:
        if with_ not in str(error):
            raise AssertionError(f"expected `{with_}`, found `{error}`") from error
        return
    raise AssertionError(f"expected `{with_}`, found {found!r}")


def written(folder: Path) -> Path:
    (folder / "rows.lax").write_text(PROGRAM)
    (folder / "plan.toml").write_text(PLAN)
    return folder / "plan.toml"


# --- Cases --------------------------------------------------------------------------------------------------------------


def wrong_arguments_are_refused(binary: Path, folder: Path) -> None:
    plan, own = str(written(folder)), ["--binary", str(binary)]
    for words, said in [
        ([*own, "--budget", "20"], "expected a time"),
        ([*own, "--budget", "0s"], "expected a time"),
        ([*own, "--budget", "5m and more"], "expected a time"),
        ([*own, "--seeds", "1,1"], "expected different numbers"),
        ([*own, "--seeds", "1,"], "expected different numbers"),
        ([*own, "--seeds=-1"], "expected different numbers"),
        ([*own, "--repeat", "0"], "expected a number from 1 on"),
        ([*own, "--rounds", "a"], "expected a number from 1 on"),
        ([*own, "--share", "1.5"], "expected a share"),
        ([*own, "--share", "nan"], "expected a share"),
        ([*own, "--plan", "none.toml"], "none.toml is no file"),
        ([*own, "none.lax"], "none.lax is no file"),
        ([*own, "--plan", plan, plan], "exclude each other"),
        (["--binary", "none"], "none is no file"),
    ]:
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            try:
                campaign.parse(words)
                raise AssertionError(f"{words} pass")
            except SystemExit as exit_:
                expect(exit_.code, 2)
        if said not in errors.getvalue():
            raise AssertionError(f"{words}: expected `{said}`, found {errors.getvalue()}")
    right = campaign.parse([*own, "--budget", "1h30m", "--seeds", "3,1", "--plan", plan])
    expect((right.budget, right.seeds, right.share), (5400.0, [3, 1], 0.55))


def machines_with_too_few_gpus_are_refused(binary: Path, folder: Path) -> None:
    tool = folder / "nvidia-smi"
    outer = os.environ["PATH"]
    os.environ["PATH"] = str(folder)
    try:
        for there, words, said in [
            (None, [], "no GPU"),
            ("exit 9", ["--even"], "no GPU"),
            ("echo", ["--even"], "no GPU"),
            ("echo NVIDIA H100", [], "two are needed; --even needs one"),
        ]:
            if there is not None:
                tool.write_text(f"#!/bin/sh\n{there}\n")
                tool.chmod(0o755)
            arguments = campaign.parse(["--binary", str(binary), *words])
            fails(said, lambda: campaign.harness(arguments))
        tool.write_text("#!/bin/sh\necho one, 580\necho two, 580\n")
        expect(campaign.gpus(), ["one, 580", "two, 580"])
    finally:
        os.environ["PATH"] = outer


def plans_are_what_the_command_line_reads(binary: Path, folder: Path) -> None:
    words = ["--binary", str(binary)]
    plan = campaign.plan_of(campaign.parse([*words, "--target", "h200"]))
    campaign.check(binary, plan, folder)
    _, told = campaign.tilewright(binary, ["campaign", "plan", folder / "plan.toml", "--dry-run"], os.environ.copy())
    if "\n24 jobs within 3600s" not in told:
        raise AssertionError(told)
    odd = {"target": ["h100", 'a "b"\\'], "first": "1s", "program": [{"file": "ä", "weight": 2.5, "shapes": [{"i": 1}, {"i": 2, "weight": 3}]}]}
    expect(tomllib.loads(campaign.toml(odd)), odd)
    # Of a plan of one's own: files from its folder on, no budget and no seed.
    own = campaign.plan_of(campaign.parse([*words, "--plan", str(written(folder))]))
    program = {"file": str((folder / "rows.lax").resolve()), "extents": {"i": [1, 3]}, "weight": 2.5}
    expect(own, {"first": "2s", "target": "a100", "program": [program]})
    named = campaign.plan_of(campaign.parse([*words, str(folder / "rows.lax")]))
    expect(named, {"target": "auto", "program": [{"file": program["file"]}]})
    for text, said in [("budget = \n", "plan.toml: "), ('target = "a100"\n', "[[program]]"), ("[[program]]\nfile = 3\n", "`file`")]:
        (folder / "plan.toml").write_text(text)
        fails(said, lambda: campaign.plan_of(campaign.parse([*words, "--plan", str(folder / "plan.toml")])))
    (folder / "rows.lax").unlink()
    fails("rows.lax", lambda: campaign.check(binary, own, folder))


def runs_have_folders_of_their_own_and_are_done_once(binary: Path, folder: Path) -> None:
    arguments = campaign.parse(["--binary", str(binary), "--plan", str(written(folder)), "--budget", "4s", "--rounds", "3"])
    plan, timer, run = campaign.plan_of(arguments), Timer(), folder / "run"
    found = campaign.two_gpus(arguments, plan, timer, run, 7)
    jobs = ["rows-i1", "rows-i3"]
    for name, budget in [("one", 4.0), ("two", 2.2), ("again", 2.2)]:
        expect(sorted(found[name]["jobs"]), jobs)
        expect((found[name]["exit"], found[name]["timed"]), (0, 0))
        expect({(job["us"] > 0, job["verified"], job["weight"]) for job in found[name]["jobs"].values()}, {(True, False, 2.5)})
        text = tomllib.loads((run / name / "plan.toml").read_text())
        expect((text["seed"], campaign.seconds_of(text["budget"])), (7, budget))
        if not any((run / name / "cache").iterdir()):
            raise AssertionError(f"{name} has another's cache")
    if not (run / "two/kernels.sqlite").exists() or (run / "again/kernels.sqlite").exists():
        raise AssertionError("the third run has to have the second one's database")
    for asked, job in zip(timer.asked, jobs, strict=True):
        expect(asked, {"first": str(run / "one/best-one" / job), "second": str(run / "two/best-two" / job), "rounds": 3})
    expect(found["timed_again"], 0)
    expect(found["summary"]["weighted_us"], [50.0, 51.0])
    # Where all is done nothing is started.
    arguments.binary = folder / "none"
    expect(campaign.two_gpus(arguments, plan, timer, run, 7), found)
    expect(len(timer.asked), 2)
    # Beside it the even division: what there is of the campaign is taken.
    arguments.binary = binary
    even = campaign.against_even(arguments, plan, timer, run, 7)
    expect(even["one"], found["one"])
    expect({tuple(job) for job in even["even"]["jobs"].values()}, {("wall_seconds",)})
    expect(timer.asked[-1]["first"], str(run / "even/best-even/rows-i3"))
    expect(timer.asked[-1]["second"], str(run / "one/best-one/rows-i3"))
    arguments.binary = folder / "none"
    expect(campaign.against_even(arguments, plan, timer, run, 7), even)


def what_is_cut_short_is_begun_anew(binary: Path, folder: Path) -> None:
    plan = campaign.plan_of(campaign.parse(["--binary", str(binary), "--plan", str(written(folder))]))
    liar = folder / "liar"
    liar.write_text("#!/bin/sh\necho of no use >&2\nexit 5\n")
    liar.chmod(0o755)
    fails("exit code 5: of no use", lambda: campaign.campaign(liar, folder / "one", plan, 1, 4.0, 1))
    expect((folder / "one/done.json").exists(), False)
    (folder / "one/campaign").mkdir()
    (folder / "one/campaign/left").write_text("")
    expect(campaign.campaign(binary, folder / "one", plan, 1, 4.0, 1)["exit"], 0)


def settings_belong_to_a_folder(binary: Path, folder: Path) -> None:
    words = ["--binary", str(binary), "--out", str(folder / "out")]
    arguments = campaign.parse(words)
    plan = campaign.plan_of(arguments)
    campaign.settle(arguments, plan)
    campaign.settle(arguments, plan)
    fails("another budget:", lambda: campaign.settle(campaign.parse([*words, "--budget", "3m"]), plan))
    fails("another plan:", lambda: campaign.settle(arguments, {**plan, "first": "3s"}))
    (folder / "other").mkdir()
    (folder / "other/thesis.txt").write_text("")
    fails("holds something else", lambda: campaign.settle(campaign.parse([*words, "--out", str(folder / "other")]), plan))


def results_are_summed_up(_binary: Path, _folder: Path) -> None:
    one = {"budget_seconds": 3.0, "state": "ended", "attempts": 1, "pid": None, "seconds": 3.5, "trials": 40, "recalled": 0, "reason": None}
    lost = {**one, "state": "lost", "seconds": None, "trials": None, "reason": "SIGSEGV"}
    common = {"program_hash": "0", "target": "h100", "weight": 2.0, "state": "done", "curve": [], "seal": None, "timed_on": None, "stale": False, "artifact": "a"}
    status = {
        "spent_seconds": 9.5,
        "jobs": [
            {**common, "name": "a", "slices": [one, {**one, "trials": 2}], "us": 3.0, "verified": True, "reason": None},
            {**common, "name": "b", "slices": [lost], "us": None, "verified": None, "reason": "SIGSEGV"},
        ],
    }
    found = campaign.jobs_of(status)
    expect((found["spent_seconds"], list(found["jobs"])), (9.5, ["a", "b"]))
    both = {"target": "h100", "weight": 2.0}
    expect(found["jobs"]["a"], {**both, "us": 3.0, "verified": True, "reason": None, "slices": 2, "seconds": 7.0, "trials": 42})
    expect(found["jobs"]["b"], {**both, "us": None, "verified": None, "reason": "SIGSEGV", "slices": 1, "seconds": 0, "trials": 0})
    pairs = {
        "a": {"first_us": 10.0, "second_us": 10.2, "ratio": 1.02},
        "b": {"first_us": 20.0, "second_us": 10.0, "ratio": 0.5},
        "c": {"first_us": 10.0, "second_us": 11.0, "ratio": 1.1},
        "d": {"error": "it faults"},
    }
    jobs = {"a": {"weight": 1}, "b": {"weight": 2}, "c": {"weight": 3}, "d": {"weight": 4}}
    found = campaign.summary(pairs, jobs)
    expect((found["of"], found["compared"], found["missing"]), (4, 3, ["d"]))
    expect((found["within_3%"], found["no_more_than_3%_slower"]), (1, 2))
    expect((found["worst"], found["weighted_us"]), ({"job": "c", "ratio": 1.1}, [80.0, 63.2]))
    expect(campaign.summary({"d": pairs["d"]}, jobs)["weighted_ratio"], None)
    whole = {"summary": {"missing": []}, "timed_again": 0}
    for run, fine in [(whole, True), ({**whole, "timed_again": 1}, False), ({"summary": {"missing": ["d"]}}, False)]:
        expect(campaign.is_fine(run), fine)


def pairs_without_an_artifact_are_told(_binary: Path, folder: Path) -> None:
    for name in ("first/a", "second/a", "second/b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    timer, path = Timer(), folder / "pairs.json"
    found = campaign.compared(timer, folder / "first", folder / "second", {"a": {}, "b": {}}, path, 3)
    expect((found["a"], found["b"]), (PAIR, {"error": f"no artifact in {folder / 'first'}"}))
    expect(json.loads(path.read_text()), found)
    # What failed is tried again.
    (folder / "first/b").mkdir()
    (folder / "first/b/__init__.py").write_text("")
    expect(campaign.compared(timer, folder / "first", folder / "second", {"a": {}, "b": {}}, path, 3)["b"], PAIR)
    expect(len(timer.asked), 2)


CASES = [
    wrong_arguments_are_refused,
    machines_with_too_few_gpus_are_refused,
    plans_are_what_the_command_line_reads,
    runs_have_folders_of_their_own_and_are_done_once,
    what_is_cut_short_is_begun_anew,
    settings_belong_to_a_folder,
    results_are_summed_up,
    pairs_without_an_artifact_are_told,
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    binary = parser.parse_args().binary.resolve()
    failed = 0
    for case in CASES:
        try:
            with tempfile.TemporaryDirectory() as folder:
                case(binary, Path(folder).resolve())
        except Exception:  # the others are checked all the same
            failed += 1
            print(f"FAILED {case.__name__}")
            traceback.print_exc(file=sys.stdout)
    print(f"{len(CASES) - failed} of {len(CASES)} checks of bench/campaign.py passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
