"""Starts the ranks of a job, with torchrun's flags and environment:

    python -m troupe.launch --standalone --nproc-per-node 2 train.py --epochs 3

A program that ends in .py, or one after -m, runs with this Python, unless PYTHON_EXEC names another. `python -m
troupe.launch --help` lists the flags.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn, Sequence

from troupe import _native_files
from troupe.errors import Error


def _become(arguments: Sequence[str]) -> NoReturn:
    try:
        program = _native_files.tool()
    except Error as error:
        sys.exit(f"troupe: {error}")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    try:
        os.execv(program, ["troupe", *arguments])
    except OSError as error:
        sys.exit(f"troupe: {program} cannot be executed: {error}")


def main() -> NoReturn:
    """`troupe launch`, in place of this process."""
    _become(["launch", *sys.argv[1:]])


def tool() -> NoReturn:
    """`troupe` with all its commands, in place of this process."""
    _become(sys.argv[1:])


if __name__ == "__main__":
    main()
