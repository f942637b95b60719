"""`ldreg pretrain`: the words of the command line to a run."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ldreg.extras import require
from ldreg.options import CommandLine, Option
from ldreg.options import Settings as Options
from ldreg.record import brief
from ldreg.text import duration, number, printable
from ldreg.train import folder as folders
from ldreg.train.recipes import flattened, load_recipe, recipe_names

if TYPE_CHECKING:
    from ldreg.train.run import Result
    from ldreg.train.settings import Settings


# Processes that Lightning starts for further devices get the same words; they must find the same folder.
_RUN = "LDREG_RUN"


@dataclass(frozen=True)
class Request:
    """A run to make or to resume: its settings and its folder."""

    settings: "Settings"
    out: Path
    resume: bool


def request(
    settings: Options, *, recipe: str | None = None, out: str | None = None, resume: str | None = None
) -> Request:
    """The run that these options ask for.

    Raises:
        ValueError: an unknown key or name, a value of the wrong type or range, a folder that is no run.
    """
    for name, value in (("resume", resume), ("recipe", recipe), ("out", out)):
        if value == "":  # an unset $VARIABLE
            raise ValueError(f"--{name}: expected a value, got none")
        if value is not None and resume is not None and name != "resume":
            raise ValueError(f"--{name}: has no effect with --resume, which takes it from the run; got {value!r}")
    if resume is not None:
        return _resumed(Path(resume), settings)
    tree = load_recipe(recipe or _default_recipe(settings))
    from ldreg.train.settings import resolve  # after errors in the recipe's name: torch takes seconds to import

    resolved = resolve(tree, settings)
    folder = _default_folder(resolved) if out is None else Path(out)
    return Request(resolved, folder, resume=_restarted(folder, resolved))


def _restarted(out: Path, settings: "Settings") -> bool:
    """Whether torchrun or SLURM repeats the command of a run, which then goes on; ValueError if it is another."""
    from ldreg.train.settings import identity, resolve

    restarts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    if not any(int(os.environ.get(name, 0)) for name in restarts) or not folders.RunFolder(out).config.is_file():
        return False
    _, tree = folders.existing(out)
    if identity(resolve(tree, [])) != identity(settings):
        raise ValueError(f"out: expected the settings of the run in {str(out)!r} to go on with it, got others")
    return True


def _resumed(path: Path, options: Options) -> Request:
    from ldreg.train.settings import CHANGEABLE, resolve

    _, tree = folders.existing(path)
    fixed = [key for key, _ in options if key not in CHANGEABLE]
    known = flattened(tree)
    if not any(key in known for key in fixed):
        settings = resolve(tree, options)  # which rejects what no run has
        if not fixed:
            return Request(settings, path, resume=True)
    key = next((key for key in fixed if key in known), fixed[0])  # options newer than the run come last
    changeable = ", ".join(sorted(CHANGEABLE))
    raise ValueError(f"--{key}: --resume goes on with the run's own settings; only {changeable} may change")


def _default_recipe(options: Options) -> str:
    from ldreg.methods import METHODS
    from ldreg.train.settings import RunConfig

    chosen = dict(options)
    method = chosen.get("method") or RunConfig().method
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(sorted(METHODS))}, got {method!r}")
    return f"digits/{method}" + ("_ldreg" if chosen.get("regularizer", "ldreg") == "ldreg" else "")


def _default_folder(settings: "Settings") -> Path:
    if _RUN in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        return Path(os.environ[_RUN])
    if "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_PROCID" in os.environ:
        raise ValueError("--out: expected a folder, as processes that torchrun or SLURM started must agree on one")
    run = settings.run
    regularizer = "" if run.regularizer == "none" else f"-{run.regularizer}"
    name = f"{settings.data.name}-{run.method}{regularizer}-{time.strftime('%Y%m%d-%H%M%S')}"
    return folders.unused(Path("runs") / name)


def pretrain_command(
    *,
    recipe: str | None = None,
    out: str | None = None,
    resume: str | None = None,
    list_recipes: bool = False,
    print_config: bool = False,
    settings: Options,
    command: CommandLine,
) -> None:
    """Train an encoder by self-supervision, with or without a regularizer.

    Args:
        recipe: settings to start from: a name of --list_recipes or a .yaml file; by default digits/METHOD, with _ldreg
            unless another regularizer is chosen
        out: new folder for everything the run leaves; by default runs/...
        resume: continue a run that was interrupted, exactly where its last checkpoint is
        list_recipes: print the names of all recipes and stop
        print_config: print every setting as YAML, which --recipe takes, and stop
        settings: of the run
        command: as it was typed
    """
    if list_recipes:
        print("\n".join(recipe_names()))
        return
    asked = request(settings, recipe=recipe, out=out, resume=resume)
    if print_config:
        print(yaml.safe_dump(asked.settings.tree, sort_keys=False, allow_unicode=True), end="")
        return
    require("train")
    from ldreg.train.run import pretrain  # Lightning takes seconds to import

    os.environ[_RUN] = str(asked.out)
    try:
        result = pretrain(asked.settings, asked.out, command=command, resume=asked.resume)
    finally:
        del os.environ[_RUN]
    if result.main:
        print(summary(result))


def setting_options(given: Options | None) -> list[Option]:
    """The settings of a run by the method and regularizer given, with its recipe's values; None: of all of them."""
    from ldreg.train.settings import all_options, run_options

    if given is None:
        return all_options()
    resolved = request(given, out="run").settings
    values = flattened(resolved.tree)
    options = run_options(resolved.run.method, resolved.run.regularizer)
    return [replace(option, default=values.get(option.key, option.default)) for option in options]


_SUMMARY = {
    "set/lid": "LID, geometric mean",
    "set/effective_rank": "effective rank",
    "set/linear": "linear probe",
    "set/knn": "kNN",
}


def summary(result: "Result") -> str:
    """What came of the run, in a few lines."""
    metrics = result.metrics
    lines = [f"{name:<20} {number(metrics[key])}" for key, name in _SUMMARY.items() if key in metrics]
    for one in brief(result.findings):
        unusual = f"{one.of}: {printable(one.text)}" if one.kind != "nothing_unusual" else "nothing unusual found"
        lines.append(f"[{one.severity}] {unusual}" if one.serious else unusual)
    end = f"stopped: {result.stopped}" if result.stopped else f"done in {duration(result.minutes)}"
    return "\n".join([*lines, f"{end}; encoder, card and metrics are in {result.folder.path}"])
