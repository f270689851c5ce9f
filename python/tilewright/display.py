"""What a search shows while it runs: in a notebook an output that changes, on a terminal a line of `rich` where that is installed and plain lines
otherwise, or what a callback does with it."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tilewright.search import Progress


class Display(Protocol):
    """Who is told of a search, some times a second."""

    def update(self, progress: "Progress") -> None: ...

    def remark(self, text: str) -> None: ...


def of(progress: "bool | Callable[[Progress], None] | None") -> contextlib.AbstractContextManager[Display]:
    """The display that was asked for."""
    if callable(progress):
        return contextlib.nullcontext(_Callback(progress))
    notebook = _is_notebook()
    if progress is None:
        progress = sys.stderr.isatty() or notebook
    if not progress:
        return contextlib.nullcontext(_Silent())
    if notebook:
        return contextlib.nullcontext(_Cell())
    try:
        return _rich()
    except ImportError:
        return contextlib.nullcontext(_Lines())


def _is_notebook() -> bool:
    """Whether cells run in a kernel of IPython's."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _said(progress: "Progress") -> str:
    return f"{progress.stage or 'starting'}: {progress.candidates} candidates, {progress.rejected} rejected, {progress.best}"


class _Silent:
    def update(self, progress: "Progress") -> None: ...

    def remark(self, text: str) -> None: ...


class _Callback(_Silent):
    def __init__(self, call: "Callable[[Progress], None]") -> None:
        self.update = call  # type: ignore[method-assign, assignment]


class _Lines:
    """A line for each improvement."""

    def __init__(self) -> None:
        self._best = ""

    def update(self, progress: "Progress") -> None:
        if progress.us is not None and progress.best != self._best:
            self._best = progress.best
            print(f"after {progress.seconds:.1f} s: {progress.best}", file=sys.stderr)

    def remark(self, text: str) -> None:
        print(f"note: {text}", file=sys.stderr)


class _Cell:
    """An output of the cell that is written anew. It needs no widgets, which `rich` would."""

    def __init__(self) -> None:
        from IPython.display import display

        self._output = display({"text/plain": "starting"}, raw=True, display_id=True)

    def update(self, progress: "Progress") -> None:
        self._output.update({"text/plain": f"{progress.seconds:.0f} s {_said(progress)}"}, raw=True)

    def remark(self, text: str) -> None:
        print(f"note: {text}")


def _rich() -> contextlib.AbstractContextManager[Display]:
    from rich.console import Console
    from rich.status import Status

    class Line:
        def __init__(self, status: Status) -> None:
            self._status = status

        def update(self, progress: "Progress") -> None:
            self._status.update(f"{progress.seconds:.0f} s {_said(progress)}")

        def remark(self, text: str) -> None:
            self._status.console.print(f"note: {text}", markup=False, highlight=False)

    @contextlib.contextmanager
    def line() -> Iterator[Display]:
        # Results are for standard output.
        console = Console(stderr=True)
        with Status("starting", console=console) as status:
            yield Line(status)

    return line()
