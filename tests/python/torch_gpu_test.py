#!/usr/bin/env python3
"""troupe.torch with a model on a GPU: PyTorch's losses, the same bits on any number of ranks with any strategy, and
checkpoints that the host reads. All ranks share the machine's first GPU; without one the tests are skipped."""

import os
import shutil
import tempfile
import unittest

import ranks  # first: it says where troupe is
import models

import torch

from troupe.torch import Trainer

STEPS = 5
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # kernels whose results do not vary
# Children cannot use a GPU that their parent has used, if only to see that it is there.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def llama(dtype=torch.float32, **more):
    torch.use_deterministic_algorithms(True)
    return models.llama(attn_implementation="eager", **more).to("cuda", dtype)


def on_gpu(model, step, lane):
    tokens, labels = (tensor.to(next(model.parameters()).device) for tensor in models.chats(step, lane))
    logits = model(input_ids=tokens).logits.float()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return loss, int((labels[:, 1:] != -100).sum())


def trained(options, steps=STEPS, dtype=torch.float32, **config):
    """The losses in all their bits, the hash of the state, and whether the model has its values after close()."""
    model = llama(dtype, **config)
    with Trainer(model, lanes=models.LANES, lr=3e-3, clip_norm=1.0, **options) as trainer:
        losses = models.train(trainer, on_gpu, steps)
        state = models.bits(trainer.state_dict())
    return [loss.hex() for loss in losses], state, models.bits(model.state_dict()) == state


def plain_losses():
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return models.plain(model, on_gpu, STEPS, optimizer)


def saved_and_restored(folder):
    """What the steps after a save are, without and with a restore; and what the host restores."""
    options = {"lanes": models.LANES, "lr": 3e-3, "checkpoints": folder}
    with Trainer(llama(attention_dropout=0.1), strategy="zero1", **options) as trainer:
        models.train(trainer, on_gpu, 3)
        trainer.save()
        trainer.wait_saves()
        after_three = models.bits(trainer.state_dict())
        losses = models.train(trainer, on_gpu, STEPS)
    with Trainer(llama(attention_dropout=0.1), strategy="zero3", **options) as trainer:
        trainer.restore()
        restored = models.bits(trainer.state_dict())
        again = models.train(trainer, on_gpu, STEPS)
    with Trainer(models.llama(), strategy="ddp", **options) as trainer:
        trainer.restore()
        on_host = models.bits(trainer.state_dict())
    return losses, again, {after_three, restored, on_host}


def current_streams():
    before = torch.cuda.current_stream()
    with Trainer(llama(), lanes=1, lr=1e-3) as trainer:
        within = torch.cuda.current_stream()
        models.train(trainer, on_gpu, 1)
        is_kept = torch.cuda.current_stream() == within
    return before != within, is_kept, torch.cuda.current_stream() == before


def meta():
    torch.use_deterministic_algorithms(True)
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    with Trainer(model, lanes=1, lr=1e-3, device="cuda") as trainer:
        trainer.train_step(lambda lane: model(torch.ones(3, 8, device="cuda")).square().mean())
        return {str(parameter.device) for parameter in model.parameters()}


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class OnAGpu(unittest.TestCase):
    def test_has_the_losses_of_pytorch(self):
        expected = ranks.results(1, plain_losses)[0]
        losses, _, _ = ranks.results(1, trained, {})[0]
        for found, loss in zip(losses, expected):
            self.assertAlmostEqual(float.fromhex(found), loss, delta=2e-5 * loss)

    def test_has_the_same_bits_on_any_number_of_ranks_with_any_strategy(self):
        expected = ranks.results(1, trained, {"strategy": "ddp"})[0]
        self.assertTrue(expected[2])
        for count, strategy in ((1, "zero3"), (2, "ddp"), (2, "zero1"), (2, "zero2"), (2, "zero3")):
            with self.subTest(ranks=count, strategy=strategy):
                self.assertEqual(ranks.results(count, trained, {"strategy": strategy}), [expected] * count)

    def test_trains_in_bf16(self):
        expected = ranks.results(1, trained, {}, STEPS, torch.bfloat16)[0]
        self.assertLess(float.fromhex(expected[0][-1]), float.fromhex(expected[0][0]))
        self.assertEqual(ranks.results(2, trained, {"strategy": "zero3"}, STEPS, torch.bfloat16), [expected] * 2)

    def test_goes_on_from_what_was_saved(self):
        folder = tempfile.mkdtemp()
        try:
            losses, again, states = ranks.results(1, saved_and_restored, folder)[0]
        finally:
            shutil.rmtree(folder)
        self.assertEqual(losses, again)
        self.assertEqual(len(states), 1)

    def test_computes_on_the_sessions_stream_until_it_is_closed(self):
        self.assertEqual(ranks.results(1, current_streams)[0], (True, True, True))

    def test_gives_meta_models_memory_there(self):
        self.assertEqual(ranks.results(1, meta)[0], {"cuda:0"})


if __name__ == "__main__":
    unittest.main()
