"""Record: the one result of a run and its evaluations, written as JSON and read back."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache, partial
from itertools import groupby
from os import PathLike
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from ldreg.io.files import json_values, read_text, write_atomically
from ldreg.text import one_line, percent, printable
from ldreg.thumbnails import png_size

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Reader = Callable[[Any], Any]

SCHEMA = 2  # of the JSON of a record; files without the key "schema" have 1
ACCURACIES = frozenset({"linear", "linear_best", "knn", "finetune", "accuracy"})
PRECISIONS = ("box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75")
SHARES = ACCURACIES | {"degenerate", "view_share", *PRECISIONS}  # results from 0 to 1
MOST_THUMBNAILS = 500
CURVES = {  # metrics of a run's log, and the names of their curves in its record
    "set/lid": "lid",
    "set/lid_low": "lid_low",
    "set/effective_rank": "effective_rank",
    "set/linear": "linear",
    "set/knn": "knn",
    "set/frechet_variance": "frechet_variance",
    "batch/view_share": "view_share",
    "batch/loss": "loss",
}
_FINDINGS_OF_A_KIND = 3  # that are listed one by one
_LARGEST_RESULT = 1e30  # of an evaluation


Kind = Literal[
    "complete_collapse", "degenerate", "collapsed_group", "collapsed_class", "collapsed_beside", "comparison_collapsed",
    "duplicates", "near_duplicates", "copies", "small_clusters", "low_rank", "hubs", "higher_beside", "similar_beside",
    "not_compared", "leaked", "nearly_leaked", "out_of_distribution", "fits_reference",
    "nothing_unusual",
]  # fmt: skip
Severity = Literal["critical", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


# What each type of a field takes from parsed JSON


def _typed(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{'null' if value is None else type(value).__name__} in place of {kind.__name__}")
    return value


def _number(value: Any, *, null: float | None = math.nan, most: float = 1e60) -> float:
    """A number, or what stands for null, if anything does. No sum or square of the largest number overflows."""
    if value is None and null is not None:
        return null
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{'null' if value is None else type(value).__name__} in place of a number")
    if abs(value) > most:
        raise ValueError(f"a number too large, expected at most {most:g}")
    return value


def _lid(value: Any) -> float:
    found = _number(value, null=math.inf)
    if 0 < abs(found) < 1e-60:
        raise ValueError("a number too small, expected 0 or at least 1e-60")
    return found


def _count(value: Any) -> int:
    found = _typed(int, _number(value, null=None))
    if found < 0:
        raise ValueError(f"{found} in place of a count")
    return found


def _setting(value: Any) -> Any:
    return [_scalar(item) for item in value] if isinstance(value, list) else _scalar(value)


def _scalar(value: Any) -> str | float | int | bool | None:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, dict | list):
        raise TypeError(f"{type(value).__name__} in place of a plain value")
    return _number(value)


def _origin(value: Any) -> dict[str, Any]:
    """Scalars by name; those that are calculated with are checked further."""
    read = dict.fromkeys(("held_out", "tested", "seed", "at_once", "workers"), _reader(int | None))
    read |= dict.fromkeys(("epochs", "minutes"), _number)
    found = _typed(dict, value).items()
    return {key: _read_as(key, item, read.get(key.partition("/")[0], _scalar)) for key, item in found}


@cache
def _reader(kind: Any) -> Reader:
    """A function that takes a value from parsed JSON and returns it as this type, or raises ValueError or TypeError."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        named = {key: _reader(hints[key]) for key in getattr(kind, "in_json", hints)}
        required = {entry.name for entry in fields(kind) if entry.default is entry.default_factory is MISSING}
        return partial(_read_object, kind, named, required)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return arguments[1]  # type: ignore[no-any-return]
    if origin is Literal:
        return partial(_one_of, arguments)
    first, *_ = readers = [_reader(each) for each in arguments if each is not NoneType]
    if origin is Sequence:
        return lambda value: [first(item) for item in _typed(list, value)]
    if origin is Mapping:
        return lambda value: {key: _read_as(key, item, readers[1]) for key, item in _typed(dict, value).items()}
    if origin is tuple:
        return partial(_read_tuple, readers)
    return lambda value: None if value is None else first(value)


