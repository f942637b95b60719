"""The covariance and the variance-covariance regularizer, baselines of the paper's comparison."""

import torch
from torch import Tensor, nn

from ldreg.regularizers.inputs import batch, centered, full_precision, weight


class Covariance(nn.Module):
    """The covariance regularizer of VICReg: maps representations (N, D) to a scalar to add to the loss.

    The value is beta / D * sum over i != j of C_ij^2, where C is the covariance of the batch with denominator N - 1
    (Bardes, Ponce & LeCun, "VICReg", ICLR 2022; paper, appendix on regularization terms). It is computed in float32 or
    wider, even under autocast. Constant representations have value and gradient 0. NaN in the input gives NaN, since a
    check would stall the device.

    Args:
        beta: weight of the term; the paper tries 0.01 and 0.1.
        gather: whether to work on the batch of all ranks. Gradients averaged over ranks, as in DDP, then equal those
            of one process with the whole batch.

    Raises:
        ValueError: beta is negative or not finite; in the call, representations are not a floating-point (N, D) or
            have fewer than two rows.

    >>> Covariance(beta=1.0)(torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))
    tensor(1.)
    """

    def __init__(self, beta: float = 0.01, *, gather: bool = False) -> None:
        super().__init__()
        self.beta = weight("beta", beta)
        self.gather = gather

    def forward(self, representations: Tensor) -> Tensor:
        """The scalar to add to the loss."""
        with full_precision(representations):
            x = batch(representations, gathered=self.gather)
            return self.beta * covariance_term(centered(x))

    def extra_repr(self) -> str:
        """The options, as `print` shows them."""
        return f"beta={self.beta}, gather={self.gather}"


class VarianceCovariance(nn.Module):
    """The variance and covariance regularizers of VICReg: representations (N, D) to a scalar to add to the loss.

    The value is beta * (Cov + Var): Cov as in `Covariance`, and Var the mean over dimensions of
    max(0, gamma - sqrt(variance + epsilon)) (Bardes, Ponce & LeCun, "VICReg", ICLR 2022; paper, appendix on
    regularization terms). It is computed in float32 or wider, even under autocast. Constant representations have a
    finite value and gradient 0. NaN in the input gives NaN, since a check would stall the device.

    Args:
        beta: weight of the sum; the paper tries 0.01 and 0.1.
        gamma: standard deviation above which a dimension has no penalty.
        epsilon: added to the variance, so that the gradient of its root is finite.
        gather: whether to work on the batch of all ranks. Gradients averaged over ranks, as in DDP, then equal those
            of one process with the whole batch.

    Raises:
        ValueError: beta or gamma is negative or not finite, or epsilon not above 0; in the call, representations are
            not a floating-point (N, D) or have fewer than two rows.

    >>> round(VarianceCovariance(beta=1.0, gamma=3.0)(torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])).item(), 3)
    3.0
    """

    def __init__(self, beta: float = 0.01, *, gamma: float = 1.0, epsilon: float = 1e-4, gather: bool = False) -> None:
        super().__init__()
        self.beta = weight("beta", beta)
        self.gamma = weight("gamma", gamma)
        self.epsilon = weight("epsilon", epsilon)
        if epsilon == 0:
            raise ValueError("epsilon must be above 0, but is 0: the gradient at constant dimensions would be NaN")
        self.gather = gather

    def forward(self, representations: Tensor) -> Tensor:
        """The scalar to add to the loss."""
        with full_precision(representations):
            x = batch(representations, gathered=self.gather)
            x = centered(x)
            variance = variance_term(x, gamma=self.gamma, epsilon=self.epsilon)
            return self.beta * (covariance_term(x) + variance)

    def extra_repr(self) -> str:
        """The options, as `print` shows them."""
        return f"beta={self.beta}, gamma={self.gamma}, epsilon={self.epsilon}, gather={self.gather}"


def covariance_term(centered: Tensor) -> Tensor:
    """Sum of the squared off-diagonal covariances divided by D, for representations (N, D) with mean 0: a scalar.

    >>> covariance_term(torch.tensor([[-1.0, -2.0], [1.0, 2.0]]))
    tensor(16.)
    """
    covariance = centered.T @ centered / (len(centered) - 1)
    # Subtracting the squared diagonal from the sum of all squares would cancel where off-diagonals are small.
    off_diagonal = covariance - torch.diag(covariance.diagonal())
    return off_diagonal.square().sum() / centered.shape[1]


def variance_term(centered: Tensor, *, gamma: float, epsilon: float) -> Tensor:
    """Mean over D of max(0, gamma - standard deviation), for representations (N, D) with mean 0.

    >>> variance_term(torch.zeros(3, 2), gamma=1.0, epsilon=0.25)
    tensor(0.5000)
    """
    variance = centered.square().sum(0) / (len(centered) - 1)
    return torch.relu(gamma - (variance + epsilon).sqrt()).mean()
