"""The trainer for PyTorch models."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

import torch
from torch import nn

from troupe.errors import Error, Status, invalid, is_loss
from troupe.session import Options, Outcome, Restored, SaveResult, Session
from troupe.torch.data import LaneBatches
from troupe.torch.dtensors import ModelHooks, has_ranks_of, mesh_of, part_of, whole_of
from troupe.torch.experts import experts_of
from troupe.torch.meeting import in_store
from troupe.torch.meta import Init, Unfilled
from troupe.torch.optimizer import OptimizerState, add_groups
from troupe.torch.parameters import (PARAMETER_DTYPES, Parameter, buffers_of, first_rank_with_values, parameters_of,
                                     share_first_values)
from troupe.torch.place import place_of
from troupe.torch.step import Step, gradient_hook
from troupe.torch.units import PARAMETERS_SHARDED, SHARDED, Gates, Units, units_of

_log = logging.getLogger("troupe")
_ALL = "all-ranks"


class Trainer:
    """Trains `model`, in place, on all ranks of the job that the process's environment names, or on one rank alone.
    Every rank builds the same model, on the CPU or on a GPU; values of parameters and buffers are those of rank 0.

    strategy: ddp, zero1, zero2, zero3, hsdp or hfsdp. The last four need units of forward: `units` names modules in the
        order of forward, or classes of modules; by default transformers' `_no_split_modules`, or the model's largest
        ModuleList. With ddp and zero1, units are optional: parameters are then waited for unit by unit.
    lanes: microbatches of a step of the whole job, which the ranks share; 0: one per rank. With as many lanes any
        number of ranks gives the same bits, as far as the model's own kernels do.
    lr, betas, eps, weight_decay, momentum, nesterov, optimizer: sgd, adam, adamw, lion or muon; the defaults are those
        of torch.optim.AdamW. `lr` may also be given to each step().
    groups: as torch.optim takes them: dictionaries with "params", and any of these options but lr instead of which
        "lr_factor" multiplies the step's. Parameters in none of them have the trainer's options.
    clip_norm: global L2 norm to clip gradients at; 0: none.
    unused_parameters: what to do about a trainable parameter without a gradient: refuse or zeros.
    checkpoints: directory of save() and restore().
    seed: torch's generator, and that of the model's GPU, is set from it, the step and the lane, when a lane begins, so
        that dropout does not depend on the number of ranks; None: it is left alone.
    expert_parallel: ranks that share the experts of the model, each its own; expert_tokens: the most tokens that a rank
        has in a microbatch. With the latter experts' rows go through the session, also on one rank, and the bits do
        not depend on how many ranks share them.
    stays: this process stays when another rank is lost, and goes on in run(), under `python -m troupe.launch` with
        --max-restarts or --spares. With a model on a GPU all processes are started anew.
    init: called on rank 0 for each module that was built under torch.device("meta"), to fill its own tensors in place;
        one after the other, so that no rank ever has the whole model. By default transformers' `_init_weights`, or the
        module's reset_parameters().
    settings: what else must be the same on all ranks, such as a hash of the data.
    options: any other option of troupe.h, such as wire_dtype="bf16" or keep_last=3.

    While the trainer is open parameters are views of the session's memory: read them, but write them only through it.
    """

    def __init__(self, model: nn.Module, *, strategy: str = "zero1", lanes: int = 0, lr: Optional[float] = None,
                 optimizer: str = "adamw", betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.01, momentum: Optional[float] = None, nesterov: Optional[bool] = None,
                 groups: Sequence[Mapping[str, Any]] = (), clip_norm: float = 0.0,
                 unused_parameters: str = "refuse", units: Units = None, checkpoints: Optional[str] = None,
                 seed: Optional[int] = 0, expert_parallel: int = 1, expert_tokens: Optional[int] = None,
                 stays: bool = False, init: Init = None, settings: Optional[Mapping[str, Any]] = None, **options: Any) -> None:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise invalid(f"expected the model itself, found a {type(model).__name__}: give model.module")
        if options.get("microbatches", 1) != 1:
            raise invalid("a lane of troupe.torch is one microbatch; ask for more lanes instead of microbatches")
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
            if options.get(name, 1) != 1:
                raise Error(Status.UNAVAILABLE, f"troupe.torch is data and expert parallel; leave out {name}")
        self.model, self.lr = model, lr
        self._last_rate: Optional[float] = None
        self._seed, self._zeros = seed, unused_parameters == "zeros"
        made = Options()
        self._place = place = place_of(model, options.pop("device", None))
        self._unfilled = Unfilled(model, place.device, init)
        if expert_tokens is not None and os.environ.get("RANK") == "spare":
            raise Error(Status.UNAVAILABLE, "a spare knows no rank, and so not which experts it would have; start without "
                        "--spares, with --max-restarts")
        self._experts = experts_of(model, expert_parallel, expert_tokens, lanes, made)
        if self._experts and place.device.type != "cpu":
            raise Error(Status.UNAVAILABLE, f"the model is on {place.device}, and experts that ranks share are on the CPU; "
                        "leave out expert_parallel and expert_tokens, or move the model with model.cpu()")
        self._parameters = parameters_of(model, place, (part for module in self._experts for part in module.parameters.values()),
                                         self._unfilled.shapes)
        self._buffers = buffers_of(model, place)
        self._is_open = True
        self._step: Optional[Step] = None
        self._saves: list[SaveResult] = []
        self._stays, self._needs_checkpoint = stays, False
        self._instances = int(options.get("optimizer_instances", 1))
        self._recovered: Optional[Restored] = None
        own_units = units_of(model, self._parameters, units) if strategy in SHARDED or units is not None else []

        # Tensors and streams of PyTorch have not been tried over two epochs of a GPU.
        is_kept = stays and place.device.type == "cpu"
        for name, value in {"strategy": strategy, "lanes": lanes, "clip_norm": float(clip_norm), "stays": is_kept,
                            "unused_parameters": unused_parameters, "device": place.option, **options}.items():
            made.set(name, value)
        if checkpoints is not None:
            made.set("checkpoints", checkpoints)
        for name, value in {"seed of lanes": seed, **(settings or {})}.items():
            made.add_setting(name, value)
        defaults = {"optimizer": optimizer, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                    "momentum": momentum, "nesterov": nesterov}
        self._chosen = add_groups(made, self._by_tensor(), defaults, groups)
        self._options = made
        self._join(made, lanes)
        self._gates = Gates(self.session, own_units, strategy in PARAMETERS_SHARDED)
        self._publishes = not own_units
        self._begin(has_values=True)
        self._hooks = [
            parameter.tensor.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                gradient_hook(self, parameter))
            for parameter in self._parameters if not parameter.is_frozen and not parameter.is_expert]
        self._model_hooks = self._hook_model()

    def _by_tensor(self) -> dict[int, list[Parameter]]:
        """What the session has of each of the model's tensors here."""
        found: dict[int, list[Parameter]] = {}
        for parameter in self._parameters:
            found.setdefault(id(parameter.origin), []).append(parameter)
        return found

    def _join(self, options: Options, lanes: int) -> None:
        if self._stays and os.environ.get("RANK") == "spare":
            # It learns its rank when another is lost, and buffers must belong to a rank before.
            if self._buffers:
                raise Error(Status.UNAVAILABLE, f"the model has persistent buffers, such as {self._buffers[0].name}, so "
                            "that no spare can take a rank; start without --spares")
            rank, ranks = -1, int(os.environ["WORLD_SIZE"])
        else:
            rank, ranks = options.place()
        self._lane_count = lanes or ranks
        for parameter in self._parameters:
            parameter.number = options.add_parameter(
                parameter.name, parameter.shape, PARAMETER_DTYPES[parameter.dtype], frozen=parameter.is_frozen,
                expert=parameter.is_expert, unit=parameter.unit, group=parameter.group or 0)
        for buffer in self._buffers:
            buffer.add_to(options, rank)
        options.add_group(_ALL)
        with in_store():
            self.session = Session(options)

    def _begin(self, has_values: bool) -> None:
        """First values, unless others have newer ones, and the model's tensors become the session's."""
        session = self.session
        self._place.enter(session)
        self._recovered = session.recover()
        if self._recovered is None:
            self._write_first_values(has_values)
        for parameter in self._parameters:
            parameter.origin.grad = None
        for layer, module in enumerate(self._experts):
            module.join(session, layer, lambda: self._gates.phase)
        for parameter in self._resident():
            parameter.attach(session)
        self._gates.empty()

    def _write_first_values(self, has_values: bool) -> None:
        session, by_tensor = self.session, self._by_tensor()
        first = 0 if session.world_size == 1 else first_rank_with_values(session, self._place, _ALL,
                                                                                      has_values)
        # Processes that stayed have none any more: if no other came, only a checkpoint has values.
        self._needs_checkpoint = first is None
        if first is None:
            return

        def share(tensors: Iterable[torch.Tensor], source: int = first) -> None:
            if session.world_size > 1:
                share_first_values(session, _ALL, tensors, source)

        def write(tensors: Iterable[torch.Tensor]) -> None:
            for tensor in tensors:
                for parameter in by_tensor[id(tensor)]:
                    parameter.write(session, parameter.part_of(tensor))

        filled = [parts[0] for tensor, parts in by_tensor.items() if tensor not in self._unfilled.shapes]
        if not has_values:
            for part in filled:
                part.origin.data = torch.empty(part.whole_shape, dtype=part.dtype, device=self._place.device)
        share([*(part.origin for part in filled), *(buffer.tensor for buffer in self._buffers)])
        write(part.origin for part in filled)
        for tensors in self._unfilled.fill(session.rank == first):
            share(tensors)
            write(tensors)

    def _resident(self) -> list[Parameter]:
        """Those which the session keeps whole."""
        return [parameter for parameter in self._parameters if parameter.unit is None or not self._gates.is_sharded]

    # ---- What the session says. ----

    @property
    def rank(self) -> int:
        return self.session.rank

    @property
    def world_size(self) -> int:
        return self.session.world_size

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes that this rank plays."""
        return self.session.lanes

    @property
    def next_step(self) -> int:
        """The number, from 0, of the step that is being computed, or of the next one; after restore() that of the
        first step that was not saved."""
        return self.session.next_step

    def batch_sampler(self, size: int, batch: int, seed: int = 0) -> LaneBatches:
        """For DataLoader(dataset, batch_sampler=...): batches of `batch` of the `size` samples, one for each lane that
        this rank plays, in order, from the next step on; make it after restore(). `next(iterator)` once per lane."""
        return LaneBatches(size, batch, self._lane_count, self.lanes, self.next_step, seed)

    # ---- Steps. ----

    def step(self, lr: Optional[float] = None) -> Step:
        """A step of the whole job, for `with`; `lr` is its learning rate, by default the trainer's."""
        rate = self.lr if lr is None else lr
        if rate is None:
            raise invalid("expected a learning rate: Trainer(lr=...) or step(lr=...)")
        self._expect_between_steps("step()")
        return Step(self, float(rate))

    def train_step(self, loss_of: Callable[[int], Any], lr: Optional[float] = None) -> Outcome:
        """A whole step: `loss_of(lane)` returns the mean loss of that lane's microbatch, or the sum of its losses and
        its weight, as Step.backward() takes them."""
        with self.step(lr) as step:
            for lane in step:
                loss = loss_of(lane)
                step.backward(*(loss if isinstance(loss, tuple) else (loss,)))
        return step.outcome

    def _expect_between_steps(self, call: str) -> None:
        if not self._is_open:
            raise invalid(f"{call} after close(): the trainer has left the job")
        if self._step is not None:
            raise invalid(f"{call} within a step; leave its `with` first")
        if self._gates.phase != "idle":
            raise invalid(f"{call} within an evaluation; leave its `with` first")

    # ---- Between steps. ----

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Within it the model may be called, also where parameters are sharded: then by all ranks alike. It does not
        change the model's mode: call model.eval() and model.train() as ever."""
        self._expect_between_steps("evaluation()")
        self.session.begin_evaluation()
        self._gates.enter("evaluation")
        for parameter in self._parameters:
            if parameter.unit is None:
                self.session.before_use(parameter.number)
        try:
            yield
        finally:
            self._gates.enter("idle")
            self.session.end_evaluation()

    def state_dict(self, *, dtensors: bool = False) -> dict[str, torch.Tensor]:
        """Copies of all parameters and persistent buffers under model.state_dict()'s names; tied ones are the same tensor.
        By all ranks alike. Buffers are this rank's. Moments are in optimizer_state_dict().

        Parameters are whole, or DTensors over a mesh of torch.distributed's ranks: with zero3, hsdp and hfsdp those of
        units have their rows shared out, as FSDP2 does, and all others are replicated. The session's own shards have no
        regard for rows, so each unit is gathered for it: in addition to what is returned there is one unit at a time."""
        if not dtensors:
            return self._state(lambda parameter, whole: whole if parameter.is_expert else whole.clone())
        mesh = mesh_of(self.session, self._place.device.type, self._instances)
        return self._state(lambda parameter, whole: part_of(whole, mesh, self._is_shared_out(parameter)))

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Before the first step and the first save: values in place of those that the model began with, under
        model.state_dict()'s names, all of them. By all ranks alike, with the same values, whole or as DTensors of any
        placements, which are gathered one by one."""
        own = self._model_hooks.own()
        if own.keys() != state.keys():
            raise invalid(f"expected the names of model.state_dict(); missing are {sorted(own.keys() - state.keys())}, "
                          f"unknown are {sorted(state.keys() - own.keys())}")
        self._load(state)

    def _load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._expect_between_steps("load_state_dict()")
        own, parameters = self._model_hooks.own(), self._by_tensor()
        for name, values in state.items():
            parts = parameters.get(id(own[name]))
            shape = parts[0].whole_shape if parts else own[name].shape
            if tuple(values.shape) != tuple(shape):
                raise invalid(f"{name} has the shape {tuple(shape)}, found {tuple(values.shape)}")
        with torch.no_grad():
            for name, values in state.items():
                whole = whole_of(values)
                for part in parameters.get(id(own[name]), ()):
                    part.write(self.session, part.part_of(whole))
                if id(own[name]) not in parameters:
                    own[name].copy_(whole)

    def optimizer_state_dict(self, *, dtensors: bool = False) -> dict[str, Any]:
        """Moments, step counts and groups of Adam and AdamW with f32 parameters, as get_optimizer_state_dict() of
        torch.distributed.checkpoint.state_dict gives them of torch's optimizers. By all ranks alike.

        Moments are whole on each rank, or DTensors over a mesh of torch.distributed's ranks with their rows shared out,
        whatever the strategy. They are gathered one by one: in addition to what is returned there is one at a time."""
        self._expect_between_steps("optimizer_state_dict()")
        rate = self._last_rate if self.lr is None else self.lr
        if rate is None:
            raise invalid("the groups of an optimizer have a learning rate: Trainer(lr=...), or take a step before")
        state = self._optimizer_state()
        if not dtensors:
            return state.read(rate, lambda whole: whole)
        mesh = mesh_of(self.session, self._place.device.type, self._instances)
        return state.read(rate, lambda whole: part_of(whole, mesh, True))

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Before the first step and the first save: what optimizer_state_dict() returned, or torch's
        get_optimizer_state_dict() of an Adam or AdamW, with tensors as load_state_dict() takes them. next_step is the
        count of its steps then. The rate stays the trainer's own; other options must be the same."""
        self._expect_between_steps("load_optimizer_state_dict()")
        self._optimizer_state().write(state)

    def _optimizer_state(self) -> OptimizerState:
        parts = self._by_tensor()
        return OptimizerState(self.session, _ALL, {name: parts[id(tensor)] for name, tensor in self.model.named_parameters()
                                             if tensor.requires_grad}, self._chosen)

    def _state(self, made_of: Callable[[Parameter, torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        """What `made_of` makes of each parameter, and copies of the buffers."""
        made = self._of_parameters(made_of)
        return {name: made[id(tensor)] if id(tensor) in made else tensor.detach().clone()
                for name, tensor in self._model_hooks.own().items()}

    def _of_parameters(self, made_of: Callable[[Parameter, torch.Tensor], torch.Tensor]) -> dict[int, torch.Tensor]:
        """By identity of the model's tensor: what `made_of` makes of it, whole, while it may be read."""
        made: dict[int, torch.Tensor] = {}

        def visit(parameters: Iterable[Parameter]) -> None:
            for parameter in parameters:
                if id(parameter.origin) not in made:
                    made[id(parameter.origin)] = made_of(parameter, parameter.whole(self.session))

        with self.evaluation():
            visit(parameter for parameter in self._parameters if parameter.unit is None)
            for unit in self._gates.each():
                visit(unit.parameters)
        return made

    def _is_shared_out(self, parameter: Parameter) -> bool:
        return (self._gates.is_sharded and parameter.unit is not None or
                parameter.is_expert and any(module.ranks > 1 for module in self._experts))

    def _hook_model(self) -> ModelHooks:
        """So that torch's get_model_state_dict(model) and set_model_state_dict(model, ...) work as well."""

        def settle() -> None:
            if self._is_open and self._step is None and not self._gates.is_sharded:
                self.session.publish_all()

        def read() -> Mapping[str, torch.Tensor]:
            if not self._is_open or not (self._gates.is_sharded or self._experts):
                return {}
            return self.state_dict(dtensors=has_ranks_of(self.session))

        return ModelHooks(self.model, settle, read, self._load)

    def save(self, common: Optional[Mapping[str, Any]] = None, *, local: bool = False) -> int:
        """Saves the state after the last step in the background, by all ranks alike; `common`, whose numbers are whole,
        comes back from restore(). Rank 0's buffers are kept. A local save goes to each rank's own directory
        (local_checkpoints="...{rank}"), with copies at replication_factor - 1 other ranks; restore() takes it where it
        is the newest and every part is still there. Returns the number that its SaveResult will have."""
        self._expect_between_steps("save()")
        for buffer in self._buffers:
            buffer.keep()
        return self.session.save(common, local=local)

    def take_saves(self) -> list[SaveResult]:
        """Saves that have ended since the last call. Failed ones are also logged."""
        self._collect_saves()
        taken, self._saves = self._saves, []
        return taken

    def wait_saves(self) -> None:
        """Until every save that was begun has ended."""
        self.session.wait_saves()
        self._collect_saves()

    def _collect_saves(self) -> None:
        for result in [*self.session.take_saves(), *self.session.take_saves(local=True)]:
            if not result.committed:
                _log.error("rank %d: the save after step %d failed: %s", self.rank, result.step, result.message)
            self._saves.append(result)

    def restore(self, name: Optional[str] = None, *, directory: Optional[str] = None, weights_only: bool = False,
                strictness: Optional[str] = None) -> Optional[Restored]:
        """Before the first step: loads the newest complete checkpoint, or the named one, saved by any number of ranks
        with any strategy. None where there is none yet. In run(), after another rank was lost, the newest step that
        the ranks have in memory, if they have it together."""
        self._expect_between_steps("restore()")
        recovered, self._recovered = self._recovered, None
        if recovered is not None:
            return recovered
        restored = self.session.restore(name, directory=directory, weights_only=weights_only, strictness=strictness)
        if restored is None and self._needs_checkpoint:
            raise Error(Status.UNAVAILABLE, "another rank was lost before the first save, and the processes that stayed "
                        "have no first values any more; start the job again")
        if restored is not None:
            self.session.publish_all()
            for buffer in self._buffers:
                buffer.restore()
        return restored

    # ---- Losses of other ranks. ----

    def run(self, train: Callable[[], Any]) -> Any:
        """Calls `train()`, which begins with restore() and then takes steps, and returns what it returns. If another
        rank is lost meanwhile and the job goes on with this process, calls it again: lanes, and what was made for the
        step, such as a loader with batch_sampler(), are made anew there. Otherwise raises the Error."""
        if not self._stays:
            raise invalid("run() keeps this process when another rank is lost; make the trainer with stays=True")
        while True:
            try:
                return train()
            except Error as error:
                if not is_loss(error):
                    raise
                self._form_anew(error)

    def _form_anew(self, error: Error) -> None:
        while True:
            self._step = None
            self._gates.leave()
            for module in self._experts:
                module.leave()
            for parameter in self._parameters:
                parameter.leave()
            try:
                self.session.join_again(self._options, error)
            except Error:
                self._is_open = False
                raise
            _log.warning("rank %d: this process goes on after the loss of another rank: %s", self.rank, error)
            for module in self._experts:
                if not module.belongs_to(self.rank):
                    raise self.abandon(f"{module.name}: this process has experts from {module.first} on, which rank "
                                       f"{self.rank} of the new epoch has not; start without MIN:MAX ranks")
            try:
                return self._begin(has_values=False)
            except Error as another:
                if not is_loss(another):
                    raise
                error = another

    # ---- The end. ----

    def close(self, keep_parameters: bool = True) -> None:
        """Leaves the job, when all ranks do. The model is a plain PyTorch model again, with whole parameters;
        `keep_parameters` is false where they would not fit: then it has none."""
        if not self._is_open:
            return
        self._expect_between_steps("close()")
        copies = self._of_parameters(
            lambda parameter, whole: whole if parameter.is_expert else whole.clone()) if keep_parameters else {}
        if not keep_parameters:
            self.session.publish_all()
        self.wait_saves()
        for handle in self._hooks:
            handle.remove()
        self._model_hooks.remove()
        self._gates.remove()
        for module in self._experts:
            module.leave()
        for parameter in self._parameters:
            copy = copies.get(id(parameter.origin))
            parameter.origin.data = parameter.nothing() if copy is None else copy
        self._place.leave()
        self.session.leave()
        self._is_open = False

    def abandon(self, reason: str) -> Error:
        """This rank gives up, and every other rank is told why. Returns the job's first failure."""
        self._is_open = False
        return self.session.abandon(f"rank {self.rank} gave up: {reason}")

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is None:
            self.close()
        elif self._is_open:
            self.abandon(f"{type(error).__name__}: {error}")
