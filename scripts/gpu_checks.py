"""Rows of a table about a GPU: each is made under a limit of time, and kept as soon as it has ended."""
import concurrent.futures
import ctypes
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOT_SUPPORTED, NOT_FOUND = "not supported here", "not found here"  # outcomes that are the machine's, not ours
BELOW_GOAL, REHEARSED = "misses its goal", "rehearsed"
TOO_LONG = "FAILED (longer than"
NOT_RUN, RUNNING, NO_TIME, CUT_OFF = "not run", "running", "no time", "cut off"
LEAST_SECONDS = 2  # with less left, nothing is begun
LOG_BYTES = 60_000  # that are kept of what one row has printed


@dataclasses.dataclass
class Row:
    """`make` gets the checks and a limit in seconds, and returns an outcome and a figure."""
    name: str
    limit: float
    make: Callable
    outcome: str = NOT_RUN
    seconds: float = 0
    figure: str = ""

    def facts(self):
        return {"check": self.name, "outcome": self.outcome, "seconds": self.seconds, "figure": self.figure}


@dataclasses.dataclass
class Section:
    """Rows that together have a part of the time; what they leave is the next ones'. Rows whose seconds say
    nothing are made several at once; those without a command come last there."""
    seconds: float
    rows: list
    at_once: int = 1


def judged(name, judge):
    """A row that no command makes."""
    return Row(name, 0, lambda checks, limit: judge())


def command_row(name, command, limit, *, environment=None, figure=lambda text: "", passed=lambda text: True,
                refusal=None, before=lambda: None):
    """`figure` makes its figure of the output, `passed` looks at what the exit status does not say; a failure whose
    output has `refusal` is the machine's."""
    def make(checks, seconds):
        before()
        outcome, text = checks.execute(name, command, seconds, environment or {})
        if outcome == "passed" and not passed(text):
            outcome = "FAILED"
        if outcome != "passed" and refusal is not None and refusal in text:
            outcome = NOT_SUPPORTED
        said = ""
        if outcome == "passed":
            try:
                said = figure(text)
            except (ValueError, KeyError, IndexError, AttributeError, OSError, StopIteration) as error:
                said, outcome = f"no figure in the output: {error}", "FAILED"
        if outcome.startswith("FAILED"):
            last = [line for line in text.splitlines() if line.strip()][-3:]
            said = said or " / ".join(last)[:160]
        return outcome, said
    return Row(name, limit, make)


