"""Every setting of a pretraining run: one typed tree, of defaults, a recipe and the command line."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from inspect import signature
from typing import Any, Literal, NamedTuple, get_args

from torch import nn

from ldreg.data import DataConfig
from ldreg.encoders import EncoderConfig
from ldreg.methods import METHODS, MethodName
from ldreg.monitor.watch import MonitorConfig
from ldreg.optim import OptimizerConfig, ScheduleConfig
from ldreg.options import Option, fields_of, nearest, typed
from ldreg.regularizers import Covariance, KoLeo, LDReg, SIGReg, VarianceCovariance
from ldreg.train.recipes import Tree, flattened
from ldreg.views import ViewsConfig

RegularizerName = Literal["none", "ldreg", "minlid", "covariance", "variance_covariance", "koleo", "sigreg"]


class RegularizerEntry(NamedTuple):
    """A regularizer, and the arguments that its name fixes."""

    type: type[nn.Module]
    fixed: Mapping[str, Any]


_GATHERED = {"gather": True}  # the batch of all processes, with the gradient of a single process
_LDREG = {**_GATHERED, "start": 0}  # regularizer_start takes its place

REGULARIZERS = {
    "ldreg": RegularizerEntry(LDReg, {**_LDREG, "direction": "maximize"}),
    "minlid": RegularizerEntry(LDReg, {**_LDREG, "direction": "minimize", "target": None, "norm": "l1"}),
    "covariance": RegularizerEntry(Covariance, _GATHERED),
    "variance_covariance": RegularizerEntry(VarianceCovariance, _GATHERED),
    "koleo": RegularizerEntry(KoLeo, _GATHERED),
    "sigreg": RegularizerEntry(SIGReg, _GATHERED),
}


AUTO = "auto"
"""A beta that is taken from the gradients of the first batches, before the run begins."""

BALANCE = ("share", "smoothing", "max_beta")
"""Options that every regularizer has, in place of beta: those of `Balance`."""


@dataclass(frozen=True)
class TrainerConfig:
    """Where and how a run is carried out.

    Args:
        device: auto, cpu or cuda
        devices: processes on each node, with one device each
        nodes: machines, as torchrun or SLURM started them
        precision: fp32, or bf16 or fp16 mixed with float32
        compile: compile the encoder with torch.compile
        channels_last: memory layout of images and convolutions
        accumulate: parts that a batch is taken in, one after another; each part has a loss of its own
        clip_norm: largest norm of the gradient; null for no clipping
        sync_batch_norm: batch statistics of all processes together
        checkpoint_epochs: epochs between checkpoints
        checkpoint_steps: optimizer steps between checkpoints within an epoch; null for none
        log_to: further loggers, as [tensorboard,wandb]
        threads: CPU threads of each process; null for PyTorch's choice
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    nodes: int = 1
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    channels_last: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    sync_batch_norm: bool = True
    checkpoint_epochs: int = 1
    checkpoint_steps: int | None = None
    log_to: tuple[Literal["tensorboard", "wandb"], ...] = ()
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("devices", "nodes", "accumulate", "checkpoint_epochs", "checkpoint_steps", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise ValueError(f"clip_norm: expected a finite number above 0, or null, got {self.clip_norm}")


@dataclass(frozen=True)
class RunConfig:
    """What is trained.

    Args:
        method: method of self-supervision
        regularizer: added to its loss, on the encoder's representations
        regularizer_start: epochs before the regularizer is added
        batch_size: images of one optimizer step, over all processes and accumulated parts
        seed: seed of all random draws
    """

    method: MethodName = "simclr"
    regularizer: RegularizerName = "none"
    regularizer_start: float = 0.0
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise ValueError(f"batch_size: expected at least 2, got {self.batch_size}")
        if not 0 <= self.regularizer_start < float("inf"):
            raise ValueError(f"regularizer_start: expected epochs from 0 on, got {self.regularizer_start}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: expected 0 to 2**63 - 1, got {self.seed}")


# A run may be resumed with others of these; all other settings make it another run.
CHANGEABLE = frozenset({
    "data.path", "data.cache", "data.workers", "trainer.device", "trainer.devices", "trainer.nodes", "trainer.threads",
    "trainer.checkpoint_epochs", "trainer.checkpoint_steps", "trainer.log_to",
})  # fmt: skip

GROUPS: dict[str, type] = {
    "data": DataConfig,
    "views": ViewsConfig,
    "encoder": EncoderConfig,
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "trainer": TrainerConfig,
    "monitor": MonitorConfig,
}


@dataclass(frozen=True)
class Settings:
    """All settings, typed; `tree` is the same as plain data, as a recipe has it."""

    run: RunConfig
    method: Any  # the config class of the method
    regularizer: dict[str, Any]  # arguments of the regularizer
    data: DataConfig
    views: ViewsConfig
    encoder: EncoderConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    trainer: TrainerConfig
    monitor: MonitorConfig
    tree: Tree

    def __post_init__(self) -> None:
        run, parts = self.run, self._parts
        if run.regularizer_start and run.regularizer == "none":
            raise ValueError(f"regularizer_start: expected 0 without a regularizer, got {run.regularizer_start}")
        if run.regularizer_start >= self.schedule.epochs:
            raise ValueError(
                f"regularizer_start: expected fewer than the {self.schedule.epochs} epochs, got {run.regularizer_start}"
            )
        if self.regularizer.get("beta") == AUTO and self.trainer.devices * self.trainer.nodes > 1:
            expected = "a number with several processes, which have to agree on it"
            raise ValueError(f"{run.regularizer}.beta: expected {expected}, got {AUTO}; a share needs none")
        if run.batch_size % parts:
            expected = f"a multiple of devices × nodes × accumulate = {parts}"
            raise ValueError(f"batch_size: expected {expected}, got {run.batch_size}")

    @property
    def micro_batch(self) -> int:
        """Images that one process takes at once."""
        return self.run.batch_size // self._parts

    @property
    def _parts(self) -> int:
        return self.trainer.devices * self.trainer.nodes * self.trainer.accumulate


def resolve(tree: Mapping[str, Any], options: Sequence[tuple[str, str | None]] = ()) -> Settings:
    """Settings from a recipe's tree and options of the command line (None: a switch without a value).

    Overriding the recipe's method or regularizer drops the recipe's options for it.

    Raises:
        ValueError: an unknown key, which is named with the nearest valid ones, or a value of the wrong type or range.
    """
    given = flattened(tree)
    chosen = {key: _choice(key, given, options) for key in ("method", "regularizer")}
    dropped = {given[key] for key in chosen if given.get(key, chosen[key]) != chosen[key]}
    given = {key: value for key, value in given.items() if key.partition(".")[0] not in dropped}
    given = _with_one_strength(given, dict(options), chosen["regularizer"])
    known = run_options(chosen["method"], chosen["regularizer"])
    for key in (*given, *(key for key, _ in options)):
        _check_key(key, [option.key for option in known], chosen)
    # Values of a recipe are checked as words of the command line are.
    recipe = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in given.items()]
    words: list[tuple[str, str | None]] = [*recipe, *options]
    beta = f"{chosen['regularizer']}.beta"
    automatic = dict(words).get(beta) == AUTO
    if automatic:
        words = [(key, value) for key, value in words if key != beta]
    values = typed(known, words, dashes=False)
    return _settings(values | {beta: AUTO} if automatic else values)


