"""What gpu_check makes of a machine that lacks things, of a run that is cut off, and of what programs say, with
stand-ins for programs, libraries and tools."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import gpu_benchmarks  # noqa: E402
import gpu_checks  # noqa: E402
import gpu_machine  # noqa: E402
import gpu_pack  # noqa: E402
import gpu_rows  # noqa: E402
from gpu_checks import NO_TIME, NOT_FOUND, NOT_SUPPORTED, Section, command_row  # noqa: E402

TESTS = "echo '[  PASSED  ] 3 tests.'\n"
CLEAN = "echo '========= ERROR SUMMARY: 0 errors'\n"
OPTIONS = "shift 8\n"
KERNELS = json.dumps({"kernels": [{"name": name, "bytes": 1000, "seconds": 1e-6, "ratio": ratio} for name, ratio in (
    ("copy", 1), ("cast", 0.91), ("sum", 0.84), ("copy to staging", 1), ("copy to staging in chunks", 0.97))]})
EVERYTHING = {"gpu": 1, "nccl": "NCCL", "cublas": "cuBLAS", "torch": "2"}


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.checks = gpu_checks.Checks(self.folder / "out", 1)

    def packed(self, name, text):
        return program(self.folder / "pack/bin" / name, text)

    def rows(self, sanitizer=None, **has):
        return gpu_rows.Rows(self.checks, self.folder / "pack", {**EVERYTHING, **has}, sanitizer)

    def run_all(self, rows, seconds=30):
        self.checks.run([Section(seconds, rows)])
        return [row.outcome for row in rows]

    def table(self):
        facts = json.loads((self.folder / "out/gpu_check.json").read_text())
        return {row["check"]: row["outcome"] for row in facts["checks"]}


class Rows(InAFolder):
    def test_the_table_names_all_rows_before_the_first_has_ended(self):
        def look(checks, limit):
            return "passed", str(self.table())
        first, second = gpu_checks.Row("first", 5, look), command_row("second", ["true"], 5)
        self.assertEqual(self.run_all([first, second]), ["passed", "passed"])
        self.assertEqual(first.figure, "{'first': 'running', 'second': 'not run'}")
        self.assertEqual(self.table(), {"first": "passed", "second": "passed"})

    def test_what_hangs_fails_at_its_limit_with_what_it_started(self):
        held = self.folder / "held"
        os.mkfifo(held)
        reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        # The child has a process group of its own, as ranks have.
        row = command_row("hangs", ["bash", "-c", 'set -m; sleep 1000 >"$0" & wait', str(held)], 2)

        self.assertEqual(self.run_all([row]), ["FAILED (longer than 2 s)"])

        os.set_blocking(reader, True)
        self.assertEqual(os.read(reader, 1), b"", "ends when the last writer has")

    def test_a_row_that_does_not_fit_is_said_and_is_no_success(self):
        self.checks.seconds = 0
        self.assertEqual(self.run_all([command_row("late", ["true"], 60)]), [NO_TIME])
        self.assertEqual(self.checks.status(), 1)

    def test_a_section_that_takes_too_long_leaves_the_others_their_time(self):
        now = [self.checks.began]
        order = []

        def row(name, seconds):
            def make(checks, limit):
                order.append(name)
                now[0] += seconds
                return "passed", ""
            return gpu_checks.Row(name, 10, make)
        rows = [row(f"slow {i}", 3) for i in range(6)]
        self.checks.seconds = 13
        with mock.patch.object(gpu_checks.time, "monotonic", lambda: now[0]):
            self.checks.run([Section(1, rows), Section(1, [row("quick", 0)])])

        self.assertEqual(order, ["slow 0", "slow 1", "quick", "slow 2", "slow 3"], "the rest is theirs again")
        self.assertEqual([row.outcome for row in rows[-2:]], [NO_TIME] * 2)

    def test_a_run_that_is_stopped_between_two_rows_says_so(self):
        first, second = gpu_checks.Row("first", 5, lambda checks, limit: ("passed", "")), command_row("second", ["true"], 5)
        save = self.checks.save

        def save_and_stop():
            save()
            if first.outcome == "passed" and not self.checks.is_stopped:
                self.checks.stop()
        with mock.patch.object(self.checks, "save", save_and_stop):
            self.assertEqual(self.run_all([first, second]), ["passed", "not run"])
        self.assertTrue((self.folder / "out/gpu_check.md").read_text().splitlines()[0].count("; cut off; 1 of 2 rows"))

    def test_a_signal_while_a_table_is_written_leaves_the_later_one_whole(self):
        path = self.folder / "table"
        sync = os.fsync

        def replace_inside(descriptor):
            with mock.patch.object(gpu_checks.os, "fsync", sync):
                gpu_checks.replace(path, "the handler's")
            raise SystemExit(1)
        with mock.patch.object(gpu_checks.os, "fsync", replace_inside), self.assertRaises(SystemExit):
            gpu_checks.replace(path, "the table of before, which is longer")
        self.assertEqual(path.read_text(), "the handler's")
        self.assertEqual(list(self.folder.glob("table*")), [path])

    def test_a_failure_without_the_refusal_stays_one(self):
        row = command_row("fails", ["sh", "-c", "echo no memory; exit 3"], 10, refusal="Device not supported")
        self.assertEqual(self.run_all([row]), ["FAILED (3)"])
        self.assertEqual(row.figure, "no memory")

    def test_a_program_that_is_not_there_fails(self):
        self.assertIn("FAILED", self.run_all([command_row("none", [self.folder / "none"], 10)])[0])

    def test_what_the_machine_lacks_is_said_and_is_no_failure(self):
        rows = self.rows(nccl=None).sections()
        groups = [row for row in rows[1].rows]
        self.assertEqual(self.run_all(groups), [NOT_FOUND] * 3)
        self.assertEqual(groups[0].figure, "needs nccl")
        self.assertEqual(self.checks.status(), 0)

    def test_every_row_has_a_name_of_its_own(self):
        names = [row.name for section in self.rows().sections() for row in section.rows]
        self.assertEqual(len(names), len(set(names)))


class CutOff(InAFolder):
    """The whole script, over a pack of stand-ins, is ended from outside."""

    def setUp(self):
        super().setUp()
        self.packed_at = self.pack()

    def pack(self):
        root = self.folder / "made"
        for name in gpu_pack.TARGETS:
            program(root / "bin" / name, f"echo {gpu_pack.PLACEHOLDER} >/dev/null\nsleep 0.5\n" + TESTS)
        (root / "lib").mkdir()
        (root / "lib" / gpu_pack.LOADER).touch()
        (root / "manifest.json").write_text(json.dumps({"emulated": True, "date": "today", "commit": "abc"}))
        target = self.folder / "packed"
        target.mkdir()
        with tarfile.open(target / gpu_pack.ARCHIVE, "w:xz") as tar:
            for entry in root.iterdir():
                tar.add(entry, entry.name)
        return target

    def start(self, *more, **how):
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, SCRIPTS / "gpu_check", "--packed", self.packed_at, "--out", out, "--work",
             self.folder / "work", *more], stdout=subprocess.DEVNULL, **how)

    def test_some_rows_run_by_their_names(self):
        self.assertEqual(self.start("--only", "^(kernels|beside a trainer)$").wait(timeout=60), 0)
        self.assertEqual(self.table(), {"beside a trainer": "passed", "kernels": "passed"})

    def test_names_that_no_row_has_are_refused(self):
        for pattern, said in (("kernals", "no row's name has 'kernals'"), ("(", "is not a regular expression")):
            process = self.start("--only", pattern, stderr=subprocess.PIPE, universal_newlines=True)
            _, found = process.communicate(timeout=60)
            self.assertNotEqual(process.returncode, 0)
            self.assertIn(said, found)

    def wait_for(self, process, ended):
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up and process.poll() is None:
            table = self.table()
            if sum(outcome not in ("not run", "running") for outcome in table.values()) >= ended and table:
                return
            time.sleep(0.02)
        self.fail("the run did not get there")

    def test_at_any_moment_leaves_a_table_of_what_has_ended(self):
        for ended in (0, 1, 3, 6):
            (self.folder / "out/gpu_check.json").write_text('{"checks": []}')
            process = self.start()
            self.wait_for(process, ended)
            process.kill()
            process.wait()
            self.assertFalse(self.programs_left(), "what it had started ended with it")
            table = self.table()
            outcomes = list(table.values())
            self.assertGreaterEqual(sum(outcome == "passed" for outcome in outcomes), min(ended, 3))
            self.assertIn("not run", outcomes)
            self.assertLessEqual(outcomes.count("running"), 4, "as many as are made at once")
            markdown = (self.folder / "out/gpu_check.md").read_text()
            self.assertEqual(markdown.count("\n|"), len(outcomes) + 2)
            # The one is written after the other.
            self.assertIn(outcomes.count("not run") - markdown.count("| not run |"), (0, 1))

    def programs_left(self):
        give_up = time.monotonic() + 10
        while time.monotonic() < give_up:
            left = [path for path in pathlib.Path("/proc").glob("[0-9]*/exe") if self.is_ours(path)]
            if not left:
                return []
            time.sleep(0.05)
        return left

    def is_ours(self, path):
        try:
            return str(self.folder / "work") in (path.parent / "cmdline").read_text()
        except OSError:
            return False

    def test_by_a_signal_says_so(self):
        (self.folder / "out/gpu_check.json").write_text('{"checks": []}')
        process = self.start()
        self.wait_for(process, 1)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 1)
        # A row was on its way or none, just between two.
        self.assertIn("cut off", json.loads((self.folder / "out/gpu_check.json").read_text())["head"])
        self.assertNotIn("running", self.table().values())

    def test_a_pack_that_is_damaged_is_refused(self):
        target = self.packed_at
        archive = target / gpu_pack.ARCHIVE
        archive.write_bytes(archive.read_bytes()[:-100])
        refused = subprocess.run([sys.executable, SCRIPTS / "gpu_check", "--packed", target, "--out",
                                  self.folder / "out", "--work", self.folder / "work"], stderr=subprocess.PIPE,
                                 universal_newlines=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("copy it here again", refused.stderr)

    def test_a_folder_without_a_pack_is_refused(self):
        with self.assertRaises(SystemExit) as refused:
            gpu_pack.unpack(self.folder, self.folder / "root")
        self.assertIn("scripts/gpu_check --pack", str(refused.exception))


class Sanitizer(InAFolder):
    def sanitize(self, sanitizer):
        self.packed("gpu_tests", TESTS)
        # A launcher of as many ranks as it is told.
        self.packed("troupe", 'ranks=$4\nshift 5\nfor rank in $(seq $ranks); do "$@" || exit 1; done\n')
        self.packed("troupe-gpt", "exit 0\n")
        tool = sanitizer and program(self.folder / "sanitizer", sanitizer)
        self.made = self.rows(tool).sanitized()
        return self.run_all(self.made)

    def test_no_errors_in_every_suite_and_rank_pass(self):
        self.assertEqual(self.sanitize(OPTIONS + '"$@"\n' + CLEAN), ["passed"] * 4)

    def test_the_rehearsals_stand_in_is_such_a_one(self):
        self.checks.emulated = True
        self.assertEqual(self.sanitize(None), ["passed"] * 4)

    def test_an_error_fails_whatever_the_exit_status(self):
        found = self.sanitize(OPTIONS + '"$@"\necho "========= ERROR SUMMARY: 12 errors"\n')
        self.assertEqual(found, ["FAILED"] * 4)
        self.assertIn("12 errors", self.made[0].figure)
        self.assertEqual(self.checks.status(), 1)

    def test_a_rank_without_a_summary_fails(self):
        lost = OPTIONS + '"$@"\n[ -e "$0.once" ] && [ "${1%gpt}" != "$1" ] && exit 0\n[ "${1%gpt}" = "$1" ] || touch "$0.once"\n'
        self.assertEqual(self.sanitize(lost + CLEAN)[-1], "FAILED")

    def test_tests_that_skip_fail(self):
        self.assertEqual(self.sanitize("echo '[  SKIPPED ] A.b'\n" + TESTS + CLEAN)[0], "FAILED")

    def test_a_device_that_it_does_not_support_is_no_failure(self):
        found = self.sanitize("echo '========= Error: Device not supported. Please refer to...'\nexit 1\n")
        self.assertEqual(found, [NOT_SUPPORTED] * 4)
        self.assertEqual(self.checks.status(), 0)

    def test_none_is_said(self):
        self.assertEqual(self.sanitize(None), [NOT_FOUND] * 4)


class Bits(InAFolder):
    def train(self, losses):
        """A launcher whose jobs have these losses, by their number of ranks."""
        cases = "\n".join(f'{ranks}) loss={loss};;' for ranks, loss in losses.items())
        self.packed("troupe", f'case $4 in\n{cases}\nesac\nwhile [ "$1" != --output ]; do shift; done\nmkdir -p "$2"\n'
                    'echo "{\\"type\\": \\"step\\", \\"loss\\": $loss}" >"$2/run.jsonl"\n')
        made = self.rows().equal("f32", [(1, ()), (2, ()), (4, ())], "the same bits")
        self.run_all(made)
        return made[-1]

    def test_equal_losses_pass(self):
        self.assertEqual(self.train({1: 2.5, 2: 2.5, 4: 2.5}).outcome, "passed")

    def test_a_loss_that_differs_fails(self):
        self.assertEqual(self.train({1: 2.5, 2: 2.5, 4: 2.5000001}).outcome, "FAILED")

    def test_a_job_that_did_not_end_leaves_the_claim_open(self):
        claim = self.train({1: 2.5, 2: 2.5, 4: "no number"})
        self.assertEqual((claim.outcome, claim.figure), (NO_TIME, "2 of 3 jobs ended, with the same losses"))


class Libraries(InAFolder):
    NAME = "libnccl-of-a-test.so.2"
    NCCL = "int ncclGetVersion(int* version) { *version = %d; return 0; }"

    def library(self, path, source):
        path.parent.mkdir(parents=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", path], input=source, text=True, check=True)

    def test_nccl_comes_from_the_wheels_before_the_loaders(self):
        self.library(self.folder / "loader" / self.NAME, self.NCCL % 22703)
        wheel = self.folder / "nvidia/nccl"
        self.library(wheel / "lib" / self.NAME, self.NCCL % 22809)
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "LD_LIBRARY_PATH": str(self.folder / "loader")}
        environment.pop("TROUPE_NCCL_LIBRARY", None)

        found = gpu_machine.find_nccl(environment, gpu_machine.wheels(environment), self.NAME)

        self.assertEqual(found, "NCCL 2.28.9 (PyTorch's)")
        self.assertEqual(environment["TROUPE_NCCL_LIBRARY"], str(wheel / "lib" / self.NAME))

    def test_nccl_is_the_loaders_where_there_are_no_wheels(self):
        self.library(self.folder / "loader" / self.NAME, self.NCCL % 22703)
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.folder / "loader")}
        self.assertEqual(gpu_machine.find_nccl(environment, [], self.NAME), "NCCL 2.27.3 (the loader's)")
        self.assertNotIn("TROUPE_NCCL_LIBRARY", environment)

    def test_where_there_is_no_nccl_none_is_found(self):
        self.assertIsNone(gpu_machine.find_nccl({"PATH": os.environ["PATH"]}, [self.folder], self.NAME))

    def test_cublas_of_the_wheels_is_shown_to_the_loader(self):
        wheel = self.folder / "cu9913"
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/before"}
        # A number of its own, so that no library of this machine has the name.
        self.assertIsNone(gpu_machine.find_cublas(environment, [wheel], (9914, 9913)))
        self.library(wheel / "lib/libcublas.so.9913", "")

        self.assertEqual(gpu_machine.find_cublas(environment, [wheel], (9914, 9913)), "libcublas.so.9913")

        self.assertEqual(environment["LD_LIBRARY_PATH"], f"/before:{wheel}/lib")

    def test_the_drivers_folder_is_shown_to_the_packed_loader(self):
        self.library(self.folder / "nvidia/lib64/libcuda.so.1", "")
        environment = {"PATH": os.environ["PATH"]}
        self.assertTrue(gpu_machine.find_driver(environment, [self.folder / "nvidia/lib64"]))
        self.assertTrue(environment["LD_LIBRARY_PATH"])


class Benchmarks(InAFolder):
    def train(self, seconds):
        """A trainer whose steps took so long."""
        usual = {"type": "step", "communication_seconds": 0.5, "exposed_communication_seconds": 0.1}
        steps = [{**usual, "step": step, "step_seconds": time, "tokens_per_second": 100 / time}
                 for step, time in enumerate(seconds)]
        lines = "\n".join(map(json.dumps, steps))
        self.packed("troupe", f"[ $1 = bench ] && echo '{KERNELS}' && exit 0\n"
                    'while [ "$1" != --output ]; do shift; done\nmkdir -p "$2"\n'
                    f"cat >\"$2/run.jsonl\" <<'END'\n{lines}\nEND\n")
        return gpu_benchmarks.Benchmarks(self.rows(torch=None))

    def results(self, rows):
        self.run_all(rows)
        return [(row.name.split(", ")[-1], row.outcome, row.figure) for row in rows]

    def test_a_save_costs_what_the_steps_beside_its_copies_took_longer(self):
        seconds = [9, 9, 9, *[2] * 21]
        seconds[8], seconds[16] = 2.02, 2.1
        self.assertEqual(self.results(self.train(seconds).more_rows()[:2]), [
            ("saving every 8 steps", "passed", "step 2000.0 ms, beside copies 2020.0, 2100.0 ms"),
            ("what a save adds to the step beside it", "misses its goal", "3.0%, goal: at most 1%")])

    def test_kernels_have_goals_and_none_where_nothing_was_measured(self):
        rows = self.train([9, 9, 9, 2]).rows()[:3]
        self.assertEqual(self.results(rows)[1:], [
            ("the slowest kernel against a copy", "misses its goal", "84.0%, goal: at least 85%"),
            ("staging in chunks against one copy to pinned memory", "passed", "97.0%, goal: at least 95%")])
        self.assertEqual(self.results(self.train([9]).rows()[1:3])[0][1:], (NO_TIME, "nothing was measured"))

    def test_overlap_is_told_by_what_stays_exposed(self):
        found = self.results(self.train([9, 9, 9, 2, 2, 2, 2, 2]).overlap())
        self.assertEqual([row[:2] for row in found], [("with overlap", "passed"), ("without overlap", "passed")])
        self.assertEqual(found[0][2],
                         "step 2000.0 ms, communication 500.0 ms, exposed 100.0 ms (5.0% of the step)")

    def test_speed_is_compared_with_the_fastest_peer(self):
        benchmarks = self.train([9, 9, 9, 2, 2, 2])
        benchmarks.peers = [40, 25]
        goal = self.checks.goal("tokens/s against PyTorch's best", benchmarks.against_peers, least=1)
        self.assertEqual(self.results([benchmarks.throughput(), goal])[1],
                         ("tokens/s against PyTorch's best", "passed", "125.0%, goal: at least 100%"))

    def test_a_made_up_model_is_a_file_of_its_tensors(self):
        gpu_benchmarks.write_grouped_model(self.folder / "model", small=True)
        data = (self.folder / "model/model.safetensors").read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        ends = [tensor["data_offsets"][1] for tensor in header.values()]
        self.assertEqual(begin + max(ends), len(data))
        norm = begin + header["model.norm.weight"]["data_offsets"][0]
        self.assertEqual(data[norm:norm + 4], b"\x80\x3f" * 2)

    def test_a_run_without_steps_has_no_figure_and_fails(self):
        self.assertEqual(self.results([self.train([]).throughput()])[0][1], "FAILED")


if __name__ == "__main__":
    unittest.main()
