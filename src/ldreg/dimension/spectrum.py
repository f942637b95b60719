"""Global dimensionality from the spectrum of representations: effective rank and RankMe.

All arithmetic is in float64, in blocks: besides x, which may be memory-mapped, it needs a Gram matrix of min(N, D)
rows, the same again for its eigenvalues, and a block of at most 32 MiB. x is a tensor on any device or anything that
`torch.as_tensor` takes, in any real dtype. With a `device`, blocks are moved there, and the result is there too. No
function is differentiable, and every result is float64.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ldreg.dimension.neighbors import as_real_matrix

_BLOCK_ELEMENTS = 2**22  # of float64: 32 MiB

# Where the exact eigenvalue is 0, a Gram matrix in float64 leaves noise of a few eps times the largest eigenvalue
# (measured: 3 eps at 256 rows, 10 at 2048). Eigenvalues below this share of the largest are set to 0.
_GRAM_NOISE = 64 * torch.finfo(torch.float64).eps


@torch.no_grad()
def covariance_eigenvalues(x: Any, *, device: torch.device | None = None) -> Tensor:
    """Eigenvalues of the covariance (denominator N - 1) of x (N, D), descending: (min(N, D),) in float64.

    Eigenvalues below 1.4e-14 of the largest are rounding noise and returned as 0.

    Raises:
        ValueError: x is not a real (N, D) with N >= 2 and D >= 1, or holds NaN or inf.

    >>> covariance_eigenvalues([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [2.0, 1.0]]).tolist()
    [1.333..., 0.333...]
    """
    values, scale = scaled_eigenvalues(x, device=device)
    # Divide twice, since the square of the scale may overflow.
    return values / scale / scale


@torch.no_grad()
def scaled_eigenvalues(x: Any, *, device: torch.device | None = None) -> tuple[Tensor, float]:
    """`covariance_eigenvalues` of x times a power of two that brings its largest entry near 1, and that power.

    Their ratios are correct even where the eigenvalues of x itself overflow or vanish.
    """
    x = _checked(x)
    scale = _scale(x)
    return _gram_eigenvalues(x, scale, centered=True, device=device) / (len(x) - 1), scale


@torch.no_grad()
def effective_rank(x: Any) -> Tensor:
    """Effective rank of x (N, D): exp of the entropy of the normalized covariance eigenvalues, a float64 scalar.

    It lies between 1 and min(N - 1, D), whatever the offset, scale and rotation of x, and is 0 where all rows are the
    same. Defined by Roy & Vetterli, "The effective rank", EUSIPCO 2007; computed from the feature covariance here (the
    paper's appendix on effective rank names the feature correlation matrix).

    Raises:
        ValueError: x is not a real (N, D) with N >= 2 and D >= 1, or holds NaN or inf.

    >>> round(effective_rank([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).item(), 6)
    2.0
    """
    x = _checked(x)
    return entropy_rank(_gram_eigenvalues(x, _scale(x), centered=True))


@torch.no_grad()
def rankme(x: Any, *, device: torch.device | None = None) -> Tensor:
    """RankMe of x (N, D): exp of the entropy of the normalized singular values, not centered, a float64 scalar.

    It lies between 1 and min(N, D), and is 0 where x is all zero. Zero singular values count as 0 ln 0 = 0, without an
    added constant, and so do those within rounding error: below the rounding of the entries of x in their dtype, and
    below 1.2e-7 of the largest in any case. Data of rank r thus has a RankMe of at most r. Defined by Garrido et
    al., "RankMe: Assessing the downstream performance of pretrained self-supervised representations by their rank",
    ICML 2023.

    Raises:
        ValueError: x is not a real (N, D) with N >= 2 and D >= 1, or holds NaN or inf.

    >>> round(rankme([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]]).item(), 6)
    2.0
    """
    x = _checked(x)
    return _rankme(_gram_eigenvalues(x, _scale(x), centered=False, device=device), x.dtype, tuple(x.shape))


def _rankme(squared: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """RankMe of a matrix of a dtype and shape from its squared singular values."""
    floor = _rounding(dtype, shape) ** 2 * squared.sum()
    return entropy_rank(torch.where(squared > floor, squared, 0).sqrt())


@torch.no_grad()
def entropy_rank(values: Tensor) -> Tensor:
    """Exp of the entropy of non-negative values (any shape) normalized to sum 1: how many equal values they amount to.

    0 where all are 0. `effective_rank(x)` is `entropy_rank(covariance_eigenvalues(x))`.

    >>> round(entropy_rank(torch.tensor([5.0, 5.0, 5.0, 0.0])).item(), 6), entropy_rank(torch.zeros(3)).item()
    (3.0, 0.0)
    """
    values = values.to(torch.float64)
    total = values.sum()
    if total == 0:
        return torch.zeros_like(total)
    entropy: Tensor = torch.special.entr(values / total).sum()
    return entropy.exp()


@torch.no_grad()
def relative_spread(x: Any, *, device: torch.device | None = None) -> Tensor:
    """Root-mean-square distance of the rows of x (N, D) to their mean over their root-mean-square norm.

    A float64 scalar between 0, all rows equal, and 1, centered; 0 where x is all zero.

    >>> relative_spread([[1.0, 0.0], [-1.0, 0.0]]).item(), relative_spread([[3.0, 4.0], [3.0, 4.0]]).item()
    (1.0, 0.0)
    """
    x = _checked(x)
    scale = _scale(x)
    spread, norm = (
        torch.stack([block.square().sum() for block in _blocks(x, scale, centered=centered, device=device)]).sum()
        for centered in (True, False)
    )
    return torch.where(norm > 0, (spread / norm).sqrt(), 0)


class Moments:
    """Sums over rows that come block by block, from which the measures of the spectrum follow.

    Equal to the functions above to rounding. Sums of several parts of the rows can be added.

    Args:
        center: (D,) a row near the mean of all rows; the nearer, the fewer digits are lost.
        largest: at least the largest entry of all rows.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> moments = Moments(x[0], 1.0)
    >>> for block in x.split(3):
    ...     moments.add(block)
    >>> moments.scaled_eigenvalues()[0].tolist()
    [0.166..., 0.166...]
    """

    def __init__(self, center: Tensor, largest: float) -> None:
        self._scale = _power_of_two(largest)
        self.center = _float64(center, self._scale)
        size = len(center)
        # Of rows less the center, in units of the scale: their number, sum, and Gram matrix.
        self.count = 0
        self.sums = [torch.zeros(shape, dtype=torch.float64, device=center.device) for shape in (size, (size, size))]

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Add rows (n, D), on the device of the center."""
        total, gram = self.sums
        for part in torch.split(rows, max(1, _BLOCK_ELEMENTS // rows.shape[1])):
            block = _float64(part, self._scale).sub_(self.center)
            total += block.sum(0)
            gram.addmm_(block.T, block)
        self.count += len(rows)

    def merge(self, count: int, sums: Sequence[Tensor]) -> None:
        """Add the count and sums of other rows, around the same center."""
        for own, its in zip(self.sums, sums, strict=True):
            own += its.to(own.device)
        self.count += count

    def scaled_eigenvalues(self) -> tuple[Tensor, float]:
        """As the function of this name."""
        return _eigenvalues(self._centered(), min(self.count, len(self.center))) / (self.count - 1), self._scale

    def rankme(self, dtype: torch.dtype) -> Tensor:
        """As the function of this name; `dtype` is that of the rows."""
        squared = _eigenvalues(self._uncentered(), min(self.count, len(self.center)))
        return _rankme(squared, dtype, (self.count, len(self.center)))

    def relative_spread(self) -> Tensor:
        """As the function of this name."""
        spread, norm = self._centered().trace(), self._uncentered().trace()
        return torch.where(norm > 0, (spread / norm).sqrt(), 0)

    def _centered(self) -> Tensor:
        """The Gram matrix of the rows less their mean."""
        total, gram = self.sums
        return gram - total.outer(total / self.count)

    def _uncentered(self) -> Tensor:
        """The Gram matrix of the rows."""
        mean = self.center + self.sums[0] / self.count
        return self._centered() + self.count * mean.outer(mean)


def _rounding(dtype: torch.dtype, shape: tuple[int, ...]) -> float:
    """Bound on the spectral norm of the rounding errors in a matrix, as a share of its Frobenius norm.

    It has two parts. Storing entries in their dtype adds independent errors, whose matrix has the norm of a random one.
    Computing them in float32 (or in the wider dtype of x) adds correlated errors, bounded by the Frobenius norm.
    """
    if not dtype.is_floating_point:
        return 0.0
    computed = torch.promote_types(dtype, torch.float32)
    stored = torch.finfo(dtype).eps * sum(1 / math.sqrt(size) for size in shape)
    return stored + torch.finfo(computed).eps


def _gram_eigenvalues(x: Tensor, scale: float, *, centered: bool, device: torch.device | None = None) -> Tensor:
    """Eigenvalues, descending, of the smaller Gram matrix of x * scale, less its mean row if centered."""
    size = min(x.shape)
    gram = torch.zeros(size, size, dtype=torch.float64, device=x.device if device is None else device)
    for block in _blocks(x, scale, centered=centered, device=device):
        gram.addmm_(block.T, block)
    return _eigenvalues(gram, size)


def _eigenvalues(gram: Tensor, count: int) -> Tensor:
    """The largest eigenvalues of a Gram matrix, descending, without rounding noise."""
    eigenvalues = torch.linalg.eigvalsh(gram).flip(0)[:count]
    return torch.where(eigenvalues > _GRAM_NOISE * eigenvalues[0], eigenvalues, 0)


def _blocks(x: Tensor, scale: float, *, centered: bool, device: torch.device | None) -> Iterator[Tensor]:
    """Blocks in float64 of rows (n, D) for N >= D, or of columns, transposed, (d, N) for N < D."""
    device = x.device if device is None else device
    if x.shape[0] < x.shape[1]:
        for columns in torch.split(x, max(1, _BLOCK_ELEMENTS // x.shape[0]), dim=1):
            block = _float64(columns.to(device), scale)
            if centered:
                block.sub_(block[0].clone())
                block.sub_(block.mean(0))
            yield block.T
        return
    rows = torch.split(x, max(1, _BLOCK_ELEMENTS // x.shape[1]))
    if not centered:
        yield from (_float64(block.to(device), scale) for block in rows)
        return
    # The first row is subtracted before the mean is formed: equal rows then become exactly zero, and an offset costs
    # the mean no digits.
    first = _float64(x[0].to(device), scale)
    sums = (_float64(block.to(device), scale).sub_(first).sum(0) for block in rows)
    mean = sum(sums, torch.zeros_like(first)) / len(x)
    for block in rows:
        yield _float64(block.to(device), scale).sub_(first).sub_(mean)


def _float64(block: Tensor, scale: float) -> Tensor:
    return block.to(torch.float64, copy=True).mul_(scale)


def _scale(x: Tensor) -> float:
    """The power of two that brings the largest entry of x near 1, so that squares neither overflow nor vanish."""
    low, high = (bound.item() for bound in torch.aminmax(x))
    largest = max(abs(low), abs(high))
    if not math.isfinite(largest):
        raise ValueError(f"x: expected finite numbers, got NaN or inf in shape {tuple(x.shape)}")
    return _power_of_two(largest)


def _power_of_two(largest: float) -> float:
    return math.ldexp(1.0, -max(math.frexp(largest)[1], -1000))


def _checked(value: Any) -> Tensor:
    x = as_real_matrix(value, "x").detach()
    if len(x) < 2:
        raise ValueError(f"x: expected at least 2 rows, got shape {tuple(x.shape)}")
    return x
