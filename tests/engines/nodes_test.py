#!/usr/bin/env python3
"""`troupe launch` on two hosts, which are network namespaces:  nodes_test.py FOLDER [test...]

Ranks, hosts and bits as with one launcher; ranks, a launcher and the link between the hosts are killed at random
moments, and the parameters must be those of a run that nobody disturbed. Needs root.
"""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import hosts
from engine import BIN, GPT, PATIENCE, Engine

SKIP = hosts.missing()
ENDPOINT = f"{hosts.HOSTS['n1']}:29500"


def launch(host, *words, ranks=2):
    """A launcher of the job on this host."""
    return hosts.on(host, BIN / "troupe", "launch", "--nnodes", "2", "--nproc-per-node", ranks,
                    "--rdzv-endpoint", ENDPOINT, *words)


class TwoLaunchers(Engine):
    launcher = "troupe"
    hosts = {0: ("n1", 2), 1: ("n1", 2), 2: ("n2", 2), 3: ("n2", 2)}

    def environment(self):
        # The launchers' secret: the launcher of node 0 makes it, as in a home that both hosts share.
        return {"HOME": str(self.path)}

    def command(self, *program):
        first, second = (shlex.join(launch(host, "--", *program)) for host in hosts.HOSTS)
        return ["sh", "-c", f"{first} & other=$!; {second}; code=$?; wait $other || code=$?; exit $code"]

    def test_the_secret_is_made_once_and_only_for_its_user(self):
        self.run_ranks(BIN / "linear")
        self.assertEqual((self.path / ".troupe" / "token").stat().st_mode & 0o777, 0o600)


