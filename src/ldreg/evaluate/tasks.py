"""What every kind of evaluation is given, and what it gives back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ldreg.data import DataConfig
from ldreg.evaluate.compute import Compute
from ldreg.evaluate.features import Progress
from ldreg.evaluate.source import Source


@dataclass(frozen=True)
class Task:
    """What every kind is given beside its own options."""

    source: Source
    compute: Compute
    out: Path
    cache: Path | None = None
    how: DataConfig | None = None  # how images of other sets are read
    progress: Progress | None = None
    command: str = ""

    @property
    def data(self) -> DataConfig:
        """The images to judge by.

        Raises:
            ValueError: nothing says which.
        """
        if self.source.data is None:
            raise ValueError(
                f"--data.name: expected a dataset, as {self.source.path} is no run folder, got none; "
                "images of your own are --data.name folder --data.path FOLDER"
            )
        return self.source.data


@dataclass(frozen=True)
class Outcome:
    """What came of an evaluation.

    Args:
        label: what kind of result it is; settings that differ from the usual ones are added to the file's name.
        results: numbers by name.
        text: to be printed.
        minutes: it took, with parts before an interruption.
        details: more for the record, such as the accuracy after every epoch.
        writers: write files to paths, by the options that name these.
    """

    label: str
    results: dict[str, Any]
    text: str
    minutes: float
    details: dict[str, Any] = field(default_factory=dict)
    writers: Mapping[str, Callable[[str], None]] = field(default_factory=dict)
