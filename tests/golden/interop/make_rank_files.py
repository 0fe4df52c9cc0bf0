#!/usr/bin/env python3
"""Writes the directories rank_files* beside this script with a real PyTorch, and what is in them as JSON.

Every rank saves its own state dicts, as the FSDP trainers of verl do. Run it with a Python that has torch (the
committed files are from 2.15):  python make_rank_files.py
"""

import json
import shutil
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from make_dcp import HERE, described


class Linear(torch.nn.Linear):
    """The model of the checkpoint `fsdp`, with a buffer."""

    def __init__(self):
        super().__init__(3, 5)
        self.register_buffer("seen", torch.tensor(2))


class Tied(torch.nn.Module):
    """The output layer is the embedding, both halves of which are equally long."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


class Wide(torch.nn.Module):
    """Two layers for tensor parallel ranks, cut along rows and along columns, unevenly by FSDP, and a norm that is not."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(3, 10)
        self.down = torch.nn.Linear(10, 4)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.down(torch.relu(self.up(x))))


def groups_of(model):
    """Matrices decay, all else does not."""
    return [{"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]


def save(name, mesh, model, batch, groups=None):
    rank, world = dist.get_rank(), dist.get_world_size()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(groups(model) if groups else model.parameters(), lr=0.1)
    model(batch).sum().backward()
    optimizer.step()
    weights, state = model.state_dict(), optimizer.state_dict()
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    for kind, content in (("model", weights), ("optim", state), ("extra_state", {"lr_scheduler": None})):
        torch.save(content, folder / f"{kind}_world_size_{world}_rank_{rank}.pt")
    tensors = dict(weights)
    if not groups:
        names = [name for name, _ in model.named_parameters()]
        for number, kinds in state["state"].items():
            tensors.update({f"optimizer.state.{names[number]}.{kind}": value for kind, value in kinds.items()})
    content = {name: described(value.full_tensor() if isinstance(value, DTensor) else value)
               for name, value in tensors.items()}
    if rank == 0:
        (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}, indent=4))
        (folder / "expected.json").write_text(json.dumps({"tensors": content}, indent=1, sort_keys=True) + "\n")
    dist.barrier()


def rank_main(rank, world, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, init_method=f"file://{rendezvous}")
    torch.manual_seed(1)
    if world == 1:
        save("rank_files_groups", init_device_mesh("cpu", (1,)), torch.nn.Linear(3, 5), torch.ones(2, 3), groups_of)
    else:
        save("rank_files", init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",)), Linear(), torch.ones(2, 3))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))
        save("rank_files_hsdp", mesh, Tied(), torch.arange(6))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        wide = parallelize_module(Wide(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        save("rank_files_tensor_parallel", mesh["fsdp"], wide, torch.ones(2, 3))
    dist.destroy_process_group()


def main():
    for name in ("rank_files", "rank_files_hsdp", "rank_files_groups", "rank_files_tensor_parallel"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    for world in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(rank_main, args=(world, f"{folder}/rendezvous"), nprocs=world)


if __name__ == "__main__":
    sys.exit(main())
