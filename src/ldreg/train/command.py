"""`ldreg pretrain`: the words of the command line to a run."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ldreg.extras import require
from ldreg.record import brief
from ldreg.text import duration, number, printable
from ldreg.train import folder as folders
from ldreg.train.recipes import flattened, load_recipe, recipe_names

if TYPE_CHECKING:
    from ldreg.train.run import Result
    from ldreg.train.settings import Settings

Options = list[tuple[str, str | None]]

_SWITCHES = ("help", "print_config", "list_recipes")
_OWN = ("recipe", "out", "resume")

# Processes that Lightning starts for further devices are given the same words; they must find the same folder.
_RUN = "LDREG_RUN"

USAGE = """usage: ldreg pretrain [--recipe NAME] [--out FOLDER] [--SETTING VALUE ...]
       ldreg pretrain --resume FOLDER

Train an encoder by self-supervision, with or without a regularizer.

  --recipe NAME     settings to start from: a name of --list_recipes, or a .yaml
                    file (default: digits/METHOD, with _ldreg unless another
                    regularizer is asked for)
  --out FOLDER      new folder for everything the run leaves (default: runs/...)
  --resume FOLDER   go on with a run that was interrupted, exactly where its
                    last checkpoint stands
  --list_recipes    print the names of all recipes and stop
  --print_config    print every setting as YAML, which --recipe takes, and stop
  --help            this text, with the settings of the method and regularizer

examples:
  ldreg pretrain
  ldreg pretrain --method byol --regularizer ldreg --ldreg.beta 0.005
  ldreg pretrain --recipe cifar10/simclr_ldreg --data.path cifar10.tar.xz
  ldreg pretrain --recipe imagenet/byol_ldreg --data.path /data/imagenet \\
    --trainer.devices 4 --out runs/byol
  ldreg pretrain --resume runs/byol
