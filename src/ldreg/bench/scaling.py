"""Which sizes of a run show how the cost grows with one number while the other stays."""

from collections import defaultdict
from typing import Literal, NamedTuple

from ldreg.bench.record import Run
from ldreg.bench.sizes import Points
from ldreg.bench.suite import BENCHMARKS

_FEWEST = 3  # sizes that make a series

Axis = Literal["points", "dimensions"]


class Series(NamedTuple):
    """Sizes that differ along one axis alone, ascending."""

    axis: Axis
    fixed: int
    sizes: tuple[Points, ...]

    @property
    def title(self) -> str:
        """What grows and what stays."""
        other = "dimensions" if self.axis == "points" else "points"
        return f"over {self.axis}, at {self.fixed:,} {other}"


def series(run: Run) -> list[Series]:
    """The longest series along each axis, where there is one."""
    sizes = [size for size in run.sizes if isinstance(size, Points)]
    return [found for axis in ("points", "dimensions") if (found := _longest(axis, sizes)) is not None]


def _longest(axis: Axis, sizes: list[Points]) -> Series | None:
    groups: dict[int, list[Points]] = defaultdict(list)
    for size in sizes:
        groups[size.dimensions if axis == "points" else size.points].append(size)
    fixed, members = max(groups.items(), key=lambda group: len(group[1]), default=(0, []))
    return Series(axis, fixed, tuple(sorted(members))) if len(members) >= _FEWEST else None


def headline(run: Run) -> list[Points]:
    """The sizes that are shown in full: all but those that were run for a series alone."""
    benchmark = BENCHMARKS[run.benchmark]
    extra = set(benchmark.study.get(run.device, ())) - set(benchmark.sizes[run.device])
    in_series = {size for found in series(run) for size in found.sizes}
    return [size for size in run.sizes if size not in extra or size not in in_series]
