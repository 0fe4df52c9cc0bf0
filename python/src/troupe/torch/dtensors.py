"""State dictionaries as trainers with FSDP2 exchange them, while a model's parameters are in a session."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Mapping, MutableMapping

import torch
import torch.distributed
from torch import nn

from troupe.errors import invalid
from troupe.session import Session

dist: Any = torch.distributed


def _types() -> Any:
    """Imported when they are first needed, since it takes a while; PyTorch 2.4 has them elsewhere."""
    found: Any = importlib.import_module("torch.distributed.tensor")
    return found if hasattr(found, "DTensor") else importlib.import_module("torch.distributed._tensor")


def has_ranks_of(session: Session) -> bool:
    """Whether torch.distributed is initialised, with the session's ranks under their numbers."""
    return bool(dist.is_available() and dist.is_initialized() and
                (dist.get_rank(), dist.get_world_size()) == (session.rank, session.world_size))


def mesh_of(session: Session, device: str, instances: int) -> Any:
    """All ranks, on the axis "shard"; with several instances of the optimizer behind the axis "replicate"."""
    if not has_ranks_of(session):
        raise invalid(f"DTensors are on a mesh of torch.distributed's ranks, which would be rank {session.rank} of "
                      f"{session.world_size} here; call torch.distributed.init_process_group() before the trainer is made")
    ranks = session.world_size
    axes = {"shard": ranks} if instances == 1 else {"replicate": instances, "shard": ranks // instances}
    return dist.device_mesh.init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))


def part_of(whole: torch.Tensor, mesh: Any, is_sharded: bool) -> Any:
    """A DTensor of which this rank has a copy of its part of `whole`: its rows, as FSDP2 cuts them, or all of it."""
    types = _types()
    placements = [types.Replicate()] * mesh.ndim
    local = whole
    if is_sharded and whole.ndim > 0:
        placements[-1] = types.Shard(0)
        rows = -(-len(whole) // mesh.size(mesh.ndim - 1))
        local = whole[mesh.get_local_rank(mesh.ndim - 1) * rows:][:rows]
    return types.DTensor.from_local(local.clone(memory_format=torch.contiguous_format), mesh, placements, run_check=False,
                                    shape=whole.shape, stride=whole.stride())


def whole_of(values: torch.Tensor) -> torch.Tensor:
    """The tensor that a DTensor stands for, by all ranks alike, or what was given."""
    gather = getattr(values, "full_tensor", None)
    found: torch.Tensor = values if gather is None else gather()
    return found


class ModelHooks:
    """Makes state_dict() and load_state_dict() of the model itself, which torch.distributed.checkpoint.state_dict calls,
    those of its trainer. `before_reading` is called before the former, `read` gives what is to be in place of its
    entries, and `write` is what takes values."""

    def __init__(self, model: nn.Module, before_reading: Callable[[], None], read: Callable[[], Mapping[str, torch.Tensor]],
                 write: Callable[[Mapping[str, torch.Tensor]], None]) -> None:
        self._model, self._before_reading, self._read, self._write = model, before_reading, read, write
        self._is_asking = False
        hooked: Any = model
        self._handles = [hooked.register_state_dict_pre_hook(self._before_state_dict),
                         hooked._register_state_dict_hook(self._after_state_dict),
                         hooked._register_load_state_dict_pre_hook(self._before_load)]

    def own(self) -> dict[str, torch.Tensor]:
        """The model's tensors under all their names."""
        self._is_asking = True
        try:
            return {name: tensor for name, tensor in self._model.state_dict(keep_vars=True).items()
                    if isinstance(tensor, torch.Tensor)}
        finally:
            self._is_asking = False

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before_state_dict(self, *unused: Any) -> None:
        if not self._is_asking:
            self._before_reading()

    def _after_state_dict(self, module: nn.Module, found: MutableMapping[str, Any], prefix: str, *unused: Any) -> None:
        if not self._is_asking:
            found.update({prefix + name: values for name, values in self._read().items()})

    def _before_load(self, state: MutableMapping[str, Any], prefix: str, *unused: Any) -> None:
        own = self.own()
        given = {name: state[prefix + name] for name in own if prefix + name in state}
        self._write(given)
        # Each tensor is copied to itself then; names that are missing or unknown are reported by the module.
        state.update({prefix + name: own[name] for name in given})
