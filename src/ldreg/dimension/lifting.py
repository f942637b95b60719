"""Rows that carry their norms as two further columns, so that one product gives bounds of half the squared distances.

Of two lifted rows the product is |x|²/2 + |y|²/2 - x·y. Rounding moves that by at most γ(|x|² + |y|²) with γ of about
(D + 16)·u, so shrinking the norms by 2γ turns every entry into a lower bound of the true value.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ldreg.dimension.chunks import slices


class Frame(NamedTuple):
    """Where rows are moved to before products: x -> scale·x - scale·center, so that offset and unit cost no digits."""

    center: Tensor
    scale: float


class LiftedRows:
    """Rows of a set in some order (None: as they come), moved into a frame and lifted to D + 2 columns, in blocks."""

    def __init__(self, x: Tensor, frame: Frame, *, order: Tensor | None, dtype: torch.dtype, cache_bytes: int) -> None:
        self._x, self._order, self._scale, self._dtype = x, order, frame.scale, dtype
        self._shift = -frame.scale * frame.center.to(dtype)
        # Few enough rows at a time for a core's cache.
        self._step = max(1, (1 << 17) // x.shape[1]) if x.device.type == "cpu" else 8192
        self._half_squares = torch.cat([self._half_squares_of(rows) for rows in slices(len(x), self._step)])
        self._small = len(x) * (x.shape[1] + 2) * dtype.itemsize <= cache_bytes
        self._lifted: dict[int, Tensor] = {}

    def left(self, rows: slice | Tensor) -> Tensor:
        """(-x, |x|²/2, 1)."""
        return self._lift(rows, sign=-1)

    def right(self, rows: slice) -> Tensor:
        """(x, 1, |x|²/2), of all blocks kept where that is little."""
        if rows.start in self._lifted:
            return self._lifted[rows.start]
        lifted = self._lift(rows, sign=1)
        if self._small:
            self._lifted[rows.start] = lifted
        return lifted

    def _lift(self, rows: slice | Tensor, *, sign: int) -> Tensor:
        where = rows if self._order is None else self._order[rows]
        half_squares, dim = self._half_squares[where], self._x.shape[1]
        lifted = torch.empty(len(half_squares), dim + 2, dtype=self._dtype, device=self._x.device)
        if isinstance(where, slice):
            self._move(self._x[where], lifted[:, :dim], sign=sign)
        else:
            for part in slices(len(where), self._step):
                self._move(self._x[where[part]], lifted[part, :dim], sign=sign)
        norm, one = (dim, dim + 1) if sign < 0 else (dim + 1, dim)
        lifted[:, norm] = half_squares
        lifted[:, one] = 1
        return lifted

    def _move(self, block: Tensor, out: Tensor, *, sign: int) -> Tensor:
        return torch.add(sign * self._shift, block.to(self._dtype), alpha=sign * self._scale, out=out)

    def _half_squares_of(self, rows: slice) -> Tensor:
        """|x|²/2, shrunk."""
        block = self._x[rows]
        moved = self._move(block, torch.empty(block.shape, dtype=self._dtype, device=block.device), sign=1)
        norms: Tensor = torch.linalg.vector_norm(moved, dim=1, dtype=torch.float64)
        return (norms.square() * (0.5 - _rounding(block.shape[1], self._dtype))).to(self._dtype)


def _rounding(dim: int, dtype: torch.dtype) -> float:
    """By how much of (|x|² + |y|²) rounding can move half a squared distance.

    A product of `dim` + 2 terms, plus what moving the rows into the frame and rounding their norms adds. Norms are
    summed in float64, so only there do they add a sum's rounding of their own.
    """
    terms = dim + 16 if dtype == torch.float32 else 2 * dim + 16
    share = terms * torch.finfo(dtype).eps / 2
    return share / (1 - share)
