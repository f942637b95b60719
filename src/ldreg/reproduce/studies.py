"""The studies of the paper, from `studies.yaml`: scales, and for each table and figure the runs behind its rows."""

import hashlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from ldreg.options import nearest
from ldreg.record import Record
from ldreg.train.recipes import flattened, load_recipe
from ldreg.train.settings import REGULARIZERS, Settings, resolve

Options = tuple[tuple[str, str], ...]
Trainer = Literal["ldreg", "lightly"]
ScaleName = Literal["imagenet", "cifar10", "digits"]

# What can be measured of a finished run beyond dimensions and accuracies.
TRANSFER, TSNE, DETECTION = "transfer", "tsne", "detection"

_ROW = {"id", "names", "recipe", "set", "paper", "against", "judged", "group", "x", "long", "by"}
_NONE_MEANS = {"views.jitter": 1.0}  # what a setting of None stands for
_VARIABLE = re.compile(r"\{(\w+)\}")
# Settings with short names in the names of runs; a regularizer's options are short as well.
_SHORT = ("schedule.epochs", "views.jitter", "batch_size", "encoder.name", "data.name", "data.validation")


@dataclass(frozen=True)
class Arm:
    """A recipe with options over it: one side of a comparison, run with one or several seeds.

    >>> Arm("digits/simclr_ldreg", (("ldreg.beta", "0.2"),)).slug
    'simclr_ldreg-beta0.2'
    >>> Arm("cifar10/simclr_lightly", (("schedule.epochs", "30"),), by="lightly").slug
    'simclr_by_lightly-epochs30'
    """

    recipe: str
    options: Options = ()  # sorted by key
    by: Trainer = "ldreg"  # lightly has one recipe, and `recipe` is ldreg's version of it

    def but(self, **options: object) -> "Arm":
        """The arm with further options; two underscores stand for a dot.

        >>> Arm("digits/simclr").but(views__jitter=0.25).options
        (('views.jitter', '0.25'),)
        """
        more = [(key.replace("__", "."), str(value)) for key, value in options.items()]
        return replace(self, options=tuple(sorted(dict([*self.options, *more]).items())))

    def over(self, settings: Options) -> "Arm":
        """The arm over settings that are given for every run; its own options stay.

        >>> Arm("digits/simclr").but(views__jitter=0).over((("views.jitter", "1"), ("batch_size", "64"))).options
        (('batch_size', '64'), ('views.jitter', '0'))
        """
        return replace(self, options=tuple(sorted(dict([*settings, *self.options]).items())))

    @property
    def slug(self) -> str:
        """A readable name for files that differs between the arms of a scale."""
        named = sorted(self.options, key=lambda pair: pair[0] != "regularizer")  # the regularizer before its options
        parts = [_part(key, value) for key, value in named]
        recipe = self.recipe.rpartition("/")[2]
        who = recipe if self.by == "ldreg" else f"{recipe.removesuffix(f'_{self.by}')}_by_{self.by}"
        name = "-".join([who, *parts])
        safe = re.sub(r"[^A-Za-z0-9_.=-]", "_", name)
        if safe == name and len(name) <= 120:
            return name
        return f"{safe[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _part(key: str, value: str) -> str:
    """A setting in a name: short for settings that the studies vary, else with its whole key.

    >>> _part("ldreg.k", "8"), _part("monitor.k", "8"), _part("regularizer", "minlid")
    ('k8', 'monitor.k=8', 'minlid')
    """
    group, _, name = key.rpartition(".")
    if key == "regularizer":
        return value
    return f"{name}{value}" if group in REGULARIZERS or key in _SHORT else f"{key}={value}"


