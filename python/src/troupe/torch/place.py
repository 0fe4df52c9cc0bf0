"""Where a model is, and the session's memory there as tensors."""

from __future__ import annotations

import ctypes
import os
from contextlib import nullcontext
from typing import Any, ContextManager, Optional, Sequence

import torch
from torch import nn

from troupe.errors import Error, Status, invalid
from troupe.session import Session


def view(memory: Any, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Memory of the host as a tensor of that shape, without a copy; it keeps the session alive."""
    if len(memory) == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


class Place:
    """The host. `option` is what the session calls it."""

    option = "host"

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def view(self, session: Session, address: int, size: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """That range of the session's memory as a tensor of that shape, without a copy; it keeps the session alive."""
        memory: Any = (ctypes.c_char * size).from_address(address)
        memory._session = session
        return view(memory, dtype, shape)

    def enter(self, session: Session) -> None:
        """From here on what PyTorch computes and what the session does come one after the other."""

    def leave(self) -> None:
        """To be called before the session ends."""

    def synchronize(self) -> None:
        """Waits until everything is computed."""

    def seed(self, seed: int) -> None:
        """Seeds PyTorch's generators, for dropout."""
        torch.default_generator.manual_seed(seed)

    def passing_back(self) -> ContextManager[Any]:
        """For backward(), whose hooks call the session."""
        return nullcontext()


class _Range:
    """Memory of a GPU, as PyTorch and others exchange it."""

    def __init__(self, session: Session, address: int, size: int) -> None:
        self._session = session
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


class Gpu(Place):
    """A GPU. While the trainer is open, the current stream of its thread is the one that the session orders its own
    work by; it waits for the stream that was current before, which waits for it when the trainer is closed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # "cuda" is the GPU of this rank's number on its host, and knows what to do where ranks share one.
        local = os.environ.get("LOCAL_RANK", "")
        is_own = local.isdigit() and int(local) % torch.cuda.device_count() == device.index
        self.option = "cuda" if is_own else f"cuda:{device.index}"
        self._before: Optional[torch.cuda.Stream] = None

    def view(self, session: Session, address: int, size: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        if size == 0:
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)
        return torch.as_tensor(_Range(session, address, size), device=self.device).view(dtype).view(tuple(shape))

    def enter(self, session: Session) -> None:
        stream = torch.cuda.ExternalStream(session.compute_stream(), device=self.device)  # type: ignore[no-untyped-call]
        if self._before is None:
            self._before = torch.cuda.current_stream(self.device)
        stream.wait_stream(self._before)
        torch.cuda.set_stream(stream)

    def leave(self) -> None:
        if self._before is not None:
            self.synchronize()
            torch.cuda.set_stream(self._before)
            self._before = None

    def synchronize(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()

    def seed(self, seed: int) -> None:
        super().seed(seed)
        torch.cuda.default_generators[self.device.index].manual_seed(seed)

    def passing_back(self) -> ContextManager[Any]:
        # A session belongs to one thread, and PyTorch has another one for each GPU.
        return torch.autograd.set_multithreading_enabled(False)


def place_of(model: nn.Module, option: Optional[str]) -> Place:
    """Where all of the model's tensors are; `option` is the session's option "device", if it was given, which says where
    a model will be that has no memory yet."""
    named = [*model.named_parameters(), *model.named_buffers()]
    found = {tensor.device: name for name, tensor in reversed(named) if tensor.device.type != "meta"}
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise invalid(f"{first} is on {one} and {second} on {other}; a model is on one device: move it with model.to()")
    try:
        wanted = None if option is None else torch.device("cpu" if option == "host" else option)
    except RuntimeError:
        raise invalid(f"expected the device host, cuda or cuda:<index>, found {option!r}") from None
    device = next(iter(found), wanted or torch.device("cpu"))
    if wanted is not None and (wanted.type != device.type or wanted.index not in (None, device.index)):
        raise invalid(f"expected the model on {wanted}, as device={option!r} says, found it on {device}; move it with "
                      f"model.to({str(wanted)!r}), or leave out device")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type not in ("cpu", "cuda"):
        raise Error(Status.UNAVAILABLE, f"the model is on {device}; troupe.torch trains on the CPU and on NVIDIA's GPUs: "
                    "move it with model.cpu() or model.cuda()")
    return Place() if device.type == "cpu" else Gpu(device)
