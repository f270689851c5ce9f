"""Workers of a campaign as actors of Ray: one for each GPU of its cluster, or so many without one. The journal is on a PostgreSQL server.

`python -m tilewright.ray postgres://USER@HOST/DATABASE` does it from a shell. Each actor runs the command line's `campaign join` on its machine, with the GPU
that Ray gives it; the package has to be installed on each, with the extra `ray` where this is called. What is found is in the journal. Ray only places the workers: an actor
that is lost is not started anew, and its slice is another one's.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from tilewright._native import TilewrightError
from tilewright.command import path


@dataclass(frozen=True)
class Said:
    """What a worker said."""

    worker: int
    """Its number."""
    host: str
    """Its machine."""
    line: str
    """A line: what was found, with its time; or, where `lost`, why there is no such worker any more."""
    lost: bool = False


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


class _Worker:
    """Runs where Ray puts it."""

    def run(self, number: int, url: str, password: str | None, gpu: bool, options: list[str]) -> Iterator[Said]:
        host = socket.gethostname()
        # What is found is in the journal: nothing of this folder is needed behind the end.
        folder = tempfile.mkdtemp(prefix="tilewright-ray-")
        environment = {"VIRTUAL_ENV": sys.prefix} | os.environ
        if password is not None:
            environment["PGPASSWORD"] = password
        words = [str(path()), "campaign", "join", url, "-o", f"{folder}/campaign", "--until-input-ends", *options]
        if not gpu:
            words.append("--no-gpu")
        try:
            with subprocess.Popen(
                words,
                env=environment,
                # It ends with this process, however that ends.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                last = ""
                for line in process.stderr or ():
                    last = line.rstrip("\n")
                    yield Said(number, host, last)
            if process.returncode != 0:
                yield Said(number, host, f"exit code {process.returncode}: {last}", lost=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def work(url: str, workers: int | None = None, gpu: bool = True, options: list[str] | None = None) -> Iterator[Said]:
    """Works on a campaign until nothing is left to do, and gives what workers say, as they say it.

    `url` is the address of the campaign's journal, which `tilewright campaign plan --journal` makes. There is a worker for each GPU of Ray's cluster, or `workers`; with `gpu=False` there are
    `workers`, or one for each processor, and what is found is simulated. `options` are further ones of `campaign join`. Ray is started on this machine where it is not yet.

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
    actor = ray.remote(num_cpus=1, num_gpus=1 if gpu else 0)(_Worker)
    actors = [actor.remote() for _ in range(count)]
    # The generators of actors that are there, by their workers' numbers.
    saying = {a.run.options(num_returns="streaming").remote(n, shown, password, gpu, options or []): n for n, a in enumerate(actors)}
    lost: list[str] = []
    try:
        while saying:
            ready, _ = ray.wait(list(saying), num_returns=1)
            for generator in ready:
                number = saying[generator]
                try:
                    said = ray.get(next(generator))
                except StopIteration:
                    del saying[generator]
                    continue
                except ray.exceptions.RayError as error:
                    del saying[generator]
                    said = Said(number, "", str(error).splitlines()[0], lost=True)
                if said.lost:
                    lost.append(said.line)
                yield said
    finally:
        for one in actors:
            ray.kill(one)
    if len(lost) == count:
        raise TilewrightError(f"no worker could do anything; the last: {lost[-1]}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tilewright.ray", description="Works on a campaign with the GPUs of a Ray cluster.")
    parser.add_argument("url", help="the address of its journal: postgres://USER@HOST/DATABASE")
    parser.add_argument("--workers", type=int, help="how many actors there are [default: one for each GPU, or for each processor with --no-gpu]")
    parser.add_argument("--no-gpu", action="store_true", help="uses no GPU: what is found is simulated")
    words = parser.parse_args()
    try:
        for said in work(words.url, words.workers, gpu=not words.no_gpu):
            print(f"{said.host} {said.worker}: {said.line}", flush=True)
        shown, password = _apart(words.url)
        environment = os.environ if password is None else os.environ | {"PGPASSWORD": password}
        sys.exit(subprocess.run([path(), "campaign", "status", shown], env=environment, check=False).returncode)
    except TilewrightError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
