"""Every snippet of docs/python.md runs, and prints what the page says."""

import contextlib
import io
import re
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def snippets(text: str) -> list[tuple[str, str | None]]:
    """The code, and what stands behind it as its output."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found: list[tuple[str, str | None]] = []
    for kind, body in blocks:
        if kind == "python":
            found.append((body, None))
        elif kind == "text":
            assert found and found[-1][1] is None, "an output without a snippet"
            found[-1] = (found[-1][0], body)
    return found


def test_the_snippets_of_the_page_run(torch: ModuleType, jax: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    listed = snippets(PAGE.read_text())
    assert len(listed) >= 7
    for code, expected in listed:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)
        if expected is not None:
            assert printed.getvalue().strip() == expected.strip()
    assert (tmp_path / "out/attention/manifest.json").exists()
    assert names["result"].shape == (64, 32) and names["scaled"].name == "scaled"


def test_the_page_names_every_exception() -> None:
    import tilewright

    page = PAGE.read_text()
    raised = [name for name in tilewright.__all__ if name.endswith("Error")]
    assert len(raised) >= 9 and [name for name in raised if f"`{name}`" not in page] == []


def test_the_first_snippet_of_the_readme_runs(torch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tilewright

    code = snippets((PAGE.parents[1] / "README.md").read_text())[0][0]
    assert "tilewright.from_torch(module, x)" in code
    monkeypatch.chdir(tmp_path)
    # As on a machine without a GPU, and in less time.
    search = tilewright.optimize
    monkeypatch.setattr(tilewright, "optimize", lambda program, budget: search(program, budget="1s", target="h200", gpu=False, progress=False))
    names = {"module": torch.nn.Linear(16, 32).half(), "x": torch.randn(8, 16).half()}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "README.md", "exec"), names)
    assert "program Linear" in printed.getvalue() and (tmp_path / "out/layer/__init__.py").exists()
