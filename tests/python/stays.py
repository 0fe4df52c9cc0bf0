#!/usr/bin/env python3
"""A rank that stays when another is lost:  stays.py FOLDER STRATEGY STEPS SECONDS. A step takes so many seconds at least.
STRATEGY may end in "+experts", which all ranks share. Writes a line per step, "STEP LOSS PID", to FOLDER/rank_N, and at the end the bits of the model to FOLDER/bits_N."""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import troupe.torch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class Experts(nn.Module):
    """Experts as transformers has them."""

    def __init__(self):
        super().__init__()
        self.num_experts = 6
        self.weight = nn.Parameter(torch.randn(6, 24, 24) / 5)

    def forward(self, tokens, index, weights):
        found = torch.zeros_like(tokens)
        for expert in range(self.num_experts):
            rows, choices = torch.where(index == expert)
            made = torch.tanh(tokens[rows] @ self.weight[expert]) * weights[rows, choices, None]
            found = found.index_add(0, rows, made)
        return found


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.top_k = 2
        self.router = nn.Linear(24, 6)
        self.experts = Experts()
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        weights, index = self.router(x).softmax(-1).topk(self.top_k)
        return self.head(x + self.experts(x, index, weights))


def main():
    torch.set_num_threads(1)
    folder, strategy, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    pace = float(sys.argv[4])
    strategy, plus, _ = strategy.partition("+")
    model = Mixture() if plus else Model()
    experts = {"expert_parallel": int(os.environ["WORLD_SIZE"]), "expert_tokens": 8} if plus else {}
    with troupe.torch.Trainer(model, strategy=strategy, lanes=6, lr=1e-2, clip_norm=1.0, stays=True, **experts,
                              checkpoints=str(folder / "checkpoints")) as trainer:
        def loss_of(lane):
            draw = torch.Generator().manual_seed(trainer.next_step * 100 + lane)
            x = torch.randn(8, 24, generator=draw)
            return (model(x) - x[:, :3].sin()).square().mean()

        def train():
            trainer.restore()
            while trainer.next_step < steps:
                step = trainer.next_step
                time.sleep(pace)
                outcome = trainer.train_step(loss_of)
                with open(folder / f"rank_{trainer.rank}", "a", encoding="utf8") as file:
                    file.write(f"{step} {outcome.loss.hex()} {os.getpid()}\n")
                if trainer.next_step % 5 == 0:
                    trainer.save()

        trainer.run(train)
        rank = trainer.rank
    bits = hashlib.sha256()
    for name, values in sorted(model.state_dict().items()):
        bits.update(name.encode() + values.numpy().tobytes())
    (folder / f"bits_{rank}").write_text(bits.hexdigest(), encoding="utf8")


main()
