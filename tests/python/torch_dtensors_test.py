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
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

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


def experts(folder, expert_parallel):
    groups.join()
    with Trainer(models.mixture(), strategy="zero1", lanes=2, lr=1e-3, expert_parallel=expert_parallel,
                 expert_tokens=64) as trainer:
        state = trainer.state_dict(dtensors=True)
        dcp.save({"model": state}, checkpoint_id=folder)
        found = describe(state)
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
        found = ranks.results(2, experts, self.folder, 2)[0]
        self.assertEqual({name for name, placements in found.items() if placements == str((Shard(0),))},
                         {name for name, tensor in models.mixture().named_parameters() if tensor.ndim == 3})
        plain, expected = models.mixture(), models.bits(models.mixture().state_dict())
        with torch.no_grad():
            for tensor in plain.parameters():
                tensor.zero_()
        dcp.load({"model": plain.state_dict()}, checkpoint_id=self.folder, **groups.ALONE)
        self.assertEqual(models.bits(plain.state_dict()), expected)

    def test_need_the_ranks_of_torch_distributed(self):
        self.assertIn("call torch.distributed.init_process_group()", ranks.results(1, without_a_group)[0])

    def test_are_not_loaded_behind_the_sessions_back(self):
        self.assertIn("after the first step of the session had begun", ranks.results(1, late)[0])


if __name__ == "__main__":
    unittest.main()
