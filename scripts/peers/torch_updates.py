#!/usr/bin/env python3
"""A step without a trainer's compute, by `troupe bench step` and by PyTorch: reduced gradients, their norm, clipping, AdamW,
and gradients that are zero again.

    PYTHON scripts/peers/torch_updates.py [--troupe build/release/bin/troupe] [--rounds 5] [--json]

PYTHON has torch: its fused AdamW, clip_grad_norm_() and zero_grad(), and with two ranks an all_reduce of Gloo per tensor.
Both engines take turns, each with one thread per rank for its arithmetic and all ranks bound to as many processors. A
figure is the median over the rounds of rank 0's medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS, ELEMENTS, UNCOUNTED = 16, 1 << 21, 5


def torch_rank(steps):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    parameters = [torch.nn.Parameter(torch.zeros(ELEMENTS)) for _ in range(LAYERS)]
    for parameter in parameters:
        parameter.grad = torch.zeros(ELEMENTS)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    times = []
    for _ in range(steps + UNCOUNTED):
        begin = time.perf_counter()
        work = []
        for parameter in parameters:
            parameter.grad[0] += 1
            if world > 1:
                work.append(dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM, async_op=True))
        for reduction in work:
            reduction.wait()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        times.append(time.perf_counter() - begin)
    if world > 1:
        dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        print(json.dumps(statistics.median(times[UNCOUNTED:]) * 1e3))


def of_torch(ranks, steps, port):
    started = []
    for rank in range(ranks):
        where = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        started.append(subprocess.Popen([sys.executable, __file__, "--torch-rank", str(steps)], stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, **where, "OMP_NUM_THREADS": "1"}))
    said = [process.communicate(timeout=300)[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("a rank of torch failed; what it said is above")
    return float(said[0])


def of_troupe(program, ranks, steps):
    command = [program, "bench", "step", "--ranks", str(ranks), "--strategy", "ddp,zero1", "--layers", str(LAYERS),
               "--layer-elements", str(ELEMENTS), "--layer-milliseconds", "0", "--steps", str(steps), "--json"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout)
    return {step["strategy"]: step["step_seconds"] * 1e3 for step in found if step["overlap"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--troupe", default=str(ROOT / "build/release/bin/troupe"))
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--torch-rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_rank:
        return torch_rank(options.torch_rank)
    processors = sorted(os.sched_getaffinity(0))
    rows = []
    for ranks in map(int, options.ranks.split(",")):
        os.sched_setaffinity(0, processors[:ranks])
        times = {"torch": [], "ddp": [], "zero1": []}
        for index in range(options.rounds):
            times["torch"].append(of_torch(ranks, options.steps, 29400 + index))
            for strategy, step in of_troupe(options.troupe, ranks, options.steps).items():
                times[strategy].append(step)
        ratios = {name: [own / peer for own, peer in zip(times[name], times["torch"])] for name in ("ddp", "zero1")}
        rows.append({"ranks": ranks, "milliseconds": times, "of_torch": ratios})
        if not options.json:
            for name, measured in times.items():
                line = f"{ranks} ranks  {name:6} {spread(measured, '.1f')} ms"
                print(line + (f"   {spread(ratios[name], '.2f')} of torch" if name in ratios else ""), flush=True)
    if options.json:
        print(json.dumps({"elements": LAYERS * ELEMENTS, "rounds": options.rounds, "rows": rows}))
    return 0


def spread(values, form):
    return f"{min(values):{form}}–{statistics.median(values):{form}}–{max(values):{form}}"


if __name__ == "__main__":
    sys.exit(main())
