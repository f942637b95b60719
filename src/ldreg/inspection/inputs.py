"""What is inspected: the files of `ldreg inspect`, and the checked arguments of `ldreg.inspect`."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NamedTuple

import numpy
import torch
from torch import Tensor

from ldreg.dimension.estimators import Convention, Estimator, check_options
from ldreg.dimension.neighbors import as_matrix, as_whole, no_matrix
from ldreg.distributed import local_rank
from ldreg.inspection.images import ShownImages, find_images
from ldreg.inspection.points import GRAPHS, TABLES, check_replaceable, check_suffix
from ldreg.inspection.report import DimensionReport
from ldreg.io.embeddings import load_embeddings, table_columns
from ldreg.io.files import check_outputs, check_page_path
from ldreg.io.labels import label_arrays, load_labels, load_names, name_array
from ldreg.io.shards import Shards, is_shards, local_files, open_shards
from ldreg.io.tables import other_columns, word_columns
from ldreg.text import listed, percent

_WIDE = 4  # times as many columns as rows: rows and columns may be exchanged
_DOMINANT, _FEW_COLUMNS = 0.9, 4  # share of the variance; columns: of fewer, one may well have so much
_HINTED = 3  # arrays of a file that may be labels
_TABLES = (".csv", ".tsv", ".parquet")
_MISSING = ("None", "nan", "<NA>", "NaT")  # how values that are none are written
_NAMELESS = (".npy", ".txt")  # hold one array or column, without a name


class EmbeddingFile(NamedTuple):
    """A file of embeddings, the files of what belongs to its points, and which arrays or columns of them to take."""

    path: str
    labels: str | None = None
    key: str | None = None
    label_key: str | None = None
    names: str | None = None
    name_key: str | None = None
    images: str | None = None
    image_key: str | None = None

    @property
    def label_file(self) -> str | None:
        """The file that the labels are read from."""
        return self.labels or (self.path if self.label_key is not None else None)

    @property
    def sharded(self) -> bool:
        """Whether the embeddings are in shards."""
        return is_shards(self.path)


class InspectedFiles(NamedTuple):
    """The files that `ldreg inspect` reads, and which columns of tables are dimensions."""

    first: EmbeddingFile
    second: EmbeddingFile | None = None
    exclude: str | None = None
    include: str | None = None
    relation: Literal["compare", "reference"] = "compare"  # of the second to the first
    skip_nonfinite: bool = False  # so that empty cells of tables are NaN, and no error
    views: EmbeddingFile | None = None  # other views of the rows of the first

    def check_outputs(self, *, json: str | None, html: str | None, points: str | None, neighbors: str | None) -> None:
        """Check that outputs can be written and replace no input; --html may replace only an earlier page."""
        sets = [one for one in (self.first, self.second, self.views) if one is not None]
        files = [path for one in sets for path in (one.labels, one.names)]
        images = self.first.images
        files += [images] if images is not None and not Path(images).is_dir() else []
        files += [path for one in sets for path in (local_files(one.path) if one.sharded else [one.path])]
        check_targets(files, json=json, html=html, points=points, neighbors=neighbors)

    def state(self, sample: int | None, *outputs: str | None) -> str | None:
        """Where a measurement of shards is kept while it goes on: beside the first output, if there is one."""
        sharded = self.first.sharded or (self.second is not None and self.second.sharded)
        files = [path for path in outputs if path is not None and (Path(path).is_file() or not Path(path).exists())]
        output = next(iter(files), None)  # not beside a device
        return f"{output}.partial" if sharded and sample is not None and output is not None else None

    def name_key(self, points: int) -> str | None:
        """The array or column with the names of the points: the one given, or one of words beside the embeddings."""
        one = self.first
        if one.sharded:  # which have the names of their own columns
            return one.name_key
        exclude = [*_names(self.exclude), *filter(None, [one.label_key])]
        return one.name_key if one.names or one.name_key else name_array(one.path, points, exclude)

    def names(self, points: int) -> list[str] | None:
        """The names of the points of the first file, or None."""
        key, file = self.name_key(points), self.first.names
        if file is None and (key is None or self.first.sharded):
            return None
        return load_names(file or self.first.path, key=key, count=points)

    def images(self, points: int, names: Sequence[str] | None, outputs: Iterable[str | None]) -> ShownImages | None:
        """The image files of the points of the first file, or None; no output may replace one of them."""
        one = self.first
        if one.sharded and one.image_key is not None and (one.images is None or Path(one.images).is_dir()):
            raise ValueError(f"--image-key: expected one file, got shards {one.path!r}; --images takes a file of paths")
        exclude = [*_names(self.exclude), *filter(None, [one.label_key])]
        file = None if one.sharded else one.path
        shown = find_images(file, points, images=one.images, key=one.image_key, exclude=exclude, names=names)
        written = {Path(path).name: path for path in outputs if path is not None}
        check_outputs(
            inputs=[path for path in (shown.paths if shown else ()) if path and path.name in written],
            outputs=written.values(),
        )
        return shown

    def columns(self) -> dict[str, list[Any]]:
        """The columns of the first file that are no dimensions, by name, if it is a table; shards have none."""
        if self.first.sharded:
            return {}
        excluded = _columns_for(self.first, _no_dimensions(self.first, _names(self.exclude)), self.second)
        return other_columns(
            Path(self.first.path), excluded, _columns_for(self.first, _names(self.include), self.second)
        )

    def read(self) -> tuple[Any, Any, Any, Any]:
        """Embeddings, labels, second embeddings and their labels, each None where there are none."""
        first, second = self.first, self.second
        excluded = _no_dimensions(first, _names(self.exclude))
        x, labels = self._read(first, excluded, second)
        if second is None:
            return x, labels, None, None
        if second.label_key is None and second.labels and Path(second.labels).suffix.lower() not in _NAMELESS:
            second = second._replace(label_key=first.label_key)
        self._check_order()
        # The first file's label column is no dimension of the second either, unless that has a label column of its own.
        others = _no_dimensions(second, _names(self.exclude) if second.label_file == second.path else excluded)
        try:
            return x, labels, *self._read(second, others, first)
        except ValueError as error:
            message = str(error).replace(" --key ", f" --{self.relation}-key ")
            message = message.replace(" --label-key ", " --compare-label-key ")
            raise ValueError(message) from error

    def _check_order(self) -> None:
        """Raise ValueError if a reference has the columns of the first file in another order."""
        if self.relation == "compare" or self.second is None:
            return
        own, other = self._dimensions(self.first), self._dimensions(self.second)
        if own != other and sorted(own) == sorted(other):
            place = next(place for place, name in enumerate(own) if name != other[place])
            got = f"got {other[place]!r} in place of {own[place]!r}"
            raise ValueError(f"{self.second.path}: expected its columns in the order of {self.first.path}, {got}")

    def _dimensions(self, one: EmbeddingFile) -> list[str]:
        """The columns of a table that are dimensions; none of another file."""
        path = Path(one.path)
        if path.suffix.lower() not in _TABLES or one.sharded:
            return []
        left_out = [*_no_dimensions(one, _names(self.exclude)), *word_columns(path)]
        included = _names(self.include)
        return [name for name in table_columns(path) if name in included or name not in left_out]

    def read_views(self) -> Any:
        """The embeddings of the other views, None without them."""
        if self.views is None:
            return None
        try:
            return self._read(self.views, _no_dimensions(self.first, _names(self.exclude)), self.first)[0]
        except ValueError as error:
            raise ValueError(str(error).replace(" --key ", " --views-key ")) from error

    def _read(self, one: EmbeddingFile, excluded: list[str], other: EmbeddingFile | None) -> tuple[Any, Any]:
        """Embeddings and labels of one file; those of shards come with them."""
        if one.sharded:
            of_labels, of_names = (None if one.labels else one.label_key), (None if one.names else one.name_key)
            shards = open_shards(
                one.path, key=one.key, label_key=of_labels, name_key=of_names,
                exclude=_names(self.exclude), include=_names(self.include), empty_as_nan=self.skip_nonfinite,
            )  # fmt: skip
            return shards, load_labels(one.labels, key=one.label_key, count=shards.rows) if one.labels else None
        x = load_embeddings(
            one.path,
            key=one.key,
            exclude=_columns_for(one, excluded, other),
            include=_columns_for(one, _names(self.include), other),
            empty_as_nan=self.skip_nonfinite,
        )
        labels = one.label_file
        return x, None if labels is None else load_labels(labels, key=one.label_key, count=len(x))

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Name the file in an error about the argument that was read from it."""
        other = self.second and self.second.path
        views = self.views and self.views.path
        files = {"x": self.first.path, "compare": other, "reference": other, "views": views}
        try:
            yield
        except ValueError as error:
            argument, colon, rest = str(error).partition(": ")
            if not colon or files.get(argument) is None:
                raise
            # As the options are written.
            rest = rest.replace("; try k=", "; try --k ").replace("skip_nonfinite=True", "--skip-nonfinite")
            raise ValueError(f"{files[argument]}: {rest}") from error

    def label_hint(self, points: int) -> str:
        """The option for labels in the file of the embeddings; empty if labels were given or there are none."""
        names = [] if self.first.label_file or self.first.sharded else label_arrays(self.first.path, points)
        options = " or ".join(f"--label-key {quote(name)}" for name in names[:_HINTED])
        return f"{self.first.path} holds what may be labels: {options} measures LID per class" if names else ""

    def scale_hint(self, x: Tensor) -> str:
        """The column of a table that holds most of the variance, beside which no other counts; empty if none does."""
        path = Path(self.first.path)
        if path.suffix.lower() not in _TABLES or self.first.sharded:
            return ""
        names = self._dimensions(self.first)
        variances = x.double().var(0)
        largest = int(variances.argmax())
        share = (variances[largest] / variances.sum()).item()
        if len(names) != len(variances) or len(names) < _FEW_COLUMNS or not share > _DOMINANT:
            return ""
        name = names[largest]
        advice = f"if it is no dimension, --exclude {quote(name)}"
        return f"{path}: column {name!r} has {percent(share)} of the variance; {advice}"

    def name_hint(self, points: int, shown: ShownImages | None = None) -> str:
        """What names the points though no option asks for it, and which columns of words are no dimensions."""
        one, path = self.first, Path(self.first.path)
        if one.sharded:
            return ""
        named = None if one.names or one.name_key else self.name_key(points)
        known = [one.label_key, one.name_key, named, shown and shown.key, *_names(self.exclude)]
        left_out = [name for name in word_columns(path, beside_lists=False) if name not in known]
        said = [f"{path}: points are named by {named!r}"] if named is not None else []
        said += [f"{path}: left out {listed(left_out)}, which hold words"] if left_out else []
        return "\n".join(said)

    def with_titles(self, report: DimensionReport) -> DimensionReport:
        """The report with the names of its files, each as long as needed to tell them apart."""
        first, second, found = self.first, self.second, report.comparison
        titles = [Path(one.path).name for one in (first, second) if one]
        if second is None or found is None:
            return replace(report, title=titles[0])
        if titles[0] == titles[1] and Path(first.path) != Path(second.path):
            titles = [first.path, second.path]
        elif titles[0] == titles[1]:
            titles = [titles[0] if one.key is None else f"{titles[0]}, {one.key}" for one in (first, second)]
            titles[1] += " again" if titles[0] == titles[1] else ""
        return replace(report, title=titles[0], comparison=replace(found, other=replace(found.other, title=titles[1])))


