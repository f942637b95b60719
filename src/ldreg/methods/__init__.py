"""Self-supervised methods: an encoder and two views of images in, a loss and the encoder's representations out.

To add a method, write `methods/NAME.py` and add a line to `METHODS`. Methods know nothing of dimensionality and of
regularizers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import nn

from ldreg.methods.barlow_twins import BarlowTwins, BarlowTwinsConfig
from ldreg.methods.base import Method, Outcome
from ldreg.methods.batch_norm import GlobalBatchNorm, synchronize_batch_norm
from ldreg.methods.byol import BYOL, BYOLConfig
from ldreg.methods.mae import MAE, MAEConfig
from ldreg.methods.moco import MoCoConfig, MoCoV2, MoCoV3, build_moco
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


class MethodEntry(NamedTuple):
    """A method's config class, and the function that builds the method from an encoder and a config."""

    config: type[Any]
    build: Callable[[nn.Module, Any], Method]


METHODS: dict[str, MethodEntry] = {
    "simclr": MethodEntry(SimCLRConfig, SimCLR),
    "simclr_tuned": MethodEntry(SimCLRTunedConfig, SimCLR),
    "byol": MethodEntry(BYOLConfig, BYOL),
    "moco": MethodEntry(MoCoConfig, build_moco),
    "vicreg": MethodEntry(VICRegConfig, VICReg),
    "barlow_twins": MethodEntry(BarlowTwinsConfig, BarlowTwins),
    "mae": MethodEntry(MAEConfig, MAE),
}

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]
