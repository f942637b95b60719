"""Measure and prevent local dimensional collapse of representations (LDReg, ICLR 2024)."""

from ldreg.inspection import inspect
from ldreg.lid import lid, neighbor_distances
from ldreg.lid.geometry import fisher_rao, frechet_variance, geometric_mean
from ldreg.lid.global_dim import global_dimension
from ldreg.regularizers.ldreg import LDReg
from ldreg.reporting.record import DimensionReport
from ldreg.spectrum import effective_rank

__all__ = [
    "DimensionReport",
    "LDReg",
    "effective_rank",
    "fisher_rao",
    "frechet_variance",
    "geometric_mean",
    "global_dimension",
    "inspect",
    "lid",
    "neighbor_distances",
]