def _one_of(choices: tuple[str, ...], value: Any) -> str:
    if value not in choices:
        raise ValueError(f"{printable(repr(value))} in place of one of {', '.join(choices)}")
    return value  # type: ignore[no-any-return]


def _read_tuple(readers: Sequence[Reader], value: Any) -> tuple[Any, ...]:
    if len(_typed(list, value)) != len(readers):
        raise ValueError(f"{len(value)} values in place of {len(readers)}")
    return tuple(read(item) for read, item in zip(readers, value, strict=True))


def _read_object(kind: Callable[..., T], readers: Mapping[str, Reader], required: set[str], value: Any) -> T:
    if unknown := sorted(_typed(dict, value).keys() - readers.keys()):
        raise ValueError(f"the unknown key {unknown[0]!r}")
    if missing := sorted(required - value.keys()):
        raise ValueError(f"no key {missing[0]!r}")
    return kind(**{key: _read_as(key, item, readers[key]) for key, item in value.items()})


def _read_as(key: str, value: Any, read: Reader) -> Any:
    """Read a value; an error names its key."""
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{printable(key)}: {error}") from error


_PLAIN: dict[Any, Reader] = {str: partial(_typed, str), int: _count, float: _number}
Setting = Annotated[str | float | int | bool | Sequence[Any] | None, _setting]
Lid = Annotated[float, _lid]
Epoch = Annotated[float, partial(_number, null=None, most=1e9)]
Point = tuple[Annotated[float, partial(_number, most=1e30)], Annotated[float, partial(_number, most=1e30)]]


@dataclass(frozen=True)
class Finding:
    """One thing that was found in a set of embeddings."""

    in_json: ClassVar = ("of", "kind", "severity", "share", "numbers", "text")  # of a run; rows are left out

    kind: str  # one of `Kind`, or "not_finite" for values of NaN or inf in a run
    severity: Severity  # "critical": deal with it before you use the numbers; "warning": look at it; "note"
    share: float  # of the measured points that it concerns
    numbers: Mapping[str, float]  # the evidence, by name
    rows: tuple[int, ...] = ()  # of the data that it concerns, ascending; empty if it concerns the whole set
    examples: tuple[int, ...] = ()  # a few rows: nearest to a group's middle, or one of each group of duplicates
    labels: tuple[tuple[str, int], ...] = ()  # how many of the rows have which label, most first
    of: str = ""  # what it was found in, "images" or "representations"; set for findings of a run
    text: str = ""  # the finding in a sentence; set for findings of a run

    @property
    def serious(self) -> bool:
        """Whether it is more than a note."""
        return self.severity != "note"

    def plain(self) -> dict[str, Any]:
        """The finding as records of runs have it in JSON."""
        return {name: getattr(self, name) for name in self.in_json}


def brief(findings: Iterable[Finding]) -> list[Finding]:
    """The most serious first, and of many of one kind three and how many more there are."""
    listed = []
    for (what, kind), group in groupby(most_serious_first(findings), key=lambda found: (found.of, found.kind)):
        several = list(group)
        listed += several[:_FINDINGS_OF_A_KIND]
        if rest := several[_FINDINGS_OF_A_KIND:]:
            share = math.fsum(found.share for found in rest)
            more = f"{len(rest)} more findings of the kind {kind}, {percent(share)} of the points."
            listed.append(Finding(kind, rest[0].severity, share, {}, of=what, text=more))
    return listed


def most_serious_first(findings: Iterable[Finding]) -> list[Finding]:
    """All findings in order; that nothing unusual was found is left out where there is something else to say."""
    ordered = sorted(findings, key=lambda found: SEVERITIES.index(found.severity))
    return [found for found in ordered if found.kind != "nothing_unusual"] or ordered[:1]


