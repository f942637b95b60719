"""What a benchmark is: contenders at the same work, its sizes, and what is asked of ldreg."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self

from ldreg.bench.measure import Device, Measurement
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


Quantity = Literal[
    "speed", "extra memory", "memory share", "time", "host time", "deviation", "img/s", "views/s", "LDReg", "views"
]
Picture = Literal["scaling", "rates", "parts"]

OWN = "ldreg"  # the contender that all others are compared with
VIEWS = 2  # of every image, where images are


@dataclass(frozen=True)
class Setting:
    """One measurement to make; `size` is of the benchmark's own type, `threads` what a contender may use of the CPU."""

    size: Any
    k: int = 64
    seed: int = 0
    repeats: int = 3
    device: Device = "cpu"
    threads: int = 1


class Outcome(NamedTuple):
    """What was measured, and how far the result lies from the right one; None where there is none to compare."""

    measured: Measurement
    deviation: float | None = None


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Args:
        measure: does the work of a setting, in this process.
        package: what has to be installed for it, by the name it is imported under; None: nothing more.
        install: what pip brings the package with.
        devices: where it runs.
        bytes_needed: memory beside the input, where that grows so fast that it may not be there.
        counts: whether goals that speak of the best other mean this one too.
    """

    measure: Callable[[Setting], Outcome]
    package: str | None = None
    install: str = "ldreg[bench]"
    devices: tuple[Device, ...] = ("cpu", "cuda")
    bytes_needed: Callable[[Any, Device], int] | None = None
    counts: bool = True


@dataclass(frozen=True)
class Goal:
    """What ldreg has to reach at one size on one device, k = 64.

    `quantity` is "speed" (time of the rival over ours, at least `limit`), "extra memory" (ours in MB, at most),
    "memory share" (ours over the rival's, at most), "time" or "host time" (of one call in seconds, at most),
    "deviation" (at most), "img/s" or "views/s" (at least), or what "LDReg" or the "views" take of a step (at most). A
    rival of None is the fastest that counts; `of` is who has to reach it.
    """

    size: Any
    quantity: Quantity
    limit: float
    rival: str | None = None
    device: Device = "cpu"
    of: str = OWN


def _any_size(size: Any) -> None:
    """Most sizes can be had as soon as they can be written."""


@dataclass(frozen=True)
class Benchmark:
    """Contenders at the same work.

    Args:
        title: what is done.
        contenders: by name; ours first.
        size: the type of its sizes.
        sizes: of a full run, by device, smallest first.
        study: further sizes of a full run, which show how the cost grows.
        quick_sizes: of a quick run.
        goals: of all devices.
        columns: of its tables, named as in `columns`.
        picture: how it is drawn.
        conditions: what the input is, in words.
        deviation_of: what "off by" means; empty where results are not compared.
        check: raises ValueError where a size that was asked for does not exist.
    """

    title: str
    contenders: dict[str, Contender]
    size: type[Size]
    sizes: Mapping[Device, tuple[Any, ...]]
    quick_sizes: tuple[Any, ...]
    goals: tuple[Goal, ...]
    columns: tuple[str, ...]
    picture: Picture
    conditions: str
    deviation_of: str = ""
    study: Mapping[Device, tuple[Any, ...]] = field(default_factory=dict)
    check: Callable[[Any], None] = _any_size

    def full_sizes(self, device: Device) -> tuple[Any, ...]:
        """All sizes of a full run, smallest work first, so that estimates come from smaller ones."""
        every = dict.fromkeys((*self.sizes[device], *self.study.get(device, ())))
        return tuple(sorted(every, key=lambda size: size.work)) if self.study else tuple(every)


def parse_sizes(text: str, kind: type[Size]) -> tuple[Any, ...]:
    """Sizes of a kind from a list; ValueError where it is none.

    >>> from ldreg.bench.benchmark import Points
    >>> parse_sizes("2000x512, 10k×128", Points)
    (Points(points=2000, dimensions=512), Points(points=10000, dimensions=128))
    """
    return tuple(kind.parse(part.strip()) for part in text.split(","))
