#!/usr/bin/env python3
"""Fine-tunes a tiny Llama of transformers (grouped queries, tied embeddings) on answers only. One rank or many, with any
strategy, the numbers are the same:

    python3 -m troupe.launch --standalone --nproc-per-node 2 apps/examples/torch_llama.py --strategy zero3
"""
import argparse

import torch
import transformers
from torch.nn.functional import cross_entropy

import troupe.torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--strategy", default="zero1")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--checkpoints", help="directory to save in every 50 steps, and to go on from")
arguments = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)  # the number of threads is part of what a product's bits depend on
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=True))


def batch(step, lane):
    """Tokens [8, 2 N + 1]: a question, a separator, and the answer, which is the question backwards. Labels are -100
    where nothing is learned; N, and with it the number of targets, differs from lane to lane."""
    draw = torch.Generator().manual_seed(step * 1000 + lane)
    count = 2 + int(torch.randint(4, (), generator=draw))
    question = torch.randint(1, 32, (8, count), generator=draw)
    tokens = torch.cat([question, torch.zeros(8, 1, dtype=torch.long), question.flip(1)], dim=1)
    labels = tokens.clone()
    labels[:, :count + 1] = -100
    return tokens, labels


with troupe.torch.Trainer(model, strategy=arguments.strategy, lanes=4, lr=3e-3, clip_norm=1.0,
                          checkpoints=arguments.checkpoints) as trainer:
    if arguments.checkpoints:
        trainer.restore()
    while trainer.next_step < arguments.steps:
        with trainer.step() as step:
            for lane in step:  # the microbatches of this rank
                tokens, labels = batch(step.index, lane)
                logits = model(tokens).logits[:, :-1].flatten(0, 1)
                loss = cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
                step.backward(loss, weight=int((labels != -100).sum()))
        if trainer.next_step % 50 == 0:
            if trainer.rank == 0:
                print(f"step {trainer.next_step} loss {step.outcome.loss:.9f}", flush=True)
            if arguments.checkpoints:
                trainer.save()
