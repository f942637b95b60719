"""Image files opened by Pillow: the formats of the usual suffixes, and no image too large to decode."""

import threading
import warnings
from io import BytesIO
from os import PathLike

from PIL import Image

# The formats of the usual suffixes, and GIF, which is often misnamed as one of them. Pillow knows dozens more formats
# and starts other programs for some.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")
# Those of torchvision's ImageFolder.
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_WARNING_FILTERS = threading.Lock()


def open_image(source: str | PathLike[str] | BytesIO) -> Image.Image:
    """An image with its header read; Pillow's warning of a decompression bomb becomes an error."""
    # The filters of warnings belong to the process, and several threads decode.
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(source, formats=FORMATS)
