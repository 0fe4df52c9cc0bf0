"""The tensors of a model, and the session's memory as tensors."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional, Sequence

import torch
from torch import nn

from troupe.errors import Error, Status, invalid
from troupe.session import Options, Session
from troupe.torch.place import Place

PARAMETER_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
BUFFER_DTYPES = {**PARAMETER_DTYPES, torch.float64: "f64", torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8",
                 torch.bool: "u8"}


class Parameter:
    """A parameter of the model, which may be tied: one tensor under several names counts once, under the first.
    `number` is the session's, `unit` that of forward which alone reads it; `origin` is the model's tensor of which it
    is a part or the whole."""

    is_expert = False

    def __init__(self, name: str, tensor: nn.Parameter, place: Place, shape: Optional[Sequence[int]] = None) -> None:
        self.name, self.place = name, place
        self.tensor = self.origin = tensor
        self.shape = self.whole_shape = tuple(tensor.shape if shape is None else shape)
        self.dtype = tensor.dtype
        self.is_frozen = not tensor.requires_grad
        self.number = -1
        self.unit: Optional[int] = None
        self.group: Optional[int] = None
        self.slot: Optional[torch.Tensor] = None  # where the gradient of the current lane is added, in f32
        self.is_ready = False
        self.attached: Optional[torch.Tensor] = None  # where the model reads it, if the session keeps it whole
        self._views: dict[tuple[str, int], torch.Tensor] = {}

    def check(self) -> None:
        """Raises an Error if the session cannot keep it."""
        if self.tensor.layout != torch.strided:
            raise Error(Status.UNAVAILABLE, f"parameter {self.name} is {self.tensor.layout}; make it dense")
        if self.dtype not in PARAMETER_DTYPES:
            raise Error(Status.UNAVAILABLE, f"parameter {self.name} is {self.dtype}; expected float32, bfloat16 or "
                        "float16: convert the model, for example with model.float()")

    def part_of(self, values: torch.Tensor) -> torch.Tensor:
        """This rank's part of the model's tensor with these values."""
        return values

    def whole(self, session: Session) -> torch.Tensor:
        """The model's tensor, while the parameter may be read: the session's memory, but of experts a copy."""
        return self.values(session)

    def values(self, session: Session) -> torch.Tensor:
        """What the session has of it now, in its shape and dtype."""
        return self._view("parameter", session, self.dtype)

    def gradient(self, session: Session) -> torch.Tensor:
        """Where to add this lane's gradient, in its shape and f32."""
        return self._view("gradient", session, torch.float32)

    def _view(self, kind: str, session: Session, dtype: torch.dtype) -> torch.Tensor:
        address, size = getattr(session, kind + "_memory")(self.number)
        key = kind, address
        if key not in self._views:
            self._views[key] = self.place.view(session, address, size, dtype, self.shape)
        return self._views[key]

    def attach_gradient(self, session: Session) -> None:
        """Autograd adds an f32 gradient straight to the session's memory; others arrive as tensors of their own."""
        self.slot, self.is_ready = self.gradient(session), False
        self.tensor.grad = self.slot if self.dtype == torch.float32 else None

    def detach_gradient(self) -> None:
        self.slot = self.tensor.grad = None

    def take_gradient(self) -> None:
        """What autograd has accumulated is now in the session's memory."""
        found = self.tensor.grad
        if found is None or self.slot is None:
            return
        if found.layout != torch.strided or found.data_ptr() != self.slot.data_ptr():
            self.slot.add_(found)
        self.tensor.grad = None

    def check_unchanged(self) -> None:
        """Between steps, that nobody has made it something else than it was when the trainer began."""
        if self.tensor.requires_grad == self.is_frozen:
            raise invalid(f"requires_grad of parameter {self.name} has changed; set it before the trainer is made, "
                          "which keeps no gradients and no optimizer state for frozen parameters")
        if self.attached is not None and self.tensor.data_ptr() != self.attached.data_ptr():
            raise invalid(f"parameter {self.name} is no longer in the session's memory, as after model.to() or an "
                          "assignment to its data; convert the model before the trainer is made")

    def attach(self, session: Session) -> None:
        """The model's tensor becomes a view of the session's memory."""
        self.attached = self.tensor.data = self.values(session)

    def leave(self) -> None:
        """The session's memory is gone, and with it the values."""
        self.detach_gradient()
        self.attached = None
        self._views.clear()
        self.tensor.data = self.nothing()

    def nothing(self) -> torch.Tensor:
        """What the model has while the session has its values: a tensor without elements."""
        return torch.empty(0, dtype=self.dtype, device=self.place.device)

    def write(self, session: Session, values: torch.Tensor, state: Optional[str] = None) -> None:
        """These values, in the parameter's shape, become the session's as far as this rank keeps them: those of the
        parameter itself, or of a state of its optimizer."""
        flat = values.detach().reshape(-1)

        def fill(first: int, values: Any) -> None:
            if len(values) > 0:
                torch.frombuffer(values, dtype=torch.float32).copy_(flat[first:first + len(values)])

        if state is None:
            session.write_parameter(self.number, fill)
        else:
            session.write_state(self.number, state, fill)


