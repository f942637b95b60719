"""Transfer: linear evaluation of one encoder over a list of datasets."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from ldreg.data import DataConfig, load_images
from ldreg.data.config import DATASETS, similar_datasets
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.features import Progress
from ldreg.evaluate.plans import ClassifierResult
from ldreg.evaluate.protocols import FinetuneConfig, LinearConfig, ProtocolName, check_linear, linear_evaluation
from ldreg.evaluate.source import READING, Source

Augmented = TypeVar("Augmented", LinearConfig, FinetuneConfig)


@dataclass(frozen=True)
class TransferConfig:
    """Linear evaluation over a list of datasets.

    Args:
        datasets: names with their paths, and folders of images under names of your own, as
            photos=PATH,cifar10=PATH,food101=PATH,digits
        protocol: transfer (the paper's: 30 epochs, SGD, batch 256) or fast (cached representations)
        epochs: passes over the training images; default the protocol's
        batch_size: images of a step over all processes; default the protocol's, or what fits a small set
        lr: learning rate; default the protocol's
        weight_decay: of the weights; default the protocol's
        flip: probability of a horizontal flip; default that of the run, else 0.5, and 0 for digits
        min_scale: smallest share of an image's area that a crop keeps; default what the run names, else 0.08
        strength: weight of the penalty of fast, as 1/C of scikit-learn; default 1
        iterations: steps of fast at most; default 1000
        seed: of every random draw; default 0, and fast has none
    """

    datasets: str
    protocol: Literal["transfer", "fast"] = "transfer"
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    flip: float | None = None
    min_scale: float | None = None
    strength: float | None = None
    iterations: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.protocol not in ("transfer", "fast"):
            raise ValueError(f"protocol: expected transfer or fast, got {self.protocol!r}")
        dataset_paths(self.datasets)
        self.linear  # noqa: B018 - whose own checks are these options'

    @property
    def linear(self) -> LinearConfig:
        """The evaluation of each of them."""
        return LinearConfig(**{key: value for key, value in asdict(self).items() if key != "datasets"})


def dataset_paths(text: str) -> dict[str, str | None]:
    """Datasets and their paths, in order, from names separated by commas.

    Raises:
        ValueError: there is none, or one comes twice.

    >>> dataset_paths("cifar10=/data/cifar10, digits")
    {'cifar10': '/data/cifar10', 'digits': None}
    """
    found: dict[str, str | None] = {}
    for part in text.split(","):
        name, equals, path = (word.strip() for word in part.partition("="))
        if not name or (equals and not path):
            raise ValueError(f"datasets: expected names as cifar10=PATH,digits, got {text!r}")
        if name in found:
            raise ValueError(f"datasets: expected each name once, got {name!r} twice")
        found[name] = path or None
    return found


def linear_on(
    source: Source,
    data: DataConfig,
    *,
    protocol: ProtocolName = "fast",
    device: str = "auto",
    cache: Path | None = None,
) -> float:
    """Accuracy of a linear classifier on any set, after the last epoch.

    Args:
        source: the encoder.
        data: a set with labels and both splits.
        protocol: transfer and imagenet train on augmented images, fast takes cached representations.
        device: auto, cpu or cuda.
        cache: of representations; None: as `data.cache` or LDREG_CACHE says.

    Raises:
        ValueError: data without usable labels, representations that are not finite.
        ArithmeticError: the training diverged.
    """
    config = with_run_augmentation(LinearConfig(protocol), source)
    compute = Compute(device)  # type: ignore[arg-type]  # which it checks
    work = source.results_folder / "work"
    return linear_evaluation(source.encoder, data, config, work=work, compute=compute, cache=cache).accuracy


def with_run_augmentation(config: Augmented, source: Source) -> Augmented:
    """The config with the flip and the smallest crop of the run's settings, unless the config has its own.

    Defaults of a view policy do not count: MAE pretrains on crops of at least 0.2 of the area, and is evaluated on the
    usual ones.
    """
    if source.settings is None or (isinstance(config, LinearConfig) and config.protocol == "fast"):
        return config
    views = source.settings.views
    return replace(
        config,
        flip=views.flip if config.flip is None else config.flip,
        min_scale=views.min_scale if config.min_scale is None else config.min_scale,
    )


def dataset_configs(text: str, *, own: DataConfig | None, reading: DataConfig) -> dict[str, DataConfig]:
    """The datasets of a list such as "cifar10=PATH,digits,photos=PATH".

    Args:
        text: names with their paths; a name of no dataset, with a path, names a folder of images.
        own: the source's own images, which need no path.
        reading: settings of how images are read, for all but the source's own images.

    Raises:
        ValueError: an unknown name without a path, or a path that should not be there.
    """
    found = {}
    for name, path in dataset_paths(text).items():
        if own is not None and own.name == name and path is None:
            found[name] = replace(own, **{key: getattr(reading, key) for key in READING})
            continue
        try:
            kind = "folder" if path is not None and name not in DATASETS else name
            found[name] = replace(reading, name=kind, path=path, size=None, limit=None)
        except ValueError as error:
            raise ValueError(f"datasets: {error}") from error
    return found


def transfer(
    encoder: LoadedEncoder,
    datasets: Mapping[str, DataConfig],
    config: LinearConfig,
    *,
    work: Path,
    compute: Compute | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, ClassifierResult]:
    """Linear evaluation over datasets by name; all are checked before the first is evaluated.

    Args:
        encoder: a loaded encoder, which stays as it is.
        datasets: what each name stands for.
        config: of the evaluation of each of them.
        work: folder for checkpoints and results; those of datasets that are finished are reused.
        compute: device, processes, precision.
        cache: of representations; None: as each set's `cache` or LDREG_CACHE says.
        progress: called with what is done and the fraction that is done.

    Raises:
        ValueError: a dataset cannot be evaluated, which is named; nothing has been evaluated then.
        ArithmeticError: a training diverged.
    """
    compute = compute or Compute()
    for name, data in datasets.items():
        with _naming(name, data):
            check_linear(data, config, devices=compute.devices)
    found = {}
    for place, (name, data) in enumerate(datasets.items()):
        with _naming(name, data):
            found[name] = linear_evaluation(
                encoder,
                data,
                config,
                work=work,
                compute=compute,
                cache=cache,
                progress=_part(progress, name, place, len(datasets)),
            )
    return found


@contextmanager
def _naming(name: str, data: DataConfig) -> Iterator[None]:
    """Name the dataset in an error."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        message = message if message.startswith(f"{name}: ") else f"{name}: {message}"
        raise ValueError(f"{message}{_hint(name, data)}") from error


def _hint(name: str, data: DataConfig) -> str:
    """A hint at datasets of similar names, if the folder has no images of classes."""
    near = [one for one in similar_datasets(name) if one != "folder"]
    if data.name != "folder" or name == "folder" or not near or _has_classes(data):
        return ""
    return f"; {name!r} is no known dataset and was read as a folder of your own, nearest: {', '.join(near)}"


def _has_classes(data: DataConfig) -> bool:
    """Whether there are images with labels to train and to test on."""
    try:
        return all(bool((load_images(data, split).labels >= 0).all()) for split in ("train", "test"))
    except ValueError:
        return False


def _part(progress: Progress | None, name: str, place: int, count: int) -> Progress | None:
    """The progress of one of several datasets as progress of the whole."""
    if progress is None:
        return None
    return lambda step, fraction: progress(f"{name}: {step}", (place + fraction) / count)
