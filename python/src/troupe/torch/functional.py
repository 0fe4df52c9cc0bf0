"""What trainers compute over ranks of torch.distributed beside their models: log-probabilities and entropy where ranks
share a vocabulary, and moments of masked values that ranks share. Gradients are computed by each rank alone.

`group` is a process group, over the back-end "troupe" or any other; None is that of all ranks, or this process alone
where torch.distributed was not initialised. All members make the same calls. Sums are in float64."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from troupe.errors import Error, Status, invalid

__all__ = ["masked_mean", "masked_variance", "vocab_parallel", "vocab_parallel_entropy",
           "vocab_parallel_log_probabilities"]

_ELEMENTS_AT_ONCE = 1 << 21  # in float64 on the way


def members_of(group: Optional[dist.ProcessGroup]) -> tuple[int, int]:
    """This rank's place among the members, and how many there are."""
    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise invalid("a group was given, and torch.distributed is not initialised")
        return 0, 1
    index = dist.get_rank(group)
    if index < 0:
        raise invalid("this rank is not a member of the group")
    return index, dist.get_world_size(group)


def _reduce(values: torch.Tensor, operation: Any, group: Optional[dist.ProcessGroup]) -> torch.Tensor:
    if members_of(group)[1] > 1:
        dist.all_reduce(values, operation, group=group)
    return values


def _sum_in_order(values: torch.Tensor, group: Optional[dist.ProcessGroup]) -> torch.Tensor:
    """The same bits on all members."""
    _, members = members_of(group)
    if members == 1:
        return values
    found = [torch.empty_like(values) for _ in range(members)]
    dist.all_gather(found, values, group=group)
    total = found[0].clone()
    for other in found[1:]:
        total += other
    return total


# ---- A vocabulary that ranks share. ----

def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _ELEMENTS_AT_ONCE // max(1, columns))
    for first in range(0, rows, step):
        yield slice(first, min(rows, first + step))


class _Vocabulary(torch.autograd.Function):
    """The log-probability of each row's target and the entropy of each row; with x a row, m its greatest element over
    all members and e_i = exp(x_i - m): Z = sum e_i, T = sum e_i (x_i - m), ln p_y = x_y - m - ln Z, H = ln Z - T / Z."""

    @staticmethod
    def forward(context: Any, logits: torch.Tensor, targets: Optional[torch.Tensor], first: Optional[int],
                ignored: int, group: Optional[dist.ProcessGroup]) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = logits.shape
        index, members = members_of(group)
        # The widths travel with the greatest elements.
        highest = torch.empty(rows + 2, dtype=torch.float64, device=logits.device)
        highest[:rows] = logits.amax(dim=1) if columns > 0 else float("-inf")
        highest[rows], highest[rows + 1] = columns, -columns
        _reduce(highest, dist.ReduceOp.MAX if members > 1 else None, group)
        if first is None:
            if highest[rows] != -highest[rows + 1]:
                raise invalid(f"members of the group have {-int(highest[rows + 1])} to {int(highest[rows])} columns of "
                              "the vocabulary; give first_column where they are not equally many")
            first = index * columns
        highest = highest[:rows, None]
        sums = torch.zeros(4, rows, dtype=torch.float64, device=logits.device)  # Z, T, x_y - m, members that have y
        own = None
        if targets is not None:
            own = torch.where((targets >= first) & (targets < first + columns), targets - first, -1)
        for part in _parts(rows, columns):
            shifted = logits[part].double() - highest[part]
            exponentials = shifted.exp()
            sums[0, part] = exponentials.sum(dim=1)
            sums[1, part] = torch.where(exponentials == 0, 0.0, exponentials * shifted).sum(dim=1)
            if own is not None and columns > 0:
                found = shifted.gather(1, own[part].clamp(min=0)[:, None])[:, 0]
                sums[2, part] = torch.where(own[part] >= 0, found, 0.0)
        if own is not None:
            sums[3] = (own >= 0) | ((targets == ignored) & (index == 0))
        _reduce(sums, dist.ReduceOp.SUM if members > 1 else None, group)
        if targets is not None and bool((sums[3] != 1).any()):
            row = int((sums[3] != 1).nonzero()[0])
            raise invalid(f"target {int(targets[row])} of row {row} is the column of {int(sums[3, row])} members of the "
                          f"group; each must be that of one, or {ignored}")
        mean = sums[1] / sums[0]
        entropy = sums[0].log() - mean
        log_probabilities = sums[2] - sums[0].log()
        if targets is not None:
            log_probabilities.masked_fill_(targets == ignored, 0.0)
        context.save_for_backward(logits, highest, sums[0], mean, own,
                                  None if targets is None else targets == ignored)
        result = torch.float64 if logits.dtype == torch.float64 else torch.float32
        return log_probabilities.to(result), entropy.to(result)

    @staticmethod
    @once_differentiable
    def backward(context: Any, of_logs: torch.Tensor, of_entropy: torch.Tensor) -> Any:
        logits, highest, total, mean, own, is_ignored = context.saved_tensors
        gradient = torch.empty_like(logits)
        of_logs, of_entropy = of_logs.double(), of_entropy.double()
        if own is not None:
            of_logs = of_logs.masked_fill(is_ignored, 0.0)
        for part in _parts(*logits.shape):
            shifted = logits[part].double() - highest[part]
            p = shifted.exp() / total[part, None]
            found = torch.where(p == 0, 0.0, -p * (shifted - mean[part, None])) * of_entropy[part, None]
            if own is not None and found.shape[1] > 0:
                found -= p * of_logs[part, None]
                found.scatter_add_(1, own[part].clamp(min=0)[:, None],
                                   torch.where(own[part] >= 0, of_logs[part], 0.0)[:, None])
            gradient[part] = found.to(logits.dtype)
        return gradient, None, None, None, None