class Buffer:
    """A persistent buffer of the model, saved and restored by way of memory of its own: forward may replace it."""

    def __init__(self, name: str, owner: nn.Module, attribute: str, tensor: torch.Tensor, place: Place) -> None:
        self.name, self._owner, self._attribute, self._place = name, owner, attribute, place
        if tensor.dtype not in BUFFER_DTYPES:
            raise Error(Status.UNAVAILABLE, f"buffer {name} is {tensor.dtype}; expected a dtype of "
                        f"{', '.join(str(dtype)[6:] for dtype in BUFFER_DTYPES)}: convert it, or register it with "
                        "persistent=False")
        self.kept = tensor.detach().clone(memory_format=torch.contiguous_format)

    @property
    def tensor(self) -> torch.Tensor:
        found = getattr(self._owner, self._attribute)
        if not isinstance(found, torch.Tensor) or (found.shape, found.dtype) != (self.kept.shape, self.kept.dtype):
            raise invalid(f"buffer {self.name} was {self.kept.dtype} {tuple(self.kept.shape)} and is something else "
                          "now; a buffer keeps its shape and dtype")
        return found

    def add_to(self, options: Options, rank: int) -> None:
        options.add_tensor(self.name, self.kept, self.kept.data_ptr(), BUFFER_DTYPES[self.kept.dtype],
                           self.kept.shape, replica=rank)

    def keep(self) -> None:
        """Before a save."""
        self.kept.copy_(self.tensor.detach())
        self._place.synchronize()

    def restore(self) -> None:
        with torch.no_grad():
            self.tensor.copy_(self.kept)


def parameters_of(model: nn.Module, place: Place, experts: Iterable[Parameter],
                  shapes: Mapping[int, Sequence[int]]) -> list[Parameter]:
    """In the model's order, which should be that of forward; tied ones once, and experts' one by one. `shapes` are those
    of tensors that have no memory yet, by identity."""
    found: list[Parameter] = []
    parts: dict[int, list[Parameter]] = {}
    for part in experts:
        parts.setdefault(id(part.origin), []).append(part)
    for name, tensor in model.named_parameters():
        if isinstance(tensor, nn.parameter.UninitializedParameter) or type(tensor.data) is not torch.Tensor:
            raise Error(Status.UNAVAILABLE, f"parameter {name} is a {type(tensor).__name__} of "
                        f"{type(tensor.data).__name__}; expected a plain tensor: give the model before anything shards "
                        "or quantises it, and after its lazy modules have seen an input")
        for parameter in parts.get(id(tensor), [Parameter(name, tensor, place, shapes.get(id(tensor)))]):
            parameter.check()
            found.append(parameter)
    if not any(not parameter.is_frozen for parameter in found):
        raise invalid(f"{type(model).__name__} has no parameter that requires a gradient, so nothing can be trained")
    return found


def buffers_of(model: nn.Module, place: Place) -> list[Buffer]:
    """The persistent ones; what several modules share counts once."""
    persistent = set(model.state_dict(keep_vars=True))
    found = []
    for name, tensor in model.named_buffers():
        if name in persistent:
            path, _, attribute = name.rpartition(".")
            found.append(Buffer(name, model.get_submodule(path), attribute, tensor, place))
    return found


def first_rank_with_values(session: Session, place: Place, group: str, has_values: bool) -> Optional[int]:
    """By all ranks alike."""
    for rank in range(session.world_size):
        told = torch.tensor([int(has_values)], dtype=torch.uint8, device=place.device)
        session.broadcast(group, told.data_ptr(), 1, rank)
        if told.item():
            return rank
    return None


def share_first_values(session: Session, group: str, tensors: Iterable[torch.Tensor], first: int) -> None:
    """All ranks get the values of rank `first`."""
    for tensor in tensors:
        values = tensor.detach()
        sent = values if values.is_contiguous() else values.contiguous()
        if sent.numel() > 0:
            session.broadcast(group, sent.data_ptr(), sent.numel() * sent.element_size(), first)
        if sent is not values:
            values.copy_(sent)
