"""Which sources cmake/TroupeJoin.cmake compiles together, in a project of a few."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
MODULES = Path(__file__).resolve().parents[2] / "cmake"

PROJECT = """
cmake_minimum_required(VERSION 3.25)
set(CMAKE_CXX_COMPILER_WORKS TRUE)
project(joined LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "{modules}")
set(TROUPE_JOIN_SOURCES ON)
set(TROUPE_JOINED_FOLDER "${{PROJECT_BINARY_DIR}}/joined")
include(TroupeJoin)
file(GLOB sources "*.cpp")
add_library(target STATIC ${{sources}})
{before}
troupe_join(target {arguments})
get_target_property(compiled target SOURCES)
foreach(source IN LISTS compiled)
  get_source_file_property(options "${{source}}" COMPILE_OPTIONS)
  message(STATUS "compiles ${{source}} with ${{options}}")
endforeach()
"""


def local(*lines):
    return "\n".join(["#include <a>", "namespace n {", "namespace {", *lines, "}  // namespace", "}  // namespace n", ""])


def groups(sources, arguments="", before=""):
    """The names of the sources that are compiled together, and the options that they are compiled with."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sources.items():
            (Path(folder) / f"{name}.cpp").write_text(text)
        (Path(folder) / "CMakeLists.txt").write_text(
            PROJECT.format(modules=MODULES, arguments=arguments, before=before))
        ran = subprocess.run(["cmake", "-S", folder, "-B", f"{folder}/build", "-G", "Ninja"], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, check=False)
        if ran.returncode != 0:
            raise AssertionError(ran.stdout)
        found = {}
        for file, options in re.findall(r"compiles (\S+) with (.+)", ran.stdout):
            text = Path(file).read_text() if "/joined/" in file else f'#include "{file}"\n'
            parts = tuple(sorted(Path(part).stem for part in re.findall(r'#include "(.+)"', text)))
            found[parts] = options
        return found


class JoinedSources(unittest.TestCase):
    def test_are_all_where_nothing_keeps_them_apart(self):
        self.assertEqual(list(groups({"a": local("int one();"), "b": local("int two();"), "c": ""})), [("a", "b", "c")])

    def test_never_share_a_name_that_is_local_to_each(self):
        for first, second in (
                ("int same(int a) {", "int same(double a) {"),  # otherwise b might call the function of a
                ("constexpr int same = 1;", "constexpr int same = 2;"),
                ("struct same {", "class same {"),
                ("std::vector<int> same(const std::string& text) {", "enum class same { x };"),
                ("const char* same{};", "int same();"),
        ):
            with self.subTest(first=first, second=second):
                found = groups({"a": local(first), "b": local("int other();"), "c": local(second)})
                self.assertEqual(sorted(found), [("a", "b"), ("c",)])

    def test_may_share_names_that_are_not_local_to_them(self):
        found = groups({"a": local("  int same = 1;", "using same = int;", "int one();"),
                        "b": "namespace n {\nint same(int) { return 1; }\n}\n" + local("using same = int;")})
        self.assertEqual(list(found), [("a", "b")])

    def test_have_names_of_all_their_anonymous_namespaces(self):
        found = groups({"a": local("int one();") + local("int same();"), "b": local("int same();")})
        self.assertEqual(sorted(found), [("a",), ("b",)])

    def test_are_only_as_many_as_their_bytes_allow(self):
        half = "// " + "x" * 79_000 + "\n"
        self.assertEqual(sorted(groups({"a": half, "b": half, "c": half})), [("a", "b"), ("c",)])

    def test_have_the_same_options(self):
        found = groups({"a": "", "b": "", "c": "", "d": ""},
                       before="set_source_files_properties(${PROJECT_SOURCE_DIR}/b.cpp ${PROJECT_SOURCE_DIR}/d.cpp "
                              "PROPERTIES COMPILE_OPTIONS -O1)")
        self.assertEqual(found, {("a", "c"): "NOTFOUND", ("b", "d"): "-O1"})

    def test_obey_the_exceptions(self):
        found = groups({name: "" for name in "abcdef"}, arguments='APART "/[ab].cpp$" ALONE "/[cd].cpp$"')
        self.assertEqual(sorted(found), [("a", "b"), ("c",), ("d",), ("e", "f")])


if __name__ == "__main__":
    unittest.main()
