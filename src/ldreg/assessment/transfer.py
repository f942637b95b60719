"""How an encoder is carried over to other images: the datasets of a list, and one of them."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ldreg.assessment.source import HOW, Source
from ldreg.data import DataConfig
from ldreg.data.config import DATASETS
from ldreg.evaluation.compute import Compute
from ldreg.evaluation.finetune import FinetuneConfig
from ldreg.evaluation.protocols import LinearConfig, ProtocolName, linear_evaluation
from ldreg.evaluation.transfer import parse_datasets

Augmented = TypeVar("Augmented", LinearConfig, FinetuneConfig)


def linear_on(
    source: Source,
    data: DataConfig,
    *,
    protocol: ProtocolName = "fast",
    device: str = "auto",
    work: Path | None = None,
    cache: Path | None = None,
) -> float:
    """Accuracy of a linear classifier on a set that the encoder may never have seen, after the last epoch.

    Args:
        source: the encoder.
        data: a set with labels and both splits.
        protocol: transfer and imagenet train on augmented images, fast takes cached representations.
        device: auto, cpu or cuda.
        work: folder for checkpoints; by default the source's.
        cache: of representations; None: as `data.cache` or LDREG_CACHE says.

    Raises:
        ValueError: data without usable labels, representations that are not finite.
        ArithmeticError: the training diverged.
    """
    config = like_the_run(LinearConfig(protocol), source)
    compute = Compute(device)  # type: ignore[arg-type]  # which it checks
    folder = work or work_folder(default_folder(source))
    return linear_evaluation(source.encoder, data, config, work=folder, compute=compute, cache=cache).accuracy


def like_the_run(config: Augmented, source: Source) -> Augmented:
    """The config with the flip and the smallest crop that the run's settings name, where neither is given.

    Whoever pretrained without mirroring, as with digits, had reason to. What a policy has by itself is no such choice:
    MAE pretrains on crops of at least 0.2 of the area, and is judged on the usual ones.
    """
    if source.settings is None or (isinstance(config, LinearConfig) and config.protocol == "fast"):
        return config
    views = source.settings.views
    return replace(
        config,
        flip=views.flip if config.flip is None else config.flip,
        min_scale=views.min_scale if config.min_scale is None else config.min_scale,
    )


def listed(text: str, *, own: DataConfig | None, how: DataConfig) -> dict[str, DataConfig]:
    """The datasets of a list such as "cifar10=PATH,digits,photos=PATH".

    Args:
        text: names with their paths; one that is no dataset's, and has a path, is that of a folder of images.
        own: the source's own images, which need no path.
        how: whose cache, workers and the like the others have, too.

    Raises:
        ValueError: an unknown name without a path, or a path that should not be there.
    """
    found = {}
    for name, path in parse_datasets(text).items():
        if own is not None and own.name == name and path is None:
            found[name] = replace(own, **{key: getattr(how, key) for key in HOW})
            continue
        try:
            kind = "folder" if path is not None and name not in DATASETS else name
            found[name] = replace(how, name=kind, path=path, size=None, limit=None)
        except ValueError as error:
            raise ValueError(f"datasets: {error}") from error
    return found


def default_folder(source: Source) -> Path:
    """Where results go: into the run's folder, or beside the caller for a plain checkpoint."""
    return source.folder.path / "evaluation" if source.folder is not None else Path("evaluation") / source.name


def work_folder(out: Path) -> Path:
    """Where checkpoints go, below the folder of results."""
    return out / "work"
