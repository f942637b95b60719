"""The sets that torchvision has a format of, and how each is read from there."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torchvision import datasets as tv

from ldreg.data.folders import Split
from ldreg.data.images import ImageFiles, ImageSet, ResidentImages

Read = Callable[[Path, Split], ImageSet]


def _cifar(kind: type[tv.CIFAR10], name: str) -> Read:
    def read(root: Path, split: Split) -> ResidentImages:
        source = kind(root, train=split == "train", download=False)
        images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()
        return ResidentImages(images, torch.tensor(source.targets), source.classes, name)

    return read


def _stl10(root: Path, split: Split) -> ResidentImages:
    source = tv.STL10(root, split="train+unlabeled" if split == "train" else "test", download=False)
    labels = torch.from_numpy(np.asarray(source.labels).astype(np.int64))
    # Torchvision reads the names from a file of their own and goes on without it.
    classes = getattr(source, "classes", [str(number) for number in range(10)])
    return ResidentImages(torch.from_numpy(np.ascontiguousarray(source.data)), labels, classes, "stl10")


def _file_set(paths: Sequence[str | Path], labels: Sequence[int], classes: Sequence[str], name: str) -> ImageFiles:
    return ImageFiles(paths, torch.tensor([int(label) for label in labels]), classes, name)


def _food101(root: Path, split: Split) -> ImageFiles:
    source = tv.Food101(root, split=split, download=False)
    return _file_set(source._image_files, source._labels, source.classes, "food101")


def _dtd(root: Path, split: Split) -> ImageFiles:
    parts = [tv.DTD(root, split=part, download=False) for part in (("train", "val") if split == "train" else ("test",))]
    paths = [path for part in parts for path in part._image_files]
    return _file_set(paths, [label for part in parts for label in part._labels], parts[0].classes, "dtd")


def _cars(root: Path, split: Split) -> ImageFiles:
    source = tv.StanfordCars(root, split=split, download=False)
    paths, labels = zip(*source._samples, strict=True)
    return _file_set(paths, labels, source.classes, "cars")


# What, below torchvision's root, shows that a set is there in torchvision's format; and how it is read.
TORCHVISION: dict[str, tuple[str, Read]] = {
    "cifar10": ("cifar-10-batches-py", _cifar(tv.CIFAR10, "cifar10")),
    "cifar100": ("cifar-100-python", _cifar(tv.CIFAR100, "cifar100")),
    "stl10": ("stl10_binary", _stl10),
    "food101": ("food-101/meta", _food101),
    "dtd": ("dtd/dtd/labels", _dtd),
    "cars": ("stanford_cars/devkit", _cars),
}
