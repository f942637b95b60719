"""Follow the dimensionality of an encoder's representations with torchmetrics, batch by batch."""

import torch
from sklearn.datasets import load_digits
from torchmetrics import MetricCollection

from ldreg.integrations.torchmetrics import EffectiveRank, LocalIntrinsicDimension

torch.manual_seed(0)
images = torch.tensor(load_digits().data, dtype=torch.float32)
encoder = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))

metrics = MetricCollection([LocalIntrinsicDimension(k=64), EffectiveRank()])  # which hold the representations once
with torch.no_grad():
    for batch in images.split(256):
        metrics.update(encoder(batch))  # update, not metrics(batch): neighbors come from all batches

for name, value in metrics.compute().items():  # over all processes, where there are several
    print(f"{name}: {value:.2f}")
