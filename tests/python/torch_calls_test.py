#!/usr/bin/env python3
"""What troupe.torch refuses, and says; and what it does with buffers, unused parameters and models after close()."""

import os
import subprocess
import tempfile
import unittest
import warnings
from pathlib import Path

import ranks  # first: it says where troupe is
import models

import torch
from torch import nn

import troupe
from troupe.torch import Trainer


def linear():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def loss_of(model, lane=0):
    return model(torch.full((2, 4), 0.5 + lane)).square().mean()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.other = linear(), nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def message_of(act):
    """What a rank of one says when it does this."""
    try:
        act()
    except (troupe.Error, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def in_step(play, make=linear, **options):
    def act():
        with Trainer(make(), lr=0.1, lanes=2, **options) as trainer:
            with trainer.step() as step:
                for lane in step:
                    play(trainer.model, step, lane)
    return act


def calls_backward(model, step, lane):
    loss_of(model).backward()


def asks_for_a_graph(model, step, lane):
    loss_of(model).backward(create_graph=True)


def forgets_backward(model, step, lane):
    loss_of(model)


def detaches(model, step, lane):
    step.backward(loss_of(model).detach())


def gives_many_losses(model, step, lane):
    step.backward(model(torch.ones(2, 4)))


def calls_twice(model, step, lane):
    step.backward(loss_of(model))
    step.backward(loss_of(model))


def weighs_some(model, step, lane):
    step.backward(loss_of(model), weight=3 if lane == 0 else None)


def breaks_off():
    with Trainer(linear(), lr=0.1, lanes=2) as trainer:
        with trainer.step() as step:
            for _ in step:
                step.backward(loss_of(trainer.model))
                break


def unfreezes():
    model = linear()
    model[0].requires_grad_(False)
    with Trainer(model, lr=0.1) as trainer:
        trainer.train_step(lambda lane: loss_of(model))
        model[0].requires_grad_(True)
        trainer.train_step(lambda lane: loss_of(model))


def converts_the_model():
    model = linear()
    with Trainer(model, lr=0.1) as trainer:
        model.double()
        trainer.train_step(lambda lane: loss_of(model))


def loads_after_a_step():
    with Trainer(linear(), lr=0.1) as trainer:
        state = trainer.state_dict()
        trainer.train_step(lambda lane: loss_of(trainer.model))
        trainer.load_state_dict(state)


def saves_within_a_step():
    with Trainer(linear(), lr=0.1) as trainer:
        with trainer.step():
            trainer.save()


def runs_a_unit_outside_of_steps():
    model = Layers()
    with Trainer(model, lr=0.1, strategy="zero3"):
        model(torch.ones(2, 4))


def takes_gradients_of_released_units():
    model = Layers()
    x = torch.ones(2, 4, requires_grad=True)
    with Trainer(model, lr=0.1, strategy="zero3") as trainer:
        trainer.train_step(lambda lane: torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].sum())


def runs_units_out_of_order():
    model = Layers()
    with Trainer(model, lr=0.1, strategy="zero3", units=list(model.layers)[::-1]) as trainer:
        trainer.train_step(lambda lane: loss_of(model))


def nests_units():
    model = nn.Sequential(Layers(), Layers())
    Trainer(model, lr=0.1, strategy="zero3", units=["Layers", "Linear"])


def uses_a_closed_trainer():
    with Trainer(linear(), lr=0.1) as trainer:
        pass
    trainer.step()


