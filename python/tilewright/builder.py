"""Programs built in Python instead of written as text.

The builder writes the text in the language and lets `Program` read it: names, sugar and messages are those of the language.
"""

from collections.abc import Sequence

from tilewright._native import ProgramError
from tilewright.program import Program


class Expr:
    """A value of a program that is being built: `+`, `-`, `*` and `/` are the language's."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: "Expr | float") -> "Expr":
        return _infix(self, "+", other)

    def __radd__(self, other: float) -> "Expr":
        return _infix(other, "+", self)

    def __sub__(self, other: "Expr | float") -> "Expr":
        return _infix(self, "-", other)

    def __rsub__(self, other: float) -> "Expr":
        return _infix(other, "-", self)

    def __mul__(self, other: "Expr | float") -> "Expr":
        return _infix(self, "*", other)

    def __rmul__(self, other: float) -> "Expr":
        return _infix(other, "*", self)

    def __truediv__(self, other: "Expr | float") -> "Expr":
        return _infix(self, "/", other)

    def __rtruediv__(self, other: float) -> "Expr":
        return _infix(other, "/", self)

    def __neg__(self) -> "Expr":
        return Expr(f"(-{self.text})")


class Builder:
    """Builds a program, line by line.

    >>> b = Builder("attention", i=64, j=256, d=64, e=64)
    >>> q, k, v = b.parameter("q", "f16", "i d"), b.parameter("k", "f16", "j d"), b.parameter("v", "f16", "j e")
    >>> p = b.let("p", b.call("softmax", b.call("dot", q, k, over="d") * 0.125, over="j"))
    >>> b.output("f16", "i e", b.call("dot", p, v, over="j"))
    >>> print(b.program().outputs[0])
    out0: f16 [i, e]
    """

    def __init__(self, name: str, **axes: int) -> None:
        self._name = name
        self._lines: list[str] = []
        self._outputs: list[str] = []
        if axes:
            self._lines.append("axis " + ", ".join(f"{axis} = {extent}" for axis, extent in axes.items()))

    def axis(self, name: str, extent: int) -> str:
        """Declares an axis, and gives its name."""
        self._lines.append(f"axis {name} = {extent}")
        return name

    def parameter(self, name: str, dtype: str, dims: str) -> Expr:
        """An input; `dims` lists the axes of its dimensions, slowest first, separated by blanks: `"b (h d)"` has two dimensions."""
        self._lines.append(f"{name} = parameter {dtype} [{_dims(dims)}]")
        return Expr(name)

    def let(self, name: str, value: Expr | float) -> Expr:
        """Binds a value to a name."""
        self._lines.append(f"{name} = {_text(value)}")
        return Expr(name)

    def call(self, function: str, *values: Expr | float, over: str = "", constants: Sequence[float] = (), fill: float | None = None) -> Expr:
        """An operation or a definition of the prelude: `call("sum", x, over="i j")`, `call("rms_norm", x, over="m", constants=[1e-5])`."""
        behind = [*over.split(), *map(_number, constants)]
        text = ", ".join(map(_text, values))
        if behind:
            text += "; " + ", ".join(behind)
        if fill is not None:
            text += f"; fill = {_number(fill)}"
        return Expr(f"{function}({text})")

    def iota(self, axis: str) -> Expr:
        """The index along an axis."""
        return Expr(f"iota({axis})")

    def view(self, value: Expr, fill: float | None = None, **indices: str) -> Expr:
        """Re-indexes: `view(x, fill=0, h="2*o + k - 1")`."""
        listed = ", ".join(f"{axis} -> {index}" for axis, index in indices.items())
        behind = "" if fill is None else f"; fill = {_number(fill)}"
        return Expr(f"view({_text(value)}; {listed}{behind})")

    def output(self, dtype: str, dims: str, value: Expr | float) -> None:
        """Adds a result."""
        self._outputs.append(f"{dtype} [{_dims(dims)}] {_text(value)}")

    def program(self) -> Program:
        """The program. Raises `ProgramError`, whose pictures show the text that was built."""
        if not self._outputs:
            raise ProgramError(f"{self._name}: the program has no result")
        lines = [f"program {self._name}", *self._lines, "return " + ", ".join(self._outputs)]
        return Program("\n".join(lines) + "\n", file=f"{self._name} (built)")


def _infix(left: Expr | float, operator: str, right: Expr | float) -> Expr:
    return Expr(f"({_text(left)} {operator} {_text(right)})")


def _text(value: Expr | float) -> str:
    return value.text if isinstance(value, Expr) else _number(value)


def _number(value: float) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a value or a number, found {value!r}")
    return repr(value)


def _dims(dims: str) -> str:
    """`b (h d)` as the language has it, `b, (h d)`."""
    inside, parts = 0, [""]
    for char in dims:
        inside += (char == "(") - (char == ")")
        if char == " " and not inside:
            parts.append("")
        else:
            parts[-1] += char
    return ", ".join(part for part in parts if part)
