#!/usr/bin/env python3
"""`troupe checkpoint` and PyTorch exchange checkpoints:  checkpoint_tool_test.py TROUPE

Exports of the golden checkpoint are loaded by PyTorch; what four ranks save with torch.distributed.checkpoint is
imported.
"""

import json
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file

TROUPE = sys.argv.pop(1) if len(sys.argv) > 1 else ""
GOLDEN = Path(__file__).resolve().parent.parent / "golden/checkpoint/step_00000007"
WORLD = 4
# PyTorch's own reader of sharded safetensors takes other dtypes for its default.
READER_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.int64}


def troupe(*arguments):
    done = subprocess.run([TROUPE, "checkpoint", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"troupe checkpoint {arguments} exits with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn, "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


def troupe_tensors(checkpoint):
    """All tensors of a checkpoint of Troupe, put together from its files as its manifest says."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files = [load_file(checkpoint / file["name"]) for file in manifest["files"]]
    tensors = {}
    for tensor in manifest["tensors"]:
        whole = torch.zeros(tensor["shape"], dtype=torch.uint8).to(DTYPES[tensor["dtype"]])
        for file, _, _, _, offset, extent in tensor["shards"]:
            place = tuple(slice(begin, begin + size) for begin, size in zip(offset, extent))
            whole[place] = files[file][tensor["key"]]
        tensors[tensor["key"]] = whole
    return tensors


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def trained_module(mesh=None):
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3, bias=False))
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    return model


def save_on_ranks(rank, folder):
    from torch.distributed.tensor import init_device_mesh
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, init_method=f"file://{folder}/rendezvous")
    model = trained_module(init_device_mesh("cpu", (WORLD,)))
    state = {"model": model.state_dict(), "epoch": 3, "opaque": Path("of a class of Python")}
    dcp.save(state, checkpoint_id=f"{folder}/fsdp")
    dist.destroy_process_group()


class CheckpointTool(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def assert_equal(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertEqual(found[name].dtype, tensor.dtype, name)
            self.assertEqual(found[name].shape, tensor.shape, name)
            self.assertEqual(bits(found[name]), bits(tensor), name)

    def test_pytorch_loads_the_native_form(self):
        expected = troupe_tensors(GOLDEN)
        troupe("export", GOLDEN, self.path / "dcp", "--to", "dcp")
        state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
        state["troupe_checkpoint"] = None

        dcp.load(state, checkpoint_id=self.path / "dcp", no_dist=True)

        values = state.pop("troupe_checkpoint")
        self.assertEqual(values["step"], 7)
        self.assertEqual(values["common"]["betas"], (0.9, 0.95))
        self.assertEqual(values["common"]["groups"], {0: "decay", 1: "no decay"})
        self.assertEqual(values["objects"][1]["value"], {"lanes": [3, 4]})
        self.assert_equal(state, expected)

    def test_pytorch_loads_sharded_safetensors(self):
        expected = {name: tensor for name, tensor in troupe_tensors(GOLDEN).items()
                    if tensor.dtype in READER_DTYPES and tensor.numel()}
        troupe("export", GOLDEN, self.path / "files", "--to", "dcp", "--form", "safetensors")
        state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}

        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(self.path / "files")), no_dist=True)

        self.assertGreaterEqual(len(expected), 4)
        self.assert_equal(state, expected)

    def test_safetensors_loads_the_model(self):
        troupe("reshard", GOLDEN, self.path / "other", "--mesh", 5)
        troupe("export", self.path / "other", self.path / "model", "--to", "huggingface", "--max-shard-bytes", 40)

        index = json.loads((self.path / "model/model.safetensors.index.json").read_text())
        found = {name: load_file(self.path / "model" / file)[name] for name, file in index["weight_map"].items()}

        self.assertGreater(len(set(index["weight_map"].values())), 1)
        self.assert_equal(found, troupe_tensors(GOLDEN))

    def test_a_module_sharded_over_four_ranks_is_imported(self):
        mp.spawn(save_on_ranks, args=(str(self.path),), nprocs=WORLD)

        report = json.loads(troupe("import", self.path / "fsdp", self.path / "out", "--step", 9, "--rename", "model.=",
                                   "--mesh", 3, "--json"))

        found = troupe_tensors(self.path / "out/step_00000009")
        self.assertEqual(found.pop("opaque").dtype, torch.uint8)
        self.assert_equal(found, dict(trained_module().state_dict()))
        self.assertEqual(report["left_out"], [])
        self.assertTrue(any("carried unread: 'opaque'" in note and "Path" in note for note in report["notes"]), report)
        common = json.loads(troupe("show", self.path / "out", "--json"))["common"]
        self.assertEqual(common["trainer"], {"epoch": 3})

    def test_an_optimizer_comes_back_to_pytorch_as_it_was(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        golden = GOLDEN.parent.parent / "interop/fsdp"
        troupe("import", golden, self.path / "out", "--optimizer", "torch")
        troupe("export", self.path / "out", self.path / "dcp", "--to", "dcp", "--optimizer", "torch")
        model = torch.nn.Linear(3, 5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        for parameter in model.parameters():  # so that there is a state to load into
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}

        dcp.load(state, checkpoint_id=self.path / "dcp", no_dist=True)

        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2)
        optimizer.step()
        for name, expected in json.loads((golden / "next_step.json").read_text()).items():
            self.assertEqual(bits(model.state_dict()[name]), list(bytes.fromhex(expected["bytes"])))

    def test_a_model_of_hugging_face_is_imported(self):
        model = {"a.weight": torch.randn(4, 3).to(torch.bfloat16), "b.weight": torch.randn(5)}
        (self.path / "model").mkdir()
        save_file(model, self.path / "model/model.safetensors", metadata={"format": "pt"})

        troupe("import", self.path / "model", self.path / "out")

        self.assert_equal(troupe_tensors(self.path / "out/step_00000000"), model)


if __name__ == "__main__":
    unittest.main()
