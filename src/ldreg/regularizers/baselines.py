"""The other regularizers of the comparison: covariance, variance and covariance (VICReg), KoLeo and SIGReg."""

from typing import Any

import torch
from torch import Tensor, nn

from ldreg.dimension.neighbors import neighbors
from ldreg.regularizers.base import Regularizer, centered, check, finite, weight, whole


class Covariance(Regularizer):
    """The covariance regularizer of VICReg: maps representations (N, D) to a scalar to add to the loss.

    The value is beta / D * sum over i != j of C_ij^2, where C is the covariance of the batch with denominator N - 1
    (Bardes, Ponce & LeCun, "VICReg", ICLR 2022; paper, appendix on regularization terms). It is computed in float32 or
    wider, even under autocast. Constant representations have value and gradient 0. NaN in the input gives NaN, since a
    check would stall the device.

    Args:
        beta: weight of the term; the paper tries 0.01 and 0.1.
        gather: whether to work on the batch of all ranks, as `LDReg` does.

    Raises:
        ValueError: beta is negative or not finite; in the call, representations are not a floating-point (N, D) or
            have fewer than two rows.

    >>> Covariance(beta=1.0)(torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))
    tensor(1.)
    """

    def __init__(self, beta: float = 0.01, *, gather: bool = False) -> None:
        super().__init__(beta, gather=gather)

    def term(self, x: Tensor) -> Tensor:
        """The sum of the squared covariances over D."""
        return covariance_term(centered(x))


class VarianceCovariance(Regularizer):
    """The variance and covariance regularizers of VICReg: representations (N, D) to a scalar to add to the loss.

    The value is beta * (Cov + Var): Cov as in `Covariance`, and Var the mean over dimensions of
    max(0, gamma - sqrt(variance + epsilon)) (Bardes, Ponce & LeCun, "VICReg", ICLR 2022; paper, appendix on
    regularization terms). Constant representations have a finite value and gradient 0. All else is as in `Covariance`.

    Args:
        beta: weight of the sum; the paper tries 0.01 and 0.1.
        gamma: standard deviation above which a dimension has no penalty.
        epsilon: added to the variance, so that the gradient of its root is finite.
        gather: whether to work on the batch of all ranks, as `LDReg` does.

    Raises:
        ValueError: beta or gamma is negative or not finite, or epsilon not above 0; in the call as `Covariance`.

    >>> round(VarianceCovariance(beta=1.0, gamma=3.0)(torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])).item(), 3)
    3.0
    """

    def __init__(self, beta: float = 0.01, *, gamma: float = 1.0, epsilon: float = 1e-4, gather: bool = False) -> None:
        super().__init__(beta, gather=gather)
        self.gamma = weight("gamma", gamma)
        self.epsilon = weight("epsilon", epsilon)
        check(self.epsilon > 0, "epsilon", "a number above 0, or constant dimensions have NaN gradients", epsilon)

    def term(self, x: Tensor) -> Tensor:
        """The covariance term and the mean over D of max(0, gamma - standard deviation)."""
        x = centered(x)
        variance = x.square().sum(0) / (len(x) - 1)
        return covariance_term(x) + torch.relu(self.gamma - (variance + self.epsilon).sqrt()).mean()


def covariance_term(centered: Tensor) -> Tensor:
    """Sum of the squared off-diagonal covariances divided by D, for representations (N, D) with mean 0: a scalar.

    >>> covariance_term(torch.tensor([[-1.0, -2.0], [1.0, 2.0]]))
    tensor(16.)
    """
    covariance = centered.T @ centered / (len(centered) - 1)
    # Subtracting the squared diagonal from the sum of all squares would cancel where off-diagonals are small.
    off_diagonal = covariance - torch.diag(covariance.diagonal())
    return off_diagonal.square().sum() / centered.shape[1]


class KoLeo(Regularizer):
    """The Kozachenko-Leonenko entropy regularizer: maps representations (N, D) to a scalar to add to the loss.

    The value is -beta times the mean over rows of ln(distance to the nearest other row), on rows scaled to length 1
    unless `normalize` is off (Sablayrolles et al., "Spreading vectors for similarity search", ICLR 2019; with weight
    0.1 in Oquab et al., "DINOv2", 2023). The gradient moves both ends of each distance. Rows at distance 0 from
    another have no direction to move in and are left out of the mean; if all are, value and gradient are 0. A row of
    zeros is not scaled. The value is computed in float32 or wider, even under autocast.

    Args:
        beta: weight of the term.
        normalize: whether to scale rows to length 1 first.
        gather: whether to work on the batch of all ranks, as `LDReg` does.

    Raises:
        ValueError: beta is negative or not finite; in the call, representations are not a floating-point (N, D) or
            have fewer than two rows, or hold NaN or inf.

    >>> round(KoLeo(beta=1.0)(torch.tensor([[1.0, 0.0], [0.0, 2.0]])).item(), 4)  # -ln(sqrt(2))
    -0.3466
    """

    def __init__(self, beta: float = 0.1, *, normalize: bool = True, gather: bool = False) -> None:
        super().__init__(beta, gather=gather)
        self.normalize = normalize

    def term(self, x: Tensor) -> Tensor:
        """Minus the mean of ln(distance to the nearest other row) over rows where that is not 0; 0 if all are."""
        distance = neighbors(_unit_rows(x) if self.normalize else x, 1, reference_grad=True).distances[:, 0]
        apart = distance > 0
        return -torch.where(apart, distance, 1).log().sum() / apart.sum().clamp_min(1)


def _unit_rows(x: Tensor) -> Tensor:
    largest = x.detach().abs().amax(1, keepdim=True)
    # In units of its largest entry, the length of a row neither overflows nor underflows.
    x = x / torch.where(largest == 0, 1, largest)
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / torch.where(length == 0, 1, length)


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
        gather: whether to work on the batch of all ranks, as `LDReg` does.

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
