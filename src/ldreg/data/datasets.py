"""The datasets by name: scikit-learn's digits, generated ones, torchvision's formats, and folders of images."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from ldreg.data.archives import SUFFIXES, is_archive, unpack
from ldreg.data.config import WITHOUT_PATH, DataConfig, cache_folder
from ldreg.data.generated import SETS, SIZE, generated
from ldreg.data.images import ImageFiles, ImageSet, ResidentImages, Tally, resident_or_files
from ldreg.io.files import filling
from ldreg.io.images import IMG_EXTENSIONS
from ldreg.text import quoted_if_odd

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

logger = logging.getLogger("ldreg")

Split = Literal["train", "test"]

DIGITS_TEST = 360

SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}

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


class MissingSplitError(ValueError):
    """The dataset has images, but none of this split."""


def load_images(config: DataConfig, split: Split) -> ImageSet:
    """Load one split of the configured images; nothing is downloaded.

    `path` is a folder or an archive (unpacked into the cache) in torchvision's format of the dataset, or with folders
    `train/<class>/` and `test/<class>/` (or val) of images; for `folder` also `<class>/` folders or loose images.
    stl10's training split is its train and unlabeled images, the latter with label -1; dtd's is train and val of the
    first partition; imagenet's test split is val. digits, shapes and textures have no path; the latter two are drawn at
    `size`. With `validation` both splits are parts of the training split.

    Raises:
        ValueError: the path, the split or the images are missing, or too many images are unreadable.
        OSError: something cannot be read or written.

    >>> images = load_images(DataConfig(), "test")
    >>> len(images), images.channels, images.size, images.classes[:3]
    (360, 1, 8, ('0', '1', '2'))
    """
    if split not in ("train", "test"):
        raise ValueError(f"split: expected train or test, got {split!r}")
    if config.name not in WITHOUT_PATH and not config.path:
        raise ValueError(f"path: expected the folder or archive of {config.name}, got {config.path!r}")
    if config.validation:
        return validation_part(_load_split(config, "train"), split, share=config.validation)
    return _load_split(config, split)


def _load_split(config: DataConfig, split: Split) -> ImageSet:
    images: ImageSet
    if config.name in SETS:
        images = generated(config.name, split, size=config.size or SIZE)
    else:
        images = _digits(split) if config.path is None else _from_path(config, split)
    if config.limit is not None and config.limit < len(images):
        images = images.take(torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: config.limit])
    if isinstance(images, ImageFiles):
        images.tally = Tally(len(images), max_share=config.max_unreadable)
        images.decoding = config.decode
        return resident_or_files(images, config)
    for option, got, expected in (("resident", "no", "auto or yes"), ("decode", "gpu", "auto or cpu")):
        if getattr(config, option) == got:
            raise ValueError(f"{option}: expected {expected} for {config.name}, which comes as one array, got {got}")
    return images


def output_size(config: DataConfig, images: ImageSet) -> int:
    """Side of the images given to the encoder: as configured, else their own up to 224, and 224 for mixed sizes."""
    return config.size or min(images.size or 224, 224)


def validation_part(training: ImageSet, split: Split, *, share: float) -> ImageSet:
    """The training images without those set aside, or as the test split those set aside.

    They are always the same images, with the same share of every class to a whole image. Images without a label are
    trained on, unless none has one.

    Raises:
        ValueError: the share leaves one side empty.
    """
    labels = training.labels
    known = training.labeled_indices if bool((labels >= 0).any()) else torch.arange(len(labels))
    # Shuffled, sorted by class, then taken at even steps.
    shuffled = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))]
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    # Rounded before the floor, or 0.1 · 10 000 might fall short of 1000.
    steps = (torch.arange(len(known) + 1, dtype=torch.float64) * share).mul(1e6).round().div(1e6).floor()
    aside = torch.zeros(len(labels), dtype=torch.bool)
    aside[by_class[steps.diff() > 0]] = True
    if bool(aside.all()) or not bool(aside.any()):
        given = f"{share:g} of {len(aside)}"
        raise ValueError(f"validation: expected a share that leaves images to train on and to test, got {given}")
    return training.take((aside if split == "test" else ~aside).nonzero().squeeze(1))


def _digits(split: Split) -> ResidentImages:
    """Scikit-learn's 1,797 digits of 8×8 pixels, 1,437 to train and 360 to test, the same share of every class."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(np.rint(data.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(data.target.astype(np.int64))
    # Shuffled by NumPy's frozen generator, sorted by class, then about every fifth: a stratified draw of exactly 360.
    shuffled = np.random.RandomState(0).permutation(len(images))
    by_class = shuffled[np.argsort(data.target[shuffled], kind="stable")]
    steps = np.arange(len(images) + 1) * DIGITS_TEST // len(images)
    in_test = np.diff(steps) > 0
    indices = np.sort(by_class[in_test] if split == "test" else by_class[~in_test])
    return ResidentImages(images, labels, [str(digit) for digit in range(10)], "digits").take(torch.from_numpy(indices))


