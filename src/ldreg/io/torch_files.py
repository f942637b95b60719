"""Files of `torch.save`, read without running code in them and within bounds of memory and time."""

import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from ldreg.io.guard import LEGACY_TORCH, check_fits, check_unpacked, parse_errors

MAX_PICKLE = 1 << 28  # bytes of names and shapes; those of a thousand tensors take a quarter of a MB
OBJECT_BYTES = 64  # of memory that a byte of a pickle can become
MAX_PARTS = 10_000_000  # of a tuple, repeated parts counted each time
LEGACY_PICKLES = 5  # magic number, protocol, system, content, keys of the storages


def load_torch(path: Path) -> object:
    """Load the content of a file of `torch.save`, with tensors memory-mapped if possible; no code in it is run.

    Raises:
        ValueError: it holds objects other than tensors and plain data, is damaged, or would take too much memory.
        OSError: it cannot be read.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait forever
        raise ValueError("is not a regular file")
    with path.open("rb") as stream:
        legacy = stream.read(len(LEGACY_TORCH)) == LEGACY_TORCH
    mapped = False
    if legacy:
        with path.open("rb") as stream:
            for _ in range(LEGACY_PICKLES):
                with parse_errors("a torch file"):
                    parts = largest_tuple(stream)
                _check_parts(parts)
    else:
        mapped = _check_zipped(path)
    try:
        with parse_errors("a torch file"):
            content: object = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ValueError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):
            raise ValueError(
                "holds pickled objects other than tensors, refused because they can run code; save its tensors alone"
            ) from error
        raise
    return content


def _check_zipped(path: Path) -> bool:
    """Reject content out of bounds; return whether torch may map the file, as it reads compressed ones wrongly."""
    with parse_errors("a torch file"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(info.filename.rpartition("/")[2] == "constants.pkl" for info in members):
        raise ValueError("holds a program of TorchScript, refused because it is code; save its state dict instead")
    packed = sum(info.file_size for info in members if info.compress_type != zipfile.ZIP_STORED)
    check_unpacked(packed, packed=path.stat().st_size)
    for info in members:
        if info.filename.rpartition("/")[2] == "data.pkl":
            if info.file_size > MAX_PICKLE:
                raise ValueError(f"pickles {info.file_size} bytes besides its tensors, expected at most {MAX_PICKLE}")
            check_fits(OBJECT_BYTES * info.file_size)
            with parse_errors("a torch file"), zipfile.ZipFile(path) as archive, archive.open(info) as stream:
                parts = largest_tuple(stream)
            _check_parts(parts)
    return not packed


def _check_parts(parts: int) -> None:
    if parts > MAX_PARTS:
        raise ValueError(f"pickles a tuple of more than {MAX_PARTS} parts, which would take forever to read")


def largest_tuple(stream: IO[bytes]) -> int:
    """The number of parts of the largest tuple in a pickle, nested tuples counted by their parts; stops past the bound.

    A pickle can hold a tuple of the same tuple twice, of the same twice, …: it is short, and hashing it takes forever.
    This executes the pickle's operations with numbers in place of objects.

    >>> import io
    >>> largest_tuple(io.BytesIO(pickle.dumps(((1, 2, 3), [4, 5]))))
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
            parts = _popped(stack, operation)
            weight = 1 + sum(parts) if name.startswith("TUPLE") else 1
            most = max(most, weight)
            if most > MAX_PARTS:
                return most
            stack.extend([weight] * len(operation.stack_after))
    return most


def _popped(stack: list[int | None], operation: pickletools.OpcodeInfo) -> list[int]:
    """Pop the operands of an operation: all down to a mark if it uses one, and as many as it names."""
    before, popped = operation.stack_before, []
    if pickletools.markobject in before:
        while (top := stack.pop()) is not None:
            popped.append(top)
    for _ in range(before.index(pickletools.markobject) if pickletools.markobject in before else len(before)):
        popped.append(stack.pop() or 1)
    return popped
