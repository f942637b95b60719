"""Transfer: linear evaluation of one encoder over a list of datasets."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ldreg.data import DataConfig, load_images
from ldreg.data.config import similar_datasets
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluation.compute import Compute, Synchronize
from ldreg.evaluation.features import Progress
from ldreg.evaluation.judgment import Judgment
from ldreg.evaluation.protocols import LinearConfig, check_linear, linear_evaluation


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
        parse_datasets(self.datasets)
        self.linear  # noqa: B018 - whose own checks are these options'

    @property
    def linear(self) -> LinearConfig:
        """The evaluation of each of them."""
        return LinearConfig(**{key: value for key, value in asdict(self).items() if key != "datasets"})


def parse_datasets(text: str) -> dict[str, str | None]:
    """Datasets and their paths, in order, from names separated by commas.

    Raises:
        ValueError: there is none, or one comes twice.

    >>> parse_datasets("cifar10=/data/cifar10, digits")
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


def transfer(
    encoder: LoadedEncoder,
    datasets: Mapping[str, DataConfig],
    config: LinearConfig,
    *,
    work: Path,
    compute: Compute | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    synchronize: Synchronize | None = None,
) -> dict[str, Judgment]:
    """Linear evaluation over datasets, by their names; all are looked at before the first is evaluated.

    Args:
        encoder: a loaded encoder, which stays as it is.
        datasets: what each name stands for.
        config: of the evaluation of each of them.
        work: folder for checkpoints and results; those of datasets that are finished are reused.
        compute: device, processes, precision.
        cache: of representations; None: as each set's `cache` or LDREG_CACHE says.
        progress: called with what is done and the fraction that is done.
        synchronize: as in `fit`.

    Raises:
        ValueError: a dataset cannot be evaluated, which is named; nothing has been evaluated then.
        ArithmeticError: a training diverged.
    """
    compute = compute or Compute()
    for name, data in datasets.items():
        with _named(name, data):
            check_linear(data, config, devices=compute.devices)
    found = {}
    for place, (name, data) in enumerate(datasets.items()):
        with _named(name, data):
            found[name] = linear_evaluation(
                encoder,
                data,
                config,
                work=work,
                compute=compute,
                cache=cache,
                progress=_part(progress, name, place, len(datasets)),
                synchronize=synchronize,
            )
    return found


@contextmanager
def _named(name: str, data: DataConfig) -> Iterator[None]:
    """Have an error say which dataset it speaks of."""
    try:
        yield
    except ValueError as error:
        told = str(error)
        told = told if told.startswith(f"{name}: ") else f"{name}: {told}"
        raise ValueError(f"{told}{_perhaps_meant(name, data)}") from error


def _perhaps_meant(name: str, data: DataConfig) -> str:
    """Which datasets may be meant by a name that is like theirs, where no images of classes are found under it."""
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
