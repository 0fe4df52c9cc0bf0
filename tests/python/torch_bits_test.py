#!/usr/bin/env python3
"""troupe.torch gives the same bits on any number of ranks, with any strategy, also after a rank was killed."""

import os
import shutil
import signal
import sys
import tempfile
import unittest

import ranks  # first: it says where troupe is
import models

import torch

import troupe.torch
from troupe.torch import Trainer
from troupe.torch.data import LaneBatches

STEPS = 5


def trained(make, loss_of, options, until=STEPS):
    """What a rank ends with: the bits of the losses, and those of the model after close()."""
    model = make()
    with Trainer(model, lanes=models.LANES, lr=3e-3, clip_norm=1.0, **options) as trainer:
        losses = models.train(trainer, loss_of, until)
        state = models.bits(trainer.state_dict())
    if models.bits(model.state_dict()) != state:
        raise AssertionError("the model after close() is not what state_dict() said")
    return [loss.hex() for loss in losses], state


def of_all_ranks(count, *arguments):
    found = ranks.results(count, trained, *arguments)
    if any(rank != found[0] for rank in found):
        raise AssertionError(f"ranks differ: {found}")
    return found[0]


def with_groups(model):
    """Matrices of layers by Muon, norms without weight decay, the rest by AdamW."""
    layers = list(model.model.layers.parameters())
    return {"groups": [{"params": [p for p in layers if p.ndim == 2], "optimizer": "muon", "lr_factor": 2.0,
                        "momentum": 0.95}, {"params": [p for p in layers if p.ndim < 2], "weight_decay": 0.0}]}


def trained_with_groups(options):
    model = models.llama()
    with Trainer(model, lanes=models.LANES, lr=3e-3, **with_groups(model), **options) as trainer:
        models.train(trainer, models.sum_of_losses, STEPS)
        return models.bits(trainer.state_dict())


def recomputing(reentrant):
    def make():
        model = models.llama()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        if reentrant:
            model.enable_input_require_grads()
        return model.train()
    return make


def partly_frozen():
    model = models.llama()
    model.model.layers[0].requires_grad_(False)
    model.model.layers[2].mlp.requires_grad_(False)
    return model


def mostly_frozen():
    """No gradient flows through the first layers."""
    model = models.llama().requires_grad_(False)
    model.model.layers[2].requires_grad_(True)
    return model


def brain_floats():
    return models.llama().to(torch.bfloat16)


def half_floats():
    return models.llama().to(torch.float16)


ALL_MESHES = [(strategy, count, {"optimizer_instances": 2} if strategy in ("hsdp", "hfsdp") else {})
              for strategy in ("ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp")
              for count in ((2, 4) if strategy in ("hsdp", "hfsdp") else (1, 2, 3, 4))]
if os.environ.get("TROUPE_ALL_MESHES"):
    MESHES = MUON_MESHES = ALL_MESHES
else:  # what the two leave out lies between what they have
    MESHES = [("ddp", 2, {"collectives": "tcp"}), ("zero1", 3, {}), ("zero1", 4, {"units": ["LlamaDecoderLayer"]}),
              ("zero2", 2, {}), ("zero3", 1, {}), ("zero3", 3, {}), ("hsdp", 4, {"optimizer_instances": 2}),
              ("hfsdp", 4, {"optimizer_instances": 2, "gathered_units": 1})]
    MUON_MESHES = [("ddp", 3, {}), ("zero1", 2, {}), ("zero2", 4, {}), ("zero3", 3, {}),
                   ("hsdp", 2, {"optimizer_instances": 2}), ("hfsdp", 4, {"optimizer_instances": 2})]


class Bits(unittest.TestCase):
    def over_meshes(self, make, loss_of, meshes, **more):
        alone = of_all_ranks(1, make, loss_of, {"strategy": "ddp", **more})
        for strategy, count, options in meshes:
            with self.subTest(strategy=strategy, ranks=count):
                self.assertEqual(of_all_ranks(count, make, loss_of, {"strategy": strategy, **options, **more}), alone)

    def test_are_those_of_one_rank_on_every_mesh(self):
        self.over_meshes(models.llama, models.sum_of_losses, MESHES)

    def test_do_not_depend_on_ranks_where_there_is_dropout(self):
        self.over_meshes(models.Classifier, models.mean_loss, [("zero1", 2, {}), ("zero3", 3, {})])

    def test_are_those_of_one_rank_where_layers_are_frozen(self):
        for make in (partly_frozen, mostly_frozen):
            self.over_meshes(make, models.sum_of_losses, [("zero1", 2, {}), ("zero3", 2, {})])

    def test_are_those_of_one_rank_in_bf16_and_in_f16(self):
        for make, options in ((brain_floats, {}), (half_floats, {"loss_scaling": "dynamic", "loss_scale": 64.0})):
            self.over_meshes(make, models.sum_of_losses, [("zero1", 2, {}), ("zero3", 2, {})], **options)

    def test_are_those_of_kept_activations_where_they_are_computed_again(self):
        kept = of_all_ranks(1, models.llama, models.sum_of_losses, {"strategy": "ddp"})
        for reentrant in (False, True):
            for strategy in ("zero1", "zero3"):
                with self.subTest(reentrant=reentrant, strategy=strategy):
                    again = of_all_ranks(2, recomputing(reentrant), models.sum_of_losses, {"strategy": strategy})
                    self.assertEqual(again, kept)

    def test_are_those_of_one_rank_with_muon_and_groups(self):
        alone = ranks.results(1, trained_with_groups, {"strategy": "ddp"})[0]
        for strategy, count, options in MUON_MESHES:
            with self.subTest(strategy=strategy, ranks=count):
                self.assertEqual(set(ranks.results(count, trained_with_groups, {"strategy": strategy, **options})),
                                 {alone})

    def test_do_not_depend_on_whether_losses_are_scaled_by_a_power_of_two(self):
        self.over_meshes(models.llama, models.sum_of_losses, [("zero1", 2, {"loss_scaling": "fixed",
                                                                             "loss_scale": 1024})])