class Checks:
    """Runs rows within one budget of time. The table is whole on the disk at any moment."""

    def __init__(self, out, minutes, *, emulated=False, head="", environment=None):
        self.out, self.emulated, self.head = out, emulated, head
        self.out.mkdir(parents=True, exist_ok=True)
        self.work = self.out  # for what programs write; a folder that need not stay
        self.log = self.out / "gpu_check.log"
        self.log.write_text("")
        self.began = time.monotonic()
        self.seconds = 60 * minutes
        self.environment = dict(os.environ if environment is None else environment)
        self.rows = []
        self.running = set()  # process ids
        self.is_stopped = False
        self.saving = threading.RLock()

    def left(self):
        return self.began + self.seconds - time.monotonic()

    def run(self, sections):
        """In order; then what had no time, if there is some left after all."""
        total = sum(section.seconds for section in sections)
        self.rows = [row for section in sections for row in section.rows]
        self.save()
        share = 0
        for section in sections:
            share += section.seconds / total
            self.run_section(section, self.began + share * self.seconds)
        for section in sections:
            late = [row for row in section.rows if row.outcome == NO_TIME]
            self.run_section(dataclasses.replace(section, rows=late), self.began + self.seconds)

    def run_section(self, section, end):
        def run(row):
            self.run_row(row, end - time.monotonic())

        if section.at_once == 1:
            for row in section.rows:
                run(row)
            return
        with concurrent.futures.ThreadPoolExecutor(section.at_once) as pool:
            list(pool.map(run, [row for row in section.rows if row.limit > 0]))
        for row in section.rows:
            if row.limit == 0:
                run(row)

    def run_row(self, row, left):
        if self.is_stopped:
            return
        limit = min(row.limit, left)
        if limit < LEAST_SECONDS and row.limit > 0:
            with self.saving:
                row.outcome = NO_TIME
                return self.save()
        with self.saving:
            row.outcome = RUNNING
            self.save()
        began = time.monotonic()
        outcome, figure = row.make(self, limit)
        if limit < row.limit and outcome.startswith(TOO_LONG):
            outcome = NO_TIME  # the row's own limit was not reached
        with self.saving:
            if self.is_stopped:
                return
            row.outcome, row.figure, row.seconds = outcome, figure, round(time.monotonic() - began, 1)
            self.save()
        print(f"gpu_check: {row.name}: {outcome} {figure}", file=sys.stderr, flush=True)

    def stop(self):
        """Somebody ends the run: its table says so, between two rows as well."""
        with self.saving:
            self.is_stopped = True
            self.head += "; cut off"
            for row in self.rows:
                if row.outcome == RUNNING:
                    row.outcome = CUT_OFF
            self.save()
            for leader in tuple(self.running):
                end_session(leader)

    def save(self):
        with self.saving:
            facts = {"head": self.head, "time": datetime.datetime.now().isoformat(timespec="seconds"),
                     "seconds": round(time.monotonic() - self.began, 1), "checks": [row.facts() for row in self.rows]}
            replace(self.out / "gpu_check.md", self.text())
            replace(self.out / "gpu_check.json", json.dumps(facts, indent=1) + "\n")

    def text(self):
        """The table in Markdown."""
        ended = sum(row.outcome not in (NOT_RUN, RUNNING, NO_TIME, CUT_OFF) for row in self.rows)
        lines = [f"{self.head}; {ended} of {len(self.rows)} rows in {time.monotonic() - self.began:.0f} s", "",
                 "| check | outcome | seconds | figure |", "|---|---|---|---|"]
        lines += ["| {check} | {outcome} | {seconds} | {figure} |".format(**row.facts()) for row in self.rows]
        return "\n".join(lines) + "\n"

    def goal(self, name, found, *, least=None, most=None):
        """A row for a measured share and what it should be; `found()` is None where nothing was measured."""
        def judge():
            share = found()
            if share is None:
                return NO_TIME, "nothing was measured"
            good = share >= least if most is None else share <= most
            said = f"at least {least:.0%}" if most is None else f"at most {most:.0%}"
            # What a rehearsal measures says nothing.
            outcome = REHEARSED if self.emulated else "passed" if good else BELOW_GOAL
            return outcome, f"{share:.1%}, goal: {said}"
        return judged(name, judge)

    def status(self):
        return 0 if all(row.outcome in ("passed", REHEARSED, NOT_SUPPORTED, NOT_FOUND) for row in self.rows) else 1

    def execute(self, name, command, limit, environment):
        """The outcome and what was printed, whose end is also kept in the log."""
        path = self.work / ("output of " + slug(name))
        # A session of its own, so that ranks of a job that hangs end with it; a file, since a pipe would wait for
        # whatever still holds it.
        with path.open("w") as output:
            try:
                process = subprocess.Popen(
                    [str(word) for word in command], cwd=self.work, env={**self.environment, **environment},
                    stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                    preexec_fn=functools.partial(end_with, os.getpid()))
            except OSError as error:
                return f"FAILED ({error})", ""
        self.running.add(process.pid)
        try:
            status = process.wait(timeout=limit)
            outcome = "passed" if status == 0 else f"FAILED ({status})"
        except subprocess.TimeoutExpired:
            outcome = f"{TOO_LONG} {limit:.0f} s)"
        end_session(process.pid)
        process.wait()
        self.running.discard(process.pid)
        text = path.read_text(errors="replace")
        path.unlink()
        with self.saving, self.log.open("a") as log:
            log.write(f"===== {name}: {outcome}\n{' '.join(map(str, command))}\n{text[-LOG_BYTES:]}\n")
            log.flush()
            os.fsync(log.fileno())
        return outcome, text


def replace(path, text):
    """A reader finds the old text or the new one, even after a crash, or where a signal's handler replaces it too."""
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with open(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        pathlib.Path(beside).unlink(missing_ok=True)
        raise


PR_SET_PDEATHSIG = 1
PRCTL = ctypes.CDLL(None).prctl  # looked up here: a new process of one with threads should do little


def end_with(parent):
    """For a new process, whose parent may have ended before it is told."""
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


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
                           stderr=subprocess.DEVNULL, universal_newlines=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else None


def slug(*words):
    return re.sub(r"[^A-Za-z0-9]+", "-", " ".join(map(str, words))).strip("-")


def records(folder):
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["type"] == "step"]
    ends = [line["text"] for line in lines if line["type"] == "event" and line["kind"] == "end"]
    return steps, ends[-1] if ends else "no end"
