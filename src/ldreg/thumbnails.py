"""Small images as data URIs inside records and pages."""

import base64
import re
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 64  # pixels of the longer side at most
_URI = re.compile(r"data:image/png;base64,([A-Za-z0-9+/]+={0,2})")
_LONGEST = 40_000  # characters; noise of 64 × 64 pixels in color takes 17,000
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def data_uri(image: "Tensor", *, side: int = SIDE) -> str:
    """An image uint8 (C, H, W), gray or RGB, as the data URI of a PNG whose longer side is at most `side` pixels.

    Raises:
        ValueError: the image has another shape or type.

    >>> import torch
    >>> png_size(data_uri(torch.zeros(3, 50, 200, dtype=torch.uint8))), png_size(data_uri(torch.zeros(1, 8, 8).byte()))
    ((64, 16), (8, 8))
    """
    if str(image.dtype) != "torch.uint8" or image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"image: expected uint8 (1 or 3, H, W), got {image.dtype} {tuple(image.shape)}")
    pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()
    picture = Image.fromarray(pixels[:, :, 0] if image.shape[0] == 1 else pixels)
    picture.thumbnail((side, side))
    buffer = BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@lru_cache(maxsize=1024)  # a page asks again what the record has checked
def png_size(uri: str) -> tuple[int, int]:
    """Width and height of the small PNG in a data URI.

    Raises:
        ValueError: it is not a PNG of at most 64 × 64 pixels.
    """
    found = _URI.fullmatch(uri) if len(uri) <= _LONGEST else None
    if found is None:
        raise ValueError(f"image: expected a data URI of a small PNG, got {uri[:40]!r}")
    head = base64.b64decode(found[1])[:24]
    width, height = (int.from_bytes(head[start : start + 4], "big") for start in (16, 20))
    if head[:8] != _SIGNATURE or not (0 < width <= SIDE and 0 < height <= SIDE):
        raise ValueError(
            f"image: expected a PNG of at most {SIDE} × {SIDE} pixels, got {width} × {height} or another file"
        )
    return width, height
