"""Runs the commands that README.md shows, as a newcomer would type them.

Usage: documented_commands_test.py BIN_DIRECTORY
`scripts/demo` and `scripts/test` are not run from here: the second runs this test, and both run in a fresh root in
scripts/prove_fresh. Commands that train or measure for long are shortened by further options.
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREFIX = "build/release/bin/"
MODEL = os.path.join(ROOT, "tests/golden/models/Qwen3-8B.json")
SHORTER = {
    "bin/troupe-gpt": " --preset tiny --steps 3 --batch 2 --evaluation-batches 1 --sample-bytes 20",
    "bench step": " --steps 5 --layer-milliseconds 0.2",
    "bench checkpoint": " --repeats 1",
    "bench kernels": " --mib 1 --repeats 1",
    "bench collectives": " --bytes 4096,1048576",
    "simulate": " --json",
}
EXIT_CODES = {"diagnose": 3}  # there is no record: no job has failed


def documented_commands():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
        blocks = re.findall(r"```sh\n(.*?)```", readme.read(), re.S)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(PREFIX)]


def main(binaries):
    commands = documented_commands()
    if len(commands) < 6:
        print("README.md shows only", len(commands), "commands; has its form changed?")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        text = os.path.join(scratch, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.write("in the beginning was the word, and the word was with light. " * 500)
        for shown in commands:
            command = shown + next((more for key, more in SHORTER.items() if key in shown), "")
            for word, stands_for in (PREFIX, binaries + "/"), ("FILE", text), ("DIR", scratch + "/run"), ("MODEL", MODEL):
                command = command.replace(word, stands_for)
            done = subprocess.run(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=100, check=False)
            expected = next((code for key, code in EXIT_CODES.items() if key in shown), 0)
            print("ok    " if done.returncode == expected else "FAILED", shown)
            if done.returncode != expected:
                print(done.stdout.decode(errors="replace"))
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
