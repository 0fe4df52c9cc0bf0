"""Models that were built without memory, under torch.device("meta")."""

from __future__ import annotations

from typing import Callable, Iterator, Optional, Sequence

import torch
from torch import nn

from troupe.errors import invalid
from troupe.torch.experts import is_experts

Init = Optional[Callable[[nn.Module], None]]


def _is_meta(tensor: Optional[torch.Tensor]) -> bool:
    return tensor is not None and tensor.device.type == "meta"


def _own(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


class Unfilled:
    """The modules of `model` that have tensors without memory. Those with buffers or experts get memory and values at
    once; parameters of others have no elements until fill(), and `shapes` says which they will have, by identity."""

    def __init__(self, model: nn.Module, device: torch.device, init: Init) -> None:
        self._model, self._device, self._init = model, device, init
        self.shapes: dict[int, tuple[int, ...]] = {}
        self._modules: list[tuple[str, nn.Module]] = []
        for name, module in model.named_modules():
            if not any(map(_is_meta, _own(module))):
                continue
            if any(map(_is_meta, module.buffers(recurse=False))) or is_experts(module):
                module.to_empty(device=device, recurse=False)
                self._give_values(name, module, _own(module))
                continue
            for parameter in module.parameters(recurse=False):
                if _is_meta(parameter):
                    self.shapes[id(parameter)] = tuple(parameter.shape)
                    nothing = nn.Parameter(torch.empty(0, dtype=parameter.dtype, device=device),
                                           requires_grad=parameter.requires_grad)
                    torch.utils.swap_tensors(parameter, nothing)  # type: ignore[no-untyped-call]
            self._modules.append((name, module))

    def fill(self, gives_values: bool) -> Iterator[Sequence[nn.Parameter]]:
        """Module by module: the parameters, which have memory while they are looked at, and values if this rank gives
        them. Tied ones come with the first module that has them."""
        filled: set[int] = set()
        for name, module in self._modules:
            own = [parameter for parameter in module.parameters(recurse=False)
                   if id(parameter) in self.shapes and id(parameter) not in filled]
            if not own:
                continue
            filled.update(map(id, own))
            for parameter in own:
                parameter.data = torch.empty(self.shapes[id(parameter)], dtype=parameter.dtype,
                                             device=self._device)
            if gives_values:
                self._give_values(name, module, own)
            yield own
            for parameter in own:
                parameter.data = torch.empty(0, dtype=parameter.dtype, device=self._device)

    def _give_values(self, name: str, module: nn.Module, tensors: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for tensor in tensors:
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
            how = self._way(name, module)
            how(module)
            for tensor in tensors:
                if tensor.is_floating_point() and bool(tensor.isnan().any()):
                    raise invalid(f"a tensor {tuple(tensor.shape)} of module {name or 'the model'}, a "
                                  f"{type(module).__name__}, was built on the meta device and has no values after "
                                  f"{getattr(how, '__qualname__', 'init')}(): give Trainer an init=... that fills what "
                                  "this module has, or build the module on the CPU")

    def _way(self, name: str, module: nn.Module) -> Callable[[nn.Module], object]:
        if self._init is not None:
            return self._init
        of_model = getattr(self._model, "_init_weights", None)  # of transformers
        if callable(of_model):
            return of_model  # type: ignore[no-any-return]
        own = getattr(type(module), "reset_parameters", None) or getattr(type(module), "_reset_parameters", None)
        if own is None:
            raise invalid(f"module {name or 'the model'}, a {type(module).__name__}, was built on the meta device and has "
                          "no reset_parameters(); give Trainer an init=... that fills what a module has")
        return own  # type: ignore[no-any-return]
