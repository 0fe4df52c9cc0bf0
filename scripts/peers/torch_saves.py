#!/usr/bin/env python3
"""How long a save holds a trainer up, beside DCP's async_save():

    TROUPE_LIBRARY=build/release/lib/libtroupe.so.0 PYTHON scripts/peers/torch_saves.py [--mib 256] [--ranks 2] [--json]

A state by itself: troupe.checkpoint.save_async() and async_save() save the same tensors in turns, each to a fresh directory;
the figure is how long the call takes. In training: the Trainer of troupe.torch and FSDP2 train the same model with AdamW,
one after the other, and save as many bytes; the figures are how long the call takes, and how much longer a step with the
call before it takes than the steps around it, which includes what the writing takes from it where processors are scarce. Each save has ended before the
next one begins. The first one of each is not counted. A figure is rank 0's median.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
import ranks  # noqa: E402  first: it says where troupe is

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401  DCP imports it
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from troupe import checkpoint  # noqa: E402
from troupe.torch import Trainer  # noqa: E402

LAYERS, ROWS = 8, 64


def by_itself(folder, mib, rounds):
    dist.init_process_group("troupe")
    rank, count = dist.get_rank(), 16
    # Every rank has its own tensors, as with sharded states.
    state = {f"rank{rank}.tensor{index}": torch.ones((mib << 20) // 4 // count) for index in range(count)}
    group, times = dist.new_group(backend="gloo"), {"troupe": [], "dcp": []}
    for index in range(rounds + 1):
        for name in ("troupe", "dcp") if index % 2 else ("dcp", "troupe"):
            dist.barrier()
            begin, where = time.perf_counter(), f"{folder}/{name}{index}"
            if name == "troupe":
                save = checkpoint.save_async(state, where)
            else:
                save = dcp.async_save(state, checkpoint_id=where, process_group=group)
            stall = time.perf_counter() - begin
            save.result()
            times[name] += [stall] if index else []
    dist.destroy_process_group()
    return times


def model_of(mib, count):
    """Its parameters and both moments are `mib` MiB on each of `count` ranks that share them."""
    width = int((count * (mib << 20) / 12 / LAYERS) ** 0.5)
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))


def loss_of(trained):
    return trained(torch.ones(ROWS, trained[0].in_features)).square().mean()


def stalls(rounds, step, save):
    """How long the call takes that begins a save, and how much longer a step takes with it. `save` begins one and returns
    what waits for its end."""
    calls, steps = [], []
    for index in range(rounds + 1):
        times = []
        for begins_with_save in (False, True, False, False):
            begin = time.perf_counter()
            if begins_with_save:
                wait = save(index)
                calls.append(time.perf_counter() - begin)
            step()
            times.append(time.perf_counter() - begin)
            if begins_with_save:
                wait()
        steps.append(times.pop(1) - statistics.median(times))
    return {"call": calls[1:], "step": steps[1:]}


def over_trainer(folder, mib, rounds, count):
    with Trainer(model_of(mib, count), strategy="zero3", lr=1e-3, units=[nn.Linear], checkpoints=folder,
                 staging_mebibytes=mib + 64) as trainer:
        def save(_):
            trainer.save()
            return trainer.wait_saves

        return stalls(rounds, lambda: trainer.train_step(lambda lane: loss_of(trainer.model)), save)


def over_fsdp(folder, mib, rounds, count):
    dist.init_process_group("gloo")
    trained = model_of(mib, count)
    mesh = dist.device_mesh.init_device_mesh("cpu", (count,))
    for layer in trained:
        fully_shard(layer, mesh=mesh)
    fully_shard(trained, mesh=mesh)
    optimizer = torch.optim.AdamW(trained.parameters())
    group = dist.new_group(backend="gloo")

    def step():
        optimizer.zero_grad()
        loss = loss_of(trained)
        loss.backward()
        optimizer.step()
        loss.item()

    def save(index):
        model, optim = get_state_dict(trained, optimizer)
        return dcp.async_save({"model": model, "optim": optim}, checkpoint_id=f"{folder}/{index}",
                              process_group=group).result

    found = stalls(rounds, step, save)
    dist.destroy_process_group()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="of each rank's state")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        asked = (options.mib, options.rounds)
        times.update(ranks.results(options.ranks, by_itself, f"{folder}/alone", *asked)[0])
        for name, body in ("trainer", over_trainer), ("fsdp", over_fsdp):
            measured = ranks.results(options.ranks, body, f"{folder}/{name}", *asked, options.ranks)[0]
            times.update({f"{name}_{what}": each for what, each in measured.items()})
    found = {f"{name}_ms": round(statistics.median(measured) * 1e3, 2) for name, measured in times.items()}
    if options.json:
        print(json.dumps({"torch": torch.__version__, "mib_per_rank": options.mib, "ranks": options.ranks, **found},
                         indent=1))
        return
    print(f"{options.mib} MiB on each of {options.ranks} ranks, torch {torch.__version__}")
    print(f"by itself:    troupe.checkpoint {found['troupe_ms']} ms, DCP async_save() {found['dcp_ms']} ms")
    for what in "call", "step":
        print(f"in training, {what}: troupe.torch {found[f'trainer_{what}_ms']} ms, "
              f"FSDP2 with DCP async_save() {found[f'fsdp_{what}_ms']} ms")


if __name__ == "__main__":
    main()
