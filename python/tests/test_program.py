"""Programs without PyTorch: read, built, printed, evaluated, refused."""

import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright import Builder, EvalError, Program, ProgramError, command


def test_a_program_says_what_it_takes_and_gives(attention: str) -> None:
    program = Program(attention)
    assert program.name == "attention"
    assert program.axes == {"i": 16, "j": 32, "d": 8, "e": 8}
    assert [str(p) for p in program.parameters] == ["q: f16 [i, d]", "k: f16 [j, d]", "v: f16 [j, e]"]
    assert program.parameters[1].shape == (32, 8)
    assert [str(o) for o in program.outputs] == ["out0: f16 [i, e]"]


def test_groups_are_one_dimension() -> None:
    program = Program("program p\naxis h = 2, d = 3, i = 4\nx = parameter f32 [i, (h d)]\nreturn f32 [(h i), d] x\n")
    assert program.parameters[0].dims == (("i",), ("h", "d"))
    assert program.parameters[0].shape == (4, 6)
    assert str(program.outputs[0]) == "out0: f32 [(h i), d]"
    x = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(program.eval(x), x.reshape(4, 2, 3).transpose(1, 0, 2).reshape(8, 3))


def test_the_text_is_canonical_and_the_source_is_as_it_was(attention: str) -> None:
    program = Program(attention)
    assert program.source == attention
    assert "softmax" not in str(program)
    assert str(Program(str(program))) == str(program)
    assert program == Program(str(program)) and hash(program) == hash(Program(attention))
    assert program != Program(attention.replace("0.25", "0.5")) and program != 3
    assert pickle.loads(pickle.dumps(program)) == program


def test_files_are_read(tmp_path: Path, attention: str) -> None:
    file = tmp_path / "p.lax"
    file.write_text(attention)
    assert Program.read(file) == Program(attention)
    with pytest.raises(OSError, match="No such file"):
        Program.read(tmp_path / "absent.lax")
    with pytest.raises(OSError, match="found a folder"):
        Program.read(tmp_path)


def test_faults_are_the_pictures_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "x.lax"
    file.write_text("program x\naxis i = 4, j = 0\nx = parameter f32 [i]\nreturn f32 [i] sofmax(x; i)\n")
    printed = subprocess.run([command.path(), "show", file], capture_output=True, text=True, timeout=60).stderr
    with pytest.raises(ProgramError) as found:
        Program.read(file)
    assert f"error: {found.value}\n" == printed.rstrip() + "\n"
    assert "did you mean `softmax`" in printed and printed.count("\n") == 6
    with pytest.raises(ProgramError, match="^there.lax:2:"):
        Program(file.read_text(), file="there.lax")


def test_eval_is_the_reference(attention: str) -> None:
    program, draw = Program(attention), np.random.default_rng(0)
    q, k, v = (draw.standard_normal(p.shape) for p in program.parameters)
    scores = q @ k.T / 4
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) @ v
    for found in (program.eval(q, k, v), program.eval(q=q, k=k, v=v), program.eval(q, v=v, k=k)):
        assert found.dtype == np.float64 and found.flags.writeable
        assert np.abs(found - expected).max() < 1e-14


def test_eval_takes_what_numpy_takes_and_gives_several() -> None:
    program = Program("program p\naxis i = 3\nx = parameter f32 [i]\nreturn f32 [i] 2 * x, f32 [] sum(x; i)\n")
    twice, total = program.eval(x=[1, True, 2.5])
    assert twice.tolist() == [2, 2, 5] and total.shape == () and total == 4.5
    assert program.eval(np.array([1, 2, 3], dtype=np.float16)[::-1])[0].tolist() == [6, 4, 2]


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ([], {}, "not given: `x`, `y`"),
        ([[1, 2]], {"x": [1, 2]}, "given twice: `x`"),
        ([[1, 2], [1, 2], [1]], {}, "2 parameters, 3 arrays given"),
        ([[1, 2]], {"z": 1}, "no parameter: `z`"),
        ([[1, 2], [1]], {}, r"parameter `y`: expected the shape \[2\], found \[1\]"),
        ([[1, 2], ["a", "b"]], {}, "no real numbers"),
        ([[1, 2], [1j, 2]], {}, "no real numbers"),
        ([[1, 2], [[1], [2, 3]]], {}, "parameter `y`"),
    ],
)
def test_eval_refuses(arrays: list, named: dict, message: str) -> None:
    program = Program("program p\naxis i = 2\nx = parameter f32 [i]\ny = parameter f32 [i]\nreturn f32 [i] x + y\n")
    with pytest.raises(EvalError, match=message):
        program.eval(*arrays, **named)


def test_eval_refuses_what_nobody_waits_for() -> None:
    program = Program("program p\naxis i = 1000000, j = 1000000\nx = parameter f32 [i]\ny = parameter f32 [j]\nreturn f32 [i, j] x + y\n")
    with pytest.raises(EvalError, match="at most"):
        program.operations()


def test_the_builder_writes_the_language() -> None:
    b = Builder("attention", i=16, j=32, d=8, e=8)
    q, k, v = b.parameter("q", "f16", "i d"), b.parameter("k", "f16", "j d"), b.parameter("v", "f16", "j e")
    p = b.let("p", b.call("softmax", b.call("dot", q, k, over="d") * 0.25, over="j"))
    b.output("f16", "i e", b.call("dot", p, v, over="j"))
    by_hand = Program(
        "program attention\naxis i = 16, j = 32, d = 8, e = 8\nq = parameter f16 [i, d]\nk = parameter f16 [j, d]\nv = parameter f16 [j, e]\n"
        "p = softmax(dot(q, k; d) * 0.25; j)\nreturn f16 [i, e] dot(p, v; j)\n"
    )
    assert b.program() == by_hand

    b = Builder("all_else")
    b.axis("h", 4)
    b.axis("o", 4)
    b.axis("k", 3)
    x = b.parameter("x", "f32", "(h o)")
    window = b.view(b.call("sum", x, over="o"), fill=0, h="o + k - 1")
    b.output("f32", "o k", (1 - window) / (2 + b.iota("k")) - (-window) * 3)
    b.output("f32", "", 1.5)
    (found, constant) = b.program().eval(np.ones(16))
    expected = np.pad(np.full(4, 4.0), 1)[np.arange(4)[:, None] + np.arange(3)]
    assert np.allclose(found, (1 - expected) / (2 + np.arange(3)) + 3 * expected, rtol=1e-15) and constant == 1.5

    b = Builder("faulty", i=2)
    with pytest.raises(ProgramError, match="no result"):
        b.program()
    b.output("f32", "i", b.call("sofmax", b.parameter("x", "f32", "i"), over="i"))
    with pytest.raises(ProgramError, match=r"faulty \(built\):.*did you mean `softmax`"):
        b.program()
    with pytest.raises(TypeError, match="a value or a number"):
        b.call("exp", "x")  # type: ignore[arg-type]


def test_the_versions_are_one() -> None:
    cargo = (Path(__file__).parents[2] / "Cargo.toml").read_text()
    assert f'version = "{tilewright.__version__}"' in cargo.split("[workspace.package]")[1].split("[")[0]
