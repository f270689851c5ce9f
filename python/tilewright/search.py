"""The search: from a program to its fastest verified kernels."""

import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright import _native, command, display
from tilewright.program import Program

GRACE = 3.5
"""Seconds that a search is waited for which was asked to end; then the last that it held is the result."""


@dataclass(frozen=True)
class Progress:
    """How far a search is."""

    seconds: float
    stage: str
    candidates: int
    """Tile programs looked at so far."""
    rejected: int
    state: str | None
    """Of the best so far: `simulated` or `verified`. Nothing while nothing was found."""
    us: float | None
    """Its time in microseconds: measured, or by the model."""
    measured: bool
    kernels: int | None

    @property
    def best(self) -> str:
        """The best so far, in some words."""
        if self.us is None:
            return "nothing found yet"
        model = "" if self.measured else " by the model"
        return f"{self.state}, {self.us:.1f} us{model}, {self.kernels} kernel{'s' * (self.kernels != 1)}"


@dataclass(frozen=True)
class Measured:
    """A time of one call in microseconds."""

    warm: float
    """With the inputs in L2, if they fit."""
    cold: float


@dataclass(frozen=True)
class Kernel:
    """What the model says of one kernel."""

    predicted_us: float
    flops: int
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Report:
    """What a search found, and what is known of it."""

    program: str
    target: str
    state: str
    """`verified`: the kernels ran on a GPU of the target's kind, and their results were compared. `simulated`: they never ran; their tile program was
    interpreted and is right."""
    search: str
    """`ended`, or `interrupted`."""
    seed: int
    seconds: float
    candidates: int
    rejected: dict[str, int]
    """How many points are no candidates, by reason."""
    kernels: tuple[Kernel, ...]
    predicted_us: float
    measured_us: Measured | None
    """Nothing where no GPU of the target's kind was used."""
    compiled: bool
    """Whether there is machine code; without NVRTC there is none."""
    evidence: tuple[str, ...]
    """What was checked, a sentence each."""
    remarks: tuple[str, ...]
    plan: str
    schedule: str
    raw: dict[str, Any] = field(repr=False)
    """Everything that the command line's `optimize --json` says."""

    def __str__(self) -> str:
        best = f"{len(self.kernels)} kernel{'s' * (len(self.kernels) != 1)}, {self.predicted_us:.1f} us by the model"
        if self.measured_us:
            best += f"; measured {self.measured_us.warm:.1f} us warm, {self.measured_us.cold:.1f} us cold"
        lines = [
            f"{self.program} for {self.target}: {self.state}{'' if self.state == 'verified' else ', never ran on a GPU'}; "
            f"{self.candidates} candidates in {self.seconds:.1f} s; seed {self.seed}{'' if self.search == 'ended' else '; the search was ended early'}",
            f"best: {best}",
            *(f"{self.state}: {claim}" for claim in self.evidence),
            *(f"note: {remark}" for remark in self.remarks),
        ]
        return "\n".join(lines)

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> "Report":
        best = raw["best"]
        measured = best["measured_us"]
        return cls(
            program=raw["program"],
            target=raw["target"],
            state=raw["state"],
            search=raw["search"],
            seed=raw["seed"],
            seconds=raw["search_seconds"],
            candidates=raw["candidates"],
            rejected=raw["rejected"],
            kernels=tuple(Kernel(**kernel) for kernel in best["by_kernel"]),
            predicted_us=best["predicted_us"],
            measured_us=Measured(measured["warm"], measured["cold"]) if measured else None,
            compiled=best["compiled"],
            evidence=tuple(best["claims"]),
            remarks=tuple(raw["remarks"]),
            plan=best["plan"],
            schedule=best["schedule"],
            raw=raw,
        )


