"""Pictures for tests: random pixels, and files of them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def pixels(seed: int, height: int = 8, width: int = 8) -> NDArray[np.uint8]:
    """Random RGB pixels (H, W, 3), other ones for every seed."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save_transparent(path: Path, seed: int, height: int = 8, width: int = 8) -> Path:
    """The same with transparent black in the upper half, as icons have it."""
    rgba = np.dstack([pixels(seed, height, width), np.full((height, width), 255, dtype=np.uint8)])
    rgba[: height // 2] = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rgba).save(path)
    return path


def save(path: Path, seed: int, height: int = 8, width: int = 8) -> Path:
    """Write the pixels of this seed to a new file, in folders that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed, height, width)).save(path)
    return path