def over_a_loader(workers, strategy, first, until, folder):
    """Samples come in an order of their own in every epoch of 3 steps, from other processes."""
    data = torch.utils.data.TensorDataset(torch.arange(26.0).view(26, 1).expand(26, 12) % 7)
    model = models.Classifier()
    with Trainer(model, strategy=strategy, lanes=models.LANES, lr=3e-3, checkpoints=folder) as trainer:
        if first > 0:
            trainer.restore()
        loader = iter(torch.utils.data.DataLoader(data, batch_sampler=trainer.batch_sampler(len(data), 2),
                                                  num_workers=workers))
        while trainer.next_step < until:
            trainer.train_step(lambda lane: model(next(loader)[0][:, None]).square().mean())
        trainer.save()
        return models.bits(trainer.state_dict())


class Loaders(unittest.TestCase):
    def test_give_the_same_samples_on_any_ranks_and_after_a_resume(self):
        with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as together:
            expected = ranks.results(1, over_a_loader, 0, "ddp", 0, 5, alone)[0]
            ranks.results(2, over_a_loader, 1, "zero1", 0, 2, together)
            found = ranks.results(3, over_a_loader, 1, "zero3", 2, 5, together)
            self.assertEqual(set(found), {expected})

    def test_take_each_sample_once_in_an_epoch(self):
        for step in (0, 3):
            lanes = iter(LaneBatches(26, 2, 4, range(4), step, 7))
            taken = [sample for _ in range(3 * 4) for sample in next(lanes)]
            self.assertEqual(len(set(taken)), 24)
            self.assertLess(max(taken), 26)


def until_killed(folder, victim, muon):
    model = models.llama()
    with Trainer(model, strategy="zero3", lanes=models.LANES, lr=3e-3, checkpoints=folder,
                 **(with_groups(model) if muon else {})) as trainer:
        models.train(trainer, models.sum_of_losses, 2)
        trainer.save({"tokens": 12})
        trainer.wait_saves()
        models.train(trainer, models.sum_of_losses, 3)
        if trainer.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        models.train(trainer, models.sum_of_losses, 4)


def resumed(folder, muon, options):
    model = models.llama()
    with Trainer(model, lanes=models.LANES, lr=3e-3, checkpoints=folder, **options,
                 **(with_groups(model) if muon else {})) as trainer:
        restored = trainer.restore()
        if (restored.step, restored.common) != (2, {"tokens": 12}) or trainer.next_step != 2:
            raise AssertionError(f"expected to go on at step 2, found {restored}")
        models.train(trainer, models.sum_of_losses, STEPS)
        return models.bits(trainer.state_dict())


def with_copies_at_peers(folder, until):
    """The bits, whether a local save was restored, and whether all saves were committed."""
    with Trainer(models.llama(), strategy="zero3", lanes=models.LANES, lr=3e-3, replication_factor=2,
                 local_checkpoints=folder + "/{rank}") as trainer:
        restored = trainer.restore()
        models.train(trainer, models.sum_of_losses, until)
        trainer.save(local=True)
        trainer.wait_saves()
        committed = all(save.committed and save.is_local for save in trainer.take_saves())
        return models.bits(trainer.state_dict()), restored is not None and restored.is_local, committed


def uninterrupted():
    with Trainer(models.llama(), strategy="ddp", lanes=models.LANES, lr=3e-3) as trainer:
        models.train(trainer, models.sum_of_losses, STEPS)
        return models.bits(trainer.state_dict())


class Killed(unittest.TestCase):
    def test_jobs_go_on_with_the_same_bits_on_other_ranks(self):
        chosen = ALL_MESHES if os.environ.get("TROUPE_ALL_MESHES") else None
        for muon, meshes in (
                (False, [("zero1", 2, {}), ("zero3", 4, {}), ("ddp", 1, {})]),
                (True, [("zero2", 2, {}), ("zero3", 1, {}), ("hfsdp", 4, {"optimizer_instances": 2})])):
            with tempfile.TemporaryDirectory() as folder:
                died = ranks.outcomes(3, until_killed, folder, 1, muon)
                self.assertTrue(all(isinstance(found, ranks.Failed) for found in died))
                for survivor in (0, 2):
                    self.assertIn("rank 1", str(died[survivor]))
                expected = (ranks.results(1, trained_with_groups, {"strategy": "ddp"}) if muon else
                            ranks.results(1, uninterrupted))[0]
                for strategy, count, options in chosen or meshes:
                    with self.subTest(muon=muon, ranks=count, strategy=strategy):
                        found = ranks.results(count, resumed, folder, muon, {"strategy": strategy, **options})
                        self.assertEqual(set(found), {expected})

    def test_jobs_go_on_from_copies_of_a_node_that_was_lost(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.results(2, with_copies_at_peers, folder, 3)
            shutil.rmtree(os.path.join(folder, "1"))
            expected = ranks.results(1, uninterrupted)[0]
            self.assertEqual(ranks.results(2, with_copies_at_peers, folder, STEPS), [(expected, True, True)] * 2)


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {troupe.torch.__name__} of {troupe.torch.__file__}", file=sys.stderr)
    unittest.main()
