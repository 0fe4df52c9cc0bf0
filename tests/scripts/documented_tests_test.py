"""Every test that a document names exists.

Names are in backquotes, `Suite.Name`, with `*` for several and, of suites with parameters, with or without a prefix as
in `Prefix/Suite.*`; those of types and members have none of a test's form. scripts/coverage looks after docs/coverage.md.
"""

import fnmatch
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(?:\w+/)?([A-Z]\w+\.(?:[A-Z]\w+\*?|\*))`")
DEFINED = re.compile(r"\b(?:TEST(?:_P|_F)?|TYPED_TEST|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)")
# How many they name at least: another way to write them would be found by nobody.
LEAST = 25


def main():
    defined = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        defined.update(".".join(test) for test in DEFINED.findall(path.read_text(encoding="utf-8", errors="replace")))
    named, good = 0, True
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        names = sorted(set(NAMED.findall(page.read_text(encoding="utf-8"))))
        named += len(names)
        for name in names:
            if name not in defined and not ("*" in name and fnmatch.filter(defined, name)):
                good = False
                print(page.relative_to(ROOT), "names", name, "which is not a test")
    if named < LEAST:
        good = False
        print("only", named, "tests are named in the documents; has their form changed?")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
