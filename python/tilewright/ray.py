"""Workers of a campaign as actors of Ray: one for each GPU of its cluster, or so many without one. The journal is on a PostgreSQL server.

`python -m tilewright.ray postgres://USER@HOST/DATABASE` does it from a shell. Each actor runs the command line's `campaign join` on its machine, with the
GPU that Ray gives it; the package has to be installed on each, with the extra `ray` where this is called. What is found is in the journal. Ray only places
the workers. One that is lost is started anew, with the same number, in an actor of its own.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from tilewright._native import TilewrightError
from tilewright.command import path

_SOON = 5.0
"""Who is lost within so many seconds of its start did nothing."""
_MOST = 5
"""Who is lost so soon so often in a row is given up."""
_LOOK = 2.0
"""So many seconds without a word, until it is asked whether there is still something to do."""
_ROOM = 30.0
"""Who has no place after so many seconds is said to wait for one."""
_PREFIX = "tilewright-ray-"
"""How the names of workers' folders begin."""


@dataclass(frozen=True)
class Said:
    """What a worker said."""

    worker: int
    """Its number."""
    host: str
    """Its machine."""
    line: str
    """A line: what was found, with its time; that it waits for a place; or, where `lost`, why the worker ended, and whether it is given up."""
    lost: bool = False


@dataclass(frozen=True)
class _Word:
    """What comes from an actor."""

    said: Said
    begins: bool = False
    """It only says that the worker begins."""
    killed: bool = False
    """The worker was lost by a signal: another one may do better."""


def _apart(url: str) -> tuple[str, str | None]:
    """An address without its password, and the password: arguments can be read by everybody on a machine."""
    if not url.startswith(("postgres://", "postgresql://")):
        raise TilewrightError("expected the address of a journal such as postgres://USER@HOST/DATABASE, found something else")
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    # It may stand behind the database's name as well.
    options = parts.query.split("&") if parts.query else []
    named = [option.removeprefix("password=") for option in options if option.startswith("password=")]
    rest = "&".join(option for option in options if not option.startswith("password="))
    password = next((text for text in [*named, password] if text), None)
    return urlunsplit(parts._replace(netloc=name + at + host, query=rest)), unquote(password) if password else None


def _locked(folder: str | Path, how: int) -> int:
    """Opens a folder, and locks it where its file system can."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, how)
    except OSError:
        if how & fcntl.LOCK_NB:
            os.close(held)
            raise
    return held


def _made() -> tuple[Path, int]:
    """A new folder, and a descriptor that locks it as long as a process has it. Removes those whose processes were all killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # One that is in use, or another user's, stays.
        with contextlib.suppress(OSError):
            held = _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Before it is locked another process may take it for one of those.
        with contextlib.suppress(FileNotFoundError):
            held = _locked(folder, fcntl.LOCK_EX)
            if folder.exists():
                return folder, held
            os.close(held)


@contextlib.contextmanager
def _folder() -> Iterator[tuple[Path, int]]:
    """A folder for a worker, as `_made`."""
    folder, held = _made()
    try:
        yield folder, held
    finally:
        # What is found is in the journal: nothing of this folder is needed behind the end.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


class _Worker:
    """Runs where Ray puts it."""

    def run(self, number: int, url: str, password: str | None, gpu: bool, options: list[str]) -> Iterator[_Word]:
        host = socket.gethostname()
        yield _Word(Said(number, host, ""), begins=True)
        environment = {"VIRTUAL_ENV": sys.prefix} | _environment(password)
        with _folder() as (folder, held):
            words = [str(path()), "campaign", "join", url, "-o", f"{folder}/campaign", "--until-input-ends", *options]
            if not gpu:
                words.append("--no-gpu")
            with subprocess.Popen(
                words,
                env=environment,
                # It ends with this process, however that ends.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=[held],
            ) as process:
                last = ""
                for line in process.stderr or ():
                    last = line.rstrip("\n")
                    yield _Word(Said(number, host, last))
        code = process.returncode
        if code < 0:
            yield _Word(Said(number, host, f"signal {-code}", lost=True), killed=True)
        elif code > 0:
            yield _Word(Said(number, host, f"exit code {code}: {last}", lost=True))


@dataclass
class _Place:
    """A worker's: it has one actor after the other."""

    number: int
    host: str = ""
    """The machine of the last one that began."""
    actor: Any = None
    asked: float = 0.0
    """When Ray was asked for it."""
    begun: float | None = None
    """When it began; Ray may have no room for it yet."""
    waits: bool = False
    """Whether that was said."""
    starts: int = 0
    early: int = 0
    """So many in a row were lost soon."""


