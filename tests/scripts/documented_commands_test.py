"""Runs the commands that README.md shows, as a newcomer would type them, and the job of scripts/demo.

Usage: documented_commands_test.py BIN_DIRECTORY
`scripts/demo` and `scripts/test` are not run from here: the second runs this test, and both run in a fresh root in
scripts/prove_fresh. Commands that train or measure for long are shortened by further options.
"""
import json
import os
import re
import shlex
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


def demo_shows_experts(binaries, text, output):
    """The demo's job, with a smaller model and for three steps: whether its experts are distributed."""
    with open(os.path.join(ROOT, "scripts/demo"), encoding="utf-8") as script:
        training = re.search(r"^training=\(\n(.*?)^\)", script.read(), re.S | re.M)[1]
    options = shlex.split(training.replace("$output/text.txt", text).replace("$output", output)
                          .replace("$checkpoints", output + "/checkpoints"), comments=True)
    command = [binaries + "/troupe", "launch", "--standalone", "--nproc-per-node", "4", "--",
               binaries + "/troupe-gpt", *options, "--preset", "tiny", "--steps", "3", "--evaluation-batches", "1",
               "--sample-bytes", "0"]
    subprocess.run(command, check=True, timeout=100, stdout=subprocess.DEVNULL)
    with open(os.path.join(output, "run.jsonl"), encoding="utf-8") as lines:
        record = [json.loads(line) for line in lines]
    sent = {axis["axis"]: axis["bytes"] for line in record for axis in line.get("axes", [])}
    loads = [line for line in record if line.get("layers")]
    return sent.get("experts", 0) > 0 and bool(loads) and os.path.exists(os.path.join(output, "report.html"))


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
        has_experts = demo_shows_experts(binaries, text, scratch + "/demo")
        print("ok    " if has_experts else "FAILED", "scripts/demo distributes experts")
    return 1 if failed or not has_experts else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
