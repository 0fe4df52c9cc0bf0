#!/usr/bin/env python3
"""Fine-tunes a tiny Qwen3-MoE of transformers on text, sums of digits, of which the answers alone are learned. Ranks share
the experts, and the numbers are those of one rank:

    python3 -m troupe.launch --standalone --nproc-per-node 2 apps/examples/torch_mixture.py --expert-parallel 2
"""
import argparse

import torch
import transformers
from torch.nn.functional import cross_entropy

import troupe.torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--expert-parallel", type=int, default=1)
parser.add_argument("--strategy", default="zero1")
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
    vocab_size=64, hidden_size=64, moe_intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True))


def batch(step, lane):
    """Tokens [8, 6] such as 5+8=13, and labels, which are -100 where nothing is learned."""
    draw = torch.Generator().manual_seed(step * 1000 + lane)
    pairs = torch.randint(10, (8, 2), generator=draw).tolist()
    tokens = torch.tensor([[ord(letter) - 32 for letter in f"{a}+{b}={a + b:<2}"] for a, b in pairs])
    labels = tokens.clone()
    labels[:, :4] = -100
    return tokens, labels


with troupe.torch.Trainer(model, strategy=arguments.strategy, lanes=4, lr=3e-3, clip_norm=1.0, expert_tokens=8 * 6,
                          expert_parallel=arguments.expert_parallel) as trainer:
    while trainer.next_step < arguments.steps:
        with trainer.step() as step:
            for lane in step:
                tokens, labels = batch(step.index, lane)
                logits = model(tokens).logits[:, :-1].flatten(0, 1)
                loss = cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
                step.backward(loss, weight=int((labels != -100).sum()))
        if trainer.next_step % 50 == 0 and trainer.rank == 0:
            print(f"step {trainer.next_step} loss {step.outcome.loss:.9f}", flush=True)
