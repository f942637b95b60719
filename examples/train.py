"""Add LDReg to a plain PyTorch training loop: a SimCLR on 8×8 digits with noise as augmentation, without and with."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from ldreg import LDReg, geometric_mean, lid

images = torch.tensor(load_digits().data, dtype=torch.float32) / 16


def train(share: float, steps: int = 150) -> float:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    head = nn.Sequential(nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=2e-3)
    reg = LDReg(k=32, share=share)
    for _ in range(steps):
        batch = images[torch.randint(len(images), (128,))]
        views = torch.cat([batch + 0.15 * torch.randn_like(batch) for _ in range(2)])
        z, penalty = reg.fork(encoder(views))
        embeddings = normalize(head(z))
        similarity = (embeddings @ embeddings.T / 0.1).fill_diagonal_(-torch.inf)
        loss = cross_entropy(similarity, torch.arange(256).roll(128)) + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return geometric_mean(lid(encoder(images), k=64)).item()


if __name__ == "__main__":
    for share in (0.0, 0.1):
        print(f"share {share}: geometric-mean LID {train(share):.2f}")
