"""The methods' losses, each of the batch of all ranks.

Each rank holds the embeddings of its own images. Losses are computed in float32 or wider, also under autocast, and have
the same value on every rank. Gradients averaged over ranks, as by DDP, equal those of one process with the whole batch.
Embeddings of different or wrong shapes, and fewer than two rows where a variance is needed, are a ValueError.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ldreg.distributed import active, gather, rank, total

# As in the code of the papers and in lightly.
VICREG_EPSILON = 1e-4
BARLOW_EPSILON = 1e-5
PIXEL_EPSILON = 1e-6


def nt_xent(embeddings_a: Tensor, embeddings_b: Tensor, *, temperature: float) -> Tensor:
    """The normalized, temperature-scaled cross-entropy of two views' embeddings (N, E): a scalar.

    Each of the 2N rows has to find its other view among the 2N - 1 others by cosine similarity
    (Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020).

    >>> views = torch.eye(2)
    >>> round(nt_xent(views, views, temperature=1.0).item(), 4)  # -ln(e / (e + 1 + 1))
    0.5514
    """
    with _full_precision(embeddings_a):
        a, b = _wide(embeddings_a, embeddings_b)
        x = F.normalize(torch.cat((a, b)), dim=1)
        start, rows = rank() * len(x), torch.arange(len(x), device=x.device)
        similarities = (x / temperature) @ gather(x).T
        similarities.diagonal(start).fill_(float("-inf"))  # a row is not its own candidate
        return _mean(F.cross_entropy(similarities, start + (rows + len(a)) % len(x), reduction="none"))


def info_nce(queries: Tensor, keys: Tensor, *, temperature: float, queue: Tensor | None = None) -> Tensor:
    """The cross-entropy of finding each query's own key by cosine similarity, (N, E) both: a scalar.

    The other candidates are the rows of `queue` (Q, E), which have length 1 (He et al., "Momentum Contrast for
    Unsupervised Visual Representation Learning", CVPR 2020); without a queue, the other keys of the batch.

    >>> x = torch.eye(2)
    >>> round(info_nce(x, x, temperature=1.0).item(), 4), round(info_nce(x, x, temperature=1.0, queue=-x).item(), 4)
    (0.3133, 0.4076)
    """
    with _full_precision(queries):
        queries, keys = (F.normalize(x, dim=1) for x in _wide(queries, keys))
        if queue is None:
            own = rank() * len(keys) + torch.arange(len(keys), device=keys.device)
            return _mean(F.cross_entropy((queries / temperature) @ gather(keys).T, own, reduction="none"))
        if queue.ndim != 2 or queue.shape[1] != keys.shape[1]:
            raise ValueError(f"queue: expected {keys.shape[1]} columns as the keys have, got {tuple(queue.shape)}")
        right = (queries * keys).sum(1) / temperature
        wrong = ((queries / temperature) @ queue.to(queries.dtype).T).logsumexp(1)
        # The cross-entropy over (right, wrong...), without a copy of the large product that joins the two.
        return _mean(F.softplus(wrong - right))


def byol(predictions_a: Tensor, predictions_b: Tensor, targets_a: Tensor, targets_b: Tensor) -> Tensor:
    """2 - 2 cos of each view's prediction and the other view's target, (N, E) all, summed over both directions.

    Returns the mean over N, a scalar (Grill et al., "Bootstrap Your Own Latent", NeurIPS 2020).

    >>> x = torch.eye(2)
    >>> byol(x, x, x, x), byol(x, x, -x, -x)
    (tensor(0.), tensor(8.))
    """
    with _full_precision(predictions_a):
        wide = _wide(predictions_a, predictions_b, targets_a, targets_b)
        prediction_a, prediction_b, target_a, target_b = (F.normalize(x, dim=1) for x in wide)
        return _mean(4 - 2 * (prediction_a * target_b + prediction_b * target_a).sum(1))


def vicreg(
    embeddings_a: Tensor,
    embeddings_b: Tensor,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum of VICReg's three terms of two views' embeddings (N, E), and the terms, detached, unweighted.

    (Bardes, Ponce & LeCun, "VICReg: Variance-Invariance-Covariance Regularization", ICLR 2022.)

    >>> loss, terms = vicreg(torch.eye(2), torch.eye(2))
    >>> {name: round(term.item(), 3) for name, term in terms.items()}
    {'invariance': 0.0, 'variance': 0.293, 'covariance': 0.5}
    """
    with _full_precision(embeddings_a):
        a, b = _gathered(embeddings_a, embeddings_b)
        centered = [x - x.mean(0) for x in (a, b)]
        variances = [x.square().sum(0) / (len(x) - 1) for x in centered]
        spread = torch.stack([F.relu(1 - (v + VICREG_EPSILON).sqrt()).mean() for v in variances]).mean()
        mixing = torch.stack([_off_diagonal_squares(x, x) for x in centered]).sum()
        mixing = mixing / ((len(a) - 1) ** 2 * a.shape[1])
        terms = {"invariance": F.mse_loss(a, b), "variance": spread, "covariance": mixing}
        loss = invariance * terms["invariance"] + variance * terms["variance"] + covariance * terms["covariance"]
        return loss, {name: term.detach() for name, term in terms.items()}


def barlow_twins(
    embeddings_a: Tensor, embeddings_b: Tensor, *, redundancy: float = 0.005
) -> tuple[Tensor, dict[str, Tensor]]:
    """Bring the cross-correlation (E, E) of two views' embeddings (N, E) to the identity: the loss and its two terms.

    The loss is the sum of the diagonal's squared deviations from 1 plus `redundancy` times the sum of squares off the
    diagonal; the terms are detached and unweighted (Zbontar et al., "Barlow Twins", ICML 2021).

    >>> loss, terms = barlow_twins(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    >>> {name: round(term.item(), 3) for name, term in terms.items()}
    {'invariance': 0.0, 'redundancy': 2.0}
    """
    with _full_precision(embeddings_a):
        pair = _gathered(embeddings_a, embeddings_b)
        a, b = (F.batch_norm(x, None, None, training=True, eps=BARLOW_EPSILON) for x in pair)
        same = ((a * b).mean(0) - 1).square().sum()
        other = _off_diagonal_squares(a, b) / len(a) ** 2
        return same + redundancy * other, {"invariance": same.detach(), "redundancy": other.detach()}


def reconstruction(predictions: Tensor, patches: Tensor, *, normalize: bool = True) -> Tensor:
    """The mean squared error of predicted patches (N, L, P), by default of normalized patches: a scalar.

    (He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022.)

    >>> reconstruction(torch.zeros(1, 1, 2), torch.tensor([[[1.0, 3.0]]]), normalize=False)
    tensor(5.)
    """
    with _full_precision(predictions):
        predictions, patches = _wide(predictions, patches, ndim=3)
        if normalize:
            variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
            patches = (patches - mean) * (variance + PIXEL_EPSILON).rsqrt()
        return _mean((predictions - patches).square())


def _full_precision(x: Tensor) -> torch.autocast:
    """Autocast turned off on x's device."""
    return torch.autocast(x.device.type, enabled=False)


def _wide(*tensors: Tensor, ndim: int = 2) -> list[Tensor]:
    """The tensors in float32 or wider, which must have one shape."""
    if len({x.shape for x in tensors}) != 1 or tensors[0].ndim != ndim:
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise ValueError(f"embeddings: expected tensors of one shape with {ndim} dimensions, got {shapes}")
    return [x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors]


def _gathered(a: Tensor, b: Tensor) -> list[Tensor]:
    """Two views' rows of all ranks, in float32 or wider."""
    a, b = gather(torch.stack(_wide(a, b), 1)).unbind(1)
    if len(a) < 2:
        raise ValueError(f"embeddings: expected at least 2 rows, got shape {tuple(a.shape)}")
    return [a, b]


def _mean(values: Tensor) -> Tensor:
    """The mean over the values of all ranks."""
    if not active():
        return values.mean()
    mean: Tensor = torch.div(*total(torch.stack((values.sum(), values.new_full((), values.numel())))))
    return mean


def _off_diagonal_squares(a: Tensor, b: Tensor) -> Tensor:
    """The sum of the squares off the diagonal of aᵀb, a and b being the rows (N, E) of all ranks.

    The sum of all squares is also the sum of aaᵀ * bbᵀ, which is smaller when rows are few; each rank then takes a
    share of the rows. With at most half as many rows as columns, aᵀb has a low rank, so much of its squares is off
    the diagonal and subtracting the diagonal cancels little.
    """
    if 2 * len(a) > a.shape[1]:
        return (a.T @ b).fill_diagonal_(0).square().sum()
    shares = torch.distributed.get_world_size() if active() else 1
    own_a, own_b = a.chunk(shares)[rank()], b.chunk(shares)[rank()]
    return total(((own_a @ a.T) * (own_b @ b.T)).sum()) - (a * b).sum(0).square().sum()
