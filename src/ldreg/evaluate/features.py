"""Representations of a split of images: extracted once, cached under a key of their content, and reused."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Literal
from uuid import uuid4

import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ldreg.data import (
    Batch,
    DataConfig,
    ImageFiles,
    ImageSet,
    batches_in_order,
    device_decoder,
    load_images,
    worker_count,
)
from ldreg.data.config import cache_folder
from ldreg.data.datasets import Split
from ldreg.data.decoding import read_image, to_rgb
from ldreg.data.file_batches import report_lost_workers, resize_and_crop
from ldreg.data.images import fingerprint
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.extract import AUTOCAST, Precision, representations, torch_device, with_channels
from ldreg.io.files import filling
from ldreg.text import one_line
from ldreg.views import Views, ViewsConfig

logger = logging.getLogger("ldreg")

Progress = Callable[[str, float], None]  # called with what is done and the fraction that is done

_BATCH = 512  # images at a time
VERSION = 2  # of the file and of how its content is computed; part of every key


@dataclass(frozen=True, eq=False)
class Features:
    """Representations of one split of a set."""

    representations: Tensor  # (N, D) float32 on the CPU
    labels: Tensor  # (N,) int64, -1 where unknown
    indices: Tensor  # (N,) int64, positions in the image set; unreadable files are left out
    classes: tuple[str, ...]
    key: str  # of their content
    reused: bool  # from the cache
    transparent: int = 0  # image files with transparent pixels

    def names(self) -> list[str] | None:
        """The class of every row by name; None if some have none."""
        if not self.classes or bool((self.labels < 0).any()):
            return None
        return [self.classes[label] for label in self.labels.tolist()]


@dataclass(frozen=True)
class Setup:
    """Where and how an evaluation runs.

    Args:
        device: auto (a GPU where there is one), cpu or cuda
        devices: processes on this machine, with one device each
        precision: fp32, or bf16 mixed with float32
        cache: folder below which representations are kept; default that of --data.cache
    """

    out: Path  # folder of the results; checkpoints are in work/ below it
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    precision: Precision = "fp32"
    cache: Path | None = None
    reading: DataConfig = field(default_factory=DataConfig)  # how images of other sets than the source's are read
    progress: Progress | None = None
    command: str = ""

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"devices: expected at least 1, got {self.devices}")

    @property
    def place(self) -> torch.device:
        """The device of this process."""
        return torch_device(self.device)

    def features(
        self, encoder: LoadedEncoder, data: DataConfig, split: Split, images: ImageSet | None = None
    ) -> Features:
        """Representations of a split, by `features`."""
        how = {"device": self.device, "precision": self.precision, "cache": self.cache, "progress": self.progress}
        return features(encoder, data, split, images=images, **how)  # type: ignore[arg-type]


def features(
    encoder: LoadedEncoder,
    data: DataConfig,
    split: Split,
    *,
    device: str = "auto",
    precision: Precision = "fp32",
    cache: Path | None = None,
    progress: Progress | None = None,
    images: ImageSet | None = None,
) -> Features:
    """Representations of a split without augmentation, from the cache if the encoder and the images are the same.

    Images are prepared as by `plain_image`: squares are resized whole, of others the shorter side is resized to
    size / 0.875 and the center taken. Gray images are repeated for an encoder of three channels, color becomes
    luminance for an encoder of one. The encoder is left on the CPU as it was. Pass `images` if they are loaded already.

    Raises:
        ValueError: the data is missing or unreadable, or a representation is not finite.
    """
    place = torch_device(device)  # before the work
    images = load_images(data, split) if images is None else images
    key = content_key(encoder, images, split=split, device=place.type, precision=precision)
    path = (cache_folder(data) if cache is None else cache) / "representations" / f"{key}.safetensors"
    with filling(path):
        found = _read(path, key, images)
        if found is None:
            found = _extract(encoder, images, data, key, place=place, precision=precision, progress=progress)
            _write(path, found)
        elif isinstance(images, ImageFiles):
            images.tally.finish_pass(len(found.indices), transparent=found.transparent)
    return found


def content_key(encoder: LoadedEncoder, images: ImageSet, *, split: Split, device: str, precision: Precision) -> str:
    """A hash of everything that the representations depend on.

    The device counts, as a GPU may round to TF32, and so does whether it decodes the files.
    """
    parts = {
        "version": VERSION,
        "encoder": encoder.key,
        "size": encoder.size,
        "channels": encoder.channels,
        "normalization": encoder.normalization,
        "images": images_key(images),
        "split": split,
        "device": device,
        "precision": precision,
    }
    if isinstance(images, ImageFiles) and device_decoder(images.decoding, device) is not None:
        parts["decoder"] = "on the device"
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def images_key(images: ImageSet) -> str:
    """A hash of the images of a set, their order, labels and classes; files count by path, size and time of change."""
    digest = hashlib.sha256()
    if isinstance(images, ImageFiles):
        digest.update(f"files {fingerprint(images)} {images.size}".encode())
    else:
        digest.update(f"array {tuple(images.images.shape)}".encode())
        for part in images.images.split(4096):  # each is copied
            digest.update(part.numpy().tobytes())
    digest.update(images.labels.numpy().tobytes())
    digest.update(json.dumps([images.name, *images.classes]).encode())
    return digest.hexdigest()


def plain_views(encoder: LoadedEncoder, *, flip: float = 0.0, min_scale: float = 1.0) -> Views:
    """The views of an evaluation: one random resized crop with a flip, normalized for the encoder."""
    config = ViewsConfig(
        "mae", flip=flip, min_scale=min_scale, interpolation="bilinear", normalization=encoder.normalization
    )
    return Views(config, size=encoder.size, channels=encoder.channels)


def plain_batches(
    images: ImageSet, views: Views, *, device: torch.device, batch_size: int, workers: int
) -> Iterator[Batch]:
    """All images in order without augmentation, normalized float32 (B, C, size, size)."""
    for batch in batches_in_order(images, batch_size=batch_size, size=views.size, device=device, workers=workers):
        yield Batch(views.plain(with_channels(batch.images, views.channels)), batch.labels, batch.indices)


def plain_image(image: Image.Image | str | PathLike[str], views: Views) -> Tensor:
    """One image as `plain_batches` gives it on the CPU, normalized float32 (C, size, size).

    Args:
        image: a file, or an image that Pillow opened; `.convert("RGB")` would lose its transparency.
        views: those of `plain_views`.

    Raises:
        ValueError: the file cannot be read.

    >>> views = Views(ViewsConfig(normalization="none"), size=8, channels=1)
    >>> plain_image(Image.new("RGBA", (20, 30)), views).unique()  # transparent, so white
    tensor([1.])
    """
    pixels = to_rgb(image).pixels if isinstance(image, Image.Image) else read_image(fspath(image)).pixels
    return views.plain(with_channels(resize_and_crop(pixels, size=views.size), views.channels)[None])[0]


def _extract(
    encoder: LoadedEncoder,
    images: ImageSet,
    data: DataConfig,
    key: str,
    *,
    place: torch.device,
    precision: Precision,
    progress: Progress | None,
) -> Features:
    indices: list[Tensor] = []
    views, workers = plain_views(encoder), worker_count(data)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        done = 0
        for batch in plain_batches(images, views, device=place, batch_size=_BATCH, workers=workers):
            indices.append(batch.indices.cpu())
            yield batch.images, batch.labels
            done += len(batch.labels)
            if progress is not None:
                progress(f"representations of {images.name}", done / len(images))

    try:
        with report_lost_workers():
            x, labels = representations(
                encoder.module.to(place), batches(), device=place, autocast=AUTOCAST[precision], store="cpu"
            )
    finally:
        encoder.module.to("cpu")
    wrong = int((~torch.isfinite(x)).any(1).sum())
    if wrong:
        raise ValueError(f"encoder: expected finite representations, got NaN or inf for {wrong} of {len(x)} images")
    transparent = images.tally.transparent if isinstance(images, ImageFiles) else 0
    return Features(x, labels, torch.cat(indices), images.classes, key, reused=False, transparent=transparent)


def _read(path: Path, key: str, images: ImageSet) -> Features | None:
    """The cached representations of these images; None if there are none, and with a warning if they are damaged."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            parts = {name: opened.get_tensor(name) for name in ("representations", "labels", "indices")}
            classes, transparent = json.loads(metadata["classes"]), int(metadata["transparent"])
        if metadata["key"] != key or classes != list(images.classes):
            raise ValueError("it is of other images")
        _check(images, **parts)
        return Features(**parts, classes=images.classes, key=key, reused=True, transparent=transparent)
    except (SafetensorError, OSError, ValueError, KeyError, RecursionError) as error:
        logger.warning("%s: cannot be used and is made again (%s)", path, one_line(str(error), 200))
        return None


