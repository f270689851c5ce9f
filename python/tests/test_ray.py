"""A campaign on a real Ray, with a PostgreSQL server of the test's own where its programs are installed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import tilewright
from tilewright.command import path

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


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a database."""
    programs = [shutil.which(name) for name in ("initdb", "pg_ctl", "createdb")]
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
    if None in programs or (user and shutil.which("setpriv") is None):
        if os.environ.get("TILEWRIGHT_REQUIRE_POSTGRES") == "1":
            raise FileNotFoundError("PostgreSQL's programs")
        pytest.skip("PostgreSQL's initdb, pg_ctl and createdb are missing")
    initdb, pg_ctl, createdb = map(str, programs)
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
        subprocess.run(
            [createdb, "-h", "127.0.0.1", "-p", str(port), "-U", "ann", "night"], env=os.environ | {"PGPASSWORD": PASSWORD}, **quiet, check=True
        )
        yield f"postgres://ann:s3cret%3Aof%40ann@127.0.0.1:{port}/night"
    finally:
        subprocess.run([*user, pg_ctl, "-D", data, "-m", "immediate", "stop"], **quiet, check=True)
        shutil.rmtree(folder)


def test_four_workers_of_ray_share_a_campaign(ray: ModuleType, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ray import work

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "rows.lax").write_text(ROWS)
    (tmp_path / "plan.toml").write_text(PLAN)

    def command(*words: str) -> str:
        return subprocess.run([path(), "campaign", *words], check=True, stdout=subprocess.PIPE, text=True).stdout

    command("plan", "plan.toml", "-o", "night", "--journal", server)
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
        report = json.loads(command("status", server, "--json"))
        assert [job["state"] for job in report["jobs"]] == ["done"] * 8
        assert report["running"] is False
        # Nothing is left to do: they end at once. A journal that is not there is said.
        assert list(work(server, workers=1, gpu=False)) == []
        with pytest.raises(tilewright.TilewrightError, match="no worker could do anything.*does not exist"):
            list(work(server + "x", workers=2, gpu=False))
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
