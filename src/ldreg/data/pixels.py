"""The content of image files to pixels, by Pillow."""

import io
import threading
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ldreg.data.unreadable import UnreadableImageError

_FILTERS = threading.Lock()

# What the names of image files promise, and GIF, which goes by them too. Pillow knows dozens of formats more, and for
# some of them starts another program.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF")


def decoded(content: bytes) -> Tensor:
    """The content of an image file as `decode` gives it.

    Raises:
        UnreadableImageError: where it cannot be decoded.
    """
    try:
        return to_rgb(content)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise nearly any class on damaged files
        raise UnreadableImageError(reason_of(error)) from error


def to_rgb(content: bytes) -> Tensor:
    """The content of an image file as uint8 RGB, (3, H, W); by Pillow, as torchvision gives up its own decoders.

    In memory it lies as (H, W, 3), as it comes: resizing is faster so, and copying would cost as much.
    """
    with opened(io.BytesIO(content)) as image:
        if image.mode.startswith("I") or image.mode == "F":
            pixels = high_byte(np.asarray(image), mode=image.mode)
        else:
            # Pillow warns where a palette with transparency goes to RGB in one step.
            opaque = image.convert("RGBA") if "transparency" in image.info else image
            pixels = np.array(opaque if opaque.mode == "RGB" else opaque.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def opened(source: str | io.BytesIO) -> Image.Image:
    """An image with its header read; one so large that Pillow only warns of a decompression bomb is an error."""
    # The filters of warnings belong to the process, and several threads decode.
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(source, formats=FORMATS)


def high_byte(gray: NDArray[Any], *, mode: str) -> NDArray[np.uint8]:
    """A 16-bit gray image (H, W) as 8-bit RGB (H, W, 3); Pillow's own conversion would cut values off at 255."""
    if gray.dtype.kind not in "iu" or gray.min() < 0 or gray.max() > 65535:
        raise ValueError(f"expected at most 16 bits a channel, got pixels of mode {mode}")
    return np.repeat((gray.astype(np.uint16) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)


def image_size(path: str) -> tuple[int, int]:
    """Height and width of an image file, from its header alone.

    Raises:
        UnreadableImageError: where the file cannot be read as an image.
    """
    try:
        with opened(path) as image:
            return image.height, image.width
    except MemoryError:
        raise
    except Exception as error:  # as in decoded
        raise UnreadableImageError(reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """An error's message on one line, without the object addresses Pillow puts in."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:200] or type(error).__name__
