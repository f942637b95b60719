"""The dimension of an encoder's representations: everything of `ldreg inspect`, on cached representations."""

import io
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from ldreg.data import DataConfig
from ldreg.data.datasets import MissingSplitError
from ldreg.dimension.estimators import Convention, Estimator
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.features import Progress, features
from ldreg.evaluate.result import Evaluation
from ldreg.evaluate.source import Source
from ldreg.inspection import check_settings, inspect
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
    config: DimensionConfig,
    source: Source,
    *,
    compute: Compute | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Evaluation:
    """Inspect the representations of a split, per class if all images have labels.

    Args:
        config: the split and the settings of the inspection; k defaults to that of the run's monitor.
        source: the encoder and its images.
        compute: device and precision.
        cache: of representations; None: as `data.cache` or LDREG_CACHE says.
        progress: called with what is done and the fraction that is done.
        command: the command line, for the page.

    Raises:
        ValueError: the data is missing, k is not below the number of images, a representation is not finite.
    """
    started, data, compute = time.monotonic(), source.images, compute or Compute()
    k = config.k or (NEIGHBORS if source.settings is None else source.settings.monitor.k)
    try:
        found = features(
            source.encoder,
            data,
            config.split,
            device=compute.device,
            precision=compute.precision,
            cache=cache,
            progress=progress,
        )
    except MissingSplitError as error:
        raise MissingSplitError(f"{error}; --split train measures the images there are") from error
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
    doubt = None if names is None else small_class(names, k)
    if doubt is not None:
        logger.warning("%s", doubt)
    report = replace(report, title=f"{source.name}, {config.split} images of {_set_name(data)}", command=command)
    results = {
        "lid": report.mean.value,
        "lid_low": report.mean.low,
        "lid_high": report.mean.high,
        "effective_rank": report.effective_rank,
        "rankme": report.rankme,
        "frechet_variance": report.frechet_variance,
        "twonn": report.twonn.value,
        "danco": report.danco.value,
        "degenerate": report.degenerate_share,
        "images": report.points,
        "k": report.k,
    }
    return Evaluation(
        f"dimension-{config.split}",
        results,
        str(report) if doubt is None else f"{report}\n{doubt}",
        (time.monotonic() - started) / 60,
        details={"report": report.to_dict()},
        writers={"html": report.to_html, "representations": partial(write_rows, found.representations)},
    )


def _set_name(data: DataConfig) -> str:
    """What a set is called, which for images of one's own is the name of the folder or archive.

    >>> _set_name(DataConfig(name="folder", path="/data/photos")), _set_name(DataConfig(name="digits"))
    ('photos', 'digits')
    """
    return Path(data.path).resolve().name if data.name == "folder" and data.path else data.name


def write_rows(rows: Tensor, path: str) -> None:
    """Write representations (N, D) as a .npy file, whole or not at all."""
    content = io.BytesIO()
    np.save(content, rows.numpy(force=True))
    write_atomically(path, content.getvalue())


def small_class(names: Sequence[str], k: int) -> str | None:
    """A warning if k is more than half of the smallest class, as LID is then read from the gaps between classes.

    >>> small_class("aaaaabbbb", 2)
    >>> print(small_class("aaaaabbbb", 3))
    k: 3 is over half of the smallest class (4 images of class b): LID reads gaps between classes
    """
    name, images = min(Counter(names).items(), key=lambda entry: entry[1])
    if 2 * k <= images:
        return None
    reason = f"k: {k} is over half of the smallest class ({count(images)} images of class {printable(name)})"
    return f"{reason}: LID reads gaps between classes"
