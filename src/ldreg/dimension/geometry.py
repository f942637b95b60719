"""The Fisher-Rao geometry of local intrinsic dimensionality (paper, Sections 4.1-4.3 and Appendix C).

Functions take LID values in tensors of any shape. Regular values are finite and above zero; the statistics leave out
all others (0, inf, NaN).
"""

import torch
from torch import Tensor


def regular(lid: Tensor) -> Tensor:
    """The mask of regular values, finite and above zero, over which statistics are taken.

    >>> regular(torch.tensor([0.0, 2.0, float("inf")]))
    tensor([False,  True, False])
    """
    return torch.isfinite(lid) & (lid > 0)


def fisher_rao(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Asymptotic Fisher-Rao distance |ln(b / a)| between distance distributions of LID a and b (Definition 3).

    Shapes broadcast. It is 0 for equal values, even degenerate ones, and inf between a regular and a degenerate value.

    >>> round(fisher_rao(2.0, 4.0).item(), 4), round(fisher_rao(20.0, 22.0).item(), 4)
    (0.6931, 0.0953)
    """
    a, b = _float(a), _float(b)
    return torch.where(a == b, torch.zeros_like(a * b), torch.log(b / a).abs())


def kl_distance(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Asymptotic KL distance sqrt(b/a - ln(b/a) - 1) from a distribution of LID a to one of LID b (Lemma 2).

    Not symmetric. Shapes broadcast.

    >>> round(kl_distance(1.0, 2.0).item(), 4), round(kl_distance(2.0, 1.0).item(), 4)
    (0.5539, 0.4395)
    """
    a, b = _float(a), _float(b)
    excess = (b - a) / a
    # t - ln(1 + t) loses all its digits near t = 0, where its series t²/2 - t³/3 + t⁴/4 takes over.
    series = excess.square() * (0.5 - excess / 3 + excess.square() / 4)
    return torch.where(excess.abs() < 1e-3, series, excess - torch.log1p(excess)).clamp_min(0).sqrt()


def geometric_mean(lid: Tensor) -> Tensor:
    """Geometric mean of the regular values: the LID of their Fréchet mean (Theorem 2). NaN where none is regular.

    >>> geometric_mean(torch.tensor([2.0, 8.0, float("inf")]))
    tensor(4.)
    """
    return _log(lid).mean().exp()


def arithmetic_mean(lid: Tensor) -> Tensor:
    """Arithmetic mean of the regular values: the Fréchet mean under the asymptotic KL distance (Theorem 4, part 2).

    >>> arithmetic_mean(torch.tensor([2.0, 8.0]))
    tensor(5.)
    """
    lid = _float(lid)
    return lid[regular(lid)].mean()


def harmonic_mean(lid: Tensor) -> Tensor:
    """Harmonic mean of the regular values: the Fréchet mean under the reverse KL distance (Theorem 4, part 3).

    >>> harmonic_mean(torch.tensor([2.0, 8.0]))
    tensor(3.2000)
    """
    lid = _float(lid)
    return 1 / (1 / lid[regular(lid)]).mean()


def frechet_mean(lid: Tensor) -> Tensor:
    """LID of the Fréchet mean under the asymptotic Fisher-Rao metric (Definition 4), which is the geometric mean.

    >>> frechet_mean(torch.tensor([2.0, 8.0]))
    tensor(4.)
    """
    return geometric_mean(lid)


def frechet_variance(lid: Tensor) -> Tensor:
    """Mean squared Fisher-Rao distance of the regular values to their Fréchet mean: the variance of ln LID.

    >>> round(frechet_variance(torch.tensor([1.0, 1.0, 4.0, 4.0])).item(), 4)
    0.4805
    """
    logs = _log(lid)
    return (logs - logs.mean()).square().mean()


def _log(lid: Tensor) -> Tensor:
    lid = _float(lid)
    return lid[regular(lid)].log()


def _float(value: Tensor | float) -> Tensor:
    """A floating-point tensor; plain numbers in float64, where they lose no digits and adopt a tensor's dtype."""
    if not isinstance(value, Tensor):
        return torch.as_tensor(value, dtype=torch.float64, device="cpu")
    return value if value.is_floating_point() else value.to(torch.float32)
