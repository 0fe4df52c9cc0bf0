"""What every engine that starts ranks must show; the tests of the engines say how each is started.

Usage of a test: NAME_test.py FOLDER, where FOLDER has troupe, gpt and linear.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else Path()
PATIENCE = 120
GPT = ["--context", "32", "--layers", "2", "--heads", "2", "--width", "32", "--feed-forward", "64", "--lanes", "4",
       "--batch", "1", "--warmup", "0", "--sample-bytes", "0", "--evaluate-every", "0", "--evaluation-batches", "1"]


class Engine(unittest.TestCase):
    """A test of four ranks. Those that derive from it say how they are started."""

    launcher = ""   # as `troupe doctor` calls it
    hosts = {}      # the name of the host of each rank, and how many ranks it has
    ranks = 4

    def command(self, *program):
        """What starts the program as all ranks."""
        raise NotImplementedError

    def environment(self):
        """What the engine's command needs besides."""
        return {}

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)
        self.text = self.path / "text.txt"
        self.text.write_text("".join(f"the quick brown fox {i}\n" for i in range(500)))
        self.mark = "engine-" + secrets.token_hex(8)
        self.memory_before = self.memory()

    def whole_environment(self):
        inherited = {name: value for name, value in os.environ.items()
                     if name == "SLURM_CONF"
                     or not name.startswith(("SLURM_", "PMI", "OMPI_", "RANK", "MASTER_", "TROUPE_"))}
        return inherited | {"OMP_NUM_THREADS": "1", "ENGINE_TEST_MARK": self.mark} | self.environment()

    def start(self, *program):
        return subprocess.Popen(list(map(str, self.command(*program))), env=self.whole_environment(), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish(self, process):
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            self.fail(f"no end within {PATIENCE} s:\n{output}")
        self.expect_nothing_left()
        return process.returncode, output

    def run_ranks(self, *program):
        code, output = self.finish(self.start(*program))
        self.assertEqual(code, 0, output)
        return output

    def processes(self, name=None):
        """Those of this test that are alive, by rank's own account where `name` is given."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"ENGINE_TEST_MARK={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
                called = (folder / "comm").read_text().strip()
            except OSError:
                continue
            if marked and (name is None or called == name):
                found.append(int(folder.name))
        return found

    def expect_nothing_left(self):
        give_up = time.monotonic() + 20
        while (self.processes() or self.memory() - self.memory_before) and time.monotonic() < give_up:
            time.sleep(0.05)
        self.assertEqual(self.processes(), [], "processes are left")
        self.assertEqual(self.memory() - self.memory_before, set(), "shared memory is left")

    @staticmethod
    def memory():
        return set(Path("/dev/shm").glob("troupe-*"))

    def test_ranks_know_their_places(self):
        output = self.run_ranks(BIN / "troupe", "doctor")
        places = re.findall(r"ok +rank +(\d+) of (\d+), local rank (\d+) of (\d+) on ([\w.-]+), launcher: ([\w ]+),",
                            output)
        self.assertEqual(len(places), self.ranks, output)
        of_host = {}
        for rank, (host, local_world) in self.hosts.items():
            local_rank = of_host[host] = of_host.get(host, -1) + 1
            expected = (str(rank), str(self.ranks), str(local_rank), str(local_world), host, self.launcher)
            self.assertIn(expected, places, output)

    def test_the_example_has_the_bits_of_the_launcher(self):
        ours = subprocess.run([BIN / "troupe", "launch", "--standalone", "--nproc-per-node", str(self.ranks), "--",
                               BIN / "linear"], check=True, text=True, capture_output=True).stdout
        line = re.search(r"y = .*", ours).group()
        self.assertIn(line, self.run_ranks(BIN / "linear"))

    def test_the_trainer_has_the_bits_of_the_launcher(self):
        program = [BIN / "gpt", "--text", self.text, *GPT, "--steps", "4", "--strategy", "zero3"]
        launched = subprocess.run([BIN / "troupe", "launch", "--standalone", "--nproc-per-node", str(self.ranks), "--",
                                   *program, "--export", self.path / "ours"], check=True, text=True,
                                  capture_output=True).stdout
        self.assertIn("loss", launched)
        self.run_ranks(*program, "--export", self.path / "theirs")
        name = "model.safetensors"
        self.assertEqual((self.path / "ours" / name).read_bytes(), (self.path / "theirs" / name).read_bytes())

    def rank_of(self, pid):
        """By the process's environment, which says so in the engine's own words."""
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        values = dict(entry.split("=", 1) for entry in environment if "=" in entry)
        names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
        return int(next(values[name] for name in names if name in values))

    def ranks_in_training(self, process):
        """The pids of all ranks, once rank 0 has written a checkpoint."""
        give_up = time.monotonic() + PATIENCE
        while not list((self.path / "run").glob("step_*/manifest.json")):
            if process.poll() is not None or time.monotonic() > give_up:
                process.kill()
                self.fail("the ranks do not train:\n" + process.communicate()[0])
            time.sleep(0.05)
        return {self.rank_of(pid): pid for pid in self.processes("gpt")}

    def train_for_long(self):
        return self.start(BIN / "gpt", "--text", self.text, *GPT, "--steps", "1000000", "--save-every", "20",
                          "--checkpoints", self.path / "run")

    def test_a_killed_rank_is_named_by_all_others(self):
        process = self.train_for_long()
        pids = self.ranks_in_training(process)
        self.assertEqual(sorted(pids), list(range(self.ranks)))
        os.kill(pids[2], signal.SIGKILL)
        killed = time.monotonic()
        code, output = self.finish(process)
        self.assertNotEqual(code, 0)
        self.assertLess(time.monotonic() - killed, 45)
        self.expect_rank_2_named(output)
        for rank in (0, 1, 3):
            self.assertNotRegex(output, rf"(lost the connection to|connection to|heard from) rank {rank}\b", output)

    def expect_rank_2_named(self, output):
        self.assertRegex(output, r"rank 2\b", output)
