"""The dimension of an encoder's representations: all of `ldreg inspect`, on cached representations."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ldreg.data import DataConfig
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluation.compute import Compute
from ldreg.evaluation.features import Features, Progress, features
from ldreg.inspection import check_settings, inspect
from ldreg.lid.estimators import Convention, Estimator
from ldreg.reporting.record import DimensionReport


@dataclass(frozen=True)
class DimensionConfig:
    """Local and global dimensionality of representations.

    Args:
        split: test (as in the paper's tables) or train
        k: nearest neighbors that LID is estimated from
        estimator: of LID: mom (method of moments), mle (maximum likelihood), tle (tight locality)
        convention: mean over all k distances (paper) or over the first k - 1 (pseudocode)
        sample: measure this many points, drawn at random; neighbors still come from all
        html: write a self-contained page with figures to this file
        seed: of every random draw
    """

    split: Literal["test", "train"] = "test"
    k: int = 64
    estimator: Estimator = "mom"
    convention: Convention = "paper"
    sample: int | None = None
    html: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.split not in ("test", "train"):
            raise ValueError(f"split: expected test or train, got {self.split!r}")
        check_settings(self.k, estimator=self.estimator, convention=self.convention, sample=self.sample, device=None)


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
) -> DimensionReport:
    """Everything that `inspect` says of a split's representations, with LID per class where all have labels.

    Raises:
        ValueError: the data is missing, k is not below the number of images, a representation is not finite.
    """
    compute = compute or Compute()
    found = features(
        encoder, data, config.split, device=compute.device, precision=compute.precision, cache=cache, progress=progress
    )
    if config.k >= len(found.labels):
        raise ValueError(f"k: expected fewer than the {len(found.labels)} {config.split} images, got {config.k}")
    report = inspect(
        found.representations,
        _names(found),
        config.k,
        estimator=config.estimator,
        convention=config.convention,
        sample=config.sample,
        device=compute.torch_device,
        seed=config.seed,
        progress=progress,
    )
    return replace(report, title=title, command=command)


def _names(found: Features) -> list[str] | None:
    if not found.classes or bool((found.labels < 0).any()):
        return None
    return [found.classes[label] for label in found.labels.tolist()]
