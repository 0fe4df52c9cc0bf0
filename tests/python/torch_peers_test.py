#!/usr/bin/env python3
"""troupe.torch trains as plain PyTorch does on one process, and as DDP and FSDP2 do over Gloo."""

import inspect
import unittest

import ranks  # first: it says where troupe is
import models

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel

from troupe.torch import Trainer

RATE, DECAY, CLIP = 1e-3, 0.1, 1.0


def without_dropout():
    model = models.Classifier().eval()
    model.scale = nn.Parameter(torch.tensor([1.5]))  # FSDP2 wants axes
    return model


def over_troupe(make, loss_of, steps, strategy):
    model = make()
    with Trainer(model, strategy=strategy, lanes=models.LANES, lr=RATE, weight_decay=DECAY, clip_norm=CLIP) as trainer:
        losses = models.train(trainer, loss_of, steps)
    return losses, model.state_dict()


def over_one_process(make, loss_of, steps):
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    losses = models.plain(model, loss_of, steps, optimizer, CLIP)
    return losses, model.state_dict()


def over_gloo(make, loss_of, steps, fully_sharded):
    """Two ranks, each with half of the lanes, accumulated; the mean over lanes."""
    dist.init_process_group("gloo")
    model = make()
    if fully_sharded:
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.layers:
            fsdp.fully_shard(layer, mesh=mesh)
        fsdp.fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    share, losses = models.LANES // dist.get_world_size(), []
    for step in range(steps):
        optimizer.zero_grad()
        mean = torch.zeros(())
        for index in range(share):
            loss = loss_of(model, step, dist.get_rank() * share + index) / share
            loss.backward()
            mean += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    dist.destroy_process_group()
    return losses


def matrices_of(model):
    return [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]


def muon_over_troupe(steps, strategy):
    model = models.llama()
    with Trainer(model, strategy=strategy, lanes=models.LANES, lr=RATE, weight_decay=DECAY, clip_norm=CLIP,
                 groups=[{"params": matrices_of(model), "optimizer": "muon", "momentum": 0.95, "eps": 1e-7}]) as trainer:
        losses = models.train(trainer, models.sum_of_losses, steps)
    return losses, model.state_dict()


class Both:
    """Two optimizers as one."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def muon_over_one_process(steps):
    """PyTorch's own, but with its products in f32 instead of bf16."""
    from torch.optim import _muon
    source = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert source.count("bfloat16") == 1, source
    exec(source.replace("bfloat16", "float32"), vars(_muon))  # pylint: disable=exec-used
    model = models.llama()
    matrices = matrices_of(model)
    others = [parameter for parameter in model.parameters() if all(parameter is not each for each in matrices)]
    losses = models.plain(model, models.sum_of_losses, steps, Both(
        torch.optim.Muon(matrices, lr=RATE, weight_decay=DECAY),
        torch.optim.AdamW(others, lr=RATE, weight_decay=DECAY)), CLIP)
    return losses, model.state_dict()


class LikePyTorch(unittest.TestCase):
    def assert_alike(self, found, expected):
        self.assertEqual(len(found), len(expected))
        self.assertLess(max(abs(a - b) for a, b in zip(found, expected)), 1e-5)

    def test_losses_of_50_steps_are_those_of_ddp_and_of_fsdp2_over_gloo(self):
        ours = {strategy: ranks.results(2, over_troupe, without_dropout, models.mean_loss, 50, strategy)[0][0]
                for strategy in ("ddp", "zero3")}
        self.assertEqual(ours["ddp"], ours["zero3"])
        self.assertLess(ours["ddp"][-1], ours["ddp"][0])
        for fully_sharded in (False, True):
            with self.subTest(fully_sharded=fully_sharded):
                if fully_sharded and not hasattr(fsdp, "fully_shard"):
                    self.skipTest(f"torch {torch.__version__} has no fully_shard")
                self.assert_alike(
                    ours["ddp"], ranks.results(2, over_gloo, without_dropout, models.mean_loss, 50, fully_sharded)[0])

    def test_losses_are_those_of_one_process(self):
        losses, _ = ranks.results(1, over_troupe, without_dropout, models.mean_loss, 50, "zero1")[0]
        self.assert_alike(losses, ranks.results(1, over_one_process, without_dropout, models.mean_loss, 50)[0][0])

    def test_weights_of_a_llama_with_masked_targets_are_those_of_one_process(self):
        losses, state = ranks.results(2, over_troupe, models.llama, models.sum_of_losses, 20, "zero3")[0]
        expected_losses, expected = ranks.results(1, over_one_process, models.llama, models.sum_of_losses, 20)[0]
        self.assert_alike(losses, expected_losses)
        self.assertEqual(set(state), set(expected))
        self.assertLess(models.largest_difference(state, expected), 1e-5)

    @unittest.skipIf(not hasattr(torch.optim, "Muon"), f"torch {torch.__version__} has no Muon")
    def test_weights_are_those_of_one_process_with_muon(self):
        losses, state = ranks.results(2, muon_over_troupe, 20, "zero3")[0]
        expected_losses, expected = ranks.results(1, muon_over_one_process, 20)[0]
        self.assert_alike(losses, expected_losses)
        self.assertLess(models.largest_difference(state, expected), 1e-5)


if __name__ == "__main__":
    unittest.main()
