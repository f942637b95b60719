"""How much work a measurement does: points of a set, pictures, or a training batch."""

import re
from typing import NamedTuple, Protocol, Self

from ldreg.text import count

_SMALL = 64  # pixels up to which pictures come in the size that views have, as CIFAR's do
_PHOTO = (350 / 224, 400 / 224)  # height and width of larger ones, in units of the views' side


class Size(Protocol):
    """What every kind of size can tell; each is a named tuple, written as a list in JSON."""

    @property
    def heading(self) -> str:
        """The size in words."""

    @property
    def work(self) -> float:
        """What the time of most contenders is proportional to."""

    @property
    def candidates(self) -> int | None:
        """Among how many points neighbors are sought; None where none are."""

    @property
    def input_bytes(self) -> int:
        """Memory that the input takes."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The size that is written so on the command line; ValueError where none is."""


class Points(NamedTuple):
    """Points and dimensions of a set.

    >>> str(Points(10_000, 2048)), Points.parse("10kx128")
    ('10k×2048', Points(points=10000, dimensions=128))
    """

    points: int
    dimensions: int

    def __str__(self) -> str:
        thousands, rest = divmod(self.points, 1000)
        return f"{self.points if rest or not thousands else f'{thousands}k'}×{self.dimensions}"

    @property
    def heading(self) -> str:
        """As 10,000 × 128."""
        return f"{count(self.points)} × {count(self.dimensions)}"

    @property
    def work(self) -> float:
        """Multiplications in all pairs of points."""
        return float(self.points**2 * self.dimensions)

    @property
    def candidates(self) -> int:
        """All of the points."""
        return self.points

    @property
    def input_bytes(self) -> int:
        """In float32."""
        return 4 * self.points * self.dimensions

    @classmethod
    def parse(cls, text: str) -> Self:
        """From POINTSxDIMENSIONS."""
        match = _matched(r"(\d+)(k?)[x×](\d+)", text, "POINTSxDIMENSIONS such as 10kx128")
        return cls(_positive(match[1], text) * (1000 if match[2] else 1), _positive(match[3], text))


class Pictures(NamedTuple):
    """A batch of pictures in memory or in JPEG files, and the side of the views made of them.

    >>> str(Pictures(512, 32)), Pictures(128, 224).shape, Pictures.parse("files:64x224")
    ('512 × 32 px', (350, 400), Pictures(images=64, pixels=224, files=True))
    """

    images: int
    pixels: int
    files: bool = False

    def __str__(self) -> str:
        return f"{self.images} × {self.pixels} px{' from files' if self.files else ''}"

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        if self.pixels <= _SMALL:
            return self.pixels, self.pixels
        height, width = (round(self.pixels * share) for share in _PHOTO)
        return height, width

    @property
    def heading(self) -> str:
        """As 128 images of 400×350 to 224 px."""
        height, width = self.shape
        kind = "JPEG files" if self.files else "images in memory"
        return f"{count(self.images)} {kind}, {width}×{height} to {self.pixels} px"

    @property
    def work(self) -> float:
        """Pixels of the views."""
        return float(self.images * self.pixels**2)

    @property
    def candidates(self) -> None:
        """None: no neighbors are sought."""

    @property
    def input_bytes(self) -> int:
        """As uint8."""
        return 3 * self.images * self.shape[0] * self.shape[1]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From IMAGESxPIXELS or files:IMAGESxPIXELS."""
        match = _matched(r"(files:)?(\d+)[x×](\d+)", text, "[files:]IMAGESxPIXELS such as 512x32")
        return cls(_positive(match[2], text), _positive(match[3], text), match[1] is not None)


class Batches(NamedTuple):
    """Images of a training step, their side, and the encoder.

    >>> str(Batches(512, 32, "resnet18")), Batches.parse("64x16:small_cnn").encoder
    ('512 × 32 px, resnet18', 'small_cnn')
    """

    images: int
    pixels: int
    encoder: str

    def __str__(self) -> str:
        return f"{self.images} × {self.pixels} px, {self.encoder}"

    @property
    def heading(self) -> str:
        """As resnet18, 512 images of 32 px."""
        return f"{self.encoder}, {count(self.images)} images of {self.pixels} px"

    @property
    def work(self) -> float:
        """Pixels of the images."""
        return float(self.images * self.pixels**2)

    @property
    def candidates(self) -> int:
        """Two views of every image."""
        return 2 * self.images

    @property
    def input_bytes(self) -> int:
        """As uint8."""
        return 3 * self.images * self.pixels**2

    @classmethod
    def parse(cls, text: str) -> Self:
        """From IMAGESxPIXELS or IMAGESxPIXELS:ENCODER."""
        match = _matched(r"(\d+)[x×](\d+)(?::(\w+))?", text, "IMAGESxPIXELS[:ENCODER] such as 512x32:resnet18")
        return cls(_positive(match[1], text), _positive(match[2], text), match[3] or "resnet18")


def _matched(pattern: str, text: str, expected: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text, flags=re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(f"sizes: expected full, quick or {expected}, got {text!r}")
    return match


def _positive(digits: str, text: str) -> int:
    if int(digits) == 0:
        raise ValueError(f"sizes: expected numbers above 0, got {text!r}")
    return int(digits)
