#!/usr/bin/env python3
"""Real torchrun starts the ranks:  torchrun_test.py FOLDER. The Python that runs this has torch."""

import os
import socket
import subprocess
import sys
import unittest
from importlib.util import find_spec

from engine import Engine, BIN

HERE = os.uname().nodename
SKIP = "" if find_spec("torch") else "this Python has no torch"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Torchrun(Engine):
    launcher = "torchrun"
    hosts = {rank: (HERE, 4) for rank in range(4)}
    flags = []

    def command(self, *program):
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", *self.flags, "--no-python",
                *program]


class Alone(Torchrun):
    @property
    def flags(self):
        return ["--master-port", str(free_port())]


class Standalone(Torchrun):
    flags = ["--standalone"]


class Rendezvous(Torchrun):
    @property
    def flags(self):
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "a.b"]


class TwoAgents(Torchrun):
    """Two agents on one machine, each a node with two ranks."""

    hosts = {rank: (HERE, 2) for rank in range(4)}

    def environment(self):
        return {"TROUPE_JOB_TOKEN": "7" * 64}

    def command(self, *program):
        agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2",
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "two",
                 "--local-addr", "127.0.0.1", "--no-python", *map(str, program)]
        both = '"$@" & first=$!; "$@"; code=$?; wait $first || code=$?; exit $code'
        return ["sh", "-c", both, "agents", *agent]

    def test_ranks_know_their_places(self):
        output = self.run_ranks(BIN / "troupe", "doctor")
        for local_rank in ("0", "1"):
            self.assertEqual(output.count(f"local rank {local_rank} of 2 on {HERE}, launcher: torchrun"), 2, output)


class Restart(unittest.TestCase):
    def test_a_restarted_gang_finds_its_new_rank_0(self):
        fails_once = f'[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || {{ [ $RANK = 0 ] && sleep 1; exit 3; }}; exec {BIN}/linear'
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                               "--max-restarts", "1", "--no-python", "sh", "-c", fails_once],
                              text=True, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("y = ", done.stdout)


del Engine, Torchrun  # they are not tests of their own

if __name__ == "__main__":
    if SKIP:
        print("skipped:", SKIP)
        sys.exit(77)
    unittest.main(verbosity=2)
