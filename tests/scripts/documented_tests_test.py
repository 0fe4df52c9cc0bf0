"""Every test that the tables of docs/ name exists.

Names are in backquotes, `Suite.Name`; those of types and members have none of a test's form.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([A-Z]\w+\.[A-Z]\w+)`")
DEFINED = re.compile(r"\b(?:TEST(?:_P|_F)?|TYPED_TEST|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)")


# And how many they name at least: a table of another form would name none.
TABLES = {"docs/data-parallelism.md": 50, "docs/models.md": 25}


def main():
    defined = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        defined.update(".".join(test) for test in DEFINED.findall(path.read_text(encoding="utf-8", errors="replace")))
    good = True
    for page, least in TABLES.items():
        named = NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
        for name in sorted(set(named) - defined):
            good = False
            print(page, "names", name, "which is no test")
        if len(named) < least:
            good = False
            print("only", len(named), "tests are named in", page + "; has the form of the tables changed?")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
