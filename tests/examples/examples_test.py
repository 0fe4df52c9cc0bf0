"""Trains every example alone and on several ranks, which must print the same numbers.

Usage: examples_test.py BIN_DIRECTORY
"""
import subprocess
import sys

EXAMPLES = {"mlp": "step 300 loss ", "units": "step 100 loss ", "linear": "y = ", "layers": "step 100 loss ",
            "tensor": "step 200 loss ", "experts": "step 100 loss ", "mixture": "step 100 loss "}


def numbers_of(example, command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100, check=False)
    text = done.stdout.decode(errors="replace")
    # The launcher puts the rank before each line.
    lines = [line[line.index(mark):] for line in text.splitlines()
             for mark in ("step ", EXAMPLES[example]) if mark in line]
    if done.returncode != 0 or not any(line.startswith(EXAMPLES[example]) for line in lines):
        print("FAILED", *command, "exit code", done.returncode)
        print(text)
        sys.exit(1)
    return sorted(set(lines))


def main(binaries):
    for example in EXAMPLES:
        alone = numbers_of(example, [f"{binaries}/{example}"])
        for ranks in (2, 4):
            together = numbers_of(example, [f"{binaries}/troupe", "launch", "--standalone", "--nproc-per-node",
                                            str(ranks), "--", f"{binaries}/{example}"])
            if together != alone:
                print(f"FAILED {example} on {ranks} ranks prints\n", together, "\nand alone\n", alone)
                return 1
            print("ok    ", example, "on", ranks, "ranks:", alone[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
