#!/usr/bin/env python3
"""Processes of troupe.torch that stay when another rank is lost: they keep their place, PyTorch and the state."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = 200
PATIENCE = 120


class Job:
    """Three ranks of stays.py, of which one is killed after some steps; or one rank, undisturbed."""

    def __init__(self, strategy, *flags, ranks=3, fewest=None, victim=None, after=20, pace=0):
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            command = [sys.executable, "-m", "troupe.launch", "--standalone", "--nproc-per-node",
                       f"{fewest or ranks}:{ranks}", *flags,
                       str(HERE / "stays.py"), folder, strategy, str(STEPS), str(pace)]
            environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python" / "src"), "OMP_NUM_THREADS": "1"}
            with open(self.folder / "output", "w", encoding="utf8") as output:
                job = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            give_up = time.monotonic() + PATIENCE
            self.killed = None
            while job.poll() is None and time.monotonic() < give_up:
                if victim is not None and self.killed is None and len(self.lines(victim)) >= after:
                    self.killed = int(self.lines(victim)[-1][2])
                    os.kill(self.killed, signal.SIGKILL)
                time.sleep(0.002)
            job.kill()
            self.code = job.wait()
            self.output = (self.folder / "output").read_text(encoding="utf8")
            self.steps = {rank: self.lines(rank) for rank in range(ranks)}
            self.bits = {path.read_text(encoding="utf8") for path in self.folder.glob("bits_*")}

    def lines(self, rank):
        path = self.folder / f"rank_{rank}"
        text = path.read_text(encoding="utf8") if path.exists() else ""
        return [line.split() for line in text[:text.rfind("\n") + 1].splitlines()]


class Stays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.alone = Job("ddp", ranks=1)

    def expect_going_on(self, job, victim, alone=None):
        alone = alone or self.alone
        self.assertEqual(job.code, 0, job.output)
        self.assertIsNotNone(job.killed)
        self.assertEqual(job.bits, alone.bits, job.output)
        losses = {step: loss for step, loss, _ in alone.steps[0]}
        for rank, lines in job.steps.items():
            for step, loss, _ in lines:
                self.assertEqual(loss, losses[step], f"rank {rank}, step {step}")
            processes = {process for _, _, process in lines}
            self.assertEqual(len(processes), 2 if rank == victim else 1, f"rank {rank}: {processes}\n{job.output}")

    def test_no_step_is_taken_twice_where_others_have_the_state(self):
        job = Job("ddp", "--max-restarts", "1", victim=1)
        self.expect_going_on(job, 1)
        for rank in (0, 2):
            self.assertEqual([int(step) for step, _, _ in job.steps[rank]], list(range(STEPS)), job.output)

    def test_steps_after_the_last_save_are_taken_again_where_a_part_was_lost(self):
        for strategy, victim in (("zero1", 2), ("zero3", 0)):
            with self.subTest(strategy=strategy):
                job = Job(strategy, "--max-restarts", "1", victim=victim)
                self.expect_going_on(job, victim)
                self.assertLessEqual(len(job.steps[1]), STEPS + 10, "it went back further than to a recent save")

    def test_experts_that_ranks_share_go_on_from_a_save(self):
        alone = Job("ddp+experts", ranks=1)
        for strategy, victim in (("zero1+experts", 1), ("ddp+experts", 0)):
            with self.subTest(strategy=strategy):
                job = Job(strategy, "--max-restarts", "1", victim=victim)
                self.expect_going_on(job, victim, alone)

    def test_a_spare_without_a_rank_has_no_experts(self):
        job = Job("ddp+experts", "--spares", "1", victim=0)
        self.assertIn("start without --spares", job.output)

    def test_a_spare_takes_the_place(self):
        job = Job("ddp", "--spares", "1", victim=0)
        self.expect_going_on(job, 0)
        self.assertIn("now, the others stay", job.output)

    def test_a_job_goes_on_with_fewer_ranks_and_then_with_more(self):
        for strategy in ("ddp", "zero3"):
            with self.subTest(strategy=strategy):
                job = Job(strategy, "--max-restarts", "1", "--restart-backoff", "0", fewest=2, victim=2, pace=0.03)
                self.expect_going_on(job, 2)
                self.assertIn("the job goes on with 2 ranks", job.output)
                self.assertIn("the job goes on with 3 ranks, 1 more than before", job.output)

    def test_losses_before_the_first_save_begin_anew(self):
        job = Job("zero3", "--max-restarts", "1", victim=1, after=1)
        self.expect_going_on(job, 1)

    def test_a_job_without_restarts_ends_and_says_why(self):
        job = Job("ddp", victim=1)
        self.assertNotEqual(job.code, 0)
        self.assertIn("first failure: rank 1", job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
