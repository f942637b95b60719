"""Two views of every picture of a batch: ours on the device, and per-image transforms in worker processes."""

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from ldreg.bench.measure import OWN, SMALL, VIEWS, Benchmark, Contender, Goal, Measurement, Pictures, Setting, measure
from ldreg.data import ImageFiles, Loader
from ldreg.views import Views, ViewsConfig
from ldreg.views.config import NORMALIZATIONS
from ldreg.views.transforms import kernel_size

Batches = Iterator[Sequence[Tensor]]  # two views (B, 3, S, S) each, without end

_CLASS = "pictures"  # the one folder of the files; loaders want classes
_GRAIN = 8  # pixels between independent colors
_NOISE = 12.0  # gray levels of noise, so that files take as many bits as photographs do
_QUALITY = 90  # of the JPEG files
_EPOCH = 16  # batches of each worker in an epoch of files: beginning and end weigh little
_RESERVE = 3  # batches of each worker before the first that is timed: two made in advance, one at work
_RESNET50_VIEWS = 4900  # a second, of 224 px, that a ResNet-50 in bf16 takes on an H200


def draw(size: Pictures, *, seed: int) -> Tensor:
    """Random pictures, as smooth as photographs, uint8 (N, 3, H, W).

    >>> draw(Pictures(2, 224), seed=0).shape
    torch.Size([2, 3, 350, 400])
    """
    generator = torch.Generator().manual_seed(seed)
    height, width = size.shape
    coarse = torch.rand(size.images, 3, -(-height // _GRAIN) + 1, -(-width // _GRAIN) + 1, generator=generator)
    smooth = 255 * functional.interpolate(coarse, size=(height, width), mode="bicubic")
    return smooth.add_(torch.randn(smooth.shape, generator=generator), alpha=_NOISE).clamp_(0, 255).to(torch.uint8)


def as_pil(pictures: Tensor) -> list[Image.Image]:
    """Pictures uint8 (N, 3, H, W) as Pillow has them."""
    return [Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()) for picture in pictures]


def write_files(pictures: Tensor, folder: Path) -> list[Path]:
    """Write the pictures as JPEG files into the one class folder in `folder`."""
    (folder / _CLASS).mkdir()
    paths = [folder / _CLASS / f"{number:06d}.jpg" for number in range(len(pictures))]
    for path, picture in zip(paths, as_pil(pictures), strict=True):
        picture.save(path, quality=_QUALITY)
    return paths


def config_of(size: Pictures) -> ViewsConfig:
    """The views of SimCLR in the recipes for CIFAR-10 (weaker colors, no blur) or ImageNet."""
    return ViewsConfig("simclr", jitter=0.5, blur=False) if size.pixels <= SMALL else ViewsConfig("simclr")


def ours(setting: Setting, folder: Path, *, plain: bool = False) -> Batches:
    """As `ldreg pretrain` makes them: compiled on a GPU, files decoded there if it can.

    Plain: not compiled, and files decoded by worker processes.
    """
    views = Views(config_of(setting.size), size=setting.size.pixels, channels=3)
    if setting.device == "cuda" and not plain:
        views.compile()
    pictures = draw(setting.size, seed=setting.seed)
    generator = torch.Generator(setting.device).manual_seed(setting.seed)
    if not setting.size.files:
        images = pictures.to(setting.device)
        while True:
            yield views(images, generator)
    paths = write_files(pictures, folder) * (_EPOCH * setting.threads)
    labels = torch.zeros(len(paths), dtype=torch.int64)
    loader = Loader(
        ImageFiles(paths, labels, (_CLASS,), "benchmark", decoding="cpu" if plain else "auto"),
        batch_size=setting.size.images,
        seed=setting.seed,
        crop=views,
        workers=setting.threads,
        device=setting.device,
    )
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        for batch in loader:
            yield views(batch.images.to(setting.device, non_blocking=True), generator)


def torchvision(setting: Setting, folder: Path, *, tensors: bool) -> Batches:
    """Transforms of torchvision, v2 of uint8 tensors or those of Pillow images, in worker processes."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    kind: Any = v2 if tensors else transforms
    pixels, policy = setting.size.pixels, config_of(setting.size).resolve()
    blur = kind.RandomApply([kind.GaussianBlur(kernel_size(pixels), (0.1, 2.0))], policy.blur[0])
    view = kind.Compose([
        *([v2.ToImage()] if tensors else []),
        kind.RandomResizedCrop(pixels, scale=policy.scale, antialias=True),
        kind.RandomHorizontalFlip(policy.flip),
        kind.RandomApply([kind.ColorJitter(*policy.jitter)], policy.jitter_probability),
        kind.RandomGrayscale(policy.grayscale),
        *([blur] if policy.blur[0] else []),
        v2.ToDtype(torch.float32, scale=True) if tensors else transforms.ToTensor(),
        kind.Normalize(*NORMALIZATIONS["imagenet"]),
    ])  # fmt: skip
    return _loaded(setting, folder, functools.partial(_twice, view), files=ImageFolder, tensors=tensors)


def _twice(transform: Callable[[Any], Any], image: Any) -> list[Any]:
    return [transform(image) for _ in range(VIEWS)]


def lightly(setting: Setting, folder: Path) -> Batches:
    """SimCLR's transform of lightly (and its dataset, of files), in worker processes."""
    from lightly.data import LightlyDataset
    from lightly.transforms.simclr_transform import SimCLRTransform

    pixels = setting.size.pixels
    options: dict[str, Any] = {"cj_strength": 0.5, "gaussian_blur": 0.0} if pixels <= SMALL else {}
    return _loaded(setting, folder, SimCLRTransform(input_size=pixels, **options), files=LightlyDataset)


class InMemory(Dataset[Any]):
    """Transformed pictures in memory, with a label as datasets have it."""

    def __init__(self, pictures: Sequence[Any], transform: Callable[[Any], Any]) -> None:
        self.pictures, self.transform = pictures, transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.pictures[index]), 0


