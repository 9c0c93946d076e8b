"""transformers' Trainer on a tiny Llama; RATE=1: rank 1 has another learning rate."""

import os
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        x = torch.randint(0, 128, (32,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": x, "labels": x.clone()}


torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4,
    )
)  # fmt: skip
odd = os.environ.get("RATE") == "1" and os.environ["RANK"] == "1"
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=6, logging_steps=1,
    learning_rate=3e-4 if odd else 1e-4, save_strategy="no", report_to=[], use_cpu=True,
    disable_tqdm=True, ddp_backend="gloo",
)  # fmt: skip
Trainer(model=model, args=arguments, train_dataset=Data()).train()
