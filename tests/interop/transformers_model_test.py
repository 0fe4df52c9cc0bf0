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
from safetensors.torch import load_file, save_file

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


def yarn(**values):
    return {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32, **values}


def longrope(positions, **values):
    return {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": positions,
            "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 5.0, 16.5], **values}


MODELS = [
    ("Llama", {}),
    ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, "attention_bias": True,
               "num_key_value_heads": 1}),
    ("Llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                                   "high_freq_factor": 3.0, "original_max_position_embeddings": 64}}),
    ("Llama", {"rope_parameters": yarn()}),
    ("Llama", {"rope_parameters": yarn(mscale=0.7, mscale_all_dim=1.3, beta_fast=8.0, beta_slow=2.0, truncate=False)}),
    ("Qwen2", {"rope_parameters": yarn(attention_factor=1.4), "tie_word_embeddings": True}),
    ("Qwen3", {"rope_parameters": yarn(factor=None), "head_dim": 16}),
    ("Mistral", {"rope_parameters": yarn(factor=16.0, original_max_position_embeddings=16), "sliding_window": None}),
    ("Mixtral", {"rope_parameters": yarn(mscale=1.0, mscale_all_dim=1.0), "num_local_experts": 3, "head_dim": 8}),
    ("Llama", {"rope_parameters": longrope(64)}),
    ("Qwen3", {"rope_parameters": longrope(16), "head_dim": 8}),  # shorter than the sequences
    ("Llama", {"rope_parameters": longrope(16, attention_factor=1.1, factor=8.0)}),
    ("Qwen2", {"rms_norm_eps": 1e-5}),
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen3", {"head_dim": 16}),
    ("Qwen3", {"head_dim": 6, "attention_bias": True, "tie_word_embeddings": True}),
    ("Mistral", {"sliding_window": None, "head_dim": 12}),
    ("Mistral", {"sliding_window": 24}),  # as long as the sequences
    ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
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


def quantize(directory, model, rows=5, columns=7):
    """Puts the matrices of layers into fp8 with a factor for each block, and their values into the model."""
    def in_blocks(matrix):
        def spread(factors):
            wide = factors.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
            return wide[:matrix.shape[0], :matrix.shape[1]]
        shape = -(-matrix.shape[0] // rows), -(-matrix.shape[1] // columns)
        factors = torch.tensor([[matrix[rows * i:rows * (i + 1), columns * j:columns * (j + 1)].abs().max() / 448
                                 for j in range(shape[1])] for i in range(shape[0])])
        stored = (matrix / spread(factors)).to(torch.float8_e4m3fn)
        return stored, factors, stored.float() * spread(factors)

    def change(tensors):
        plain = dict(tensors)
        for key in [key for key in tensors if ".layers." in key and tensors[key].dim() == 2 and ".gate.weight" not in key]:
            tensors[key], tensors[key + "_scale_inv"], plain[key] = in_blocks(tensors[key])
        save_file(plain, directory / "plain.safetensors", {"format": "pt"})

    change_tensors(directory, change)
    with torch.no_grad():
        other = directory.parent / "plain"
        other.mkdir()
        (directory / "plain.safetensors").rename(other / "model.safetensors")
        (other / "config.json").write_text((directory / "config.json").read_text())
        model.load_state_dict(type(model).from_pretrained(other).state_dict())
    change_config(directory, quantization_config={"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                                  "weight_block_size": [rows, columns]})


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


def save(directory, seed=5, shards=False, **values):
    """A Llama of random weights, whose seed tells it from others."""
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **values})).float()
    model.save_pretrained(directory, max_shard_size="20KB" if shards else "1GB")
    return model


def change_config(directory, **values):
    file = directory / "config.json"
    config = json.loads(file.read_text())
    for key, value in values.items():
        config.pop(key, None)
        if value is not ...:
            config[key] = value
    file.write_text(json.dumps(config))


def change_tensors(directory, change):
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def crowded_directories():
    """What people have: names, and functions that write a directory and return options that it needs."""
    def stale_index(directory):
        save(directory, seed=6, shards=True)
        index = (directory / "model.safetensors.index.json").read_text()
        others = {file.name: file.read_bytes() for file in directory.glob("model-*.safetensors")}
        save(directory)
        (directory / "model.safetensors.index.json").write_text(index)
        for name, data in others.items():
            (directory / name).write_bytes(data)

    def shards_that_are_not_in_the_index(directory):
        save(directory, shards=True)
        (directory / "other").mkdir()
        model = save(directory / "other", seed=6)
        (directory / "model-00001-of-00009.safetensors").write_bytes(
            (directory / "other" / "model.safetensors").read_bytes())
        torch.save(model.state_dict(), directory / "pytorch_model.bin")
        (directory / "consolidated.safetensors").write_bytes(b"")

    def a_tensor_that_the_index_lacks(directory):
        save(directory, shards=True)
        file = directory / "model.safetensors.index.json"
        index = json.loads(file.read_text())
        files = list(index["weight_map"].values())
        del index["weight_map"][next(key for key, name in index["weight_map"].items() if files.count(name) > 1)]
        file.write_text(json.dumps(index))

    def a_file_named_by_the_configuration(directory):
        save(directory, seed=6)
        (directory / "mine.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
        save(directory)
        change_config(directory, transformers_weights="mine.safetensors")

    def a_tied_head_that_is_stored(directory):
        save(directory, tie_word_embeddings=True)
        change_tensors(directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))

    def a_head_that_differs(directory):
        save(directory)
        change_config(directory, tie_word_embeddings=True)
        return ["tie_word_embeddings=false"]

    def an_index_of_a_tied_head(directory):
        save(directory, shards=True, tie_word_embeddings=True)
        file = directory / "model.safetensors.index.json"
        index = json.loads(file.read_text())
        index["weight_map"]["lm_head.weight"] = sorted(index["weight_map"].values())[0]
        file.write_text(json.dumps(index))

    def old_spellings(directory):
        save(directory, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5})
        change_config(directory, rope_parameters=..., rope_theta=1e5, rope_scaling={"type": "linear", "factor": 4.0},
                      architectures=["FSDPLlamaForCausalLM"], dtype=..., torch_dtype="float32")

    def missing_keys(directory):
        save(directory, num_key_value_heads=4, rms_norm_eps=1e-6)
        change_config(directory, num_key_value_heads=..., rms_norm_eps=..., rope_parameters=..., architectures=...,
                      tie_word_embeddings=..., head_dim=..., attention_bias=..., max_position_embeddings=...)

    def keys_that_nobody_reads(directory):
        save(directory)
        change_config(directory, is_llama_config=True, rope_interleaved=False, unsloth_version="1",
                      attn_logit_softcapping=0.0, embedding_multiplier=1.0, use_sliding_window=False,
                      sliding_window=4, _flash_attn_2_enabled=True, **{"transformers.js_config": {"dtype": "q4"}})

    for make in list(locals().values()):
        yield make.__name__, make


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

    def test_matrices_in_fp8_are_their_values_times_their_factors(self):
        for name, values in [("Llama", {}), ("Qwen3", {"head_dim": 16, "rope_parameters": yarn()}),
                             ("Mixtral", {"num_local_experts": 3})]:
            with self.subTest(model=name), tempfile.TemporaryDirectory() as folder:
                model = make_model(name, values)
                model.save_pretrained(Path(folder) / "model")
                quantize(Path(folder) / "model", model)
                self.compare_passes(model, Path(folder))

    def loss_of(self, folder, tokens, *options):
        text = run(MODEL_PROBE, folder, BATCH, LENGTH, str(folder) + ".gradients", *options,
                   input=" ".join(map(str, tokens.flatten().tolist())))
        return float(text.split()[0])

    def loss_in_transformers(self, folder, tokens):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(tokens[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()

    def test_directories_of_others_are_read_as_transformers_reads_them(self):
        tokens = torch.randint(0, SMALL["vocab_size"], (BATCH, LENGTH + 1))
        for name, make in crowded_directories():
            with self.subTest(directory=name), tempfile.TemporaryDirectory() as folder:
                directory = Path(folder) / "model"
                options = make(directory) or []
                wanted = self.loss_in_transformers(directory, tokens)
                self.assertLess(abs(self.loss_of(directory, tokens, *options) - wanted), 1e-5)

    # Covers ranks-19.
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
