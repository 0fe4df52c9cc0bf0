"""Where the ranks of a trainer find each other when torch.distributed was there first."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Iterator

import torch.distributed

dist: Any = torch.distributed
_SAYS_SO = "TORCHELASTIC_USE_AGENT_STORE"


def _has_store_at_master_port() -> bool:
    if not dist.is_available() or not dist.is_initialized() or "TROUPE_CONTROL_ADDR" in os.environ:
        return False
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return isinstance(store, dist.TCPStore) and str(store.port) == os.environ.get("MASTER_PORT")


@contextmanager
def in_store() -> Iterator[None]:
    """Within it a session that joins uses torch.distributed's store if that is at MASTER_PORT, where rank 0 cannot
    listen then. It is told as by torchrun, whose agent has such a store."""
    if _SAYS_SO in os.environ or not _has_store_at_master_port():
        yield
        return
    os.environ[_SAYS_SO] = "True"
    try:
        yield
    finally:
        del os.environ[_SAYS_SO]
