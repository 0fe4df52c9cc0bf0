"""Experts of a model, such as those of Qwen3-MoE in transformers, on all ranks of group "ep": the model's own router
chooses, the session moves rows, and the model's own module computes each expert."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Sequence

import torch
from torch import nn

from troupe.errors import invalid
from troupe.session import Options, Session
from troupe.torch.parameters import Parameter
from troupe.torch.place import Place, view


class ExpertParameter(Parameter):
    """What one expert has of a tensor [experts, ...]. Its gradients are added by source, where it is used."""

    is_expert = True

    def __init__(self, module: "ExpertModule", name: str, origin: nn.Parameter, expert: int) -> None:
        values = nn.Parameter(origin.detach()[expert].clone(), requires_grad=origin.requires_grad)
        super().__init__(f"{module.name}.{name}.{expert}", values, Place())
        self.origin, self.expert, self.whole_shape = origin, expert, tuple(origin.shape)
        self._module, self._name = module, name

    def part_of(self, values: torch.Tensor) -> torch.Tensor:
        return values[self.expert]

    def whole(self, session: Session) -> torch.Tensor:
        return self._module.whole(session, self._name)

    def attach_gradient(self, session: Session) -> None:
        self.is_ready = False

    def detach_gradient(self) -> None:
        pass

    def check_unchanged(self) -> None:
        if self.origin.requires_grad == self.is_frozen:
            raise invalid(f"requires_grad of parameter {self.name} has changed; set it before the trainer is made")


def is_experts(module: nn.Module) -> bool:
    """Experts as transformers has them: forward(tokens, top_k_index, top_k_weights), and tensors with an axis of experts."""
    own = dict(module.named_parameters())
    count = getattr(module, "num_experts", None)
    return (isinstance(count, int) and any(tensor.ndim == 3 for tensor in own.values()) and
            all(tensor.ndim >= 2 and len(tensor) == count and "." not in name for name, tensor in own.items()))


class ExpertModule:
    """A module of experts, `first` to `first` + `count` of which are this rank's. While the trainer is open its forward
    goes to all ranks of the group."""

    def __init__(self, name: str, module: nn.Module, choices: int, tokens: int, ranks: int, rank: int) -> None:
        self.name, self.module, self.choices, self.tokens, self.ranks = name, module, choices, tokens, ranks
        self.experts = int(module.num_experts)  # type: ignore[arg-type]
        if self.experts % ranks != 0:
            raise invalid(f"{name} has {self.experts} experts, which {ranks} ranks cannot share evenly; let "
                          "expert_parallel divide their number")
        self.count = self.experts // ranks
        self.first = rank * self.count
        self._names = [each for each, _ in module.named_parameters()]
        self.parameters = {
            (each, expert): ExpertParameter(self, each, tensor, expert)
            for each, tensor in module.named_parameters() for expert in range(self.first, self.first + self.count)}
        self._computes_one = False
        self._mode: Callable[[], str] = lambda: "idle"

    def join(self, session: Session, layer: int, mode: Callable[[], str]) -> None:
        """After the first values; `mode` says which pass it is."""
        self._session, self._layer, self._mode = session, session.experts(layer), mode
        for parameter in self.parameters.values():
            parameter.origin.data = torch.empty(0, dtype=parameter.dtype)
        self._original: Callable[..., torch.Tensor] = self.module.forward
        self.module.forward = self._forward

    def leave(self) -> None:
        """Before the session ends, or when it has: what autograd still holds of it is not freed then."""
        self.module.__dict__.pop("forward", None)
        self._layer.end()

    def belongs_to(self, rank: int) -> bool:
        """Whether that rank of the job has these experts."""
        return self.first == rank % self.ranks * self.count

    def _forward(self, tokens: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if self._computes_one:
            return self._original(tokens, index, weights)
        if index.shape[-1] != self.choices:
            raise invalid(f"{self.name}: expected {self.choices} choices of each token, found {index.shape[-1]}")
        if len(index) > self.tokens:
            raise invalid(f"{self.name} takes up to expert_tokens={self.tokens} tokens of a microbatch, found "
                          f"{len(index)}; give the trainer the most that any microbatch has")
        routing = Routing(self, index)
        anchor = torch.zeros((), requires_grad=torch.is_grad_enabled() and self._is_trained())
        slots: torch.Tensor = _Exchange.apply(self, routing, tokens[routing.token_of_slot], anchor)
        if routing.slots < index.numel():  # what has no slot reads the row of zeros behind the last one
            slots = nn.functional.pad(slots, (0, 0, 0, 1))
        chosen = slots[routing.slot_of_choice] * weights.unsqueeze(-1)
        return chosen.sum(dim=1).to(tokens.dtype)

    def _is_trained(self) -> bool:
        return not all(parameter.is_frozen for parameter in self.parameters.values())

    def own(self, expert: int) -> list[ExpertParameter]:
        """The parameters of an expert here, by its number here."""
        return [self.parameters[name, self.first + expert] for name in self._names]

    def one(self, expert: int, tensors: Sequence[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """What an expert here makes of rows: the module's own forward, as if it had no other."""
        index = torch.zeros(len(rows), 1, dtype=torch.long)
        self._computes_one, self.module.num_experts = True, 1  # type: ignore[assignment]
        try:
            found: torch.Tensor = torch.func.functional_call(
                self.module, {name: tensor.unsqueeze(0) for name, tensor in zip(self._names, tensors)},
                (rows, index, torch.ones(len(rows), 1, dtype=rows.dtype)))
            return found
        finally:
            self._computes_one, self.module.num_experts = False, self.experts  # type: ignore[assignment]

    def add_gradients(self, expert: int, source: int, gradients: Iterable[Optional[torch.Tensor]]) -> None:
        for parameter, gradient in zip((each for each in self.own(expert) if not each.is_frozen), gradients):
            if gradient is not None:
                view(self._session.gradient_of_source(parameter.number, source), torch.float32,
                     parameter.shape).add_(gradient)

    def backward_ends(self) -> None:
        for parameter in self.parameters.values():
            if not parameter.is_frozen:
                parameter.is_ready = True
                self._session.gradient_ready(parameter.number)

    def expect_backward(self) -> None:
        if self._mode() != "backward":
            raise invalid("gradients reach experts outside of step.backward(), which exchanges them with other ranks; "
                          "call step.backward(loss) within a lane")

    def whole(self, session: Session, name: str) -> torch.Tensor:
        """[experts, ...], by all ranks of the group alike, while this rank's may be read."""
        own = [self.parameters[name, self.first + expert].values(session) for expert in range(self.count)]
        found = torch.empty((self.experts, *own[0].shape), dtype=own[0].dtype)
        torch.stack(own, out=found[self.first:self.first + self.count])
        for member, part in enumerate(found.chunk(self.ranks)):
            if self.ranks > 1:
                session.broadcast("ep", part.data_ptr(), part.numel() * part.element_size(), member)
        return found


