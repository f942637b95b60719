"""LDReg in a training script of lightly: SimCLR with a ResNet-18, on random images in the place of yours."""

import torch
import torchvision
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms.simclr_transform import SimCLRTransform
from torch import nn

from ldreg import LDReg  # added: 1

STEPS = 2

backbone = nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])
head = SimCLRProjectionHead(512, 512, 128)
criterion = NTXentLoss()
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.06)
dataset = torchvision.datasets.FakeData(64, (3, 32, 32), transform=SimCLRTransform(input_size=32))
loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)

reg = LDReg(k=16, beta=0.01)  # added: 2 (k=64 where batches are larger)

for step, ((x0, x1), _) in zip(range(STEPS), loader, strict=False):
    h0, h1 = backbone(x0).flatten(1), backbone(x1).flatten(1)
    loss = criterion(head(h0), head(h1))
    plain = loss.item()
    loss = loss + reg(torch.cat([h0, h1]))  # added: 3 (on what the backbone returns, not on the head's output)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {plain:.4f}, with LDReg {loss.item():.4f}")
