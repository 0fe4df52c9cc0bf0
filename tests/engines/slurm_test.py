#!/usr/bin/env python3
"""Real srun starts the ranks on a cluster of two nodes, with and without PMI-2:  slurm_test.py FOLDER

The nodes are network namespaces; slurmctld and both slurmd run here as long as the test does. Needs root and the
Debian packages slurm-wlm and munge.
"""

import grp
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import hosts
from engine import BIN, PATIENCE, Engine

SKIP = hosts.missing("slurmctld", "slurmd", "srun", "munged")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}({address})
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
KillWait=5
NodeName=n1 NodeHostname=n1 NodeAddr={n1} CPUs={cpus} RealMemory=1000
NodeName=n2 NodeHostname=n2 NodeAddr={n2} CPUs={cpus} RealMemory=1000
PartitionName=p Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8
"""


class Cluster:
    """Daemons die with the namespace of processes that the test is in."""

    def __init__(self, folder: Path):
        for name in ("munge", "state"):
            (folder / name).mkdir()
        folder.chmod(0o755)
        munge = pwd.getpwnam("munge")
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for path in (key, folder / "munge"):
            os.chown(path, munge.pw_uid, grp.getgrgid(munge.pw_gid).gr_gid)
        (folder / "munge").chmod(0o755)
        hosts.run("setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups", "munged", "--force",
                  "--key-file", key, "--socket", folder / "munge" / "socket", "--pid-file",
                  folder / "munge" / "pid", "--log-file", folder / "munge" / "log", "--seed-file",
                  folder / "munge" / "seed")
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(controller=os.uname().nodename, address=hosts.ADDRESS,
                                                      folder=folder, cpus=os.cpu_count(), **hosts.HOSTS))
        os.environ["SLURM_CONF"] = str(configuration)
        hosts.run("slurmctld")
        for host in hosts.HOSTS:
            hosts.run(*hosts.on(host, "slurmd", "-N", host))
        give_up = time.monotonic() + PATIENCE
        while "2 idle" not in subprocess.run(["sinfo", "-h", "-o", "%D %T"], capture_output=True, text=True).stdout:
            if time.monotonic() > give_up:
                sys.exit("the cluster does not come up:\n" + (folder / "slurmctld.log").read_text())
            time.sleep(0.2)


class Srun(Engine):
    launcher = "Slurm"
    hosts = {0: ("n1", 2), 1: ("n1", 2), 2: ("n2", 2), 3: ("n2", 2)}
    flags = []

    def environment(self):
        # Both nodes have this machine's files, as they would have a home directory.
        return {"TROUPE_JOB_TOKEN_FILE": str(self.path / "token")}

    def command(self, *program):
        return ["srun", "-N2", "-n4", "--kill-on-bad-exit=0", *self.flags, *program]


class WithoutPmi(Srun):
    flags = ["--mpi=none"]


class WithPmi2(Srun):
    flags = ["--mpi=pmi2"]


class LauncherPerNode(Srun):
    """srun says how many nodes there are, which this is and where they meet; the secret is in the shared home."""

    launcher = "troupe"

    def environment(self):
        return {"HOME": str(self.path)}

    def command(self, *program):
        return ["srun", "-N2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", BIN / "troupe", "launch",
                "--nproc-per-node", "2", "--", *program]

    def test_two_launchers_on_a_node_are_refused(self):
        done = subprocess.run(["srun", "-N2", "-n4", BIN / "troupe", "launch", "--", BIN / "linear"],
                              env=self.whole_environment(), capture_output=True, text=True, timeout=PATIENCE)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Slurm has started 2 launchers on n1: start one on each node (srun --ntasks-per-node=1",
                      done.stderr)


class Uneven(Srun):
    ranks = 3
    hosts = {0: ("n1", 2), 1: ("n1", 2), 2: ("n2", 1)}
    test_the_trainer_has_the_bits_of_the_launcher = None  # four lanes over three ranks are another test's
    test_a_killed_rank_is_named_by_all_others = None

    def command(self, *program):
        return ["srun", "-N2", "-n3", "-m", "block", *program]


class Steps(Srun):
    """Steps other than plain ones."""

    for _name in [name for name in dir(Engine) if name.startswith("test_")]:
        locals()[_name] = None

    def test_a_shell_in_an_allocation_of_eight_tasks_is_one_rank(self):
        script = f"{BIN}/troupe doctor; {BIN}/linear"
        done = subprocess.run(["salloc", "-N2", "-n8", "--overcommit", "srun", "-N1", "-n1", "--overlap", "--pty", "sh",
                               "-c", script], env=self.whole_environment(), capture_output=True, text=True,
                              timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"ok +rank +0 of 1 on n1, launcher: Slurm")
        self.assertIn("y = ", done.stdout)

    def batch(self, script, *flags):
        path = self.path / "job.sh"
        path.write_text("#!/bin/sh\n" + script)
        output = self.path / "output"
        done = subprocess.run(["sbatch", "--wait", "-N2", "-n4", "--output", output, *flags, path],
                              env=self.whole_environment(), capture_output=True, text=True, timeout=PATIENCE)
        return done, output

    def test_a_batch_script_is_one_rank_and_its_steps_are_jobs(self):
        done, output = self.batch(f"{BIN}/troupe doctor\nsrun -n2 -N1 --overlap {BIN}/linear &\n"
                                  f"srun -n2 -N1 --overlap {BIN}/linear &\nwait\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        text = output.read_text()
        self.assertRegex(text, r"ok +rank +0 of 1 on n1, launcher: Slurm")
        self.assertEqual(len(re.findall(r"y = ", text)), 2, text)

    def test_a_requeued_job_is_a_new_start(self):
        flag = self.path / "requeued"
        # Slurm lets a requeued job wait for two minutes.
        hurry = ('for i in $(seq 100); do for job in $(squeue -h -t PD -o %A); do scontrol update JobId=$job '
                 'StartTime=now; done; sleep 0.5; done')
        helper = subprocess.Popen(["sh", "-c", hurry], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(helper.wait)
        self.addCleanup(helper.kill)
        done, output = self.batch(
            f'if [ ! -e {flag} ]; then touch {flag}; scontrol requeue $SLURM_JOB_ID; sleep 100; fi\n'
            f'srun {BIN}/troupe doctor\nsrun {BIN}/linear\n', "--requeue", "--open-mode", "append")
        self.assertEqual(done.returncode, 0, done.stderr)
        text = output.read_text()
        self.assertEqual(len(re.findall(r"launcher: Slurm, start 2,", text)), 4, text)
        self.assertIn("y = ", text)

    def test_a_launcher_within_a_task_runs_a_job_of_its_own(self):
        output = self.run_ranks(BIN / "troupe", "launch", "--standalone", "--nproc-per-node", "2", "--", BIN / "linear")
        self.assertEqual(output.count("y = "), 4, output)


del Engine, Srun  # they are not tests of their own

if __name__ == "__main__":
    if SKIP:
        print("skipped:", SKIP)
        sys.exit(77)
    hosts.in_own_namespaces()
    with tempfile.TemporaryDirectory() as own_folder:
        hosts.make(Path(own_folder))
        Cluster(Path(own_folder))
        unittest.main(verbosity=2)
