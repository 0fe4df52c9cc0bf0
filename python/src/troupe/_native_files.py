"""Where the library and the tool are: the environment says so, or they came with this package, or the system has
them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Optional

from troupe.errors import Error, Status

BUNDLED = Path(__file__).resolve().parent / "_native"
LIBRARY = "libtroupe.so.0"
TOOL = "troupe"


def _named(variable: str) -> Optional[str]:
    name = os.environ.get(variable, "")
    if not name:
        return None
    if not Path(name).is_file():
        raise Error(Status.NOT_FOUND, f"{variable} names {name}, which is not a file; correct it, or unset it")
    return name


def library() -> str:
    """A path, or a name that the loader looks for."""
    bundled = BUNDLED / LIBRARY
    return _named("TROUPE_LIBRARY") or (str(bundled) if bundled.is_file() else LIBRARY)


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def tool() -> str:
    """The program `troupe`, and not the script of that name which a wheel installs to start it."""
    named = _named("TROUPE_TOOL")
    if named:
        return named
    if (BUNDLED / TOOL).is_file():
        return str(BUNDLED / TOOL)
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which(TOOL, path=folder) if folder else None
        if found and not _is_script(found):
            return found
    raise Error(Status.NOT_FOUND, "the program troupe is neither in this package nor in PATH; install a wheel of "
                "scripts/build_wheel or the Debian package troupe, or name the program in TROUPE_TOOL")
