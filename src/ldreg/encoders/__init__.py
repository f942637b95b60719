"""Networks that map images (B, C, S, S) to representations (B, D)."""

from ldreg.encoders.build import EncoderConfig, build_encoder
from ldreg.encoders.checkpoints import LoadedEncoder, load_encoder
from ldreg.encoders.small import SmallCNN

__all__ = ["EncoderConfig", "LoadedEncoder", "SmallCNN", "build_encoder", "load_encoder"]
