#!/usr/bin/env python3
"""troupe.torch shares the experts of models between ranks: as plain PyTorch on one process, with the same bits on any
number of ranks."""

import tempfile
import unittest

import ranks  # first: it says where troupe is
import models

import torch
import transformers

from troupe.torch import Trainer

STEPS, TOKENS = 5, 32


def trained(make, ranks_of_experts, steps=STEPS, muon=False, **options):
    """The losses, what the model says of one text, the trainer's state in bits, and that of the model afterwards."""
    model = make()
    if muon:  # for the matrices of experts, each by itself
        options["groups"] = [{"optimizer": "muon", "momentum": 0.95, "params": [
            parameter for name, parameter in model.named_parameters() if ".experts." in name]}]
    with Trainer(model, **{"lanes": models.LANES, "lr": 1e-3, "weight_decay": 0.1, "clip_norm": 1.0,
                           "expert_tokens": TOKENS, **options}, expert_parallel=ranks_of_experts) as trainer:
        if "checkpoints" in options:
            trainer.restore()
        losses = models.train(trainer, models.sum_of_losses, steps)
        with trainer.evaluation(), torch.no_grad():
            said = model(models.chats(9, 9)[0]).logits.sum().item()
        state = models.bits(trainer.state_dict())
        if "checkpoints" in options:
            trainer.save()
    return losses, said, state, model.state_dict()


def of_one_process(make, steps):
    model = make()
    losses = models.plain(model, models.sum_of_losses, steps,
                          torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1), 1.0)
    return losses, model.state_dict()


def bits_of(count, make, ranks_of_experts, **options):
    """The same on all ranks, and in the model that was trained."""
    found = ranks.results(count, lambda: trained(make, ranks_of_experts, **options))
    for losses, said, state, values in found:
        assert (losses, said, state) == found[0][:3] and models.bits(values) == state, found
    return found[0][:3]


def deepseek():
    torch.manual_seed(1)
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=24, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_group=2, topk_group=1,
        num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8))


def gpt_oss():
    torch.manual_seed(1)
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(
        vocab_size=64, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2))


def frozen(where):
    def make():
        model = models.mixture()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_((".experts." in name) != where)
        return model
    return make


def recomputing(reentrant):
    def make():
        model = models.mixture()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        if reentrant:
            model.enable_input_require_grads()
        return model.train()
    return make


@unittest.skipIf(models.MIXTURE is None, f"transformers {transformers.__version__} has no Qwen3-MoE")
class Experts(unittest.TestCase):
    def test_on_two_ranks_learn_text_as_plain_pytorch_does_on_one_process(self):
        expected_losses, expected = ranks.results(1, of_one_process, models.mixture, 20)[0]
        for strategy in ("zero1", "zero3"):
            with self.subTest(strategy=strategy):
                losses, _, _, state = ranks.results(2, lambda: trained(models.mixture, 2, 20, strategy=strategy))[0]
                self.assertEqual(set(state), set(expected))
                self.assertLess(max(abs(float(a) - b) for a, b in zip(losses, expected_losses)), 1e-5)
                self.assertLess(models.largest_difference(state, expected), 1e-5)
        self.assertGreater(models.largest_difference(models.mixture().state_dict(), expected), 1e-2)

    def test_have_the_bits_of_one_rank_however_many_share_them(self):
        alone = bits_of(1, models.mixture, 1, strategy="ddp")
        for strategy, count, shared, options in (("zero1", 2, 1, {}), ("zero2", 2, 2, {}), ("zero3", 4, 2, {}),
                                                 ("hsdp", 4, 2, {"optimizer_instances": 2})):
            with self.subTest(strategy=strategy, ranks=count, shared=shared):
                self.assertEqual(bits_of(count, models.mixture, shared, strategy=strategy, **options), alone)

    def test_go_on_with_the_same_bits_where_more_ranks_share_them(self):
        alone = bits_of(1, models.mixture, 1, strategy="ddp", muon=True)
        with tempfile.TemporaryDirectory() as folder:
            bits_of(2, models.mixture, 2, strategy="zero1", muon=True, steps=3, checkpoints=folder)
            _, said, state = bits_of(4, models.mixture, 4, strategy="zero3", muon=True, checkpoints=folder)
        self.assertEqual((said, state), alone[1:])

    def test_of_other_routers_and_with_biases_are_shared_too(self):
        for make in (deepseek, gpt_oss, lambda: models.mixture().to(torch.bfloat16)):
            self.assertEqual(bits_of(2, make, 2, strategy="zero3"), bits_of(1, make, 1, strategy="ddp"))

    def test_may_be_frozen_and_may_be_all_that_is_trained(self):
        for where in (True, False):
            self.assertEqual(bits_of(2, frozen(where), 2, strategy="zero3"),
                             bits_of(1, frozen(where), 1, strategy="ddp"))

    def test_lie_within_activation_checkpoints(self):
        kept = bits_of(1, models.mixture, 1, strategy="ddp")
        for reentrant in (False, True):
            for strategy, count in (("ddp", 1), ("zero3", 2)):
                with self.subTest(reentrant=reentrant, strategy=strategy):
                    self.assertEqual(bits_of(count, recomputing(reentrant), count, strategy=strategy), kept)

    def test_are_refused_with_the_reason(self):
        for make, count, options, reason in (
                (models.mixture, 2, {"expert_tokens": 16}, "takes up to expert_tokens=16 tokens of a microbatch, found "
                                                           "32"),
                (models.mixture, 3, {}, "has 4 experts, which 3 ranks cannot share evenly"),
                (models.mixture, 2, {"expert_tokens": None}, "expert_parallel=2 needs expert_tokens"),
                (models.llama, 2, {}, "LlamaForCausalLM has no experts")):
            with self.subTest(reason=reason):
                for found in ranks.outcomes(count, lambda m=make, n=count, o=options: trained(m, n, **o)):
                    self.assertIn(reason, str(found))


if __name__ == "__main__":
    unittest.main()
