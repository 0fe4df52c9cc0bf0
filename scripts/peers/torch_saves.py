#!/usr/bin/env python3
"""How long a save holds a trainer up: troupe.checkpoint.save_async() beside DCP's async_save(), of the same state:

    TROUPE_LIBRARY=build/release/lib/libtroupe.so.0 PYTHON scripts/peers/torch_saves.py [--mib 256] [--ranks 2] [--json]

Both save in turns, each to a fresh directory, and each save has ended before the next one begins. The first one of each is
not counted. A figure is rank 0's median.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
import ranks  # noqa: E402  first: it says where troupe is

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401  DCP imports it
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

import troupe.torch  # noqa: E402, F401
from troupe import checkpoint  # noqa: E402


def measured(folder, mib, rounds):
    torch.set_num_threads(1)
    dist.init_process_group("troupe")
    rank, count = dist.get_rank(), 16
    # Every rank has its own tensors, as with sharded states.
    state = {f"rank{rank}.tensor{index}": torch.ones((mib << 20) // 4 // count) for index in range(count)}
    group, times = dist.new_group(backend="gloo"), {"troupe": [], "dcp": []}
    for index in range(rounds + 1):
        for name in ("troupe", "dcp") if index % 2 else ("dcp", "troupe"):
            dist.barrier()
            begin, where = time.perf_counter(), f"{folder}/{name}{index}"
            if name == "troupe":
                save = checkpoint.save_async(state, where)
            else:
                save = dcp.async_save(state, checkpoint_id=where, process_group=group)
            stall = time.perf_counter() - begin
            save.result()
            times[name] += [stall] if index else []
    dist.destroy_process_group()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="of each rank's state")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = ranks.results(options.ranks, measured, folder, options.mib, options.rounds)[0]
    medians = {f"{name}_ms": round(statistics.median(stalls) * 1e3, 1) for name, stalls in times.items()}
    found = {"torch": torch.__version__, "mib_per_rank": options.mib, "ranks": options.ranks, **medians,
             "ratio": round(medians["dcp_ms"] / medians["troupe_ms"], 2)}
    print(json.dumps(found, indent=1) if options.json else
          f"stall of a save: troupe.checkpoint {found['troupe_ms']} ms, DCP async_save {found['dcp_ms']} ms, "
          f"{found['ratio']} times")


if __name__ == "__main__":
    main()
