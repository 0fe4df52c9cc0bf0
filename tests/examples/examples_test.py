"""Trains every example alone and on several ranks, which must print the same numbers; some also when a rank is lost
and the others stay.

Usage: examples_test.py BIN_DIRECTORY
"""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


def variables_of(process):
    """A process that has ended, or is not a rank yet, has none."""
    try:
        words = Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def lose_a_rank(binaries, example, ranks=3):
    """What the job prints if its last rank is killed as soon as all take steps."""
    with subprocess.Popen([f"{binaries}/troupe", "launch", "--standalone", "--nproc-per-node", str(ranks),
                           "--max-restarts", "1", "--", f"{binaries}/{example}"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        end = time.monotonic() + 60
        while job.poll() is None and time.monotonic() < end:
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            found = {int(child): variables_of(child) for child in children}
            members = [Path(own["TROUPE_MEMBER_FILE"]) for own in found.values() if "TROUPE_MEMBER_FILE" in own]
            if len(members) == ranks and all(member.exists() for member in members):
                os.kill(next(pid for pid, own in found.items() if own.get("RANK") == str(ranks - 1)), signal.SIGKILL)
                break
        text = job.communicate(timeout=100)[0].decode(errors="replace")
    return job.returncode, text


def check_that_others_stay(binaries, example, alone):
    """A short job may be over before the rank is killed."""
    for _ in range(20):
        code, text = lose_a_rank(binaries, example)
        if "the others stay" in text:
            break
    last = [line for line in alone if line.startswith(EXAMPLES[example])][-1]
    if code != 0 or "the others stay" not in text or last not in text:
        print(f"FAILED {example}, whose last rank was lost: exit code {code}; expected {last}\n{text}")
        return False
    print("ok    ", example, "after the loss of a rank:", last)
    return True


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
        if example in ("mlp", "linear") and not check_that_others_stay(binaries, example, alone):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