"""


@dataclass(frozen=True)
class Request:
    """A run to be made: its settings and where it goes, or which run it continues."""

    settings: "Settings"
    recipe: str | None
    out: Path
    resume: bool


def words_to_options(words: Sequence[str]) -> Options:
    """Pairs of key and value; None for a switch, or where no value follows.

    Raises:
        ValueError: a word is no option.

    >>> words_to_options(["--ldreg.beta", "0.1", "--data.max-unreadable=0", "--help"])
    [('ldreg.beta', '0.1'), ('data.max_unreadable', '0'), ('help', None)]
    """
    options: Options = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help"):
            options.append(("help", None))
            continue
        if not word.startswith("--") or word == "--":
            raise ValueError(f"expected an option such as --recipe NAME, got {word!r}")
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if equals:
            options.append((key, value))
        elif key not in _SWITCHES and rest and not rest[0].startswith("--"):
            options.append((key, rest.pop(0)))
        else:
            options.append((key, None))
    return options


def request(options: Options) -> Request:
    """What these options ask for.

    Raises:
        ValueError: an unknown key or name, a value of the wrong type or range, a folder that is no run.
    """
    own = {key: _needed(key, value) for key, value in options if key in _OWN}
    others = [(key, value) for key, value in options if key not in _OWN]
    if "resume" in own:
        return _resumed(Path(own["resume"]), own, others)
    recipe = own["recipe"] if "recipe" in own else _default_recipe(others)
    tree = load_recipe(recipe)
    from ldreg.train.settings import resolve  # after errors in the recipe's name: torch takes seconds to import

    settings = resolve(tree, others)
    out = Path(own["out"]) if "out" in own else _default_folder(settings)
    return Request(settings, recipe, out, resume=_begun_before(out, settings))


def _begun_before(out: Path, settings: "Settings") -> bool:
    """Whether torchrun or SLURM gives a run's own command once more, which then goes on with the run.

    Raises:
        ValueError: the run there is another.
    """
    from ldreg.train.processes import restarted
    from ldreg.train.settings import identity, resolve

    if not restarted() or not folders.RunFolder(out).config.is_file():
        return False
    _, tree = folders.existing(out)
    if identity(resolve(tree, [])) != identity(settings):
        raise ValueError(f"out: expected the settings of the run in {str(out)!r} to go on with it, got others")
    return True


def _resumed(path: Path, own: dict[str, str], others: Options) -> Request:
    from ldreg.train.settings import CHANGEABLE, resolve

    for key in ("recipe", "out"):
        if key in own:
            raise ValueError(f"--{key}: expected nothing beside --resume, which has it from the run, got {own[key]!r}")
    _, tree = folders.existing(path)
    foreign = [key for key, _ in others if key not in CHANGEABLE]
    for key in foreign:
        if key in flattened(tree):
            raise _unchangeable(key)
    settings = resolve(tree, others)  # which refuses what no run has
    if foreign:  # newer than the run
        raise _unchangeable(foreign[0])
    return Request(settings, None, path, resume=True)


def _unchangeable(key: str) -> ValueError:
    from ldreg.train.settings import CHANGEABLE

    changeable = ", ".join(sorted(CHANGEABLE))
    return ValueError(f"--{key}: --resume goes on with the run's own settings; only {changeable} may change")


def _needed(key: str, value: str | None) -> str:
    if not value:
        raise ValueError(f"--{key}: expected a value, got none")
    return value


def _default_recipe(options: Options) -> str:
    from ldreg.methods import METHODS
    from ldreg.train.settings import RunConfig

    chosen = dict(options)
    method = chosen.get("method") or RunConfig().method
    suffix = "_ldreg" if chosen.get("regularizer", "ldreg") == "ldreg" else ""
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(sorted(METHODS))}, got {method!r}")
    return f"digits/{method}{suffix}"


def _default_folder(settings: "Settings") -> Path:
    if _RUN in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        return Path(os.environ[_RUN])
    if "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_PROCID" in os.environ:
        raise ValueError("--out: expected a folder, as processes that torchrun or SLURM started must agree on one")
    run = settings.run
    regularizer = "" if run.regularizer == "none" else f"-{run.regularizer}"
    name = f"{settings.data.name}-{run.method}{regularizer}-{time.strftime('%Y%m%d-%H%M%S')}"
    return folders.unused(Path("runs") / name)


def pretrain_command(words: Sequence[str]) -> None:
    """Run `ldreg pretrain` with these words."""
    options = words_to_options(words)
    switches = {key for key, _ in options if key in _SWITCHES}
    options = [(key, value) for key, value in options if key not in _SWITCHES]
    if "list_recipes" in switches:
        print("\n".join(recipe_names()))
        return
    if "help" in switches:
        print(USAGE, flush=True)  # also where what the rest needs is not installed
        from ldreg.train.settings import option_help

        asked = request([*options, ("out", "run")] if "out" not in dict(options) else options)
        print(option_help(asked.settings))
        return
    asked = request(options)
    if "print_config" in switches:
        print(yaml.safe_dump(asked.settings.tree, sort_keys=False, allow_unicode=True), end="")
        return
    os.environ[_RUN] = str(asked.out)
    try:
        _carry_out(asked, command=shlex.join(["ldreg", "pretrain", *words]))
    finally:
        del os.environ[_RUN]


def _carry_out(asked: Request, *, command: str) -> None:
    require("train")
    from ldreg.train.run import pretrain  # Lightning takes seconds to import

    result = pretrain(asked.settings, asked.out, command=command, resume=asked.resume)
    if result.main:
        print(summary(result))


def summary(result: "Result") -> str:
    """What came of the run, in a few lines."""
    shown = {
        "set/lid": "LID, geometric mean",
        "set/effective_rank": "effective rank",
        "set/linear": "linear probe",
        "set/knn": "kNN",
    }
    found = {name: result.metrics.get(key) for key, name in shown.items()}
    lines = [f"{name:<20} {number(value)}" for name, value in found.items() if value is not None]
    for one in brief(result.findings):
        unusual = f"{one.of}: {printable(one.text)}" if one.kind != "nothing_unusual" else "nothing unusual found"
        lines.append(f"[{one.severity}] {unusual}" if one.serious else unusual)
    end = f"stopped: {result.stopped}" if result.stopped else f"done in {duration(result.minutes)}"
    return "\n".join([*lines, f"{end}; encoder, card and metrics are in {result.folder.path}"])
