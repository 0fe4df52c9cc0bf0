"""Checkpoints for trainers that keep DDP or FSDP2: directories of torch.distributed.checkpoint (DCP), which DCP reads
too, with a hash of every file, and visible only when they are whole.

    import troupe.checkpoint

    save = troupe.checkpoint.save_async(state_dict, "run/step-100")     # all ranks; returns when the state is copied
    ...
    save.result()                                                       # when it is needed: durable, or an error
    troupe.checkpoint.load(state_dict, "run/step-100")                  # in place, by any number of ranks

`Writer` and `Reader` are DCP's StorageWriter and StorageReader of the same, for `dcp.save()` and `dcp.load()`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import logging
import os
import shutil
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as _dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata

from troupe import _foreign
from troupe.errors import Error, Status

__all__ = ["Checkpointer", "Reader", "Save", "Writer", "load", "save_async"]

dcp: Any = _dcp
HASHES = "hashes.json"
ALGORITHM = "blake2b-128"
_METADATA = ".metadata"
_CHUNK = 1 << 20


def _hashed(path: Path) -> dict[str, Any]:
    found, size = hashlib.blake2b(digest_size=16), 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
            size += len(chunk)
    return {"bytes": size, "hash": found.hexdigest()}


def _write_durably(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _old(final: Path) -> Path:
    return final.with_name(f".{final.name}.old")


def _recover(final: Path) -> None:
    """A save that ended between its two renames has left the checkpoint before it under another name."""
    if not final.exists() and _old(final).exists():
        try:
            _old(final).rename(final)
        except OSError:
            if not final.exists():  # otherwise another rank was faster
                raise


class Writer(FileSystemWriter):
    """Writes beside the directory and renames at the end; a directory of that name is replaced then. All ranks write to
    one file system. What a save that ended early has left is removed by the next one of the same name."""

    def __init__(self, directory: Union[str, os.PathLike[str]], **options: Any) -> None:
        super().__init__(directory, **options)
        self.reset(directory)

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None) -> None:
        if checkpoint_id is not None:
            self._final = Path(checkpoint_id).absolute()
        super().reset(self._final.with_name(f".{self._final.name}.part"))

    @property
    def _part(self) -> Path:
        return Path(self.path)

    def prepare_local_plan(self, plan: Any) -> Any:
        # The coordinator makes the directory, and empties it, before anybody writes.
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> Any:
        _recover(self._final)
        shutil.rmtree(self._part, ignore_errors=True)
        self._part.mkdir(parents=True)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: Any, planner: Any) -> Any:
        done = super().write_data(plan, planner)
        results = done.wait()
        files = sorted({result.storage_data.relative_path for result in results})
        _write_durably(self._part / f"{plan.storage_data.prefix}{HASHES}",
                       json.dumps({name: _hashed(self._part / name) for name in files}))
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        files = {_METADATA: _hashed(self._part / _METADATA)}
        for of_rank in self._part.glob(f"__*_{HASHES}"):
            files.update(json.loads(of_rank.read_text(encoding="utf-8")))
            of_rank.unlink()
        _write_durably(self._part / HASHES, json.dumps({"algorithm": ALGORITHM, "files": files}, indent=1))
        _sync_folder(self._part)
        old = _old(self._final)
        shutil.rmtree(old, ignore_errors=True)
        if self._final.exists():
            self._final.rename(old)
        self._part.rename(self._final)
        _sync_folder(self._final.parent)
        shutil.rmtree(old, ignore_errors=True)


class Reader(FileSystemReader):
    """Compares each file that a rank reads with its hash, before anything of it is used. Directories of DCP's own, of
    Megatron (torch_dist) with its common state, and of torch_checkpointing have no hashes, and are read as they are."""

    _beside = _foreign.Values()

    def __init__(self, directory: Union[str, os.PathLike[str]], *, verify: bool = True) -> None:
        super().__init__(directory)
        self._verify = verify

    def _check(self, names: Any) -> None:
        folder = Path(self.path)
        if not self._verify or not (folder / HASHES).exists():
            return
        try:
            known = json.loads((folder / HASHES).read_text(encoding="utf-8"))
            algorithm, files = known["algorithm"], known["files"]
        except (ValueError, KeyError, TypeError) as error:
            raise Error(Status.CORRUPT, f"{folder / HASHES} is damaged: {error}; load another checkpoint") from None
        if algorithm != ALGORITHM:
            raise Error(Status.UNAVAILABLE, f"{folder / HASHES}: expected hashes of {ALGORITHM}, found {algorithm}; "
                        "use the version of Troupe that wrote it, or Reader(..., verify=False)")
        for name in sorted(names):
            expected, path = files.get(name), folder / name
            found = _hashed(path) if path.is_file() else "no such file"
            if found != expected:
                raise Error(Status.CORRUPT, f"{path}: expected {expected} as {HASHES} says, found {found}; load another "
                            "checkpoint")

    def read_metadata(self, *arguments: Any, **more: Any) -> Any:
        folder = Path(self.path)
        _recover(folder.absolute())
        if (folder / _METADATA).is_file():
            self._check([_METADATA])
            metadata: Any = super().read_metadata(*arguments, **more)
            self._beside = _foreign.common_state(folder, metadata)
            metadata.state_dict_metadata.update(self._beside.metadata)
            return metadata
        if not _foreign.is_torch_checkpointing(folder):
            raise Error(Status.NOT_FOUND, f"{self.path} is not a checkpoint of torch.distributed.checkpoint, which has a file "
                        f"{_METADATA}, nor of torch_checkpointing, which has files such as model_0.pt")
        self._beside = _foreign.torch_checkpointing(folder)
        return Metadata(state_dict_metadata=self._beside.metadata, storage_data={})

    def read_data(self, plan: Any, planner: Any) -> Any:
        beside = [item for item in plan.items if self._beside.has(item.storage_index)]
        own = [item for item in plan.items if not self._beside.has(item.storage_index)]
        self._check({self.storage_data[item.storage_index].relative_path for item in own})
        self._beside.read(beside, planner)
        return super().read_data(dataclasses.replace(plan, items=own), planner)


def _alone(is_alone: bool) -> dict[str, bool]:
    """For DCP; older ones find out themselves."""
    return {"no_dist": True} if is_alone and "no_dist" in inspect.signature(dcp.save).parameters else {}


def _cause_of(error: CheckpointException) -> BaseException:
    """The first rank's failure of ours; otherwise all of them, as DCP tells them, which is not an Exception."""
    for cause, *_ in error.failures.values():
        if isinstance(cause, Error):
            return cause
    return Error(Status.IO, str(error))