REFUSED = [
    (in_step(calls_backward), "call step.backward(loss) instead of loss.backward()"),
    (in_step(asks_for_a_graph), "call step.backward(loss) instead of loss.backward()"),
    (in_step(forgets_backward), "lane 0 of step 0 ended without step.backward(loss)"),
    (in_step(detaches), "the loss depends on no parameter that requires a gradient"),
    (in_step(gives_many_losses), "expected the loss as a tensor of one element, found (2, 2)"),
    (in_step(calls_twice), "step.backward() is called once per lane"),
    (in_step(weighs_some), "lane 1 is ended without a weight, and the one before it was not"),
    (in_step(lambda model, step, lane: step.backward(loss_of(model)), TwoHeads),
     "no gradient reached other.weight, other.bias in lane 0"),
    (breaks_off, "step 0 ended before lanes [1] of this rank were played"),
    (unfreezes, "requires_grad of parameter 0.weight has changed"),
    (converts_the_model, "parameter 0.weight is no longer in the session's memory"),
    (loads_after_a_step, "first step"),
    (lambda: Trainer(linear()).load_state_dict({"0.weight": torch.ones(3, 4)}), "missing are ['0.bias', "),
    (lambda: Trainer(nn.Sequential(nn.LazyLinear(3))), "lazy modules have seen an input"),
    (lambda: Trainer(nn.DataParallel(linear())), "give model.module"),
    (saves_within_a_step, "save() within a step"),
    (lambda: Trainer(linear(), lr=0.1).save(), "checkpoints"),
    (runs_a_unit_outside_of_steps, "layers.0 runs outside of a step"),
    (runs_units_out_of_order, "unit"),
    (takes_gradients_of_released_units, "gradients reach layers.2 outside of step.backward()"),
    (nests_units, "lies within unit"),
    (uses_a_closed_trainer, "after close()"),
    (lambda: Trainer(linear()).step(), "expected a learning rate"),
    (lambda: Trainer(linear(), strategy="zero4"), "zero4"),
    (lambda: Trainer(linear(), strategy="zero3"), "name the modules, in the order of forward, or their classes"),
    (lambda: Trainer(linear(), strategy="zero3", units=["Layer"]), "no module among ['Layer']"),
    (lambda: Trainer(linear(), wire_dtyp="bf16"), "there is no option \"wire-dtyp\""),
    (lambda: Trainer(linear(), microbatches=2), "ask for more lanes"),
    (lambda: Trainer(linear(), device="cuda"), "move it with model.to('cuda')"),
    (lambda: Trainer(linear(), device="gpu"), "expected the device host, cuda or cuda:<index>, found 'gpu'"),
    (lambda: Trainer(linear(), tensor_parallel=2), "leave out tensor_parallel"),
    (lambda: Trainer(linear(), lanes=4).batch_sampler(10, 3), "a step takes 4 lanes of 3 samples, and there are 10"),
    (lambda: Trainer(linear().double()), "parameter 0.weight is torch.float64"),
    (lambda: Trainer(linear().requires_grad_(False)), "no parameter that requires a gradient"),
    (lambda: Trainer(linear(), groups=[{"params": [nn.Parameter(torch.ones(3))]}]), "not a parameter of the model"),
    (lambda: Trainer(linear(), groups=[{"params": [], "lr": 1}]), "parameter groups have no option lr"),
]


def all_messages():
    return [message_of(act) for act, _ in REFUSED]


class Refusals(unittest.TestCase):
    def test_say_what_was_expected(self):
        for found, (_, expected) in zip(ranks.results(1, all_messages)[0], REFUSED):
            with self.subTest(expected=expected):
                self.assertIn(expected, found)
                self.assertTrue(found.startswith("Error: "), found)


def fails_on_rank_1():
    with Trainer(linear(), lr=0.1, lanes=4) as trainer:
        with trainer.step() as step:
            for lane in step:
                if trainer.rank == 1:
                    raise ValueError("the data ends here")
                step.backward(loss_of(trainer.model))


class Normalised(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.norm(self.linear(x))


def saves_and_restores_buffers(folder):
    """Ranks begin with other values, and go on with those of rank 0."""
    model = Normalised(1)
    with Trainer(model, lr=0.1, lanes=2, checkpoints=folder) as trainer:
        started = model.norm.running_mean.clone()
        trainer.train_step(lambda lane: model(torch.arange(8.0).view(2, 4) * (1 + lane)).square().mean())
        trainer.save()
        kept = trainer.state_dict()
    again = Normalised(2)
    with Trainer(again, lr=0.1, lanes=2, checkpoints=folder) as trainer:
        trainer.restore()
        equal = all(torch.equal(kept[name], value) for name, value in trainer.state_dict().items())
    return equal, bool((started != kept["norm.running_mean"]).any()), sorted(kept)


def saves_a_llama(folder):
    with Trainer(models.llama(), lr=1e-3, strategy="zero3", checkpoints=folder) as trainer:
        models.train(trainer, models.sum_of_losses, 1)
        trainer.save()
        return trainer.state_dict()


def starts_with_values_of_rank_0():
    model = linear()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(int(os.environ["RANK"]))
    with Trainer(model, lr=0.0, lanes=2) as trainer:
        trainer.train_step(lambda lane: loss_of(model))
    return models.bits(model.state_dict()) == models.bits(linear().state_dict())


def habits(zeroes):
    """What people do to gradients out of habit changes nothing."""
    model = linear()
    with Trainer(model, lr=0.1, lanes=2, clip_norm=1.0) as trainer:
        for _ in range(3):
            with trainer.step() as step:
                for lane in step:
                    if zeroes:
                        model.zero_grad()
                    step.backward(loss_of(model, lane))
                    if zeroes:
                        model.zero_grad(set_to_none=False)
                        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    return models.bits(model.state_dict())


def loads(strategy):
    model, other = models.llama(), models.llama().to(torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    with Trainer(model, lr=0.1, lanes=2, strategy=strategy) as trainer:
        trainer.load_state_dict(other.state_dict())
        loaded = models.bits(trainer.state_dict()) == models.bits(other.state_dict())
        with trainer.evaluation(), torch.no_grad():
            losses = [models.sum_of_losses(model, 0, 0)[0] for model in (model, other)]
    return loaded and torch.equal(*losses)


def unused_are_zeros(strategy):
    model = TwoHeads()
    before = model.other.weight.detach().clone()
    with Trainer(model, lr=0.1, weight_decay=0.0, unused_parameters="zeros", strategy=strategy,
                 units=[nn.Linear]) as trainer:
        outcome = trainer.train_step(lambda lane: loss_of(model))
    return outcome.committed and torch.equal(before, model.other.weight)


def trains_on_after_close():
    model = models.llama()
    with Trainer(model, lr=1e-3, strategy="zero3", lanes=2) as trainer:
        models.train(trainer, models.sum_of_losses, 1)
        evaluated = evaluate(trainer)
    loss, _ = models.sum_of_losses(model, 0, 0)
    loss.backward()
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    return tied and loss.item() == evaluated and all(p.grad is not None for p in model.parameters())


def evaluate(trainer):
    with trainer.evaluation(), torch.no_grad():
        return models.sum_of_losses(trainer.model, 0, 0)[0].item()


def penalty(model):
    """On the gradient of the input."""
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    y = model(x)
    return y.square().mean() + torch.autograd.grad(y.sum(), x, create_graph=True)[0].square().mean()


def penalised(strategy):
    """The norm of the penalty's gradient, over Troupe and in plain PyTorch, and gradients of inputs in an evaluation."""
    model, plain = Layers(), Layers()
    penalty(plain).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()]).norm().item()
    of_inputs = []
    with Trainer(model, lr=0.0, strategy=strategy) as trainer:
        for evaluated in (model, plain):
            x = torch.ones(2, 4, requires_grad=True)
            with trainer.evaluation():
                of_inputs.append(torch.autograd.grad(evaluated(x).sum(), x)[0])
        if strategy == "zero3":
            return torch.equal(*of_inputs)
        norm = trainer.train_step(lambda lane: penalty(model)).gradient_norm
    return torch.equal(*of_inputs) and abs(norm - expected) < 1e-6


