#!/usr/bin/env python3
"""Writes the checkpoints beside this script with a real PyTorch, and what is in them as JSON.

Run it with a Python that has torch (the committed files are from 2.15):  python make_dcp.py
"""

import json
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

HERE = Path(__file__).resolve().parent
WORLD = 4


def described(tensor):
    """A tensor's dtype, shape and bytes as JSON can say them."""
    tensor = tensor.detach().contiguous()
    content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "bytes": content.hex()}


def flattened(state, prefix=""):
    """(name, leaf) of nested dicts and lists, as torch.distributed.checkpoint names them."""
    children = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in children:
        name = f"{prefix}{key}"
        has_tensors = isinstance(value, list) and any(isinstance(item, (torch.Tensor, dict, list)) for item in value)
        if isinstance(value, dict) and value or has_tensors:
            yield from flattened(value, name + ".")
        else:
            yield name, value


def expected(state):
    """Tensors by name, gathered when they are distributed; all else as it is."""
    tensors, items = {}, {}
    for name, value in flattened(state):
        if isinstance(value, torch.Tensor):
            tensors[name] = described(value.full_tensor() if isinstance(value, DTensor) else value)
        else:
            items[name] = value
    return {"tensors": tensors, "items": items}


def write_expected(name, content):
    (HERE / name / "expected.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def plain_state():
    """What one process has: nested containers, scalars, every dtype, views."""
    numbers = torch.arange(12)
    return {
        "model": {"weight": torch.linspace(-1, 1, 6).reshape(2, 3), "half": numbers.to(torch.float16).reshape(3, 4),
                  "brain": numbers.to(torch.bfloat16), "scale": torch.tensor(2.5, dtype=torch.bfloat16),
                  "empty": torch.zeros(0, 3), "axes": numbers.reshape(1, 2, 1, 3, 2).to(torch.int16)},
        "dtypes": {"f64": numbers.double() / 3, "i64": -numbers, "i32": numbers.int(), "i8": -numbers.char(),
                   "u8": numbers.byte(), "u16": numbers.to(torch.uint16), "u32": numbers.to(torch.uint32),
                   "u64": numbers.to(torch.uint64), "bool": numbers % 3 == 0,
                   "e4m3": (numbers / 4).to(torch.float8_e4m3fn), "e5m2": (numbers / 4).to(torch.float8_e5m2)},
        "step": 7,
        "names": ["a", "b", "\u00e9"],
        "nested": [{"view": numbers.float()[3:9]}, {"lr": 0.1, "betas": [0.9, 0.999], "none": None, "on": True}],
        "large": 1 << 40,
        "negative": -5,
    }


def mesh_state(mesh):
    """Tensors cut in every way a mesh of 2 x 2 cuts them."""
    def cut(tensor, *placements):
        return distribute_tensor(tensor, mesh, list(placements))

    return {
        "rows_and_columns": cut(torch.arange(24.).reshape(4, 6), Shard(0), Shard(1)),
        "columns": cut(torch.arange(24.).reshape(4, 6), Replicate(), Shard(1)),
        "uneven": cut(torch.arange(15.).reshape(5, 3), Shard(0), Shard(0)),
        "fewer_rows_than_ranks": cut(torch.arange(2.).reshape(1, 2), Shard(0), Shard(0)),
        "replicated": cut(torch.arange(3, dtype=torch.int32), Replicate(), Replicate()),
        "scalar": cut(torch.tensor(0.5, dtype=torch.bfloat16), Replicate(), Replicate()),
        "plain": torch.arange(3.),
        "step": 3,
    }


def training_state(mesh):
    """A model and its optimizer as FSDP2 shards them, after one step."""
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 5)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def write_next_step():
    """What PyTorch makes of the checkpoint `fsdp` in another step like the first, whose gradients are all 2."""
    model = torch.nn.Linear(3, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():  # so that there is a state to load into
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=HERE / "fsdp", no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2)
    optimizer.step()
    content = {name: described(tensor) for name, tensor in model.state_dict().items()}
    (HERE / "fsdp/next_step.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def save(name, state):
    dcp.save(state, checkpoint_id=name)
    content = expected(state)
    if dist.get_rank() == 0:
        write_expected(name, content)
    dist.barrier()


def rank_main(rank, rendezvous):
    os.chdir(HERE)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, init_method=f"file://{rendezvous}")
    save("mesh", mesh_state(init_device_mesh("cpu", (2, 2))))
    save("fsdp", training_state(init_device_mesh("cpu", (WORLD,))))
    dist.destroy_process_group()


def add_plans():
    """The metadata of `mesh` as Megatron-LM keeps it, with the plans of all ranks."""
    from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
    metadata = pickle.loads((HERE / "mesh/.metadata").read_bytes())
    items = [WriteItem(index=index, type=WriteItemType.SHARD) for index in metadata.storage_data]
    metadata.all_local_plans = [SavePlan(items=items, planner_data={"rank": rank}) for rank in range(WORLD)]
    metadata.mcore_data = {"plain": {"nd_reformulated_orig_global_shape": torch.Size([3])}}
    (HERE / "plans").mkdir()
    (HERE / "plans/.metadata").write_bytes(pickle.dumps(metadata))


def save_archives():
    """Archives of torch.save that are not in a checkpoint."""
    folder = HERE / "archives"
    folder.mkdir()
    matrix = torch.arange(6.).reshape(2, 3)
    objects = {"tensor": matrix, "bf16_rank4": torch.arange(24).reshape(1, 2, 3, 4).to(torch.bfloat16),
               "scalar": torch.tensor(-1.5, dtype=torch.float64), "fp8": torch.arange(4.).to(torch.float8_e4m3fn),
               "parameter": torch.nn.Parameter(matrix.clone()), "transposed": matrix.t(), "view": matrix[1],
               "complex": torch.zeros(2, dtype=torch.complex64), "empty": torch.zeros(2, 0, 3),
               "tensors_in_dict": {"a": matrix, "b": [matrix]}, "object": {"path": Path("x")},
               "plain": {"bytes": b"\x00\x7f\x80\xff", "tuple": (1, "a", (2.5, None)), "ints": [0, -1, 1 << 31, -(1 << 62)],
                         3: torch.Size([2, 3]), "huge": [True, False]},
               "too_large_integer": [1 << 64]}
    for name, value in objects.items():
        torch.save(value, folder / f"{name}.pt")


def main():
    for name in ("plain", "mesh", "fsdp", "plans", "archives"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    os.chdir(HERE)
    dcp.save(plain_state(), checkpoint_id="plain", no_dist=True)
    write_expected("plain", expected(plain_state()))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, args=(f"{folder}/rendezvous",), nprocs=WORLD)
    write_next_step()
    add_plans()
    save_archives()


if __name__ == "__main__":
    sys.exit(main())