class Save:
    """A save under way. `stall_seconds` is for how long the trainer waited in save_async()."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.stall_seconds = directory, 0.0
        self._future: "Future[None]" = Future()

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout: Optional[float] = None) -> None:
        """Waits until the checkpoint is durable and visible on all ranks; raises why it is not."""
        self._future.result(timeout)


class Checkpointer:
    """Saves one state after another; a save waits until the previous one has ended, so that there is one copy of the
    state at most. Its memory is kept for the next one."""

    def __init__(self) -> None:
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}
        self._world: Any = None
        self._group: Any = None
        self._thread: Optional[threading.Thread] = None

    def save_async(self, state_dict: dict[str, Any], directory: Union[str, os.PathLike[str]]) -> Save:
        """By all ranks alike. Tensors of the state may be changed as soon as it returns; other values are written as
        they are then. The first call makes a process group of its own."""
        began, save = time.monotonic(), Save(Path(directory).absolute())
        if self._thread is not None:
            self._thread.join()
        if dist.is_available() and dist.is_initialized() and self._world is not dist.group.WORLD:
            self._world, self._group = dist.group.WORLD, dist.new_group(backend=_backend_of_the_cpu())
        used: set[tuple[Any, ...]] = set()
        copied = self._copy(state_dict, (), used)
        self._copies = {key: copy for key, copy in self._copies.items() if key in used}
        self._thread = threading.Thread(target=self._write, args=(copied, save), name="troupe checkpoint")
        self._thread.start()
        save.stall_seconds = time.monotonic() - began
        return save

    def _write(self, state: dict[str, Any], save: Save) -> None:
        try:
            dcp.save(state, storage_writer=Writer(save.directory), process_group=self._group,
                     **_alone(self._group is None))
            save._future.set_result(None)
        except BaseException as error:  # pylint: disable=broad-except
            cause = _cause_of(error) if isinstance(error, CheckpointException) else error
            # Also for trainers that never ask for the result.
            logging.getLogger("troupe").error("the save to %s failed: %s", save.directory, cause)
            save._future.set_exception(cause)

    def _copy(self, value: Any, at: tuple[Any, ...], used: set[tuple[Any, ...]]) -> Any:
        if isinstance(value, dict):
            return {key: self._copy(entry, (*at, key), used) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)([self._copy(entry, (*at, index), used) for index, entry in enumerate(value)])
        if hasattr(value, "state_dict") and not isinstance(value, torch.Tensor):
            return self._copy(value.state_dict(), at, used)
        if not isinstance(value, torch.Tensor):
            return value
        if hasattr(value, "to_local"):  # a DTensor
            whole: Any = value
            local = self._copy(whole.to_local(), at, used)
            return type(whole).from_local(local, whole.device_mesh, whole.placements, run_check=False,
                                          shape=whole.shape, stride=whole.stride())
        copy = self._copies.get(at)
        if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = self._copies[at] = torch.empty(value.shape, dtype=value.dtype, device="cpu")
        used.add(at)
        copy.copy_(value.detach())
        return copy


def _backend_of_the_cpu() -> str:
    """That of the job, if it serves the CPU."""
    names: str = dist.get_backend_config(dist.group.WORLD)
    for part in str(names).split(","):
        device, _, name = part.rpartition(":")
        if device in ("", "cpu") and name != "nccl":
            return name
    return "gloo"


_default = Checkpointer()


def save_async(state_dict: dict[str, Any], directory: Union[str, os.PathLike[str]]) -> Save:
    """`Checkpointer.save_async()` of one that all calls share."""
    return _default.save_async(state_dict, directory)


def load(state_dict: dict[str, Any], directory: Union[str, os.PathLike[str]], *, verify: bool = True,
         process_group: Any = None) -> None:
    """Fills the state in place from a directory that save_async(), DCP, Megatron (torch_dist) or torch_checkpointing wrote,
    with any number of ranks. Entries of Megatron's common state are found by their names in it; the items of
    torch_checkpointing are the state's first level. An `Error` with the status CORRUPT names a file that differs from
    its hash."""
    reader, alone = Reader(directory, verify=verify), not (dist.is_available() and dist.is_initialized())
    reader.read_metadata()  # what is wrong with it is reported here; DCP wraps such errors
    try:
        dcp.load(state_dict, storage_reader=reader, process_group=process_group, **_alone(alone))
    except CheckpointException as error:
        raise _cause_of(error) from None
