#!/usr/bin/env python3
"""Models that were built on the meta device: their values, and what is said where something has none."""

import hashlib
import unittest

import ranks  # first: it says where troupe is
import models

import torch
import transformers
from torch import nn

import troupe
from troupe.torch import Trainer

STEPS = 3


class Model(nn.Module):
    """With a tied parameter, and a buffer that is saved."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.norm(x))


def on_meta():
    with torch.device("meta"):
        return Model()


def on_cpu():
    """In the trainer's order: modules with buffers first, and a tied parameter once."""
    torch.manual_seed(4)
    model = on_meta().to_empty(device="cpu")
    model.head.weight = model.embedding.weight
    model.norm.reset_parameters()
    model.embedding.reset_parameters()
    for layer in model.layers:
        for module in layer:
            module.reset_parameters()
    return model


def bits(model):
    digest = hashlib.sha256()
    for name, values in sorted(model.state_dict().items()):
        digest.update(name.encode() + values.detach().numpy().tobytes())
    return digest.hexdigest()


def trained(make, loss_of, strategy):
    torch.manual_seed(4)
    model = make()
    with Trainer(model, strategy=strategy, lanes=models.LANES, lr=1e-2) as trainer:
        for step in range(STEPS):
            trainer.train_step(lambda lane: loss_of(model, step, lane))
    return bits(model)


def loss_of_model(model, step, lane):
    draw = torch.Generator().manual_seed(100 * step + lane)
    x = torch.randint(11, (16,), generator=draw)
    model.norm.eval()
    return nn.functional.cross_entropy(model(x), (x + 1) % 11)


def llama_on_meta():
    with torch.device("meta"):
        return models.llama()


def mean_of_losses(model, step, lane):
    total, targets = models.sum_of_losses(model, step, lane)
    return total / max(targets, 1)


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


class OnMeta(unittest.TestCase):
    def test_has_the_values_that_its_modules_give_it(self):
        wanted = ranks.results(1, trained, on_cpu, loss_of_model, "ddp")
        for count, strategy in ((1, "zero3"), (2, "zero1"), (3, "zero3")):
            with self.subTest(count=count, strategy=strategy):
                self.assertEqual(ranks.results(count, trained, on_meta, loss_of_model, strategy), count * wanted)

    @unittest.skipIf(int(transformers.__version__.split(".")[0]) < 5,
                     f"transformers {transformers.__version__} does not fill the frequencies of rotary embeddings")
    def test_of_transformers_is_filled_by_the_model(self):
        wanted = ranks.results(1, trained, llama_on_meta, mean_of_losses, "zero1")
        self.assertEqual(ranks.results(2, trained, llama_on_meta, mean_of_losses, "zero3"), 2 * wanted)

    def test_a_module_that_nothing_fills_is_named(self):
        def message(**options):
            with torch.device("meta"):
                model = nn.Sequential(nn.Linear(2, 3), Doubling())
            try:
                with Trainer(model, **options):
                    return model[1].weight.tolist()
            except troupe.Error as error:
                return str(error)

        self.assertIn("module 1, a Doubling, was built on the meta device and has no reset_parameters()",
                      ranks.results(1, message)[0])
        half = {"init": lambda module: module.reset_parameters() if isinstance(module, nn.Linear) else None}
        self.assertIn("a tensor (3,) of module 1, a Doubling, was built on the meta device and has no values after",
                      ranks.results(1, lambda: message(**half))[0])
        whole = {"init": lambda module: [nn.init.constant_(own, 2) for own in module.parameters(recurse=False)]}
        self.assertEqual(ranks.results(1, lambda: message(**whole))[0], [2, 2, 2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
