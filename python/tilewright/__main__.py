"""`python -m tilewright`, and the script `tilewright`: the command line that comes with the package."""

import os
import sys

from tilewright.command import path


def main() -> None:
    """Becomes the command line: its exit code and what it does on signals are its own."""
    program = path()
    # NVRTC may be in the environment of this interpreter, activated or not.
    os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    os.execv(program, ["tilewright", *sys.argv[1:]])


if __name__ == "__main__":
    main()
