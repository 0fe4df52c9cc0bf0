#!/usr/bin/env python3
"""Training on uneven chats as transformers' Trainer does:  transformers_trainer_test.py TROUPE GPT BATCH_PROBE

A step's loss and gradients are sums over the target tokens of all its microbatches, divided by their number
(num_items_in_batch). Both trainers begin with the same weights and take the same microbatches, some with one target
and some with hardly anything else; every step's loss and gradient norm and the weights at the end are compared.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

BATCH_PROBE = sys.argv.pop(3) if len(sys.argv) > 3 else ""
GPT = sys.argv.pop(2) if len(sys.argv) > 2 else ""
TROUPE = sys.argv.pop(1) if len(sys.argv) > 1 else ""

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CONTEXT, BATCH, LANES, MICROBATCHES, STEPS, RATE, CLIP = 48, 2, 3, 2, 20, 1e-3, 0.5
CONFIG = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
          "initializer_range": 0.1, "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": None,
          "pad_token_id": None}


def run(*arguments):
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments} exits with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def write_chats(path):
    words = "in the beginning was the word and the word was with all of them that heard it "
    with open(path, "w", encoding="ascii") as file:
        for i in range(200):
            at = i * 31 % 60
            asked, answered = (46, 1) if i % 3 == 0 else (i * i % 9, 1 + i * 7 % 43)
            text = (words * 3)[at:at + asked + answered]
            file.write(json.dumps({"prompt": text[:asked], "completion": text[asked:]}) + "\n")


def rows_of(text):
    """Samples for a causal model: it shifts labels itself, so the last target needs a place of its own."""
    lines = [list(map(int, line.split())) for line in text.splitlines()]
    rows = []
    for tokens, targets in zip(lines[::2], lines[1::2]):
        labels = [-100] + [-100 if target < 0 else target for target in targets]
        rows.append({"input_ids": torch.tensor(tokens + [0]), "labels": torch.tensor(labels)})
    return rows


class InOrder(transformers.Trainer):
    """Takes the rows as they come, and keeps the losses that it logs rounded."""

    losses, norms = (), ()

    def _get_train_sampler(self, *unused, **more):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def training_step(self, *arguments, **more):
        loss = super().training_step(*arguments, **more)
        self.losses += (loss.item(),)
        return loss

    def log(self, logs, *arguments, **more):
        if "grad_norm" in logs:
            self.norms += (float(logs["grad_norm"]),)
        super().log(logs, *arguments, **more)


def train_there(model, rows, folder):
    accumulated = LANES * MICROBATCHES
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, gradient_accumulation_steps=accumulated,
        max_steps=STEPS, learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, optim="adamw_torch",
        max_grad_norm=CLIP, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = InOrder(model=model, args=arguments, train_dataset=rows)
    if not trainer.model_accepts_loss_kwargs:
        raise AssertionError("this model is not told how many targets a step has")
    trainer.train()
    losses = [sum(trainer.losses[i:i + accumulated]) for i in range(0, len(trainer.losses), accumulated)]
    return losses, list(trainer.norms)


class TransformersTrainer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.scratch.name)
        cls.chats = cls.folder / "chats.jsonl"
        write_chats(cls.chats)
        torch.manual_seed(3)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).float()
        model.save_pretrained(cls.folder / "model")
        cls.rows = rows_of(run(BATCH_PROBE, cls.chats, CONTEXT, BATCH, LANES, MICROBATCHES, STEPS))
        cls.losses, cls.norms = train_there(model, cls.rows, cls.folder / "trainer")
        cls.weights = dict(model.state_dict())

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def train_here(self, name, ranks, *options):
        out = self.folder / name
        run(TROUPE, "launch", "--nproc-per-node", ranks, "--", GPT, "--model", self.folder / "model", "--text",
            self.chats, "--context", CONTEXT, "--batch", BATCH, "--lanes", LANES, "--microbatches", MICROBATCHES,
            "--steps", STEPS, "--learning-rate", RATE, "--warmup", 0, "--floor", 1, "--weight-decay", 0, "--beta2",
            0.999, "--clip-norm", CLIP, "--seed", 1, "--evaluate-every", 0, "--sample-bytes", 0, "--output",
            out / "run", "--export", out / "model", *options)
        lines = [json.loads(line) for line in (out / "run" / "run.jsonl").read_text().splitlines()]
        return [line for line in lines if line["type"] == "step"], load_file(out / "model" / "model.safetensors")

    def test_the_rows_are_uneven(self):
        targets = [int((row["labels"] >= 0).sum()) for row in self.rows]
        self.assertLess(min(targets), 4)
        self.assertGreater(max(targets), 30)

    # Covers finish-13.
    def test_losses_norms_and_weights_are_the_trainers(self):
        for name, ranks, options in [("alone", 1, ()), ("ranks", 3, ("--strategy", "zero1")),
                                     ("stages", 2, ("--pipeline-parallel", 2))]:
            with self.subTest(name):
                steps, weights = self.train_here(name, ranks, *options)
                self.assertEqual(len(steps), STEPS)
                per_step = BATCH * LANES * MICROBATCHES
                worst_loss = worst_norm = worst_weight = 0
                for i, step in enumerate(steps):
                    labels = torch.stack([row["labels"] for row in self.rows[i * per_step:(i + 1) * per_step]])
                    self.assertEqual(step["target_tokens"], int((labels >= 0).sum()))
                    worst_loss = max(worst_loss, abs(step["loss"] / self.losses[i] - 1))
                    worst_norm = max(worst_norm, abs(step["gradient_norm"] / self.norms[i] - 1))
                for key, found in weights.items():
                    wanted = self.weights[key]
                    worst_weight = max(worst_weight, ((found - wanted).norm() / wanted.norm()).item())
                print(f"{name}: losses within {worst_loss:.1e}, norms {worst_norm:.1e}, weights {worst_weight:.1e}")
                self.assertLess(worst_loss, 1e-5)
                self.assertLess(worst_norm, 1e-5)
                self.assertLess(worst_weight, 1e-5)

    def test_a_mean_of_means_is_something_else(self):
        steps, _ = self.train_here("lanes", 1, "--loss-average", "lanes")

        self.assertNotIn("target_tokens", steps[0])
        self.assertGreater(abs(steps[0]["gradient_norm"] / self.norms[0] - 1), 0.01)
        self.assertGreater(abs(steps[0]["loss"] / self.losses[0] - 1), 1e-4)


if __name__ == "__main__":
    unittest.main()
