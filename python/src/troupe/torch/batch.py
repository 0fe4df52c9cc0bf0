"""Batches of named tensors, as trainers pass them between a model's roles and between ranks."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from troupe.errors import Error, Status, invalid
from troupe.torch.functional import members_of


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device) and torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class Batch:
    """Named tensors with the batch as axis 0, named arrays (lists) with one value per row, and `meta`, values of the
    whole batch. Operations return a new batch; slice() and split() share memory with this one.

        batch = Batch({"tokens": tokens, "rewards": rewards}, {"prompts": prompts}, {"policy": 12})
        padded, added = batch.pad_to_multiple(4)
        parts = padded.split(4)
        whole = parts[rank].all_gather(group)
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], arrays: Optional[Mapping[str, Sequence[Any]]] = None,
                 meta: Optional[Mapping[str, Any]] = None) -> None:
        self.tensors = dict(tensors)
        self.arrays = {name: list(values) for name, values in (arrays or {}).items()}
        self.meta = dict(meta or {})
        twice = self.tensors.keys() & self.arrays.keys()
        if twice:
            raise invalid(f"{min(twice)} is the name of a tensor and of an array")
        for name, tensor in self.tensors.items():
            if tensor.ndim == 0:
                raise invalid(f"{name} has no axis; axis 0 of each tensor is the batch")
        rows = {**{name: len(tensor) for name, tensor in self.tensors.items()},
                **{name: len(values) for name, values in self.arrays.items()}}
        if len(set(rows.values())) > 1:
            raise invalid(f"expected one number of rows, found {', '.join(f'{n} of {name}' for name, n in rows.items())}")
        self.rows = next(iter(rows.values()), 0)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name] if name in self.tensors else self.arrays[name]

    def take(self, rows: Sequence[int]) -> Batch:
        """These rows in this order; rows may be repeated."""
        for row in rows:
            if not 0 <= row < self.rows:
                raise invalid(f"row {row} of a batch of {self.rows} rows")
        indices = torch.tensor(list(rows), dtype=torch.int64)
        return Batch({name: tensor[indices.to(tensor.device)] for name, tensor in self.tensors.items()},
                     {name: [values[row] for row in rows] for name, values in self.arrays.items()}, self.meta)

    def slice(self, first: int, count: int) -> Batch:
        """Rows [first, first + count)."""
        if first < 0 or count < 0 or first + count > self.rows:
            raise invalid(f"rows {first} to {first + count} of a batch of {self.rows} rows")
        return Batch({name: tensor[first:first + count] for name, tensor in self.tensors.items()},
                     {name: values[first:first + count] for name, values in self.arrays.items()}, self.meta)

    def split(self, parts: int) -> list[Batch]:
        """Parts of equally many rows."""
        if parts < 1 or self.rows % parts != 0:
            raise invalid(f"{self.rows} rows cannot be split into {parts} equal parts; pad_to_multiple() first")
        count = self.rows // parts
        return [self.slice(part * count, count) for part in range(parts)]

    def repeat(self, times: int, *, interleave: bool = False) -> Batch:
        """The whole batch again and again, or if interleaved each row so often before the next."""
        if times < 0:
            raise invalid(f"expected a number of times, found {times}")
        return self.take([row for row in range(self.rows) for _ in range(times)] if interleave else
                         list(range(self.rows)) * times)

    def pad_to_multiple(self, multiple: int) -> tuple[Batch, int]:
        """With rows appended, from the first one on and cyclically, up to a multiple; also how many were added."""
        if multiple < 1:
            raise invalid(f"expected a multiple of at least 1, found {multiple}")
        added = -self.rows % multiple
        return self.take([row % max(1, self.rows) for row in range(self.rows + added)]), added

    def unpad(self, added: int) -> Batch:
        """Without the last rows, those that padding added."""
        return self.slice(0, self.rows - added)

    @staticmethod
    def concatenate(parts: Sequence[Batch]) -> Batch:
        """Batches one after another, with the same names, dtypes and shapes of rows. Values of meta that have the same
        name must be equal, except that dictionaries called "metrics" become one of lists."""
        if not parts:
            raise invalid("expected a batch at least, to concatenate")
        _expect_alike([_layout(part) for part in parts], "batch")
        meta: dict[str, Any] = {}
        for number, part in enumerate(parts):
            for name, value in part.meta.items():
                if name == "metrics" and isinstance(value, Mapping):
                    lists = meta.setdefault(name, {})
                    for metric, found in value.items():
                        lists.setdefault(metric, []).extend(found if isinstance(found, list) else [found])
                elif name not in meta:
                    meta[name] = value
                elif not _equal(meta[name], value):
                    raise Error(Status.MISMATCH, f"{name} of batch {number} is {value!r}, and was {meta[name]!r} before")
        return _joined(parts, meta)

    def union(self, other: Batch) -> Batch:
        """What either has; what both have must be the same, in all bits."""
        if self.rows != other.rows and (self.tensors or self.arrays) and (other.tensors or other.arrays):
            raise Error(Status.MISMATCH, f"the batches have {self.rows} and {other.rows} rows")
        for name, tensor in self.tensors.items():
            if name in other.tensors and not _same_bits(tensor, other.tensors[name]):
                raise Error(Status.MISMATCH, f"tensor {name} differs between the batches")
        for kind in ("arrays", "meta"):
            ours, theirs = getattr(self, kind), getattr(other, kind)
            for name in ours:
                if name in theirs and not _equal(ours[name], theirs[name]):
                    raise Error(Status.MISMATCH, f"{name} ({kind}) differs between the batches")
        return Batch({**self.tensors, **other.tensors}, {**self.arrays, **other.arrays}, {**self.meta, **other.meta})

    def all_gather(self, group: Optional[dist.ProcessGroup] = None) -> Batch:
        """The batches of all members of a process group, concatenated in group order; they may have different numbers
        of rows. `meta` is this rank's. What members have of different names, dtypes or shapes is the same error on all
        of them. Arrays are pickled, so gather from ranks that you trust."""
        _, members = members_of(group)
        if members == 1:
            return self.slice(0, self.rows)
        found: list[Any] = [None] * members
        dist.all_gather_object(found, (_layout(self), self.rows, self.arrays), group=group)
        layouts = [layout for layout, _, _ in found]
        _expect_alike(layouts, "member")
        names = sorted(self.tensors)
        device = self.tensors[names[0]].device if names else torch.device("cpu")
        own = torch.cat([_bytes(self.tensors[name]) for name in names]) if names else torch.empty(0, dtype=torch.uint8)
        of_row = {name: self.tensors[name].dtype.itemsize * self.tensors[name].shape[1:].numel() for name in names}
        width = sum(of_row.values())
        most = max(rows for _, rows, _ in found)
        if width * most > 0:
            padded = torch.zeros(width * most, dtype=torch.uint8, device=device)
            padded[:len(own)] = own
            gathered = [torch.empty_like(padded) for _ in range(members)]
            dist.all_gather(gathered, padded, group=group)
        else:
            gathered = [own] * members
        parts = []
        for memory, (_, rows, arrays) in zip(gathered, found):
            sizes = [of_row[name] * rows for name in names]
            tensors = {name: piece.clone().view(self.tensors[name].dtype).view(rows, *self.tensors[name].shape[1:])
                       for name, piece in zip(names, torch.split(memory[:sum(sizes)], sizes))}
            parts.append(Batch(tensors, arrays))
        return _joined(parts, self.meta, list(self.tensors))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and _same_bits(a, b)
    return type(a) is type(b) and bool(a == b)


def _layout(batch: Batch) -> dict[str, str]:
    """What batches must have in common to be concatenated."""
    found = {name: f"{tensor.dtype} [rows{''.join(f', {extent}' for extent in tensor.shape[1:])}]"
             for name, tensor in batch.tensors.items()}
    found.update({name: "an array" for name in batch.arrays})
    return found


def _expect_alike(layouts: Sequence[Mapping[str, str]], what: str) -> None:
    for name in sorted({name for layout in layouts for name in layout}):
        of_first = layouts[0].get(name)
        for number, layout in enumerate(layouts):
            if layout.get(name) != of_first:
                raise Error(Status.MISMATCH, f"{name} is {of_first or 'missing'} of {what} 0, and "
                            f"{layout.get(name, 'missing')} of {what} {number}")


def _joined(parts: Sequence[Batch], meta: Mapping[str, Any], names: Optional[Sequence[str]] = None) -> Batch:
    return Batch({name: torch.cat([part.tensors[name] for part in parts]) for name in names or parts[0].tensors},
                 {name: [value for part in parts for value in part.arrays[name]] for name in parts[0].arrays}, meta)
