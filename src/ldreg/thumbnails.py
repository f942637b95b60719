"""Small images inside records and pages: as data URIs, and many of them as tiles of a few sheets."""

import base64
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import BytesIO
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Union

from PIL import Image, ImageOps

from ldreg.io.images import open_image

if TYPE_CHECKING:
    from torch import Tensor

ImageLike = Union[str, PathLike[str], "Tensor"]  # a file, or uint8 (C, H, W)

SIDE = 64  # pixels of the longer side at most
_URI = re.compile(r"data:image/png;base64,([A-Za-z0-9+/]+={0,2})")
_LONGEST = 40_000  # characters; noise of 64 × 64 pixels in color takes 17,000
TILE = 48  # pixels of a side; a multiple of 8, so that tiles of a JPEG do not run into each other
SHEET = 16  # tiles in a row and in a column
_TILE_GRAY = (128, 128, 128)  # around a tile that is no square, in light and dark pages
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def data_uri(image: "Tensor", *, side: int = SIDE) -> str:
    """An image uint8 (C, H, W), gray or RGB, as the data URI of a PNG whose longer side is at most `side` pixels.

    Raises:
        ValueError: the image has another shape or type.

    >>> import torch
    >>> png_size(data_uri(torch.zeros(3, 50, 200, dtype=torch.uint8))), png_size(data_uri(torch.zeros(1, 8, 8).byte()))
    ((64, 16), (8, 8))
    """
    picture = _picture(image)
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


def tiles(images: Iterable[ImageLike | None]) -> list[Image.Image | None]:
    """Each image as an RGB tile of `TILE` pixels a side; None for None and for files that cannot be read.

    Transparent images are composited onto white.
    """
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return [*threads.map(_tile, images)]


def sheets(tiles: Sequence[Image.Image]) -> list[str]:
    """Tiles side by side in JPEGs of `SHEET` × `SHEET`, each in base64; one header serves all tiles of a sheet.

    >>> len(sheets([Image.new("RGB", (TILE, TILE))] * (SHEET * SHEET + 1)))
    2
    """
    found, rest = [], iter(tiles)
    while part := list(islice(rest, SHEET * SHEET)):
        sheet = Image.new("RGB", (SHEET * TILE, TILE * -(-len(part) // SHEET)))
        for place, one in enumerate(part):
            sheet.paste(one, (place % SHEET * TILE, place // SHEET * TILE))
        buffer = BytesIO()
        sheet.save(buffer, format="JPEG", quality=75, subsampling=0)
        found.append(base64.b64encode(buffer.getvalue()).decode("ascii"))
    return found


def _tile(image: ImageLike | None) -> Image.Image | None:
    if image is None:
        return None
    if not isinstance(image, str | PathLike):
        return _fitted(_picture(image))
    try:
        if not Path(image).is_file():  # a pipe would wait for its writer
            return None
        with open_image(image) as picture:
            picture.draft("RGB", (2 * TILE, 2 * TILE))  # a JPEG is decoded at about this size, which is much faster
            return _fitted(picture)
    except Exception:  # decoders raise errors of nearly any class
        return None


def _fitted(picture: Image.Image) -> Image.Image:
    """A picture as large as fits into a tile; small ones keep their pixels as squares."""
    if picture.mode.startswith("I"):  # 16 bits, which convert() would cut off
        picture = picture.point(lambda value: value * (1 / 256)).convert("L")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    method = Image.Resampling.NEAREST if max(picture.size) < TILE else Image.Resampling.BOX
    return ImageOps.pad(picture.convert("RGB"), (TILE, TILE), method=method, color=_TILE_GRAY)


def _picture(image: "Tensor") -> Image.Image:
    if str(image.dtype) != "torch.uint8" or image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"image: expected uint8 (1 or 3, H, W), got {image.dtype} {tuple(image.shape)}")
    pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()
    return Image.fromarray(pixels[:, :, 0] if image.shape[0] == 1 else pixels)
