"""Units of forward: modules whose parameters are gathered for their passes, and released after them."""

from __future__ import annotations

import math
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from troupe.errors import Error, invalid
from troupe.session import Session
from troupe.torch.parameters import Parameter

SHARDED = ("zero2", "zero3", "hsdp", "hfsdp")
PARAMETERS_SHARDED = ("zero3", "hsdp", "hfsdp")

Units = Union[None, Sequence[nn.Module], Sequence[type], Sequence[str]]


class Unit:
    """The parameters that are read in this module and nowhere else."""

    def __init__(self, name: str, module: nn.Module, parameters: list[Parameter]) -> None:
        self.name, self.module, self.parameters = name, module, parameters


def _outermost_list(model: nn.Module, elements: Mapping[int, int]) -> list[nn.Module]:
    """The children of the ModuleList with the most parameters that lies in no other; `elements` by identity of those."""
    best: list[nn.Module] = []
    most, within = 0, ""
    for name, module in model.named_modules():
        if within and name.startswith(within):
            continue
        if isinstance(module, nn.ModuleList):
            within = name + "."
            count = sum(elements.get(id(parameter), 0) for parameter in module.parameters())
            if count > most:
                best, most = list(module), count
    return best


def _modules_of(model: nn.Module, units: Units, elements: Mapping[int, int]) -> list[nn.Module]:
    """What `units` names: modules, their classes, or the names of their classes."""
    chosen: list[Any] = list(units) if units is not None else sorted(getattr(model, "_no_split_modules", None) or ())
    if not chosen:
        found = _outermost_list(model, elements) if units is None else []
    elif all(isinstance(unit, nn.Module) for unit in chosen):
        found = chosen
    else:
        found = [module for module in model.modules()
                 if any(type(module).__name__ == unit if isinstance(unit, str) else
                        isinstance(unit, type) and isinstance(module, unit) for unit in chosen)]
    if not found:
        raise invalid(f"{type(model).__name__} has no module among {chosen}" if chosen else
                      f"{type(model).__name__} has no ModuleList, so nothing says what to gather together: name the "
                      "modules, in the order of forward, or their classes in units=[...]")
    return found


def units_of(model: nn.Module, parameters: list[Parameter], units: Units) -> list[Unit]:
    """The units, in the order of forward; sets Parameter.unit. A parameter that is also read elsewhere, such as a tied
    embedding, belongs to none."""
    elements = {id(parameter.origin): math.prod(parameter.whole_shape) for parameter in parameters}
    modules = _modules_of(model, units, elements)
    names = {id(module): name for name, module in model.named_modules()}
    for module in modules:
        if id(module) not in names:
            raise invalid(f"{type(module).__name__} in units is not a module of {type(model).__name__}")
        inner = {id(child) for child in module.modules()} - {id(module)}
        for other in modules:
            if id(other) in inner:
                raise invalid(f"unit {names[id(other)]} lies within unit {names[id(module)]}; name one of the two")
    if len({id(module) for module in modules}) < len(modules):
        raise invalid("a module is named twice in units; a unit is used once in each pass")
    owners: dict[int, set[int]] = {}
    in_unit = {id(child): index for index, module in enumerate(modules) for child in module.modules()}
    for module in model.modules():
        for tensor in module.parameters(recurse=False):
            owners.setdefault(id(tensor), set()).add(in_unit.get(id(module), -1))
    found: list[Unit] = []
    for index, module in enumerate(modules):
        own = [parameter for parameter in parameters if owners[id(parameter.origin)] == {index}]
        if own:
            for parameter in own:
                parameter.unit = len(found)
            found.append(Unit(names[id(module)], module, own))
    return found


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of what a module returned."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors_in(vars(value))


class Gates:
    """Acquires units when their modules run: before forward by a hook of the module, before backward by one of what it
    returned. `phase` is idle, forward, backward or evaluation.

    Where parameters are sharded the session gathers each unit into whichever slot of its pool is free, but autograd
    keeps views, such as a transposed weight, from forward to backward. So a unit has storage of its own, which is
    filled by a copy when it is acquired, and is empty in between."""

    def __init__(self, session: Session, units: list[Unit], is_sharded: bool) -> None:
        self._session, self._units, self.is_sharded = session, units, is_sharded
        self._full: dict[int, torch.Tensor] = {}
        self._current: Optional[int] = None
        self.phase = "idle"
        self._hooks = []
        for index, unit in enumerate(units):
            self._hooks.append(unit.module.register_forward_pre_hook(self._before_forward(index), prepend=True))
            self._hooks.append(unit.module.register_forward_hook(self._after_forward(index)))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def empty(self) -> None:
        """After the session has the first values: the model keeps none."""
        if self.is_sharded:
            for unit in self._units:
                for parameter in unit.parameters:
                    parameter.tensor.data = parameter.nothing()

    def leave(self) -> None:
        """The session's memory is gone."""
        self._current, self.phase = None, "idle"
        self._full.clear()

    def enter(self, phase: str) -> None:
        self._release()
        self.phase = phase

    def _before_forward(self, index: int) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            if self.phase == "idle":
                if self.is_sharded:
                    raise invalid(f"{self._units[index].name} runs outside of a step, where its parameters are sharded; "
                                  "evaluate within `with trainer.evaluation():`, on all ranks alike")
                self._session.publish_all()
            else:
                self.acquire(index)
        return hook

    def _after_forward(self, index: int) -> Any:
        def before_backward(gradient: torch.Tensor) -> None:
            if self.phase in ("backward", "evaluation"):
                self.acquire(index)
            elif self.is_sharded:
                raise invalid(f"gradients reach {self._units[index].name} outside of step.backward(), where its "
                              "parameters are released; for torch.autograd.grad() within a lane choose ddp, zero1 or "
                              "zero2, or take it within `with trainer.evaluation():`")

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if self.phase in ("forward", "evaluation") and torch.is_grad_enabled():
                for tensor in tensors_in(output):
                    if tensor.requires_grad:
                        tensor.register_hook(before_backward)  # type: ignore[no-untyped-call]
        return hook

    def acquire(self, index: int) -> None:
        """Afterwards the unit's parameters may be read and, in backward, its gradients added."""
        if self._current == index:
            return
        self._release()
        try:
            self._session.acquire(index)
        except Error as error:
            raise Error(error.status, f"{self._units[index].name} (unit {index}): {error}") from None
        self._current = index
        for parameter in self._units[index].parameters:
            if self.is_sharded:
                self._fill(parameter)
            if self.phase == "backward" and not parameter.is_frozen:
                parameter.attach_gradient(self._session)

    def _fill(self, parameter: Parameter) -> None:
        full = self._full.get(parameter.number)
        if full is None:
            full = self._full[parameter.number] = torch.empty(
                parameter.shape, dtype=parameter.dtype, device=parameter.place.device)
        full.untyped_storage().resize_(full.numel() * full.element_size())
        full.copy_(parameter.values(self._session))
        parameter.tensor.data = full

    def _release(self) -> None:
        if self._current is None:
            return
        for parameter in self._units[self._current].parameters:
            parameter.detach_gradient()
            if self.is_sharded:
                parameter.tensor.data = parameter.nothing()
                self._full[parameter.number].untyped_storage().resize_(0)
        self._current = None

    def each(self) -> Iterable[Unit]:
        """All units, one after another, each acquired meanwhile."""
        for index, unit in enumerate(self._units):
            self.acquire(index)
            yield unit
        self._release()
