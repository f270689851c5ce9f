"""Searches without a GPU: what they give, tell, refuse and write. The command line is the one that comes with the package."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tilewright
from tilewright import ArtifactError, GpuError, Program, Progress, SearchError, optimize

ADD = "program add\naxis i = 64, j = 32\nx = parameter f16 [i, j]\ny = parameter f32 [j]\nreturn f16 [i, j] x + y\n"

# A program whose search takes longer than anybody waits here.
LONG = """\
program long
axis b = 4, s = 64, m = 64, n = 96
x = parameter f32 [b, s, m]
g = parameter f32 [m]
w1 = parameter f32 [m, n]
w2 = parameter f32 [m, n]
w3 = parameter f32 [n, m]
y = rms_norm(x; m, 1e-5) * g
return f32 [b, s, m] x + dot(silu(dot(y, w1; m)) * dot(y, w2; m), w3; n)
"""


def found(source: str = ADD, **options: object) -> tilewright.Optimized:
    options = {"target": "h200", "budget": "5s", "seed": 7, "gpu": False, "progress": False} | options
    return optimize(Program(source), **options)  # type: ignore[arg-type]


def cli(*words: object) -> subprocess.CompletedProcess:
    """As the script does it: NVRTC is looked for beside the interpreter."""
    return subprocess.run([sys.executable, "-m", "tilewright", *map(str, words)], capture_output=True, text=True, timeout=120)


def test_a_search_finds_and_says_what_is_known() -> None:
    optimized = found()
    report = optimized.report
    assert (report.program, report.target, report.state, report.search, report.seed) == ("add", "h200", "simulated", "ended", 7)
    assert report.predicted_us > 0 and report.measured_us is None and report.candidates > 0
    assert len(report.kernels) == 1 and report.kernels[0].bytes == 2 * 64 * 32 * 2 + 32 * 4
    assert any("compared with the program" in claim for claim in report.evidence)
    assert "__global__" in optimized.cuda
    assert "simulated, never ran on a GPU" in str(report) and "simulated" in repr(optimized)
    assert report.raw["best"]["plan"] == report.plan


def test_the_artifact_is_what_the_command_line_writes(tmp_path: Path) -> None:
    (tmp_path / "add.lax").write_text(ADD)
    options = ["--target", "h200", "--budget", "5s", "--seed", "7", "--no-gpu"]
    theirs = cli("optimize", tmp_path / "add.lax", *options, "-o", tmp_path / "theirs")
    assert theirs.returncode == 0, theirs.stderr
    found().save(tmp_path / "ours")
    names = sorted(file.name for file in (tmp_path / "theirs").iterdir())
    assert sorted(file.name for file in (tmp_path / "ours").iterdir()) == names and "manifest.json" in names
    for name in names:
        if name != "manifest.json":
            assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
    ours, others = (json.loads((tmp_path / folder / "manifest.json").read_text()) for folder in ("ours", "theirs"))
    for manifest in (ours, others):
        # What was interpreted at most hangs on how fast the machine was just then, as do the moments of a history, and the seal on everything.
        assert manifest["evidence"]["tiling"].pop("most_slice_work") > 0
        for moment in (manifest["history"], *manifest["history"]["improvements"]):
            assert moment.pop("seconds") > 0
        manifest.pop("seal")
    assert ours == others
    replay = cli("verify", "--replay", tmp_path / "ours")
    assert replay.returncode == 0, replay.stdout + replay.stderr


def test_what_is_no_artifact_is_never_replaced(tmp_path: Path) -> None:
    optimized, other = found(), found(ADD.replace("x + y", "x * y"))
    optimized.save(tmp_path / "a")
    optimized.save(tmp_path / "a")
    with pytest.raises(ArtifactError, match="force=True"):
        other.save(tmp_path / "a")
    other.save(tmp_path / "a", force=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    for force in (False, True):
        with pytest.raises(ArtifactError, match="thesis.txt"):
            optimized.save(tmp_path / "mine", force=force)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"target": "h300"}, SearchError, "unknown target `h300`, did you mean `h200`"),
        ({"budget": "5"}, ValueError, "expected a unit"),
        ({"budget": 0}, ValueError, "budget: expected a time"),
        ({"budget": float("nan")}, ValueError, "budget: expected a time"),
        ({"seed": -1}, ValueError, "seed: expected a whole number"),
        ({"gpu": 0}, ValueError, "gpu: expected True, False"),
        ({"log": "/dev/null/log"}, SearchError, "log=False"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: dict, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        found(**options)


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a tilewright.Program, found str"):
        optimize(ADD)  # type: ignore[arg-type]


def test_a_program_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SearchError, match="give smaller extents or another target"):
        found("program p\naxis i = 1000000, j = 1000000\nx = parameter f32 [i, j]\nreturn f32 [i] sum(x; j)\n")


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_the_gpu_of_a_machine_without_one_is_refused() -> None:
    with pytest.raises(GpuError, match='target="auto".*name one of h200'):
        found(target="auto")


def test_a_callback_is_told_by_the_caller_and_may_end_it() -> None:
    told: list[Progress] = []
    threads = set()

    def tell(progress: Progress) -> None:
        told.append(progress)
        threads.add(threading.get_ident())

    optimized = found(progress=tell)
    assert threads == {threading.get_ident()}
    assert told[-1].us is not None and told[-1].state == "simulated" and "by the model" in told[-1].best
    assert told[-1].candidates <= optimized.report.candidates

    class Enough(Exception):
        pass

    def enough(progress: Progress) -> None:
        raise Enough

    begun = time.monotonic()
    with pytest.raises(Enough):
        found(LONG, budget="1h", progress=enough)
    assert time.monotonic() - begun < 5


INTERRUPTED = """
import tilewright, sys
def tell(progress):
    # What is found is held a moment later, once it is checked in full.
    if progress.us is not None:
        told.append(progress.seconds)
        if told[-1] > told[0] + 1 and not said:
            said.append(True)
            print("held", flush=True)