def _choice(key: str, given: Mapping[str, Any], options: Sequence[tuple[str, str | None]]) -> str:
    """The chosen method or regularizer: of the command line, else of the recipe, else the default."""
    name = str(dict(options).get(key) or given.get(key, getattr(RunConfig(), key)))
    names = get_args(MethodName if key == "method" else RegularizerName)
    if name not in names:
        raise ValueError(f"{key}: expected one of {', '.join(names)}, got {name!r}; nearest: {nearest(name, names)}")
    return name


def _with_one_strength(given: Mapping[str, Any], options: Mapping[str, Any], regularizer: str) -> dict[str, Any]:
    """What the recipe gives, without its beta if the command line gives a share, and the other way around.

    Raises:
        ValueError: one of the two gives both.
    """
    beta, share = f"{regularizer}.beta", f"{regularizer}.share"
    for keys in (given, options):
        if beta in keys and keys.get(share) is not None:
            raise ValueError(f"{share}: expected no {beta} with it, got {keys[beta]}")
    dropped = {beta} if share in options else set()
    dropped |= {f"{regularizer}.{name}" for name in BALANCE} if beta in options else set()
    return {key: value for key, value in given.items() if key not in dropped}


def _check_key(key: str, known: Sequence[str], chosen: Mapping[str, str]) -> None:
    if key in known:
        return
    group = key.partition(".")[0]
    for kind, names in (("method", METHODS), ("regularizer", REGULARIZERS)):
        if group in names and group != chosen[kind]:
            raise ValueError(f"{key}: expected options of the {kind} {chosen[kind]!r}, got one of {group!r}")
    raise ValueError(f"unknown setting {key!r}; nearest: {nearest(key, known)}")