class _Crew:
    """The workers of a campaign.

    Ray would start actors anew itself (`max_restarts`). But it tells nobody, and where a task that gives one value after another is repeated
    (`max_task_retries`) it leaves out as many as came before: the second actor would not be heard. So each start is an actor.
    """

    def __init__(self, ray: ModuleType, url: str, password: str | None, gpu: bool, options: list[str]) -> None:
        self.ray = ray
        self.site = (url, password)
        self.arguments = (url, password, gpu, options)
        self.kind = ray.remote(num_cpus=1, num_gpus=1 if gpu else 0)(_Worker)
        self.needs = "a processor and a GPU" if gpu else "a processor"
        self.saying: dict[Any, _Place] = {}
        """The places of actors that are there, by what these say."""
        self.failed: list[str] = []
        """Why workers ended that could do nothing."""
        self.has_begun = False
        """Whether any of them did."""

    def start(self, place: _Place) -> None:
        place.actor, place.starts = self.kind.remote(), place.starts + 1
        place.asked, place.begun, place.waits = time.monotonic(), None, False
        generator = place.actor.run.options(num_returns="streaming").remote(place.number, *self.arguments)
        self.saying[generator] = place

    def end(self) -> None:
        """Ends all that there are."""
        for place in self.saying.values():
            self.ray.kill(place.actor)
        self.saying.clear()

    def hear(self) -> Iterator[Said]:
        """What is said next, if it is said soon."""
        ready, _ = self.ray.wait(list(self.saying), num_returns=1, timeout=_LOOK)
        for generator in ready:
            place = self.saying[generator]
            try:
                word = self.ray.get(next(generator))
            except StopIteration:
                self.leave(generator)
            except self.ray.exceptions.RayError as error:
                # A fault of the worker's own would come again.
                killed = not isinstance(error, self.ray.exceptions.RayTaskError)
                yield self.lose(generator, Said(place.number, place.host, _reason(error), lost=True), killed)
            else:
                place.host = word.said.host
                if word.begins:
                    place.begun, self.has_begun = time.monotonic(), True
                elif word.said.lost:
                    yield self.lose(generator, word.said, word.killed)
                else:
                    yield word.said
        for place in self.saying.values():
            if place.begun is None and not place.waits and time.monotonic() - place.asked > _ROOM:
                place.waits = True
                yield Said(place.number, place.host or "ray", f"waits for {self.needs}: nothing in Ray's cluster is free that it could have")
        # Those that Ray has no room for need not come where the others ended and nothing is left to do.
        nobody_works = all(place.begun is None for place in self.saying.values())
        if not ready and self.has_begun and nobody_works and _is_over(*self.site):
            self.end()

    def leave(self, generator: Any) -> _Place:
        place = self.saying.pop(generator)
        self.ray.kill(place.actor)
        return place

    def lose(self, generator: Any, said: Said, killed: bool) -> Said:
        """A worker ended before its time: it is started anew where that may help. Gives what is to be said."""
        place = self.leave(generator)
        if not killed:
            # The campaign may have come to its end while the worker was started anew, which then is refused.
            if place.starts == 1 or not _is_over(*self.site):
                self.failed.append(said.line)
            return said
        is_early = place.begun is None or time.monotonic() - place.begun < _SOON
        place.early = place.early + 1 if is_early else 0
        if place.early == _MOST:
            said = replace(said, line=f"{said.line}; given up: it was lost {_MOST} times in a row within {_SOON:g} s of its start")
            self.failed.append(said.line)
        elif not _is_over(*self.site):
            self.start(place)
        return said


def _reason(error: Exception) -> str:
    """Ray's reason, without what it tells of its identifiers, of traces and of possible causes."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].split(" Some common causes")[0]


def _environment(password: str | None) -> dict[str, str]:
    return dict(os.environ) if password is None else os.environ | {"PGPASSWORD": password}


def _is_over(url: str, password: str | None) -> bool:
    """Whether nothing is left to do, or nobody should: not where that cannot be known."""
    words = [path(), "campaign", "status", url, "--json"]
    found = subprocess.run(words, env=_environment(password), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if found.returncode != 0:
        return False
    report = json.loads(found.stdout)
    is_spent = report["spent_seconds"] >= report["budget_seconds"]
    return report["stopping"] or is_spent or all(job["state"] in ("done", "given up") for job in report["jobs"])


def work(url: str, workers: int | None = None, gpu: bool = True, options: list[str] | None = None) -> Iterator[Said]:
    """Works on a campaign until nothing is left to do, and gives what workers say, as they say it.

    `url` is the address of the campaign's journal, which `tilewright campaign plan --journal` makes. There is a worker for each GPU of Ray's cluster, or
    `workers`; with `gpu=False` there are `workers`, or one for each processor, and what is found is simulated. `options` are further ones of
    `campaign join`. Ray is started on this machine where it is not yet.

    A worker that is lost with its process, its actor or its machine is said to be lost, and started anew as long as there is something to do. It is given
    up when that happened five times in a row within seconds of its start, and at once where it ends with an exit code: it would do so again. One for which
    Ray has no room for half a minute is said to wait.

    Raises `TilewrightError` where Ray is not installed, there is no GPU, the address is none, or no worker could do anything.
    """
    try:
        import ray
    except ImportError:
        raise TilewrightError("expected Ray beside the package, found none: install the package with its extra `ray`") from None

    shown, password = _apart(url)
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    resource = "GPU" if gpu else "CPU"
    count = workers if workers is not None else int(ray.cluster_resources().get(resource, 0))
    if count < 1:
        raise TilewrightError(f"expected at least one worker, found {count}: Ray's cluster has no {resource}; gpu=False simulates")
    crew = _Crew(ray, shown, password, gpu, options or [])
    try:
        for number in range(count):
            crew.start(_Place(number))
        while crew.saying:
            yield from crew.hear()
    finally:
        crew.end()
    if len(crew.failed) == count:
        raise TilewrightError(f"no worker could do anything; the last: {crew.failed[-1]}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tilewright.ray", description="Works on a campaign with the GPUs of a Ray cluster.")
    parser.add_argument("url", help="the address of its journal: postgres://USER@HOST/DATABASE")
    parser.add_argument("--workers", type=int, help="how many actors there are [default: one for each GPU, or for each processor with --no-gpu]")
    parser.add_argument("--no-gpu", action="store_true", help="uses no GPU: what is found is simulated")
    words = parser.parse_args()
    try:
        for said in work(words.url, words.workers, gpu=not words.no_gpu):
            print(f"{said.host} {said.worker}: {'lost: ' if said.lost else ''}{said.line}", flush=True)
        shown, password = _apart(words.url)
        sys.exit(subprocess.run([path(), "campaign", "status", shown], env=_environment(password), check=False).returncode)
    except TilewrightError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