said = []
told = []
try:
    found = tilewright.optimize(tilewright.Program({source!r}), target="h200", budget="1h", gpu=False, progress=tell)
    print(found.report.search, found.report.state)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_gives_the_best_so_far_and_a_second_one_nothing(times: int) -> None:
    script = INTERRUPTED.format(source=LONG)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    if times == 2:
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - begun < 10
    # A search may end before the second signal comes.
    assert output in (["interrupted simulated\n"] if times == 1 else ["interrupted\n", "interrupted simulated\n"])


def test_a_line_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found(progress=None)
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    found(progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(r"^after \d+\.\d s: simulated, .* us by the model, 1 kernel$", captured.err, re.MULTILINE)
    assert "note: nothing was timed" in captured.err


def test_rich_shows_it_where_it_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    found(progress=True)
    assert "note: nothing was timed" in capsys.readouterr().err.replace("\n", " ")


CELL = """
import tilewright
found = tilewright.optimize(tilewright.Program({source!r}), target="h200", budget={budget!r}, gpu=False)
print(found.report.search, found.report.state)
"""


def test_a_notebook_shows_it_in_its_cell_and_may_interrupt_it() -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [CELL.format(source=ADD, budget="5s"), CELL.format(source=LONG, budget="1h")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])

    class Client(nbclient.NotebookClient):  # type: ignore[name-defined, misc]
        """Interrupts the second search once it holds something."""

        def process_message(self, msg, cell, index):  # type: ignore[no-untyped-def]
            text = str(msg["content"].get("data", {}).get("text/plain", ""))
            if index == 1 and "us by the model" in text:
                seen.append(time.monotonic())
                # What is found is held a moment later, once it is checked in full.
                if seen[-1] > seen[0] + 1 and not interrupted:
                    interrupted.append(text)
                    self.km.provisioner.process.send_signal(signal.SIGINT)
            return super().process_message(msg, cell, index)

    seen: list[float] = []
    interrupted: list[str] = []
    Client(notebook, timeout=120, kernel_name="python3").execute()
    for cell, said in zip(notebook.cells, ["ended simulated", "interrupted simulated"], strict=True):
        line, *rest = cell.outputs
        assert re.fullmatch(r"\d+ s \w+: \d+ candidates, \d+ rejected, simulated, .* us by the model, \d kernels?", line["data"]["text/plain"])
        text = "".join(out["text"] for out in rest)
        assert text.splitlines()[-1] == said and "note: nothing was timed" in text, text


def test_the_command_line_comes_with_the_package() -> None:
    expected = cli("--version").stdout
    assert expected == f"tilewright {tilewright.__version__}\n"
    script = Path(sys.executable).with_name("tilewright")
    for words in ([sys.executable, "-m", "tilewright"], [script]):
        ran = subprocess.run([*words, "--version"], capture_output=True, text=True, timeout=60)
        assert ran.stdout == expected
        assert subprocess.run([*words, "show", "/absent.lax"], capture_output=True, timeout=60).returncode == 1


def test_a_package_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(tilewright.TilewrightError, match="the command line is missing"):
        found()


def test_pytorch_is_not_imported_by_itself() -> None:
    script = "import sys, tilewright; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_stubs_name_what_the_native_module_has() -> None:
    from tilewright import _native

    stub = (Path(tilewright.__file__).parent / "_native.pyi").read_text()
    top = set(re.findall(r"^(?:class|def) ([A-Za-z]\w*)", stub, re.MULTILINE)) | {"__version__"}
    assert top - {"_Declared"} == {name for name in vars(_native) if name == "__version__" or name[0] != "_"}
    for name in ("Program", "Search", "Found"):
        body = stub.split(f"class {name}:")[1].split("\nclass ")[0]
        stubbed = set(re.findall(r"def (\w+)", body)) - {"__init__"}
        assert stubbed == {method for method in vars(getattr(_native, name)) if method[0] != "_"}, name
    assert (Path(tilewright.__file__).parent / "py.typed").exists()
