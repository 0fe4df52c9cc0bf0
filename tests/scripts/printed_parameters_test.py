"""Parameters of tests are printed as words, not as GoogleTest's bytes of an object: a failure says which case it was.

Usage: printed_parameters_test.py BIN_DIRECTORY
"""

import subprocess
import sys
from pathlib import Path

BYTES = "-byte object <"


def main(binaries):
    programs = sorted(Path(binaries).glob("*_tests"))
    if not programs:
        print("no test program in", binaries, "- build them first")
        return 1
    good = True
    for program in programs:
        listed = subprocess.run([program, "--gtest_list_tests"], stdout=subprocess.PIPE, check=True, timeout=60).stdout
        suites, suite = {}, ""
        for line in listed.decode(errors="replace").splitlines():
            if not line.startswith(" "):
                suite = line.split()[0].rstrip(".")
            if BYTES in line:
                suites[suite] = suites.get(suite, 0) + 1
        for suite, count in suites.items():
            good = False
            print(program.name, "prints", count, "parameters of", suite, "as bytes: give their type an operator<<")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
