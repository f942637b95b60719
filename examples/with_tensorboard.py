"""Dimensions in TensorBoard: scalars, the histogram of LID, and points to look at by their LID.

`python examples/with_tensorboard.py events`, then `tensorboard --logdir events`.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch.utils.tensorboard import SummaryWriter

from ldreg.integrations.tensorboard import add_dimensions

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data / 16).float()
encoder = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))

with SummaryWriter(sys.argv[1]) as writer, torch.no_grad():
    for step in range(3):  # in the place of epochs: each flattens the representations further
        representations = encoder(images) * torch.logspace(0, -step, 32)
        scalars = add_dimensions(writer, representations, step=step, labels=digits.target.tolist(), k=32)
        print(f"step {step}: LID {scalars['lid']:.2f}, effective rank {scalars['effective_rank']:.2f}")
