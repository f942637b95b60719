"""Dimensions of representations in TensorBoard: scalars, a histogram of LID, and the projector."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ldreg.dimension.estimators import lid
from ldreg.dimension.geometry import regular
from ldreg.evaluate.measure import dimensions, evenly_spaced, measure

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["add_dimensions"]


@torch.no_grad()
def add_dimensions(
    writer: "SummaryWriter",
    representations: Tensor,
    *,
    step: int = 0,
    labels: Sequence[Any] | Tensor | None = None,
    tag: str = "ldreg",
    k: int = 64,
    projector: int = 1000,
) -> dict[str, float]:
    """Write the dimensions of representations (N, D), and return the scalars that were written.

    `<tag>/lid` and the other measures of `ldreg.evaluate.measure.measure` are scalars, `<tag>/lid_of_points` is a
    histogram, and `<tag>` is an embedding in the projector, where points can be colored by `lid` and `label`. For
    representations with NaN or inf only the scalars are written, as NaN, so that logging does not end a diverging run.

    Args:
        writer: a `SummaryWriter` of torch or tensorboardX; Lightning's is `logger.experiment`.
        representations: N points, more than k.
        step: the global step.
        labels: one for each point, shown as text.
        tag: the prefix of all names.
        k: number of neighbors.
        projector: write at most this many points, evenly spread, to the projector; 0: none.

    Raises:
        ValueError: representations are not (N, D) with N > k, or there are not N labels.
    """
    if labels is not None and len(labels) != len(representations):
        raise ValueError(f"labels: expected one for each of {len(representations)} points, got {len(labels)}")
    if projector < 0:
        raise ValueError(f"projector: expected a number of points, or 0 for none, got {projector}")
    x = representations.detach()
    finite = bool(torch.isfinite(x).all())
    values = lid(x, k) if finite else torch.empty(0)
    scalars = dimensions(x, values) if finite else measure(x, k=k)
    for name, value in scalars.items():
        writer.add_scalar(f"{tag}/{name}", value, step)
    if regular(values).any():
        writer.add_histogram(f"{tag}/lid_of_points", values[regular(values)].cpu(), step)
    if finite and projector:
        chosen = evenly_spaced(torch.arange(len(x), device=x.device), projector)
        metadata: list[Any] = [f"{value:.4g}" for value in values[chosen].tolist()]
        header = None  # for a single column the projector expects plain values and no header
        if labels is not None:
            texts = labels.tolist() if isinstance(labels, Tensor) else labels
            # Line breaks and tabs separate cells.
            cells = [" ".join(str(texts[i]).split()) for i in chosen.tolist()]
            metadata, header = list(zip(metadata, cells, strict=True)), ["lid", "label"]
        points = x[chosen].float().cpu()
        writer.add_embedding(points, metadata=metadata, metadata_header=header, global_step=step, tag=tag)
    return scalars
