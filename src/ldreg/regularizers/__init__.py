"""Regularizers: each maps representations (N, D) to a scalar to add to any loss."""

from ldreg.regularizers.covariance import Covariance, VarianceCovariance
from ldreg.regularizers.koleo import KoLeo
from ldreg.regularizers.ldreg import LDReg
from ldreg.regularizers.sigreg import SIGReg

__all__ = ["Covariance", "KoLeo", "LDReg", "SIGReg", "VarianceCovariance"]