@dataclass(frozen=True)
class Scale:
    """What depends on the size of the runs; `studies.yaml` explains the fields."""

    name: ScaleName
    methods: tuple[str, ...]
    k: int
    long_epochs: int
    batches: tuple[Mapping[str, int], ...] = field(hash=False)
    betas: tuple[float, ...]
    neighbors: tuple[int, ...]
    jitters: tuple[float, ...]
    targets: tuple[float, ...]
    queues: tuple[int, ...]
    moco_queues: tuple[int, ...]
    search_epochs: int
    datasets: tuple[str, ...]
    linear: Literal["fast", "imagenet"]
    transfer: Literal["fast", "transfer"]
    epochs: int | None = None  # of every run; None for those of the recipes
    anchor_epochs: int | None = None
    long_recipes: Mapping[str, str] = field(default_factory=dict, hash=False)
    search_rates: Mapping[str, Sequence[float]] = field(default_factory=dict, hash=False)
    on_coco: Mapping[str, str] = field(default_factory=dict, hash=False)
    on_generated: Mapping[str, str] = field(default_factory=dict, hash=False)

    def with_epochs(self, epochs: int) -> "Scale":
        """The same scale with this number of epochs for every run; long pretrainings keep their ratio to it."""
        usual = self.epochs or 100
        return replace(self, epochs=epochs, long_epochs=round(epochs * self.long_epochs / usual))

    def arm(self, recipe: str) -> Arm:
        """The arm of this recipe of the scale."""
        arm = Arm(f"{self.name}/{recipe}")
        return arm if self.epochs is None else arm.but(schedule__epochs=self.epochs)

    def long(self, recipe: str) -> Arm:
        """The arm of this recipe with the long pretraining."""
        if recipe in self.long_recipes and self.epochs is None:
            return Arm(f"{self.name}/{self.long_recipes[recipe]}")
        arm = Arm(f"{self.name}/{self.long_recipes.get(recipe, recipe)}")
        return arm.but(schedule__epochs=self.long_epochs)

    @property
    def starts(self) -> list[dict[str, int]]:
        """Later starts of LDReg: after a tenth and after half of the epochs, where that is at least one epoch."""
        epochs = self.epochs or recipe_settings(f"{self.name}/simclr_ldreg").schedule.epochs
        after = dict.fromkeys((epochs // 10, epochs // 2))
        return [{"start": start, "first_epoch": start + 1} for start in after if start]


@dataclass(frozen=True)
class Row:
    """One row of a table: its name, the arm that is trained for it, and the paper's values."""

    names: tuple[str, ...]  # the cells that name it
    arm: Arm
    values: Mapping[str, float] = field(default_factory=dict)  # the paper's by result; NaN stands for a collapse
    baseline: int | None = None  # position of the row that it is compared with
    judged: bool = True  # whether the paper claims a direction of the difference from that row
    group: str = ""  # of rows on one line of a figure
    x: float = 0.0  # position on the axis of a figure


Records = Mapping[Arm, Sequence[Record]]


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper, or a question beyond it."""

    name: str  # on the command line
    title: str
    text: str  # what it shows, and what the paper saw
    keys: tuple[str, ...]  # titles of the columns that name a row
    entries: Sequence[Mapping[str, Any]] = field(default=(), hash=False)  # the rows as `studies.yaml` has them
    aliases: tuple[str, ...] = ()  # other names, as the paper numbers it
    metrics: tuple[str, ...] = ()  # results shown as columns; empty for those of the scale's datasets
    measures: frozenset[str] = frozenset()  # what is measured beyond the results of every run
    only_named: bool = False  # whether it runs only where it is named and not with `all`
    every_length: bool = False  # whether it is shown at every number of epochs that has runs, not only at one
    scales: tuple[str, ...] = ()  # that have it; empty for all
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)  # of every run, by scale
    function: str = ""  # of `search.py`, that makes the rows instead of `entries`

    def rows(self, scale: Scale) -> Sequence[Row]:
        """The rows at this scale; empty for a study that trains nothing or that the scale does not have."""
        return _rows(self, scale)

    def metrics_at(self, scale: Scale) -> tuple[str, ...]:
        """The results that are shown as columns."""
        if self.metrics or not self.measures:
            return self.metrics
        return tuple(f"transfer/{name}" for name in scale.datasets)


@cache
def _rows(study: Study, scale: Scale) -> Sequence[Row]:
    if study.scales and scale.name not in study.scales:
        return ()
    if study.function:
        return tuple(pkgutil.resolve_name(f"ldreg.reproduce.search:{study.function}")(scale))
    rows: list[Row] = []
    places = dict[str, int]()
    scale_variables = {"k": scale.k, "double_k": 2 * scale.k, "epochs": scale.epochs or scale.anchor_epochs}
    for entry, variables in _repeated(study.entries, scale, scale_variables):
        row = _row(entry, variables, scale, study.settings.get(scale.name, {}))
        against = entry.get("against")
        if against not in (None, "first", *places):
            raise ValueError(f"{study.name}: against: expected the id of a row above, got {against!r}")
        if len(row.names) != len(study.keys):
            raise ValueError(f"{study.name}: names: expected {len(study.keys)}, got {row.names}")
        baseline = 0 if against == "first" and rows else places.get(str(against))
        if "id" in entry:
            places[entry["id"]] = len(rows)
        rows.append(replace(row, baseline=baseline))
    return tuple(rows)


def _repeated(
    entries: Sequence[Mapping[str, Any]], scale: Scale, variables: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Every row with the variables of the loops around it."""
    for entry in entries:
        if "for" not in entry:
            if unknown := entry.keys() - _ROW:
                raise ValueError(f"a row: expected keys among {', '.join(sorted(_ROW))}, got {sorted(unknown)}")
            yield entry, variables
            continue
        [(name, values)] = entry["for"].items()
        for value in getattr(scale, values) if isinstance(values, str) else values:
            inner = {**variables, **(value if isinstance(value, Mapping) else {name: value})}
            method = inner.get("method")
            if method is None:
                yield from _repeated(entry["rows"], scale, inner)
            elif method in scale.methods:
                yield from _repeated(entry["rows"], scale, {**inner, "title": METHODS[method]})


def _row(entry: Mapping[str, Any], variables: Mapping[str, Any], scale: Scale, settings: Mapping[str, Any]) -> Row:
    recipe = str(_filled(entry["recipe"], variables))
    if recipe.endswith("_ldreg"):
        own = recipe_settings(f"{scale.name}/{recipe}").regularizer
        other = "" if own["k"] == scale.k else f", k {own['k']}"
        variables = {**variables, "recipe_beta": f"{own['beta']:g}", "recipe_k": own["k"], "other_k": other}
    if recipe.endswith("_share"):
        variables = {**variables, "recipe_share": recipe_settings(f"{scale.name}/{recipe}").regularizer["share"]}
    known = {key: _filled(value, variables) for key, value in entry.items()}
    arm = scale.long(recipe) if known.get("long") else scale.arm(recipe)
    arm = with_options(arm, known.get("set", {})).but(**settings)
    paper = known.get("paper", {})
    if isinstance(paper, str) and paper not in PAPER:
        raise ValueError(f"paper: expected one of {', '.join(PAPER)}, got {paper!r}")
    return Row(
        names=tuple(map(str, known["names"])),
        arm=replace(arm, by=known.get("by", "ldreg")),
        values=PAPER[paper] if isinstance(paper, str) else paper,
        judged=known.get("judged", True),
        group=known.get("group", ""),
        x=known.get("x", 0.0),
    )


def _filled(value: Any, variables: Mapping[str, Any]) -> Any:
    """A value of the file with variables inserted; a variable on its own keeps its type.

    >>> _filled(["{k}", "LID {target:g}", True], {"k": 64, "target": 15.0})
    [64, 'LID 15', True]
    """
    if isinstance(value, str):
        whole = _VARIABLE.fullmatch(value)
        return variables[whole[1]] if whole else value.format(**variables)
    if isinstance(value, Mapping):
        return {_filled(key, variables): _filled(each, variables) for key, each in value.items()}
    return [_filled(each, variables) for each in value] if isinstance(value, list) else value


def with_options(arm: Arm, options: Mapping[str, object]) -> Arm:
    """The arm with those of the options that its recipe does not have anyway.

    >>> with_options(Arm("digits/simclr_ldreg"), {"ldreg.k": 32, "ldreg.beta": 0.5}).slug
    'simclr_ldreg-beta0.5'
    """
    if not options:
        return arm
    own = flattened(recipe_settings(arm.recipe).tree)
    own |= {key: value for key, value in _NONE_MEANS.items() if own[key] is None}
    return arm.but(**{key: value for key, value in options.items() if key not in own or own[key] != value})


@cache
def recipe_settings(recipe: str) -> Settings:
    """All settings of a recipe."""
    return resolve(load_recipe(recipe))


def method_of(arm: Arm) -> str:
    """The method that an arm trains, by its name in tables and recipes.

    >>> method_of(Arm("imagenet/simclr_bs4096_e1000_ldreg")), method_of(Arm("digits/simclr_tuned_ldreg"))
    ('simclr', 'simclr_tuned')
    """
    recipe = arm.recipe.rpartition("/")[2]
    return max((name for name in METHODS if recipe == name or recipe.startswith(f"{name}_")), key=len)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


_FILE = yaml.safe_load((files("ldreg.reproduce") / "studies.yaml").read_text(encoding="utf-8"))
METHODS: Mapping[str, str] = _FILE["methods"]
PAPER: Mapping[str, Mapping[str, float]] = _FILE["paper"]
SEARCH: Mapping[str, Any] = _FILE["search"]
BASELINES: Mapping[str, Any] = _FILE["baselines"]
RATES: Mapping[str, Any] = _FILE["rates"]
LIGHTLY: Mapping[str, Sequence[str]] = _FILE["lightly"]
PROSE: Mapping[str, Any] = _FILE["prose"]
SCALES: Mapping[str, Scale] = {name: Scale(name=name, **_tuples(entry)) for name, entry in _FILE["scales"].items()}
STUDIES: Mapping[str, Study] = {
    name: Study(
        name=name,
        entries=entry.pop("rows", []),
        measures=frozenset(entry.pop("measures", ())),
        **_tuples(entry),
    )
    for name, entry in _FILE["studies"].items()
}

_KINDS = {"all": "", "tables": "Table", "figures": "Figure"}


def chosen(names: str) -> list[Study]:
    """The studies named on the command line: "all", "tables", "figures", or names and numbers with commas between them.

    >>> [study.name for study in chosen("table13,figure2b")]
    ['minlid', 'figure2b']
    """
    found: list[Study] = []
    for word in map(str.strip, names.split(",")):
        name = word.lower()
        named = [study for study in STUDIES.values() if name in (study.name, *study.aliases)]
        if name in _KINDS:
            named = [study for study in STUDIES.values() if study.title.startswith(_KINDS[name])]
        if not named:
            known = {*_KINDS, *STUDIES, *(alias for study in STUDIES.values() for alias in study.aliases)}
            like = f"; nearest: {nearest(name, known)}" if name else ""
            raise ValueError(f"expected all or names among {', '.join(STUDIES)}, got {word!r}{like}")
        found += [study for study in named if study not in found]
    return found
