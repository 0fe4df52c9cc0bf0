"""A trainer's optimizer: the options of its groups, and what it keeps, as torch.distributed.checkpoint.state_dict gives
and takes it, by the model's names."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Sequence

import torch

from troupe.errors import Error, Status, invalid
from troupe.session import Options, Session
from troupe.torch.dtensors import whole_of
from troupe.torch.parameters import Parameter

_CLASSES = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_MOMENTS = ("exp_avg", "exp_avg_sq")
# What decides a step, besides its rate, which is the trainer's own.
_DECIDING = ("betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")
# What a group of parameters may have that its trainer has too, and the names that the session knows.
_OF_GROUPS = {"optimizer": "optimizer", "eps": "epsilon", "weight_decay": "weight-decay", "momentum": "momentum",
              "nesterov": "nesterov", "lr_factor": "learning-rate-factor", "muon_scale": "muon-scale",
              "newton_schulz_steps": "newton-schulz-steps"}


def _optimizer_options(chosen: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options by the session's names."""
    for name, value in chosen.items():
        if name == "betas":
            yield from zip(("beta1", "beta2"), (float(beta) for beta in value))
        elif name not in _OF_GROUPS:
            raise invalid(f"parameter groups have no option {name}; they have params, betas, {', '.join(_OF_GROUPS)}")
        elif value is not None:
            yield _OF_GROUPS[name], value


def add_groups(options: Options, by_tensor: Mapping[int, Sequence[Parameter]], defaults: Mapping[str, Any],
               groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tells the session the options of each group, of which the first has all that no other one has, and parameters
    which is theirs. `by_tensor` is what the session has of each of the model's tensors. Returns the options."""
    chosen: list[dict[str, Any]] = []
    for number, group in enumerate([{}, *groups]):
        own = dict(group)
        tensors = own.pop("params", ())
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            if id(tensor) not in by_tensor:
                raise invalid(f"groups[{number - 1}] has a tensor of shape {tuple(tensor.shape)} that is not a "
                              "parameter of the model")
            for parameter in by_tensor[id(tensor)]:
                if parameter.group is not None:
                    raise invalid(f"parameter {parameter.name} is in two groups")
                parameter.group = number
        chosen.append({**defaults, **own})
        for name, value in _optimizer_options(chosen[-1]):
            options.set_of_group(number, name, value)
    return chosen


def _is_like(option: Any, other: Any) -> bool:
    return bool(tuple(option) == tuple(other) if isinstance(option, (list, tuple)) else option == other)


class OptimizerState:
    """`group` has all ranks, `parts` are those of each trainable tensor of the model on this rank, by the tensor's name,
    and `chosen` the options of each group of parameters. UNAVAILABLE names a parameter whose state torch's Adam and AdamW have no place for."""

    def __init__(self, session: Session, group: str, parts: Mapping[str, Sequence[Parameter]],
                 chosen: Sequence[Mapping[str, Any]]) -> None:
        self._session, self._group, self._parts, self._chosen = session, group, parts, chosen
        for name, (part, *_) in parts.items():
            kind = chosen[part.group or 0]["optimizer"]
            if kind not in _CLASSES:
                raise Error(Status.UNAVAILABLE, f"{name} is stepped by {kind}; PyTorch's form is known of "
                            f"{' and '.join(_CLASSES)} here: save with trainer.save()")
            if part.dtype != torch.float32:
                raise Error(Status.UNAVAILABLE, f"{name} is {part.dtype} and has an fp32 master, for which PyTorch's form "
                            "has no place; save with trainer.save()")

    def read(self, rate: float, made_of: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        """With what `made_of` makes of each moment, which is whole only meanwhile."""
        steps = self._session.steps_taken()
        return {"state": {name: {"step": torch.tensor(float(steps[parts[0].number])),
                                 **{moment: made_of(self._whole(parts, moment)) for moment in _MOMENTS}}
                          for name, parts in self._parts.items()},
                "param_groups": self._groups(rate)}

    def write(self, state: Mapping[str, Any]) -> None:
        given = state.get("state", {})
        if given.keys() != self._parts.keys():
            raise invalid(f"expected the state of all trainable parameters by their names; missing are "
                          f"{sorted(self._parts.keys() - given.keys())}, unknown are "
                          f"{sorted(given.keys() - self._parts.keys(), key=str)}")
        for name, (part, *_) in self._parts.items():
            if given[name].keys() != {"step", *_MOMENTS}:
                raise invalid(f"expected step, {', '.join(_MOMENTS)} of {name}, found {', '.join(sorted(given[name]))}")
            for moment in _MOMENTS:
                if tuple(given[name][moment].shape) != part.whole_shape:
                    raise invalid(f"{moment} of {name} has the shape {tuple(given[name][moment].shape)}; expected "
                                  f"{part.whole_shape}")
        self._expect_alike(state.get("param_groups", ()))
        steps: dict[int, int] = {}
        with torch.no_grad():
            for name, parts in self._parts.items():
                for moment in _MOMENTS:
                    whole = whole_of(given[name][moment])
                    for part in parts:
                        part.write(self._session, part.part_of(whole), moment)
                steps.update((part.number, int(given[name]["step"])) for part in parts)
        self._session.write_steps_taken(steps)

    def _whole(self, parts: Sequence[Parameter], moment: str) -> torch.Tensor:
        whole = torch.zeros(parts[0].whole_shape, device=parts[0].place.device)
        for part in parts:
            flat = part.part_of(whole).view(-1)

            def take(first: int, values: Any, to: torch.Tensor = flat) -> None:
                to[first:first + len(values)] = torch.frombuffer(values, dtype=torch.float32)

            self._session.read_state(part.number, moment, take)
        if self._session.world_size > 1 and whole.numel() > 0:
            self._session.greatest_bytes(self._group, whole.data_ptr(), whole.numel() * whole.element_size())
        return whole

    def _groups(self, rate: float) -> list[dict[str, Any]]:
        """With all that the installed PyTorch has in a group."""
        found = []
        for number, options in enumerate(self._chosen):
            names = [name for name, parts in self._parts.items() if (parts[0].group or 0) == number]
            if names:
                made: Any = _CLASSES[options["optimizer"]](
                    [torch.zeros(())], lr=rate * (options.get("lr_factor") or 1.0), betas=tuple(options["betas"]),
                    eps=options["eps"], weight_decay=options["weight_decay"])
                found.append({**made.state_dict()["param_groups"][0], "params": names})
        return found

    def _expect_alike(self, groups: Sequence[Mapping[str, Any]]) -> None:
        own = {name: group for group in self._groups(0.0) for name in group["params"]}
        for group in groups:
            for name in group["params"]:
                for option in _DECIDING:
                    expected = own.get(name, {}).get(option)
                    if expected is not None and option in group and not _is_like(group[option], expected):
                        raise invalid(f"the state of {name} comes from an optimizer with {option}={group[option]}, and the "
                                      f"trainer's has {expected}; make the trainer with the same, or leave out param_groups")
