"""Image files to pixels: by Pillow on the CPU, or JPEGs by nvJPEG on a CUDA device."""

import functools
import io
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from stat import S_ISREG
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ldreg.data.config import Decode
from ldreg.io.images import open_image

log_once = functools.cache(logging.getLogger("ldreg").info)  # each line once

LARGEST_FILE = 1 << 30  # bytes; the largest image that Pillow decodes takes less

GRAY_STEPS = {"L;2": 85, "L;4": 17}  # factors from gray values of two and four bits to eight


class UnreadableImageError(ValueError):
    """An image file that cannot be decoded; the message gives the reason."""


class Decoded(NamedTuple):
    """Pixels uint8 RGB, (3, H, W), and whether some were transparent and are composited onto white.

    In memory they lie as (H, W, 3), as decoded: resizing is faster so, and copying would cost as much.
    """

    pixels: Tensor
    transparent: bool


def read_image(path: str) -> Decoded:
    """Read an image file as RGB.

    Gray, palette, CMYK and 16-bit images (by their high byte) are converted, and transparent ones composited onto
    white. The first frame of several is read. As in torchvision's datasets, the EXIF orientation is not applied.

    Raises:
        UnreadableImageError: the file cannot be read or decoded.
    """
    return decode(read_content(path))


def read_content(path: str) -> bytes:
    """The bytes of an image file; UnreadableImageError if it is empty, too large, a pipe or a device."""

    def open_at_once(path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would otherwise wait for its writer

    with _as_unreadable():
        with open(path, "rb", buffering=0, opener=open_at_once) as stream:
            state = os.fstat(stream.fileno())
            if not S_ISREG(state.st_mode):
                raise UnreadableImageError("a pipe or device")
            if state.st_size > LARGEST_FILE:
                raise UnreadableImageError(f"a file of {state.st_size} bytes, expected at most {LARGEST_FILE}")
            content = stream.read()
        if not content:
            raise UnreadableImageError("the file is empty")
        return content


def decode(content: bytes) -> Decoded:
    """Decode the content of an image file by Pillow, as torchvision deprecates its own decoders."""
    with _as_unreadable(), open_image(io.BytesIO(content)) as image:
        return to_rgb(image)


def image_size(path: str) -> tuple[int, int]:
    """Height and width of an image file, from its header; UnreadableImageError if there is none."""
    with _as_unreadable(), open_image(path) as image:
        return image.height, image.width


@contextmanager
def _as_unreadable() -> Iterator[None]:
    """Turn any error of a decoder, which may be of nearly any class, into an UnreadableImageError of one line."""
    try:
        yield
    except (MemoryError, UnreadableImageError):
        raise
    except Exception as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, UnidentifiedImageError):  # its message has the address of an object
            text = "not an image of a known format"
        raise UnreadableImageError(" ".join(text.split())[:200] or type(error).__name__) from error


