"""A script as people have it: Hugging Face's Trainer fine-tunes a small Llama. Nothing of Troupe's is named here."""

import torch
import transformers

arguments, = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(3)
config = transformers.LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, initializer_range=0.1)
draw = torch.Generator().manual_seed(1)
rows = torch.randint(64, (64, 16), generator=draw)
trainer = transformers.Trainer(
    model=transformers.LlamaForCausalLM(config), args=arguments,
    train_dataset=[{"input_ids": row, "labels": row} for row in rows])
trainer.train()
if trainer.is_world_process_zero():
    losses = [f"{entry['loss']:.5f}" for entry in trainer.state.log_history if "loss" in entry]
    print("LOSSES", *losses, torch.distributed.get_backend(), flush=True)