def _folder_of(config: DataConfig) -> Path:
    """The folder at the configured path, or of the archive there, which is unpacked."""
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


def _from_path(config: DataConfig, split: Split) -> ImageSet:
    """Read torchvision's format if its mark is there, else folders of classes; only `folder` may have no splits."""
    path = _folder_of(config)
    mark, read = TORCHVISION.get(config.name, (None, None))
    if mark and read and (path / mark).exists():
        try:
            return read(path, split, config.name)
        except RuntimeError as error:  # of torchvision, for files that are missing or fail its checksums
            expected = LAYOUTS[config.name]
            raise ValueError(f"path: expected {expected} at {path}, found files missing or damaged") from error
    if config.name == "folder" or split_names(find_root(path)):
        order = ("val",) if config.name == "imagenet" and split == "test" else SPLIT_FOLDERS[split]
        return read_folder(path, split, name=config.name, order=order)
    raise ValueError(f"path: expected {LAYOUTS[config.name]} at {path}, found neither")


# torchvision's formats; torchvision takes seconds to import


def _cifar(root: Path, split: Split, name: str) -> ResidentImages:
    from torchvision import datasets

    kind: type[CIFAR10] = datasets.CIFAR100 if name == "cifar100" else datasets.CIFAR10
    source = kind(root, train=split == "train", download=False)
    images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()
    return ResidentImages(images, torch.tensor(source.targets), source.classes, name)


def _stl10(root: Path, split: Split, name: str) -> ResidentImages:
    from torchvision.datasets import STL10

    source = STL10(root, split="train+unlabeled" if split == "train" else "test", download=False)
    labels = torch.from_numpy(np.asarray(source.labels).astype(np.int64))
    # torchvision reads the names from a separate file and goes on without it.
    classes = getattr(source, "classes", [str(number) for number in range(10)])
    return ResidentImages(torch.from_numpy(np.ascontiguousarray(source.data)), labels, classes, name)


def _food101(root: Path, split: Split, name: str) -> ImageFiles:
    from torchvision.datasets import Food101

    source = Food101(root, split=split, download=False)
    return ImageFiles(source._image_files, torch.tensor(source._labels), source.classes, name)


def _dtd(root: Path, split: Split, name: str) -> ImageFiles:
    from torchvision.datasets import DTD

    parts = [DTD(root, split=part, download=False) for part in (("train", "val") if split == "train" else ("test",))]
    paths = [path for part in parts for path in part._image_files]
    return ImageFiles(paths, torch.tensor([label for part in parts for label in part._labels]), parts[0].classes, name)


def _cars(root: Path, split: Split, name: str) -> ImageFiles:
    from torchvision.datasets import StanfordCars

    source = StanfordCars(root, split=split, download=False)
    paths, labels = zip(*source._samples, strict=True)
    return ImageFiles(paths, torch.tensor([int(label) for label in labels]), source.classes, name)


