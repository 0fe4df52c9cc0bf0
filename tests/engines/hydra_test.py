#!/usr/bin/env python3
"""Real mpiexec of MPICH (hydra) starts the ranks, on this machine and on two hosts:  hydra_test.py FOLDER"""

import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import hosts
from engine import BIN, Engine

HERE = os.uname().nodename
MPIEXEC = next((name for name in ("mpiexec.hydra", "mpiexec.mpich") if shutil.which(name)), None)
SKIP = hosts.missing() or ("" if MPIEXEC else "not installed: mpiexec.hydra (MPICH)")


class OneHost(Engine):
    launcher = "hydra"
    hosts = {rank: (HERE, 4) for rank in range(4)}

    def environment(self):
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "24500"}

    def command(self, *program):
        return [MPIEXEC, "-disable-auto-cleanup", "-n", "4", *program]

    def expect_rank_2_named(self, output):
        if self.survivors_of_any_program_speak():
            super().expect_rank_2_named(output)
        else:
            self.assertIn("Killed (signal 9)", output)

    def survivors_of_any_program_speak(self):
        """Releases of hydra kill what else their proxy started once a rank is dead, whatever -disable-auto-cleanup
        says: 4.0 does. A shell that waits for a moment and then speaks shows whether this one does."""
        code, output = self.finish(self.start(
            "/bin/sh", "-c", '[ "$PMI_RANK" = 2 ] && sleep 1 && kill -9 $$; sleep 3; echo "$PMI_RANK lives"'))
        self.assertNotEqual(code, 0)
        said = {rank for rank in range(4) if f"{rank} lives" in output}
        self.assertIn(said, (set(), {0, 1, 3}), output)
        return bool(said)


class TwoHosts(Engine):
    launcher = "hydra"
    hosts = {0: ("n1", 2), 1: ("n1", 2), 2: ("n2", 2), 3: ("n2", 2)}

    @classmethod
    def setUpClass(cls):
        cls.agent_folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.agent_folder.cleanup)
        cls.agent = Path(cls.agent_folder.name) / "agent"
        cls.agent.write_text('#!/bin/sh\n[ "$1" = -x ] && shift\nh=$1; shift\n'
                             'exec nsenter --net=/run/netns/$h unshare --uts sh -c "hostname $h; $*"\n')
        cls.agent.chmod(0o755)

    def environment(self):
        return {"MASTER_ADDR": hosts.HOSTS["n1"], "MASTER_PORT": "24500", "TROUPE_JOB_TOKEN": "7" * 64}

    def command(self, *program):
        return [MPIEXEC, "-disable-auto-cleanup", "-launcher", "ssh", "-launcher-exec", self.agent,
                "-iface", "br0", "-hosts", "n1:2,n2:2", "-n", "4", *program]


class LauncherPerNode(TwoHosts):
    """hydra says how many nodes there are and which this is; MASTER_ADDR says where they meet."""

    launcher = "troupe"

    def environment(self):
        return {"MASTER_ADDR": hosts.HOSTS["n1"], "TROUPE_JOB_TOKEN": "7" * 64}

    def command(self, *program):
        return [MPIEXEC, "-disable-auto-cleanup", "-launcher", "ssh", "-launcher-exec", self.agent,
                "-iface", "br0", "-hosts", "n1:1,n2:1", "-n", "2",
                BIN / "troupe", "launch", "--nproc-per-node", "2", "--", *program]


del Engine  # it is not a test of its own

if __name__ == "__main__":
    if SKIP:
        print("skipped:", SKIP)
        sys.exit(77)
    hosts.in_own_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        hosts.make(Path(folder))
        unittest.main(verbosity=2)
