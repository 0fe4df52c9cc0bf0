#!/usr/bin/env python3
"""shared_library_test.py PREFIX LAUNCHER EXAMPLES SOURCE_HEADER: what is installed below PREFIX is enough for C and for
Python, and names no folder of the machine that built it."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

prefix, launcher, examples, header = (pathlib.Path(word) for word in sys.argv[1:])
library = next(prefix.rglob("libtroupe.so.0"))


def run(*words, **environment):
    result = subprocess.run([str(word) for word in words], env={**os.environ, **environment}, timeout=120, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if result.returncode != 0:
        sys.exit(f"{words[0]} ended with {result.returncode}: {result.stdout}")
    return result.stdout


def exports_what_the_header_declares():
    text = "".join(file.read_text() for file in (header, header.with_name("peers.h")))
    declared = set(re.findall(r"\b(troupe_\w+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.S)))
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    exported = {line.split()[-1].split("@")[0] for line in lines if " A " not in line}
    if exported != declared:
        sys.exit(f"expected exactly the functions of {header.name} and peers.h, differs in {sorted(exported ^ declared)}")


def serves_pkg_config():
    pc = next(prefix.rglob("troupe-c.pc")).parent
    flags = run("pkg-config", "--cflags", "--libs", "troupe-c", PKG_CONFIG_PATH=str(pc)).split()
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "linear")
        run("gcc", "-std=c11", examples / "linear.c", "-o", program, *flags)
        return run(program, LD_LIBRARY_PATH=str(library.parent))


def serves_python():
    script, found = examples / "linear.py", {"TROUPE_LIBRARY": str(library)}
    alone = run(sys.executable, script, **found)
    together = run(launcher, "launch", "--standalone", "--nproc-per-node", "2", "--", sys.executable, script, **found)
    learned = re.search(r"y = \S+ x0 \+ \S+ x1 \+ \S+", alone)
    if not learned or learned[0] not in together:
        sys.exit(f"expected the same numbers of one rank and of two, found {alone} and {together}")
    values = [float(word) for word in re.findall(r"[-+]?\d\S*(?= x0| x1|$)", learned[0])]
    if len(values) != 3 or any(abs(found - right) > 0.05 for found, right in zip(values, (3, -2, 1))):
        sys.exit(f"expected about y = 3 x0 + -2 x1 + 1, found {learned[0]}")


def names_no_folder_of_the_build():
    files = [*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")]
    build = str(pathlib.Path(launcher).resolve().parents[3])
    for file in files:
        text = file.read_text()
        lines = [line for line in text.splitlines() if build in line or re.search(r"(?<![\w}])/(usr/lib|opt|home)/", line)]
        if lines:
            sys.exit(f"{file} names folders of the machine that built it: {lines}")
    if len(files) < 8:
        sys.exit(f"expected CMake's and pkg-config's files below {prefix}, found {files}")


exports_what_the_header_declares()
serves_pkg_config()
serves_python()
names_no_folder_of_the_build()
