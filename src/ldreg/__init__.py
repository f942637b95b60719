"""Measure and prevent local dimensional collapse of representations (LDReg, ICLR 2024).

The names below are imported where they are first used, so that `ldreg --help` does not wait for PyTorch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ldreg.inspection import inspect
    from ldreg.lid import lid, neighbor_distances
    from ldreg.lid.geometry import fisher_rao, frechet_variance, geometric_mean
    from ldreg.lid.global_dim import global_dimension
    from ldreg.regularizers.ldreg import LDReg
    from ldreg.reporting.record import DimensionReport
    from ldreg.spectrum import effective_rank
    from ldreg.version import __version__ as __version__

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

_HOMES = {
    "DimensionReport": "ldreg.reporting.record",
    "LDReg": "ldreg.regularizers.ldreg",
    "__version__": "ldreg.version",
    "effective_rank": "ldreg.spectrum",
    "fisher_rao": "ldreg.lid.geometry",
    "frechet_variance": "ldreg.lid.geometry",
    "geometric_mean": "ldreg.lid.geometry",
    "global_dimension": "ldreg.lid.global_dim",
    "inspect": "ldreg.inspection",
    "lid": "ldreg.lid",
    "neighbor_distances": "ldreg.lid",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            return _module(name)
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def _module(name: str) -> ModuleType:
    """A module of this package, which need not be imported to be spoken of: `ldreg.spectrum`."""
    absent = AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.startswith("_") or not name.isidentifier():
        raise absent
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":  # something that the module needs
            raise
        raise absent from None


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


class _Package(ModuleType):
    """This package, in which `lid` is always the function: importing the package of that name would bind that."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, getattr(value, name) if name == "lid" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package
