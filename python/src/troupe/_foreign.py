"""What other libraries keep beside, or instead of, the files of torch.distributed.checkpoint (DCP): Megatron's common
state, and the directories of torch_checkpointing."""

from __future__ import annotations

import argparse
import io
import pickle
import re
from pathlib import Path
from typing import Any, Optional

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType

from troupe.errors import Error, Status

_COMMON_FILE, _COMMON_OBJECT = "common.pt", "common_state/shard_0_1"
_OF_RANK = re.compile(r"(?P<item>.+)_(?P<rank>\d+)\.pt")


def unpickled(source: Any, what: str) -> Any:
    """Nothing is run that the file names, beyond what torch knows to be harmless and argparse's Namespace."""
    if not hasattr(torch.serialization, "safe_globals"):
        raise Error(Status.UNAVAILABLE, f"{what} is read with PyTorch 2.5 or newer, found {torch.__version__}; pip install "
                    "-U torch")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Error(Status.UNAVAILABLE, f"{what} has objects that are not loaded without your leave: {error}; if you trust "
                    "the file, name their classes in torch.serialization.add_safe_globals()") from None
    except (RuntimeError, EOFError, OSError) as error:
        raise Error(Status.CORRUPT, f"{what} cannot be read: {error}; load another checkpoint") from None


class Values:
    """Parts of tensors, and other values, by their names in DCP's flat form, as a StorageReader has to know them."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self._parts: dict[tuple[str, Optional[torch.Size]], Any] = {}

    def add(self, name: str, value: Any, whole: Optional[torch.Size] = None, offset: Optional[torch.Size] = None) -> None:
        if not isinstance(value, torch.Tensor):
            self.metadata.setdefault(name, BytesStorageMetadata())
            self._parts.setdefault((name, None), value)
            return
        at = offset if offset is not None else torch.Size([0] * value.ndim)
        of_tensor = self.metadata.setdefault(name, TensorStorageMetadata(
            TensorProperties(dtype=value.dtype), whole if whole is not None else value.shape, []))
        if not isinstance(of_tensor, TensorStorageMetadata) or (of_tensor.properties.dtype, len(of_tensor.size)) != (
                value.dtype, value.ndim):
            raise Error(Status.CORRUPT, f"ranks have saved different things under the name {name}")
        if (name, at) not in self._parts and value.numel() > 0:  # otherwise a replica of it, or nothing
            self._parts[name, at] = value
            of_tensor.chunks.append(ChunkStorageMetadata(at, value.shape))

    def has(self, index: Any) -> bool:
        return (index.fqn, index.offset) in self._parts or (index.fqn, None) in self._parts

    def read(self, items: list[Any], planner: Any) -> None:
        for item in items:
            index = item.storage_index
            if item.type == LoadItemType.BYTE_IO:
                found = io.BytesIO()
                torch.save(self._parts[index.fqn, None], found)
                found.seek(0)
                planner.load_bytes(item, found)
                continue
            part = self._parts[index.fqn, index.offset]
            for axis, (first, count) in enumerate(zip(item.storage_offsets, item.lengths)):
                part = part.narrow(axis, first, count)
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)


def common_state(folder: Path, metadata: Metadata) -> Values:
    """What Megatron keeps besides its tensors: in common.pt, or since core 0.17 as an object among the others."""
    found, state = Values(), None
    if (folder / _COMMON_FILE).is_file():
        state = unpickled(folder / _COMMON_FILE, str(folder / _COMMON_FILE))
    elif _COMMON_OBJECT in metadata.state_dict_metadata and metadata.storage_data is not None:
        place = metadata.storage_data[MetadataIndex(_COMMON_OBJECT)]
        with open(folder / place.relative_path, "rb") as file:
            file.seek(place.offset)
            state = unpickled(io.BytesIO(file.read(place.length)), f"{_COMMON_OBJECT} of {folder}")
        state = state[0] if isinstance(state, list) and len(state) == 1 else state
    if isinstance(state, dict):
        for name, value in flatten_state_dict(state)[0].items():
            if name not in metadata.state_dict_metadata:
                found.add(name, value)
    return found


def is_torch_checkpointing(folder: Path) -> bool:
    return folder.is_dir() and any(_OF_RANK.fullmatch(path.name) for path in folder.iterdir())


def torch_checkpointing(folder: Path) -> Values:
    """Its files are <item>_<rank>.pt, in which tensors that are sharded are DTensors. What is not a tensor is rank 0's."""
    import torch.distributed.tensor  # noqa: F401  so that DTensors may be unpickled
    files = sorted((match for match in map(_OF_RANK.fullmatch, (path.name for path in folder.iterdir())) if match),
                   key=lambda match: int(match["rank"]))
    found = Values()
    for match in files:
        path = folder / match.string
        state = {match["item"]: unpickled(path, str(path))}
        for name, value in flatten_state_dict(state)[0].items():
            if hasattr(value, "to_local"):
                found.add(name, value._local_tensor, value.shape, _offset_of(value, int(match["rank"]), name))
            else:
                found.add(name, value)
    for name, of_tensor in found.metadata.items():
        if isinstance(of_tensor, TensorStorageMetadata):
            there = sum(chunk.sizes.numel() for chunk in of_tensor.chunks)
            if there != of_tensor.size.numel():
                raise Error(Status.CORRUPT, f"{folder} has {there} of the {of_tensor.size.numel()} elements of {name}; "
                            "expected the files of all ranks that saved it")
    return found


def _offset_of(tensor: Any, rank: int, name: str) -> torch.Size:
    """Where the part of that rank begins."""
    offset, extents = [0] * tensor.ndim, list(tensor.shape)
    place = (tensor.device_mesh.mesh == rank).nonzero()
    if len(place) != 1:
        raise Error(Status.CORRUPT, f"{name} lies on ranks {tensor.device_mesh.mesh.tolist()}, which have no rank {rank}")
    for coordinate, size, placement in zip(place[0].tolist(), tensor.device_mesh.mesh.shape, tensor.placements):
        if type(placement).__name__ == "Shard":
            # torch.chunk()'s cut of what the axes of the mesh before this one have left.
            chunk = -(-extents[placement.dim] // size)
            first = min(coordinate * chunk, extents[placement.dim])
            offset[placement.dim] += first
            extents[placement.dim] = min(chunk, extents[placement.dim] - first)
        elif not placement.is_replicate():
            raise Error(Status.UNAVAILABLE, f"{name} has the placement {placement}; expected Shard or Replicate: save it "
                        "with torch.distributed.checkpoint")
    if extents != list(tensor._local_tensor.shape):
        raise Error(Status.CORRUPT, f"{name}: expected a part {extents} of rank {rank}, found "
                    f"{list(tensor._local_tensor.shape)}")
    return torch.Size(offset)