def _vocabulary(logits: torch.Tensor, targets: Optional[torch.Tensor], first: Optional[int], ignored: int,
                group: Optional[dist.ProcessGroup]) -> tuple[torch.Tensor, torch.Tensor]:
    if logits.ndim < 1 or not logits.is_floating_point():
        raise invalid(f"expected logits [..., columns] of a floating-point dtype, found {logits.dtype} "
                      f"{tuple(logits.shape)}")
    shape = logits.shape[:-1]
    if targets is not None:
        if targets.shape != shape or targets.dtype != torch.int64:
            raise invalid(f"expected int64 targets {tuple(shape)}, one for each row of logits, found {targets.dtype} "
                          f"{tuple(targets.shape)}")
        targets = targets.reshape(-1)
    rows = shape.numel()
    logs, entropy = _Vocabulary.apply(
        logits.reshape(rows, logits.shape[-1]), targets, first, ignored, group)
    return logs.view(shape), entropy.view(shape)


def vocab_parallel(logits: torch.Tensor, targets: torch.Tensor, group: Optional[dist.ProcessGroup] = None, *,
                   first_column: Optional[int] = None, ignore_index: int = -100) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probability of `targets` [...] and the entropy [...] under softmax of logits [..., vocabulary], of which
    this rank has the columns from `first_column` on; by default members have equally many, in group order. Logits are
    not changed, and their gradient has their dtype; results are float32, or float64 of such logits. A row whose target
    is `ignore_index` has the log-probability 0 and no gradient through it."""
    return _vocabulary(logits, targets, first_column, ignore_index, group)


def vocab_parallel_log_probabilities(logits: torch.Tensor, targets: torch.Tensor,
                                     group: Optional[dist.ProcessGroup] = None, *, first_column: Optional[int] = None,
                                     ignore_index: int = -100) -> torch.Tensor:
    """The first result of vocab_parallel()."""
    return _vocabulary(logits, targets, first_column, ignore_index, group)[0]


def vocab_parallel_entropy(logits: torch.Tensor, group: Optional[dist.ProcessGroup] = None, *,
                           first_column: Optional[int] = None) -> torch.Tensor:
    """The second result of vocab_parallel(), which needs no targets."""
    return _vocabulary(logits, None, first_column, -100, group)[1]


# ---- Moments of masked values that ranks share. ----

def _weighted(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64; where the mask is 0 values do not matter, even NaN."""
    if values.shape != mask.shape or not values.is_floating_point():
        raise invalid(f"expected values of a floating-point dtype and a mask of the same shape, found {values.dtype} "
                      f"{tuple(values.shape)} and {tuple(mask.shape)}")
    weights = mask.double()
    return torch.where(weights == 0, 0.0, values.detach().double()), weights


def _mean(values: torch.Tensor, weights: torch.Tensor, group: Optional[dist.ProcessGroup]) -> torch.Tensor:
    """The sum of weights of all members, and the mean."""
    sums = _sum_in_order(torch.stack([weights.sum(), (values * weights).sum()]), group)
    if sums[0] == 0:
        raise Error(Status.NUMERIC, "the mask is 0 everywhere, on all members of the group; a mean needs an element")
    return torch.stack([sums[0], sums[1] / sums[0]])


def _scaled(context: Any, upstream: torch.Tensor) -> torch.Tensor:
    gradient: torch.Tensor = context.saved_tensors[0] * upstream.double()
    dtype: torch.dtype = context.dtype
    return gradient.to(dtype)


class _MaskedMean(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: torch.Tensor, mask: torch.Tensor,
                group: Optional[dist.ProcessGroup]) -> torch.Tensor:
        known, weights = _weighted(values, mask)
        count, mean = _mean(known, weights, group).unbind()
        context.save_for_backward(weights / count)
        context.dtype = values.dtype
        return mean.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: Any, upstream: torch.Tensor) -> Any:
        return _scaled(context, upstream), None, None


class _MaskedVariance(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: torch.Tensor, mask: torch.Tensor, unbiased: bool,
                group: Optional[dist.ProcessGroup]) -> torch.Tensor:
        known, weights = _weighted(values, mask)
        count, mean = _mean(known, weights, group).unbind()
        if unbiased and count <= 1:
            raise Error(Status.NUMERIC, f"the mask sums to {count.item():g} over all members of the group; an unbiased "
                        "variance needs more than 1: ask for unbiased=False")
        deviations = torch.where(weights == 0, 0.0, known - mean)
        divisor = count - 1 if unbiased else count
        squares = _sum_in_order((deviations * deviations * weights).sum(), group)
        context.save_for_backward(2 * weights * deviations / divisor)
        context.dtype = values.dtype
        return (squares / divisor).to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: Any, upstream: torch.Tensor) -> Any:
        return _scaled(context, upstream), None, None, None


def masked_mean(values: torch.Tensor, mask: torch.Tensor, group: Optional[dist.ProcessGroup] = None) -> torch.Tensor:
    """The mean, weighted by the mask, of the values of all members, whose shapes may differ: a scalar with the same
    bits on all of them. The gradient by this rank's values is mask / sum of all masks; no rank's gradient is added to
    another's."""
    mean: torch.Tensor = _MaskedMean.apply(values, mask, group)
    return mean


def masked_variance(values: torch.Tensor, mask: torch.Tensor, group: Optional[dist.ProcessGroup] = None, *,
                    unbiased: bool = True) -> torch.Tensor:
    """The variance, as masked_mean() has the mean: squared deviations from the mean of all members, over the sum of
    all masks, less 1 if `unbiased`."""
    variance: torch.Tensor = _MaskedVariance.apply(values, mask, unbiased, group)
    return variance
