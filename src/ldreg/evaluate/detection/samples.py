"""Scenes to what a detector is trained on: drawn in an order, flipped, resized, with boxes and masks alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional as tvf

from ldreg.data.decoding import UnreadableImageError, read_image
from ldreg.data.images import derived_seed
from ldreg.evaluate.detection.coco import Scene, Scenes, rasterize
from ldreg.text import quoted_if_odd

Draw = tuple[int, int]  # which scene, and the seed of its augmentation


@dataclass(frozen=True)
class Sample:
    """One image with its objects."""

    image: Tensor  # uint8 (3, H, W), resized
    boxes: Tensor  # float32 (N, 4), left, top, right, bottom in its pixels
    labels: Tensor  # int64 (N,)
    masks: Tensor  # uint8 (N, h, w), of the size before it was resized, because regions are read from them

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "Sample":
        """The same on a device."""
        return Sample(*(part.to(device, non_blocking=non_blocking) for part in vars(self).values()))

    def pin_memory(self) -> "Sample":
        """The same in memory that a GPU copies from."""
        return Sample(*(part.pin_memory() for part in vars(self).values()))


@dataclass(frozen=True)
class Unreadable:
    """Why a scene's file cannot be used; workers return it because their exceptions lose their class."""

    reason: str


def open_scene(scene: Scene) -> Sample | Unreadable:
    """A scene in its own size, with its file decoded and its masks drawn."""
    name = quoted_if_odd(scene.path)
    try:
        image = read_image(scene.path).pixels
    except UnreadableImageError as error:
        return Unreadable(f"{name}: expected an image, got one that cannot be read ({error})")
    if image.shape[1:] != (scene.height, scene.width):
        expected, found = f"{scene.width}x{scene.height}", f"{image.shape[2]}x{image.shape[1]}"
        return Unreadable(f"{name}: expected {expected} pixels as the annotations say, got {found}")
    masks = torch.zeros((len(scene.instances), scene.height, scene.width), dtype=torch.uint8)
    for mask, one in zip(masks, scene.instances, strict=True):
        mask.copy_(torch.from_numpy(rasterize(one.segmentation, height=scene.height, width=scene.width)))
    return Sample(
        image,
        boxes=torch.tensor([one.box for one in scene.instances], dtype=torch.float32).view(-1, 4),
        labels=torch.tensor([one.label for one in scene.instances], dtype=torch.int64),
        masks=masks,
    )


def flipped(sample: Sample) -> Sample:
    """The mirror image, boxes and masks with it."""
    left, top, right, bottom = sample.boxes.unbind(1)
    width = sample.image.shape[2]
    boxes = torch.stack((width - right, top, width - left, bottom), dim=1)
    return replace(sample, image=sample.image.flip(2), boxes=boxes, masks=sample.masks.flip(2))


def new_size(height: int, width: int, *, shorter: int, longer: int) -> tuple[int, int]:
    """Height and width with the shorter side at `shorter`, or else the longer at `longer` where it would pass that.

    >>> new_size(480, 640, shorter=800, longer=1333), new_size(300, 900, shorter=800, longer=1333)
    ((800, 1067), (444, 1333))
    """
    scale = min(shorter / min(height, width), longer / max(height, width))
    return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))


def resized(sample: Sample, *, shorter: int, longer: int) -> Sample:
    """The image in a new size and its boxes with it; bilinear, averaging where it shrinks."""
    height, width = sample.image.shape[1:]
    tall, wide = new_size(height, width, shorter=shorter, longer=longer)
    image = tvf.resize(sample.image, [tall, wide], antialias=True)
    scale = sample.boxes.new_tensor([wide / width, tall / height] * 2)
    return replace(sample, image=image, boxes=sample.boxes * scale)


class TrainingSamples(Dataset[Sample | Unreadable]):
    """Scenes flipped and resized at random; the draw of each comes from the seed that comes with its index."""

    def __init__(self, scenes: Scenes, *, sizes: Sequence[int], longer: int, flip: float) -> None:
        self._scenes, self._sizes, self._longer, self._flip = scenes, tuple(sizes), longer, flip

    def __getitem__(self, draw: Draw) -> Sample | Unreadable:
        index, seed = draw
        sample = open_scene(self._scenes[index])
        if isinstance(sample, Unreadable):
            return sample
        generator = np.random.default_rng(seed)
        if generator.random() < self._flip:
            sample = flipped(sample)
        return resized(sample, shorter=int(generator.choice(self._sizes)), longer=self._longer)


class TestSamples(Dataset[tuple[int, Sample | Unreadable]]):
    """Scenes resized, each with its index; `indices` are those of this process."""

    __test__ = False  # no test class, whatever its name

    def __init__(self, scenes: Scenes, indices: Sequence[int], *, shorter: int, longer: int) -> None:
        self._scenes, self._indices, self._shorter, self._longer = scenes, indices, shorter, longer

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> tuple[int, Sample | Unreadable]:
        index = self._indices[place]
        sample = open_scene(self._scenes[index]._replace(instances=()))
        if isinstance(sample, Sample):
            sample = resized(sample, shorter=self._shorter, longer=self._longer)
        return index, sample


def readable(sample: Sample | Unreadable) -> Sample:
    """The sample; ValueError if its file could not be used."""
    if isinstance(sample, Unreadable):
        raise ValueError(sample.reason)
    return sample


class IterationOrder:
    """The draws of iterations `start` to `stop` on one rank, a batch each, by the seed and the iteration.

    Each epoch has a new order. Portrait and landscape images have separate batches, as little is then padded
    (detectron2's aspect ratio grouping).
    """

    def __init__(
        self,
        landscape: NDArray[np.bool_],
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        start: int = 0,
        stop: int,
    ) -> None:
        self._landscape, self._batch_size, self._seed = landscape, batch_size, seed
        self._rank, self._world, self._start, self._stop = rank, world, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[list[Draw]]:
        mine = islice(self._batches(), self._start * self._world + self._rank, self._stop * self._world, self._world)
        for iteration, batch in enumerate(mine, start=self._start):
            places = (derived_seed(self._seed, iteration, self._rank, place) for place in count())
            yield list(zip(batch, places, strict=False))

    def _batches(self) -> Iterator[list[int]]:
        """Batches of one rank's size without end; what does not fill one is carried into the next epoch."""
        waiting: tuple[list[int], list[int]] = ([], [])
        for epoch in count():
            generator = torch.Generator().manual_seed(derived_seed(self._seed, epoch))
            for index in torch.randperm(len(self._landscape), generator=generator).tolist():
                group = waiting[int(self._landscape[index])]
                group.append(index)
                if len(group) == self._batch_size:
                    yield group.copy()
                    group.clear()
