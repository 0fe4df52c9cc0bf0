#!/usr/bin/env python3
"""headers_test.py COMPILER INCLUDE: each installed header includes at most 25 of ours and no heavy library,
but for CAF in the one that is for actors."""

import subprocess
import sys
from pathlib import Path

MOST = 25
HEAVY = ("/caf/", "/fmt/", "/nlohmann/", "/spdlog/", "/asio/", "/msgpack/")


def closure(compiler, include, header):
    """Every file that including the header reads."""
    listing = subprocess.run([compiler, "-std=c++20", "-M", "-I", include, "-x", "c++", "-"], check=True,
                             input=f"#include <{header}>\n", capture_output=True, text=True).stdout
    return listing.replace("\\\n", " ").split()[1:]


def main():
    compiler, include = sys.argv[1:]
    ours = [path.relative_to(include).as_posix() for path in Path(include, "troupe").rglob("*") if path.is_file()]
    assert ours, f"no header in {include}/troupe"
    complaints = [f"{len(ours)} headers are installed, at most {MOST}"] if len(ours) > MOST else []
    largest = (0, "")
    for header in ours:
        files = closure(compiler, include, header)
        count = sum(file.startswith(f"{include}/troupe/") for file in files)
        largest = max(largest, (count, header))
        if count > MOST:
            complaints.append(f"{header} includes {count} of our headers, at most {MOST}")
        heavy = [word for word in HEAVY if not (word == "/caf/" and header == "troupe/subscribers.hpp")]
        complaints += [f"{header} includes {file}" for file in files if any(word in file for word in heavy)]
    print(f"{len(ours)} headers; the largest closure is {largest[1]}'s, {largest[0]} of ours")
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
