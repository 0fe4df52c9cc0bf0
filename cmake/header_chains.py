"""header_chains.py ROOT <LIST: which headers are compiled one after another to prove that each compiles alone.

Reads the headers' paths from ROOT, one per line. Each line it prints is a chain: whatever one of its headers sees,
directly or not, those behind it include as well. So every header of a chain sees nothing that it does not include
itself, and one compilation of the chain says of each what a compilation of its own would. What a header includes is
read off its text, conditions aside, and must stand above what uses it, as it does everywhere here.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])', re.MULTILINE)


def closures(headers, text_of):
    """What each header sees: itself, and what it and what it includes include. `text_of` gives None for a file that is
    not of the tree."""
    included = {}
    pending = list(headers)
    while pending:
        path = pending.pop()
        if path not in included:
            included[path] = [name if name[0] == "<" else name[1:-1] for name in INCLUDE.findall(text_of(path) or "")]
            pending += included[path]

    def seen_from(header):
        seen, pending = set(), [header]
        while pending:
            path = pending.pop()
            if path not in seen:
                seen.add(path)
                pending += included[path]
        return seen
    return {header: seen_from(header) for header in headers}


def chains(headers, text_of):
    """Few chains that hold each header once: each header, smaller closures first, goes behind the chain that it shares
    the most with, or begins one."""
    closure = closures(headers, text_of)
    made = []
    for header in sorted(headers, key=lambda name: (len(closure[name]), name)):
        below = [chain for chain in made if closure[chain[-1]] < closure[header]]
        if below:
            max(below, key=lambda chain: len(closure[chain[-1]])).append(header)
        else:
            made.append([header])
    return made


def main():
    root = Path(sys.argv[1])

    def text_of(path):
        file = root / path
        return file.read_text() if path[0] != "<" and file.is_file() else None
    print("\n".join(" ".join(chain) for chain in chains(sys.stdin.read().split(), text_of)))


if __name__ == "__main__":
    main()
