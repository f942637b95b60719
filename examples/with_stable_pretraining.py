"""Watch the dimension of representations, and regularize it, in a training script of stable-pretraining."""

import tempfile
from typing import Any

import lightning as pl
import stable_pretraining as spt
import torch
from sklearn.datasets import load_digits
from torch import nn

from ldreg import LDReg  # added
from ldreg.integrations.lightning import DimensionMonitor  # added

reg = LDReg(k=16, beta=0.01)  # added


def forward(self: Any, batch: dict[str, Any], stage: str) -> dict[str, Any]:
    views = [batch["image"] + 0.1 * torch.randn_like(batch["image"]) for _ in range(2)]
    embeddings = [self.backbone(view) for view in views]
    state = {"embedding": embeddings[0]}
    if self.training:
        state["loss"] = self.loss(*map(self.projector, embeddings))
        state["loss"] = state["loss"] + sum(map(reg, embeddings)) / 2  # added
    return state


class Digits(torch.utils.data.Dataset[dict[str, Any]]):
    """scikit-learn's digits in the place of your images."""

    def __init__(self, part: slice) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.data[part] / 16).float()
        self.labels = digits.target[part].tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index], "label": self.labels[index]}


def loader(part: slice) -> Any:
    return torch.utils.data.DataLoader(Digits(part), batch_size=128, drop_last=True)


module = spt.Module(
    forward=forward,
    backbone=nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)),
    projector=nn.Linear(32, 16),
    loss=spt.losses.NTXEntLoss(temperature=0.5),
    optim={"optimizer": {"type": "AdamW", "lr": 1e-3}, "scheduler": "ConstantLR"},
)
monitor = DimensionMonitor("backbone", k=32, every_steps=5)  # added: what "backbone" returns is measured
with tempfile.TemporaryDirectory() as folder:
    spt.set(cache_dir=folder)
    trainer = pl.Trainer(
        max_epochs=2,
        callbacks=[monitor],  # added
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = spt.data.DataModule(train=loader(slice(0, 1280)), val=loader(slice(1280, None)))
    spt.Manager(trainer=trainer, module=module, data=data, seed=0)()

for name, value in monitor.latest.items():  # what loggers, EarlyStopping and ModelCheckpoint see
    print(f"{name}: {value:.2f}")
