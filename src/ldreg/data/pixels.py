"""The content of image files to pixels, by Pillow."""

import io
import threading
import warnings
from typing import Any, NamedTuple

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


# What gray values of two and of four bits are multiplied by to become eight.
GRAY_STEPS = {"L;2": 85, "L;4": 17}


class Decoded(NamedTuple):
    """Pixels uint8 RGB, (3, H, W), and whether some of them were transparent and are composited onto white.

    In memory they lie as (H, W, 3), as they come: resizing is faster so, and copying would cost as much.
    """

    pixels: Tensor
    transparent: bool


def decoded(content: bytes) -> Decoded:
    """The content of an image file, by Pillow, as torchvision gives up its own decoders.

    Raises:
        UnreadableImageError: where it cannot be decoded.
    """
    try:
        with opened(io.BytesIO(content)) as image:
            return to_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise nearly any class on damaged files
        raise UnreadableImageError(reason_of(error)) from error


def to_rgb(image: Image.Image) -> Decoded:
    """An image of Pillow's as RGB; transparent pixels are composited onto white, as viewers show them.

    Raises:
        ValueError: its pixels have more than 16 bits a channel.
    """
    _scale_key(image)
    if image.mode.startswith("I") or image.mode == "F":
        gray = np.asarray(image)
        pixels = high_byte(gray, mode=image.mode)
        alpha = np.where(gray == image.info.get("transparency"), 0, 255)
    elif image.has_transparency_data:
        rgba = np.array(image.convert("RGBA"))
        pixels, alpha = np.ascontiguousarray(rgba[:, :, :3]), rgba[:, :, 3]
    else:
        pixels, alpha = np.array(image if image.mode == "RGB" else image.convert("RGB")), np.full((1, 1), 255)
    transparent = bool(alpha.min() < 255)
    if transparent:
        weight = alpha[:, :, None].astype(np.uint16)
        pixels = ((pixels * weight + 255 * (255 - weight) + 127) // 255).astype(np.uint8)
    return Decoded(torch.from_numpy(pixels).permute(2, 0, 1), transparent)


def _scale_key(image: Image.Image) -> None:
    """Give the transparent gray or color of a PNG eight bits, which its pixels get from Pillow and it does not."""
    key, tiles = image.info.get("transparency"), getattr(image, "tile", [])
    coding = tiles[0].args if tiles else None  # there are none once the pixels have been read
    if isinstance(key, int) and isinstance(coding, str) and coding in GRAY_STEPS:
        image.info["transparency"] = key * GRAY_STEPS[coding]
    elif isinstance(key, tuple) and coding == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in key)


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
