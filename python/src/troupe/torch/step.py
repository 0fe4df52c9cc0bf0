"""A step of a trainer, whose insides it shares."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

import torch

from troupe.errors import invalid, is_loss
from troupe.session import Outcome
from troupe.torch.parameters import Parameter

if TYPE_CHECKING:
    from troupe.torch.trainer import Trainer

_log = logging.getLogger("troupe")


def gradient_hook(trainer: Trainer, parameter: Parameter) -> Callable[[torch.Tensor], None]:
    """For the parameter's tensor: hands its gradient to the session when backward has accumulated it."""

    def hook(tensor: torch.Tensor) -> None:
        if trainer._gates.phase != "backward":
            tensor.grad = None
            raise invalid(f"backward() reached parameter {parameter.name} outside of Step.backward(); within a "
                          "step call step.backward(loss) instead of loss.backward(), and for other gradients "
                          "torch.autograd.grad()")
        if tensor.grad is not None and tensor.grad.requires_grad:
            raise invalid(f"the gradient of {parameter.name} has a graph of its own (create_graph=True); for a "
                          "penalty on gradients use torch.autograd.grad(create_graph=True) and step.backward()")
        if parameter.is_ready:
            raise invalid(f"the gradient of {parameter.name} came twice in one backward, as reentrant activation "
                          "checkpoints of a shared module do; use use_reentrant=False")
        parameter.take_gradient()
        parameter.is_ready = True
        trainer.session.gradient_ready(parameter.number)

    return hook


class Step:
    """A step in progress. Iterating gives the lanes that this rank plays, each of which ends with backward(); leaving
    the `with` finishes the step, and then `outcome` is what all ranks decided. An exception within it abandons the job:
    the other ranks get an error that names this rank and says why."""

    def __init__(self, trainer: Trainer, lr: float) -> None:
        self.lr = lr
        self.index = trainer.next_step
        self._trainer = trainer
        self._outcome: Optional[Outcome] = None
        self._lane: Optional[int] = None
        self._is_weighted: Optional[bool] = None
        self._left = list(trainer.lanes)

    @property
    def outcome(self) -> Outcome:
        if self._outcome is None:
            raise invalid(f"step {self.index} has no outcome yet: leave its `with` first")
        return self._outcome

    def __enter__(self) -> "Step":
        trainer = self._trainer
        trainer._expect_between_steps("a step")
        for parameter in trainer._parameters:
            parameter.check_unchanged()
        trainer.session.begin_step(self.lr)
        trainer._step, trainer._last_rate = self, self.lr
        return self

    def __iter__(self) -> Iterator[int]:
        while self._left:
            if self._trainer._step is not self:
                raise invalid("lanes of a step are played within its `with`")
            self._lane = self._left.pop(0)
            self._begin_lane(self._lane)
            yield self._lane
            self._expect_ended()

    def _begin_lane(self, lane: int) -> None:
        trainer = self._trainer
        trainer.session.begin_lane(lane)
        for parameter in trainer._parameters:
            parameter.is_ready = False
            if parameter.unit is None:
                trainer.session.before_use(parameter.number)
        if trainer._seed is not None:
            # Odd factors keep apart what small numbers of seeds, steps and lanes could make equal.
            mixed = trainer._seed * 0x9E3779B97F4A7C15 + self.index * 0xC2B2AE3D27D4EB4F + lane * 0x165667B19E3779F9
            trainer._place.seed(mixed % 2**63)
        trainer._gates.enter("forward")

    def _expect_ended(self) -> None:
        if self._lane is not None:
            raise invalid(f"lane {self._lane} of step {self.index} ended without step.backward(loss)")

    def backward(self, loss: torch.Tensor, weight: Optional[float] = None) -> None:
        """Adds the lane's gradients while they are computed, and ends the lane. `loss` is a scalar, the mean over the
        lane's microbatch, so that each lane counts alike; or with a weight the sum over this many targets, such as
        tokens, so that each target counts alike wherever it is. Give weights to all lanes or to none."""
        trainer, session = self._trainer, self._trainer.session
        if self._lane is None:
            raise invalid("step.backward() is called once per lane: `for lane in step: ... step.backward(loss)`")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise invalid("expected the loss as a tensor of one element, found "
                          f"{tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__}")
        if not loss.requires_grad:
            raise invalid("the loss depends on no parameter that requires a gradient: was it computed under "
                          "torch.no_grad(), or detached?")
        if self._is_weighted not in (None, weight is not None):
            raise invalid(f"lane {self._lane} is ended {'with' if weight is not None else 'without'} a weight, and the "
                          "one before it was not; give weights to all lanes or to none")
        self._is_weighted = weight is not None
        session.begin_backward()
        trainer._gates.enter("backward")
        trained = [parameter for parameter in trainer._parameters if not parameter.is_frozen]
        for parameter in trained:
            if parameter.unit is None:
                parameter.attach_gradient(session)
        scale = session.loss_scale
        with trainer._place.passing_back():
            (loss if scale == 1 else loss * scale).backward()  # type: ignore[no-untyped-call]
        trainer._gates.enter("idle")
        for parameter in trained:
            parameter.detach_gradient()
        self._refuse_unused(trained)
        session.end_lane(loss.item(), weight)
        self._lane = None

    def _refuse_unused(self, trained: list[Parameter]) -> None:
        unused = [parameter.name for parameter in trained if not parameter.is_ready]
        if unused and not self._trainer._zeros:
            more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
            raise invalid(f"no gradient reached {', '.join(unused[:5])}{more} in lane {self._lane}; freeze what the "
                          "loss does not depend on (requires_grad_(False)) before the trainer is made, or ask for "
                          "Trainer(unused_parameters=\"zeros\")")

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        trainer = self._trainer
        try:
            if error is None:
                self._finish()
        except BaseException as failure:
            error = failure
            raise
        finally:
            trainer._step = None
            if trainer._stays and is_loss(error):
                pass  # run() goes on from here
            elif error is not None and trainer._is_open:
                trainer._gates.enter("idle")
                trainer.abandon(f"{type(error).__name__}: {error}")

    def _finish(self) -> None:
        trainer = self._trainer
        self._expect_ended()
        if self._left:
            raise invalid(f"step {self.index} ended before lanes {self._left} of this rank were played; iterate over "
                          "the step: `for lane in step:`")
        self._outcome = trainer.session.finish_step()
        if trainer._publishes:
            trainer.session.publish_all()
        if not self._outcome.committed:
            _log.warning("rank %d: step %d was not committed: %s", trainer.rank, self.index, self._outcome.reason)
        trainer._collect_saves()
