"""What gpu_check makes of a machine that lacks things, and of what compute-sanitizer says, with stand-ins for both."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
SCRIPT = Path(__file__).resolve().parents[2] / "scripts/gpu_check"
loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)

TESTS = "echo '[  PASSED  ] 3 tests.'\n"
CLEAN = "echo '========= ERROR SUMMARY: 0 errors'\n"
OPTIONS = "shift 8\n"
KERNELS = json.dumps({"kernels": [{"name": name, "bytes": 1000, "seconds": 1e-6, "ratio": ratio} for name, ratio in (
    ("copy", 1), ("cast", 0.91), ("sum", 0.84), ("copy to staging", 1), ("copy to staging in chunks", 0.97))]})


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.checks = gpu_check.Checks(self.folder / "out", 1, "cuda")

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return str(path)

    def library(self, path, source):
        path.parent.mkdir(parents=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", path], input=source, text=True, check=True)

    def outcomes(self):
        return [row["outcome"] for row in self.checks.rows]


class Sanitizer(InAFolder):
    SUITES = (("kernels", "*Kernels*"), ("device", "*Device*"))

    def sanitize(self, sanitizer, ranks=(), suites=SUITES):
        self.program("gpu_tests", TESTS)
        # A launcher of as many ranks as it is told.
        self.program("troupe", 'ranks=$4\nshift 5\nfor rank in $(seq $ranks); do "$@" || exit 1; done\n')
        self.program("gpt", "exit 0\n")
        gpu_check.run_sanitizer(self.checks, self.folder, sanitizer and self.program("sanitizer", sanitizer), suites,
                                ranks)
        return self.outcomes()

    def test_no_errors_in_every_suite_and_rank_pass(self):
        self.assertEqual(self.sanitize(OPTIONS + '"$@"\n' + CLEAN, (1, 2)), ["passed"] * 4)

    def test_the_rehearsals_stand_in_is_such_a_one(self):
        self.assertEqual(self.sanitize(gpu_check.STAND_IN, (1, 2)), ["passed"] * 4)

    def test_an_error_fails_whatever_the_exit_status(self):
        found = self.sanitize(OPTIONS + '"$@"\necho "========= ERROR SUMMARY: 12 errors"\n', (1,))
        self.assertEqual(found, ["FAILED"] * 3)
        self.assertIn("12 errors", self.checks.rows[0]["figure"])
        self.assertEqual(self.checks.status(), 1)

    def test_a_rank_without_a_summary_fails(self):
        lost = '[ -e "$0.once" ] && exit 0\ntouch "$0.once"\n' + CLEAN
        self.assertEqual(self.sanitize(lost, (2,), suites=()), ["FAILED"])

    def test_tests_that_skip_fail(self):
        self.assertEqual(self.sanitize("echo '[  SKIPPED ] A.b'\n" + TESTS + CLEAN)[0], "FAILED")

    def test_a_device_that_it_does_not_support_is_said_once_and_is_no_failure(self):
        found = self.sanitize("echo '========= Error: Device not supported. Please refer to...'\nexit 1\n", (1, 2, 4))
        self.assertEqual(found, [gpu_check.NOT_SUPPORTED])
        self.assertEqual(self.checks.status(), 0)

    def test_none_is_said(self):
        self.assertEqual(self.sanitize(None), [gpu_check.NOT_FOUND])


class Libraries(InAFolder):
    NAME = "libnccl-of-a-test.so.2"

    def test_nccl_comes_from_the_wheels_where_the_loader_has_none(self):
        wheel = self.folder / "nvidia/nccl"
        self.library(wheel / "lib" / self.NAME, "int ncclGetVersion(int* version) { *version = 22809; return 0; }")
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        environment.pop("TROUPE_NCCL_LIBRARY", None)

        found = gpu_check.find_nccl(environment, gpu_check.wheels(environment), self.NAME)

        self.assertEqual(found, "NCCL 2.28.9 (PyTorch's)")
        self.assertEqual(environment["TROUPE_NCCL_LIBRARY"], str(wheel / "lib" / self.NAME))

    def test_nccl_of_the_loader_goes_first(self):
        for place, version in (("loader", 22703), ("nvidia/nccl/lib", 22809)):
            self.library(self.folder / place / self.NAME,
                         "int ncclGetVersion(int* version) { *version = %d; return 0; }" % version)
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.folder / "loader")}

        found = gpu_check.find_nccl(environment, [self.folder / "nvidia/nccl"], self.NAME)

        self.assertEqual(found, "NCCL 2.27.3 (the loader's)")
        self.assertNotIn("TROUPE_NCCL_LIBRARY", environment)

    def test_where_there_is_no_nccl_none_is_found(self):
        self.assertIsNone(gpu_check.find_nccl({"PATH": os.environ["PATH"]}, [self.folder], self.NAME))

    def test_cublas_of_the_wheels_is_shown_to_the_loader_where_the_toolkit_has_none(self):
        # A number of its own, so that no library of this machine has the name.
        self.program("cuda/bin/nvcc", "echo 'Cuda compilation tools, release 9913.0, V9913.0.88'\n")
        wheel = self.folder / "cu9913"
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/before"}
        self.assertFalse(gpu_check.find_cublas(environment, [wheel], self.folder / "cuda"))
        self.library(wheel / "lib/libcublas.so.9913", "")

        self.assertTrue(gpu_check.find_cublas(environment, [wheel], self.folder / "cuda"))

        self.assertEqual(environment["LD_LIBRARY_PATH"], f"/before:{wheel}/lib")

    def test_headers_of_the_wheels_serve_only_where_the_toolkit_has_none(self):
        header = self.folder / "wheel/include/nccl.h"
        header.parent.mkdir(parents=True)
        header.touch()
        environment = {}
        gpu_check.find_headers(environment, [self.folder / "wheel"], self.folder / "cuda")
        self.assertEqual(environment, {"CMAKE_INCLUDE_PATH": str(header.parent)})

        (self.folder / "cuda/include").mkdir(parents=True)
        (self.folder / "cuda/include/nccl.h").touch()
        environment = {}
        gpu_check.find_headers(environment, [self.folder / "wheel"], self.folder / "cuda")
        self.assertEqual(environment, {})


class Benchmarks(InAFolder):
    def steps(self, seconds):
        usual = {"type": "step", "communication_seconds": 0.5, "exposed_communication_seconds": 0.1}
        return [{**usual, "step": step, "step_seconds": time, "tokens_per_second": 100 / time}
                for step, time in enumerate(seconds)]

    def train(self, seconds):
        """A trainer whose steps took so long."""
        lines = "\n".join(map(json.dumps, self.steps(seconds)))
        self.program("troupe", 'while [ "$1" != --output ]; do shift; done\nmkdir -p "$2"\n'
                               f"cat >\"$2/run.jsonl\" <<'END'\n{lines}\nEND\n")
        return gpu_check.gpu_benchmarks.Training(self.checks, self.folder)

    def rows(self):
        return [(row["check"].split(", ")[-1], row["outcome"], row["figure"]) for row in self.checks.rows]

    def test_a_save_costs_what_the_steps_beside_its_copies_took_longer(self):
        seconds = [9, 9, 9, *[2] * 21]
        seconds[8], seconds[16] = 2.02, 2.1
        self.train(seconds).saves()
        self.assertEqual(self.rows(), [
            ("saving every 8 steps", "passed", "step 2000.0 ms, beside copies 2020.0, 2100.0 ms"),
            ("what a save adds to the step beside it", "misses its goal", "3.0%, goal: at most 1%")])

    def test_overlap_is_told_by_what_stays_exposed(self):
        self.train([9, 9, 9, 2, 2, 2, 2, 2]).overlap(4)
        self.assertEqual([row[:2] for row in self.rows()], [
            ("with overlap", "passed"), ("without overlap", "passed"), ("with overlap and registered memory", "passed")])
        self.assertEqual(self.rows()[0][2],
                         "step 2000.0 ms, communication 500.0 ms, exposed 100.0 ms (5.0% of the step)")
        self.assertIn("4 ranks", self.checks.rows[0]["check"])

    def test_models_of_shared_heads_and_of_experts_have_rows(self):
        self.checks.device = "host"  # whose models are small
        self.train([9, 9, 9, 2, 2, 2]).other_models()
        rate = ("passed", "50 tokens/s, step 2000 ms")
        self.assertEqual([(row["check"], row["outcome"], row["figure"]) for row in self.checks.rows], [
            ("apps/gpt Qwen3, heads share keys in fours, 1 rank", *rate), ("apps/gpt tiny, 8 experts, 1 rank", *rate)])

    def test_a_made_up_model_is_a_file_of_its_tensors(self):
        gpu_check.gpu_benchmarks.write_grouped_model(self.folder / "model", small=True)
        data = (self.folder / "model/model.safetensors").read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        ends = [tensor["data_offsets"][1] for tensor in header.values()]
        self.assertEqual(begin + max(ends), len(data))
        norm = begin + header["model.norm.weight"]["data_offsets"][0]
        self.assertEqual(data[norm:norm + 4], b"\x80\x3f" * 2)

    def test_a_run_without_steps_has_no_figure_and_fails(self):
        self.train([]).throughput()
        self.assertEqual(self.outcomes(), ["FAILED"])


class Rows(InAFolder):
    def test_what_hangs_fails_at_its_limit_with_what_it_started(self):
        held = self.folder / "held"
        os.mkfifo(held)
        reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)

        # The child has a process group of its own, as ranks have.
        self.checks.run("hangs", ["bash", "-c", 'set -m; sleep 1000 >"$0" & wait', str(held)], 2)

        self.assertEqual(self.outcomes(), ["FAILED (longer than 2 s)"])
        os.set_blocking(reader, True)
        self.assertEqual(os.read(reader, 1), b"", "ends when the last writer has")

    def test_what_has_no_time_left_is_said_and_is_no_success(self):
        late = gpu_check.Checks(self.folder / "late", 0, "cuda")
        late.run("late", ["true"], 60)
        self.assertEqual([row["outcome"] for row in late.rows], ["no time left"])
        self.assertEqual(late.status(), 1)

    def test_a_failure_without_the_refusal_stays_one(self):
        self.checks.run("fails", ["sh", "-c", "echo no memory; exit 3"], 10, refusal="Device not supported")
        self.assertEqual(self.outcomes(), ["FAILED (3)"])
        self.assertEqual(self.checks.rows[0]["figure"], "no memory")

    def test_without_nccl_only_what_needs_none_runs(self):
        self.program("gpu_tests", TESTS)
        self.program("apps_gpt_gpu_tests", TESTS)
        self.program("troupe", f"echo '{KERNELS}'\n")
        machine = type("Machine", (gpu_check.Machine,), {"__init__": lambda self: None})()
        machine.nccl, machine.cublas, machine.cuda = None, True, self.folder
        self.checks.environment["PATH"] = "/usr/bin:/bin"

        gpu_check.run_all(self.checks, self.folder, machine)

        names = [row["check"] for row in self.checks.rows]
        self.assertIn("kernels", names)
        self.assertIn(["the slowest kernel (sum) against a copy", "misses its goal", "84.0%, goal: at least 85%"], [
            [row["check"], row["outcome"], row["figure"]] for row in self.checks.rows])
        self.assertEqual(self.checks.status(), 1)
        self.assertEqual([name for name in names if "NCCL" in name or "ranks" in name or "SIG" in name], [])

    def test_a_folder_without_packages_is_refused(self):
        with self.assertRaises(SystemExit) as refused:
            gpu_check.unpack(self.folder, self.folder / "root")
        self.assertIn("prepare_gpu_deps", str(refused.exception))


if __name__ == "__main__":
    unittest.main()
