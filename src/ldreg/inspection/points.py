"""Per-point results of an inspection: a table with a row for each measured point, and the neighbors as a graph."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ldreg.io.files import write_atomically

if TYPE_CHECKING:  # slow imports
    from pandas import DataFrame
    from scipy.sparse import csr_matrix

    from ldreg.inspection.report import DimensionReport

TABLES = (".parquet", ".csv", ".npy")
GRAPHS = (".npz",)
# Kinds of findings that are about single points, in the order in which a point of several gets one.
_OF_POINTS = (
    "degenerate",
    "collapsed_group",
    "collapsed_class",
    "duplicates",
    "near_duplicates",
    "hubs",
    "leaked",
    "nearly_leaked",
    "out_of_distribution",
)


def points_table(
    report: "DimensionReport", columns: Mapping[str, Sequence[Any]] | None = None, *, named_by: str | None = None
) -> "DataFrame":
    """What is known of each measured point, in a row each.

    The columns are `row` in the data, `name` and `label` if they were given, `lid`, its `standard_error`,
    `kth_distance`, the row of the `nearest` neighbor and its `nearest_distance`, the `finding` that names the point
    (such as "collapsed_group 1"), `duplicate_group` (equal rows have one number), and `neighbor_of`: how many measured
    points have it among their k nearest. The last two are left out for neighbors in a reference.

    Args:
        report: of `ldreg.inspect`.
        columns: further columns of all rows of the data, by name; they come first, with "input_" before a name that is
            taken.
        named_by: the one of them that names the points, which then have no further column `name`.
    """
    import pandas

    found = point_columns(report)
    given = {name: pandas.Series(list(values))[found["row"]].to_numpy() for name, values in (columns or {}).items()}
    if named_by in given:
        found.pop("name", None)
    if "duplicate_group" in found:
        groups = pandas.array(found["duplicate_group"], dtype="Int64")
        groups[groups < 0] = pandas.NA
        found["duplicate_group"] = groups
    own = {f"input_{name}" if name in found else name: values for name, values in given.items()}
    return pandas.DataFrame(own | found)


def point_columns(report: "DimensionReport") -> dict[str, Any]:
    """The columns of `points_table` without pandas, which takes half a second to import; -1 is no duplicate group."""
    found: dict[str, Any] = {"row": report.index.numpy()}
    if report.names is not None:
        found["name"] = report.names
    if report.labels is not None:
        found["label"] = report.labels
    found |= {"lid": report.lid.numpy(), "standard_error": report.standard_error.numpy()}
    found |= {"kth_distance": report.kth_distance.numpy(), "nearest": report.nearest.numpy()}
    found |= {"nearest_distance": report.nearest_distance.numpy(), "finding": _findings(report)}
    if report.duplicate_group is not None and report.neighbor_of is not None:
        found |= {"duplicate_group": report.duplicate_group.numpy(), "neighbor_of": report.neighbor_of.numpy()}
    return found


def _findings(report: "DimensionReport") -> list[str]:
    """For each measured point, the finding that names it; findings of one kind are numbered."""
    named: dict[int, str] = {}
    for kind in _OF_POINTS:
        of_kind = [finding for finding in report.findings if finding.kind == kind]
        for number, finding in enumerate(of_kind, 1):
            name = f"{kind} {number}" if len(of_kind) > 1 else kind
            for row in finding.rows:
                named.setdefault(row, name)
    return [named.get(row, "") for row in report.index.tolist()]


def write_points(table: "DataFrame", path: str | Path) -> None:
    """Write a table of points as .parquet, .csv, or a structured .npy array of its numbers.

    Raises:
        ValueError: another ending, or .parquet without pyarrow.
    """
    import numpy

    suffix = check_suffix(path, TABLES, "--points")
    stream = BytesIO()
    if suffix == ".parquet":
        from ldreg.extras import require

        require("parquet")
        table.to_parquet(stream, index=False)
    elif suffix == ".csv":
        table.to_csv(stream, index=False)
    else:
        numbers = table.select_dtypes("number")
        if "duplicate_group" in numbers:  # which has missing values
            numbers = numbers.astype({"duplicate_group": "float64"})
        numpy.save(stream, numpy.asarray(numbers.to_records(index=False)))
    write_atomically(path, stream.getvalue())


def neighbor_graph(report: "DimensionReport") -> "csr_matrix":
    """The distances to the k nearest neighbors as a sparse matrix, as scikit-learn, UMAP and cleanlab take it.

    It is (N, N), or (N, M) for neighbors in a reference. Rows are sorted by distance; exact duplicates are zeros in it.
    Rows that were left out are empty.

    Raises:
        ValueError: the report was made without `keep_neighbors`, or of a sample of the points.
    """
    import numpy
    from scipy.sparse import csr_matrix

    if report.neighbors is None:
        raise ValueError("report: expected one made with keep_neighbors=True, got one without neighbors")
    if report.measured < report.points:
        raise ValueError(f"report: expected all {report.points} points measured, got {report.measured}")
    distances, indices = (column.numpy() for column in report.neighbors)
    counts = numpy.zeros(report.rows, dtype=numpy.int64)
    counts[report.index.numpy()] = report.k
    of = report.comparison.other if report.in_reference and report.comparison else report
    starts = numpy.concatenate([[0], counts.cumsum()])
    return csr_matrix((distances.ravel(), indices.ravel(), starts), shape=(len(counts), of.points + of.left_out))


def write_graph(graph: "csr_matrix", path: str | Path) -> None:
    """Write a graph as .npz, to be read by `scipy.sparse.load_npz`. Raises ValueError for another ending."""
    from scipy.sparse import save_npz

    check_suffix(path, GRAPHS, "--neighbors")
    stream = BytesIO()
    save_npz(stream, graph)
    write_atomically(path, stream.getvalue())


def check_replaceable(path: str | Path, option: str) -> None:
    """Raise ValueError for an existing .npy or .npz that is not an earlier table or graph: it may hold embeddings."""
    import numpy

    path = Path(path)
    if path.suffix.lower() not in (".npy", ".npz") or not path.exists():
        return
    try:
        found = numpy.load(path, mmap_mode="r")
        ours = "indptr" in found.files if path.suffix.lower() == ".npz" else "lid" in (found.dtype.names or ())
    except (ValueError, OSError, EOFError):
        ours = False
    if not ours:
        raise ValueError(f"{option}: expected a new file or an earlier output of it, got {str(path)!r}, another array")


def check_suffix(path: str | Path, known: Sequence[str], option: str) -> str:
    """The ending of a file name; ValueError for one that is not known."""
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        raise ValueError(f"{option}: expected a name ending in {' or '.join(known)}, got {str(path)!r}")
    return suffix
