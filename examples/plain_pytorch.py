"""Measure and raise the LID of an encoder's output in ten lines of plain PyTorch."""

import torch

from ldreg import LDReg, geometric_mean, lid

torch.manual_seed(0)
encoder, reg = torch.nn.Linear(64, 16), LDReg(k=32, beta=0.1)
optimizer, data = torch.optim.Adam(encoder.parameters(), lr=1e-2), torch.randn(512, 64) @ torch.randn(64, 64).tril()
for step in range(101):
    representations = encoder(data)
    loss = 1e-3 * representations.square().mean() + reg(representations)  # your loss, and the value to add to it
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: LID {geometric_mean(lid(representations.detach(), k=32)):.2f}")
