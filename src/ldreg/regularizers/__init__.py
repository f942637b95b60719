"""Scalars to add to any loss: each maps representations (N, D) to one value."""
