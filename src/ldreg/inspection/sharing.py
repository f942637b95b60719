"""Divide the points to measure among ranks, and gather their results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from ldreg import distributed
from ldreg.dimension.estimators import LIDEstimate
from ldreg.dimension.search import Neighbors

T = TypeVar("T")


@dataclass(frozen=True)
class Sharing:
    """This process among those that share the work; by default alone, whatever group there is."""

    rank: int = 0
    world: int = 1

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.world > 1

    def share(self, rows: Tensor) -> Tensor:
        """The rows of this rank; with more ranks than rows, a single spare row.

        >>> import torch
        >>> [Sharing(rank, 3).share(torch.arange(5)).tolist() for rank in range(3)]
        [[0], [1, 2], [3, 4]]
        """
        start, stop = self._edges(len(rows))
        return rows[start : max(stop, start + 1)]

    def gathered(self, part: LIDEstimate, count: int) -> LIDEstimate:
        """The estimates of all `count` rows on rank 0; elsewhere those of the rank's own share."""
        if not self.several:
            return part
        start, stop = self._edges(count)
        columns = (part.lid, part.standard_error, *part.neighbors)
        values, errors, *found = (distributed.gather_parts(column[: stop - start]) for column in columns)
        return LIDEstimate(values, errors, Neighbors(*found))

    def agreed(self, work: Callable[[], T]) -> T:
        """The result of `work` on this rank, once every rank has its own."""
        return distributed.agreed(work) if self.several else work()

    def from_first(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0, for all ranks."""
        return distributed.from_first(work) if self.several else work()

    def _edges(self, count: int) -> tuple[int, int]:
        return count * self.rank // self.world, count * (self.rank + 1) // self.world
