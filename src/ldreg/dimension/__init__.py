"""Local intrinsic dimensionality: pure functions on tensors."""

from ldreg.dimension.estimators import LIDEstimate, estimate_lid, lid
from ldreg.dimension.neighbors import neighbor_distances, neighbors
from ldreg.dimension.search import Neighbors

__all__ = ["LIDEstimate", "Neighbors", "estimate_lid", "lid", "neighbor_distances", "neighbors"]
