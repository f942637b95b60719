"""Two generated datasets for transfer at the scale of the digits: shapes and textures.

Every pixel comes from NumPy's frozen generator by sums, products, quotients and roots, which IEEE 754 defines to the
last bit. The images are therefore the same on every platform and with every version.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ldreg.data.images import ResidentImages

Values = NDArray[np.float64]
# From two coordinates (n, s, s) to brightness: 1 is bright, 0 dark.
Draw = Callable[[Values, Values], NDArray[Any]]
# From random numbers (n, 4) of n images and the pixels' coordinates (n, s, s), 0 to 1, to coordinates of the drawing.
Place = Callable[[Values, Values, Values], tuple[Values, Values]]

COUNTS = {"train": 2000, "test": 500}
SEEDS = {("shapes", "train"): 1, ("shapes", "test"): 2, ("textures", "train"): 3, ("textures", "test"): 4}
SIZE = 8


def generated(name: str, split: Literal["train", "test"], *, size: int = SIZE) -> ResidentImages:
    """The gray images of one of `SETS`: (2000, 1, size, size) to train on, (500, 1, size, size) to test.

    `shapes` has one shape per image, filled, outlined or crossed, of varying place, size and tilt; `textures` has
    patterns of varying frequency, phase and tilt. Both vary in brightness, contrast and noise. Scenes are the same at
    every size except for the noise. The classes alternate.

    >>> images = generated("shapes", "test")
    >>> images.images.shape, images.classes[:3], images.labels[:9].tolist()
    (torch.Size([500, 1, 8, 8]), ('disk', 'ring', 'square'), [0, 1, 2, 3, 4, 5, 6, 7, 0])
    """
    place, draws = SETS[name]
    random, count = np.random.RandomState(SEEDS[name, split]), COUNTS[split]
    labels = np.arange(count, dtype=np.int64) % len(draws)
    numbers = random.random_sample((count, 7))
    images = np.empty((count, 1, size, size), np.uint8)
    for start in range(0, count, 40):  # a few at a time bound the memory; 40 is a multiple of the 8 classes
        rows = slice(start, start + 40)
        picture = _picture(place, list(draws.values()), numbers[rows, :4], size)
        images[rows, 0] = _exposed(picture, numbers[rows, 4:], random)
    return ResidentImages(torch.from_numpy(images), torch.from_numpy(labels), tuple(draws), name)


def _picture(place: Place, draws: list[Draw], numbers: Values, size: int) -> Values:
    """The drawings (n, size, size); each pixel is the average of several points in it."""
    fine = max(2, 32 // size)
    inside = [(step + 0.5) / (fine * size) for step in range(fine)]
    corners = np.arange(size) / size
    total = np.zeros((len(numbers), size, size))
    for down, right in ((down, right) for down in inside for right in inside):
        x, y = place(numbers, (corners + right)[None, None, :], (corners + down)[None, :, None])
        for label, draw in enumerate(draws):
            turn = slice(label, None, len(draws))
            total[turn] += draw(x[turn], y[turn])
    return total / fine**2


def _exposed(picture: Values, numbers: Values, random: np.random.RandomState) -> NDArray[np.uint8]:
    """The drawings (n, s, s) with brightness, contrast and noise by the numbers (n, 3)."""
    dark, contrast, level = numbers.T[:, :, None, None]
    # The sum of three uniform draws is close enough to normal.
    first, second, third = random.random_sample((3, *picture.shape))
    noise = (0.03 + 0.17 * level) * (first + second + third - 1.5)
    pixels = 0.4 * dark + (0.25 + 0.4 * contrast) * picture + noise
    whole: NDArray[np.uint8] = np.floor(255 * pixels.clip(0, 1) + 0.5).astype(np.uint8)
    return whole


def _tilted(tilt: Values, x: Values, y: Values) -> tuple[Values, Values]:
    """Coordinates turned by the angle whose half has the tangent `tilt`, without a sine."""
    scale = 1 + tilt * tilt
    cosine, sine = (1 - tilt * tilt) / scale, 2 * tilt / scale
    return cosine * x + sine * y, cosine * y - sine * x


def _as_shape(numbers: Values, x: Values, y: Values) -> tuple[Values, Values]:
    """Coordinates around a shape's center, in units of its radius."""
    right, down, radius, tilt = numbers.T[:, :, None, None]
    across, along = _tilted(0.3 * (tilt - 0.5), x - (0.35 + 0.3 * right), y - (0.35 + 0.3 * down))
    radius = 0.25 + 0.15 * radius
    return across / radius, along / radius


def _as_texture(numbers: Values, x: Values, y: Values) -> tuple[Values, Values]:
    """Coordinates in periods of a pattern."""
    frequency, right, down, tilt = numbers.T[:, :, None, None]
    across, along = _tilted(0.2 * (tilt - 0.5), x, y)
    frequency = 1.5 + frequency
    return frequency * across + 0.5 * right, frequency * along + 0.5 * down


def _square(x: Values, y: Values) -> Values:
    return np.maximum(abs(x), abs(y))


def _triangle(x: Values, y: Values) -> Values:
    """Up to 1 in a triangle that points up, growing from its middle."""
    return np.maximum(1.3 * y, 1.2 * abs(x) - 0.7 * y + 0.1)


def _cross(x: Values, y: Values) -> NDArray[Any]:
    return (np.minimum(abs(x), abs(y)) <= 0.3) & (np.maximum(abs(x), abs(y)) <= 1)


def _wave(t: Values) -> Values:
    """A triangle wave from 0 to 1 and back in one period."""
    return abs(2 * (t - np.floor(t)) - 1)


def _speckle(x: Values, y: Values) -> Values:
    """Cells of half a period with irregular values."""
    mixed = 0.7548776662 * np.floor(2 * x) + 0.5698402910 * np.floor(2 * y)
    mixed = 43.758 * (mixed - np.floor(mixed)) ** 2
    return mixed - np.floor(mixed)


SHAPES: dict[str, Draw] = {
    "disk": lambda x, y: x * x + y * y <= 1,
    "ring": lambda x, y: abs(x * x + y * y - 0.65) <= 0.35,
    "square": lambda x, y: _square(x, y) <= 0.85,
    "frame": lambda x, y: abs(_square(x, y) - 0.7) <= 0.2,
    "triangle": lambda x, y: _triangle(x, y) <= 1,
    "wedge": lambda x, y: abs(_triangle(x, y) - 0.75) <= 0.25,
    "plus": _cross,
    "saltire": lambda x, y: _cross(0.75 * (x + y), 0.75 * (x - y)),
}
TEXTURES: dict[str, Draw] = {
    "rows": lambda x, y: _wave(y),
    "columns": lambda x, y: _wave(x),
    "rising": lambda x, y: _wave(0.7 * (x + y)),
    "falling": lambda x, y: _wave(0.7 * (x - y)),
    "checks": lambda x, y: (_wave(x) > 0.5) == (_wave(y) > 0.5),
    "dots": lambda x, y: _wave(x) * _wave(y) > 0.35,
    "arcs": lambda x, y: _wave(np.sqrt(x * x + y * y)),
    "speckle": _speckle,
}
SETS: dict[str, tuple[Place, dict[str, Draw]]] = {"shapes": (_as_shape, SHAPES), "textures": (_as_texture, TEXTURES)}
