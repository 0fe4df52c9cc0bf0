#!/usr/bin/env python3
"""Unmodified DDP, FSDP2 and DCP, and scripts of Hugging Face's Trainer and Accelerate, are over the back-end "troupe"
what they are over Gloo."""

import os
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path

import ranks  # first: it says where troupe is
import models

import torch
import torch._dynamo  # FSDP2 and DCP import it: once here, and not in every child
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import troupe.torch  # noqa: F401


def wrapped(how, ranks_per_part):
    """The model, and its optimizer."""
    model = models.Classifier().eval()
    model.scale = nn.Parameter(torch.tensor([1.5]))  # FSDP2 wants axes
    if how == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.01)  # several buckets
    else:
        shape, names = ((dist.get_world_size(),), ("shard",)) if how == "fsdp2" else (
            (dist.get_world_size() // ranks_per_part, ranks_per_part), ("replicate", "shard"))
        mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=names)
        for layer in model.layers:
            fsdp.fully_shard(layer, mesh=mesh)
        fsdp.fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def trained(backend, how, steps, load=None, save=None, first=0):
    """Losses of the steps, on average over ranks."""
    dist.init_process_group(backend)
    model, optimizer = wrapped(how, 2)
    if load is not None:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.load(state, checkpoint_id=load)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = models.mean_loss(model, step, dist.get_rank())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    if save is not None:
        saved = dcp.async_save(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))), checkpoint_id=save,
                               process_group=dist.new_group(backend=backend))
        saved.result()
    dist.destroy_process_group()
    return losses


class OverTroupe(unittest.TestCase):
    def assert_alike(self, found, expected):
        self.assertEqual(len(found), len(expected))
        self.assertLess(max(abs(a - b) for a, b in zip(found, expected)), 1e-5)
        self.assertLess(expected[-1], expected[0])

    def test_losses_are_those_over_gloo(self):
        for how, count in (("ddp", 2), ("fsdp2", 2), ("hsdp", 4)):
            with self.subTest(how):
                self.assert_alike(ranks.results(count, trained, "troupe", how, 15)[0],
                                  ranks.results(count, trained, "gloo", how, 15)[0])

    def test_checkpoints_of_either_are_read_over_the_other(self):
        whole = ranks.results(2, trained, "gloo", "fsdp2", 8)[0]
        for saving, loading in (("gloo", "troupe"), ("troupe", "gloo")):
            with self.subTest(saving=saving, loading=loading), tempfile.TemporaryDirectory() as folder:
                before = ranks.results(2, trained, saving, "fsdp2", 4, None, folder)[0]
                after = ranks.results(2, trained, loading, "fsdp2", 4, folder, None, 4)[0]
                self.assert_alike(before + after, whole)

    def launched(self, script, *arguments, by=()):
        """What the script says about its losses."""
        here = Path(__file__).resolve().parent
        found = subprocess.run(
            [sys.executable, "-m", "troupe.launch", "--standalone", "--nproc-per-node", "2", *by, str(here / script),
             *arguments], text=True, check=False, timeout=240, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(here.parents[1] / "python" / "src"), "OMP_NUM_THREADS": "1"})
        self.assertEqual(found.returncode, 0, found.stdout)
        return next(line for line in found.stdout.splitlines() if "LOSSES" in line).split()[3:]

    @unittest.skipUnless(find_spec("accelerate"), "this Python has no accelerate")
    def test_scripts_of_trainer_and_accelerate_run_in_its_group(self):
        with tempfile.TemporaryDirectory() as folder:
            for script, *arguments in (("accelerated.py",), (
                    "hf_trainer.py", "--output_dir", folder, "--use_cpu", "--max_steps", "6", "--logging_steps", "2",
                    "--report_to", "none", "--disable_tqdm", "true", "--save_strategy", "no")):
                with self.subTest(script):
                    *expected, name = self.launched(script, *arguments)
                    *losses, own = self.launched(script, *arguments, by=("-m", "troupe.run"))
                    self.assertEqual((name, own), ("gloo", "troupe"))
                    self.assertEqual(len(losses), 3)
                    for loss, other in zip(losses, expected):
                        self.assertAlmostEqual(float(loss), float(other), delta=1e-4)


if __name__ == "__main__":
    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        print(f"left out: torch {torch.__version__} has no back-ends in Python; 2.14 has them")
    else:
        unittest.main()
