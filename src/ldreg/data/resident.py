"""Files decoded once into one array, which is kept in the cache."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ldreg.data.config import DataConfig, available_cores, cache_folder
from ldreg.data.images import ImageFiles, ImageSet, ResidentImages
from ldreg.data.locks import filling
from ldreg.data.pixels import image_size
from ldreg.data.unreadable import Failure, UnreadableImageError, shown

logger = logging.getLogger("ldreg")

PROBED = 64
VERSION = 2  # of how files become pixels: another one makes every fingerprint another


class DifferentSizesError(ValueError):
    """Images that cannot be one array."""


def held(files: ImageFiles, config: DataConfig) -> ImageSet:
    """The files as one array where `config.resident` asks for it or they fit, else the files with their size.

    Raises:
        ValueError: where an array is asked for and the images differ in size or are to be decoded on the GPU, or too
            many are unreadable.
    """
    files.size = common_side(files)
    if config.resident == "no":
        return files
    try:
        if files.size is None:
            raise DifferentSizesError(f"resident: expected square images of one size in {files.name}, got several")
        if config.resident == "auto" and len(files) * 3 * files.size**2 > config.resident_limit * 1e9:
            return files
        if config.decode == "gpu":
            raise ValueError(
                f"decode: expected auto or cpu where the images are held in memory (or resident: no), got gpu for "
                f"{files.name} with resident: {config.resident}"
            )
        return decode_all(files, cache=cache_folder(config), side=files.size)
    except DifferentSizesError:
        if config.resident == "yes":
            raise
        files.size = None
        return files


def common_side(files: ImageFiles) -> int | None:
    """The side that the images have where they are squares of one size, judged by a few spread over the set."""
    sizes = set()
    for index in range(0, len(files), -(-len(files) // PROBED)):
        try:
            sizes.add(image_size(files.path(index)))
        except UnreadableImageError:
            continue  # counted when it is decoded
    height, width = sizes.pop() if len(sizes) == 1 else (0, 1)
    return height if height == width else None


def decode_all(files: ImageFiles, *, cache: Path, side: int) -> ResidentImages:
    """All readable files as one array; from the cache where the files are those decoded before.

    Raises:
        DifferentSizesError: where an image is not a square of this side.
        ValueError: where too many are unreadable.
    """
    store = cache / "decoded" / f"{files.name}-{fingerprint(files)}.safetensors"
    with filling(store):
        stored = _read(store) if store.exists() else None
        images, failures, transparent = stored or decode_into_memory(files, side=side)
        files.tally.add(failures)
        readable = torch.ones(len(files), dtype=torch.bool)
        readable[[failure.index for failure in failures]] = False
        if stored is None:
            images = images[readable] if failures else images
            _write(store, images, failures, transparent)
    files.tally.passed(len(images), transparent=transparent)
    return ResidentImages(
        images,
        files.labels[readable],
        files.classes,
        files.name,
        unreadable=files.tally.listed,
        transparent=(transparent, len(images)),
    )


def decode_into_memory(files: ImageFiles, *, side: int) -> tuple[Tensor, list[Failure], int]:
    """Every file decoded, uint8 (N, 3, side, side), failures, whose rows are undefined, and how many are transparent.

    Raises:
        DifferentSizesError: where an image is not a square of this side.
    """
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)

    def decode_some(indices: Iterable[int]) -> tuple[list[Failure], int]:
        failures, transparent = [], 0
        for index in indices:
            try:
                image, odd = files.read(index)
            except UnreadableImageError as error:
                failures.append(Failure(index, files.path(index), str(error)))
                continue
            if image.shape != images.shape[1:]:
                got = f"{image.shape[1]}x{image.shape[2]} in {shown(files.path(index))}"
                raise DifferentSizesError(f"resident: expected square images of side {side}, got {got}")
            images[index] = image
            transparent += odd
        return failures, transparent

    # Decoding a small image takes less time than threads lose to one another over the interpreter's lock.
    threads = available_cores() if side > 64 else 1
    parts = [range(start, min(start + 256, len(files))) for start in range(0, len(files), 256)]
    failures: list[Failure] = []
    transparent = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for found, odd in pool.map(decode_some, parts):
                failures += found
                transparent += odd
                if files.tally.exceeds(len(failures)):
                    break
        finally:
            pool.shutdown(cancel_futures=True)
    return images, failures, transparent


def fingerprint(files: ImageFiles) -> str:
    """Hex digits that change with any file's name, size or time of change, and with how files are decoded."""
    digest = hashlib.sha256(f"{VERSION}\n".encode())
    for index in range(len(files)):
        path = files.path(index)
        digest.update(f"{path}\0{_state(path)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:24]


def _state(path: str) -> str:
    try:
        state = os.stat(path)  # noqa: PTH116 - a Path for each of many files costs more than the call
    except OSError as error:
        return f"{error.strerror}"  # a dangling link: unreadable, and counted as such when it is decoded
    return f"{state.st_size}\0{state.st_mtime_ns}"


def _read(store: Path) -> tuple[Tensor, list[Failure], int] | None:
    try:
        with safe_open(store, framework="pt") as opened:
            told = opened.metadata()
            failures = [Failure(*failure) for failure in json.loads(told["failures"])]
            return opened.get_tensor("images"), failures, int(told["transparent"])
    except (SafetensorError, OSError) as error:
        logger.warning("%s: cannot be read and is made again (%s)", store, error)
        return None


def _write(store: Path, images: Tensor, failures: list[Failure], transparent: int) -> None:
    """Keep the decoded images; a cache that cannot be written costs time at the next start, not this run."""
    temporary = None
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=store.parent)
        os.close(handle)
        told = {"failures": json.dumps([astuple(failure) for failure in failures]), "transparent": str(transparent)}
        save_file({"images": images}, temporary, metadata=told)
        Path(temporary).replace(store)
    except (SafetensorError, OSError) as error:
        logger.warning("%s: the decoded images cannot be kept (%s)", store, error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
