"""Regularizers: each maps representations (N, D) to a scalar to add to any loss."""

from ldreg.regularizers.baselines import Covariance, KoLeo, SIGReg, VarianceCovariance
from ldreg.regularizers.ldreg import LDReg

__all__ = ["Covariance", "KoLeo", "LDReg", "SIGReg", "VarianceCovariance"]
