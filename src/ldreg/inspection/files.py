"""The files that `ldreg inspect` reads: embeddings, labels and a second set."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where it is used, so that help stays quick
    from ldreg.inspection.report import DimensionReport

_HINTED = 3  # arrays of a file that may be labels
_TABLES = (".csv", ".tsv", ".parquet")
_NAMELESS = (".npy", ".txt")  # hold one array or column, without a name


@dataclass(frozen=True)
class InspectedFiles:
    """What `ldreg inspect` reads: embeddings, labels and a second set, and the names of arrays or columns in them."""

    file: str
    labels: str | None
    compare: str | None
    key: str | None
    label_key: str | None
    compare_key: str | None
    compare_labels: str | None
    compare_label_key: str | None
    exclude: str | None
    include: str | None

    def check_outputs(self, *, json: str | None, html: str | None) -> None:
        """Refuse, before the work, to write where it cannot be, over what is read, and a page over what is none."""
        from ldreg.io.files import check_outputs, check_page_path

        read = [path for path in (self.file, self.labels, self.compare, self.compare_labels) if path is not None]
        check_outputs(inputs=read, outputs=[json, html])
        if html is not None:
            check_page_path(Path(html), option="--html")

    def read(self) -> tuple[Any, Any, Any, Any]:
        """Embeddings, labels, second embeddings and their labels, each None where there are none."""
        from ldreg.io.embeddings import load_embeddings
        from ldreg.io.labels import load_labels

        self._check_options()
        for path in (self.file, self.compare):
            if path is not None and Path(path).is_dir():
                advice = "of a run, ldreg evaluate dimension has what this has, and --representations FILE"
                raise IsADirectoryError(f"{path}: expected a file of embeddings, got a folder; {advice}")
        labels = self.labels or (None if self.label_key is None else self.file)
        excluded = _without(self.file, labels, self.label_key, _names(self.exclude))
        x = load_embeddings(
            self.file,
            key=self.key,
            exclude=_in(self.file, excluded, self.compare),
            include=_in(self.file, _names(self.include), self.compare),
        )
        names = None if labels is None else load_labels(labels, key=self.label_key, count=len(x))
        if self.compare is None:
            return x, names, None, None
        with _naming_second_options():
            second, others = self._read_second(excluded)
        return x, names, second, others

    def _read_second(self, excluded: list[str]) -> tuple[Any, Any]:
        """Second embeddings and their labels; of the columns that are no dimensions those named, and the first's."""
        from ldreg.io.embeddings import load_embeddings
        from ldreg.io.labels import load_labels

        compare = self.compare or ""
        labels = self.compare_labels or (None if self.compare_label_key is None else compare)
        key = self.compare_label_key
        if key is None and labels is not None and Path(labels).suffix.lower() not in _NAMELESS:
            key = self.label_key
        # A label column of the first file is none of the second's dimensions either, unless that has one of its own.
        others = _without(compare, labels, key, _names(self.exclude) if labels == compare else excluded)
        second = load_embeddings(
            compare,
            key=self.compare_key,
            exclude=_in(compare, others, self.file),
            include=_in(compare, _names(self.include), self.file),
        )
        return second, None if labels is None else load_labels(labels, key=key, count=len(second))

    def _check_options(self) -> None:
        """ValueError where an option is for a file that was not given."""
        if self.compare_key is not None and self.compare is None:
            raise ValueError(f"--compare-key {self.compare_key!r} was given without --compare")
        if self.compare is not None and (self.labels or self.label_key) is not None:
            return
        needed = "was given without --compare and labels of the first file"
        if self.compare_labels is not None:
            raise ValueError(f"--compare-labels {needed}")
        if self.compare_label_key is not None:
            raise ValueError(f"--compare-label-key {self.compare_label_key!r} {needed}")

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Name the file in an error about the argument that was read from it."""
        files = {"x": self.file, "compare": self.compare}
        try:
            yield
        except ValueError as error:
            argument, colon, rest = str(error).partition(": ")
            if not colon or files.get(argument) is None:
                raise
            rest = rest.replace("; try k=", "; try --k ")  # as the option is written
            raise ValueError(f"{files[argument]}: {rest}") from error

    def label_hint(self, points: int) -> str:
        """Which option takes labels that lie beside the embeddings; empty where labels were given or there are none."""
        from ldreg.io.labels import label_arrays

        names = [] if self.labels or self.label_key else label_arrays(self.file, points)
        options = " or ".join(f"--label-key {quote(name)}" for name in names[:_HINTED])
        return f"{self.file} holds what may be labels: {options} measures LID per class" if names else ""

    def with_titles(self, report: "DimensionReport") -> "DimensionReport":
        """The report with the names of the files that its sets come from."""
        title, other = self._titles()
        report, found = replace(report, title=title), report.comparison
        if found is None:
            return report
        return replace(report, comparison=replace(found, other=replace(found.other, title=other)))

    def _titles(self) -> tuple[str, str]:
        """What the two sets are called: by their files' names, or by as much more as tells them apart."""
        first, second = Path(self.file), Path(self.compare or "")
        if self.compare is None or first.name != second.name:
            return first.name, second.name
        if first != second:
            return self.file, self.compare
        one, two = (first.name if key is None else f"{first.name}, {key}" for key in (self.key, self.compare_key))
        return one, two if one != two else f"{two} again"


def _is_table(file: str) -> bool:
    return Path(file).suffix.lower() in _TABLES


def _names(option: str | None) -> list[str]:
    return [] if option is None else [name.strip() for name in option.split(",")]


def _in(file: str, names: list[str], other: str | None) -> list[str]:
    """The columns named that are for a file: all but those that only the other of two has."""
    from ldreg.io.embeddings import table_columns

    if not names or other is None:
        return names
    own, others = table_columns(file), table_columns(other)
    return [name for name in names if name in own or name not in others]


def _without(file: str, labels: str | None, key: str | None, excluded: list[str]) -> list[str]:
    """The columns of a table that are no dimensions: those excluded, and the labels where they lie in it."""
    if labels != file or key is None or key in excluded or not _is_table(file):
        return excluded
    return [*excluded, key]


@contextmanager
def _naming_second_options() -> Iterator[None]:
    """Say the options that are for the second file where an error names those for the first."""
    try:
        yield
    except ValueError as error:
        message = str(error).replace(" --key ", " --compare-key ").replace(" --label-key ", " --compare-label-key ")
        raise ValueError(message) from error