def _check(images: ImageSet, *, representations: Tensor, labels: Tensor, indices: Tensor) -> None:
    """Check that there is a finite row for each of the images, in order, except for unreadable files."""
    x, rows = representations, len(indices) if indices.ndim == 1 else 0
    if (
        [part.dtype for part in (x, labels, indices)] != [torch.float32, torch.int64, torch.int64]
        or x.ndim != 2
        or not len(x) == len(labels) == rows
        or not (0 < rows <= len(images) if isinstance(images, ImageFiles) else rows == len(images))
        or indices[0] < 0
        or indices[-1] >= len(images)
        or not bool((indices.diff() > 0).all())
        or not torch.equal(labels, images.labels[indices])
        or not bool(x.isfinite().all())
    ):
        raise ValueError(f"expected a finite row for each of the {len(images)} images, in order")


def _write(path: Path, found: Features) -> None:
    """Write representations in one step, so that no other process sees a part; warn if that fails."""
    temporary = path.with_name(f".writing-{uuid4().hex}")
    tensors = {name: getattr(found, name).contiguous() for name in ("representations", "labels", "indices")}
    metadata = {"key": found.key, "classes": json.dumps(found.classes), "transparent": str(found.transparent)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata=metadata)
        temporary.replace(path)
    except (SafetensorError, OSError) as error:
        logger.warning("%s: the representations cannot be kept (%s)", path, error)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