def to_rgb(image: Image.Image) -> Decoded:
    """Convert an image of Pillow to RGB; transparent pixels are composited onto white, as viewers show them."""
    _scale_transparent_color(image)
    if image.mode.startswith("I") or image.mode == "F":
        gray = np.asarray(image)
        if gray.dtype.kind not in "iu" or gray.min() < 0 or gray.max() > 65535:
            raise ValueError(f"expected at most 16 bits a channel, got pixels of mode {image.mode}")
        # Pillow's own conversion would cut values off at 255.
        pixels = np.repeat((gray.astype(np.uint16) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
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


def _scale_transparent_color(image: Image.Image) -> None:
    """Bring the transparent gray or color of a PNG to eight bits; Pillow does so for the pixels only."""
    color, tiles = image.info.get("transparency"), getattr(image, "tile", [])
    coding = tiles[0].args if tiles else None  # there are no tiles once the pixels have been read
    if isinstance(color, int) and isinstance(coding, str) and coding in GRAY_STEPS:
        image.info["transparency"] = color * GRAY_STEPS[coding]
    elif isinstance(color, tuple) and coding == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in color)


# nvJPEG

AS_RGB = 3  # of torchvision.io.ImageReadMode
TOLERANCE = 8  # gray levels by which a flat color may differ in the test image

Decoder = Callable[[list[Tensor]], list[Tensor]]
"""JPEG files, uint8 (n,) on the CPU, to images, uint8 (3, H, W) on the device; RuntimeError if one fails."""


def device_decoder(decode: Decode, device: torch.device | str) -> Decoder | None:
    """The decoder of JPEGs on the device, or None if worker processes decode; logs the choice once for a GPU.

    Raises:
        ValueError: `decode` asks for the GPU, and it cannot decode.
    """
    device = torch.device(device)
    if decode == "cpu":
        return None
    missing = f"nvJPEG needs a CUDA device and this one is {device.type}"
    if device.type == "cuda":
        missing = _test_nvjpeg(device)
    if missing and decode == "gpu":
        raise ValueError(f"decode: expected auto or cpu, as {missing}, got gpu")
    if device.type == "cpu":
        return None
    log_once(f"images are decoded on the CPU, as {missing}" if missing else "images are decoded on the GPU by nvJPEG")
    return None if missing else functools.partial(nvjpeg, device=device)


def nvjpeg(contents: list[Tensor], *, device: torch.device) -> list[Tensor]:
    """Decode JPEG files, each uint8 (n,), on a CUDA device to uint8 RGB (3, H, W).

    The images are complete for the current stream. Memory that this stream still reads must not be freed before the
    call: torchvision writes to memory of this stream from a stream of its own.

    Raises:
        RuntimeError: one of the files cannot be decoded.
    """
    import torchvision.io  # noqa: F401 - registers the operators

    # The operator below `torchvision.io.decode_jpeg`, which in 0.29 warns at every call that it is deprecated. In a
    # thread that warning cannot be silenced: the filters of warnings belong to the whole process.
    return torch.ops.image.decode_jpegs_cuda(contents, AS_RGB, device)  # type: ignore[no-any-return]


@functools.cache
def _test_nvjpeg(device: torch.device) -> str:
    """Decode a small image by nvJPEG: an empty string if it is right, else the problem."""
    color = (200, 60, 120)
    written = io.BytesIO()
    Image.new("RGB", (40, 24), color).save(written, format="JPEG", quality=95)
    content = torch.from_numpy(np.frombuffer(bytearray(written.getvalue()), dtype=np.uint8))
    try:
        [image] = nvjpeg([content], device=device)
        same = image.shape == (3, 24, 40) and bool(
            ((image.cpu().int() - torch.tensor(color)[:, None, None]).abs() <= TOLERANCE).all()
        )
    # A torchvision without the operator, one built without nvJPEG, or a driver without it.
    except (AttributeError, RuntimeError) as error:
        return f"torchvision cannot decode there ({' '.join(str(error).split())[:160]})"
    return "" if same else "nvJPEG gives other colors there than were written"


# Which JPEGs nvJPEG decodes as Pillow does

SCAN, FRAME, ADOBE, QUANTIZATION, HUFFMAN = 0xDA, 0xC0, 0xEE, 0xDB, 0xC4
OTHER_FRAMES = frozenset(range(0xC1, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the excluded numbers are tables and extensions
RGB = (ord("R"), ord("G"), ord("B"))
SAMPLINGS = (0x11, 0x21, 0x12, 0x22)  # of luminance, with 0x11 for the color differences
TAIL = 64  # the end marker is sought in the last bytes; cameras may add a few after it


def plain_jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Height and width of a complete baseline JPEG of luminance and color differences, else None.

    None stands for other formats, progressive, gray, RGB and CMYK JPEGs, truncated ones, those without the tables they
    refer to (of which a GPU makes some image instead of failing) and those beyond Pillow's bound against decompression
    bombs. The CPU's decoder reads or rejects all of these.
    """
    if content[:2] != b"\xff\xd8" or content.rfind(b"\xff\xd9", -TAIL) < 0:
        return None
    frame, tables, place = b"", set[tuple[int, int]](), 2
    while place + 4 <= len(content) and content[place] == 0xFF:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        segment = content[place + 4 : place + 2 + length]
        if marker == SCAN:
            return _frame_size(frame) if _is_complete(frame, segment, tables) else None
        other_colors = marker == ADOBE and segment[:5] == b"Adobe" and segment[11:12] != b"\x01"
        if marker in OTHER_FRAMES or (marker == FRAME and frame) or other_colors:
            return None
        if marker == FRAME:
            frame = segment
        elif marker in (QUANTIZATION, HUFFMAN):
            tables |= {(marker, name) for name in _table_names(marker, segment)}
        place += 2 + length
    return None


def _frame_size(segment: bytes) -> tuple[int, int] | None:
    """Height and width from a frame's header of three components of 8 bits not named R, G, B, else None.

    Luminance must be sampled as often as the others or twice as often, in either direction.
    """
    if len(segment) != 15 or segment[0] != 8 or segment[5] != 3 or tuple(segment[6::3]) == RGB:
        return None
    if segment[7] not in SAMPLINGS or segment[10] != 0x11 or segment[13] != 0x11:
        return None
    height, width = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
    bound = Image.MAX_IMAGE_PIXELS
    return (height, width) if height and width and (bound is None or height * width <= bound) else None


def _table_names(marker: int, segment: bytes) -> Iterator[int]:
    """The names of the complete tables in a segment: their number, plus 16 for Huffman tables of AC coefficients."""
    place = 0
    while place < len(segment):
        name = segment[place]
        quantization = marker == QUANTIZATION
        values = 64 * (1 + (name >> 4 > 0)) if quantization else sum(segment[place + 1 : place + 17])
        place += 1 + values + (0 if quantization else 16)
        if values and place <= len(segment):
            yield name & 15 if quantization else name


def _is_complete(frame: bytes, scan: bytes, tables: set[tuple[int, int]]) -> bool:
    """Whether a scan names all three components of the frame, each once, in their order, and their tables are there."""
    names = frame[6::3]
    if not (len(scan) == 10 and scan[0] == 3 == len(set(names)) and scan[1:7:2] == names and scan[7:] == b"\0\x3f\0"):
        return False
    huffman = {name for pair in scan[2:7:2] for name in (pair >> 4, 16 + (pair & 15))}
    return tables >= {(QUANTIZATION, name) for name in frame[8::3]} | {(HUFFMAN, name) for name in huffman}
