"""Which images to use, where they are, and how they are held."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

DATASETS = (
    *("digits", "cifar10", "cifar100", "stl10", "food101", "dtd", "cars", "birdsnap", "imagenet"),
    *("shapes", "textures", "folder"),
)
# Datasets without a path.
WITHOUT_PATH = {"digits": "come with scikit-learn", "shapes": "are drawn", "textures": "are drawn"}
_OWN_IMAGES = "images of your own are named folder"

Resident = Literal["auto", "yes", "no"]
Decode = Literal["auto", "cpu", "gpu"]


@dataclass(frozen=True)
class DataConfig:
    """The images to train or evaluate on.

    Args:
        name: digits, cifar10, cifar100, stl10, food101, dtd, cars, birdsnap, imagenet, shapes or textures (generated
            small gray images), or folder (of any images).
        path: The folder (torchvision's root for its datasets) or archive; digits, shapes and textures have none.
        cache: Folder for unpacked archives and decoded images; default $LDREG_CACHE, else ~/.cache/ldreg.
        workers: Processes that read and decode files; default the number of cores, at most 16, shared by ranks.
        decode: Where files are decoded; cpu: by the workers; gpu: JPEGs by nvJPEG, other files by the workers; auto:
            gpu if the device is CUDA and torchvision has nvJPEG, else cpu.
        resident: Whether all images are held in memory as one array; auto: if they are squares of one size that fit.
        resident_limit: Gigabytes (1e9 bytes) up to which auto holds images in memory.
        max_unreadable: Share of unreadable images above which reading stops with an error.
        size: Side of the images given to the encoder; default the dataset's own up to 224, and 224 if sizes differ.
            Shapes and textures are generated at it; default 8.
        limit: Number of images to use, always the same random ones, to try things.
        validation: Share of the training images of every class to set aside and use in place of the test images,
            to choose settings by.

    >>> DataConfig(name="cifar1O")
    Traceback (most recent call last):
    ...
    ValueError: name: expected a known dataset, got 'cifar1O'; nearest: cifar10, cifar100
    """

    name: str = "digits"
    path: str | None = None
    cache: str | None = None
    workers: int | None = None
    decode: Decode = "auto"
    resident: Resident = "auto"
    resident_limit: float = 8.0
    max_unreadable: float = 0.01
    size: int | None = None
    limit: int | None = None
    validation: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in DATASETS:
            near = similar_datasets(self.name)
            advice = f"nearest: {', '.join(near)}" if near else f"known are {', '.join(DATASETS)}; {_OWN_IMAGES}"
            raise ValueError(f"name: expected a known dataset, got {self.name!r}; {advice}")
        if self.name in WITHOUT_PATH and self.path is not None:
            raise ValueError(
                f"path: expected none for {self.name}, which {WITHOUT_PATH[self.name]}, got {self.path!r}; "
                f"{_OWN_IMAGES}"
            )
        for name, known in (("decode", get_args(Decode)), ("resident", get_args(Resident))):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name}: expected {', '.join(known)}, got {value!r}")
        for name, least in (("workers", 0), ("resident_limit", 0), ("size", 1), ("limit", 1)):
            if (value := getattr(self, name)) is not None and not value >= least:
                raise ValueError(f"{name}: expected at least {least}, got {value}")
        for name in ("max_unreadable", "validation"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: expected a share in [0, 1), got {value}")


def similar_datasets(name: str) -> list[str]:
    """Up to three datasets with similar names, the most similar first."""
    return difflib.get_close_matches(name.lower(), DATASETS, n=3, cutoff=0.6)


def cache_folder(config: DataConfig) -> Path:
    """The folder for unpacked archives and decoded images; it need not exist yet."""
    return Path(config.cache or os.environ.get("LDREG_CACHE") or "~/.cache/ldreg").expanduser()


def worker_count(config: DataConfig, *, processes: int = 1) -> int:
    """Number of reading and decoding processes for each of `processes` training processes on this machine."""
    if config.workers is not None:
        return config.workers
    return max(1, min(16, available_cores() // processes))


def available_cores() -> int:
    """Number of cores that this process may use; on a shared machine fewer than it has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