class Routing:
    """Where the tokens of a microbatch go, freed when autograd has no more use for it."""

    def __init__(self, module: ExpertModule, index: torch.Tensor) -> None:
        tokens, choices = index.shape
        # The session chooses by logits: these make it choose what the model's router has chosen, in that order.
        logits = torch.full((tokens, module.experts), -8.0)
        logits.scatter_(1, index, torch.arange(choices, 0, -1.0).expand(tokens, -1))
        self._layer = module._layer
        self.handle = self._layer.route(logits.data_ptr(), tokens)
        found = self.handle.contents
        self.slots, self.received = found.slots, found.received
        self.token_of_slot = _numbers(found.choice_of_slot, self.slots) // choices
        self.slot_of_choice = _numbers(found.slot_of_choice, tokens * choices).view(tokens, choices)
        self.products = [(rows.expert, rows.source, rows.first, rows.first + rows.count)
                         for rows in found.products[:found.product_count] if rows.count > 0]

    def out(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows of slots [slots, width], at their experts: [received, width]."""
        slots = slots.contiguous()
        rows = slots.new_empty(self.received, slots.shape[1])
        self._layer.dispatch(self.handle, slots.data_ptr(), rows.data_ptr(), slots.shape[1] * slots.element_size())
        return rows

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.contiguous()
        slots = rows.new_empty(self.slots, rows.shape[1])
        self._layer.combine(self.handle, rows.data_ptr(), slots.data_ptr(), rows.shape[1] * rows.element_size())
        return slots

    def __del__(self) -> None:
        handle = self.__dict__.pop("handle", None)
        if handle:
            self._layer.free(handle)


def _numbers(memory: Any, count: int) -> torch.Tensor:
    return torch.tensor(memory[:count], dtype=torch.long)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Exchange(torch.autograd.Function):
    """Rows of slots, to their experts, through them and back."""

    @staticmethod
    def forward(context: Any, module: ExpertModule, routing: Routing, slots: torch.Tensor,
                anchor: torch.Tensor) -> torch.Tensor:
        rows = routing.out(slots.detach())
        results, products = torch.empty_like(rows), []
        keeps = any(context.needs_input_grad)
        for expert, source, begin, end in routing.products:
            inputs = rows[begin:end].requires_grad_(keeps)
            tensors = [parameter.tensor for parameter in module.own(expert)]
            # Activation checkpoints around this module do not reach into it: they would go through it once per product.
            with torch.set_grad_enabled(keeps), torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
                result = module.one(expert, tensors, inputs)
            results[begin:end] = result.detach()
            products.append((result, inputs))
        context.module, context.routing, context.products = module, routing, products
        return routing.back(results)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        module, routing, products = context.module, context.routing, context.products
        module.expect_backward()
        if products is None:
            raise invalid("backward of experts was called twice; each lane has one backward")
        context.products = None
        d_results = routing.out(gradient)
        d_rows = torch.empty_like(d_results)
        for (expert, source, begin, end), (result, inputs) in zip(routing.products, products):
            trained = [parameter.tensor for parameter in module.own(expert) if not parameter.is_frozen]
            d_inputs, *d_trained = torch.autograd.grad(result, [inputs, *trained], d_results[begin:end],
                                                       allow_unused=True)
            d_rows[begin:end] = d_inputs
            module.add_gradients(expert, source, d_trained)
        d_slots = routing.back(d_rows) if context.needs_input_grad[2] else None
        module.backward_ends()
        return None, None, d_slots, None


def _choices_of(model: nn.Module, name: str) -> int:
    """Experts of each token: what the router beside the experts says, or the model's configuration."""
    beside = model.get_submodule(name.rpartition(".")[0])
    for module in beside.modules():
        if isinstance(getattr(module, "top_k", None), int):
            return int(module.top_k)  # type: ignore[arg-type]
    found = getattr(getattr(model, "config", None), "num_experts_per_tok", None)
    if not isinstance(found, int):
        raise invalid(f"nothing beside {name} says how many experts each token has: give that module's router, or the "
                      "module around both, an attribute top_k")
    return found


def experts_of(model: nn.Module, ranks: int, tokens: Optional[int], lanes: int,
               options: Options) -> list[ExpertModule]:
    """The modules of experts, if they are to be shared; `tokens` is the most of a microbatch, `lanes` are the job's."""
    options.set("expert_parallel", ranks)
    if tokens is None:
        if ranks != 1:
            raise invalid(f"expert_parallel={ranks} needs expert_tokens, the most tokens of a rank's microbatch")
        return []
    rank, world_size = options.place()
    found = [ExpertModule(name, module, _choices_of(model, name), tokens, ranks, rank % ranks)
             for name, module in model.named_modules() if is_experts(module)]
    if not found:
        raise invalid(f"expert_tokens is given, and {type(model).__name__} has no experts: modules with num_experts, "
                      "tensors [num_experts, ...] and forward(tokens, top_k_index, top_k_weights)")
    for module in found:
        # Each microbatch counts twice: activation checkpoints go through it again.
        options.add_experts(module.experts, module.choices, tokens, 2 * (lanes or world_size))
    return found
