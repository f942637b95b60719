"""Add LDReg to a plain PyTorch training loop: a SimCLR on 8×8 digits with noise as augmentation, without and with."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from ldreg import LDReg, geometric_mean, lid

images = torch.tensor(load_digits().data, dtype=torch.float32) / 16


def train(beta: float, steps: int = 150) -> float:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    head = nn.Sequential(nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=2e-3)
    reg = LDReg(k=32, beta=beta)
    for _ in range(steps):
        batch = images[torch.randint(len(images), (128,))]
        views = torch.cat([batch + 0.15 * torch.randn_like(batch) for _ in range(2)])
        representations = encoder(views)
        embeddings = normalize(head(representations))
        similarity = (embeddings @ embeddings.T / 0.1).fill_diagonal_(-torch.inf)
        loss = cross_entropy(similarity, torch.arange(256).roll(128)) + reg(representations)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return geometric_mean(lid(encoder(images), k=64)).item()


if __name__ == "__main__":
    for beta in (0.0, 0.1):
        print(f"beta {beta}: geometric-mean LID {train(beta):.2f}")
