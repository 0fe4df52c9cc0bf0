#!/usr/bin/env python3
"""Reads the golden shards, which are those that the C++ code writes, with other people's programs.

`safetensors` and `numpy` read every file; PyTorch, where it is, reads whole tensors out of the parts. Ends with 77,
which ctest takes for skipped, when there is neither.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).parent
STEP = HERE / "step_00000007"
WEIGHT = bytes((37 + 7 * i) % 113 for i in range(80))


def read_with_safetensors():
    from safetensors import deserialize

    parts = {}
    for path in sorted(STEP.glob("*.safetensors")):
        parts[path.name] = dict(deserialize(path.read_bytes()))
    first, second = parts["shard_00000_0.safetensors"], parts["shard_00001_1.safetensors"]
    assert first["weight"]["shape"] == [2, 4] and first["weight"]["dtype"] == "F32"
    assert bytes(first["weight"]["data"]) == WEIGHT[:32]
    assert bytes(second["weight"]["data"]) == WEIGHT[48:]
    assert parts["shard_00001_0.safetensors"]["scale"]["shape"] == []
    print("safetensors read", len(parts), "files")


def read_with_torch():
    import torch
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    found = HuggingFaceStorageReader(str(STEP)).read_metadata().state_dict_metadata
    assert {name: tuple(tensor.size) for name, tensor in found.items()} == {
        "weight": (5, 4), "bias": (3,), "table": (2,), "scale": (), 'mask "q"/é': (2, 2), "narrow": (2, 3)}
    state = {name: torch.zeros(tensor.size, dtype=tensor.properties.dtype) for name, tensor in found.items()}
    checkpoint.load(state, storage_reader=HuggingFaceStorageReader(str(STEP)), no_dist=True)
    assert bytes(state["weight"].view(torch.uint8).flatten().tolist()) == WEIGHT
    assert state["narrow"].dtype == torch.float8_e4m3fn
    print("PyTorch read", len(state), "tensors")


def main():
    done = 0
    for read in (read_with_safetensors, read_with_torch):
        try:
            read()
            done += 1
        except ImportError as missing:
            print("not read:", missing)
    return 0 if done else 77


if __name__ == "__main__":
    sys.exit(main())
