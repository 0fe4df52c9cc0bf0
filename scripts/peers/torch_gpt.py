#!/usr/bin/env python3
"""The reference trainer's model in PyTorch, to compare speeds with on the same GPU. It needs torch only.

The function is the one of apps/gpt: pre-norm, RMSNorm, rotary positions, causal attention (torch's fused one), SwiGLU,
tied embeddings, no biases; AdamW with fp32 master weights; bf16 parameters and activations or f32. Data are random
tokens: speed does not depend on them. One JSON line comes out, with tokens a second (median of the timed steps) and
the model's FLOP utilisation, counted as the trainer counts it.
"""

import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

PRESETS = {  # layers, heads, width, feed forward, context, vocabulary
    "tiny": (2, 2, 16, 32, 16, 256),
    "demo": (4, 4, 128, 384, 64, 256),
    "350m": (24, 16, 1024, 2816, 2048, 50304),
    "760m": (24, 24, 1536, 4096, 2048, 50304),
    "1.5b": (48, 25, 1600, 4096, 2048, 50304),
}
PEAK_FLOPS = {(9, 0): 989e12, (8, 0): 312e12}  # dense bf16


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Block(nn.Module):
    def __init__(self, layers, heads, width, feed_forward):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = RmsNorm(width), RmsNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, feed_forward, bias=False) for _ in range(2))
        self.down = nn.Linear(feed_forward, width, bias=False)
        for linear in (self.query, self.key, self.value, self.gate, self.up):
            nn.init.normal_(linear.weight, std=0.02)
        for linear in (self.output, self.down):
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * layers))

    def turn(self, x, cosine, sine):
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)

    def forward(self, x, cosine, sine):
        batch, length, width = x.shape
        normed = self.attention_norm(x)
        query, key, value = (linear(normed).view(batch, length, self.heads, -1).transpose(1, 2)
                             for linear in (self.query, self.key, self.value))
        query, key = self.turn(query, cosine, sine), self.turn(key, cosine, sine)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, length, width))
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, feed_forward, context, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(layers, heads, width, feed_forward) for _ in range(layers))
        self.norm = RmsNorm(width)
        half = width // heads // 2
        angles = torch.outer(torch.arange(context, dtype=torch.float64),
                             10000.0 ** (-torch.arange(half, dtype=torch.float64) / half))
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)

    def forward(self, tokens, targets):
        length = tokens.shape[1]
        x = self.embedding(tokens)
        cosine, sine = self.cosine[:length].to(x.dtype), self.sine[:length].to(x.dtype)
        for block in self.blocks:
            x = block(x, cosine, sine)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class MasterAdamW:
    """AdamW over fp32 copies of narrow parameters, whose gradients are summed in fp32 after each microbatch."""

    def __init__(self, model, fused):
        self.parameters = list(model.parameters())
        self.masters = [p.detach().float().clone() for p in self.parameters]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        matrices = [m for m in self.masters if m.dim() > 1]
        vectors = [m for m in self.masters if m.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=fused)

    @torch.no_grad()
    def take_gradients(self):
        torch._foreach_add_([m.grad for m in self.masters], [p.grad for p in self.parameters])
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, microbatches):
        gradients = [m.grad for m in self.masters]
        torch._foreach_div_(gradients, microbatches)
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        torch._foreach_copy_(self.parameters, self.masters)
        torch._foreach_zero_(gradients)


def flops_per_token(layers, width, feed_forward, vocabulary, length):
    multiplied = layers * (4 * width * width + 3 * width * feed_forward) + vocabulary * width
    return 6 * multiplied + 6 * layers * length * width


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="350m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("bf16", "f32", "autocast"), default="bf16",
                        help="bf16: parameters in bf16 with fp32 masters; autocast: fp32 parameters, products in bf16")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a microbatch")
    parser.add_argument("--microbatches", type=int, default=8, help="of a step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3, help="steps before those that are timed")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--peak-tera-flops", type=float, default=0)
    return parser.parse_args()


def main():
    o = options()
    layers, heads, width, feed_forward, context, vocabulary = PRESETS[o.preset]
    device = torch.device(o.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Gpt(layers, heads, width, feed_forward, context, vocabulary).to(device)
    count = sum(p.numel() for p in model.parameters())
    if o.dtype == "bf16":
        angles = model.cosine, model.sine
        model.to(torch.bfloat16)
        model.cosine, model.sine = angles
    optimizer = MasterAdamW(model, fused=on_gpu)
    forward = torch.compile(model) if o.compile else model

    def microbatch():
        tokens = torch.randint(vocabulary, (2, o.batch, context), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=o.dtype == "autocast"):
            loss = forward(tokens[0], tokens[1])
        loss.backward()
        optimizer.take_gradients()
        return loss.detach()

    seconds, losses = [], []
    for _ in range(o.warmup + o.steps):
        begin = time.perf_counter()
        loss = sum(microbatch() for _ in range(o.microbatches)) / o.microbatches
        optimizer.step(o.microbatches)
        losses.append(loss.item())  # waits for the device
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    step_seconds = statistics.median(seconds[o.warmup:])
    tokens_per_second = o.batch * o.microbatches * context / step_seconds
    peak = o.peak_tera_flops * 1e12
    if peak == 0 and on_gpu:
        peak = PEAK_FLOPS.get(torch.cuda.get_device_capability(device), 0)
    flops = flops_per_token(layers, width, feed_forward, vocabulary, context)
    print(json.dumps({
        "program": f"torch {torch.__version__}",
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "preset": o.preset, "parameters": count, "dtype": o.dtype, "compile": o.compile,
        "batch": o.batch, "microbatches": o.microbatches, "context": context,
        "step_seconds": step_seconds, "tokens_per_second": tokens_per_second,
        "flops_per_token": flops, "peak_flops": peak,
        "model_flop_utilisation": tokens_per_second * flops / peak if peak else None,
        "memory_bytes": torch.cuda.max_memory_allocated(device) if on_gpu else None,
        "first_loss": losses[0], "last_loss": losses[-1],
    }))


if __name__ == "__main__":
    main()
