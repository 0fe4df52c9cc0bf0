"""Rows of checks on a GPU, each made by a command under a limit of time."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOT_SUPPORTED, NOT_FOUND = "not supported here", "not found here"  # outcomes that are the machine's, not ours
BELOW_GOAL, REHEARSED = "misses its goal", "rehearsed"


class Checks:
    """Runs commands within one budget of time and keeps what became of them."""

    def __init__(self, out, minutes, device):
        self.out = out
        self.device = device
        self.logs = out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.text = out / "text.txt"
        self.text.write_text("".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))))
        self.deadline = time.monotonic() + 60 * minutes
        self.environment = dict(os.environ)
        self.rows = []

    def run(self, name, command, limit, *, environment=None, figure=lambda text: "", passed=lambda text: True,
            refusal=None):
        """One row. `figure` makes its figure of the output, `passed` looks at what the exit status does not say;
        a failure whose output has `refusal` is the machine's."""
        log = self.logs / (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") + ".log")
        limit = min(limit, self.deadline - time.monotonic())
        began = time.monotonic()
        text = ""
        print(f"gpu_check: {name}: ", file=sys.stderr, end="", flush=True)
        if limit < 1:
            outcome = "no time left"
        else:
            outcome = self.execute(command, limit, {**self.environment, **(environment or {})}, log)
            text = log.read_text(errors="replace")
            if outcome == "passed" and not passed(text):
                outcome = "FAILED"
            if outcome != "passed" and refusal is not None and refusal in text:
                outcome = NOT_SUPPORTED
        try:
            said = figure(text) if outcome == "passed" else ""
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            said, outcome = f"no figure in the output: {error}", "FAILED"
        if outcome.startswith("FAILED"):
            last = [line for line in text.splitlines() if line.strip()][-3:]
            said = said or " / ".join(last)[:160]
        print(outcome, said, file=sys.stderr, flush=True)  # in case something ends the whole
        self.rows.append({"check": name, "outcome": outcome, "seconds": round(time.monotonic() - began, 1),
                          "figure": said})
        return outcome == "passed", text

    def note(self, name, outcome, figure=""):
        """A row that no command made."""
        self.rows.append({"check": name, "outcome": outcome, "seconds": 0, "figure": figure})

    def goal(self, name, found, *, least=None, most=None):
        """A row for a measured share, and what it should be."""
        good = found >= least if most is None else found <= most
        said = f"at least {least:.0%}" if most is None else f"at most {most:.0%}"
        # What a rehearsal measures says nothing.
        outcome = REHEARSED if self.device == "host" else "passed" if good else BELOW_GOAL
        self.note(name, outcome, f"{found:.1%}, goal: {said}")

    def status(self):
        return 0 if all(row["outcome"] in ("passed", REHEARSED, NOT_SUPPORTED, NOT_FOUND) for row in self.rows) else 1

    @staticmethod
    def execute(command, limit, environment, log):
        # A session of its own, so that ranks of a job that hangs end with it; a file, since a pipe would wait for
        # whatever still holds it.
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            end_session(process.pid)
            process.wait()
            return f"FAILED (longer than {limit:.0f} s)"
        return "passed" if status == 0 else f"FAILED ({status})"


def end_session(leader):
    """Kills what is left of a session, process groups of its own in it too."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue  # it has ended, or is not ours to see


def python(environment, program, *arguments):
    """What the python3 on PATH says, or None when it fails."""
    asked = subprocess.run(["python3", "-c", program, *arguments], env=environment, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else None


def job(checks, binaries, ranks, *arguments, under=()):
    """apps/gpt as a job of `ranks` on the GPUs of this machine. Ranks that share one are slow."""
    return [str(binaries / "troupe"), "launch", "--standalone", "--nproc-per-node", str(ranks), "--", *under,
            str(binaries / "gpt"), "--device", checks.device, "--sample-bytes", "0", "--evaluate-every", "0",
            "--text", str(checks.text), *arguments]


def records(folder):
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["type"] == "step"]
    ends = [line["text"] for line in lines if line["type"] == "event" and line["kind"] == "end"]
    return steps, ends[-1] if ends else "no end"
