"""Log the dimension of a language model's hidden states while Hugging Face's Trainer trains it."""

import tempfile
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from ldreg.integrations.transformers import DimensionCallback


def sentences(count: int, seed: int) -> list[dict[str, Any]]:
    """Random tokens in the place of yours; the label says whether the first is large."""
    tokens = torch.randint(1, 100, (count, 12), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(12) < torch.randint(4, 13, (count, 1))).long()
    return [
        {"input_ids": row * on, "attention_mask": on, "labels": int(row[0] > 50)}
        for row, on in zip(tokens, mask, strict=True)
    ]


torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=100, **size))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=8, eval_strategy="steps", eval_steps=4, report_to="none", use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(model, arguments, train_dataset=sentences(64, 1), eval_dataset=sentences(200, 2))
    trainer.add_callback(DimensionCallback(trainer, representations="mean", k=32))
    trainer.train()

for entry in trainer.state.log_history:  # and in TensorBoard or W&B, if report_to says so
    if "eval_lid" in entry:
        print(f"step {entry['step']}: LID {entry['eval_lid']:.2f}, effective rank {entry['eval_effective_rank']:.2f}")
