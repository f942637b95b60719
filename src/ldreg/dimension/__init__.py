"""Local and global dimensionality: pure functions of tensors that import torch alone."""