class Faults(Engine):
    """Each node's launcher by itself, so that it can be killed and started again."""

    for _name in [name for name in dir(Engine) if name.startswith("test_")]:
        locals()[_name] = None
    seed = int(os.environ.get("NODES_SEED", "1"))
    rounds = int(os.environ.get("NODES_ROUNDS", "0"))  # of all faults, each at another moment

    def environment(self):
        return {"HOME": str(self.path)}

    def setUp(self):
        super().setUp()
        self.random = random.Random(self.seed)
        self.launchers = {}
        self.ends = 0

    def start_node(self, host, *words):
        output = open(self.path / f"{host}.out", "a")
        self.addCleanup(output.close)
        self.launchers[host] = subprocess.Popen(
            list(map(str, launch(host, *words))), env=self.whole_environment(), text=True, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT)

    def output(self, host):
        return (self.path / f"{host}.out").read_text()

    def train(self, name, *flags, steps=400):
        """Starts training on both hosts."""
        self.words = ["--rdzv-conf", "join_timeout=60", *flags, "--", BIN / "gpt", "--text", self.text, *GPT,
                      "--steps", steps, "--strategy", "zero3", "--save-every", "10", "--checkpoints", self.path / name, "--export",
                      self.path / (name + "_model")]
        for host in hosts.HOSTS:
            (self.path / f"{host}.out").write_text("")
            self.start_node(host, *self.words)

    def saved(self, name):
        names = [path.parent.name for path in (self.path / name).glob("step_*/manifest.json")]
        return [int(found.group(1)) for found in map(re.compile(r"step_(\d+)$").match, names) if found]

    def wait_until(self, condition, what):
        give_up = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > give_up:
                self.fail(f"never {what}:\n" + "".join(self.output(host) for host in hosts.HOSTS))
            time.sleep(0.01)

    def finish_both(self):
        codes = {}
        for host, process in self.launchers.items():
            try:
                codes[host] = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                self.fail(f"{host} does not end:\n" + "".join(self.output(each) for each in hosts.HOSTS))
        self.expect_nothing_left()
        return codes

    def model(self, name):
        return (self.path / (name + "_model") / "model.safetensors").read_bytes()

    def at_a_random_moment(self, name):
        step = self.random.randrange(20, 200)
        self.wait_until(lambda: max(self.saved(name), default=0) >= step, f"step {step}")
        time.sleep(self.random.random() * 0.1)

    def kill_rank(self, name):
        """With the pids of the others before, by rank."""
        rank = self.random.randrange(4)
        pids = {}
        for pid in self.processes("gpt"):
            try:
                pids[self.rank_of(pid)] = pid
            except ValueError:
                pass  # a spare
        os.kill(pids.pop(rank), signal.SIGKILL)
        return pids

    def kill_launcher(self, name):
        self.launchers["n2"].kill()
        self.launchers["n2"].wait()
        self.start_node("n2", *self.words)

    def kill_first_launcher(self, name):
        """With the pids of the other host's ranks before."""
        pids = {}
        for pid in self.processes("gpt"):
            if b"GROUP_RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                pids[self.rank_of(pid)] = pid
        self.launchers["n1"].kill()
        self.launchers["n1"].wait()
        self.start_node("n1", *self.words)
        return pids

    def cut_link(self, name):
        hosts.run("ip", "link", "set", "to-n2", "down")
        self.wait_until(lambda: all(re.search("was lost: nothing was heard of it for 5 s", self.output(host))
                                    for host in hosts.HOSTS), "the loss of the link was noticed on both")
        hosts.run("ip", "link", "set", "to-n2", "up")

    @unittest.skipUnless(rounds, "takes two minutes a round; set NODES_ROUNDS=1")
    def test_faults_at_random_moments_change_no_bit(self):
        self.train("undisturbed")
        self.assertEqual(self.finish_both(), {"n1": 0, "n2": 0}, self.output("n1"))
        elastic = ["--nnodes", "1:2"]
        faults = ((self.kill_rank, ["--max-restarts", "1"], "is started again, the others stay: restart 1 of 1"),
                  (self.kill_rank, ["--spares", "1"], "now, the others stay"),
                  (self.kill_launcher, ["--max-restarts", "3"], "restart 1 of 3"),
                  (self.kill_launcher, elastic, "the job goes on with 2 ranks"),
                  (self.kill_first_launcher, ["--journal", "JOURNAL", "--max-restarts", "2"],
                   "rank 1 is started again, the others stay: restart 2 of 2"),
                  (self.cut_link, ["--max-restarts", "3"], "restart 1 of 3"),
                  (self.cut_link, elastic, "the job goes on with 2 ranks"))
        for number, (fault, flags, sentence) in enumerate(faults * self.rounds):
            name = f"run{number}"
            with self.subTest(fault=fault.__name__, flags=flags, seed=self.seed, number=number):
                self.train(name, *(self.path / word if word == "JOURNAL" else word for word in flags),
                           "--rdzv-conf", "join_timeout=60,last_call_timeout=20")
                self.at_a_random_moment(name)
                stayed = fault(name)
                if stayed:
                    self.wait_until(lambda: sentence in self.output("n1"), sentence)
                    self.assertLessEqual(set(stayed.values()), set(self.processes("gpt")), "others were restarted")
                self.assertEqual(self.finish_both(), {"n1": 0, "n2": 0}, self.output("n1") + self.output("n2"))
                self.assertIn(sentence, self.output("n1"))
                self.assertEqual(self.model(name), self.model("undisturbed"))

    def end_by(self, end, within):
        """Trains, lets `end` happen, and expects that both launchers end in time; what each said."""
        self.ends += 1
        name = f"ended{self.ends}"
        self.train(name, steps=1_000_000)
        self.wait_until(lambda: self.saved(name), "a checkpoint was there")
        began = time.monotonic()
        end()
        codes = self.finish_both()
        self.assertLess(time.monotonic() - began, within)
        return codes, {host: self.output(host) for host in hosts.HOSTS}

    def test_the_death_of_either_launcher_ends_the_job_and_is_named(self):
        for victim, other, node in (("n1", "n2", 0), ("n2", "n1", 1)):
            with self.subTest(victim=victim):
                codes, said = self.end_by(lambda: self.launchers[victim].kill(), 10)
                self.assertEqual(codes, {victim: -signal.SIGKILL, other: 1})
                self.assertRegex(said[other], rf"(node {node} \({victim}|{victim} \(node {node}\)).*was lost")
                self.assertRegex(said[other], "ends (here )?with exit code 1")

    def test_a_cut_link_ends_the_job_on_both_sides(self):
        def cut():
            hosts.run("ip", "link", "set", "to-n2", "down")
        self.addCleanup(hosts.run, "ip", "link", "set", "to-n2", "up")
        codes, said = self.end_by(cut, 25)
        self.assertEqual(codes, {"n1": 1, "n2": 1})
        self.assertRegex(said["n1"], r"n2 \(node 1\) at 10.77.0.12 was lost")
        self.assertRegex(said["n2"], r"node 0 \(n1 at 10.77.0.11:29500\) was lost")

    def test_an_interrupt_of_one_saves_and_ends_both(self):
        codes, said = self.end_by(lambda: self.launchers["n2"].send_signal(signal.SIGINT), 20)
        self.assertEqual(codes, {"n1": 130, "n2": 130})
        self.assertIn("received SIGINT on n2; stopping the ranks", said["n1"])

    def test_a_killed_rank_is_told_alike_on_both(self):
        def kill():
            os.kill({self.rank_of(pid): pid for pid in self.processes("gpt")}[3], signal.SIGKILL)
        codes, said = self.end_by(kill, 10)
        self.assertEqual(codes, {"n1": 1, "n2": 1})
        # The flight records are those of a launcher's own node.
        last = {host: [line for line in text[text.index("first failure"):].splitlines()
                       if "[troupe]" in line and "by the flight records" not in line]
                for host, text in said.items()}
        self.assertIn("first failure: rank 3 on n2", said["n1"])
        self.assertEqual(last["n1"], last["n2"])

    def test_without_the_secret_nobody_joins(self):
        self.start_node("n1", "--rdzv-conf", "join_timeout=2", "--", BIN / "linear")
        token = self.path / ".troupe" / "token"
        self.wait_until(token.exists, "the secret was there")
        other = subprocess.run(list(map(str, launch("n2", "--rdzv-conf", "join_timeout=1", "--", BIN / "linear"))),
                               env=self.whole_environment() | {"TROUPE_JOB_TOKEN": "9" * 64}, text=True,
                               capture_output=True, timeout=PATIENCE)
        self.assertEqual(other.returncode, 1)
        self.assertIn("another secret", other.stderr)
        self.finish_both()
        self.assertIn("a connection from 10.77.0.12 is not a launcher of this job", self.output("n1"))


del Engine  # it is not a test of its own

if __name__ == "__main__":
    if SKIP:
        print("skipped:", SKIP)
        sys.exit(77)
    hosts.in_own_namespaces()
    with tempfile.TemporaryDirectory() as own_folder:
        hosts.make(Path(own_folder))
        unittest.main(verbosity=2)