@dataclass(frozen=True)
class Thumbnail:
    """A small image of the measured set, with its LID. Raises ValueError for another image or an index below 0."""

    image: str  # PNG of at most 64 × 64 pixels as a data URI
    index: int  # position in the set
    lid: Lid  # of its representation
    label: str = ""  # its class, empty if unknown
    file: str = ""  # its name, empty if unknown

    def __post_init__(self) -> None:
        # The URI goes into a page unescaped.
        if self.index < 0:
            raise ValueError(f"index: expected at least 0, got {self.index}")
        png_size(self.image)


@dataclass(frozen=True)
class Record:
    """One run of pretraining: what was set, what came out, how it got there.

    Raises:
        ValueError: lists that belong together differ in length, or an accuracy or another share is not from 0 to 1.

    >>> record = Record("SimCLR", {"method": "simclr", "seed": 0}, {"lid": 7.4, "linear": 0.961})
    >>> record.results["linear"], record.curves
    (0.961, {})
    """

    name: str  # in tables and legends
    settings: Mapping[str, Setting]  # by flattened keys, such as "method" or "ldreg.beta"
    results: Mapping[str, float]  # after the last epoch, such as lid and knn; accuracies are shares from 0 to 1
    curves: Mapping[str, Sequence[tuple[Epoch, float]]] = field(default_factory=dict)  # of results and of others
    lid: Sequence[Lid] = field(default_factory=list)  # of the measured points, or of an even choice of them
    eigenvalues: Sequence[float] = field(default_factory=list)  # of the covariance of the representations, in any order
    map: Sequence[Point] = field(default_factory=list)  # points on two principal axes, in the order of `lid`
    labels: Sequence[str] | None = None  # the class of every point, in the order of `map`
    # Where the numbers come from: command, commit, version, hardware, seed, epochs, minutes.
    origin: Annotated[Mapping[str, str | float | int | None], _origin] = field(default_factory=dict)
    points: int | None = None  # that LID and its statistics in `results` were measured on; None: as many as `lid` has
    k: int | None = None  # neighbors that LID was estimated from
    most_collapsed: Sequence[Thumbnail] = field(default_factory=list)  # images of lowest LID, the lowest first
    least_collapsed: Sequence[Thumbnail] = field(default_factory=list)  # images of highest LID, the highest first
    tsne: Sequence[Point] = field(default_factory=list)  # points in the plane by t-SNE
    tsne_labels: Sequence[str] | None = None  # the class of every point, in the order of `tsne`
    images: int | None = None  # number of training images; LID was measured on `points` of them
    tested: int | None = None  # test images that accuracies are measured on
    voters: int | None = None  # neighbors that vote in kNN classification
    notes: Sequence[str] = field(default_factory=list)  # sentences on what is missing here and why
    findings: Sequence[Finding] = field(default_factory=list)  # what is unusual in images and representations
    classes: Mapping[str, float] = field(default_factory=dict)  # geometric mean of LID by class

    @property
    def measured(self) -> int:
        """How many points LID was measured on."""
        return len(self.lid) if self.points is None else self.points

    @property
    def held_out(self) -> int:
        """How many held-out images LID and accuracies were measured on, as studies do; 0: LID is of training images."""
        return int(self.origin.get("held_out") or 0)

    @property
    def test_images(self) -> int | None:
        """How many images accuracies were measured on."""
        return self.tested or self.held_out or None

    def __post_init__(self) -> None:
        for name, points in (("lid", "map"), ("labels", "map"), ("tsne_labels", "tsne")):
            values, expected = getattr(self, name), len(getattr(self, points))
            if expected and values and len(values) != expected:
                raise ValueError(
                    f"{name}: expected {expected} values, one for each point of {points}, got {len(values)}"
                )
        if self.points is not None and self.points < len(self.lid):
            raise ValueError(f"points: expected at least the {len(self.lid)} that lid has, got {self.points}")
        for name in ("most_collapsed", "least_collapsed"):
            if len(getattr(self, name)) > MOST_THUMBNAILS:
                raise ValueError(f"{name}: expected at most {MOST_THUMBNAILS} images, got {len(getattr(self, name))}")
        for name, value in self.results.items():
            if is_share(name) and not (math.isnan(value) or 0 <= value <= 1):
                raise ValueError(f"results: expected {name} as a share from 0 to 1, got {value}")

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write strict JSON, floats to nine digits; null stands for numbers that are not finite."""
        values = {"schema": SCHEMA, **{entry.name: getattr(self, entry.name) for entry in fields(self)}}
        write_json(path, {key: _plain(value) for key, value in values.items()})

    @classmethod
    def from_json(cls, path: str | PathLike[str]) -> Self:
        """Read a record, the result of an evaluation or the card of a run, of this version or an earlier one.

        A null among numbers is NaN, among `lid` infinity; both mean undefined.

        Raises:
            ValueError: the file is not JSON, not of a run, or of a newer version.
            OSError: the file cannot be read.
        """
        try:
            kind: Any = cls
            read: Self = _reader(kind)(upgrade(json.loads(read_text(path), parse_constant=_refuse_constant)))
            return read
        except NewerSchemaError as error:
            raise ValueError(f"{path}: {error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: expected the record of a run, got a file that is not text") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: expected the record of a run, got {one_line(str(error))}") from error


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points (N, 2) of the plane and their dimension.

    `lid` (N,) and its geometric mean, that mean's Fisher-Rao distance to 2, DANCo's value, and one typical point, the
    `anchor`, with the `radius` that its neighbors lie in.
    """

    caption: str
    points: "Tensor"
    lid: "Tensor"
    mean_lid: float
    fisher_rao: float
    global_dimension: float
    anchor: int
    radius: float


