"""Where JPEGs are decoded: by nvJPEG on a CUDA device, or by worker processes."""

import functools
import io
import logging
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ldreg.data.config import Decode

logger = logging.getLogger("ldreg")

AS_RGB = 3  # of torchvision.io.ImageReadMode
TOLERANCE = 8  # gray levels by which a flat color may come out differently

Decoder = Callable[[list[Tensor]], list[Tensor]]
"""JPEG files, uint8 (n,) on the CPU, to images, uint8 (3, H, W) on the device; RuntimeError where it cannot."""


def device_decoder(decode: Decode, device: torch.device | str) -> Decoder | None:
    """What decodes JPEGs on the device, or None where worker processes do; says once which it is on a GPU.

    Raises:
        ValueError: where the GPU is asked for and cannot.
    """
    device = torch.device(device)
    if decode == "cpu":
        return None
    missing = _missing(device)
    if missing and decode == "gpu":
        raise ValueError(f"decode: expected auto or cpu, as {missing}, got gpu")
    if device.type == "cpu":
        return None
    say_once(f"images are decoded on the CPU, as {missing}" if missing else "images are decoded on the GPU by nvJPEG")
    return None if missing else functools.partial(nvjpeg, device=device)


def nvjpeg(contents: list[Tensor], *, device: torch.device) -> list[Tensor]:
    """JPEG files, each uint8 (n,), decoded on a CUDA device to uint8 RGB (3, H, W).

    They are complete for the stream that is current. What that stream still reads must not be freed before the call:
    torchvision writes to memory of this stream from one of its own.

    Raises:
        RuntimeError: where one of them cannot be decoded.
    """
    import torchvision.io  # noqa: F401 - brings the operators

    # Beneath `torchvision.io.decode_jpeg`, which in 0.29 warns at every call that it will go. In a thread, that
    # warning cannot be kept quiet: the filters of warnings belong to the whole process.
    return torch.ops.image.decode_jpegs_cuda(contents, AS_RGB, device)  # type: ignore[no-any-return]


def _missing(device: torch.device) -> str:
    """Why a device cannot decode, or nothing where it can."""
    return f"nvJPEG needs a CUDA device and this one is {device.type}" if device.type != "cuda" else _probe(device)


@functools.cache
def _probe(device: torch.device) -> str:
    """What nvJPEG makes of a small image: nothing where it is right, else what is wrong."""
    color = (200, 60, 120)
    written = io.BytesIO()
    Image.new("RGB", (40, 24), color).save(written, format="JPEG", quality=95)
    content = torch.from_numpy(np.frombuffer(bytearray(written.getvalue()), dtype=np.uint8))
    try:
        [image] = nvjpeg([content], device=device)
        same = image.shape == (3, 24, 40) and bool(
            ((image.cpu().int() - torch.tensor(color)[:, None, None]).abs() <= TOLERANCE).all()
        )
    # A torchvision without the operator, built without nvJPEG, or a driver that lacks it.
    except (AttributeError, RuntimeError) as error:
        return f"torchvision cannot decode there ({' '.join(str(error).split())[:160]})"
    return "" if same else "nvJPEG gives other colors there than were written"


@functools.cache
def say_once(text: str) -> None:
    """Log a line that has not been logged before."""
    logger.info(text)
