"""Files of `torch.save`, read without running what is in them and without becoming more than they are."""

import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from ldreg.io.formats import LEGACY_TORCH, parsing
from ldreg.io.memory import check_fits, check_unpacked

MOST_PICKLED = 1 << 28  # bytes of names and shapes; those of a thousand tensors take a quarter of a MB
OBJECT = 64  # bytes of memory that a byte of a pickle can become
MOST_PARTS = 10_000_000  # of a tuple, each counted as often as it is in it
LEGACY_PICKLES = 5  # magic number, protocol, system, content, keys of the storages


def load_torch(path: Path) -> object:
    """What a file of `torch.save` holds, tensors memory-mapped where torch can; no code in it is run.

    Raises:
        ValueError: it holds other objects than tensors and plain data, is damaged, or would become too much.
        OSError: it cannot be read.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait forever
        raise ValueError("is not a regular file")
    with path.open("rb") as stream:
        legacy = stream.read(len(LEGACY_TORCH)) == LEGACY_TORCH
    mapped = _check_legacy(path) if legacy else _check_zipped(path)
    try:
        with parsing("a torch file"):
            content: object = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ValueError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):
            raise ValueError(
                "holds pickled objects other than tensors, refused because they can run code; save its tensors alone"
            ) from error
        raise
    return content


def _check_legacy(path: Path) -> bool:
    """Refuse what would take all memory or time; False, as torch cannot map such a file."""
    with path.open("rb") as stream:
        for _ in range(LEGACY_PICKLES):
            _check_pickle(stream)
    return False


def _check_zipped(path: Path) -> bool:
    """Refuse what would take all memory or time; whether torch may map the file: it reads compressed ones wrongly."""
    with parsing("a torch file"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(info.filename.rpartition("/")[2] == "constants.pkl" for info in members):
        raise ValueError("holds a program of TorchScript, refused because it is code; save its state dict instead")
    packed = sum(info.file_size for info in members if info.compress_type != zipfile.ZIP_STORED)
    check_unpacked(packed, packed=path.stat().st_size)
    for info in members:
        if info.filename.rpartition("/")[2] == "data.pkl":
            _check_member(path, info)
    return not packed


def _check_member(path: Path, info: zipfile.ZipInfo) -> None:
    if info.file_size > MOST_PICKLED:
        raise ValueError(f"pickles {info.file_size} bytes besides its tensors, expected at most {MOST_PICKLED}")
    check_fits(OBJECT * info.file_size)
    with parsing("a torch file"), zipfile.ZipFile(path) as archive, archive.open(info) as stream:
        weight = heaviest(stream)
    _check_weight(weight)


def _check_pickle(stream: IO[bytes]) -> None:
    with parsing("a torch file"):
        weight = heaviest(stream)
    _check_weight(weight)


def _check_weight(weight: int) -> None:
    if weight > MOST_PARTS:
        raise ValueError(f"pickles a tuple of more than {MOST_PARTS} parts, which would take forever to read")


def heaviest(stream: IO[bytes]) -> int:
    """The number of parts of the largest tuple in a pickle, tuples in it by their own; the search ends past the bound.

    A pickle can hold a tuple of the same tuple twice, of the same twice, …: it is short, and hashing it takes forever.
    This goes through the pickle as the machine that reads it does, with numbers in the place of objects.

    >>> import io
    >>> heaviest(io.BytesIO(pickle.dumps(((1, 2, 3), [4, 5]))))
    6
    """
    stack: list[int | None] = []  # None is a mark
    memo: dict[Any, int | None] = {}
    most = 0
    for operation, argument, _ in pickletools.genops(stream):
        name = operation.name
        if name == "MARK":
            stack.append(None)
        elif "GET" in name:
            stack.append(memo.get(argument, 1))
        elif name == "MEMOIZE" or "PUT" in name:
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            parts = _taken(stack, operation)
            weight = 1 + sum(parts) if name.startswith("TUPLE") else 1
            most = max(most, weight)
            if most > MOST_PARTS:
                return most
            stack.extend([weight] * len(operation.stack_after))
    return most


def _taken(stack: list[int | None], operation: pickletools.OpcodeInfo) -> list[int]:
    """What an operation takes off the stack: all down to a mark where it is about that, else as many as it says."""
    before, taken = operation.stack_before, []
    if pickletools.markobject in before:
        while (top := stack.pop()) is not None:
            taken.append(top)
    for _ in range(before.index(pickletools.markobject) if pickletools.markobject in before else len(before)):
        taken.append(stack.pop() or 1)
    return taken
