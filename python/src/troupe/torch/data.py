"""Which samples a lane of a step learns from."""

from __future__ import annotations

from typing import Iterator, Sequence

import torch

from troupe.errors import invalid


class LaneBatches(torch.utils.data.Sampler[list[int]]):
    """For DataLoader(batch_sampler=...): the batches of the lanes `own` in every step from `first` on, without end. The
    samples of a lane depend on the step and the lane only, so that they are the same on any number of ranks and after a
    resume. Every epoch has another order; what does not fill all lanes at its end is left out."""

    def __init__(self, size: int, batch: int, lanes: int, own: Sequence[int], first: int, seed: int) -> None:
        if size < batch * lanes or batch < 1:
            raise invalid(f"a step takes {lanes} lanes of {batch} samples, and there are {size}; take smaller batches, "
                          "of at least one sample, or fewer lanes")
        self._size, self._batch, self._lanes, self._own = size, batch, lanes, tuple(own)
        self._first, self._seed = first, seed

    def __iter__(self) -> Iterator[list[int]]:
        step, steps = self._first, self._size // (self._batch * self._lanes)
        while True:
            order = torch.randperm(self._size, generator=torch.Generator().manual_seed(
                (self._seed * 0x9E3779B97F4A7C15 + step // steps) % 2**63))
            for in_epoch in range(step % steps, steps):
                for lane in self._own:
                    begin = (in_epoch * self._lanes + lane) * self._batch
                    yield order[begin:begin + self._batch].tolist()
                step += 1
