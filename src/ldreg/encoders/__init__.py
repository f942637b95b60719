"""Networks that map images (B, C, S, S) to representations (B, D)."""

from ldreg.encoders.build import EncoderConfig, build_encoder
from ldreg.encoders.small import SmallCNN

__all__ = ["EncoderConfig", "SmallCNN", "build_encoder"]