# The path below torchvision's root that marks its format of a dataset, and the function that reads it.
TORCHVISION: dict[str, tuple[str, Callable[[Path, Split, str], ImageSet]]] = {
    "cifar10": ("cifar-10-batches-py", _cifar),
    "cifar100": ("cifar-100-python", _cifar),
    "stl10": ("stl10_binary", _stl10),
    "food101": ("food-101/meta", _food101),
    "dtd": ("dtd/dtd/labels", _dtd),
    "cars": ("stanford_cars/devkit", _cars),
}


# Folders of images


def find_root(path: Path) -> Path:
    """The folder that holds the images or splits, below any folders that hold nothing but one other folder.

    Archives often wrap their content in such a folder. A split's folder (train, test, val) is not skipped.
    """
    while not split_names(path):
        folders, images = list_folder(path)
        if images or len(folders) != 1:
            return path
        path = path / folders[0]
    return path


def split_names(path: Path) -> list[str]:
    """Those of the folders train, test and val that exist."""
    return [name for names in SPLIT_FOLDERS.values() for name in names if (path / name).is_dir()]


def read_folder(path: Path, split: Split, *, name: str, order: tuple[str, ...]) -> ImageFiles:
    """The image files of one split of a folder, read from the first existing folder of `order`.

    Without split folders, all images are for training, as `<class>/` folders or as loose images without labels. Classes
    are numbered in the order of their names, those of the training split if there is one.

    Raises:
        MissingSplitError: the split does not exist, or is the test split and has no images.
        ValueError: there are no images to train on, or a class that the training split does not have.
    """
    root = find_root(path)
    folder = next((root / candidate for candidate in order if (root / candidate).is_dir()), None)
    if folder is None:
        if split == "test" or split_names(root):
            where, expected = quoted_if_odd(root), " or ".join(order)
            raise MissingSplitError(f"{where}: expected a folder {expected} for the {split} split, found none")
        folder = root
    class_names, loose = list_folder(folder)
    classes = class_names
    if class_names and folder != root and (root / "train").is_dir():
        classes = list_folder(root / "train")[0] or class_names
    if unknown := sorted(set(class_names) - set(classes)):
        known, more = quoted_if_odd(root / "train"), ", ".join(map(quoted_if_odd, unknown[:3]))
        raise ValueError(f"{quoted_if_odd(folder)}: expected the classes of {known}, got {more} as well")
    if class_names and loose:
        logger.warning("%s: %d images outside of the class folders are left out", quoted_if_odd(folder), len(loose))
    paths, labels = list[str](), list[int]()
    for class_name in class_names:
        paths += list(_images_below(folder / class_name, set()))
        labels += [classes.index(class_name)] * (len(paths) - len(labels))
    if not class_names:
        paths, labels = [str(folder / file) for file in loose], [-1] * len(loose)
    if not paths and split == "test":
        logger.warning("%s: there are no images in it, so the set has no test split", quoted_if_odd(folder))
        raise MissingSplitError(f"{quoted_if_odd(folder)}: expected images for the test split, found none")
    if not paths:
        raise ValueError(f"{quoted_if_odd(folder)}: expected images ({', '.join(IMG_EXTENSIONS)}), found none")
    return ImageFiles(paths, torch.tensor(labels), classes, name)


def list_folder(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the subfolders and of the images in a folder, each sorted; hidden ones and __MACOSX are skipped."""
    folders, images = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif not entry.is_file() and os.path.exists(entry.path):  # noqa: PTH110 - many
                continue  # reading a pipe would wait forever; a dangling link is an unreadable image
            elif entry.name.lower().endswith(IMG_EXTENSIONS):
                images.append(entry.name)
    return sorted(folders), sorted(images)


def _images_below(folder: Path, visited: set[str]) -> Iterator[str]:
    """Paths of the images in a folder and its subfolders, in a fixed order; links lead to no folder twice."""
    real_path = os.path.realpath(folder)
    if real_path in visited:
        return
    visited.add(real_path)
    folders, images = list_folder(folder)
    for image in images:
        yield f"{folder}{os.sep}{image}"
    for name in folders:
        yield from _images_below(folder / name, visited)
