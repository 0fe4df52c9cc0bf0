#!/usr/bin/env python3
"""Step times of a Llama on one GPU with troupe.torch, beside PyTorch alone (fused AdamW and clipping):

    TROUPE_LIBRARY=build/release/lib/libtroupe.so.0 PYTHON scripts/peers/torch_gpu_steps.py [--rounds 3] [--json]

PYTHON has torch and transformers. Forward and backward are PyTorch's in all cases, under autocast to bf16. Each round
takes the engines one after another, each in a process of its own; the first steps of a round are not counted.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
import ranks  # noqa: E402  first: it says where troupe is
import models  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from troupe.torch import Trainer  # noqa: E402

# So large that the GPU is slower than the host, which launches kernels one by one.
VOCABULARY, ROWS, TOKENS, LANES, RATE, CLIP, UNCOUNTED = 32768, 4, 2048, 4, 1e-4, 1.0, 4


def model():
    with torch.device("cuda"):  # where first values are quickly made
        return models.llama(vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16,
                            num_attention_heads=16, num_key_value_heads=8, initializer_range=0.02)


def loss_of(trained, step, lane):
    draw = torch.Generator().manual_seed(step * 1000 + lane)
    tokens = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=draw).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        logits = trained(input_ids=tokens).logits
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def timed(steps, step_once):
    times = []
    for step in range(steps):
        begin = time.perf_counter()
        step_once(step)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return times[UNCOUNTED:]


def over_troupe(strategy, steps):
    with Trainer(model(), strategy=strategy, lanes=LANES, lr=RATE, clip_norm=CLIP) as trainer:
        return timed(steps, lambda step: trainer.train_step(lambda lane: loss_of(trainer.model, step, lane)))


def alone(unused, steps):
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=RATE, fused=True)

    def step_once(step):
        optimizer.zero_grad()
        for lane in range(LANES):
            (loss_of(trained, step, lane) / LANES).backward()
        nn.utils.clip_grad_norm_(trained.parameters(), CLIP)
        optimizer.step()

    return timed(steps, step_once)


ENGINES = {"PyTorch alone": (alone, None), "troupe.torch ddp": (over_troupe, "ddp"),
           "troupe.torch zero1": (over_troupe, "zero1"), "troupe.torch zero3": (over_troupe, "zero3")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help=f"per round, of which {UNCOUNTED} are not counted")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if not torch.cuda.is_available():
        sys.exit("torch_gpu_steps: PyTorch finds no GPU here")
    times = {name: [] for name in ENGINES}
    for _ in range(arguments.rounds):
        for name, (body, what) in ENGINES.items():
            times[name] += ranks.results(1, body, what, arguments.steps)[0]
            print(f"torch_gpu_steps: {name}: {statistics.median(times[name]) * 1e3:.1f} ms", file=sys.stderr, flush=True)
    found = {name: statistics.median(measured) * 1e3 for name, measured in times.items()}
    if arguments.json:
        print(json.dumps({"torch": torch.__version__, "rounds": arguments.rounds, "median_ms": found}))
        return
    for name, median in found.items():
        print(f"{name:22} {median:8.1f} ms   {found['PyTorch alone'] / median:.2f} x PyTorch alone")


if __name__ == "__main__":
    main()
