"""Dimensions of representations in TensorBoard: scalars, a histogram of LID, and points to look at by their LID."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ldreg.dimension.estimators import lid
from ldreg.dimension.geometry import regular
from ldreg.evaluate.measure import dimensions, measure, spread

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
    histogram, and `<tag>` an embedding of the projector, where points can be colored by `lid`, and by `label`. Of
    representations with NaN or inf there are scalars alone, which are NaN: a run that diverges is not ended by its log.

    Args:
        writer: a `SummaryWriter` of torch or tensorboardX; Lightning's is `logger.experiment`.
        representations: N points, more than k.
        step: the step that all is written for.
        labels: one for each point, shown as text.
        tag: what all names begin with.
        k: number of neighbors.
        projector: how many points the projector is given, evenly spread, at most; 0: none.

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
        _project(writer, x, values, labels=labels, tag=tag, step=step, count=projector)
    return scalars


def _project(
    writer: "SummaryWriter",
    x: Tensor,
    values: Tensor,
    *,
    labels: Sequence[Any] | Tensor | None,
    tag: str,
    step: int,
    count: int,
) -> None:
    chosen = spread(torch.arange(len(x)), count)
    rows = [[f"{value:.4g}"] for value in values[chosen.to(values.device)].tolist()]
    header = ["lid"]
    if labels is not None:
        texts = labels.tolist() if isinstance(labels, Tensor) else labels
        rows = [[*row, _one_cell(texts[i])] for row, i in zip(rows, chosen.tolist(), strict=True)]
        header = ["lid", "label"]
    points = x[chosen.to(x.device)].float().cpu()
    # With a single column the projector expects no header, and values that are no lists.
    alone = len(header) == 1
    writer.add_embedding(
        points,
        metadata=[row[0] for row in rows] if alone else rows,
        metadata_header=None if alone else header,
        global_step=step,
        tag=tag,
    )


def _one_cell(label: Any) -> str:
    r"""A label as one cell of a table of lines and tabs.

    >>> _one_cell("red\tfox\n")
    'red fox'
    """
    return " ".join(str(label).split())
