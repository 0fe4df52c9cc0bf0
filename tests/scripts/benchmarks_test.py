"""What scripts/benchmarks makes of what programs print, and which claims it says a recorded run does not fulfil."""

import copy
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import benchmark_sections  # noqa: E402
from benchmark_sections import SECTIONS, Section, at_least, at_most  # noqa: E402

BINARIES = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
loader = importlib.machinery.SourceFileLoader("benchmarks", str(ROOT / "scripts/benchmarks"))
benchmarks = importlib.util.module_from_spec(importlib.util.spec_from_loader("benchmarks", loader))
loader.exec_module(benchmarks)

PART = {"machine": {"processors": 2, "model": "a model", "memory_gib": 24, "kernel": "6.1"}, "date": "2026-11-27",
        "commit": "0123456789ab", "load_before": 0.1, "quick": False, "seconds": 3, "commands": ["a command"]}


def fulfilled():
    """A recorded run whose medians are what is claimed."""
    return {"sections": {section.name: {**PART, "figures": {name: [claim.limit] * 3
                                                            for name, claim in section.claims.items()}}
                         for section in SECTIONS}}


def run(record, *words):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "benchmarks.json"
        path.write_text(record if isinstance(record, str) else json.dumps(record))
        command = [sys.executable, ROOT / "scripts/benchmarks", "--record", path, *words]
        done = subprocess.run(command, capture_output=True, text=True)
        page = path.with_suffix(".md")
        return done.returncode, done.stdout + done.stderr, page.read_text() if page.exists() else ""


class Checks(unittest.TestCase):
    def test_a_run_that_fulfils_its_claims_has_no_complaint(self):
        status, said, page = run(fulfilled(), "--render")
        self.assertEqual((status, said.splitlines()[-1].split(",")[1]), (0, " 0 complaints"), said)
        self.assertIn("commit 0123456789ab, 2 processors (a model)", page)
        self.assertIn("| ZeRO-1, 1024 ranks: s | 2.50–2.50–2.50 | at most 2.5 |", page)

    def test_each_planted_regression_is_named(self):
        for section in SECTIONS:
            for name, claim in section.claims.items():
                record = fulfilled()
                worse = claim.limit * 0.9 if claim.at_least else claim.limit * 1.1
                record["sections"][section.name]["figures"][name] = [claim.limit, worse, worse]
                self.assertEqual(benchmarks.complaints(record),
                                 [f"{section.name}: {name}: claimed {claim}, measured {benchmarks.shown(worse)}"])
        status, said, _ = run(record, "--render")
        self.assertEqual(status, 1)
        self.assertIn(f"{section.name}: {name}: claimed {claim}", said)

    def test_one_bad_round_of_three_is_no_regression(self):
        record = fulfilled()
        record["sections"]["plan"]["figures"]["ZeRO-1, 1024 ranks: s"] = [2.4, 2.4, 9]
        self.assertEqual(benchmarks.complaints(record), [])

    def test_what_was_not_measured_is_named(self):
        record = fulfilled()
        del record["sections"]["plan"]
        record["sections"]["torch_saves"] = {**PART, "figures": {}, "skipped": "it needs --python PYTHON with torch"}
        del record["sections"]["experts"]["figures"]["dispatch and combine, of two plain exchanges"]
        self.assertEqual(benchmarks.complaints(record), [
            "experts: dispatch and combine, of two plain exchanges: claimed at most 1.5, but not in the record",
            "plan: not measured: not in the record",
            "torch_saves: not measured: it needs --python PYTHON with torch"])

    def test_a_page_that_is_not_the_records_is_named(self):
        status, said, _ = run(fulfilled(), "--check")
        self.assertEqual(status, 1)
        self.assertIn("benchmarks.md is not what the record says", said)

    def test_what_is_no_record_is_refused(self):
        for text in ("{", "[]", "{}", '{"sections": {}}'):
            status, said, _ = run(text, "--check")
            self.assertEqual(status, 2, said)

    def test_sections_that_were_measured_another_time_say_so(self):
        record = fulfilled()
        record["sections"]["plan"] = {**copy.deepcopy(record["sections"]["plan"]), "date": "2026-12-24",
                                      "load_before": 7.5}
        page = benchmarks.document(record)
        self.assertIn("2026-11-27, commit", page)
        self.assertIn("2026-12-24, commit", page)
        self.assertIn("load 7.5", page)

    def test_the_page_of_the_project_is_what_its_record_says(self):
        if not benchmarks.RECORD.exists():
            self.skipTest("no run is recorded")
        page = benchmarks.RECORD.with_suffix(".md").read_text()
        self.assertEqual(page, benchmarks.document(json.loads(benchmarks.RECORD.read_text())))


