"""Networks that map images (B, C, S, S) to representations (B, D)."""

from ldreg.encoders.build import EncoderConfig, SmallCNN, build_encoder
from ldreg.encoders.checkpoints import LoadedEncoder, load_encoder

__all__ = ["EncoderConfig", "LoadedEncoder", "SmallCNN", "build_encoder", "load_encoder"]
