"""The exceptions that are raised by Python code; the native module has the others."""

from dataclasses import dataclass

from tilewright._native import TilewrightError


@dataclass(frozen=True)
class Unsupported:
    """One operation that was not imported."""

    node: str
    operation: str
    reason: str
    source: str | None

    def __str__(self) -> str:
        where = f"\n    {self.source}" if self.source else ""
        return f"{self.node} = {self.operation}: {self.reason}{where}"


class UnsupportedError(TilewrightError):
    """A function that the language cannot say in full: `operations` holds each operation that it cannot."""

    def __init__(self, operations: list[Unsupported]) -> None:
        self.operations = operations
        lines = "\n".join(f"  {operation}" for operation in operations)
        super().__init__(f"{len(operations)} operation{'s' * (len(operations) != 1)} cannot be imported:\n{lines}")


class MismatchError(TilewrightError):
    """An imported program that computes something else than what it was imported from: a fault of the importer."""
