"""Image files decoded once into one array, which is kept in the cache."""

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
from ldreg.data.decoding import UnreadableImageError, image_size
from ldreg.data.images import Failure, ImageFiles, ImageSet, ResidentImages
from ldreg.io.locks import filling
from ldreg.text import quoted_if_odd

logger = logging.getLogger("ldreg")

SAMPLED = 64  # files that are looked at for their size
VERSION = 2  # of decoding; part of every fingerprint

Stored = tuple[Tensor, list[Failure], int]
"""Decoded images, failures, and the number of transparent images."""


class DifferentSizesError(ValueError):
    """Images of different sizes, which are no single array."""


def resident_or_files(files: ImageFiles, config: DataConfig) -> ImageSet:
    """The files as one array if `config.resident` asks for it or they fit, else the files with their size.

    Raises:
        ValueError: an array is asked for and the images differ in size or are to be decoded on the GPU, or too many
            are unreadable.
    """
    files.size = _common_side(files)
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
        return _decode_all(files, cache=cache_folder(config), side=files.size)
    except DifferentSizesError:
        if config.resident == "yes":
            raise
        files.size = None
        return files


def _common_side(files: ImageFiles) -> int | None:
    """The side of the images if they are squares of one size, judged by a few spread over the set."""
    sizes = set()
    for index in range(0, len(files), -(-len(files) // SAMPLED)):
        try:
            sizes.add(image_size(files.path(index)))
        except UnreadableImageError:
            continue  # counted when it is decoded
    height, width = sizes.pop() if len(sizes) == 1 else (0, 1)
    return height if height == width else None


def _decode_all(files: ImageFiles, *, cache: Path, side: int) -> ResidentImages:
    """All readable files as one array, from the cache if the same files have been decoded before."""
    store = cache / "decoded" / f"{files.name}-{fingerprint(files)}.safetensors"
    with filling(store):
        stored = _read(store) if store.exists() else None
        images, failures, transparent = stored or decode_into_memory(files, side=side)
        files.tally.add(failures)
        readable = torch.ones(len(files), dtype=torch.bool)
        readable[[failure.index for failure in failures]] = False
        if stored is None:
            images = images[readable] if failures else images
            _write(store, (images, failures, transparent))
    files.tally.finish_pass(len(images), transparent=transparent)
    return ResidentImages(
        images,
        files.labels[readable],
        files.classes,
        files.name,
        unreadable=files.tally.listed,
        transparent=(transparent, len(images)),
    )


def decode_into_memory(files: ImageFiles, *, side: int) -> Stored:
    """Decode every file to uint8 (N, 3, side, side); rows of failures are undefined.

    Raises:
        DifferentSizesError: an image is not a square of this side.
    """
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)

    def decode_some(indices: Iterable[int]) -> tuple[list[Failure], int]:
        failures, transparent = [], 0
        for index in indices:
            try:
                image, is_transparent = files.read(index)
            except UnreadableImageError as error:
                failures.append(Failure(index, files.path(index), str(error)))
                continue
            if image.shape != images.shape[1:]:
                got = f"{image.shape[1]}x{image.shape[2]} in {quoted_if_odd(files.path(index))}"
                raise DifferentSizesError(f"resident: expected square images of side {side}, got {got}")
            images[index] = image
            transparent += is_transparent
        return failures, transparent

    # Decoding a small image takes less time than threads lose to the interpreter's lock.
    threads = available_cores() if side > 64 else 1
    parts = [range(start, min(start + 256, len(files))) for start in range(0, len(files), 256)]
    failures: list[Failure] = []
    transparent = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for found, some_transparent in pool.map(decode_some, parts):
                failures += found
                transparent += some_transparent
                if files.tally.exceeds(len(failures)):
                    break
        finally:
            pool.shutdown(cancel_futures=True)
    return images, failures, transparent


def fingerprint(files: ImageFiles) -> str:
    """Hex digits that change with any file's name, size or modification time, and with how files are decoded."""
    digest = hashlib.sha256(f"{VERSION}\n".encode())
    for index in range(len(files)):
        path = files.path(index)
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path for each of many files costs more than the call
            state = f"{status.st_size}\0{status.st_mtime_ns}"
        except OSError as error:
            state = f"{error.strerror}"  # a dangling link: counted as unreadable when it is decoded
        digest.update(f"{path}\0{state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:24]


def _read(store: Path) -> Stored | None:
    try:
        with safe_open(store, framework="pt") as file:
            notes = file.metadata()
            failures = [Failure(*failure) for failure in json.loads(notes["failures"])]
            return file.get_tensor("images"), failures, int(notes["transparent"])
    except (SafetensorError, OSError) as error:
        logger.warning("%s: cannot be read and is made again (%s)", store, error)
        return None


def _write(store: Path, stored: Stored) -> None:
    """Keep the decoded images; a cache that cannot be written costs time at the next start, but not this run."""
    images, failures, transparent = stored
    temporary = None
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=store.parent)
        os.close(handle)
        notes = {"failures": json.dumps([astuple(failure) for failure in failures]), "transparent": str(transparent)}
        save_file({"images": images}, temporary, metadata=notes)
        Path(temporary).replace(store)
    except (SafetensorError, OSError) as error:
        logger.warning("%s: the decoded images cannot be kept (%s)", store, error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
