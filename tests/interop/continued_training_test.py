#!/usr/bin/env python3
"""Training that began in PyTorch goes on in Troupe with the losses that PyTorch has:  continued_training_test.py TROUPE GPT

Small models of transformers take some steps of AdamW; their checkpoint, as FSDP2 with torch.distributed.checkpoint,
Accelerate's functions for FSDP, or torch.save write it, is imported, and `gpt` does the next steps, as PyTorch does.
"""

import json
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.distributed.checkpoint.state_dict import get_state_dict

GPT = sys.argv.pop(2) if len(sys.argv) > 2 else ""
TROUPE = sys.argv.pop(1) if len(sys.argv) > 1 else ""
CONTEXT, BEFORE, AFTER, RATE, WORLD = 48, 6, 6, 2e-3, 2
TEXT = "the quick brown fox jumps over the lazy dog and naps"[:CONTEXT]
SMALL = {"vocab_size": 264, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.1, "bos_token_id": None,
         "eos_token_id": 0}
MODELS = {"Llama": {}, "Qwen3": {"head_dim": 8, "tie_word_embeddings": True},
          "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
          "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
                       "head_dim": 8}}

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def run(*arguments):
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments} exits with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(
        vocab_size=257, special_tokens=["<|end|>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    return tokenizer


def make_model(name, **changes):
    torch.manual_seed(5)
    config = getattr(transformers, name + "Config")(**{**SMALL, **MODELS[name], **changes})
    config._attn_implementation = "eager"
    return getattr(transformers, name + "ForCausalLM")(config).float().train()


def tokens():
    return torch.tensor([make_tokenizer().encode(TEXT).ids + [0]])


def take_steps(model, optimizer, count, frozen=None):
    """The loss before each step. `frozen` is a part of names and the steps in which those have no gradient."""
    losses = []
    row = tokens()
    for step in range(count):
        optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(frozen is None or frozen[0] not in name or step not in frozen[1])
        logits = model(row[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)


def save_with_accelerate(model, optimizer, folder, version, full):
    """The name that Accelerator.save_state() gives it."""
    from accelerate import PartialState
    from accelerate.utils import save_fsdp_model, save_fsdp_optimizer
    from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType
    PartialState(cpu=True)  # its logger wants one
    kind = StateDictType.FULL_STATE_DICT if full else StateDictType.SHARDED_STATE_DICT
    plugin = types.SimpleNamespace(state_dict_type=kind, fsdp_version=version,
                                   state_dict_config=types.SimpleNamespace(offload_to_cpu=False, rank0_only=False))
    accelerator = types.SimpleNamespace(process_index=dist.get_rank(), num_processes=dist.get_world_size(),
                                        wait_for_everyone=dist.barrier, is_fsdp2=version == 2)
    save_fsdp_model(plugin, accelerator, model, folder)
    save_fsdp_optimizer(plugin, accelerator, optimizer, model, folder)


def sharded_training(rank, name, kind, folder):
    from torch.distributed.fsdp import fully_shard
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, init_method=f"file://{folder}/rendezvous")
    model = make_model(name)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = optimizer_of(model)
    take_steps(model, optimizer, BEFORE)
    if kind == "dcp":
        model_state, optimizer_state = get_state_dict(model, optimizer)
        dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id=f"{folder}/foreign")
    else:
        save_with_accelerate(model, optimizer, f"{folder}/foreign", 2, kind == "accelerate_full")
    losses = take_steps(model, optimizer, AFTER)
    if rank == 0:
        Path(f"{folder}/losses.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


class ContinuedTraining(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)
        (self.path / "text.jsonl").write_text((json.dumps({"text": TEXT}) + "\n") * 40)

    def continued(self, name, foreign, *options):
        """The losses of the next steps here."""
        make_model(name).save_pretrained(self.path / "model")
        make_tokenizer().save(str(self.path / "model/tokenizer.json"))
        run(TROUPE, "checkpoint", "import", foreign, self.path / "own", "--optimizer", "torch", *options)
        run(GPT, "--model", self.path / "model", "--context", CONTEXT, "--text", self.path / "text.jsonl", "--steps",
            BEFORE + AFTER, "--resume", self.path / "own", "--learning-rate", RATE, "--warmup", 0, "--floor", 1, "--lanes", 1,
            "--batch", 1, "--weight-decay", 0, "--beta2", 0.999, "--clip-norm", 0, "--evaluate-every", 0, "--sample-bytes", 0,
            "--output", self.path / "record")
        records = [json.loads(line) for line in (self.path / "record/run.jsonl").read_text().splitlines()]
        return {record["step"]: record["loss"] for record in records if "loss" in record and "step" in record}

    def compare(self, found, expected):
        self.assertEqual(len(found), AFTER, found)
        for (step, ours), theirs in zip(sorted(found.items()), expected):
            self.assertLess(abs(ours - theirs), 1e-5, f"step {step}: {ours} here, {theirs} in PyTorch")
        self.assertLess(expected[-1], expected[0])

    def sharded(self, name, kind):
        mp.spawn(sharded_training, args=(name, kind, str(self.path)), nprocs=WORLD)
        self.compare(self.continued(name, self.path / "foreign"), json.loads((self.path / "losses.json").read_text()))

    def test_fsdp2_with_distributed_checkpoints(self):
        self.sharded("Llama", "dcp")

    def test_fsdp2_with_a_tied_head(self):
        self.sharded("Qwen3", "dcp")

    def test_accelerate_with_sharded_states(self):
        self.sharded("Llama", "accelerate_sharded")

    def test_accelerate_with_full_states(self):
        self.sharded("Llama", "accelerate_full")

    def test_experts_in_one_tensor_with_mixtrals_names(self):
        self.sharded("Mixtral", "dcp")

    def test_experts_in_one_tensor_with_qwens_names(self):
        self.sharded("Qwen3Moe", "dcp")

    def late(self, part, steps):
        """Parameters with `part` in their names have no gradient in these of the first steps."""
        model = make_model("Llama")
        optimizer = optimizer_of(model)
        take_steps(model, optimizer, BEFORE, (part, steps))
        names = [name for name, _ in model.named_parameters()]
        state = {names[i]: values for i, values in optimizer.state_dict()["state"].items()}
        counts = {names[i]: int(values["step"]) for i, values in optimizer.state_dict()["state"].items()}
        self.assertTrue(all(counts.get(name, 0) == BEFORE - len(steps) for name in names if part in name), counts)
        dcp.save({"model": model.state_dict(), "optim": {"state": state}}, checkpoint_id=self.path / "foreign",
                 no_dist=True)
        losses = take_steps(model, optimizer, AFTER)
        self.compare(self.continued("Llama", self.path / "foreign"), losses)

    def test_parameters_that_took_fewer_steps(self):
        self.late("layers.1.", {0, 1, 2, 3})

    def test_parameters_that_never_had_a_gradient(self):
        self.late("layers.1.mlp", set(range(BEFORE)))

    def test_a_file_of_torch_save_with_numbers(self):
        model = make_model("Llama")
        optimizer = optimizer_of(model)
        take_steps(model, optimizer, BEFORE)
        torch.save({"model": {"module." + name: tensor for name, tensor in model.state_dict().items()},
                    "optimizer": optimizer.state_dict(), "global_step": BEFORE}, self.path / "foreign.pt")
        self.compare(self.continued("Llama", self.path / "foreign.pt"), take_steps(model, optimizer, AFTER))


if __name__ == "__main__":
    unittest.main()
