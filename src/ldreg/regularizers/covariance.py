"""The covariance and the variance-covariance regularizer, baselines of the paper's comparison."""

import torch
from torch import Tensor

from ldreg.regularizers.base import Regularizer, centered, check, weight


class Covariance(Regularizer):
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
        gather: as in `Covariance`.

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
