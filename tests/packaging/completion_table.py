"""The table of commands and options that shells complete by, from the parsers; `make completion` writes it."""

import json
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import ldreg.completion
from ldreg import cli
from ldreg.data.config import DATASETS
from ldreg.evaluate import options as evaluation
from ldreg.evaluate import report
from ldreg.evaluate.command import KINDS
from ldreg.reproduce import request
from ldreg.reproduce.scales import SCALES
from ldreg.reproduce.studies import STUDIES
from ldreg.subcommands import command_parser
from ldreg.train import command as pretraining
from ldreg.train import settings
from ldreg.train.recipes import recipe_names

PATH = Path(ldreg.completion.__file__).parent / "options.json"

# Values of options that are checked elsewhere than by their type.
CHECKED = {"--device": ["auto", "cpu", "cuda"], "--data.name": list(DATASETS)}

Values = dict[str, list[str] | None]


def choices(kind: Any) -> list[str] | None:
    """The values of a type that has few."""
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if get_origin(kind) in (Union, types.UnionType):
        found = [choices(member) for member in get_args(kind) if member is not type(None)]
        return found[0] if len(found) == 1 else None
    return ["true", "false"] if kind is bool else None


def options_of(parser: Any) -> Values:
    """The options of a parser, without those of groups as a whole and those that it adds by itself."""
    found: Values = {}
    for action in parser._actions:
        kind = getattr(action, "_typehint", None) or action.type
        stored = kind is not None or type(action).__name__ == "_StoreAction"
        if action.option_strings and stored and "CONFIG" not in str(action.metavar):
            name = action.option_strings[-1]
            found[name] = CHECKED.get(name, choices(kind))
    return found


def settings_options() -> Values:
    """Every setting of every method and regularizer."""
    found: Values = {}
    for method in get_args(settings.MethodName):
        for regularizer in get_args(settings.RegularizerName):
            found |= options_of(settings._parser(method, regularizer))
    return found


def switches(names: Iterable[str]) -> Values:
    return {f"--{name}": [] for name in names}


def table() -> dict[str, dict[str, Any]]:
    """As `ldreg.completion` reads it; the command without a name stands for `ldreg` itself."""
    every = settings_options()
    names: dict[str, dict[str, Any]] = {
        "": {"words": [*cli.COMMANDS, *cli.WORDS], "options": switches(["version"])},
    }
    for name, command in cli.COMMANDS.items():
        parser = command_parser(name, command)
        kinds = [getattr(action, "_typehint", None) for action in parser._actions if not action.option_strings]
        words = [word for kind in kinds for word in choices(kind) or []]
        names[name] = {"words": words, "options": options_of(parser)}
    own: Values = {"--recipe": recipe_names(), "--out": None, "--resume": None}
    names["pretrain"] = {"words": [], "options": own | switches(["list_recipes", "print_config"]) | every}
    names["evaluate"] = {"words": list(KINDS), "options": {}}
    for kind in KINDS:
        names[f"evaluate {kind}"] = {
            "words": [],
            "options": options_of(evaluation._parser(evaluation.kind_of(kind))),
        }
    detection = names["evaluate detection"]["options"]
    names["reproduce"] = {
        "words": ["all", "tables", "figures", *STUDIES],
        "options": {f"--{name}": None for name in request._OWN}
        | {"--scale": list(SCALES)}
        | switches(["plan", "show"])
        | {f"--detection.{name[2:]}": values for name, values in detection.items() if "." not in name}
        | {name: values for name, values in every.items() if name not in ("--method", "--regularizer", "--seed")},
    }
    data = {name: values for name, values in every.items() if name.startswith("--data.")}
    names["report"] = {"words": [], "options": options_of(report._parser()) | data}
    return names


def text() -> str:
    """The table as JSON, one option a line."""
    commands = []
    for command, entry in table().items():
        options = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in entry["options"].items())
        words = json.dumps(entry["words"])
        commands.append(f'{json.dumps(command)}: {{"words": {words}, "options": {{\n{options}\n}}}}')
    return "{\n" + ",\n".join(commands) + "\n}\n"


if __name__ == "__main__":
    assert set(pretraining._OWN) == {"recipe", "out", "resume"}
    PATH.write_text(text(), encoding="utf-8")
