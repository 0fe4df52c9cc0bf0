#!/usr/bin/env python3
"""troupe.checkpoint: what it saves is what the state was, DCP reads it and the other way round, damage is found, and a
save that ends early shows nothing."""

import argparse
import os
import signal
import tempfile
import unittest
from pathlib import Path

import ranks  # first: it says where troupe is
import groups
import models
from groups import Replicate, Shard, distribute_tensor

import torch
import torch._dynamo  # DCP imports it: once here, and not in every child
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import troupe.torch  # noqa: F401
from troupe import checkpoint
from troupe.errors import Error, Status


def sharded():
    model = models.Classifier().eval()
    model.scale = nn.Parameter(torch.tensor([1.5]))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(model, optimizer, number):
    optimizer.zero_grad()
    models.mean_loss(model, number, dist.get_rank()).backward()
    optimizer.step()


def state_of(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def whole(model):
    return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}


def saved(folder, by_troupe):
    """The weights that were saved; the model goes on while they are written."""
    groups.join()
    model, optimizer = sharded()
    step(model, optimizer, 0)
    expected = {name: tensor.clone() for name, tensor in whole(model).items()}
    state = state_of(model, optimizer)
    if by_troupe:
        save = checkpoint.save_async(state, folder)
        step(model, optimizer, 1)
        save.result()
        again = checkpoint.save_async(state_of(model, optimizer), folder + "-again")
        again.result()
    else:
        dcp.save(state, checkpoint_id=folder)
    groups.leave()
    return expected


def loaded(folder, by_troupe):
    groups.join()
    model, optimizer = sharded()
    state = state_of(model, optimizer)
    if by_troupe:
        checkpoint.load(state, folder)
    else:
        dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    found = whole(model)
    moments = sum(entry["exp_avg"].full_tensor().abs().sum().item() for entry in optimizer.state.values())
    groups.leave()
    return found, moments


def damaged(folder):
    groups.join()
    model, optimizer = sharded()
    try:
        checkpoint.load(state_of(model, optimizer), folder)
    except Error as error:
        return error.status, str(error)
    return Status.OK, "no damage was found"


def killed_while_saving(folder):
    groups.join()
    if dist.get_rank() == 1:
        checkpoint.Writer.write_data = lambda *unused: os.kill(os.getpid(), signal.SIGKILL)
    try:
        checkpoint.save_async({"w": torch.ones(1000)}, folder).result()
    except BaseException as error:  # pylint: disable=broad-except
        return str(error)
    return "it was saved"


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.parent = tempfile.TemporaryDirectory()
        self.addCleanup(self.parent.cleanup)
        self.folder = str(Path(self.parent.name, "step"))

    def assert_same(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(found[name], tensor), name)

    @unittest.skipUnless(hasattr(fsdp, "fully_shard"), f"torch {torch.__version__} has no fully_shard")
    def test_are_read_by_either_with_any_number_of_ranks(self):
        for by_troupe, reading in ((True, False), (True, True), (False, True)):
            with self.subTest(written_by_troupe=by_troupe, read_by_troupe=reading):
                folder = f"{self.folder}-{by_troupe}-{reading}"
                expected = ranks.results(2, saved, folder, by_troupe)[0]
                for count in (1, 2, 3) if by_troupe and reading else (2,):
                    found, moments = ranks.results(count, loaded, folder, reading)[0]
                    self.assert_same(found, expected)
                    self.assertGreater(moments, 0)
                self.assertEqual(sorted(Path(self.parent.name).glob(".*")), [])

    @unittest.skipUnless(hasattr(fsdp, "fully_shard"), f"torch {torch.__version__} has no fully_shard")
    def test_with_a_changed_byte_are_refused_with_the_files_name(self):
        ranks.results(2, saved, self.folder, True)
        for name in ("__1_0.distcp", ".metadata"):
            file = Path(self.folder, name)
            good = file.read_bytes()
            file.write_bytes(good[:-5] + bytes([good[-5] ^ 1]) + good[-4:])
            statuses, texts = zip(*ranks.results(2, damaged, self.folder))
            file.write_bytes(good)
            self.assertEqual(set(statuses), {Status.CORRUPT}, texts)
            self.assertTrue(all(name in text for text in texts), texts)

    def test_of_a_rank_that_dies_while_saving_are_not_there(self):
        found = ranks.outcomes(2, killed_while_saving, self.folder)[0]
        if groups.BACKEND == "troupe":
            self.assertIn("rank 1", str(found))
        self.assertNotEqual(found, "it was saved")
        self.assertFalse(Path(self.folder).exists())
        checkpoint.save_async({"w": torch.full((3,), 2.0)}, self.folder).result()  # over what is left
        self.assertEqual(sorted(path.name for path in Path(self.parent.name).iterdir()), ["step"])

    def test_of_one_process_replace_their_predecessors_and_keep_what_was_saved(self):
        state = {"w": torch.arange(10.0), "nested": [torch.ones(3), {"step": 7}], "scalar": torch.tensor(3)}
        for number in range(3):
            state["w"].fill_(number)
            save = checkpoint.save_async(state, self.folder)
            state["w"].fill_(-1)
            save.result()
            found = {"w": torch.zeros(10), "nested": [torch.zeros(3), {"step": 0}], "scalar": torch.tensor(0)}
            checkpoint.load(found, self.folder)
            self.assertTrue(found["w"].eq(number).all())
            self.assertEqual((found["nested"][1]["step"], found["scalar"].item()), (7, 3))

    def test_that_a_save_has_set_aside_come_back_where_it_ended_then(self):
        with tempfile.TemporaryDirectory() as temporary:
            folder, aside = Path(temporary, "step"), Path(temporary, ".step.old")
            checkpoint.save_async({"x": torch.arange(4.0)}, folder).result()
            folder.rename(aside)
            state = {"x": torch.zeros(4)}
            checkpoint.load(state, folder)
            self.assertEqual(state["x"].tolist(), [0, 1, 2, 3])
            folder.rename(aside)
            checkpoint.save_async({"x": torch.ones(4)}, folder).result()
            checkpoint.load(state, folder)
            self.assertEqual(state["x"].tolist(), [1, 1, 1, 1])
            self.assertFalse(aside.exists())

    def test_that_fail_are_logged_though_nobody_asks(self):
        with tempfile.TemporaryDirectory() as temporary:
            Path(temporary, "file").write_text("")
            with self.assertLogs("troupe", "ERROR") as logged:
                save = checkpoint.save_async({"x": torch.ones(4)}, Path(temporary, "file", "step"))
                with self.assertRaises(Exception):
                    save.result()
            self.assertIn("the save to", logged.output[0])

    def test_that_are_not_there_are_told(self):
        with self.assertRaisesRegex(Error, "which has a file .metadata, nor of torch_checkpointing"):
            checkpoint.load({"w": torch.zeros(3)}, self.folder)


