#!/usr/bin/env python3
"""`python -m troupe.launch`, and what the package says where something is missing:  launch_test.py EXAMPLE|-

With - the example in PyTorch is left out. TROUPE_LIBRARY and TROUPE_TOOL say where the library and the tool are."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = str(Path(__file__).resolve().parents[2] / "python" / "src")
EXAMPLE = sys.argv.pop(1)


def run(*words, **environment):
    """The exit code and the output of a Python that finds the package."""
    found = {name: value for name, value in {**os.environ, "PYTHONPATH": SOURCE, **environment}.items() if value}
    done = subprocess.run([sys.executable, *words], env=found, timeout=240, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


class Launch(unittest.TestCase):
    def test_starts_a_script_on_each_rank_with_this_python(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            script.write_text("import os, sys\nprint('RANK', os.environ['RANK'], sys.executable, sys.argv[1:])\n")
            code, text = run("-m", "troupe.launch", "--standalone", "--nproc_per_node=2", str(script), "--epochs", "3",
                             PATH="/usr/bin:/bin")
            self.assertEqual(code, 0, text)
            for rank in "01":
                self.assertIn(f"RANK {rank} {sys.executable} ['--epochs', '3']", text)

    def test_ends_as_the_job_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            script.write_text("raise SystemExit(3)\n")
            code, text = run("-m", "troupe.launch", "--standalone", str(script))
            self.assertNotEqual(code, 0)
            self.assertIn("exit code 3", text)

    def test_starts_ranks_that_learn_the_same_without_pytorch(self):
        line = str(Path(__file__).resolve().parent / "line.py")
        results = []
        for count in "12":
            code, text = run("-m", "troupe.launch", "--standalone", "--nproc-per-node", count, line)
            self.assertEqual(code, 0, text)
            results.append(re.search(r"RESULT (\S+)", text)[1])
        self.assertEqual(results[0], results[1])
        self.assertAlmostEqual(float(results[0]), 3, delta=0.1)

    def test_says_which_tool_is_missing(self):
        code, text = run("-m", "troupe.launch", TROUPE_TOOL="", PATH="/nonexistent")
        self.assertEqual(code, 1)
        self.assertIn("the program troupe is neither in this package nor in PATH", text)
        code, text = run("-m", "troupe.launch", TROUPE_TOOL="/nonexistent/troupe")
        self.assertIn("TROUPE_TOOL names /nonexistent/troupe, which is not a file", text)

    def test_never_becomes_the_script_that_starts_it(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "troupe")
            script.write_text(f"#!{sys.executable}\nfrom troupe.launch import tool\ntool()\n")
            script.chmod(0o755)
            code, text = run(str(script), "--version", TROUPE_TOOL="", PATH=folder)
            self.assertEqual(code, 1)
            self.assertIn("neither in this package nor in PATH", text)


class Missing(unittest.TestCase):
    def test_library_is_named(self):
        code, text = run("-c", "from troupe.session import Options; Options()", TROUPE_LIBRARY="/nonexistent/lib")
        self.assertIn("TROUPE_LIBRARY names /nonexistent/lib, which is not a file", text)
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            code, text = run("-c", "from troupe.session import Options; Options()", TROUPE_LIBRARY=file.name)
            self.assertEqual(code, 1)
            self.assertIn(f"{file.name} cannot be loaded", text)

    def test_version_of_the_library_is_named(self):
        code, text = run("-c", "from troupe import _c; _c.C_VERSION = 1; _c.library()")
        self.assertEqual(code, 1)
        self.assertIn("expected version 1 of Troupe's C interface, found ", text)

    def test_torch_is_named(self):
        code, text = run("-c", "import sys; sys.modules['torch'] = None; import troupe.torch")
        self.assertEqual(code, 1)
        self.assertIn("troupe.torch needs PyTorch 2.4 or newer, and this Python has none: pip install torch", text)
        code, text = run("-c", "import sys, types; sys.modules['torch'] = old = types.ModuleType('torch');"
                         "old.__version__ = '2.3.1+cpu'; import troupe.torch")
        self.assertEqual(code, 1)
        self.assertIn("found 2.3.1+cpu", text)


# A trainer, and a group of torch.distributed beside it.
BESIDE = """
import torch, torch.distributed as dist, troupe.torch
dist.init_process_group("troupe" if hasattr(dist.Backend, "_ensure_backend_registered") else "gloo")
model = torch.nn.Linear(4, 8)
with troupe.torch.Trainer(model, strategy="ddp", lanes=2, lr=0.1) as trainer:
    with trainer.step() as step:
        for lane in step:
            step.backward(troupe.torch.functional.masked_mean(model(torch.ones(lane + 1, 4)), torch.ones(lane + 1, 8)))
print("LOSS", step.outcome.loss)
dist.destroy_process_group()
"""

# Runs the example, but for rank 1 of the first start, which kills itself before its 60th step.
DIES = """
import os, runpy, signal, sys
import troupe.torch
begin = troupe.torch.Trainer.step
def step(trainer, *rest):
    if trainer.next_step == 60 and trainer.rank == 1 and os.environ["TROUPE_GENERATION"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return begin(trainer, *rest)
troupe.torch.Trainer.step = step
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@unittest.skipIf(EXAMPLE == "-", "this Python has not both torch and transformers")
class Example(unittest.TestCase):
    def test_has_a_group_of_torch_distributed_beside_the_trainer(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "beside.py")
            script.write_text(BESIDE)
            code, text = run("-m", "troupe.launch", "--standalone", "--nproc-per-node", "2", str(script))
            self.assertEqual(code, 0, text)
            losses = re.findall("LOSS (.*)", text)
            self.assertEqual((len(losses), len(set(losses))), (2, 1), text)

    def test_with_experts_has_the_same_losses_where_two_ranks_share_them(self):
        mixture = str(Path(EXAMPLE).with_name("torch_mixture.py"))
        code, alone = run(mixture, "--steps", "50")
        if "no attribute Qwen3MoeForCausalLM" in alone:
            self.skipTest("this transformers has no Qwen3-MoE")
        self.assertEqual(code, 0, alone)
        code, shared = run("-m", "troupe.launch", "--standalone", "--nproc-per-node", "2", mixture, "--steps", "50",
                           "--expert-parallel", "2", "--strategy", "zero3")
        self.assertEqual(code, 0, shared)
        self.assertRegex(alone, r"step 50 loss 0\.")
        self.assertIn(re.search("step 50 loss .*", alone)[0], shared)

    def test_has_the_same_losses_on_one_rank_and_on_two_one_of_which_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            dies = Path(folder, "dies.py")
            dies.write_text(DIES)
            code, alone = run(EXAMPLE, "--steps", "100")
            self.assertEqual(code, 0, alone)
            losses = [line for line in alone.splitlines() if line.startswith("step ")]
            self.assertEqual(len(losses), 2, alone)
            code, killed = run("-m", "troupe.launch", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
                               str(dies), EXAMPLE, "--steps", "100", "--strategy", "zero3", "--checkpoints",
                               str(Path(folder, "run")))
            self.assertEqual(code, 0, killed)
            self.assertIn("SIGKILL", killed)
            for loss in losses:
                self.assertEqual(killed.count(loss), 1, killed)


if __name__ == "__main__":
    unittest.main()
