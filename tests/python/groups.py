"""The group of torch.distributed in tests of what works over any back-end."""

import inspect

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: F401
except ImportError:  # PyTorch 2.4
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor  # noqa: F401

BACKEND = "troupe" if hasattr(dist.Backend, "_ensure_backend_registered") else "gloo"

# For DCP in a process without ranks; that of PyTorch 2.4 finds out itself.
ALONE = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}


def join():
    dist.init_process_group(BACKEND)


def leave():
    """At the end of a rank. Gloo of PyTorch 2.4 sometimes waits in there without end for members that have gone."""
    if BACKEND != "gloo":
        dist.destroy_process_group()