def _loaded(
    setting: Setting, folder: Path, transform: Callable[[Any], Any], *, files: Callable[..., Any], tensors: bool = False
) -> Batches:
    """Batches of pictures by torch's loader with as many worker processes as threads; `files` is a dataset of files."""
    pictures = draw(setting.size, seed=setting.seed)
    if setting.size.files:
        write_files(pictures, folder)
        dataset = files(str(folder), transform)
    else:
        dataset = InMemory(list(pictures) if tensors else as_pil(pictures), transform)
    loader = DataLoader(
        dataset,
        batch_size=setting.size.images,
        sampler=itertools.cycle(range(setting.size.images)),  # workers never wait for an epoch to begin
        num_workers=setting.threads,
        pin_memory=setting.device == "cuda",
    )
    return ([view.to(setting.device, non_blocking=True) for view in views] for views, *_ in loader)


def measure_batches(
    make: Callable[[Setting, Path], Batches], setting: Setting, *, workers: bool = True
) -> tuple[Measurement, None]:
    """Measure the seconds of a batch.

    If workers make the batches, as many batches as workers are timed together, after so many that their reserve is
    used up and the workers set the pace.
    """
    together = setting.threads if workers or setting.size.files else 1
    with tempfile.TemporaryDirectory() as folder:
        batches: Any = make(setting, Path(folder))

        def take(count: int) -> None:
            for _ in range(count):
                next(batches)

        take(_RESERVE * together)
        measured, _ = measure(lambda: take(together), repeats=setting.repeats, device=setting.device)
        batches.close()
    return Measurement(tuple(each / together for each in measured.seconds), None), None  # workers' memory is not seen


_PLAIN = "ldreg (plain)"
MAKERS: dict[str, Callable[[Setting, Path], Batches]] = {
    OWN: ours,
    _PLAIN: functools.partial(ours, plain=True),
    "torchvision v2": functools.partial(torchvision, tensors=True),
    "torchvision (PIL)": functools.partial(torchvision, tensors=False),
    "lightly": lightly,
}

_FILES = Pictures(128, 224, files=True)

BENCHMARK = Benchmark(
    title="Two views of every image",
    contenders={
        name: Contender(
            functools.partial(measure_batches, make, workers=not name.startswith(OWN)),
            package="lightly",
            install="ldreg[train]",
            devices=("cuda",) if name == _PLAIN else ("cpu", "cuda"),
            counts=name != _PLAIN,
        )
        for name, make in MAKERS.items()
    },
    size=Pictures,
    sizes={
        "cpu": (Pictures(512, 32), Pictures(64, 224), Pictures(64, 224, files=True)),
        "cuda": (Pictures(512, 32), Pictures(128, 224), _FILES),
    },
    quick_sizes=(Pictures(16, 32), Pictures(4, 96, files=True)),
    goals=(Goal(_FILES, "views/s", _RESNET50_VIEWS, device="cuda"),),
    columns=("img/s", "views/s", "time vs ldreg"),
    picture="rates",
    conditions=(
        "SimCLR's views of random pictures in memory or in JPEG files, of 400×350 pixels for views of 224; others than "
        "ldreg run in as many worker processes as threads"
    ),
)
