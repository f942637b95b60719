"""Representations kept as safetensors under their content key; what is damaged is found out and made anew."""

import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ldreg.data import ImageFiles, ImageSet
from ldreg.text import printable

logger = logging.getLogger("ldreg")

VERSION = 2  # of what is stored and of how it was computed: another one makes every key another


@dataclass(frozen=True, eq=False)
class Stored:
    """What a file holds: representations float32 (N, D), labels and indices int64 (N,), and the classes' names.

    `transparent` is how many of the images, where they are files, have transparent pixels.
    """

    representations: Tensor
    labels: Tensor
    indices: Tensor
    classes: tuple[str, ...]
    transparent: int = 0


def location(cache: Path, key: str) -> Path:
    """Where representations of this key are kept below a cache folder."""
    return cache / "representations" / f"{key}.safetensors"


def read(path: Path, key: str, images: ImageSet) -> Stored | None:
    """What is kept at the path of these images; None where nothing is, or nothing whole, which is said."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("key") != key:
                raise ValueError("it belongs to another key")
            parts = {name: opened.get_tensor(name) for name in ("representations", "labels", "indices")}
            classes, transparent = json.loads(metadata["classes"]), int(metadata["transparent"])
        if classes != list(images.classes):
            raise ValueError("its classes are not those of the images")
        stored = _checked(Stored(**parts, classes=images.classes, transparent=transparent))
        _check_rows(stored, images)
        return stored
    except (SafetensorError, OSError, ValueError, KeyError, RecursionError) as error:
        reason = printable(" ".join(str(error).split()))[:200]
        logger.warning("%s: cannot be used and is made again (%s)", path, reason)
        return None


def write(path: Path, key: str, stored: Stored) -> None:
    """Keep representations, in one step, so that no other process ever sees a part.

    A cache that cannot be written costs time at the next evaluation, not this one, and is said.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
        os.close(handle)
        tensors = {
            "representations": stored.representations.contiguous(),
            "labels": stored.labels.contiguous(),
            "indices": stored.indices.contiguous(),
        }
        told = {"key": key, "classes": json.dumps(stored.classes), "transparent": str(stored.transparent)}
        save_file(tensors, temporary, metadata=told)
        Path(temporary).replace(path)
    except (SafetensorError, OSError) as error:
        logger.warning("%s: the representations cannot be kept (%s)", path, error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _checked(stored: Stored) -> Stored:
    x, labels, indices = stored.representations, stored.labels, stored.indices
    rows = x.shape[0] if x.ndim == 2 else -1
    if x.dtype != torch.float32 or labels.shape != (rows,) or indices.shape != (rows,):
        shapes = [tuple(part.shape) for part in (x, labels, indices)]
        raise ValueError(f"expected float32 (N, D) with N labels and indices, got {x.dtype} of shapes {shapes}")
    if {labels.dtype, indices.dtype} != {torch.int64}:
        raise ValueError(f"expected int64 labels and indices, got {labels.dtype} and {indices.dtype}")
    return stored


def _check_rows(stored: Stored, images: ImageSet) -> None:
    """Refuse rows that are not those of the images: in order, all of them but unreadable files, with their labels."""
    indices, rows = stored.indices, len(stored.indices)
    if rows > len(images) or (rows < len(images) and not isinstance(images, ImageFiles)) or not rows:
        raise ValueError(f"expected a row for each of the {len(images)} images, got {rows}")
    if indices[0] < 0 or indices[-1] >= len(images) or not bool((indices.diff() > 0).all()):
        raise ValueError(f"expected ascending indices of the {len(images)} images, got others")
    if not torch.equal(stored.labels, images.labels[indices]):
        raise ValueError("its labels are not those of the images")
    if not bool(stored.representations.isfinite().all()):
        raise ValueError("expected finite representations, got NaN or inf")