WHOLE = torch.arange(35.0).view(7, 5)


def as_torch_checkpointing(folder):
    """<item>_<rank>.pt, on a mesh of two axes; `plain` is replicated."""
    groups.join()
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    state = {name: distribute_tensor(WHOLE, mesh, placements) for name, placements in PLACEMENTS.items()}
    rank = dist.get_rank()
    torch.save({**state, "plain": torch.ones(2)}, Path(folder, f"model_{rank}.pt"))
    torch.save(7, Path(folder, f"step_{rank}.pt"))
    groups.leave()


PLACEMENTS = {"rows": [Replicate(), Shard(0)], "boxes": [Shard(0), Shard(1)], "twice": [Shard(0), Shard(0)],
              "copies": [Replicate(), Replicate()]}


def read_back(folder):
    groups.join()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    state = {"model": {name: distribute_tensor(torch.zeros(7, 5), mesh, [Shard(1)]) for name in PLACEMENTS}, "step": 0}
    checkpoint.load(state, folder)
    found = [torch.equal(tensor.full_tensor(), WHOLE) for tensor in state["model"].values()], state["step"]
    groups.leave()
    return found


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("/nonexistent/harm",)


@unittest.skipUnless(hasattr(torch.serialization, "safe_globals"), f"torch {torch.__version__} has no safe_globals()")
class OfOthers(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def test_of_megatron_have_a_common_state(self):
        common = {"iteration": 12, "args": argparse.Namespace(lr=0.5), "opt": {"lr": 0.1, "t": torch.tensor([1.0, 2.0])}}
        for as_object in (False, True):
            with self.subTest(as_object=as_object), tempfile.TemporaryDirectory() as folder:
                tensors = {"decoder.w": WHOLE.clone()}
                dcp.save({**tensors, **({"common_state/shard_0_1": [common]} if as_object else {})}, checkpoint_id=folder,
                         **groups.ALONE, planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
                Path(folder, "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
                if not as_object:
                    torch.save(common, Path(folder, "common.pt"))
                state = {"decoder.w": torch.zeros(7, 5), "iteration": 0, "args": None, "opt": {"lr": 0.0,
                                                                                              "t": torch.zeros(2)}}
                checkpoint.load(state, folder)
                self.assertTrue(torch.equal(state["decoder.w"], WHOLE))
                self.assertEqual((state["iteration"], state["args"], state["opt"]["lr"], state["opt"]["t"].tolist()),
                                 (12, common["args"], 0.1, [1, 2]))

    def test_of_torch_checkpointing_are_read_by_any_number_of_ranks(self):
        ranks.results(4, as_torch_checkpointing, self.folder)
        for count in (2, 3):
            self.assertEqual(ranks.results(count, read_back, self.folder), [([True] * len(PLACEMENTS), 7)] * count)
        state = {"model": {"rows": torch.zeros(7, 5), "plain": torch.zeros(2)}}
        checkpoint.load(state, self.folder)
        self.assertTrue(torch.equal(state["model"]["rows"], WHOLE))
        self.assertEqual(state["model"]["plain"].tolist(), [1, 1])
        file = Path(self.folder, "model_3.pt")
        file.write_bytes(file.read_bytes()[:1000])
        with self.assertRaisesRegex(Error, "model_3.pt cannot be read"):
            checkpoint.load(state, self.folder)
        file.unlink()
        with self.assertRaisesRegex(Error, "has .* of the 35 elements of model"):
            checkpoint.load(state, self.folder)

    def test_that_would_run_something_are_refused(self):
        dcp.save({"w": torch.ones(2)}, checkpoint_id=self.folder, **groups.ALONE)
        torch.save({"iteration": Harmful()}, Path(self.folder, "common.pt"))
        with self.assertRaisesRegex(Error, "common.pt has objects that are not loaded without your leave"):
            checkpoint.load({"w": torch.zeros(2)}, self.folder)


if __name__ == "__main__":
    unittest.main()
