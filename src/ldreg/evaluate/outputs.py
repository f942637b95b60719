"""Check which files a command may write: none that it reads, none of a run, none twice."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ldreg.io import files
from ldreg.io.files import Name
from ldreg.train.folder import RunFolder


def check_outputs(*, inputs: Sequence[Name | None], outputs: Sequence[Name | None]) -> None:
    """Check before the work that every output can be written and replaces no input, no file of a run and no other.

    Args:
        inputs: files and folders that are read; all files of a run count if its folder or one of its files is read.
        outputs: files to be written; None stands for none.

    Raises:
        ValueError: an output is an input, or comes twice.
        OSError: an output cannot be written.
    """
    read = [path for given in inputs if given is not None for path in _files_read(Path(given))]
    files.check_outputs(inputs=read, outputs=outputs)


def _files_read(path: Path) -> Iterator[Path]:
    """A file, and the files of the run that it belongs to."""
    if not path.is_dir():
        yield path
    folder = RunFolder(path if path.is_dir() else path.resolve().parent)
    if folder.config.is_file() or folder.encoder.is_file():
        yield from (folder.encoder, folder.card, folder.config, folder.metrics, folder.environment, folder.log)
        yield folder.checkpoints
