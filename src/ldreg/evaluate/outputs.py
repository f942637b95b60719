"""Which files a command may write: none that it reads, none of a run's own, none twice."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ldreg.io import files
from ldreg.io.files import Name
from ldreg.train.folder import RunFolder


def check_outputs(*, inputs: Sequence[Name | None], outputs: Sequence[Name | None]) -> None:
    """Find out before the work that a result could not be written, or would replace an input or another result.

    Args:
        inputs: files and folders that are read; of a run's folder, and of a file in one, all that the run left counts.
        outputs: files to be written; None stands for none.

    Raises:
        ValueError: an output is an input, or comes twice.
        OSError: an output cannot be written.
    """
    read = [path for given in inputs if given is not None for path in _read(Path(given))]
    files.check_outputs(inputs=read, outputs=outputs)


def _read(path: Path) -> Iterator[Path]:
    """What must stay as it is: a file, and the files of the run that it, or the folder, belongs to."""
    if not path.is_dir():
        yield path
    folder = RunFolder(path if path.is_dir() else path.resolve().parent)
    if folder.config.is_file() or folder.encoder.is_file():
        yield from (folder.encoder, folder.card, folder.config, folder.metrics, folder.environment, folder.log)
        yield folder.checkpoints
