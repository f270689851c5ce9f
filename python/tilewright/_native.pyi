"""The native module: what `tilewright` wraps."""

import os
from collections.abc import Mapping, Sequence

__version__: str

class TilewrightError(Exception):
    """What this package refuses, or fails at."""

class ProgramError(TilewrightError):
    """A text is no program; the message shows each fault in it."""

class EvalError(TilewrightError):
    """A program cannot be evaluated on these arrays, or at these extents."""

class SearchError(TilewrightError):
    """A search was refused, or found nothing that passes the checks."""

class GpuError(SearchError):
    """There is no GPU where one is needed, or it cannot be used."""

class BudgetError(SearchError):
    """The budget does not suffice; the message says which would."""

class ArtifactError(TilewrightError):
    """An artifact cannot be put there."""

def targets() -> list[str]:
    """The names of the GPUs that can be optimised for."""

def taken(name: str) -> str | None:
    """What a name that neither an axis nor a value can have is taken by."""

_Declared = tuple[str, str, list[list[str]], list[int]]

class Program:
    @staticmethod
    def parse(text: str, file: str) -> Program: ...
    @staticmethod
    def read_text(path: str) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def axes(self) -> list[tuple[str, int]]: ...
    @property
    def parameters(self) -> list[_Declared]: ...
    @property
    def outputs(self) -> list[_Declared]: ...
    def operations(self) -> int: ...
    def eval(self, inputs: Sequence[tuple[Sequence[int], bytes]]) -> list[tuple[list[int], bytearray]]: ...

class Search:
    def __init__(
        self,
        program: Program,
        *,
        target: str,
        budget: str,
        seed: int,
        gpus: int,
        log: tuple[bool, str | None],
        worker: os.PathLike[str],
        variables: Mapping[str, str],
    ) -> None: ...
    def wait(self, seconds: float) -> bool: ...
    def stop(self) -> None: ...
    def progress(self) -> tuple[str, int, int, tuple[str, float, bool, int] | None]: ...
    def remarks(self) -> list[str]: ...
    def result(self) -> Found | None: ...

class Found:
    @property
    def cuda(self) -> str: ...
    def report(self) -> str: ...
    def save(self, folder: str, force: bool) -> None: ...
