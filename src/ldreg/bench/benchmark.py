"""What a benchmark is: contenders at the same work, its sizes, and its goals."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ldreg.bench.measure import Device, Measurement

OWN = "ldreg"  # the contender that all others are compared with
VIEWS = 2  # of every image
_SMALL = 64  # pixels up to which pictures have the size of their views, as CIFAR's do
_PHOTO = (350 / 224, 400 / 224)  # height and width of larger ones, in units of the views' side


class Points(NamedTuple):
    """Points and dimensions of a set.

    >>> str(Points(10_000, 2048)), str(Points(300, 16))
    ('10k×2048', '300×16')
    """

    points: int
    dimensions: int

    def __str__(self) -> str:
        thousands, rest = divmod(self.points, 1000)
        return f"{self.points if rest or not thousands else f'{thousands}k'}×{self.dimensions}"

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


class Pictures(NamedTuple):
    """A batch of pictures in memory or in JPEG files, and the side of their views.

    >>> str(Pictures(512, 32)), Pictures(128, 224).shape
    ('512 × 32 px', (350, 400))
    """

    images: int
    pixels: int
    files: bool = False

    def __str__(self) -> str:
        return f"{self.images} × {self.pixels} px{' from files' if self.files else ''}"

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        share = (1.0, 1.0) if self.pixels <= _SMALL else _PHOTO
        return round(self.pixels * share[0]), round(self.pixels * share[1])

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


class Batches(NamedTuple):
    """Images of a training step, their side, and the encoder.

    >>> str(Batches(512, 32, "resnet18"))
    '512 × 32 px, resnet18'
    """

    images: int
    pixels: int
    encoder: str

    def __str__(self) -> str:
        return f"{self.images} × {self.pixels} px, {self.encoder}"

    @property
    def work(self) -> float:
        """Pixels of the images."""
        return float(self.images * self.pixels**2)

    @property
    def candidates(self) -> int:
        """The views of all images."""
        return VIEWS * self.images

    @property
    def input_bytes(self) -> int:
        """As uint8."""
        return 3 * self.images * self.pixels**2


Size = Points | Pictures | Batches  # each a list in JSON

# How each is written, and made from what the pattern finds.
_FORMS: dict[type[Size], tuple[str, str, Callable[[re.Match[str]], Size]]] = {
    Points: (
        "POINTSxDIMENSIONS such as 10kx128",
        r"(\d+)(k?)[x×](\d+)",
        lambda found: Points(int(found[1]) * (1000 if found[2] else 1), int(found[3])),
    ),
    Pictures: (
        "[files:]IMAGESxPIXELS such as 512x32",
        r"(files:)?(\d+)[x×](\d+)",
        lambda found: Pictures(int(found[2]), int(found[3]), found[1] is not None),
    ),
    Batches: (
        "IMAGESxPIXELS[:ENCODER] such as 512x32:resnet18",
        r"(\d+)[x×](\d+)(?::(\w+))?",
        lambda found: Batches(int(found[1]), int(found[2]), found[3] or "resnet18"),
    ),
}


def parse_sizes(text: str, kind: type[Size]) -> tuple[Size, ...]:
    """Sizes of a kind, separated by commas.

    Raises:
        ValueError: one has another form, or a number is 0.

    >>> parse_sizes("2000x512, 10k×128", Points)
    (Points(points=2000, dimensions=512), Points(points=10000, dimensions=128))
    """
    form, pattern, make = _FORMS[kind]
    sizes = []
    for part in map(str.strip, text.split(",")):
        found = re.fullmatch(pattern, part, flags=re.IGNORECASE | re.ASCII)
        if found is None or any(group.isdecimal() and int(group) == 0 for group in found.groups("")):
            raise ValueError(f"sizes: expected full, quick or {form}, with numbers above 0, got {part!r}")
        sizes.append(make(found))
    return tuple(sizes)


@dataclass(frozen=True)
class Setting:
    """One measurement to make; `size` is of the benchmark's type, `threads` what a contender may use of the CPU."""

    size: Any
    k: int = 64
    seed: int = 0
    repeats: int = 3
    device: Device = "cpu"
    threads: int = 1


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Args:
        measure: does the work in this process; returns what it took and how far its result is off (None: not compared).
        package: the module that it needs; None: nothing more.
        install: what pip installs for it.
        devices: where it runs.
        bytes_needed: memory beside the input, if it grows so fast that it may not fit.
        counts: whether it is a rival for goals and for "best other"; the others are for reference.
    """

    measure: Callable[[Setting], tuple[Measurement, float | None]]
    package: str | None = None
    install: str = "ldreg[bench]"
    devices: tuple[Device, ...] = ("cpu", "cuda")
    bytes_needed: Callable[[Any, Device], int] | None = None
    counts: bool = True


Quantity = Literal[
    "speed", "extra memory", "memory share", "time", "host time", "deviation", "img/s", "views/s", "LDReg", "views"
]


@dataclass(frozen=True)
class Goal:
    """What the contender `of` has to reach at one size on one device, with k = 64.

    "speed" is the time of the rival over ours (at least `limit`), "memory share" our extra memory over the rival's (at
    most `limit`); the other quantities are those of the tables. A rival of None is the fastest that counts.
    """

    size: Any
    quantity: Quantity
    limit: float
    rival: str | None = None
    device: Device = "cpu"
    of: str = OWN


@dataclass(frozen=True)
class Benchmark:
    """Contenders at the same work.

    Args:
        title: what is done.
        contenders: by name; ours first.
        size: the type of its sizes.
        sizes: of a full run, by device, smallest first.
        quick_sizes: of a quick run.
        columns: of its tables: names of quantities.
        picture: how it is drawn.
        conditions: what the input is.
        deviation_of: what "deviation" means; empty if results are not compared.
        study: further sizes of a full run, which show how the cost grows.
        goals: of all devices.
        check: raises ValueError for a size that cannot be run.
    """

    title: str
    contenders: dict[str, Contender]
    size: type[Size]
    sizes: Mapping[Device, tuple[Any, ...]]
    quick_sizes: tuple[Any, ...]
    columns: tuple[str, ...]
    picture: Literal["scaling", "rates", "parts"]
    conditions: str
    deviation_of: str = ""
    study: Mapping[Device, tuple[Any, ...]] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    check: Callable[[Any], None] = lambda size: None

    def full_sizes(self, device: Device) -> tuple[Any, ...]:
        """All sizes of a full run; with a study by their work, so that estimates come from smaller ones."""
        every = dict.fromkeys((*self.sizes[device], *self.study.get(device, ())))
        return tuple(sorted(every, key=lambda size: size.work)) if self.study else tuple(every)
