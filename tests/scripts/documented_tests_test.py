"""Every test that docs/data-parallelism.md names exists.

Names are in backquotes, `Suite.Name`; those of types and members have none of a test's form.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([A-Z]\w+\.[A-Z]\w+)`")
DEFINED = re.compile(r"\b(?:TEST(?:_P|_F)?|TYPED_TEST|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)")


def main():
    named = NAMED.findall((ROOT / "docs/data-parallelism.md").read_text(encoding="utf-8"))
    defined = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        defined.update(".".join(test) for test in DEFINED.findall(path.read_text(encoding="utf-8", errors="replace")))
    missing = sorted(set(named) - defined)
    for name in missing:
        print("docs/data-parallelism.md names", name, "which is no test")
    if len(named) < 50:
        print("only", len(named), "tests are named; has the form of the tables changed?")
    return 1 if missing or len(named) < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
