#!/usr/bin/env python3
"""Real mpirun of Open MPI starts the ranks, on this machine and on two hosts:  openmpi_test.py FOLDER"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import hosts
from engine import BIN, Engine

HERE = os.uname().nodename


def is_open_mpi():
    for name in ("mpirun.openmpi", "mpirun"):
        try:
            if "Open MPI" in subprocess.run([name, "--version"], capture_output=True, text=True).stdout:
                return name
        except OSError:
            continue
    return None


MPIRUN = is_open_mpi()
SKIP = hosts.missing() or ("" if MPIRUN else "not installed: mpirun of Open MPI")


class OneHost(Engine):
    launcher = "Open MPI"
    hosts = {rank: (HERE, 4) for rank in range(4)}

    def command(self, *program):
        return [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "4", *program]


class TwoHosts(Engine):
    launcher = "Open MPI"
    hosts = {0: ("n1", 2), 1: ("n1", 2), 2: ("n2", 2), 3: ("n2", 2)}

    @classmethod
    def setUpClass(cls):
        cls.agent_folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.agent_folder.cleanup)
        cls.agent = Path(cls.agent_folder.name) / "agent"
        cls.agent.write_text('#!/bin/sh\nh=$1; shift; exec nsenter --net=/run/netns/$h unshare --uts sh -c "hostname $h; $*"\n')
        cls.agent.chmod(0o755)

    def command(self, *program):
        forwarded = {"MASTER_ADDR": hosts.HOSTS["n1"], "MASTER_PORT": "24500", "TROUPE_JOB_TOKEN": "7" * 64,
                     "OMP_NUM_THREADS": "1", "ENGINE_TEST_MARK": self.mark}
        return [MPIRUN, "--allow-run-as-root", "--mca", "plm_rsh_agent", self.agent, "--mca", "oob_tcp_if_include",
                "10.77.0.0/24", "--host", "n1:2,n2:2", "-np", "4",
                *(word for name, value in forwarded.items() for word in ("-x", f"{name}={value}")), *program]


class LauncherPerNode(TwoHosts):
    """mpirun says how many nodes there are and which this is; MASTER_ADDR says where they meet."""

    launcher = "troupe"

    def command(self, *program):
        forwarded = {"MASTER_ADDR": hosts.HOSTS["n1"], "TROUPE_JOB_TOKEN": "7" * 64, "OMP_NUM_THREADS": "1",
                     "ENGINE_TEST_MARK": self.mark}
        return [MPIRUN, "--allow-run-as-root", "--mca", "plm_rsh_agent", self.agent, "--mca", "oob_tcp_if_include",
                "10.77.0.0/24", "--host", "n1:1,n2:1", "-np", "2",
                *(word for name, value in forwarded.items() for word in ("-x", f"{name}={value}")),
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
