#!/usr/bin/env python3
"""Collectives of torch.distributed over the back-ends "troupe" and "gloo", through torch.distributed itself:

    TROUPE_LIBRARY=build/release/lib/libtroupe.so.0 PYTHON scripts/peers/torch_collectives.py [--ranks 2 4]
        [--over tcp] [--json]

PYTHON has torch 2.14. Both back-ends serve groups of the same processes and take turns call by call, so what else the
machine does meets both. Figures are quartiles of rank 0's calls, each from a barrier of all to the call's return.
The floor is the same call over a back-end in Python that does nothing, so the least that one in Python takes: gloo's
time divided by the floor's median is as much faster as it can be. With --over tcp troupe's bytes go over TCP too, and not over the memory that the ranks of one host share.
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

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402

import troupe.torch  # noqa: E402, F401

BACKENDS = ("troupe", "gloo", "nothing")
SIZES = {"4 KiB": 4 << 10, "256 KiB": 256 << 10, "64 MiB": 64 << 20}
CALLS = {4 << 10: 200, 256 << 10: 100, 64 << 20: 7}


class Nothing(c10d.Backend):
    """Its operations are over when they are called."""

    def __init__(self, options, unused=None):
        super().__init__(options.group_rank, options.group_size)
        self._options = c10d.Backend.Options("nothing", options.timeout)

    def getBackendName(self):  # pylint: disable=invalid-name
        return "nothing"

    options = property(lambda self: self._options)
    supports_splitting = supports_coalescing = supports_shrinking = supports_window = property(lambda self: False)

    def setSequenceNumberForGroup(self):  # pylint: disable=invalid-name
        pass

    def allreduce(self, tensors, options):
        pass

    broadcast = allreduce

    def all_gather_single(self, output, given, options):
        pass

    reduce_scatter_single = all_gather_single

    def shutdown(self):
        pass


def all_reduce(group, whole, part):
    dist.all_reduce(whole, group=group)


def all_gather(group, whole, part):
    dist.all_gather_into_tensor(whole, part, group=group)


def reduce_scatter(group, whole, part):
    dist.reduce_scatter_tensor(part, whole, group=group)


def broadcast(group, whole, part):
    dist.broadcast(whole, 0, group=group)


OPERATIONS = (all_reduce, all_gather, reduce_scatter, broadcast)


def measured():
    """Seconds, by operation, size and back-end."""
    torch.set_num_threads(1)
    dist.Backend.register_backend("nothing", Nothing, extended_api=True, devices=["cpu"])
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    found = {}
    for operation in OPERATIONS:
        for label, size in SIZES.items():
            whole = torch.ones(size // 4)
            part = torch.ones(whole.numel() // dist.get_world_size())
            times = {name: [] for name in BACKENDS}
            for call in range(CALLS[size] + 3):
                for name in BACKENDS if call % 2 else reversed(BACKENDS):
                    dist.barrier(group=groups["troupe"])
                    begin = time.perf_counter()
                    operation(groups[name], whole, part)
                    if call >= 3:
                        times[name].append(time.perf_counter() - begin)
                    whole.fill_(1)
            for name in BACKENDS:
                found[operation.__name__, label, name] = times[name]
    dist.destroy_process_group()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--over", choices=("automatic", "tcp"), default="automatic")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["TROUPE_PEERS_OVER"] = options.over
    rows = []
    for count in options.ranks:
        found = ranks.results(count, measured)[0]
        for operation in OPERATIONS:
            for label in SIZES:
                quartiles = {name: [round(each * 1e6, 1) for each in
                                    statistics.quantiles(found[operation.__name__, label, name], method="inclusive")]
                             for name in BACKENDS}
                rows.append({"ranks": count, "operation": operation.__name__, "size": label,
                             **{f"{name}_us": values for name, values in quartiles.items()},
                             "ratio": round(quartiles["gloo"][1] / quartiles["troupe"][1], 2),
                             "ratio_of_floor": round(quartiles["gloo"][1] / quartiles["nothing"][1], 2)})
    if options.json:
        print(json.dumps({"torch": torch.__version__, "over": options.over, "rows": rows}, indent=1))
        return
    print("| ranks | operation | size | troupe, µs | gloo, µs | floor, µs | gloo / troupe | gloo / floor |\n"
          "|---|---|---|---|---|---|---|---|")
    for row in rows:
        spread = {name: "–".join(f"{each:.0f}" for each in row[f"{name}_us"]) for name in BACKENDS}
        print("| {ranks} | {operation} | {size} | {troupe} | {gloo} | {nothing} | {ratio:.1f} | {ratio_of_floor:.1f} |"
              .format(**row, **spread))


if __name__ == "__main__":
    main()