def write_json(path: str | PathLike[str], values: Mapping[str, Any]) -> None:
    """Write strict JSON (no NaN or Infinity), one key per line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in values.items()]
    write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")


@cache
def is_share(name: str) -> bool:
    """Whether a result is a share from 0 to 1, such as an accuracy; "knn/k = 20" is one of kNN.

    >>> is_share("linear"), is_share("transfer/shapes"), is_share("lid/test images, k = 20")
    (True, True, False)
    """
    what, _, detail = name.partition("/")
    return name in SHARES or (bool(detail) and what in (*SHARES, "transfer"))


def origin(environment: Mapping[str, Any], **more: Any) -> dict[str, str | float | int | None]:
    """Origin of a record from what a run or an evaluation says of its environment; unknown facts are left out."""
    cores = f"{environment.get('processor')}, {environment['cores']} cores" if "cores" in environment else None
    facts = {
        "command": environment.get("command"),
        "commit": environment.get("commit"),
        "version": environment.get("ldreg"),
        "hardware": environment.get("gpu") or cores,
        **more,
    }
    known = {key: value for key, value in facts.items() if value is not None}
    return {key: value if isinstance(value, int | float) else printable(str(value)) for key, value in known.items()}


class NewerSchemaError(ValueError):
    """A newer version of ldreg wrote the file."""


def upgrade(content: Any) -> dict[str, Any]:
    """The parsed JSON of a record of any kind and version, with the keys that this version has.

    Raises:
        NewerSchemaError: the file is of a newer version.
        ValueError, TypeError: the content is no record.

    >>> upgrade({"name": "a", "settings": {}, "results": {"lid": 7.4}})
    {'name': 'a', 'settings': {}, 'results': {'lid': 7.4}}
    >>> upgrade({"schema": 3, "name": "a"})
    Traceback (most recent call last):
    ldreg.record.NewerSchemaError: expected schema 2 or earlier, got 3, which a newer ldreg wrote
    """
    content = _typed(dict, content)
    schema = _read_as("schema", content.get("schema", 1), _count)
    if schema > SCHEMA:
        raise NewerSchemaError(f"expected schema {SCHEMA} or earlier, got {schema}, which a newer ldreg wrote")
    if "kind" in content:
        return _from_evaluation(content)
    if not {"encoder", "metrics"}.isdisjoint(content):
        return _from_card(content)
    return {key: value for key, value in content.items() if key != "schema"}


def _from_evaluation(content: dict[str, Any]) -> dict[str, Any]:
    """The result of `ldreg evaluate` as a record; its origin has the key of the weights and the name of the data."""
    kind = content["kind"]
    if not isinstance(kind, str) or kind not in _EVALUATIONS:
        raise ValueError(f"kind: expected one of {', '.join(_EVALUATIONS)}, got {printable(repr(kind))[:40]}")
    results, source, options, data, environment = (
        _object(content, name) for name in ("results", "source", "options", "data", "environment")
    )
    facts = {"seed": content.get("seed"), "minutes": content.get("minutes"), "weights": source.get("key")}
    if kind not in ("transfer", "detection"):  # they have images of their own
        facts["data"] = data.get("name")
    return {
        "name": source.get("name", kind),
        "settings": {"kind": kind, **options, **{f"data.{key}": value for key, value in data.items()}},
        "results": _EVALUATIONS[kind](results, options),
        "origin": origin(environment, **facts),
        "voters": results["k"] if kind == "knn" else None,
    }


_EVALUATIONS: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, float]]] = {
    "linear": lambda results, options: {f"linear/{options.get('protocol')} protocol": _result(results, "linear")},
    "knn": lambda results, options: {f"knn/k = {_result(results, 'k'):g}": _result(results, "knn")},
    "finetune": lambda results, options: {f"finetune/{_labels_used(options)}": _result(results, "finetune")},
    "dimension": lambda results, options: {
        f"lid/{options.get('split')} images, k = {_result(results, 'k'):g}": _result(results, "lid"),
        f"effective_rank/{options.get('split')} images": _result(results, "effective_rank"),
    },
    "transfer": lambda results, options: {
        f"transfer/{name}{_protocol_unless_transfer(options)}": _result(_object(results, name), "linear")
        for name in results
    },
    "detection": lambda results, options: {name: _result(results, name) for name in PRECISIONS},
}


def _labels_used(options: dict[str, Any]) -> str:
    fraction = _result(options, "fraction")
    return "all labels" if fraction == 1 else f"{100 * fraction:g} % of labels"


def _protocol_unless_transfer(options: dict[str, Any]) -> str:
    protocol = options.get("protocol")
    return "" if protocol == "transfer" else f", {protocol} protocol"


def _result(values: dict[str, Any], name: str) -> float:
    """A number that a table can show."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_RESULT:
        raise ValueError(f"{name}: expected a finite number, got {json.dumps(value)[:40]}")
    return float(value)