def check_targets(
    inputs: Iterable[str | None], *, json: str | None, html: str | None, points: str | None, neighbors: str | None
) -> None:
    """Check that outputs can be written and replace no input; --html may replace only an earlier page."""
    for path, known, option in ((points, TABLES, "--points"), (neighbors, GRAPHS, "--neighbors")):
        if path is not None:
            check_suffix(path, known, option)
            check_replaceable(path, option)
    check_outputs(inputs=filter(None, inputs), outputs=[json, html, points, neighbors])
    if html is not None:
        check_page_path(Path(html), option="--html")


def _names(option: str | None) -> list[str]:
    return [] if option is None else [name.strip() for name in option.split(",")]


def _columns_for(one: EmbeddingFile, names: list[str], other: EmbeddingFile | None) -> list[str]:
    """The named columns that are for a file: all but those that only the other file has."""
    if not names or other is None or one.sharded or other.sharded:
        return names
    own, others = table_columns(one.path), table_columns(other.path)
    return [name for name in names if name in own or name not in others]


def _no_dimensions(one: EmbeddingFile, excluded: list[str]) -> list[str]:
    """The columns of a table that are no dimensions: the excluded ones, labels, names and images."""
    if Path(one.path).suffix.lower() not in _TABLES or one.sharded:
        return excluded
    labels = [one.label_key] if one.label_key and one.label_file == one.path else []
    names = [one.name_key] if one.name_key and one.names is None else []
    images = [one.image_key] if one.image_key and (one.images is None or Path(one.images).is_dir()) else []
    return [*excluded, *(name for name in [*labels, *names, *images] if name not in excluded)]


