#!/usr/bin/env python3
"""Step times of a Llama with troupe.torch, beside DDP and FSDP2 over Gloo, all with PyTorch's own forward and backward:

    TROUPE_LIBRARY=build/release/lib/libtroupe.so.0 PYTHON scripts/peers/torch_steps.py [--ranks 2] [--rounds 5]
        [--tokens 64] [--json]

PYTHON has torch and transformers. Every round starts each engine anew, one after another, so that what else the machine
does meets all of them. Each rank plays one lane with one thread; the first steps of a round are not counted. A figure
is the median of rank 0 over all rounds. "alone" is each rank by itself: what a step takes beyond that is a peer's share
of communication, which --tokens changes.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
import ranks  # noqa: E402  first: it says where troupe is
import models  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from troupe.torch import Trainer  # noqa: E402

VOCABULARY, RATE, CLIP, UNCOUNTED = 1024, 1e-3, 1.0, 3


def model():
    return models.llama(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=6,
                        num_attention_heads=8, num_key_value_heads=4)


def loss_of(trained, step, lane, tokens_of_lane):
    draw = torch.Generator().manual_seed(step * 1000 + lane)
    tokens = torch.randint(VOCABULARY, (1, tokens_of_lane), generator=draw)
    return cross_entropy(trained(input_ids=tokens).logits[0, :-1], tokens[0, 1:])


def timed(steps, step_once):
    times = []
    for step in range(steps):
        begin = time.perf_counter()
        step_once(step)
        times.append(time.perf_counter() - begin)
    return times[UNCOUNTED:]


def over_troupe(strategy, numerics, steps, tokens):
    with Trainer(model(), strategy=strategy, numerics=numerics, lr=RATE, clip_norm=CLIP) as trainer:
        return timed(steps, lambda step: trainer.train_step(lambda lane: loss_of(trainer.model, step, lane, tokens)))


def over_gloo(wrap, steps, tokens):
    dist.init_process_group("gloo")
    trained = wrap(model())
    optimizer = torch.optim.AdamW(trained.parameters(), lr=RATE)

    def step_once(step):
        optimizer.zero_grad()
        loss = loss_of(trained, step, dist.get_rank(), tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), CLIP)
        optimizer.step()
        loss.item()

    times = timed(steps, step_once)
    dist.destroy_process_group()
    return times


def sharded(trained):
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in trained.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(trained, mesh=mesh)


def alone(trained):
    return trained


ENGINES = {
    "alone": (over_gloo, alone),
    "DDP over Gloo": (over_gloo, nn.parallel.DistributedDataParallel),
    "troupe.torch ddp": (over_troupe, "ddp", "ordered"),
    "troupe.torch zero1": (over_troupe, "zero1", "ordered"),
    "FSDP2 over Gloo": (over_gloo, sharded),
    "troupe.torch zero3": (over_troupe, "zero3", "ordered"),
    "troupe.torch zero3, fast": (over_troupe, "zero3", "fast"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help=f"per round, of which {UNCOUNTED} are not counted")
    parser.add_argument("--tokens", type=int, default=64, help="per rank and step")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    times = {name: [] for name in ENGINES}
    for _ in range(arguments.rounds):
        for name, (body, *what) in ENGINES.items():
            times[name] += ranks.results(arguments.ranks, body, *what, arguments.steps, arguments.tokens)[0]
    found = {name: statistics.median(measured) * 1e3 for name, measured in times.items()}
    elements = sum(parameter.numel() for parameter in model().parameters())
    if arguments.json:
        print(json.dumps({"torch": torch.__version__, "elements": elements, "ranks": arguments.ranks,
                          "rounds": arguments.rounds, "tokens": arguments.tokens, "median_ms": found}))
        return
    print(f"{elements / 1e6:.1f} million parameters, {arguments.ranks} ranks, torch {torch.__version__}")
    for name, median in found.items():
        peer = "FSDP2 over Gloo" if "zero3" in name or name.startswith("FSDP2") else "DDP over Gloo"
        said = ""
        if name == peer:
            said = f"   {1 - found['alone'] / median:.2f} of it communication"
        elif "troupe" in name:
            said = f"   {found[peer] / median:.2f} x {peer}"
        print(f"{name:26} {median:8.1f} ms{said}")


if __name__ == "__main__":
    main()
