"""Views: random augmentations of a batch of images, drawn for every image on its own, on the images' device."""

from ldreg.views.config import Interpolation, Normalization, PolicyName, ViewsConfig
from ldreg.views.views import Views

__all__ = ["Interpolation", "Normalization", "PolicyName", "Views", "ViewsConfig"]
