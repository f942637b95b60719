"""Local intrinsic dimensionality: pure functions on tensors."""

from ldreg.lid.estimators import LIDEstimate, estimate_lid, lid
from ldreg.lid.neighbors import neighbor_distances, neighbors
from ldreg.lid.search import Neighbors

__all__ = ["LIDEstimate", "Neighbors", "estimate_lid", "lid", "neighbor_distances", "neighbors"]