def _from_card(content: dict[str, Any]) -> dict[str, Any]:
    """The card of a finished run as a record, with the last values that the run logged."""
    metrics = _object(content, "metrics")
    results = {CURVES[name]: value for name, value in metrics.items() if name in CURVES and name.startswith("set/")}
    minutes = content.get("minutes")
    facts = {name: content.get(name) for name in ("seed", "epochs", "minutes", "stopped")}
    return {
        "name": str(content.get("method", "run")),
        "settings": {name: content.get(name) for name in ("method", "regularizer", "batch_size", "seed")},
        "results": results if minutes is None else {**results, "minutes": minutes},
        "origin": origin({"ldreg": content.get("ldreg")}, **facts),
        "findings": content.get("findings", []),
    }


def _object(content: dict[str, Any], name: str) -> dict[str, Any]:
    """The object of this name; empty if there is none."""
    value = content.get(name)
    return {} if value is None else _read_as(name, value, partial(_typed, dict))


def read_findings(value: Any) -> list[Finding]:
    """Findings from parsed JSON. Raises TypeError or ValueError if it is no list of them."""
    return [_reader(Finding)(item) for item in _typed(list, value)]


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} in place of a number")


def _plain(value: Any) -> Any:
    """A field as JSON holds it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    found = value.plain() if isinstance(value, Finding) else asdict(value) if isinstance(value, Thumbnail) else value
    return json_values(found)
