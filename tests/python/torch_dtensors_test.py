#!/usr/bin/env python3
"""State dictionaries of DTensors: plain PyTorch and FSDP2 read what a trainer's model has, and the other way round, with
the same bits, whatever the number of ranks and the strategy are."""

import tempfile
import unittest

import ranks  # first: it says where troupe is
import groups
import models
from groups import Replicate, Shard

import torch
import torch._dynamo  # FSDP2 and DCP import it: once here, and not in every child
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)

import troupe
from troupe.torch import Trainer

MESHES = [("ddp", 1, {}), ("ddp", 2, {}), ("zero1", 2, {}), ("zero1", 3, {}), ("zero2", 2, {}), ("zero3", 1, {}),
          ("zero3", 2, {}), ("zero3", 3, {}), ("hsdp", 4, {"optimizer_instances": 2})]


class Uneven(nn.Module):
    """Rows that no number of ranks divides, fewer rows than ranks, a tied parameter and buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(11, 5)
        self.layers = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 2), nn.Linear(2, 5, bias=False)])
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.norm(x))


def narrow():
    return Uneven().to(torch.bfloat16)


def loss_of(model, step, lane):
    tokens = torch.arange(6) + step + lane
    return nn.functional.cross_entropy(model(tokens % 11).float(), (tokens + 1) % 11)


def trainer_of(make, strategy, options):
    return Trainer(make().eval(), strategy=strategy, lanes=4, lr=3e-2, **options)


def describe(state):
    return {name: str(values.placements) for name, values in state.items() if hasattr(values, "placements")}


def rows_of(values):
    """How many a rank has, in memory of just that size."""
    local = values.to_local()
    if local.untyped_storage().nbytes() != local.numel() * local.element_size():
        raise AssertionError(f"{tuple(local.shape)} keeps {local.untyped_storage().nbytes()} bytes")
    return len(local)


def saved(make, folder, strategy, options):
    """The bits of the model that was saved, those that get_model_state_dict() has, and the placements."""
    groups.join()
    with trainer_of(make, strategy, options) as trainer:
        models.train(trainer, loss_of, 2)
        state = trainer.state_dict(dtensors=True)
        dcp.save({"model": state}, checkpoint_id=folder)
        whole = get_model_state_dict(trainer.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        rows = {name: rows_of(values) for name, values in state.items() if hasattr(values, "to_local")}
        found = models.bits(trainer.state_dict()), models.bits(whole) if whole else None, describe(state), rows
    groups.leave()
    return found


def of_one_rank(make):
    with trainer_of(make, "ddp", {}) as trainer:
        models.train(trainer, loss_of, 2)
        return models.bits(trainer.state_dict())


def other_values(make):
    """A model that is not as it was made."""
    model = make().eval()
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values()):
            tensor.add_(number + 1)
    return model


def saved_by_fsdp2(make, folder):
    groups.join()
    model = other_values(make)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    groups.leave()


def loaded(make, folder, strategy, options, by_model):
    """The bits of the model after loading, and after two more steps."""
    groups.join()
    with trainer_of(make, strategy, options) as trainer:
        state = trainer.state_dict(dtensors=True)
        dcp.load({"model": state}, checkpoint_id=folder)
        if by_model:
            set_model_state_dict(trainer.model, state)
        else:
            trainer.load_state_dict(state)
        at_first = models.bits(trainer.state_dict())
        models.train(trainer, loss_of, 2)
        found = at_first, models.bits(trainer.state_dict())
    groups.leave()
    return found


def from_other_values(make):
    """Like loaded(), by one rank and without DTensors."""
    with trainer_of(make, "ddp", {}) as trainer:
        trainer.load_state_dict(other_values(make).state_dict())
        models.train(trainer, loss_of, 2)
        return models.bits(other_values(make).state_dict()), models.bits(trainer.state_dict())


RATES = {"lr": 3e-2, "betas": (0.8, 0.95), "eps": 1e-6}
DECAYS = (0.1, 0.0)


def groups_of(model):
    """Matrices, and the rest, which does not decay."""
    trained = [each for each in model.parameters() if each.requires_grad]
    return [{"params": [each for each in trained if (each.ndim == 1) == is_vector], "weight_decay": decay}
            for is_vector, decay in zip((False, True), DECAYS)]


def with_groups(strategy, options, kind="adamw"):
    model = Uneven().eval()
    model.layers[2].requires_grad_(False)
    return Trainer(model, strategy=strategy, lanes=4, optimizer=kind, groups=groups_of(model), **RATES, **options)


def of_fsdp2(kind):
    """The model of other_values(), sharded, with its optimizer."""
    model = other_values(Uneven)
    model.layers[2].requires_grad_(False)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    return model, {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](groups_of(model), **RATES)


def steps_of_fsdp2(model, optimizer, first, last):
    """Losses of steps with four lanes, which the ranks share."""
    losses, share = [], 4 // dist.get_world_size()
    for step in range(first, last):
        optimizer.zero_grad()
        mean = torch.zeros(())
        for lane in range(dist.get_rank() * share, (dist.get_rank() + 1) * share):
            loss = loss_of(model, step, lane) / share
            loss.backward()
            mean += loss.detach()
        optimizer.step()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def optimizer_bits(state):
    """The bits of all moments and counts of steps, and what they are called."""
    whole = {f"{name} {kept}": values.full_tensor() if hasattr(values, "full_tensor") else values
             for name, entry in state["state"].items() for kept, values in entry.items()}
    return models.bits(whole), sorted(whole)


def of_trainer(folder, strategy, options, load, kind="adamw"):
    """Three steps after first values or a load, what is saved then, and the losses of three more."""
    groups.join()
    with with_groups(strategy, options, kind) as trainer:
        if load:
            state = {"model": trainer.state_dict(dtensors=True), "optim": trainer.optimizer_state_dict(dtensors=True)}
            dcp.load(state, checkpoint_id=folder)
            trainer.load_state_dict(state["model"])
            trainer.load_optimizer_state_dict(state["optim"])
            at_first = optimizer_bits(trainer.optimizer_state_dict(dtensors=True))
        else:
            models.train(trainer, loss_of, 3)
            state = {"model": trainer.state_dict(dtensors=True), "optim": trainer.optimizer_state_dict(dtensors=True)}
            dcp.save(state, checkpoint_id=folder)
            at_first = optimizer_bits(state["optim"])
            assert at_first == optimizer_bits(trainer.optimizer_state_dict())
        step = trainer.next_step
        found = at_first, step, models.train(trainer, loss_of, 6), trainer.optimizer_state_dict()["param_groups"]
    groups.leave()
    return found


def by_fsdp2(folder, load, kind="adamw", with_moments=True):
    """The same, by FSDP2 and torch's optimizer."""
    groups.join()
    model, optimizer = of_fsdp2(kind)
    if load:
        state = {"model": get_model_state_dict(model)}
        if with_moments:
            state["optim"] = get_optimizer_state_dict(model, optimizer)
        dcp.load(state, checkpoint_id=folder)
        set_model_state_dict(model, state["model"])
        if with_moments:
            set_optimizer_state_dict(model, optimizer, state["optim"])
    else:
        steps_of_fsdp2(model, optimizer, 0, 3)
        dcp.save({"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)},
                 checkpoint_id=folder)
    state = get_optimizer_state_dict(model, optimizer)
    at_first = optimizer_bits(state)
    found = at_first, steps_of_fsdp2(model, optimizer, 3, 6), state["param_groups"]
    groups.leave()
    return found


def refused(kind, make):
    """What the trainer says when it is asked for its optimizer's state."""
    model = make().eval()
    matrices = [{"params": [model.layers[0].weight], "optimizer": kind}]
    with Trainer(model, lr=1e-3, groups=matrices) as trainer:
        try:
            trainer.optimizer_state_dict()
        except troupe.Error as error:
            return str(error)
    return "nothing"


def misfits():
    """What load_optimizer_state_dict() says of states that it cannot go on from."""
    said = []
    with with_groups("zero1", {}) as trainer:
        for change in (lambda state: state["state"].popitem(),
                       lambda state: state["param_groups"][1].update(betas=[0.9, 0.95]),
                       lambda state: state["param_groups"][0].update(amsgrad=True),
                       lambda state: state["state"]["norm.bias"].update(max_exp_avg_sq=torch.zeros(5)),
                       lambda state: state["state"]["norm.bias"].update(exp_avg=torch.zeros(4))):
            state = trainer.optimizer_state_dict()
            change(state)
            try:
                trainer.load_optimizer_state_dict(state)
                said.append("nothing")
            except troupe.Error as error:
                said.append(str(error))
    return said


def experts(folder, expert_parallel):
    groups.join()
    with Trainer(models.mixture(), strategy="zero1", lanes=2, lr=1e-3, expert_parallel=expert_parallel,
                 expert_tokens=64) as trainer:
        state = trainer.state_dict(dtensors=True)
        dcp.save({"model": state}, checkpoint_id=folder)
        models.train(trainer, models.sum_of_losses, 2)
        found = describe(state), optimizer_bits(trainer.optimizer_state_dict(dtensors=True))
    groups.leave()
    return found


def without_a_group():
    with trainer_of(Uneven, "ddp", {}) as trainer:
        try:
            trainer.state_dict(dtensors=True)
        except troupe.Error as error:
            return str(error)
    return "nothing"


def late():
    """What model.load_state_dict() says after a step."""
    with trainer_of(Uneven, "zero1", {}) as trainer:
        state = trainer.state_dict()
        models.train(trainer, loss_of, 1)
        try:
            trainer.model.load_state_dict(state)
        except troupe.Error as error:
            return str(error)
    return "nothing"


class DTensors(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def test_that_dcp_saves_are_read_by_plain_pytorch(self):
        for make in (Uneven, narrow):
            (expected,) = ranks.results(1, of_one_rank, make)
            for number, (strategy, count, options) in enumerate(MESHES):
                with self.subTest(make.__name__, strategy=strategy, ranks=count):
                    folder = f"{self.folder}/{make.__name__}{number}"
                    of_ranks = ranks.results(count, saved, make, folder, strategy, options)
                    self.assertEqual({bits for bits, *_ in of_ranks}, {expected})
                    self.assertEqual(of_ranks[0][1], expected)
                    plain = other_values(make)
                    dcp.load({"model": plain.state_dict()}, checkpoint_id=folder, **groups.ALONE)
                    self.assertEqual(models.bits(plain.state_dict()), expected)

    def test_are_sharded_as_the_session_shards(self):
        for strategy, count, options in MESHES:
            with self.subTest(strategy=strategy, ranks=count):
                of_ranks = ranks.results(count, saved, Uneven, f"{self.folder}/{strategy}{count}", strategy, options)
                axes = 2 if strategy == "hsdp" else 1
                copied, cut = (Replicate(),) * axes, (Replicate(),) * (axes - 1) + (Shard(0),)
                _, _, placements, _ = of_ranks[0]
                self.assertEqual(set(placements), set(dict(Uneven().named_parameters(remove_duplicate=False))))
                for name, found in placements.items():
                    is_cut = strategy in ("zero3", "hsdp") and name.startswith("layers.")
                    self.assertEqual(found, str(cut if is_cut else copied), name)
        of_ranks = ranks.results(3, saved, Uneven, f"{self.folder}/rows", "zero3", {})
        self.assertEqual([rows["layers.0.weight"] for *_, rows in of_ranks], [3, 3, 1])
        self.assertEqual([rows["layers.1.weight"] for *_, rows in of_ranks], [1, 1, 0])
        self.assertEqual([rows["embed.weight"] for *_, rows in of_ranks], [11, 11, 11])

    @unittest.skipUnless(hasattr(fsdp, "fully_shard"), f"torch {torch.__version__} has no fully_shard")
    def test_of_fsdp2_are_loaded_by_a_trainer(self):
        for make in (Uneven, narrow):
            (expected,) = ranks.results(1, from_other_values, make)
            ranks.results(2, saved_by_fsdp2, make, f"{self.folder}/{make.__name__}")
            for strategy, count, options in MESHES:
                for by_model in (False, True):
                    with self.subTest(make.__name__, strategy=strategy, ranks=count, by_model=by_model):
                        found = ranks.results(count, loaded, make, f"{self.folder}/{make.__name__}", strategy, options,
                                              by_model)
                        self.assertEqual(set(found), {expected})

    @unittest.skipUnless(models.MIXTURE, "this transformers has no Qwen3-MoE")
    def test_of_experts_that_ranks_share_are_cut_by_experts(self):
        found, moments = ranks.results(2, experts, self.folder, 2)[0]
        self.assertEqual({name for name, placements in found.items() if placements == str((Shard(0),))},
                         {name for name, tensor in models.mixture().named_parameters() if tensor.ndim == 3})
        plain, expected = models.mixture(), models.bits(models.mixture().state_dict())
        with torch.no_grad():
            for tensor in plain.parameters():
                tensor.zero_()
        dcp.load({"model": plain.state_dict()}, checkpoint_id=self.folder, **groups.ALONE)
        self.assertEqual(models.bits(plain.state_dict()), expected)
        self.assertEqual(moments, ranks.results(1, experts, f"{self.folder}/alone", 1)[0][1])

    def assert_near(self, found, expected):
        self.assertEqual(len(found), len(expected))
        self.assertLess(max(abs(a - b) for a, b in zip(found, expected)), 1e-5)

    @unittest.skipUnless(hasattr(fsdp, "fully_shard"), f"torch {torch.__version__} has no fully_shard")
    def test_fsdp2_goes_on_with_a_trainers_optimizer(self):
        for number, (strategy, count, options) in enumerate(MESHES):
            with self.subTest(strategy=strategy, ranks=count):
                folder, kind = f"{self.folder}/{number}", "adam" if strategy == "zero2" else "adamw"
                saved_bits, step, losses, of_trainers = ranks.results(
                    count, of_trainer, folder, strategy, options, False, kind)[0]
                self.assertEqual(step, 3)
                loaded_bits, continued, of_torch = ranks.results(2, by_fsdp2, folder, True, kind)[0]
                self.assertEqual(loaded_bits, saved_bits)
                self.assertEqual(of_torch, of_trainers)
                self.assert_near(continued, losses)
        _, without, _ = ranks.results(2, by_fsdp2, folder, True, "adamw", False)[0]
        self.assertGreater(max(abs(a - b) for a, b in zip(without, losses)), 1e-3)

    @unittest.skipUnless(hasattr(fsdp, "fully_shard"), f"torch {torch.__version__} has no fully_shard")
    def test_a_trainer_goes_on_with_fsdp2s_optimizer(self):
        saved_bits, losses, _ = ranks.results(2, by_fsdp2, self.folder, False)[0]
        continued = set()
        for strategy, count, options in MESHES:
            with self.subTest(strategy=strategy, ranks=count):
                loaded_bits, step, found, _ = ranks.results(count, of_trainer, self.folder, strategy, options, True)[0]
                self.assertEqual(loaded_bits, saved_bits)
                self.assertEqual(step, 3)
                self.assert_near(found, losses)
                continued.add(tuple(found))
        self.assertEqual(len(continued), 1)

    def test_optimizers_without_a_form_are_refused(self):
        self.assertIn("layers.0.weight is stepped by muon", ranks.results(1, refused, "muon", Uneven)[0])
        self.assertIn("is torch.bfloat16 and has an fp32 master", ranks.results(1, refused, "adamw", narrow)[0])

    def test_misfit_states_of_optimizers_are_refused(self):
        missing, betas, amsgrad, unknown, shape = ranks.results(1, misfits)[0]
        self.assertIn("missing are ['norm.bias']", missing)
        self.assertIn("betas=[0.9, 0.95], and the trainer's has (0.8, 0.95)", betas)
        self.assertIn("amsgrad=True", amsgrad)
        self.assertIn("found exp_avg, exp_avg_sq, max_exp_avg_sq, step", unknown)
        self.assertIn("has the shape (4,); expected (5,)", shape)

    def test_need_the_ranks_of_torch_distributed(self):
        self.assertIn("call torch.distributed.init_process_group()", ranks.results(1, without_a_group)[0])

    def test_are_not_loaded_behind_the_sessions_back(self):
        self.assertIn("after the first step of the session had begun", ranks.results(1, late)[0])


if __name__ == "__main__":
    unittest.main()
