"""The encoder of a run as a model of timm: `python examples/with_timm.py runs/first`, after an `ldreg pretrain`."""

import sys

import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from ldreg.integrations.timm import create_model

model = create_model(sys.argv[1])  # num_classes=10 puts a classifier on it, for fine-tuning

config = resolve_model_data_config(model)
images = create_transform(**config)(Image.new("RGB", (200, 100), "olive")).unsqueeze(0)  # yours
with torch.no_grad():
    representations = model(images)
print(f"{model.pretrained_cfg['architecture']}: images {config['input_size']}, ", end="")
print(f"representations {tuple(representations.shape)}")
