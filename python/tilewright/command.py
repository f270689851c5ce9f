"""Where the command line is: it comes with the package, and is the worker of every search."""

import os
from pathlib import Path

from tilewright._native import TilewrightError


def path() -> Path:
    """The program.

    Raises `TilewrightError` where the package was built without it.
    """
    program = Path(__file__).resolve().parent / "bin" / "tilewright"
    if not os.access(program, os.X_OK):
        raise TilewrightError(f"{program}: the command line is missing; build the package by `pip install ./python`, not by maturin alone")
    return program
