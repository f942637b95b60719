"""Measure and prevent local dimensional collapse of representations (LDReg, ICLR 2024)."""

from ldreg.lid import lid, neighbor_distances
from ldreg.lid.geometry import fisher_rao, frechet_variance, geometric_mean

__all__ = ["fisher_rao", "frechet_variance", "geometric_mean", "lid", "neighbor_distances"]
