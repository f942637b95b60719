"""Self-supervised methods: an encoder and two views of images in, a loss and the encoder's representations out.

To add a method, write `methods/NAME.py` with a class, a config and `METHODS`, which names them. Methods know nothing of
dimensionality and of regularizers.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal

from ldreg.methods.barlow_twins import BarlowTwins, BarlowTwinsConfig
from ldreg.methods.base import Method, MethodEntry, Outcome
from ldreg.methods.batch_norm import GlobalBatchNorm, synchronize_batch_norm
from ldreg.methods.byol import BYOL, BYOLConfig
from ldreg.methods.mae import MAE, MAEConfig
from ldreg.methods.moco import MoCoConfig, MoCoV2, MoCoV3
from ldreg.methods.simclr import SimCLR, SimCLRConfig, SimCLRTunedConfig
from ldreg.methods.vicreg import VICReg, VICRegConfig

__all__ = [
    "BYOL",
    "MAE",
    "METHODS",
    "BYOLConfig",
    "BarlowTwins",
    "BarlowTwinsConfig",
    "GlobalBatchNorm",
    "MAEConfig",
    "Method",
    "MethodEntry",
    "MoCoConfig",
    "MoCoV2",
    "MoCoV3",
    "Outcome",
    "SimCLR",
    "SimCLRConfig",
    "SimCLRTunedConfig",
    "VICReg",
    "VICRegConfig",
    "synchronize_batch_norm",
]

METHODS: dict[str, MethodEntry] = {}
for _module in iter_modules(__path__):
    METHODS |= getattr(import_module(f"{__name__}.{_module.name}"), "METHODS", {})

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]
