"""Ways to make two views of every picture, batch after batch without end, on the device."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lightly.data import LightlyDataset
from lightly.transforms.simclr_transform import SimCLRTransform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from ldreg.bench.benchmark import VIEWS, Pictures, Setting
from ldreg.bench.pictures import CLASS, as_pil, draw, write_files
from ldreg.data import FileLoader, ImageFiles, RandomCrops
from ldreg.data.config import Decode
from ldreg.views import Views, ViewsConfig
from ldreg.views.config import NORMALIZATIONS, Policy
from ldreg.views.transforms import kernel_size

Batches = Iterator[Sequence[Tensor]]  # two views (B, 3, S, S) each
Transform = Any  # torchvision's and lightly's come without types

_SMALL = 64  # pixels up to which views are those of the CIFAR recipes: weaker colors, no blur
_EPOCH = 16  # batches of each worker in an epoch of files


def config_of(size: Pictures) -> ViewsConfig:
    """The views of SimCLR as the recipes for CIFAR-10 or ImageNet have them."""
    return ViewsConfig("simclr", jitter=0.5, blur=False) if size.pixels <= _SMALL else ViewsConfig("simclr")


def ours(setting: Setting, folder: Path, *, compiled: bool, decode: Decode) -> Batches:
    """`ldreg.views` on the device; of files, `ldreg.data` reads and crops them first."""
    views = Views(config_of(setting.size), size=setting.size.pixels, channels=3)
    if compiled:
        views.compile()
    pictures = draw(setting.size, seed=setting.seed)
    if setting.size.files:
        return _of_files(views, write_files(pictures, folder), setting, decode)
    images = pictures.to(setting.device)
    generator = torch.Generator(setting.device).manual_seed(setting.seed)
    return (views(images, generator) for _ in itertools.count())


def _of_files(views: Views, paths: list[Path], setting: Setting, decode: Decode) -> Batches:
    repeated = paths * (_EPOCH * setting.threads)  # an epoch long enough that its beginning and end weigh little
    labels = torch.zeros(len(repeated), dtype=torch.int64)
    files = ImageFiles(repeated, labels, (CLASS,), "benchmark", decoding=decode)
    loader = FileLoader(
        files,
        batch_size=len(paths),
        seed=setting.seed,
        crop=RandomCrops(views),
        workers=setting.threads,
        device=setting.device,
    )
    generator = torch.Generator(setting.device).manual_seed(setting.seed)
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        for batch in loader:
            yield views(batch.images.to(setting.device, non_blocking=True), generator)


def torchvision_v2(setting: Setting, folder: Path) -> Batches:
    """Transforms v2 of torchvision, of one uint8 tensor after the other, in worker processes."""
    return _by_workers(setting, folder, TwoViews(_v2(config_of(setting.size).resolve(), setting.size)), tensors=True)


def torchvision_pil(setting: Setting, folder: Path) -> Batches:
    """Transforms of torchvision, of one Pillow image after the other, in worker processes."""
    return _by_workers(setting, folder, TwoViews(_pil(config_of(setting.size).resolve(), setting.size)))


def lightly(setting: Setting, folder: Path) -> Batches:
    """SimCLR's transform of lightly (and its dataset, of files), in worker processes."""
    size = setting.size
    options: dict[str, Any] = {"cj_strength": 0.5, "gaussian_blur": 0.0} if size.pixels <= _SMALL else {}
    transform = SimCLRTransform(input_size=size.pixels, **options)
    if not size.files:
        return _by_workers(setting, folder, transform)
    write_files(draw(size, seed=setting.seed), folder)
    return _loaded(LightlyDataset(str(folder), transform), setting)


class TwoViews:
    """A transform applied once for every view."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> list[Any]:
        """The views of one image."""
        return [self.transform(image) for _ in range(VIEWS)]


def _v2(policy: Policy, size: Pictures) -> Transform:
    blur = [v2.RandomApply([v2.GaussianBlur(kernel_size(size.pixels), (0.1, 2.0))], policy.blur[0])]
    return v2.Compose([
        v2.ToImage(),
        v2.RandomResizedCrop(size.pixels, scale=policy.scale, antialias=True),
        v2.RandomHorizontalFlip(policy.flip),
        v2.RandomApply([v2.ColorJitter(*policy.jitter)], policy.jitter_probability),
        v2.RandomGrayscale(policy.grayscale),
        *(blur if policy.blur[0] else []),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(*NORMALIZATIONS["imagenet"]),
    ])  # fmt: skip


def _pil(policy: Policy, size: Pictures) -> Transform:
    blur = [transforms.RandomApply([transforms.GaussianBlur(kernel_size(size.pixels), (0.1, 2.0))], policy.blur[0])]
    return transforms.Compose([
        transforms.RandomResizedCrop(size.pixels, scale=policy.scale),
        transforms.RandomHorizontalFlip(policy.flip),
        transforms.RandomApply([transforms.ColorJitter(*policy.jitter)], policy.jitter_probability),
        transforms.RandomGrayscale(policy.grayscale),
        *(blur if policy.blur[0] else []),
        transforms.ToTensor(),
        transforms.Normalize(*NORMALIZATIONS["imagenet"]),
    ])  # fmt: skip


class InMemory(Dataset[Any]):
    """Transformed pictures that lie in memory, with a label as datasets have it."""

    def __init__(self, pictures: Sequence[Any], transform: Transform) -> None:
        self.pictures, self.transform = pictures, transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.pictures[index]), 0


def _by_workers(setting: Setting, folder: Path, transform: Transform, *, tensors: bool = False) -> Batches:
    pictures = draw(setting.size, seed=setting.seed)
    if setting.size.files:
        write_files(pictures, folder)
        return _loaded(ImageFolder(str(folder), transform), setting)
    return _loaded(InMemory(list(pictures) if tensors else as_pil(pictures), transform), setting)


class _Endless(Sampler[int]):
    """All indices in order, again and again, so that workers never wait for an epoch to begin."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(self.count))


def _loaded(dataset: Dataset[Any], setting: Setting) -> Batches:
    """Batches of a dataset by torch's loader with as many worker processes as there are threads to use."""
    loader = DataLoader(
        dataset,
        batch_size=setting.size.images,
        sampler=_Endless(setting.size.images),
        num_workers=setting.threads,
        pin_memory=setting.device == "cuda",
    )
    return ([view.to(setting.device, non_blocking=True) for view in views] for views, *_ in loader)


MAKERS: dict[str, Callable[..., Batches]] = {
    "ours": ours,
    "torchvision v2": torchvision_v2,
    "torchvision (PIL)": torchvision_pil,
    "lightly": lightly,
}
