"""Folders of images: which files are of which split and class."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from ldreg.data.images import ImageFiles
from ldreg.data.unreadable import shown

logger = logging.getLogger("ldreg")

Split = Literal["train", "test"]

# Those of torchvision's ImageFolder.
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val")}


class MissingSplitError(ValueError):
    """The set has images, but not of this split."""


def find_root(path: Path) -> Path:
    """The folder below which the images lie, past folders that hold nothing but one other folder.

    Archives often wrap their content in such a folder; a split's folder (train, test, val) is not taken for one.
    """
    while not split_names(path):
        folders, images = listing(path)
        if images or len(folders) != 1:
            return path
        path = path / folders[0]
    return path


def split_names(path: Path) -> list[str]:
    """Those of the folders train, test and val that are there."""
    return [name for names in SPLIT_FOLDERS.values() for name in names if (path / name).is_dir()]


def read_folder(path: Path, split: Split, *, name: str, order: tuple[str, ...] | None = None) -> ImageFiles:
    """The image files of one split of a folder.

    Read as `train/<class>/` and `test/<class>/` (or val; `order` says which is sought first), else, for training
    alone, as `<class>/` folders or loose images, which have no labels. Classes are numbered in the order of their
    names, those of the training split where there is one.

    Raises:
        MissingSplitError: where the split is not there, or is the test split and has no images.
        ValueError: where there are no images to train on, or a class that the training split does not have.
        OSError: where a folder cannot be read.
    """
    root = find_root(path)
    folder = split_folder(root, split, order or SPLIT_FOLDERS[split])
    class_names, loose = listing(folder)
    classes = class_names
    if class_names and folder != root and (root / "train").is_dir():
        classes = listing(root / "train")[0] or class_names
    if unknown := sorted(set(class_names) - set(classes)):
        known, more = shown(root / "train"), ", ".join(map(shown, unknown[:3]))
        raise ValueError(f"{shown(folder)}: expected the classes of {known}, got {more} as well")
    if class_names and loose:
        logger.warning("%s: %d images that lie beside the class folders are left out", shown(folder), len(loose))
    numbers = {class_name: number for number, class_name in enumerate(classes)}
    paths, labels = [], []
    for class_name in class_names:
        found = list(images_below(folder / class_name))
        paths += found
        labels += [numbers[class_name]] * len(found)
    if not class_names:
        paths, labels = [str(folder / file) for file in loose], [-1] * len(loose)
    if not paths and split == "test":
        logger.warning("%s: there are no images in it, so the set has no test split", shown(folder))
        raise MissingSplitError(f"{shown(folder)}: expected images for the test split, found none")
    if not paths:
        raise ValueError(f"{shown(folder)}: expected images ({', '.join(IMG_EXTENSIONS)}), found none")
    return ImageFiles(paths, torch.tensor(labels), classes, name)


def split_folder(root: Path, split: Split, order: tuple[str, ...]) -> Path:
    """Where the split's images lie: a folder of its name, or for training the root where it has no such folders.

    Raises:
        MissingSplitError: where the split is not there.
    """
    if found := next((root / name for name in order if (root / name).is_dir()), None):
        return found
    if split == "train" and not split_names(root):
        return root
    raise MissingSplitError(f"{shown(root)}: expected a folder {' or '.join(order)} for the {split} split, found none")


def listing(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the images in a folder, each sorted; hidden ones and a Mac's leftovers are not seen.

    Raises:
        OSError: where the folder cannot be read.
    """
    folders, images = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif not entry.is_file() and os.path.exists(entry.path):  # noqa: PTH110 - many
                continue  # reading a pipe would wait forever; a link that leads nowhere is an unreadable image
            elif entry.name.lower().endswith(IMG_EXTENSIONS):
                images.append(entry.name)
    return sorted(folders), sorted(images)


def images_below(folder: Path, seen: set[str] | None = None) -> Iterator[str]:
    """Paths of the images in a folder and in those below it, in a fixed order; no folder is seen twice, by any link."""
    seen = set() if seen is None else seen
    true_path = os.path.realpath(folder)
    if true_path in seen:
        return
    seen.add(true_path)
    folders, images = listing(folder)
    for image in images:
        yield f"{folder}{os.sep}{image}"
    for name in folders:
        yield from images_below(folder / name, seen)
