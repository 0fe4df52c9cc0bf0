#!/usr/bin/env python3
"""The example of troupe::torch trains alike on one rank and on several, over TCP too, and takes nothing of LibTorch:

    libtorch_test.py PROGRAM TOOL
"""

import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM, TOOL = sys.argv[1:3]
del sys.argv[1:]


def run(*words, **environment):
    """The exit code and the output."""
    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def losses(code, text):
    if code != 0:
        raise AssertionError(text)
    return [line[line.index("step "):] for line in text.splitlines() if "step " in line and " loss " in line]


def over(ranks, *options):
    return losses(*run(TOOL, "launch", "--standalone", "--nproc-per-node", str(ranks), "--", PROGRAM, *options))


class LibTorch(unittest.TestCase):
    def test_has_the_same_losses_on_one_rank_and_on_two_over_any_collectives(self):
        alone = losses(*run(PROGRAM))
        self.assertEqual(len(alone), 4)
        self.assertLess(float(alone[-1].split()[-1]), 0.02)
        self.assertEqual(over(2, "--collectives", "tcp"), alone)
        self.assertEqual(over(3, "--strategy", "ddp"), alone)

    def test_goes_on_from_a_checkpoint_on_other_ranks(self):
        alone = losses(*run(PROGRAM))
        with tempfile.TemporaryDirectory() as folder:
            first = over(2, "--checkpoints", folder, "--stop", "100")
            self.assertEqual(first + losses(*run(PROGRAM, "--checkpoints", folder)), alone)

    def test_takes_nothing_of_what_libtorch_exports(self):
        """The library of Troupe finds its own libraries, although libtorch_cpu has functions of the same names."""
        _, text = run(PROGRAM, "--stop", "1", LD_DEBUG="bindings", LD_BIND_NOW="1")
        of_ours = [line for line in text.splitlines() if "binding file" in line and "libtroupe.so" in line.split(" to ")[0]]
        self.assertTrue(any("libsodium" in line for line in of_ours))
        self.assertEqual([line for line in of_ours if "libtorch" in line or "libc10" in line], [])

    def test_says_what_is_wrong(self):
        for options, environment, reason in ((("--nonsense", "1"), {}, "nonsense"),
                                             ((), {"TROUPE_LIBRARY": "/none"}, "name the file in TROUPE_LIBRARY")):
            code, text = run(PROGRAM, *options, **environment)
            self.assertEqual(code, 1)
            self.assertIn(reason, text)


if __name__ == "__main__":
    unittest.main()
