"""SIGReg: push representations towards an isotropic Gaussian, tested along random directions (LeJEPA)."""

from typing import Any

import torch
from torch import Tensor, nn

from ldreg.regularizers.base import Regularizer, centered, check, finite, whole


class SIGReg(Regularizer):
    """Sketched isotropic Gaussian regularization: maps representations (N, D) to a scalar to add to the loss.

    The value is beta times the mean, over random unit directions, of the Epps-Pulley statistic against N(0, 1) of
    the representations along that direction: N times the integral over t of
    |mean exp(i t x) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) (Balestriero & LeCun, "LeJEPA", 2025; Epps & Pulley,
    Biometrika 1983). The integral uses the trapezoid rule over [-bound, bound], folded at 0, since the integrand is
    even. It separates values along a direction up to a period of 2 pi (num_points - 1) / bound, 20 by default. For
    N(0, I) the mean of the statistic is sqrt(2 pi) (1 - 1/sqrt(3)) = 1.059, whatever N and D.

    Every call in training mode draws new directions. They depend only on `seed`, the number of such calls (part of the
    state dict) and the type of device, so all ranks draw the same and a resumed run continues exactly. In evaluation
    mode the directions do not change.

    The value is computed in float32 or wider, even under autocast. Value and gradient are finite on constants and
    duplicates. NaN in the input gives NaN, since a check would stall the device.

    Args:
        beta: weight of the term; LeJEPA uses 0.05 (and 0.95 for its own loss).
        num_slices: number of directions.
        num_points: number of points t in [0, bound].
        bound: end of the integral.
        center: whether to subtract the mean of the batch first. Representations that cannot have mean 0, such as those
            behind a ReLU, are otherwise penalized whatever their shape, and lose information.
        seed: seed of the sequence of directions.
        gather: whether to work on the batch of all ranks. Gradients averaged over ranks, as in DDP, then equal those
            of one process with the whole batch.

    Raises:
        ValueError: beta is negative or not finite, num_slices under 1, num_points under 2, bound not above 0, seed
            negative, or one of them not an integer; in the call, representations are not a floating-point (N, D) or
            have fewer than two rows.

    >>> sigreg = SIGReg(beta=1.0).eval()
    >>> x = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    >>> bool(sigreg(x) < 2), bool(sigreg(2 * x) > 50)
    (True, True)
    """

    def __init__(
        self,
        beta: float = 0.05,
        *,
        num_slices: int = 1024,
        num_points: int = 17,
        bound: float = 5.0,
        center: bool = False,
        seed: int = 0,
        gather: bool = False,
    ) -> None:
        super().__init__(beta, gather=gather)
        self.num_slices = whole("num_slices", num_slices, least=1)
        self.num_points = whole("num_points", num_points, least=2)
        self.seed = whole("seed", seed, least=0)
        check(finite(bound) > 0, "bound", "a finite number above 0", bound)
        self.bound = float(bound)
        self.center = center
        # Always on the CPU, since reading it from the device would stall; and a tensor, since torch.compile would
        # recompile for every value of an int.
        self._steps = torch.zeros((), dtype=torch.int64, device="cpu")

    def term(self, x: Tensor) -> Tensor:
        """The mean of the statistic over the directions of this call."""
        x = centered(x) if self.center else x
        return epps_pulley(x @ self._directions(x), num_points=self.num_points, bound=self.bound).mean()

    def get_extra_state(self) -> Tensor:
        """The number of training calls."""
        return self._steps.clone()

    def set_extra_state(self, state: Any) -> None:
        """Restore the number of training calls."""
        self._steps = torch.tensor(int(state), device="cpu")

    def _directions(self, x: Tensor) -> Tensor:
        """Unit columns (D, num_slices) of this call, uniform on the sphere."""
        # A large odd factor keeps the sequences of two seeds apart; generators take seeds below 2^63.
        seed = (self.seed * 0x9E3779B97F4A7C15 + int(self._steps)) % 2**63
        generator = torch.Generator(x.device).manual_seed(seed)
        if self.training:
            self._steps += 1
        shape = x.shape[1], self.num_slices
        directions = torch.randn(shape, generator=generator, dtype=torch.float32, device=x.device)
        return nn.functional.normalize(directions.to(x.dtype), dim=0)


def epps_pulley(x: Tensor, *, num_points: int = 17, bound: float = 5.0) -> Tensor:
    """Epps-Pulley statistic against N(0, 1) of every column of x (N, S): (S,).

    Memory is a few times that of x, whatever the number of points.

    >>> samples = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    >>> bool(epps_pulley(samples) < 2), bool(epps_pulley(samples + 1) > 200)
    (True, True)
    """
    nodes = torch.linspace(0, bound, num_points, dtype=x.dtype, device=x.device)
    gaussian = torch.exp(-nodes.square() / 2)
    # Trapezoid weights of [-bound, bound]: every t counts for both signs, except t = 0; the ends count half.
    weights = torch.full_like(nodes, 2 * bound / (num_points - 1))
    weights[0] /= 2
    weights[-1] /= 2
    cosine, sine = _CharacteristicFunction.apply(x, nodes)
    error: Tensor = (cosine - gaussian[:, None]).square() + sine.square()
    return len(x) * ((weights * gaussian) @ error)


class _CharacteristicFunction(torch.autograd.Function):
    """Means over rows of cos(t x) and sin(t x) for x (N, S) and nodes t (T,): two of (T, S).

    Autograd would store T arrays of the size of x for the backward pass; this recomputes them one at a time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, nodes)
        cosine = torch.stack([(t * x).cos_().mean(0) for t in nodes])
        sine = torch.stack([(t * x).sin_().mean(0) for t in nodes])
        return cosine, sine

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, nodes = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for t, cosine, sine in zip(nodes, *grads, strict=True):
            angle = t * x
            grad.addcmul_(angle.cos(), t * sine).addcmul_(angle.sin_(), t * cosine, value=-1)
        return grad.div_(len(x)), None