def _settings(values: Tree) -> Settings:
    tree: Tree = {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        (tree.setdefault(group, {}) if group else tree)[name] = value
    run = RunConfig(**{field.name: tree[field.name] for field in fields(RunConfig)})
    if run.regularizer != "none":
        _drop_what_has_no_effect(tree[run.regularizer], run.regularizer)
    made = {}
    for name, config in {run.method: METHODS[run.method].config, **GROUPS}.items():
        try:
            made[name] = config(**tree[name])
        except ValueError as error:
            raise ValueError(f"{name}.{error}") from error
    method, regularizer = made.pop(run.method), dict(tree.get(run.regularizer, {}))
    return Settings(run=run, method=method, regularizer=regularizer, tree=_plain(tree), **made)


def _drop_what_has_no_effect(options: Tree, regularizer: str) -> None:
    """Remove beta where there is a share, and the options of a share where there is none."""
    if options["share"] is not None:
        del options["beta"]
        return
    for name in BALANCE:
        value = options.pop(name)
        if value:
            raise ValueError(f"{regularizer}.{name}: has no effect without {regularizer}.share, got {value}")


def _plain(value: Any) -> Any:
    """The same without tuples, which YAML does not have."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@cache
def run_options(method: str, regularizer: str) -> tuple[Option, ...]:
    """Every setting of a run with this method and regularizer."""
    options = [*fields_of(RunConfig), *fields_of(METHODS[method].config, method)]
    if regularizer != "none":
        entry = REGULARIZERS[regularizer]
        own = [option for option in fields_of(entry.type, regularizer) if option.name not in entry.fixed]
        names = {option.name for option in own}
        options += own + [option for option in fields_of(LDReg, regularizer, only=BALANCE) if option.name not in names]
    for name, config in GROUPS.items():
        options += fields_of(config, name)
    return tuple(options)


def all_options() -> list[Option]:
    """Every setting of a run with any method and regularizer."""
    pairs = [(method, "none") for method in METHODS] + [("simclr", name) for name in REGULARIZERS]
    return list({option.key: option for pair in pairs for option in run_options(*pair)}.values())


def identity(settings: Settings) -> dict[str, Any]:
    """The settings that decide what a run ends with; a checkpoint with others belongs to another run."""
    return {key: value for key, value in flattened(settings.tree).items() if key not in CHANGEABLE}


def defaults(settings: Settings, keys: Iterable[str]) -> dict[str, Any]:
    """The defaults of these keys, for the method and regularizer of the settings."""
    known = {option.key: option.default for option in run_options(settings.run.method, settings.run.regularizer)}
    return {key: _plain(known[key]) for key in keys if key in known}


def record_settings(settings: Settings) -> dict[str, Any]:
    """All settings by their dotted keys, for records, without options of the regularizer that have their default.

    A run without a regularizer has none of them, and a comparison with it would list them all.
    """
    flat, name = flattened(settings.tree), settings.run.regularizer
    if name == "none":
        return flat
    usual = signature(REGULARIZERS[name].type).parameters
    for option, value in settings.regularizer.items():
        if option in usual and option not in ("beta", "k") and value == usual[option].default:
            del flat[f"{name}.{option}"]
    return flat


@contextmanager
def named(group: str, config: type | None = None) -> Iterator[None]:
    """Put the group before the argument that an error names, if it is a field of the config or there is no config."""
    try:
        yield
    except ValueError as error:
        if config is None or str(error).partition(":")[0] in {field.name for field in fields(config)}:
            raise ValueError(f"{group}.{error}") from error
        raise
