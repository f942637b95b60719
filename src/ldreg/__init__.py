"""Measure and prevent local dimensional collapse of representations (LDReg, ICLR 2024).

The names below are imported where they are first used, so that `ldreg --help` does not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ldreg.dimension.estimators import lid
    from ldreg.dimension.geometry import fisher_rao, frechet_variance, geometric_mean
    from ldreg.dimension.global_dim import global_dimension
    from ldreg.dimension.neighbors import neighbor_distances
    from ldreg.dimension.spectrum import effective_rank
    from ldreg.inspection.measure import inspect
    from ldreg.inspection.report import DimensionReport
    from ldreg.regularizers.balance import Balance, suggest_beta
    from ldreg.regularizers.ldreg import LDReg

__version__ = "0.1.0"
__all__ = [
    "Balance",
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
    "suggest_beta",
]

_HOMES = {
    "Balance": "ldreg.regularizers.balance",
    "DimensionReport": "ldreg.inspection.report",
    "LDReg": "ldreg.regularizers.ldreg",
    "effective_rank": "ldreg.dimension.spectrum",
    "fisher_rao": "ldreg.dimension.geometry",
    "frechet_variance": "ldreg.dimension.geometry",
    "geometric_mean": "ldreg.dimension.geometry",
    "global_dimension": "ldreg.dimension.global_dim",
    "inspect": "ldreg.inspection.measure",
    "lid": "ldreg.dimension.estimators",
    "neighbor_distances": "ldreg.dimension.neighbors",
    "suggest_beta": "ldreg.regularizers.balance",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
