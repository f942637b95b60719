"""Samples for a detector: scenes drawn in order, flipped and resized together with their boxes and masks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

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


class Sample(NamedTuple):
    """One image with its objects; DataLoader and Lightning know how to move the tensors of a tuple."""

    image: Tensor  # uint8 (3, H, W), resized
    boxes: Tensor  # float32 (N, 4), left, top, right, bottom in its pixels
    labels: Tensor  # int64 (N,)
    masks: Tensor  # uint8 (N, h, w), of the size before it was resized, because regions are read from them


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
    return sample._replace(image=sample.image.flip(2), boxes=boxes, masks=sample.masks.flip(2))


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
    return sample._replace(image=image, boxes=sample.boxes * scale)


@dataclass(frozen=True)
class TrainingSamples(Dataset[Sample | Unreadable]):
    """Scenes flipped and resized at random; the draw of each comes from the seed that comes with its index."""

    scenes: Scenes
    sizes: Sequence[int]
    longer: int
    flip: float

    def __getitem__(self, draw: Draw) -> Sample | Unreadable:
        index, seed = draw
        sample = open_scene(self.scenes[index])
        if isinstance(sample, Unreadable):
            return sample
        generator = np.random.default_rng(seed)
        if generator.random() < self.flip:
            sample = flipped(sample)
        return resized(sample, shorter=int(generator.choice(self.sizes)), longer=self.longer)


@dataclass(frozen=True)
class TestSamples(Dataset[tuple[int, Sample | Unreadable]]):
    """Scenes resized, each with its index; `indices` are those of this process."""

    __test__ = False  # no test class, whatever its name
    scenes: Scenes
    indices: Sequence[int]
    shorter: int
    longer: int

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> tuple[int, Sample | Unreadable]:
        index = self.indices[place]
        sample = open_scene(self.scenes[index]._replace(instances=()))
        if isinstance(sample, Sample):
            sample = resized(sample, shorter=self.shorter, longer=self.longer)
        return index, sample


def readable(sample: Sample | Unreadable) -> Sample:
    """The sample; ValueError if its file could not be used."""
    if isinstance(sample, Unreadable):
        raise ValueError(sample.reason)
    return sample


@dataclass(frozen=True)
class IterationOrder:
    """The draws of iterations `start` to `stop` on one rank, a batch each, by the seed and the iteration.

    Each epoch has a new order. Portrait and landscape images have separate batches, as little is then padded
    (detectron2's aspect ratio grouping).
    """

    landscape: NDArray[np.bool_]
    batch_size: int
    seed: int
    stop: int
    start: int = 0
    rank: int = 0
    world: int = 1

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[list[Draw]]:
        mine = islice(self._batches(), self.start * self.world + self.rank, self.stop * self.world, self.world)
        for iteration, batch in enumerate(mine, start=self.start):
            places = (derived_seed(self.seed, iteration, self.rank, place) for place in count())
            yield list(zip(batch, places, strict=False))

    def _batches(self) -> Iterator[list[int]]:
        """Batches of one rank's size without end; what does not fill one is carried into the next epoch."""
        waiting: tuple[list[int], list[int]] = ([], [])
        for epoch in count():
            generator = torch.Generator().manual_seed(derived_seed(self.seed, epoch))
            for index in torch.randperm(len(self.landscape), generator=generator).tolist():
                group = waiting[int(self.landscape[index])]
                group.append(index)
                if len(group) == self.batch_size:
                    yield group.copy()
                    group.clear()