class Optimized:
    """The fastest kernels that a search found for a program, and what was checked of them."""

    def __init__(self, program: Program, found: _native.Found) -> None:
        self.program = program
        self.report = Report._of(json.loads(found.report()))
        self._found = found

    @property
    def cuda(self) -> str:
        """The CUDA text of the kernels."""
        return self._found.cuda

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes the artifact: a folder that PyTorch imports, the same that the command line writes.

        It is put into nothing, an empty folder, or in the stead of an artifact of the same program and target; with `force`, of any artifact. What
        is no artifact is never replaced. Raises `ArtifactError`.
        """
        self._found.save(os.fspath(folder), force)

    def __repr__(self) -> str:
        return f"<Optimized {self.report.program} for {self.report.target}: {self.report.state}, {len(self.report.kernels)} kernels>"


def optimize(
    program: Program,
    *,
    target: str = "auto",
    budget: str | float = "30s",
    seed: int | None = None,
    gpu: bool | int = True,
    log: bool | str | os.PathLike[str] = True,
    progress: bool | Callable[[Progress], None] | None = None,
) -> Optimized:
    """Searches the fastest kernels for a program, and verifies them.

    `target` is the GPU to optimise for, one of `targets()`, or `"auto"` for the one in this machine. `budget` is a time such as `"90s"` or `"1h30m"`,
    or seconds. `seed` is that of the drawn inputs; another one each time where it is not given. `gpu=False` uses no GPU: what is found is simulated;
    a number is the most GPUs that time. What is timed on a GPU is added to the user's log, to the database `log`, or with `False` to none.

    `progress` is called some times a second, by this thread; `True` shows a line, `False` nothing, and `None` a line where somebody can see it.
    An exception that it raises ends the search and goes on to the caller.

    Ctrl-C ends the search, and the best so far is the result; where there is none yet, or at a second Ctrl-C, `KeyboardInterrupt` is raised. Raises
    `SearchError`, `GpuError` or `BudgetError`.
    """
    if not isinstance(program, Program):
        raise TypeError(f"expected a tilewright.Program, found {type(program).__name__}")
    native = _native.Search(
        program._native,
        target=target,
        budget=_budget(budget),
        seed=_seed(seed),
        gpus=_gpus(gpu),
        log=_log(log),
        worker=command.path(),
        # NVRTC may be in the environment of this interpreter, activated or not.
        variables={"VIRTUAL_ENV": sys.prefix, **os.environ},
    )
    begun = time.monotonic()
    with display.of(progress) as show:
        asked = None  # since when the search is asked to end
        while True:
            try:
                if native.wait(0.1) or (asked is not None and time.monotonic() > asked + GRACE):
                    break
                _tell(native, begun, show)
            except KeyboardInterrupt:
                native.stop()
                if asked is not None:
                    raise
                asked = time.monotonic()
            except BaseException:
                native.stop()
                raise
        _tell(native, begun, show)
    found = native.result()
    if found is None:
        raise KeyboardInterrupt("the search was ended before anything was held")
    return Optimized(program, found)


def _tell(native: _native.Search, begun: float, show: display.Display) -> None:
    for remark in native.remarks():
        show.remark(remark)
    stage, candidates, rejected, best = native.progress()
    state, us, measured, kernels = best or (None, None, False, None)
    show.update(Progress(time.monotonic() - begun, stage, candidates, rejected, state, us, measured, kernels))


def _budget(budget: str | float) -> str:
    if isinstance(budget, str):
        return budget
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not math.isfinite(budget) or budget <= 0:
        raise ValueError(f"budget: expected a time such as '90s', or seconds, found {budget!r}")
    return f"{budget:.9f}s"


def _seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbits(32)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise ValueError(f"seed: expected a whole number from 0 to 2**64 - 1, found {seed!r}")
    return seed


def _gpus(gpu: bool | int) -> int:
    if isinstance(gpu, bool):
        return (1 << 32) - 1 if gpu else 0
    if not isinstance(gpu, int) or not 1 <= gpu < 1 << 32:
        raise ValueError(f"gpu: expected True, False, or how many GPUs time at most, found {gpu!r}")
    return gpu


def _log(log: bool | str | os.PathLike[str]) -> tuple[bool, str | None]:
    if isinstance(log, bool):
        return log, None
    return True, os.fspath(log)
