#!/usr/bin/env python3
"""A job of scripts/recovery_times in PyTorch: the reference trainer's smallest model under DDP over Gloo, with a
checkpoint at regular intervals from which it goes on. torchrun starts it; every step is a line in the record.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_gpt import PRESETS, Gpt  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(1)
    *_, context, vocabulary = PRESETS[options.preset]
    model = torch.nn.parallel.DistributedDataParallel(Gpt(*PRESETS[options.preset]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if options.checkpoint.exists():
        state = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    with options.record.open("a", buffering=1) as record:
        def say(line):
            if rank == 0:
                record.write(json.dumps(line) + "\n")
        if restarts > 0:
            say({"kind": "restart"})
        while True:
            draw = torch.Generator().manual_seed(step * 1000 + rank)
            tokens = torch.randint(vocabulary, (4, context + 1), generator=draw)
            loss = model(tokens[:, :-1], tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            say({"step": step, "loss": loss.item()})
            if step % options.save_every == 0 and rank == 0:
                draft = options.checkpoint.with_suffix(".new")
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft)
                draft.rename(options.checkpoint)
                say({"kind": "save"})


if __name__ == "__main__":
    main()
