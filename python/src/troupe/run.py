"""Runs a script in a process group that is made already, for scripts that leave it to a library which names a back-end
of its own, as Accelerate and Hugging Face's Trainer do on the CPU:

    python -m troupe.launch --standalone --nproc-per-node 2 -m troupe.run train.py --its arguments

The group is torch.distributed's, over the back-end "troupe"; scripts that call init_process_group() name it there."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("troupe.run: expected a script and its arguments: python -m troupe.run train.py ...")
    del sys.argv[0]
    if not Path(sys.argv[0]).is_file():
        sys.exit(f"troupe.run: {sys.argv[0]} is not a file")
    if "RANK" not in os.environ:
        sys.exit("troupe.run: expected the variables of a launcher, RANK and others; start it with python -m troupe.launch, "
                 "troupe launch or torchrun")
    import torch.distributed as dist

    import troupe.torch  # noqa: F401

    dist.init_process_group("troupe")
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
