"""The dimension of an encoder's representations: all of `ldreg inspect`, on cached representations."""

import io
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from ldreg.data import DataConfig
from ldreg.data.datasets import MissingSplitError
from ldreg.dimension.estimators import Convention, Estimator
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.compute import Compute
from ldreg.evaluate.features import Progress, features
from ldreg.inspection import check_settings, inspect
from ldreg.inspection.report import DimensionReport
from ldreg.io.files import write_atomically
from ldreg.text import count, printable

logger = logging.getLogger("ldreg")

NEIGHBORS = 64  # as in the paper's tables


@dataclass(frozen=True)
class DimensionConfig:
    """Local and global dimensionality of representations.

    Args:
        split: test (as in the paper's tables) or train
        k: nearest neighbors that LID is estimated from; default the run's own monitor.k, else 64
        estimator: of LID: mom (method of moments), mle (maximum likelihood), tle (tight locality)
        convention: mean over all k distances (paper) or over the first k - 1 (pseudocode)
        sample: measure this many points, drawn at random; neighbors still come from all
        html: write a self-contained page with figures to this file
        representations: write them to this .npy file, which `ldreg inspect` reads
        seed: of every random draw
    """

    split: Literal["test", "train"] = "test"
    k: int | None = None
    estimator: Estimator = "mom"
    convention: Convention = "paper"
    sample: int | None = None
    html: str | None = None
    representations: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.split not in ("test", "train"):
            raise ValueError(f"split: expected test or train, got {self.split!r}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: expected 0 to 2**63 - 1, got {self.seed}")
        if self.representations is not None and Path(self.representations).suffix != ".npy":
            raise ValueError(f"representations: expected the name of a .npy file, got {self.representations!r}")
        k = NEIGHBORS if self.k is None else self.k
        check_settings(k, estimator=self.estimator, convention=self.convention, sample=self.sample, device=None)


def dimension(
    encoder: LoadedEncoder,
    data: DataConfig,
    config: DimensionConfig,
    *,
    title: str,
    compute: Compute | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> tuple[DimensionReport, str | None, Tensor]:
    """Everything that `inspect` says of a split's representations, a line of doubt where k is large for them, and them.

    LID is told per class where all images have labels.

    Raises:
        ValueError: the data is missing, k is not below the number of images, a representation is not finite.
    """
    compute = compute or Compute()
    device, precision = compute.device, compute.precision
    try:
        found = features(
            encoder, data, config.split, device=device, precision=precision, cache=cache, progress=progress
        )
    except MissingSplitError as error:
        raise MissingSplitError(f"{error}; --split train measures the images there are") from error
    k = NEIGHBORS if config.k is None else config.k
    if k >= len(found.labels):
        raise ValueError(f"k: expected fewer than the {len(found.labels)} {config.split} images, got {k}")
    names = found.names()
    report = inspect(
        found.representations,
        names,
        k,
        estimator=config.estimator,
        convention=config.convention,
        sample=config.sample,
        device=compute.torch_device,
        seed=config.seed,
        progress=progress,
    )
    doubt = None if names is None else crossing(names, k)
    if doubt is not None:
        logger.warning("%s", doubt)
    return replace(report, title=title, command=command), doubt, found.representations


def write_rows(rows: Tensor, path: str) -> None:
    """Write representations (N, D) as a .npy file, whole or not at all."""
    content = io.BytesIO()
    np.save(content, rows.numpy(force=True))
    write_atomically(path, content.getvalue())


def crossing(names: Sequence[str], k: int) -> str | None:
    """A line to say where k neighbors of a point cannot well be of its own class; None where they can.

    More than half of the smallest class is too many: LID is then read from the gaps between classes.

    >>> crossing("aaaaabbbb", 2)
    >>> print(crossing("aaaaabbbb", 3))
    k: 3 is over half of the smallest class (4 images of class b): LID reads gaps between classes
    """
    name, images = min(Counter(names).items(), key=lambda entry: entry[1])
    if 2 * k <= images:
        return None
    told = f"k: {k} is over half of the smallest class ({count(images)} images of class {printable(name)})"
    return f"{told}: LID reads gaps between classes"