def check_settings(
    k: int,
    *,
    estimator: Estimator = "mom",
    convention: Convention = "paper",
    sample: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> None:
    """Raise ValueError for settings of `inspect` that are wrong for any data."""
    check_options(k, estimator, convention)
    if as_whole(k) is None:
        raise ValueError(f"k: expected an integer, got {k!r}")
    number, start = as_whole(sample), as_whole(seed)
    if sample is not None and (number is None or number < 1):
        raise ValueError(f"sample: expected at least 1, got {sample!r}")
    if start is None or not -(2**63) <= start < 2**64:  # what torch can seed a generator with
        raise ValueError(f"seed: expected an integer from -2^63 to 2^64 - 1, got {seed!r}")
    if device is None or str(device) == "auto":
        return
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu or cuda, got {str(device)!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: torch finds no CUDA device for {str(device)!r}; expected cpu or auto")


def as_embeddings(value: Any, name: str) -> Tensor:
    """A floating tensor (N, D); a tensor is not copied. ValueError otherwise."""
    if isinstance(value, str | PathLike):
        raise ValueError(f"{name}: expected an array (N, D), got {value!r}; files are for the command `ldreg inspect`")
    if len(shape := getattr(value, "shape", ())) > 2:
        raise no_matrix(shape, name)
    with warnings.catch_warnings():
        # torch warns that a read-only memory-mapped array must not be written to; nothing here writes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return as_matrix(value, name).detach()


def check_points(points: int, dimensions: int, name: str, k: int) -> None:
    """Raise ValueError for a set with no more points than k."""
    if k == 1 == points:  # in a reference a set needs no neighbors of its own
        raise ValueError(f"{name}: expected at least 2 rows, got 1")
    if k >= points:
        smaller = min(64, 2 ** int(math.log2(points / 2))) if points >= 4 else 0
        hint = f"; try k={smaller}" if smaller else ""
        hint += "; are rows and columns exchanged?" if dimensions > _WIDE * points else ""
        raise ValueError(f"{name}: expected more points than k, which is {k}, got {points}{hint}")


def as_names(labels: Sequence[Any] | Tensor, name: str, points: int, *, of: str) -> list[str]:
    """A label or name for each point, as text; a missing name is empty.

    Raises:
        ValueError: another number of labels, rows of several, or a missing label.
    """
    if isinstance(labels, str) or not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) == 0:
        raise ValueError(f"{name}: expected {points}, one for each row of {of}, got {labels!r}")
    if isinstance(labels, Tensor | numpy.ndarray) and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    values = [_plain(value) for value in _plain(labels)]
    if len(values) != points:
        raise ValueError(f"{name}: expected {points}, one for each row of {of}, got {len(values)}")
    if isinstance(values[0], list):
        shape = (points, len(values[0]))
        raise ValueError(f"{name}: expected one for each row of {of}, got shape {shape}; argmax(1) names one-hot rows")
    missing = [str(value) in _MISSING and not isinstance(value, str) for value in values]
    if name != "names" and any(missing):
        row = missing.index(True)
        raise ValueError(f"{name}: expected one for each row of {of}, got {values[row]} in row {row} (from 0)")
    return ["" if gone else _as_text(value) for value, gone in zip(values, missing, strict=True)]


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def column_names(value: Any) -> list[str]:
    """The names of the columns of a table of pandas, Polars or Arrow that has several; none of anything else."""
    names = getattr(value, "column_names", getattr(value, "columns", ()))
    return [str(name) for name in names] if len(names) > 1 else []


def _plain(value: Any) -> Any:
    """An array as a list or number; anything else unchanged."""
    return value.tolist() if isinstance(value, Tensor | numpy.ndarray) else value


def as_device(x: Tensor | Shards, wanted: str | torch.device | None, *, shared: bool) -> torch.device:
    """The device to measure x on: the wanted one, or else a GPU if there is one, or else that of x.

    Ranks that share the work take one GPU each unless a device is wanted.

    Raises:
        ValueError: there are fewer GPUs than ranks.
    """
    if wanted is not None and str(wanted) != "auto":
        device = torch.device(wanted)
    elif x.device.type == "cpu" and torch.cuda.is_available():
        device = torch.device("cuda")
    else:
        device = x.device
    if str(device) != "cuda":  # the CPU, or a GPU by its number
        return device
    if not shared:
        return torch.device("cuda", torch.cuda.current_device())
    if local_rank() >= torch.cuda.device_count():
        raise ValueError(
            f"device: expected a GPU for each process of this machine, got {torch.cuda.device_count()} for "
            f"{local_rank() + 1} or more"
        )
    return torch.device("cuda", local_rank())
