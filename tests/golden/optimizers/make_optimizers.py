#!/usr/bin/env python3
"""Writes optimizers.json and muon.json beside this script: what optimizers of a real PyTorch make of the same numbers.

Run it with a Python that has torch (the committed file is from 2.15):  python make_optimizers.py

A case is one optimizer over one tensor for some steps, with its state after each. Floats are written as the bits of
their fp32 value. The optimizer has the tensor in fp32 ("main"), whose gradient is the one written times
`gradient_factor`; a bf16 parameter is the rounded copy of it, as mixed precision training has it.

PyTorch has no Lion: here it is as its authors published it for PyTorch (github.com/google/automl, lion/lion_pytorch.py).
"""

import json
import os
import random
from pathlib import Path

# Kernels for every processor of the architecture: each operation is rounded by itself, as in the definition.
# With AVX2 PyTorch contracts some multiplications and additions, and its bits depend on the machine.
os.environ["ATEN_CPU_CAPABILITY"] = "default"

import torch  # noqa: E402

HERE = Path(__file__).resolve().parent
COUNT = 19  # some vectors and a rest
STEPS = 5

OPTIMIZERS = [
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.1, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.05, "momentum": 0.9}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("sgd", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    ("adam", {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8}),
    ("adam", {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}),
    ("adam", {"lr": 0.02, "betas": (0.3, 0.95), "eps": 1e-6}),
    ("adamw", {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}),
    ("adamw", {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    ("lion", {"lr": 0.001, "betas": (0.9, 0.99)}),
    ("lion", {"lr": 0.01, "betas": (0.95, 0.98), "weight_decay": 0.1}),
]


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, foreach, fused, lr, betas, weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                beta1, beta2 = group["betas"]
                update = state["exp_avg"] * beta1 + parameter.grad * (1 - beta1)
                parameter.add_(update.sign_(), alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "lion": Lion}

MATRICES = [
    ((6, 10), {"lr": 0.02}),
    ((10, 6), {"lr": 0.02, "nesterov": False, "weight_decay": 0.0}),
    ((12, 4), {"lr": 0.01, "momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}),
    ((8, 8), {"lr": 0.01, "ns_steps": 3}),
]


def bits(tensor):
    return [word & 0xFFFFFFFF for word in tensor.detach().float().contiguous().view(torch.int32).flatten().tolist()]


def numbers(source):
    """Numbers of several magnitudes, one of them 0."""
    values = [source.gauss(0, 1) * 10.0 ** source.randint(-3, 1) for _ in range(COUNT)]
    values[COUNT // 2] = 0.0
    return torch.tensor(values, dtype=torch.float32)


def case(name, options, dtype, gradient_factor, seed):
    source = random.Random(seed)
    main = torch.nn.Parameter(numbers(source))
    optimizer = CLASSES[name]([main], foreach=False, fused=False, **options)
    written = {
        "optimizer": name,
        "options": {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()},
        "dtype": {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype],
        "gradient_factor": gradient_factor,
        "initial": bits(main),
        "steps": [],
    }
    for _ in range(STEPS):
        gradient = numbers(source).to(dtype)
        main.grad = gradient.float() * gradient_factor
        optimizer.step()
        state = optimizer.state[main]
        step = {"gradient": bits(gradient), "main": bits(main), "parameter": bits(main.to(dtype))}
        if name == "lion":
            step |= {"first": bits(state["exp_avg"])}
        elif name != "sgd":
            step |= {"first": bits(state["exp_avg"]), "second": bits(state["exp_avg_sq"])}
        elif options.get("momentum"):
            step |= {"first": bits(state["momentum_buffer"])}
        written["steps"].append(step)
    return written


def muon_case(shape, options, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.nn.Parameter(torch.randn(shape, generator=generator))
    optimizer = torch.optim.Muon([matrix], **options)
    written = {"rows": shape[0], "columns": shape[1], "options": options, "initial": bits(matrix), "steps": []}
    for _ in range(STEPS):
        matrix.grad = torch.randn(shape, generator=generator)
        optimizer.step()
        momentum = optimizer.state[matrix]["momentum_buffer"]
        written["steps"].append({"gradient": bits(matrix.grad), "main": bits(matrix), "momentum": bits(momentum)})
    return written


def write(name, cases):
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
    (HERE / name).write_text("[\n" + lines + "\n]\n")


def main():
    cases = []
    for seed, (name, options) in enumerate(OPTIMIZERS):
        cases.append(case(name, options, torch.float32, 1.0, seed))
        cases.append(case(name, options, torch.bfloat16, 0.125, 100 + seed))
    write("optimizers.json", cases)
    write("muon.json", [muon_case(shape, options, 200 + i) for i, (shape, options) in enumerate(MATRICES)])


if __name__ == "__main__":
    main()
