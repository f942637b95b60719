"""The points to measure, shared out among ranks, and their results together again."""

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
    """This process among those that share the work; alone by default, whatever group there may be."""

    rank: int = 0
    world: int = 1

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.world > 1

    def share(self, rows: Tensor) -> Tensor:
        """The part of the rows that is this rank's; a single row that nobody needs where there are more ranks.

        >>> import torch
        >>> [Sharing(rank, 3).share(torch.arange(5)).tolist() for rank in range(3)]
        [[0], [1, 2], [3, 4]]
        """
        start, stop = self._edges(len(rows))
        return rows[start : max(stop, start + 1)]

    def gathered(self, part: LIDEstimate, count: int) -> LIDEstimate:
        """On rank 0 the estimates of all `count` rows, from those of every rank's share; elsewhere just the latter."""
        if not self.several:
            return part
        start, stop = self._edges(count)
        columns = (part.lid, part.standard_error, *part.neighbors)
        values, errors, *found = (distributed.gather_parts(column[: stop - start]) for column in columns)
        return LIDEstimate(values, errors, Neighbors(*found))

    def agreed(self, work: Callable[[], T]) -> T:
        """What `work` returns here, once it has on all ranks."""
        return distributed.agreed(work) if self.several else work()

    def from_first(self, work: Callable[[], T]) -> T:
        """What `work` returns on rank 0, for all."""
        return distributed.from_first(work) if self.several else work()

    def _edges(self, count: int) -> tuple[int, int]:
        return count * self.rank // self.world, count * (self.rank + 1) // self.world
