"""What a benchmark is: work of given sizes, who does it, and what is asked of ldreg."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

Array = NDArray[Any]
Quantity = Literal["speed", "extra memory", "memory share"]

OWN = "ldreg"  # the contender that all others are compared with


class Size(NamedTuple):
    """Points and dimensions of the input.

    >>> str(Size(10_000, 2048))
    '10k×2048'
    """

    points: int
    dimensions: int

    def __str__(self) -> str:
        thousands, rest = divmod(self.points, 1000)
        return f"{self.points if rest or not thousands else f'{thousands}k'}×{self.dimensions}"


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Args:
        run: from input (N, D) and k to the result, as an array.
        package: what has to be installed for it, by the name it is imported under; None: nothing more.
        bytes_needed: memory beside input and output, where that grows so fast that it may not be there.
        counts: whether goals that speak of the best other mean this one too.
        normalize: from its result and k to the one all agree on, where it computes something else; not timed.
    """

    run: Callable[[Array, int], Array]
    package: str | None = None
    bytes_needed: Callable[[Size], int] | None = None
    counts: bool = True
    normalize: Callable[[Array, int], Array] | None = None


@dataclass(frozen=True)
class Goal:
    """What ldreg has to reach at one size, k = 64.

    `quantity` is "speed" (time of the rival over ours, at least `limit`), "extra memory" (ours in MB, at most) or
    "memory share" (ours over the rival's, at most). A rival of None is the fastest that counts.
    """

    size: Size
    quantity: Quantity
    limit: float
    rival: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """Contenders at the same work; `deviation` says how far a result lies from ours."""

    title: str
    contenders: dict[str, Contender]
    deviation: Callable[[Array, Array], float]
    deviation_of: str
    sizes: tuple[Size, ...]
    quick_sizes: tuple[Size, ...]
    goals: tuple[Goal, ...]


def parse_sizes(text: str) -> tuple[Size, ...]:
    """Sizes from a list such as "2000x512,10kx128"; ValueError where it is none.

    >>> parse_sizes("2000x512, 10k×128")
    (Size(points=2000, dimensions=512), Size(points=10000, dimensions=128))
    """
    return tuple(_parse_size(part.strip()) for part in text.split(","))


def _parse_size(text: str) -> Size:
    match = re.fullmatch(r"(\d+)(k?)[x×](\d+)", text, flags=re.IGNORECASE | re.ASCII)
    if match is None or int(match[1]) == 0 or int(match[3]) == 0:
        raise ValueError(f"sizes: expected full, quick or POINTSxDIMENSIONS such as 10kx128, got {text!r}")
    return Size(int(match[1]) * (1000 if match[2] else 1), int(match[3]))
