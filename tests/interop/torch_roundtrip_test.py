#!/usr/bin/env python3
"""What Troupe writes is loaded by PyTorch and equal:  torch_roundtrip_test.py PROGRAM

The program (write_checkpoints.cpp) writes tensors whose element i is i, cut into boxes.
"""

import json
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

PROGRAM = sys.argv.pop(1)
DTYPES = ("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 "
          "uint64 uint32 uint16 uint8 bool").split()
# The dtypes which PyTorch's own reader of safetensors knows; it takes all others for its default.
SAFETENSORS_DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8".split()
OPTIONS = {"betas": (0.9, 0.999), "names": ["a", "\u00e9"], "bytes": b"\x00\xff", "none": None, 7: -5_000_000_000}


def counted(dtype, *shape):
    count = torch.Size(shape).numel()
    return torch.tensor([float(i) for i in range(count)]).to(dtype).reshape(shape)


def tensors(dtypes):
    """What the program writes."""
    result = {f"dtypes.{name}": counted(getattr(torch, name), 5) for name in dtypes}
    result["grid"] = counted(torch.float32, 3, 4)
    result["scalar"] = counted(torch.bfloat16)
    result["axes"] = counted(torch.int64, 2, 1, 3, 1)
    return result


class TorchRoundtrip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore")
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = Path(cls.folder.name)
        subprocess.run([PROGRAM, cls.folder.name], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def assert_equal(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertEqual(found[name].dtype, tensor.dtype, name)
            self.assertEqual(found[name].shape, tensor.shape, name)
            self.assertEqual(found[name].double().tolist(), tensor.double().tolist(), name)

    # Covers unit-15.
    def test_native_checkpoint_loads_into_tensors(self):
        expected = tensors(DTYPES)
        state = {name: torch.zeros(tensor.shape).to(tensor.dtype) for name, tensor in expected.items()}
        state |= {"options": None, "nested": [{"step": None}]}

        dcp.load(state, checkpoint_id=self.path / "native", no_dist=True)

        self.assertEqual(state.pop("options"), OPTIONS)
        self.assertEqual(state.pop("nested"), [{"step": 12}])
        self.assert_equal(state, expected)

    def test_native_checkpoint_converts_to_one_file(self):
        dcp_to_torch_save(self.path / "native", self.path / "whole.pt")
        state = torch.load(self.path / "whole.pt", weights_only=True)

        self.assertEqual(state.pop("options"), OPTIONS)
        self.assertEqual(state.pop("nested"), [{"step": 12}])
        self.assert_equal(state, tensors(DTYPES))

    def test_sharded_safetensors_load_into_tensors(self):
        expected = tensors(SAFETENSORS_DTYPES)
        state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}

        dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(self.path / "safetensors")), no_dist=True)

        self.assert_equal(state, expected)

    def test_model_files_load_as_their_index_says(self):
        from safetensors.torch import load_file
        index = json.loads((self.path / "model/model.safetensors.index.json").read_text())
        found = {}
        for file in sorted((self.path / "model").glob("*.safetensors")):
            content = load_file(file)
            for name in content:
                self.assertEqual(index["weight_map"].pop(name), file.name)
            found |= content

        self.assertEqual(index["weight_map"], {})
        self.assertEqual(index["metadata"]["total_size"], sum(t.nbytes for t in found.values()))
        self.assert_equal(found, tensors(DTYPES))


if __name__ == "__main__":
    unittest.main()
