"""Measure local collapse in embeddings: one class of the digits is squeezed into a plane, and LID finds it."""

import torch
from sklearn.datasets import load_digits

import ldreg

digits = load_digits()
embeddings = torch.tensor(digits.data, dtype=torch.float32)
labels = torch.tensor(digits.target)

# Flatten the 3s onto two axes. The whole set still fills as many directions as before.
threes = embeddings[labels == 3]
axes = torch.linalg.svd(threes - threes.mean(0), full_matrices=False).Vh[:2]
embeddings[labels == 3] = threes.mean(0) + (threes - threes.mean(0)) @ axes.T @ axes

lid = ldreg.lid(embeddings, k=64)
for digit in range(10):
    print(f"class {digit}: LID {ldreg.geometric_mean(lid[labels == digit]):5.2f}")
print(f"effective rank of the whole: {ldreg.effective_rank(embeddings):.1f}")
