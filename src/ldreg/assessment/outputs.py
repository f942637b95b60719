"""Which files a command may write: none that it reads, none of a run's own, none twice."""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

from ldreg.reporting.files import check_writable, real_path
from ldreg.training.folder import RunFolder

Name = str | PathLike[str]


def check_outputs(*, inputs: Sequence[Name | None], outputs: Sequence[Name | None]) -> None:
    """Find out before the work that a result could not be written, or would replace an input or another result.

    Args:
        inputs: files and folders that are read; of a run's folder, and of a file in one, all that the run left counts.
        outputs: files to be written; None stands for none.

    Raises:
        ValueError: an output is an input, or comes twice.
        OSError: an output cannot be written.

    >>> check_outputs(inputs=["a.pt"], outputs=[None, "a.pt"])
    Traceback (most recent call last):
    ValueError: cannot write 'a.pt': it is an input
    """
    read = {real_path(path) for given in inputs if given is not None for path in _read(Path(given))}
    written: set[Path] = set()
    for name in outputs:
        if name is None:
            continue
        target = real_path(name)
        if not read.isdisjoint((target, *target.parents)):
            raise ValueError(f"cannot write {str(name)!r}: it is an input")
        if target in written:
            raise ValueError(f"cannot write {str(name)!r}: another output has the same name")
        check_writable(name)
        written.add(target)


def _read(path: Path) -> Iterator[Path]:
    """What must stay as it is: a file, and the files of the run that it, or the folder, belongs to."""
    if not path.is_dir():
        yield path
    folder = RunFolder(path if path.is_dir() else path.resolve().parent)
    if folder.config.is_file() or folder.encoder.is_file():
        yield from (folder.encoder, folder.card, folder.config, folder.metrics, folder.environment, folder.log)
        yield folder.checkpoints
