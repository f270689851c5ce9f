"""A campaign on a real Ray, with a PostgreSQL server of the test's own where its programs are installed."""

import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest
import tilewright
from tilewright.command import path
from tilewright.ray import Said

PAGE = Path(__file__).parents[2] / "docs" / "campaigns.md"
PASSWORD = "s3cret:of@ann"
ROWS = "program rows\naxis i = 2, j = 16\nx = parameter f32 [i, j]\nreturn f32 [i] sum(x; j)\n"
PLAN = """\
budget = "2m"
first = "2s"
target = "h200"
[[program]]
file = "rows.lax"
extents = { i = [2, 3, 4, 5, 6, 7, 8, 9] }
"""
# Slices of more than a second, which can be hit.
LONG_ROWS = """\
program rows
axis i = 2, j = 1024, k = 64
x = parameter f32 [i, k]
y = parameter f32 [j, k]
return f32 [i, j] softmax(dot(x, y; k); j)
"""
# The same where each kernel is timed in no time.
TIMED_ROWS = """\
program rows
axis i = 2, j = 128
x = parameter f32 [i, j]
return f32 [i, j] softmax(x; j)
"""


def _command(*words: str | Path) -> str:
    return subprocess.run([path(), "campaign", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def _database(port: int | None, name: str) -> str:
    """The address of a new database."""
    words = ["createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "ann", name]
    subprocess.run(words, env=os.environ | {"PGPASSWORD": PASSWORD}, stdin=subprocess.DEVNULL, check=True)
    return f"postgres://ann:s3cret%3Aof%40ann@127.0.0.1:{port}/{name}"


def _campaign(server: str, database: str, folder: Path, program: str, jobs: int, budget: str = "1h", first: str = "30s") -> str:
    """The address of a new campaign's journal, in a new database."""
    url = _database(urlsplit(server).port, database)
    folder.mkdir()
    (folder / "rows.lax").write_text(program)
    plan = (
        f'budget = "{budget}"\nfirst = "{first}"\nseed = 3\ntarget = "h200"\n[[program]]\nfile = "rows.lax"\nextents = {{ i = {list(range(2, 2 + jobs))} }}\n'
    )
    (folder / "plan.toml").write_text(plan)
    _command("plan", folder / "plan.toml", "-o", folder / "night", "--journal", url)
    return url


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a database."""
    programs = [shutil.which(name) for name in ("initdb", "pg_ctl", "createdb")]
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
    if None in programs or (user and shutil.which("setpriv") is None):
        if os.environ.get("TILEWRIGHT_REQUIRE_POSTGRES") == "1":
            raise FileNotFoundError("PostgreSQL's programs")
        pytest.skip("PostgreSQL's initdb, pg_ctl and createdb are missing")
    initdb, pg_ctl, _ = map(str, programs)
    folder = Path(tempfile.mkdtemp(prefix="server-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "password").write_text(PASSWORD)
    if user:
        for one in (folder, folder / "password"):
            shutil.chown(one, "nobody", "nogroup")
    data = folder / "data"
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    how = ["-U", "ann", f"--pwfile={folder / 'password'}", "-A", "scram-sha-256", "--no-locale", "--no-sync"]
    subprocess.run([*user, initdb, "-D", data, *how], **quiet, check=True)
    subprocess.run([*user, pg_ctl, "-D", data, "-w", "-o", f"-p {port} -h 127.0.0.1 -k '' -F", "start"], **quiet, check=True)
    try:
        yield _database(port, "night")
    finally:
        subprocess.run([*user, pg_ctl, "-D", data, "-m", "immediate", "stop"], **quiet, check=True)
        shutil.rmtree(folder)


def test_four_workers_of_ray_share_a_campaign(ray: ModuleType, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ray import work

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "rows.lax").write_text(ROWS)
    (tmp_path / "plan.toml").write_text(PLAN)

    _command("plan", "plan.toml", "-o", "night", "--journal", server)
    ray.init(num_cpus=4, num_gpus=0, log_to_driver=False, include_dashboard=False)
    try:
        with pytest.raises(tilewright.TilewrightError, match="no GPU"):
            list(work(server))
        said = list(work(server, workers=4, gpu=False))
        assert not [s for s in said if s.lost] and not [s for s in said if "s3cret" in s.line]
        # Several told of something, and together of every job.
        assert len({s.worker for s in said}) > 1
        found = [s.line for s in said]
        assert all(any(f" rows-i{i}: " in line for line in found) for i in range(2, 10)), found
        report = json.loads(_command("status", server, "--json"))
        assert [job["state"] for job in report["jobs"]] == ["done"] * 8
        assert report["running"] is False
        # Nothing is left to do: they end at once. A journal that is not there is said.
        assert list(work(server, workers=1, gpu=False)) == []
        lost = _said_until_none_is_left(server + "x", 2, "does not exist")
        assert sorted(s.worker for s in lost if s.lost) == [0, 1]
    finally:
        ray.shutdown()
    # As the page says it.
    commands = [line.split() for line in PAGE.read_text().splitlines() if line.startswith("python -m tilewright.ray ")]
    assert len(commands) == 1
    for _, *words, url in commands:
        assert url == "postgres://ann@db/night"
        done = subprocess.run([sys.executable, *words, server, "--no-gpu", "--workers", "1"], capture_output=True, text=True, check=True)
        assert "8 results of 8 jobs" in done.stdout and "s3cret" not in done.stdout + done.stderr
    assert not list(Path(tempfile.gettempdir()).glob("tilewright-ray-*"))


def test_what_is_killed_loses_the_trial_under_way_alone(
    ray: ModuleType, server: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four GPUs that pretend: the program of the tests that has them stands where the package has its own."""
    pretender = os.environ.get("TILEWRIGHT_PRETENDER")
    if not pretender:
        pytest.skip("TILEWRIGHT_PRETENDER does not say which program pretends to have a GPU")
    tmp_path = tmp_path_factory.mktemp("p")  # Ray's sockets need short names
    package = tmp_path / "packages" / "tilewright"
    shutil.copytree(Path(tilewright.__file__).parent, package)
    (package / "bin" / "tilewright").unlink()
    (package / "bin" / "tilewright").write_text(f'#!/bin/sh\nexec "{pretender}" "$@"\n')
    (package / "bin" / "tilewright").chmod(0o755)
    for name, at in {"PYTHONPATH": "packages", "TILEWRIGHT_TEST_NAME": "passes-all", "TMPDIR": "t", "XDG_DATA_HOME": "data", "XDG_CACHE_HOME": "cache"}.items():
        monkeypatch.setenv(name, str(tmp_path / at))
    (tmp_path / "t").mkdir()
    # Everything there is would take long to try: the budget ends it.
    jobs, kills = _jobs_and_kills()
    url = _campaign(server, "pretended", tmp_path / "campaign", TIMED_ROWS, jobs, f"{3 * kills + 40}s", "4s")
    ray.init(num_cpus=4, num_gpus=4, log_to_driver=False, include_dashboard=False)
    try:
        _is_killed(ray, url, tmp_path / "t", tmp_path / "output", [], ("done", "open"))
    finally:
        ray.shutdown()
    report = json.loads(_command("status", url, "--json"))
    assert all(job["verified"] for job in report["jobs"])
    words = [path(), "log", "--database", tmp_path / "data" / "tilewright" / "trials.sqlite", "--format", "jsonl"]
    log = [json.loads(line) for line in subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()]
    alone = [trial["key"] for trial in log if not trial["whole"]]
    assert alone and len(alone) == len(set(alone)), "timed twice"
    # No two times are equal, and each was written down before it was begun.
    begun = set((tmp_path / "passes-all.notes" / "begun").read_text().split())
    assert begun
    lost = begun - {f"{trial['measured']['warm']['median_us']:.8f}" for trial in log}
    # Who kills the driver kills all four workers.
    assert len(lost) <= kills // 4 * (3 + 4), len(lost)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ray with four processors, and the folder that its workers have theirs in."""
    import ray

    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TMPDIR", str(folder))
        environment.setenv("XDG_DATA_HOME", str(folder / "data"))
        ray.init(num_cpus=4, num_gpus=0, log_to_driver=False, include_dashboard=False)
        try:
            yield folder
        finally:
            ray.shutdown()


def _said_until_none_is_left(url: str, workers: int, why: str) -> list[Said]:
    """What workers say who can do nothing, of which no more than 20 is waited for."""
    from tilewright.ray import work

    said = []
    with pytest.raises(tilewright.TilewrightError, match=f"no worker could do anything.*{why}"):
        # What was said until then stays.
        said.extend(itertools.islice(work(url, workers=workers, gpu=False), 20))
    return said


def test_who_does_nothing_but_die_is_given_up(ray: ModuleType, cluster: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ray import _Word

    class Dies:
        def run(self, number: int, *_: object) -> Iterator[_Word]:
            yield _Word(Said(number, "here", ""), begins=True)
            os.kill(os.getpid(), signal.SIGKILL)

    url = _campaign(server, "given_up", tmp_path / "campaign", ROWS, 1)
    monkeypatch.setattr("tilewright.ray._Worker", Dies)
    said = _said_until_none_is_left(url, 1, "5 times in a row")
    assert [(s.worker, s.lost) for s in said] == [(0, True)] * 5
    assert all("worker process has died" in s.line for s in said)
    assert ["given up" in s.line for s in said] == [False] * 4 + [True]


def test_who_has_no_room_is_said_to_wait(ray: ModuleType, cluster: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ray import work

    url = _campaign(server, "room", tmp_path / "campaign", LONG_ROWS, 5)
    monkeypatch.setattr("tilewright.ray._ROOM", 3.0)
    said = list(work(url, workers=5, gpu=False))
    waiting = [s for s in said if "waits for a processor" in s.line]
    # Four have a processor each. Where they are slow to begin, more than the fifth may be said to wait, each once.
    assert 1 <= len(waiting) <= 5 and len({s.worker for s in waiting}) == len(waiting) and not any(s.lost for s in said)
    report = json.loads(_command("status", url, "--json"))
    assert [job["state"] for job in report["jobs"]] == ["done"] * 5


def _words(process: Path) -> list[str]:
    """What a process was started with; nothing of one that ended."""
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _is_actor(pid: int) -> bool:
    return any(word.startswith("ray::_Worker") for word in _words(Path(f"/proc/{pid}"))[:1])


class _Killed:
    """A campaign whose processes are killed: `python -m tilewright.ray`, and what it starts."""

    def __init__(self, url: str, folder: Path, output: Path, address: str, options: list[str]) -> None:
        self.url, self.folder, self.output, self.options = url, folder, output, options
        self.environment = os.environ | {"RAY_ADDRESS": address}
        self.actors: set[int] = set()
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "tilewright.ray", self.url, *self.options]
        with self.output.open("a") as output:
            self.driver = subprocess.Popen(words, stdout=output, stderr=output, env=self.environment)

    def pids(self, kind: str) -> list[int]:
        """The processes of a kind: a word of what they were started with, and `actor`. They are told from others by their folders."""
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            words = _words(entry)
            if not any(word.startswith(f"{self.folder}/tilewright-ray-") for word in words):
                continue
            if kind in words:
                found.add(int(entry.name))
            elif kind == "actor" and "join" in words:
                found.update(self.parent(entry))
        return sorted(found)

    def parent(self, entry: Path) -> list[int]:
        """The actor that started a process, if it lives."""
        try:
            # The program's name has parentheses; then there are its state and its parent.
            pid = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return []
        if not _is_actor(pid):
            return []
        self.actors.add(pid)
        return [pid]

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits for what comes soon."""
        begun = time.monotonic()
        while not is_so():
            assert time.monotonic() - begun < 40, f"{what}: {self.output.read_text()}"
            time.sleep(0.05)

    def kills(self, chosen: random.Random) -> None:
        """Three processes at any moment, then the driver where all workers are there again."""
        for kind in chosen.choices(["join", "campaign-worker", "actor"], k=3):
            self.until(lambda kind=kind: bool(self.pids(kind)), kind)
            time.sleep(chosen.uniform(0.05, 0.3))
            self.kill(chosen, kind)
        self.until(lambda: len(self.pids("actor")) == 4, "four workers")
        self.driver.kill()
        self.driver.wait()
        self.start()

    def kill(self, chosen: random.Random, kind: str) -> None:
        def one() -> bool:
            pids = self.pids(kind)
            try:
                os.kill(chosen.choice(pids), signal.SIGKILL)
            except (IndexError, ProcessLookupError):
                return False
            return True

        self.until(one, kind)


def _jobs_and_kills() -> tuple[int, int]:
    return (60, 100) if os.environ.get("TILEWRIGHT_LONG") == "1" else (12, 8)


def _is_killed(ray: ModuleType, url: str, folder: Path, output: Path, options: list[str], states: tuple[str, ...] = ("done",)) -> _Killed:
    """Lets a campaign end whose processes are killed meanwhile: then each job has one result, and no process is left."""
    jobs, kills = _jobs_and_kills()
    killed = _Killed(url, folder, output, ray.get_runtime_context().gcs_address, options)
    chosen = random.Random(15)
    try:
        for _ in range(kills // 4):
            killed.kills(chosen)
        assert killed.driver.wait(900) == 0, output.read_text()
    finally:
        killed.driver.kill()
        killed.driver.wait()
    said = output.read_text()
    assert f"{jobs} results of {jobs} jobs" in said and "s3cret" not in said
    assert ": lost: signal 9\n" in said and ": lost: The actor is dead because its worker process has died." in said
    report = json.loads(_command("status", url, "--json"))
    assert len({job["seal"] for job in report["jobs"] if job["seal"]}) == jobs
    best = output.with_name("best")
    _command("best", url, "-o", best)
    assert sorted(one.name for one in best.iterdir()) == sorted(job["name"] for job in report["jobs"])
    for job in report["jobs"]:
        assert job["state"] in states, job
        for one in job["slices"]:
            is_lost = one["state"] == "lost" and (one["reason"] == "signal 9" or "no word for" in one["reason"])
            assert (one["state"] == "ended" or is_lost) and one["attempts"] <= 2, job
    killed.until(lambda: not killed.pids("join") and not killed.pids("campaign-worker"), "processes are left")
    assert len(killed.actors) > 4
    killed.until(lambda: not any(map(_is_actor, killed.actors)), "actors are left")
    return killed


def test_what_is_killed_loses_nothing(ray: ModuleType, cluster: Path, server: str, tmp_path: Path) -> None:
    from tilewright.ray import work

    url = _campaign(server, "killed", tmp_path / "campaign", LONG_ROWS, _jobs_and_kills()[0])
    _is_killed(ray, url, cluster, tmp_path / "output", ["--no-gpu", "--workers", "4"])
    # Of who was killed no folder is left either when the next one begins.
    assert list(work(url, workers=1, gpu=False)) == []
    assert not list(cluster.glob("tilewright-ray-*"))


def test_a_folder_is_there_as_long_as_a_process_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ray import _folder

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # It is killed; what it started is not.
    script = (
        "import os, subprocess, tilewright.ray as ray\n"
        "with ray._folder() as (_, held):\n"
        "    print(subprocess.Popen(['sleep', '60'], pass_fds=[held], stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    child = int(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False).stdout)
    try:
        with _folder():
            assert len(list(tmp_path.iterdir())) == 2
    finally:
        os.kill(child, signal.SIGKILL)
    # The system closes its files a moment later.
    begun = time.monotonic()
    while list(tmp_path.iterdir()):
        assert time.monotonic() - begun < 10
        with _folder():
            time.sleep(0.05)


def test_what_is_no_address_is_refused(ray: ModuleType) -> None:
    from tilewright.ray import work

    with pytest.raises(tilewright.TilewrightError, match="expected the address of a journal"):
        list(work("http://ann:s3cret@db/night"))


def test_passwords_are_no_arguments() -> None:
    from tilewright.ray import _apart

    for address in ("ann:s3%20cret@db:5433/night?connect_timeout=3", "ann@db:5433/night?password=s3%20cret&connect_timeout=3"):
        assert _apart(f"postgres://{address}") == ("postgres://ann@db:5433/night?connect_timeout=3", "s3 cret")
    assert _apart("postgresql://ann@db/night") == ("postgresql://ann@db/night", None)
    with pytest.raises(tilewright.TilewrightError, match="expected the address of a journal"):
        _apart("out/night")


def test_who_has_no_ray_is_told_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ray import work

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tilewright.TilewrightError, match="its extra `ray`"):
        next(work("postgres://ann@db/night"))
