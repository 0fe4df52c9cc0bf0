#!/usr/bin/env python3
"""The Python package says of troupe.h and peers.h what the headers say:  header_test.py HEADER..."""

import ctypes
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "python" / "src"))

from troupe import __version__, _c, errors  # noqa: E402

TEXT = "".join(re.sub(r"/\*.*?\*/", "", Path(name).read_text(encoding="utf-8"), flags=re.S) for name in sys.argv[1:])
del sys.argv[1:]
# Pointers to functions.
TEXT = re.sub(r"void \(\*(?:fill|take)\)\([^)]*\)", "FILL fill", TEXT)
TEXT = re.sub(r"int \(\*launch\)\([^)]*\)", "LAUNCH launch", TEXT)
TEXT = re.sub(r"int\d\d_t \(\*([sg]et)\)\([^)]*\)", lambda found: f"STORE_{found[1].upper()} {found[1]}", TEXT)
POINTERS = {"FILL": _c.Fill, "LAUNCH": _c.Launch, "STORE_SET": _c.StoreSet, "STORE_GET": _c.StoreGet}
NUMBERS = {"int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32,
           "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t, "double": ctypes.c_double, "float": ctypes.c_float,
           "int": ctypes.c_int, "void": None}
STRUCTS = {"troupe_error": _c.CError, "troupe_step_outcome": _c.StepOutcome, "troupe_save_result": _c.SaveResult,
           "troupe_restored": _c.Restored, "troupe_restore_options": _c.RestoreOptions, "troupe_store": _c.Store,
           "troupe_peers_options": _c.PeersOptions, "troupe_piece": _c.Piece, "troupe_collective": _c.Collective,
           "troupe_expert_layer": _c.ExpertLayer, "troupe_rows": _c.Rows, "troupe_routing": _c.Routing}
HANDLES = ("troupe_options", "troupe_session", "troupe_group", "troupe_peers", "troupe_message", "troupe_experts")
ENUMS = re.findall(r"typedef enum (\w+)", TEXT)


def type_of(words):
    """How ctypes writes a type of C."""
    words = words.replace("const ", "").strip()
    name, stars = words.rstrip("* "), words.count("*")
    if name in POINTERS:
        return POINTERS[name]
    if name == "char" and stars == 1:
        return ctypes.c_char_p
    if name in HANDLES + ("void",) and stars:
        return ctypes.c_void_p if stars == 1 else ctypes.POINTER(ctypes.c_void_p)
    base = ctypes.c_int if name in ENUMS else STRUCTS.get(name) or NUMBERS[name]
    for _ in range(stars):
        base = ctypes.POINTER(base)
    return base


def declarations(body):
    """The members of a struct, several of which may share a type: stars, name, elements and type."""
    for statement in body.split(";"):
        kind, names = re.match(r"\s*(?:const )?(\w*)\s*(.*)", statement, re.S).groups()
        for stars, field, size in re.findall(r"(\**)\s*(\w+)(?:\[(\d+)\])?", names):
            yield stars, field, size, kind


def declared():
    """The result and the arguments of each function that the package uses."""
    found = {}
    for result, name, arguments in re.findall(r"^([\w ]+?[ *]+)troupe_(\w+)\(([^)]*)\);", TEXT, re.M):
        if name not in _c.CALLS and name not in _c.OTHERS:
            continue
        types = [] if arguments.strip() == "void" else [
            type_of(re.sub(r"\w+$", "", argument.strip())) for argument in arguments.split(",")]
        found[name] = (type_of(result), types)
    return found


class Header(unittest.TestCase):
    def test_has_this_version(self):
        self.assertEqual(int(re.search(r"TROUPE_C_VERSION (\d+)", TEXT)[1]), _c.C_VERSION)

    def test_declares_these_functions(self):
        functions = declared()
        for name, arguments in _c.CALLS.items():
            self.assertEqual(functions[name], (ctypes.c_int, [*arguments, ctypes.POINTER(_c.CError)]), name)
        for name, (result, arguments) in _c.OTHERS.items():
            self.assertEqual(functions[name], (result, list(arguments)), name)

    def test_has_these_structs(self):
        for name, struct in STRUCTS.items():
            body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", TEXT, re.S)[1]
            fields = []
            for stars, field, size, kind in declarations(body):
                one = ctypes.c_char if kind == "char" and not stars else type_of(kind + stars)
                fields.append((field, one * int(size) if size else one))
            self.assertEqual(fields, struct._fields_, name)

    def test_has_these_numbers(self):
        for status in errors.Status:
            self.assertIn(f"TROUPE_{status.name} = {status.value}", TEXT)
        for names in (("F32", "F16", "BF16", "F64", "I64", "I32", "U8", "I16", "I8", "U64", "U32", "U16", "BOOL"),
                      ("ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER", "ALL_TO_ALL", "BROADCAST", "BARRIER"),
                      ("SUM", "AVERAGE", "MIN", "MAX", "PRODUCT", "BIT_AND", "BIT_OR", "BIT_XOR"),
                      ("NO_WEIGHT_DECAY", "SHARED_EMBEDDING", "EXPERT", "COPY", "FROZEN", "ANY_SHAPE")):
            for name in names:
                self.assertRegex(TEXT, rf"\bTROUPE_{name} = {getattr(_c, name)}\b")


class Versions(unittest.TestCase):
    def test_are_those_of_the_project(self):
        project = re.search(r"project\(troupe VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
        package = re.search(r'^version = "(.*)"', (ROOT / "python" / "pyproject.toml").read_text(), re.M)[1]
        self.assertEqual((project, project), (__version__, package))


if __name__ == "__main__":
    unittest.main()
