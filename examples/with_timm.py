"""The encoder of a run as a model of timm: `python examples/with_timm.py runs/first`, after an `ldreg pretrain`."""

import sys

import torch
from PIL import Image

from ldreg.integrations.timm import create_model

model = create_model(sys.argv[1])  # num_classes=10 puts a classifier on it, for fine-tuning

images = model.transform(Image.new("RGB", (200, 100), "olive")).unsqueeze(0)  # yours, as a file or opened
with torch.no_grad():
    representations = model(images)
print(f"{model.pretrained_cfg['architecture']}: images {model.pretrained_cfg['input_size']}, ", end="")
print(f"representations {tuple(representations.shape)}")
