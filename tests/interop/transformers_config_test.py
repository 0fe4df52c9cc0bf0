#!/usr/bin/env python3
"""`troupe convert config` and transformers agree on what a configuration says:  transformers_config_test.py TROUPE

Classes of transformers write config.json; what comes back through Megatron's names is the same object to them.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path

import transformers

TROUPE = sys.argv.pop(1) if len(sys.argv) > 1 else ""


def troupe(*arguments):
    done = subprocess.run([TROUPE, "convert", "config", *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise AssertionError(f"troupe convert config {arguments} exits with {done.returncode}:\n{done.stderr}")
    return done.stdout


SMALL = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.01}
MODELS = [
    ("LlamaForCausalLM", "LlamaConfig", {}),
    ("LlamaForCausalLM", "LlamaConfig",
     {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}),
    ("LlamaForCausalLM", "LlamaConfig",
     {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}, "attention_bias": True,
      "tie_word_embeddings": True}),
    ("LlamaForCausalLM", "LlamaConfig",
     {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.1,
                          "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False,
                          "original_max_position_embeddings": 2048}}),
    ("Qwen3ForCausalLM", "Qwen3Config",
     {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                          "truncate": True, "original_max_position_embeddings": 32768}}),
    ("Qwen2ForCausalLM", "Qwen2Config", {}),
    ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 16}),
    ("MistralForCausalLM", "MistralConfig", {"sliding_window": None}),
    ("MistralForCausalLM", "MistralConfig", {"sliding_window": 64}),
    ("Qwen2ForCausalLM", "Qwen2Config", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}),
    ("Qwen3ForCausalLM", "Qwen3Config", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}),
    ("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 8, **EXPERTS}),
    ("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 8, "sliding_window": 64, **EXPERTS}),
    ("Qwen2MoeForCausalLM", "Qwen2MoeConfig",
     {"num_experts": 8, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, **EXPERTS}),
    ("Qwen3MoeForCausalLM", "Qwen3MoeConfig",
     {"num_experts": 8, "moe_intermediate_size": 32, "head_dim": 16, "norm_topk_prob": True, **EXPERTS}),
    ("Qwen3MoeForCausalLM", "Qwen3MoeConfig",
     {"num_experts": 8, "moe_intermediate_size": 32, "head_dim": 16, "mlp_only_layers": [1], **EXPERTS}),
    ("DeepseekV3ForCausalLM", "DeepseekV3Config",
     {"num_key_value_heads": 8, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
      "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
      "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0,
                          "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
                          "original_max_position_embeddings": 4096}}),
]

# Classes whose configuration, with nothing but what they make up themselves, is converted too.
CLASSES = ["Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen2Moe", "Qwen3Moe", "DeepseekV3", "Glm4Moe"]
# What a file may lack: then the class decides. Nothing else has a default that Troupe knows.
LACKING = ["num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings", "rope_parameters",
           "tie_word_embeddings", "attention_bias", "sliding_window", "use_sliding_window", "max_window_layers",
           "layer_types", "attention_dropout", "initializer_range", "hidden_act", "norm_topk_prob", "n_group",
           "topk_group", "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef", "use_qk_norm",
           "model_type", "mlp_bias", "qkv_bias", "rope_interleave"]

# HF attribute -> Megatron field, in every model.
SHARED = {"num_hidden_layers": "num_layers", "hidden_size": "hidden_size", "num_attention_heads": "num_attention_heads",
          "num_key_value_heads": "num_query_groups", "intermediate_size": "ffn_hidden_size",
          "attention_dropout": "attention_dropout", "rms_norm_eps": "layernorm_epsilon",
          "initializer_range": "init_method_std", "num_experts_per_tok": "moe_router_topk"}
# What says how and by whom a file was written, and what older spellings become.
PASSING = {"transformers_version", "_name_or_path", "dtype", "torch_dtype"}
# What DeepSeek's own class reads, and that of transformers does not know.
PASSING |= {"aux_loss_alpha", "scoring_func", "topk_method"}


def meaning(config):
    """The attributes of a configuration, numbers compared as numbers."""
    values = {key: value for key, value in config.to_dict().items() if key not in PASSING}
    # The older name of rope_type.
    values["rope_parameters"] = {key: value for key, value in values["rope_parameters"].items() if key != "type"}
    # Without windows their lengths mean nothing, and full attention everywhere is the default.
    values.pop("max_window_layers", None)
    values["sliding_window"] = values.get("sliding_window") or None
    if not any("sliding" in kind for kind in values.get("layer_types") or []):
        values.pop("layer_types", None)
    return values


class TransformersConfig(unittest.TestCase):
    maxDiff = None

    # Covers ranks-22.
    def test_comes_back_as_it_was(self):
        for architecture, name, values in MODELS:
            with self.subTest(architecture=architecture, values=values), tempfile.TemporaryDirectory() as folder:
                cls = getattr(transformers, name)
                first = cls(**{**SMALL, **values}, architectures=[architecture])
                first.save_pretrained(folder)
                megatron = troupe(folder, "--to", "megatron", "--tp", 2, "--json")
                (Path(folder) / "megatron.json").write_text(megatron)
                again = Path(folder) / "again"
                again.mkdir()
                (again / "config.json").write_text(troupe(Path(folder) / "megatron.json", "--to", "huggingface"))
                second = cls.from_pretrained(again)

                fields = json.loads(megatron)["transformer_config"]
                for key, field in SHARED.items():
                    if hasattr(first, key):
                        self.assertEqual(fields[field], getattr(first, key), field)
                self.assertEqual(meaning(second), meaning(first))

    def fields_of(self, folder):
        fields = json.loads(troupe(folder, "--to", "megatron", "--json", "--class-defaults"))
        fields.pop("huggingface")
        return fields

    def test_the_defaults_of_each_class_are_converted(self):
        for name in CLASSES:
            with self.subTest(name=name), tempfile.TemporaryDirectory() as folder:
                cls = getattr(transformers, name + "Config")
                cls(architectures=[name + "ForCausalLM"]).save_pretrained(folder)
                whole = self.fields_of(folder)
                for key, field in SHARED.items():
                    if hasattr(cls(), key):
                        self.assertEqual(whole["transformer_config"][field], getattr(cls(), key), field)
                self.assertEqual(whole["model"]["rotary_base"], cls().rope_parameters["rope_theta"])
                self.assertEqual(whole["model"]["max_sequence_length"], cls().max_position_embeddings)

    def test_a_missing_key_is_what_the_class_says(self):
        for name in CLASSES:
            cls = getattr(transformers, name + "Config")
            for key in LACKING:
                with self.subTest(name=name, key=key), tempfile.TemporaryDirectory() as folder:
                    cls(architectures=[name + "ForCausalLM"]).save_pretrained(folder)
                    whole = self.fields_of(folder)
                    file = Path(folder) / "config.json"
                    values = json.loads(file.read_text())
                    if key not in values:
                        continue
                    del values[key]
                    file.write_text(json.dumps(values))
                    self.assertEqual(self.fields_of(folder), whole)


# Keys of parts that some classes have, each with another value than the models below have.
KEYS_OF_PARTS = {"num_experts": 5, "num_local_experts": 5, "n_routed_experts": 5, "num_experts_per_tok": 1,
                 "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "n_shared_experts": 2,
                 "decoder_sparse_step": 2, "mlp_only_layers": [0], "moe_layer_freq": 2, "first_k_dense_replace": 0,
                 "norm_topk_prob": True, "n_group": 4, "topk_group": 2, "topk_method": "greedy", "scoring_func": "softmax",
                 "routed_scaling_factor": 3.0, "q_lora_rank": 4, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
                 "qk_rope_head_dim": 4, "qk_head_dim": 9, "v_head_dim": 4, "num_nextn_predict_layers": 1,
                 "num_mtp_layers": 1, "qkv_bias": False, "mlp_bias": True, "tokens_per_second": 4}
# What others leave in such files, and no class reads.
LEFT_BEHIND = {"seq_length": 8, "seq_len": 8, "n_ctx": 8, "n_positions": 8, "fp16": True, "bf16": True, "revision": "x",
               "model_parallel": False, "tokenizer_name": "x", "chat_template": "x", "commit_hash": "x",
               "trust_remote_code": True, "num_logits_to_keep": 1, "logits_to_keep": 1, "use_static_cache": True,
               "return_legacy_cache": True, "penalty_alpha": 0.6, "forced_decoder_ids": [[1, 2]],
               "pad_to_multiple_of": 8, "is_llama_config": True, "unsloth_fixed": True, "max_sequence_length": 8,
               "model_max_length": 8, "use_flash_attn": True, "gradient_checkpointing": True}
TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": None}
TINY_MODELS = {"Llama": {}, "Mistral": {"sliding_window": None}, "Qwen2": {}, "Qwen3": {"head_dim": 8},
               "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
               "Qwen2Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                            "shared_expert_intermediate_size": 16},
               "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}}


@unittest.skipUnless(find_spec("torch"), "needs torch")
class KeysOfOtherModels(unittest.TestCase):
    """What we pass over is what the class does not read, and the other way round."""

    def logits(self, name, values, weights=None):
        import torch
        torch.manual_seed(1)
        config = getattr(transformers, name + "Config")(**{**TINY, **TINY_MODELS[name], **values})
        model = getattr(transformers, name + "ForCausalLM")(config).eval()
        if weights is not None:
            model.load_state_dict(weights)
        with torch.no_grad():
            return model.state_dict(), model((torch.arange(40)[None] * 7 + 3) % 64).logits

    def fields(self, folder, values):
        file = Path(folder) / "changed.json"
        file.write_text(json.dumps({**json.loads((Path(folder) / "config.json").read_text()), **values}))
        fields = json.loads(troupe(file, "--to", "megatron", "--json"))
        fields.pop("huggingface")
        return fields

    def test_are_passed_over_where_the_class_does_not_read_them(self):
        read = 0
        for name, own in TINY_MODELS.items():
            with tempfile.TemporaryDirectory() as folder:
                config = getattr(transformers, name + "Config")(**{**TINY, **own}, architectures=[name + "ForCausalLM"])
                config.save_pretrained(folder)
                plain = self.fields(folder, {})
                weights, expected = self.logits(name, {})
                for key, value in {**KEYS_OF_PARTS, **LEFT_BEHIND}.items():
                    try:
                        ignores = self.logits(name, {key: value}, weights)[1].equal(expected)
                    except (RuntimeError, ValueError, TypeError):
                        ignores = False
                    try:
                        passed_over = self.fields(folder, {key: value}) == plain
                    except AssertionError:
                        passed_over = False
                    read += not ignores
                    self.assertEqual(passed_over, ignores, f"{key} of {name}")
        self.assertGreater(read, 10)


if __name__ == "__main__":
    unittest.main()
