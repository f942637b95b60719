"""Watch the dimension of representations while Lightning trains: three lines are added to a script."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

try:
    import lightning.pytorch as pl
except ModuleNotFoundError:
    import pytorch_lightning as pl

from ldreg.integrations.lightning import DimensionMonitor  # added


class Classifier(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.head = nn.Linear(32, 10)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("accuracy", (self.head(self.backbone(batch[0])).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


pl.seed_everything(0, verbose=False)
digits = load_digits()
dataset = torch.utils.data.TensorDataset(torch.tensor(digits.data / 16).float(), torch.tensor(digits.target))
train, val = torch.utils.data.random_split(dataset, [1397, 400])

monitor = DimensionMonitor("backbone", k=32, every_steps=5)  # added: what "backbone" returns is measured
trainer = pl.Trainer(
    max_epochs=2,
    callbacks=[monitor],  # added
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    Classifier(),
    torch.utils.data.DataLoader(train, batch_size=128, shuffle=True),
    torch.utils.data.DataLoader(val, batch_size=128),
)
for name, value in monitor.latest.items():  # what loggers, EarlyStopping and ModelCheckpoint see
    print(f"{name}: {value:.2f}")
