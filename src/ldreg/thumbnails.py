"""Small images as data URIs inside records and pages."""

import base64
import re
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 64  # pixels of the longer side at most
_URI = re.compile(r"data:image/png;base64,([A-Za-z0-9+/]+={0,2})")
_LONGEST = 40_000  # characters; noise of 64 × 64 pixels in color takes 17,000
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Thumbnail:
    """A small image of the measured set, with its LID.

    Args:
        image: PNG of at most 64 × 64 pixels as a data URI
        index: position in the set
        lid: of its representation
        label: its class, empty if unknown
        file: its name, empty if unknown

    Raises:
        ValueError: `image` is not such a URI, or `index` is below 0.
    """

    image: str
    index: int
    lid: float
    label: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        # The URI goes into a page unescaped.
        if self.index < 0:
            raise ValueError(f"index: expected at least 0, got {self.index}")
        png_size(self.image)


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


def read_thumbnail(value: Any) -> Thumbnail:
    """A thumbnail from parsed JSON, where a null LID is infinite.

    Raises:
        ValueError: a field is missing, unknown or invalid.
    """
    kinds: dict[str, type | tuple[type, ...]] = {
        "image": str, "index": int, "lid": (int, float, type(None)), "label": str, "file": str,
    }  # fmt: skip
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        raise ValueError(f"expected a thumbnail with {', '.join(kinds)}")
    for key, kind in kinds.items():
        if not isinstance(value[key], kind) or isinstance(value[key], bool):
            raise ValueError(f"{type(value[key]).__name__} in place of {key}")
    try:
        lid = float("inf") if value["lid"] is None else float(value["lid"])
    except OverflowError as error:
        raise ValueError("lid: a number too large") from error
    return Thumbnail(**{**value, "lid": lid})
