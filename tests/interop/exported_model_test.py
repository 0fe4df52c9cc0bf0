#!/usr/bin/env python3
"""What `troupe checkpoint export --to huggingface` writes is a model of transformers:  exported_model_test.py TROUPE GPT

A small Llama with the tokenizer of a Llama 2 is imported and exported, and fine-tuned by `gpt` on what transformers'
tokenizer made of a text; both directories are loaded by AutoModelForCausalLM and AutoTokenizer.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import transformers
from tokenizer_test import OLD_FORM, TEXT, read, sentencepiece

GPT = sys.argv.pop(2) if len(sys.argv) > 2 else ""
TROUPE = sys.argv.pop(1) if len(sys.argv) > 1 else ""

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def run(*arguments):
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments} exits with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout + done.stderr


def write_model(folder):
    torch.manual_seed(5)
    tokenizer = read(sentencepiece(OLD_FORM))
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    transformers.LlamaForCausalLM(config).float().save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                         unk_token="<unk>").save_pretrained(folder)


class ExportedModelTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = Path(self.scratch.name)
        self.model = self.folder / "model"
        write_model(self.model)

    def load(self, folder):
        return transformers.AutoModelForCausalLM.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)

    def check(self, folder, tensors):
        model, tokenizer = self.load(folder)
        found = model.state_dict()
        self.assertEqual(found.keys(), tensors.keys())
        for name, tensor in tensors.items():
            self.assertEqual(found[name].dtype, tensor.dtype, name)
            self.assertTrue(torch.equal(found[name], tensor), name)
        self.assertEqual(tokenizer(TEXT)["input_ids"], self.load(self.model)[1](TEXT)["input_ids"])

    # Covers save-31.
    def test_of_an_import_is_the_model_again(self):
        tensors = self.load(self.model)[0].state_dict()
        said = run(TROUPE, "checkpoint", "import", self.model, self.folder / "imported")
        said = run(TROUPE, "checkpoint", "export", self.folder / "imported", self.folder / "bare", "--to", "huggingface")
        self.assertIn("no config.json and no tokenizer: --model DIR", said)
        self.assertFalse((self.folder / "bare/config.json").exists())
        run(TROUPE, "checkpoint", "export", self.folder / "imported", self.folder / "again", "--to", "huggingface", "--model",
            self.model)
        self.check(self.folder / "again", tensors)
        run(TROUPE, "checkpoint", "export", self.model, self.folder / "half", "--to", "huggingface", "--dtype", "bf16")
        self.check(self.folder / "half", {name: tensor.bfloat16() for name, tensor in tensors.items()})

    def test_of_a_job_that_learned_token_ids_is_what_the_job_exports(self):
        tokenizer = self.load(self.model)[1]
        with open(self.folder / "ids.jsonl", "w", encoding="utf-8") as file:
            for line in TEXT.split(". ") * 4:
                tokens = tokenizer(line)["input_ids"]
                labels = [-100 if place < 3 else token for place, token in enumerate(tokens)]
                file.write(json.dumps({"tokens": tokens, "labels": labels}) + "\n")
        run(TROUPE, "launch", "--standalone", "--nproc-per-node", "1", "--", GPT, "--model", self.model, "--context", "32",
            "--text", self.folder / "ids.jsonl", "--steps", "3", "--sample-bytes", "0", "--checkpoints", self.folder / "steps",
            "--export", self.folder / "exported")
        run(TROUPE, "checkpoint", "export", self.folder / "steps", self.folder / "tuned", "--to", "huggingface")
        tensors = self.load(self.folder / "exported")[0].state_dict()
        self.assertFalse(torch.equal(tensors["lm_head.weight"], self.load(self.model)[0].state_dict()["lm_head.weight"]))
        self.check(self.folder / "tuned", tensors)
        self.check(self.folder / "exported", tensors)


if __name__ == "__main__":
    unittest.main()