def loses_a_step():
    model = linear()
    with Trainer(model, lr=0.1) as trainer:
        before = models.bits(trainer.state_dict())
        outcome = trainer.train_step(lambda lane: loss_of(model) * float("nan"))
        return outcome.committed, outcome.nonfinite_gradients > 0, models.bits(trainer.state_dict()) == before


class Trainers(unittest.TestCase):
    def test_tell_other_ranks_why_one_failed(self):
        failed = [str(found) for found in ranks.outcomes(2, fails_on_rank_1)]
        self.assertIn("ValueError: the data ends here", failed[1])
        self.assertIn("rank 1 gave up: ValueError: the data ends here", failed[0])

    def test_save_and_restore_persistent_buffers(self):
        with tempfile.TemporaryDirectory() as folder:
            names = ["flags", "linear.bias", "linear.weight", "norm.bias", "norm.num_batches_tracked",
                     "norm.running_mean", "norm.running_var", "norm.weight"]
            self.assertEqual(ranks.results(1, saves_and_restores_buffers, folder)[0], (True, True, names))

    def test_save_what_transformers_can_load(self):
        with tempfile.TemporaryDirectory() as folder:
            run, exported = Path(folder, "run"), Path(folder, "model")
            state = ranks.results(2, saves_a_llama, str(run))[0]
            subprocess.run([os.environ.get("TROUPE_TOOL", "troupe"), "checkpoint", "export", run, exported, "--to",
                            "huggingface"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            models.llama().config.save_pretrained(exported)
            loaded = models.LLAMA.from_pretrained(exported)
            self.assertEqual(models.bits(loaded.state_dict()), models.bits(state))

    def test_begin_with_the_values_of_rank_0(self):
        self.assertEqual(ranks.results(2, starts_with_values_of_rank_0), [True, True])

    def test_own_the_gradients_whatever_is_done_to_them_between_backwards(self):
        self.assertEqual(ranks.results(1, habits, True), ranks.results(1, habits, False))

    def test_take_parameters_without_gradients_for_zeros_if_they_may(self):
        for strategy in ("zero1", "zero3"):
            with self.subTest(strategy=strategy):
                self.assertEqual(ranks.results(2, unused_are_zeros, strategy), [True, True])

    def test_load_whole_state_dictionaries_before_the_first_step(self):
        for strategy in ("zero1", "zero2", "zero3"):
            with self.subTest(strategy=strategy):
                self.assertEqual(ranks.results(2, loads, strategy), [True, True])

    def test_leave_a_plain_model(self):
        self.assertEqual(ranks.results(2, trains_on_after_close), [True, True])

    def test_take_gradients_of_gradients_and_of_inputs(self):
        for strategy in ("zero1", "zero2", "zero3"):
            with self.subTest(strategy=strategy):
                self.assertEqual(ranks.results(2, penalised, strategy), [True, True])

    def test_do_not_commit_a_step_with_gradients_that_are_not_numbers(self):
        self.assertEqual(ranks.results(2, loses_a_step), [(False, True, True)] * 2)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