class Canned(benchmark_sections.Tools):
    """Says what programs print."""

    def __init__(self):
        super().__init__("/bin", "python3", True)

    def run(self, *command):
        words = [str(each) for each in command]
        return json.dumps(self.answer(words)), 1.5, 300.0

    def answer(self, words):
        def after(option):
            return words[words.index(option) + 1]

        name = Path(words[0]).name
        if "step" in words:
            return [{"strategy": strategy, "overlap": overlap, "step_seconds": 0.06, "communication_seconds": 0.01,
                     "exposed_communication_seconds": 0.002, "launch_p50_microseconds": 40, "device_bytes": 1 << 25,
                     "launch_p99_microseconds": 150, "messages_per_step": 112}
                    for strategy in (after("--strategy").split(",") if "--strategy" in words else ["zero1"])
                    for overlap in (False, True)]
        if "collectives" in words:
            return [{"backend": backend, "operation": operation, "ranks": ranks, "bytes": 64 << 20, "seconds": 0.02}
                    for backend in ("shared_memory", "tcp", "loopback") for operation in after("--operations").split(",")
                    for ranks in (2, 4)]
        if "checkpoint" in words:
            return {key: 0.5 for key in ("step_seconds", "stall_seconds", "memcpy_seconds", "first_stall_seconds",
                                         "durable_seconds", "plain_write_seconds", "load_seconds",
                                         "plain_read_seconds")}
        if "load" in words:
            return [{"strategy": "ddp", "ranks": 2, "cached": True, "read_seconds": 1, "exchange_seconds": 2}]
        if "moe" in words:
            return {"ratio": 1.2, "dispatch_seconds": 0.004, "combine_seconds": 0.005}
        if "pipeline" in words:
            return [{"schedule": schedule, "bubble_to_theory": 1.01}
                    for schedule in ("gpipe", "1f1b", "interleaved", "zero_bubble")]
        if name == "bench_kernels":
            return [{"kernel": kernel, "of_triad": 0.9}
                    for kernel in ("add_squares f32", *(f"cast {pair}" for each in ("f16", "bf16", "f8_e4m3", "f8_e5m2")
                                                        for pair in (f"f32 to {each}", f"{each} to f32")))]
        if name == "bench_plan":
            return [{"form": "ZeRO-1", "ranks": 1024, "total_seconds": 2, "manifest_bytes": 28_000_000}]
        if name == "recovery_times":
            return {way: [30.0, 40.0] for way in ("spare", "fewer", "in-place", "restart")}
        return self.peer_answer(Path(words[1]).name)

    @staticmethod
    def peer_answer(script):
        return {
            "torch_updates.py": {"rows": [{"ranks": ranks, "milliseconds": {"torch": [80], "ddp": [40], "zero1": [40]},
                                           "of_torch": {"ddp": [0.5], "zero1": [0.5]}} for ranks in (1, 2)]},
            "torch_steps.py": {"median_ms": {"DDP over Gloo": 110, "troupe.torch ddp": 80, "troupe.torch zero1": 80,
                                             "FSDP2 over Gloo": 210, "troupe.torch zero3": 100}},
            "torch_collectives.py": {"rows": [{"operation": operation, "size": size, "ranks": ranks, "ratio": 3,
                                               "troupe_us": [1, 2, 3]}
                                              for operation in ("all_reduce", "all_gather", "reduce_scatter")
                                              for size in ("4 KiB", "256 KiB", "64 MiB") for ranks in (2, 4)]},
            "torch_saves.py": {"troupe_ms": 27, "dcp_ms": 69, "trainer_call_ms": 0.1, "fsdp_call_ms": 30,
                               "trainer_step_ms": 20, "fsdp_step_ms": 90},
            "simulate": {},
        }.get(script, {})


class Measures(unittest.TestCase):
    def test_every_claim_is_about_a_figure_that_its_section_measures(self):
        for section in SECTIONS:
            figures = section.measure(Canned())
            self.assertTrue(figures, section.name)
            self.assertEqual(sorted(set(section.claims) - set(figures)), [], section.name)

    def test_a_program_that_fails_is_said_and_the_others_are_measured(self):
        def fail(_):
            raise RuntimeError("bin/troupe ended with status 1")

        options = type("Options", (), {"binaries": "/bin", "python": None, "quick": True})
        part = benchmarks.measured(Section("name", "Title", "Text.", fail), options)
        self.assertEqual(part["skipped"], "it failed: bin/troupe ended with status 1")
        part = benchmarks.measured(Section("name", "Title", "Text.", fail, {}, True), options)
        self.assertIn("--python", part["skipped"])

    def test_claims_bound_from_either_side(self):
        self.assertTrue(at_most(2).holds(2) and not at_most(2).holds(2.1))
        self.assertTrue(at_least(2).holds(2) and not at_least(2).holds(1.9))

    def test_a_real_program_is_measured(self):
        if BINARIES is None:
            self.skipTest("no programs are named")
        status, said, page = run({"sections": {}}, "--sections", "pipeline", "--binaries", str(BINARIES), "--quick")
        self.assertEqual(status, 1, said)  # the other sections were not measured
        self.assertNotIn("pipeline:", said)
        self.assertIn("| gpipe, 4 stages: bubble, of the theory | 1.0", page)


if __name__ == "__main__":
    unittest.main()
