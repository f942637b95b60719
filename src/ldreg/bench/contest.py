"""What a benchmark is: work of given sizes, who does it, and what is asked of ldreg."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ldreg.bench.measure import Device, Measurement
from ldreg.bench.sizes import Size

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

    >>> from ldreg.bench.sizes import Points
    >>> parse_sizes("2000x512, 10k×128", Points)
    (Points(points=2000, dimensions=512), Points(points=10000, dimensions=128))
    """
    return tuple(kind.parse(part.strip()) for part in text.split(","))
