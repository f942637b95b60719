"""Local intrinsic dimensionality: pure functions on tensors."""

from ldreg.lid.estimators import LIDEstimate, lid
from ldreg.lid.neighbors import Neighbors, neighbor_distances, neighbors

__all__ = ["LIDEstimate", "Neighbors", "lid", "neighbor_distances", "neighbors"]
