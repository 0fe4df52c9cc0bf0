#!/usr/bin/env python3
"""The trainer's model and transformers' compute the same:  transformers_model_test.py GPT MODEL_PROBE

Tiny models with random weights are saved by transformers. Our logits, loss and gradients from those files are compared
with its own; and what `gpt --export` writes is loaded by transformers, bit for bit.
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

MODEL_PROBE = sys.argv.pop(2) if len(sys.argv) > 2 else ""
GPT = sys.argv.pop(1) if len(sys.argv) > 1 else ""

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

BATCH, LENGTH = 2, 24
SMALL = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
         "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
MODELS = [
    ("Llama", {}),
    ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, "attention_bias": True,
               "num_key_value_heads": 1}),
    ("Qwen2", {"rms_norm_eps": 1e-5}),
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen3", {"head_dim": 16}),
    ("Qwen3", {"head_dim": 6, "attention_bias": True, "tie_word_embeddings": True}),
    ("Mistral", {"sliding_window": None, "head_dim": 12}),
    ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    ("Qwen2Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                  "shared_expert_intermediate_size": 28, "mlp_only_layers": [0]}),
    ("Qwen3Moe", {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True,
                  "head_dim": 16}),
    ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": False,
                  "tie_word_embeddings": True}),
]


def run(*arguments, **more):
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise AssertionError(f"{arguments} exits with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def make_model(name, values):
    torch.manual_seed(5)
    config = getattr(transformers, name + "Config")(**{**SMALL, **values})
    config._attn_implementation = "eager"
    model = getattr(transformers, name + "ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # Biases begin as zeros and norms as ones, which would hide mistakes.
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def by_file(model, tensors):
    """Tensors by the names that they have in files, where each expert has its own; in memory all are one."""
    mixtral = model.config.model_type == "mixtral"
    gate, down, up = ("w1", "w2", "w3") if mixtral else ("gate_proj", "down_proj", "up_proj")
    found = {}
    for key, tensor in tensors.items():
        name = key.replace(".mlp.", ".block_sparse_moe.") if mixtral else key
        prefix, _, last = name.rpartition(".")
        if last == "gate_up_proj" and ".experts" in prefix:
            for i, expert in enumerate(tensor):
                found[f"{prefix}.{i}.{gate}.weight"], found[f"{prefix}.{i}.{up}.weight"] = expert.chunk(2)
        elif last == "down_proj" and ".experts" in prefix:
            found.update({f"{prefix}.{i}.{down}.weight": expert for i, expert in enumerate(tensor)})
        else:
            found[name] = tensor
    return found


class TransformersModel(unittest.TestCase):
    def each_model(self, check):
        for name, values in MODELS:
            with self.subTest(model=name, values=values), tempfile.TemporaryDirectory() as folder:
                model = make_model(name, values)
                model.save_pretrained(Path(folder) / "model")
                check(model, Path(folder))

    def test_logits_and_gradients_agree(self):
        self.each_model(self.compare_passes)

    def compare_passes(self, model, folder):
        tokens = torch.randint(0, SMALL["vocab_size"], (BATCH, LENGTH + 1))
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()

        text = run(MODEL_PROBE, folder / "model", BATCH, LENGTH, folder / "gradients",
                   input=" ".join(map(str, tokens.flatten().tolist())))

        ours = torch.tensor([float(line) for line in text.split()])
        self.assertLess((ours[1:].view(logits.shape) - logits).abs().max().item(), 1e-4)
        self.assertLess(abs(ours[0].item() - loss.item()), 1e-5)
        gradients = load_file(folder / "gradients" / "model.safetensors")
        wanted = by_file(model, {key: parameter.grad for key, parameter in model.named_parameters()})
        self.assertEqual(set(gradients), set(wanted))
        for key, gradient in gradients.items():
            error = (gradient - wanted[key]).norm() / wanted[key].norm()
            self.assertLess(error.item(), 1e-3, key)

    def test_exported_directories_load_with_equal_tensors(self):
        self.each_model(self.compare_export)

    def compare_export(self, model, folder):
        text = folder / "text"
        text.write_text("In the beginning was the word. " * 60)

        run(GPT, "--local", "--model", folder / "model", "--context", 16, "--text", text, "--steps", 3,
            "--sample-bytes", 0, "--evaluate-every", 0, "--export", folder / "out")

        stored = load_file(folder / "out" / "model.safetensors")
        loaded, report = type(model).from_pretrained(folder / "out", output_loading_info=True)
        self.assertFalse(report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"])
        parameters = by_file(loaded, dict(loaded.named_parameters()))
        self.assertEqual(set(parameters), set(stored))
        before = by_file(model, dict(model.named_parameters()))
        for key, values in stored.items():
            self.assertEqual(values.dtype, torch.float32)
            self.assertTrue(torch.equal(parameters[key], values), key)
            self.assertFalse(torch.equal(before[key], values), key + " was trained")
        config = json.loads((folder / "out" / "config.json").read_text())
        config.pop("torch_dtype", None)
        self.assertEqual(config, json.loads((folder / "model" / "config.json").read_text()))


if __name__ == "__main__":
    unittest.main()
