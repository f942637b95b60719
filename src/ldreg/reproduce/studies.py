"""The studies of the paper, from `studies.yaml`: scales, and for each table and figure the runs behind its rows."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

import yaml

from ldreg.data import DataConfig
from ldreg.options import nearest
from ldreg.reproduce.baselines import L18, combinations, combined
from ldreg.reproduce.jobs import Arm, Job
from ldreg.train.recipes import flattened
from ldreg.train.settings import Settings

ScaleName = Literal["imagenet", "cifar10", "digits"]
T = TypeVar("T")

_ROW = {"id", "names", "recipe", "set", "paper", "against", "judged", "group", "x", "long", "by"}
_NONE_MEANS = {"views.jitter": 1.0}  # what a setting of None stands for
_VARIABLE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Scale:
    """What depends on the size of the runs; `studies.yaml` explains the fields.

    `epochs` is the length of every run, None for that of the recipes.
    """

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
    epochs: int | None = None
    anchor_epochs: int | None = None
    long_recipes: Mapping[str, str] = field(default_factory=dict, hash=False)
    search_rates: Mapping[str, Sequence[float]] = field(default_factory=dict, hash=False)

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
    """One row of a table: its name, the arm that is trained for it, and the paper's values.

    Args:
        names: the cells that name it.
        arm: what is trained.
        values: the paper's values by result; NaN stands for a collapse.
        baseline: position of the row that it is compared with; None for none.
        judged: whether the paper claims a direction of the difference from that row.
        group: of rows on one line of a figure.
        x: position on the axis of a figure.
    """

    names: tuple[str, ...]
    arm: Arm
    values: Mapping[str, float] = field(default_factory=dict)
    baseline: int | None = None
    judged: bool = True
    group: str = ""
    x: float = 0.0


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper, or a question beyond it.

    Args:
        name: on the command line.
        title: its heading.
        text: what it shows, and what the paper saw.
        keys: titles of the columns that name a row.
        entries: the rows as `studies.yaml` has them.
        aliases: other names, as the paper numbers it.
        metrics: results shown as columns; empty for those of the scale's datasets.
        measures: what is measured beyond the results of every run.
        only_named: whether it runs only where it is named and not with `all`.
        every_length: whether it is shown at every number of epochs that has runs, not only at one.
        scales: that have it; empty for all.
        settings: options of every run by scale.
        function: that makes the rows instead of `entries`.
    """

    name: str
    title: str
    text: str
    keys: tuple[str, ...]
    entries: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    aliases: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    measures: frozenset[str] = frozenset()
    only_named: bool = False
    every_length: bool = False
    scales: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    function: str = ""

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
        return tuple(_FUNCTIONS[study.function](scale))
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
        variables = {**variables, **_regularizer_variables(scale, recipe)}
    known = {key: _filled(value, variables) for key, value in entry.items()}
    arm = scale.long(recipe) if known.get("long") else scale.arm(recipe)
    arm = with_options(arm, known.get("set", {})).but(**settings)
    paper = known.get("paper", {})
    return Row(
        names=tuple(map(str, known["names"])),
        arm=replace(arm, by=known.get("by", "ldreg")),
        values=paper_values(paper) if isinstance(paper, str) else paper,
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


def _regularizer_variables(scale: Scale, recipe: str) -> dict[str, Any]:
    own = recipe_settings(f"{scale.name}/{recipe}").regularizer
    other = "" if own["k"] == scale.k else f", k {own['k']}"
    return {"recipe_beta": f"{own['beta']:g}", "recipe_k": own["k"], "other_k": other}


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
    return Job(Arm(recipe), 0).settings


def _neighborhoods(scale: Scale) -> Iterator[Row]:
    """Methods without LDReg and with several k: the usual one and the recipe's where they differ; MoCo with more.

    At the scale of imagenet no k was chosen; its k are those of the paper.
    """
    count = 0
    for method in scale.methods if scale.name != "imagenet" else ():
        own, recipe = scale.arm(f"{method}_ldreg"), recipe_settings(f"{scale.name}/{method}_ldreg").regularizer
        others = (scale.k // 4, 2 * scale.k) if method == "moco" else ()
        tried = sorted({scale.k, recipe["k"], *others})
        if len(tried) > 1:
            baseline, count = count, count + 1 + len(tried)
            yield Row((METHODS[method], "-", "-"), scale.arm(method))
            for k in tried:
                names = (METHODS[method], f"LDReg, β {recipe['beta']:g}", str(k))
                yield Row(names, with_options(own, {"ldreg.k": k}), baseline=baseline)


def _search(scale: Scale) -> list[Row]:
    """Every method without LDReg, some with several learning rates; with several strengths; with several k.

    All options are in the names of the runs, since recipes change by what the search finds. Runs longer than the
    scale's search vary beta alone.
    """
    rows: list[Row] = []
    longer = scale.epochs is not None and scale.epochs > scale.search_epochs
    for method in scale.methods:
        title, rates = METHODS[method], scale.search_rates.get(method, ())
        own = recipe_settings(f"{scale.name}/{method}").optimizer.lr if rates else None
        plain = {rate: _search_arm(scale, method, rate) for rate in (rates if rates and not longer else (own,))}
        baseline = len(rows) + list(plain).index(own)
        names = [title if rate is None else f"{title}, learning rate {rate:g}" for rate in plain]
        rows += [Row((name, "-", "-"), arm, group=method) for name, arm in zip(names, plain.values(), strict=True)]
        for beta, k in _tried(scale, method, longer=longer):
            arm = _search_arm(scale, f"{method}_ldreg", own).but(ldreg__beta=beta, ldreg__k=k)
            rows.append(Row((title, beta, str(k)), arm, baseline=baseline, group=method))
    return rows


def _baselines(scale: Scale) -> Iterator[Row]:
    """The runs that choose the recipes without LDReg; all settings are in their names, since recipes change by them."""
    for method, settings in BASELINES["settings"].items():
        runs = combinations(settings)
        if method in BASELINES["chosen"]:
            runs.append(combined(settings, BASELINES["chosen"][method]))
        for number, options in enumerate(runs, start=1):
            arm = Arm(f"{scale.name}/{method}").but(data__validation=SEARCH["validation"])
            arm = arm.but(schedule__epochs=scale.epochs or BASELINES["epochs"]).but(**options)
            values = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in options.items())
            name = "chosen" if number > len(L18) else str(number)
            yield Row((METHODS[method], name, values), arm, group=method)


def _tried(scale: Scale, method: str, *, longer: bool) -> list[tuple[str, int]]:
    """Beta and k of LDReg that are tried, each pair once: strengths at the scale's k, then k at the recipe's beta."""
    of_paper = recipe_settings(f"imagenet/{'moco' if method == 'moco_v3' else method}_ldreg").regularizer["beta"]
    factors = SEARCH["betas_of"].get(method, SEARCH["betas"])
    pairs = [(f"{factor * float(f'{of_paper:g}'):g}", scale.k) for factor in factors]
    if not longer:
        beta = recipe_settings(f"{scale.name}/{method}_ldreg").regularizer["beta"]
        pairs += [(f"{beta:g}", round(factor * scale.k)) for factor in SEARCH["neighbors"]]
    return list(dict.fromkeys(pairs))


def _search_arm(scale: Scale, recipe: str, rate: float | None) -> Arm:
    arm = scale.arm(recipe).but(data__validation=SEARCH["validation"])
    arm = arm if rate is None else arm.but(optimizer__lr=f"{rate:g}")
    return arm if scale.epochs is not None else arm.but(schedule__epochs=scale.search_epochs)


_FUNCTIONS: Mapping[str, Callable[[Scale], Iterator[Row] | list[Row]]] = {
    "baselines": _baselines,
    "neighborhoods": _neighborhoods,
    "search": _search,
}


def method_of(arm: Arm) -> str:
    """The method that an arm trains, by its name in tables and recipes.

    >>> method_of(Arm("imagenet/simclr_bs4096_e1000_ldreg")), method_of(Arm("digits/simclr_tuned_ldreg"))
    ('simclr', 'simclr_tuned')
    """
    recipe = arm.recipe.rpartition("/")[2]
    return max((name for name in METHODS if recipe == name or recipe.startswith(f"{name}_")), key=len)


def paper_values(name: str) -> Mapping[str, float]:
    """The paper's values by result, of an entry of `paper` in `studies.yaml`.

    Raises:
        ValueError: it has no such entry.

    >>> paper_values("byol_ldreg")["lid"]
    22.3
    """
    if name not in PAPER:
        raise ValueError(f"paper: expected one of {', '.join(PAPER)}, got {name!r}")
    return PAPER[name]


def dataset(name: str, paths: Mapping[str, str], *, size: int | None = None) -> DataConfig:
    """The images of this name, at the path given for it."""
    return DataConfig(name=name, path=paths.get(name), size=size)


def _typed(kind: Callable[..., T], name: str, entry: Mapping[str, Any]) -> T:
    """The entry of a scale or study as its dataclass, with tuples in the place of lists."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    try:
        return kind(name=name, **values)
    except TypeError as error:
        raise ValueError(f"studies.yaml: {name}: {error}") from error


def _study(name: str, entry: Mapping[str, Any]) -> Study:
    more = {"entries": entry.get("rows", []), "measures": frozenset(entry.get("measures", ()))}
    return _typed(Study, name, {**{key: value for key, value in entry.items() if key != "rows"}, **more})


_FILE = yaml.safe_load((files("ldreg.reproduce") / "studies.yaml").read_text(encoding="utf-8"))
METHODS: Mapping[str, str] = _FILE["methods"]
PAPER: Mapping[str, Mapping[str, float]] = _FILE["paper"]
SEARCH: Mapping[str, Any] = _FILE["search"]
BASELINES: Mapping[str, Any] = _FILE["baselines"]
RATES: Mapping[str, Any] = _FILE["rates"]
SCALES: Mapping[str, Scale] = {name: _typed(Scale, name, entry) for name, entry in _FILE["scales"].items()}
STUDIES: Mapping[str, Study] = {name: _study(name, entry) for name, entry in _FILE["studies"].items()}

_KINDS = {"all": "", "tables": "Table", "figures": "Figure"}


def chosen(names: str) -> list[Study]:
    """The studies named on the command line: "all", "tables", "figures", or names with commas between them.

    Names are those of the studies, and their numbers in the paper.

    Raises:
        ValueError: no study has this name.

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
