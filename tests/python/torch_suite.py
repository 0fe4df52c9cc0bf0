#!/usr/bin/env python3
"""Runs the tests of torch.distributed that PyTorch's own wheel has over a back-end, with the ranks kept from test to
test:

    torch_suite.py [--backend troupe] [--ranks 3] [--and-with 8] [-k WORD] [--list]

It uses the package troupe that this Python finds, so it also tries an installed wheel; it wants the module expecttest
beside torch 2.14. Tests that want a GPU or another
back-end by name are left out, with PyTorch's own reason. Those that skip themselves because the world is too small are
run again with --and-with ranks."""

import argparse
import collections
import os
import re
import subprocess
import sys
import time
import unittest
import warnings

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--backend", default="troupe")
parser.add_argument("--ranks", type=int, default=3)
parser.add_argument("--and-with", type=int, default=0, help="ranks for those that want more; 0: they are skipped")
parser.add_argument("-k", dest="words", action="append", default=[], help="only tests with one of these in their names")
parser.add_argument("--list", action="store_true", help="show each test's result and the reasons of skips")
parser.add_argument("--only", help=argparse.SUPPRESS)

# Tests of PyTorch's test bed, not of what it tests.
LEFT_OUT = {
    "test_ddp_logging_data_cpu": "expects a fresh process: it checks what DDP logs of its first model",
}
WANTS_GPU = re.compile(r"cuda|gpu|nccl|_xpu|_hpu")

warnings.filterwarnings("ignore")
os.environ.setdefault("BACKEND", "troupe")
os.environ.setdefault("WORLD_SIZE", "3")

# Ranks are started anew from this file, and must not read the arguments.
if __name__ == "__main__":
    options = parser.parse_args()
    os.environ.update(BACKEND=options.backend, WORLD_SIZE=str(options.ranks))

import torch.distributed as dist  # noqa: E402

if not hasattr(dist.Backend, "_ensure_backend_registered"):
    sys.exit("torch_suite: this PyTorch has no back-ends in Python; 2.14 has them")

from torch.testing._internal import common_distributed  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases, MultiProcContinuousTest  # noqa: E402

BACKEND = os.environ["BACKEND"]
for feature in ("ddp", "subgroup"):
    DistTestCases.backend_feature[feature].add(BACKEND)
dist.Backend._ensure_backend_registered(BACKEND)
if not dist.is_backend_available(BACKEND):
    import troupe.torch  # noqa: F401  an unpacked tree has no entry points

from torch.testing._internal.distributed import distributed_test as theirs  # noqa: E402


class EveryTest(type(MultiProcContinuousTest)):
    """After a test that fails the others are run nevertheless."""

    @property
    def poison_pill(cls):
        return False

    @poison_pill.setter
    def poison_pill(cls, value):
        pass


class Suite(MultiProcContinuousTest, theirs.DistributedTest._DistTestBase, metaclass=EveryTest):
    world_size = int(os.environ["WORLD_SIZE"])
    init_method = property(lambda self: os.environ["INIT_METHOD"])
    file_name = property(lambda self: self.rdvz_file)

    @classmethod
    def backend_str(cls):
        return BACKEND

    @classmethod
    def device_type(cls):
        return "cpu"

    @classmethod
    def setUpClass(cls):
        common_distributed.initialize_temp_directories()
        theirs.Barrier.init()
        super().setUpClass()

    def _barrier(self, *unused, **also_unused):
        dist.barrier()


class Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def names_of(words, only):
    names = unittest.TestLoader().getTestCaseNames(Suite)
    if only:
        return only.split(",")
    return [name for name in names if name not in LEFT_OUT and not WANTS_GPU.search(name)
            and (not words or any(word in name for word in words))]


def main():
    began = time.monotonic()
    suite = unittest.TestSuite(Suite(name) for name in names_of(options.words, options.only))
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2 if options.list else 0)
    result = runner.run(suite)
    reasons = collections.Counter(reason for _, reason in result.skipped)
    for reason, count in sorted(reasons.items()):
        print(f"{count} skipped: {reason}")
    for name, reason in LEFT_OUT.items():
        print(f"left out: {name}: {reason}")
    failed = len(result.failures) + len(result.errors)
    print(f"{options.backend}, {options.ranks} ranks: {result.passed} passed, {len(result.skipped)} skipped, {failed} "
          f"failed in {time.monotonic() - began:.0f} s", flush=True)
    status = 0 if result.passed and not failed else 1
    small = [test.id().rsplit(".", 1)[-1] for test, reason in result.skipped if "world size" in reason.lower()]
    if small and options.and_with:
        again = [sys.executable, __file__, "--backend", options.backend, "--ranks", str(options.and_with), "--only",
                 ",".join(small)] + ["--list"] * options.list
        status = subprocess.run(again, check=False).returncode or status
    sys.exit(status)


if __name__ == "__main__":
    main()
