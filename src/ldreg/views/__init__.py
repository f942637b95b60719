"""Views: random augmentations of a batch of images on the images' device, each image with its own draw."""

from ldreg.views.config import Interpolation, Normalization, PolicyName, ViewsConfig
from ldreg.views.views import Box, Views

__all__ = ["Box", "Interpolation", "Normalization", "PolicyName", "Views", "ViewsConfig"]
