"""Global dimensionality from the spectrum of representations: effective rank and RankMe.

All arithmetic is in float64, in blocks: beside x itself, which may be memory-mapped, it needs a Gram matrix of
min(N, D) rows, as much again for its eigenvalues, and a block of at most 32 MiB. x is a tensor on any device or
whatever `torch.as_tensor` takes, in any real dtype; with a `device`, its blocks are brought there, and the result lies
there too. No function here is differentiable, and every result is float64.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ldreg.dimension.neighbors import as_numbers

_BLOCK_ELEMENTS = 2**22  # of float64: 32 MiB

# Forming a Gram matrix and its eigenvalues in float64 leaves noise of a few eps times the largest eigenvalue where
# the exact eigenvalue is 0 (3 eps at 256 rows, 10 at 2048, measured). What is under this share of the largest is 0.
_GRAM_NOISE = 64 * torch.finfo(torch.float64).eps


@torch.no_grad()
def covariance_eigenvalues(x: Any, *, device: torch.device | None = None) -> Tensor:
    """Eigenvalues of the covariance (denominator N - 1) of x (N, D), descending: (min(N, D),) in float64.

    Those under 1.4e-14 of the largest are rounding noise and are returned as 0.

    Raises:
        ValueError: x is not a real (N, D) with N >= 2 and D >= 1, or holds NaN or inf.

    >>> covariance_eigenvalues([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [2.0, 1.0]]).tolist()
    [1.333..., 0.333...]
    """
    values, scale = scaled_eigenvalues(x, device=device)
    # Twice by the scale, since its square alone may overflow where the product does not.
    return values / scale / scale


@torch.no_grad()
def scaled_eigenvalues(x: Any, *, device: torch.device | None = None) -> tuple[Tensor, float]:
    """`covariance_eigenvalues` of x times a power of two, and that power, which brings the largest entry near 1.

    Their ratios are right even where the eigenvalues of x itself overflow or vanish.
    """
    x = _checked(x)
    scale = _scale(x)
    return _gram_eigenvalues(x, scale, centered=True, device=device) / (len(x) - 1), scale


@torch.no_grad()
def effective_rank(x: Any) -> Tensor:
    """Effective rank of x (N, D): exp of the entropy of the normalized covariance eigenvalues, a float64 scalar.

    Between 1 and min(N - 1, D), whatever the offset, scale and rotation of x; 0 where all rows are the same, since
    then no dimension is filled. Defined by Roy & Vetterli, "The effective rank", EUSIPCO 2007; taken of the feature
    covariance here (the paper's appendix on effective rank speaks of the feature correlation matrix).

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

    Between 1 and min(N, D); 0 where x is all zero. Zero singular values count as 0 ln 0 = 0, with no constant added,
    and so do those that rounding explains: under the rounding of the entries of x in their dtype, and under 1.2e-7 of
    the largest in any case, so that data of rank r has a RankMe of at most r. Defined by Garrido et al., "RankMe:
    Assessing the downstream performance of pretrained self-supervised representations by their rank", ICML 2023.

    Raises:
        ValueError: x is not a real (N, D) with N >= 2 and D >= 1, or holds NaN or inf.

    >>> round(rankme([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]]).item(), 6)
    2.0
    """
    x = _checked(x)
    squared = _gram_eigenvalues(x, _scale(x), centered=False, device=device)
    floor = _rounding(x) ** 2 * squared.sum()
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
    scale, device = _scale(x), x.device if device is None else device
    blocks = _row_blocks if x.shape[0] >= x.shape[1] else _column_blocks
    spread, norm = (
        torch.stack([block.square().sum() for block in blocks(x, scale, centered=centered, device=device)]).sum()
        for centered in (True, False)
    )
    return torch.where(norm > 0, (spread / norm).sqrt(), 0)


def _rounding(x: Tensor) -> float:
    """Bound on the spectral norm of the rounding errors in x, as a share of the Frobenius norm of x.

    Two parts: storing entries in their dtype adds errors independent of each other, whose matrix has a norm like any
    random one; computing them in float32 (or wider, as is x) correlates errors, which the Frobenius norm bounds.
    """
    if not x.is_floating_point():
        return 0.0
    computed = torch.promote_types(x.dtype, torch.float32)
    stored = torch.finfo(x.dtype).eps * sum(1 / math.sqrt(size) for size in x.shape)
    return stored + torch.finfo(computed).eps


def _gram_eigenvalues(x: Tensor, scale: float, *, centered: bool, device: torch.device | None = None) -> Tensor:
    """Eigenvalues, descending, of the smaller Gram matrix of x * scale, less its mean row if centered."""
    blocks = _row_blocks if x.shape[0] >= x.shape[1] else _column_blocks
    device = x.device if device is None else device
    size = min(x.shape)
    gram = torch.zeros(size, size, dtype=torch.float64, device=device)
    for block in blocks(x, scale, centered=centered, device=device):
        gram.addmm_(block.T, block)
    eigenvalues = torch.linalg.eigvalsh(gram).flip(0)
    return torch.where(eigenvalues > _GRAM_NOISE * eigenvalues[0], eigenvalues, 0)


def _row_blocks(x: Tensor, scale: float, *, centered: bool, device: torch.device) -> Iterator[Tensor]:
    """Blocks (n, D) of rows in float64, for N >= D."""
    blocks = torch.split(x, max(1, _BLOCK_ELEMENTS // x.shape[1]))
    if not centered:
        yield from (_float64(block.to(device), scale) for block in blocks)
        return
    # The first row is taken off before the mean is formed: equal rows then become exactly zero, and an offset costs
    # no digits of the mean.
    first = _float64(x[0].to(device), scale)
    sums = (_float64(block.to(device), scale).sub_(first).sum(0) for block in blocks)
    mean = sum(sums, torch.zeros_like(first)) / len(x)
    for block in blocks:
        yield _float64(block.to(device), scale).sub_(first).sub_(mean)


def _column_blocks(x: Tensor, scale: float, *, centered: bool, device: torch.device) -> Iterator[Tensor]:
    """Blocks (d, N) of columns, transposed, in float64, for N < D."""
    for columns in torch.split(x, max(1, _BLOCK_ELEMENTS // x.shape[0]), dim=1):
        block = _float64(columns.to(device), scale)
        if centered:
            block.sub_(block[0].clone())
            block.sub_(block.mean(0))
        yield block.T


def _float64(block: Tensor, scale: float) -> Tensor:
    return block.to(torch.float64, copy=True).mul_(scale)


def _scale(x: Tensor) -> float:
    """Power of two that brings the largest entry of x near 1, so that squares neither overflow nor vanish."""
    low, high = (bound.item() for bound in torch.aminmax(x))
    largest = max(abs(low), abs(high))
    if not math.isfinite(largest):
        raise ValueError(f"x must be finite, but holds NaN or inf (shape {tuple(x.shape)}, {x.dtype})")
    return math.ldexp(1.0, -max(math.frexp(largest)[1], -1000))


def _checked(value: Any) -> Tensor:
    with warnings.catch_warnings():
        # A memory-mapped array opened for reading makes torch warn that writing to the tensor would be undefined;
        # nothing here writes to x.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        x = as_numbers(value, "x").detach()
    if x.ndim != 2 or x.shape[0] < 2 or x.shape[1] < 1:
        advice = "; pool or flatten all axes but the first" if x.ndim > 2 else ""
        raise ValueError(f"x must have shape (N, D) with N >= 2 and D >= 1, but has shape {tuple(x.shape)}{advice}")
    if x.is_complex():
        raise ValueError(f"x must be real, but has dtype {x.dtype}")
    return x
