"""The sets by name: scikit-learn's digits, drawn ones, torchvision's formats, and folders of images."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from ldreg.data.archives import SUFFIXES, is_archive, unpack
from ldreg.data.config import WITHOUT_PATH, DataConfig, cache_folder
from ldreg.data.folders import Split, find_root, read_folder, split_names
from ldreg.data.generated import SETS, SIZE, generated
from ldreg.data.images import ImageFiles, ImageSet, ResidentImages
from ldreg.data.locks import filling
from ldreg.data.resident import held
from ldreg.data.unreadable import Tally
from ldreg.data.validation import part_of

if TYPE_CHECKING:
    from ldreg.data.formats import Read

DIGITS_TEST = 360


def load_images(config: DataConfig, split: Split) -> ImageSet:
    """One split of the images that the config names; nothing is downloaded.

    `path` is a folder or an archive (unpacked into the cache) in torchvision's format for the set, or with folders
    `train/<class>/` and `test/<class>/` (or val) of images, whatever the name; `folder` takes `<class>/` folders and
    loose images too. stl10's training split is its train and unlabeled images, these with label -1; dtd's is train
    and val of the first partition; imagenet's test split is val. digits, shapes and textures have no path; the latter
    two are drawn at `size`. With `validation` both splits are parts of the training split.

    Raises:
        ValueError: where the path, the split or the images are missing, or too many images are unreadable.
        OSError: where something cannot be read or written.

    >>> images = load_images(DataConfig(), "test")
    >>> len(images), images.channels, images.size, images.classes[:3]
    (360, 1, 8, ('0', '1', '2'))
    """
    if split not in ("train", "test"):
        raise ValueError(f"split: expected train or test, got {split!r}")
    if config.name not in WITHOUT_PATH and not config.path:
        raise ValueError(f"path: expected the folder or archive of {config.name}, got {config.path!r}")
    if not config.validation:
        return _whole(config, split)
    return part_of(_whole(config, "train"), split, validation=config.validation)


def _whole(config: DataConfig, split: Split) -> ImageSet:
    """A split as the set has it, held as the config says."""
    images = _without_path(config, split) if config.path is None else _from_path(config, _located(config), split)
    if isinstance(images, ImageFiles):
        limited = _limited(images, config.limit)
        limited.tally = Tally(len(limited), max_share=config.max_unreadable)
        limited.decoding = config.decode
        return held(limited, config)
    if config.resident == "no":
        raise ValueError(f"resident: expected auto or yes for {config.name}, which comes as one array, got no")
    if config.decode == "gpu":
        raise ValueError(f"decode: expected auto or cpu for {config.name}, which comes as one array, got gpu")
    return _limited(images, config.limit)


def output_size(config: DataConfig, images: ImageSet) -> int:
    """Side of the images given to the encoder: as configured, else the images' own up to 224, and 224 for mixed sizes.

    >>> output_size(DataConfig(), load_images(DataConfig(), "test"))
    8
    """
    return config.size or min(images.size or 224, 224)


Images = TypeVar("Images", ResidentImages, ImageFiles)


def _limited(images: Images, limit: int | None) -> Images:
    if limit is None or limit >= len(images):
        return images
    return images.take(torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:limit])


def _located(config: DataConfig) -> Path:
    """The folder of the set, which is the unpacked one where the path is an archive.

    Raises:
        ValueError: where there is nothing at the path, or no folder or archive.
    """
    path = Path(config.path or "").expanduser()
    if path.is_dir():
        return path
    if not path.exists():
        raise ValueError(f"path: expected {LAYOUTS[config.name]} at {path}, found nothing there")
    if not is_archive(path):
        raise ValueError(f"path: expected a folder or an archive ({', '.join(SUFFIXES)}), got {path}")
    if not path.is_file():
        raise ValueError(f"path: expected an archive that is a file, got {path}, a pipe or a device")
    cache = cache_folder(config)
    with filling(cache / "archives" / path.name):
        return unpack(path, cache)


def _from_path(config: DataConfig, path: Path, split: Split) -> ImageSet:
    """Torchvision's format where its mark is there, else folders of classes; only `folder` goes without splits."""
    from ldreg.data.formats import TORCHVISION  # torchvision takes seconds to import

    if config.name in TORCHVISION:
        mark, read = TORCHVISION[config.name]
        if (path / mark).exists():
            return _through_torchvision(config.name, read, path, split)
    if config.name == "folder" or split_names(find_root(path)):
        order = ("val",) if config.name == "imagenet" and split == "test" else None
        return read_folder(path, split, name=config.name, order=order)
    raise ValueError(f"path: expected {LAYOUTS[config.name]} at {path}, found neither")


def _through_torchvision(name: str, read: "Read", path: Path, split: Split) -> ImageSet:
    try:
        return read(path, split)
    except RuntimeError as error:  # torchvision's word for files that are missing or fail its checksums
        raise ValueError(f"path: expected {LAYOUTS[name]} at {path}, found files missing or damaged") from error


def _without_path(config: DataConfig, split: Split) -> ResidentImages:
    return generated(config.name, split, size=config.size or SIZE) if config.name in SETS else _digits(split)


def _digits(split: Split) -> ResidentImages:
    """Scikit-learn's 1,797 digits of 8×8 pixels, 1,437 to train and 360 to test, the same share of every class."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(np.rint(data.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(data.target.astype(np.int64))
    # Shuffled (by numpy's frozen generator), sorted by class, then every fifth or so: a stratified draw of exactly 360.
    shuffled = np.random.RandomState(0).permutation(len(images))
    by_class = shuffled[np.argsort(data.target[shuffled], kind="stable")]
    steps = np.arange(len(images) + 1) * DIGITS_TEST // len(images)
    in_test = np.diff(steps) > 0
    indices = np.sort(by_class[in_test] if split == "test" else by_class[~in_test])
    return ResidentImages(images, labels, [str(digit) for digit in range(10)], "digits").take(torch.from_numpy(indices))


CLASS_FOLDERS = "folders train/<class>/ and test/<class>/ (or val) of images"

LAYOUTS = {
    "cifar10": f"cifar-10-batches-py/ as torchvision keeps it, or {CLASS_FOLDERS},",
    "cifar100": f"cifar-100-python/ as torchvision keeps it, or {CLASS_FOLDERS},",
    "stl10": f"stl10_binary/ as torchvision keeps it, or {CLASS_FOLDERS},",
    "food101": f"food-101/meta/ and food-101/images/ as torchvision keeps them, or {CLASS_FOLDERS},",
    "dtd": f"dtd/dtd/labels/ and dtd/dtd/images/ as torchvision keeps them, or {CLASS_FOLDERS},",
    "cars": f"stanford_cars/devkit/, cars_train/ and cars_test/ as torchvision keeps them, or {CLASS_FOLDERS},",
    "birdsnap": f"{CLASS_FOLDERS}",
    "imagenet": "folders train/<class>/ and val/<class>/ of images",
    "folder": f"{CLASS_FOLDERS}, or <class>/ folders, or images,",
}
