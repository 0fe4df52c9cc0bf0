#!/usr/bin/env python3
"""Log-probabilities and entropy over a vocabulary that ranks share, moments of masked values, and batches of tensors
between ranks: as plain PyTorch computes them on the whole."""

import unittest

import ranks  # first: it says where troupe is
import groups

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, log_softmax

from troupe.errors import Error, Status
from troupe.torch import Batch, Trainer
from troupe.torch.functional import (masked_mean, masked_variance, vocab_parallel, vocab_parallel_entropy,
                                     vocab_parallel_log_probabilities)


def over(count, body, *arguments):
    def joined():
        groups.join()
        result = body(*arguments)
        groups.leave()
        return result
    return ranks.results(count, joined if count > 1 else lambda: body(*arguments))


def place():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def drawn(shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(logits, targets, of_logs, of_entropy):
    """Results and the gradient in plain PyTorch, in float64."""
    logits = logits.double().requires_grad_()
    logs = log_softmax(logits, dim=-1)
    entropy = -(logs.exp() * logs.masked_fill(logs == float("-inf"), 0)).sum(dim=-1)
    chosen = torch.where(targets < 0, 0, logs.gather(-1, targets.clamp(min=0)[..., None])[..., 0])
    (chosen * of_logs + entropy * of_entropy).sum().backward()
    return chosen.detach(), entropy.detach(), logits.grad


def vocabulary(shape, dtype, bounds=None, minus_infinity=False):
    """How far a rank's results and gradient are from those in plain PyTorch, at most and in norm."""
    rank, count = place()
    logits = drawn(shape, 1, dtype) * 4
    if minus_infinity:
        logits[..., ::3] = float("-inf")
    targets = torch.randint(shape[-1], shape[:-1], generator=torch.Generator().manual_seed(2))
    if minus_infinity:
        targets = targets // 3 * 3 + 1
    targets.view(-1)[::5] = -100
    # What comes from behind is each rank's own: nothing of backward is shared.
    of_logs, of_entropy = drawn(shape[:-1], 10 + rank), drawn(shape[:-1], 20 + rank)
    first, end = bounds[rank:rank + 2] if bounds else (rank * shape[-1] // count, (rank + 1) * shape[-1] // count)
    own = logits[..., first:end].clone().requires_grad_()
    logs, entropy = vocab_parallel(own, targets, first_column=first if bounds else None)
    (logs * of_logs + entropy * of_entropy).sum().backward()
    if not torch.equal(own.detach(), logits[..., first:end]):
        raise AssertionError("logits were changed")
    expected_logs, expected_entropy, gradient = whole(logits, targets, of_logs, of_entropy)
    gradient = gradient[..., first:end]
    assert own.grad.dtype == dtype and logs.shape == targets.shape
    alone = vocab_parallel_log_probabilities(own.detach(), targets, first_column=first)
    assert torch.equal(alone, logs) and torch.equal(vocab_parallel_entropy(own.detach(), first_column=first), entropy)
    return ((logs - expected_logs).abs().max().item(), (entropy - expected_entropy).abs().max().item(),
            ((own.grad - gradient).norm() / gradient.norm().clamp(min=1e-30)).item())


def slopes():
    """The gradient of all results by finite differences, where every member varies its own columns."""
    rank, count = place()
    logits = drawn((3, 8), 4, torch.float64)
    own = logits[:, rank * 8 // count:(rank + 1) * 8 // count].clone().requires_grad_()
    targets = torch.tensor([1, 7, 4])
    return torch.autograd.gradcheck(lambda x: vocab_parallel(x, targets), own) if count == 1 else None


class Vocabulary(unittest.TestCase):
    def test_results_and_gradients_are_those_of_the_whole(self):
        for count in (1, 2, 4):
            for shape, dtype, bound in (((64, 5000), torch.float32, 1e-6), ((4, 3, 96), torch.float64, 1e-12),
                                        ((9, 96), torch.bfloat16, 4e-3), ((9, 96), torch.float16, 5e-4)):
                with self.subTest(ranks=count, shape=shape, dtype=dtype):
                    for logs, entropy, gradient in over(count, vocabulary, shape, dtype):
                        self.assertLess(logs, 3e-6)
                        self.assertLess(entropy, 3e-6)
                        self.assertLess(gradient, bound)

    def test_columns_need_not_be_equally_many_nor_all_finite(self):
        for bounds in ([0, 5, 12], [0, 0, 12]):
            for logs, entropy, gradient in over(2, vocabulary, (7, 12), torch.float32, bounds, True):
                self.assertLess(max(logs, entropy, gradient), 1e-5)

    def test_gradients_are_slopes(self):
        self.assertTrue(over(1, slopes)[0])

    def test_a_sum_of_losses_is_cross_entropy(self):
        logits, targets = drawn((6, 10), 1), torch.tensor([0, 9, -100, 3, 3, 5])
        self.assertAlmostEqual(-vocab_parallel(logits, targets)[0].sum().item(),
                               cross_entropy(logits, targets, reduction="sum").item(), delta=1e-5)

    def test_nan_stays_nan(self):
        logits = drawn((2, 4), 1)
        logits[1, 2] = float("nan")
        entropy = vocab_parallel_entropy(logits)
        self.assertEqual(entropy.isnan().tolist(), [False, True])

    def test_what_cannot_be_right_is_refused_by_all_members(self):
        def refused(body):
            def asked():
                try:
                    body(*place())
                except Error as error:
                    return str(error)
                return "accepted"
            found = set(over(2, asked))
            self.assertEqual(len(found), 1)
            return found.pop()

        self.assertIn("2 to 3 columns", refused(lambda rank, count: vocab_parallel_entropy(torch.zeros(4, 2 + rank))))
        self.assertIn("target 8 of row 1 is the column of 0 members", refused(
            lambda rank, count: vocab_parallel(torch.zeros(2, 4), torch.tensor([0, 8]))))
        self.assertIn("target 2 of row 0 is the column of 2 members", refused(
            lambda rank, count: vocab_parallel(torch.zeros(1, 4), torch.tensor([2]), first_column=0)))
        self.assertIn("expected int64 targets (2,)", refused(
            lambda rank, count: vocab_parallel(torch.zeros(2, 4), torch.tensor([0]))))


def moments(dtype):
    """This rank's mean, variances and gradients, and the most that they differ from those of all values in one place.
    Members have different numbers of values, and NaN where the mask is 0."""
    rank, count = place()
    parts = [(drawn((3 + each, 4), each, dtype), (drawn((3 + each, 4), 50 + each) > 0).float() * (1 + each))
             for each in range(count)]
    own, mask = parts[rank]
    own = torch.where(mask == 0, float("nan"), own).requires_grad_()
    results = [masked_mean(own, mask), masked_variance(own, mask), masked_variance(own, mask, unbiased=False)]
    gradients = [torch.autograd.grad(result, own)[0] for result in results]
    values = torch.cat([part.flatten() for part, _ in parts]).double().requires_grad_()
    weights = torch.cat([each.flatten() for _, each in parts]).double()
    mean = (values * weights).sum() / weights.sum()
    squares = (weights * (values - mean)**2).sum()
    expected = [mean, squares / (weights.sum() - 1), squares / weights.sum()]
    first = sum(part.numel() for part, _ in parts[:rank])
    worst = 0.0
    for result, gradient, of_all in zip(results, gradients, expected):
        theirs = torch.autograd.grad(of_all, values, retain_graph=True)[0][first:first + own.numel()].view(own.shape)
        worst = max(worst, abs(result.item() - of_all.item()), (gradient - theirs).abs().max().item())
    return [result.item().hex() for result in results], worst


class Moments(unittest.TestCase):
    def test_are_those_of_all_values_with_the_same_bits_on_all_ranks(self):
        for count in (1, 2, 4):
            for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
                found = over(count, moments, dtype)
                self.assertEqual({tuple(results) for results, _ in found}, {tuple(found[0][0])})
                self.assertLess(max(worst for _, worst in found), bound)

    def test_of_nothing_are_refused(self):
        with self.assertRaisesRegex(Error, "0 everywhere") as caught:
            masked_mean(torch.ones(3), torch.zeros(3))
        self.assertEqual(caught.exception.status, Status.NUMERIC)
        with self.assertRaisesRegex(Error, "unbiased=False"):
            masked_variance(torch.ones(3), torch.tensor([0, 1, 0]))
        self.assertEqual(masked_variance(torch.ones(3), torch.tensor([0, 1, 0]), unbiased=False).item(), 0)
        with self.assertRaisesRegex(Error, r"\(3,\) and \(2,\)"):
            masked_mean(torch.ones(3), torch.ones(2))


def batch(rows, seed=0, **meta):
    return Batch({"tokens": torch.arange(rows * 2).view(rows, 2) + 100 * seed, "done": torch.arange(rows) % 2 == 0,
                  "scores": drawn((rows,), seed, torch.bfloat16)}, {"names": [f"{seed}:{row}" for row in range(rows)]},
                 meta)


def same(a, b):
    return (a.tensors.keys() == b.tensors.keys() and a.arrays == b.arrays and a.meta == b.meta and
            all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a.tensors))


def gathered(rows_of):
    """In the columns of a mesh, as ranks of data parallelism are, or among all ranks."""
    rank, count = place()
    groups = [list(range(first, count, count // 2)) for first in range(count // 2)] if count == 4 else [range(count)]
    made = [dist.new_group(list(members)) for members in groups] if count > 1 else [None]
    mine = next(index for index, members in enumerate(groups) if rank in members)
    found = batch(rows_of(rank), rank, by=rank).all_gather(made[mine])
    expected = Batch.concatenate([Batch(part.tensors, part.arrays) for part in
                                  (batch(rows_of(member), member) for member in groups[mine])])
    expected.meta = {"by": rank}
    return same(found, expected)


def unlike():
    rank, _ = place()
    own = batch(2)
    if rank == 1:
        own.tensors["tokens"] = own.tensors["tokens"].int()
    try:
        own.all_gather()
    except Error as error:
        assert error.status == Status.MISMATCH
        return str(error), len(batch(2).all_gather())
    return "accepted"


class Batches(unittest.TestCase):
    def test_are_gathered_in_the_order_of_the_group(self):
        for count in (1, 2, 4):
            for rows_of in (lambda rank: 2, lambda rank: 3 * rank, lambda rank: 0):
                self.assertEqual(over(count, gathered, rows_of), [True] * count)

    def test_that_differ_are_the_same_error_on_all_ranks(self):
        found = over(2, unlike)
        self.assertEqual(found[0], found[1])
        self.assertIn("tokens is torch.int64 [rows, 2] of member 0, and torch.int32 [rows, 2] of member 1", found[0][0])
        self.assertEqual(found[0][1], 4)

    def test_are_split_and_concatenated_again(self):
        whole_batch = batch(6, version=3)
        parts = whole_batch.split(3)
        self.assertEqual([len(part) for part in parts], [2, 2, 2])
        self.assertTrue(same(Batch.concatenate(parts), whole_batch))
        self.assertEqual(parts[1]["names"], ["0:2", "0:3"])
        with self.assertRaisesRegex(Error, "6 rows cannot be split into 4"):
            whole_batch.split(4)

    def test_are_padded_cyclically_and_unpadded(self):
        for rows, multiple in ((3, 4), (3, 8), (4, 4), (0, 4), (1, 5)):
            padded, added = batch(rows).pad_to_multiple(multiple)
            self.assertEqual(len(padded) % multiple, 0)
            self.assertLess(added, multiple)
            self.assertEqual(padded["names"], [f"0:{row % rows}" for row in range(rows + added)])
            self.assertTrue(same(padded.unpad(added), batch(rows)))

    def test_are_repeated(self):
        self.assertEqual(batch(2).repeat(2)["names"], ["0:0", "0:1", "0:0", "0:1"])
        self.assertEqual(batch(2).repeat(2, interleave=True)["names"], ["0:0", "0:0", "0:1", "0:1"])

    def test_are_united_where_they_agree(self):
        ours = Batch({"a": torch.tensor([1.0, float("nan")])}, {}, {"policy": 3})
        union = ours.union(Batch({"a": ours["a"].clone(), "b": torch.ones(2)}, {"c": "xy"}, {"policy": 3, "seed": 1}))
        self.assertEqual((set(union.tensors), union["c"], union.meta), ({"a", "b"}, ["x", "y"], {"policy": 3, "seed": 1}))
        for other, reason in ((Batch({"a": torch.tensor([1.0, 2.0])}), "tensor a differs"),
                              (Batch({"a": ours["a"].double()}), "tensor a differs"),
                              (Batch({"b": torch.ones(3)}), "2 and 3 rows"),
                              (Batch({"b": torch.ones(2)}, {}, {"policy": 4}), "policy")):
            with self.assertRaisesRegex(Error, reason) as caught:
                ours.union(other)
            self.assertEqual(caught.exception.status, Status.MISMATCH)

    def test_metrics_are_collected_and_other_values_must_be_equal(self):
        joined = Batch.concatenate([Batch({"a": torch.ones(1)}, {}, {"metrics": {"loss": value}, "step": 1})
                                    for value in (0.5, 0.25)])
        self.assertEqual(joined.meta, {"metrics": {"loss": [0.5, 0.25]}, "step": 1})
        with self.assertRaisesRegex(Error, "step of batch 1 is 2, and was 1"):
            Batch.concatenate([Batch({}, {}, {"step": step}) for step in (1, 2)])

    def test_that_are_none_are_refused(self):
        for made, reason in ((lambda: Batch({"a": torch.tensor(1)}), "a has no axis"),
                             (lambda: Batch({"a": torch.ones(2)}, {"b": [1]}), "2 of a, 1 of b"),
                             (lambda: Batch({"a": torch.ones(1)}, {"a": [1]}), "of a tensor and of an array"),
                             (lambda: batch(2).take([2]), "row 2 of a batch of 2"),
                             (lambda: batch(2).slice(1, 2), "rows 1 to 3")):
            with self.assertRaisesRegex(Error, reason):
                made()


def beside_a_trainer():
    """Twice: the store that ranks met in the first time is still there."""
    groups.join()
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 8)
        with Trainer(model, strategy="ddp", lanes=2, lr=0.1) as trainer, trainer.step() as step:
            for lane in step:
                step.backward(masked_mean(model(drawn((3, 4), lane)), torch.ones(3, 8)))
        losses.append(step.outcome.loss)
    groups.leave()
    return losses


class Beside(unittest.TestCase):
    def test_a_trainer_they_use_the_group_of_torch_distributed(self):
        found = ranks.results(2, beside_a_trainer)
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0][0], found[0][1])


if __name__ == "__main__":
    unittest.main()
