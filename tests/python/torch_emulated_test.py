#!/usr/bin/env python3
"""The way of troupe.torch on a GPU, without one: a session on the emulated device of tests/cuda_emulation, whose memory is
the host's, and PyTorch on the CPU. What PyTorch does on a GPU is stood in for: tensors over the device's memory, streams,
and generators. Losses and values are those of the host in all their bits. TROUPE_LIBRARY is that of the target
rehearsal_shared."""

import ctypes
import os
import tempfile
import unittest
from types import SimpleNamespace

import ranks  # first: it says where troupe is
import models

import torch

from troupe import _c
from troupe.torch import Trainer, place, trainer

STEPS = 3


class Stream:
    """PyTorch's own does what it is given behind what the session has put there; here the CPU waits instead."""

    def __init__(self, number):
        self.number = number

    def synchronize(self):
        if self.number:
            status = _c.library().troupe_rehearsal_synchronize(ctypes.c_void_p(self.number))
            if status != 0:
                raise AssertionError(f"the emulated stream failed with {status}")

    def wait_stream(self, other):
        other.synchronize()


class Cuda:
    """What stands in for torch.cuda."""

    def __init__(self):
        self.default_generators = [torch.Generator()]
        self.before = self.stream = Stream(0)

    def device_count(self):
        return 1

    def ExternalStream(self, number, device):  # noqa: N802  pylint: disable=invalid-name
        return Stream(number)

    def current_stream(self, device):
        return self.stream

    def set_stream(self, stream):
        self.stream = stream


def as_tensor(memory, device):
    """Bytes over the memory that the CUDA array interface names."""
    found = memory.__cuda_array_interface__
    (size,), (address, is_read_only) = found["shape"], found["data"]
    assert (found["typestr"], found["version"], is_read_only) == ("|u1", 3, False)
    view = (ctypes.c_char * size).from_address(address)
    view._session = memory
    return torch.frombuffer(view, dtype=torch.uint8)


class EmulatedGpu(place.Gpu):
    """Where PyTorch's tensors are on the CPU."""

    def __init__(self):
        super().__init__(SimpleNamespace(index=0))
        self.device = torch.device("cpu")

    def seed(self, seed):
        place.Place.seed(self, seed)


def on_emulated_gpu():
    """From here on models of this process are on it."""
    cuda = Cuda()
    place.torch = SimpleNamespace(**{**vars(torch), "cuda": cuda, "as_tensor": as_tensor})
    trainer.place_of = lambda model, option: EmulatedGpu()
    call = _c.call

    def call_and_wait(function, *arguments):
        call(function, *arguments)
        if function != "on_compute_stream":
            cuda.stream.synchronize()

    _c.call = call_and_wait
    return cuda


class Normed(torch.nn.Module):
    """With buffers, and a parameter of one element."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 9), torch.nn.Linear(9, 6)])
        self.norm = torch.nn.BatchNorm1d(6)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.scale * self.norm(x)


def loss_of(model, step, lane):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + lane)).to(model.scale.dtype)
    return (model(x) - x).square().float().mean()


def bits_of_moments(trainer):
    return models.bits({f"{name} {kept}": values for name, entry in trainer.optimizer_state_dict()["state"].items()
                        for kept, values in entry.items()})


def trained(is_emulated, strategy, dtype, folder):
    """Losses and the state in all their bits, moments included, what a save and a restore leave of it, and the model's
    after close()."""
    cuda = on_emulated_gpu() if is_emulated else None
    options = {"strategy": strategy, "lanes": 2, "lr": 1e-2, "clip_norm": 1.0, "checkpoints": folder}
    model = Normed().to(dtype)
    with Trainer(model, **options) as first:
        losses = models.train(first, loss_of, STEPS)
        state = models.bits(first.state_dict())
        moments = bits_of_moments(first) if dtype == torch.float32 else None
        kept = first.optimizer_state_dict() if moments else None
        first.save()
        first.wait_saves()
        if cuda is not None and cuda.stream.number == 0:
            raise AssertionError("the session's stream is not the current one")
    closed = models.bits(model.state_dict())
    if cuda is not None and cuda.stream is not cuda.before:
        raise AssertionError("the stream from before is not current again")
    with Trainer(Normed().to(dtype), **options) as second:
        second.restore()
        restored = models.bits(second.state_dict())
    loaded = moments
    if kept:
        with Trainer(Normed(), **options) as third:
            third.load_optimizer_state_dict(kept)
            loaded = bits_of_moments(third)
    return [loss.hex() for loss in losses], state, moments, closed == state, restored == state, loaded == moments


@unittest.skipUnless("emulated" in os.environ.get("TROUPE_LIBRARY", ""), "TROUPE_LIBRARY has no emulated device")
class OnAnEmulatedGpu(unittest.TestCase):
    def test_losses_and_state_are_those_of_the_host(self):
        for strategy in ("ddp", "zero1", "zero2", "zero3"):
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(strategy=strategy, dtype=dtype), tempfile.TemporaryDirectory() as folder:
                    host, emulated = (ranks.results(1, trained, is_emulated, strategy, dtype, f"{folder}/{is_emulated}")[0]
                                      for is_emulated in (False, True))
                    self.assertEqual(emulated, host)
                    self.assertEqual(emulated[3:], (True, True, True))


if __name__ == "__main__":
    unittest.main()
