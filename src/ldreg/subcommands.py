"""Subcommands from functions: typed parameters become arguments and options, their documentation the help."""

import inspect as signatures
import re
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentParser

_WIDTH = 80  # columns of help that is not fitted to the terminal


@dataclass(frozen=True)
class Command:
    """A subcommand: a function of typed parameters with a documented meaning each, and examples of its use.

    Parameters without a default become positional; `some_name` becomes `--some-name`. Imports that take time belong
    inside the function, so that help stays quick.
    """

    run: Callable[..., None]
    examples: tuple[str, ...]
    metavars: dict[str, str]  # what stands for the value of an option in its help; N where it is not here


def command_parser(name: str, command: Command) -> ArgumentParser:
    """The parser of a command's words, with its help."""
    parameters = signatures.signature(command.run).parameters.values()
    positional = [parameter.name.upper() for parameter in parameters if parameter.default is parameter.empty]
    parser = ArgumentParser(
        usage=" ".join(["ldreg", name, *positional, "[options]"]),
        description=textwrap.fill(summary(command), _WIDTH),
        epilog="examples:\n" + "\n".join(f"  {example}" for example in command.examples),
        allow_abbrev=False,
        exit_on_error=False,
    )
    helps = {entry.arg_name: entry.description for entry in parse_docstring(command.run.__doc__ or "").params}
    for parameter in parameters:
        kind, text = _without_none(parameter.annotation), (helps[parameter.name] or "").replace("%", "%%")
        if parameter.default is parameter.empty:
            parser.add_argument(parameter.name, type=kind, metavar=parameter.name.upper(), help=text)
            continue
        shown = "" if parameter.default is None or parameter.default is False else f" (default: {parameter.default})"
        metavar = None if get_origin(kind) is Literal else command.metavars.get(parameter.name, "N")
        alone: dict[str, Any] = {"nargs": "?", "const": True} if kind is bool else {}  # an option without a word is yes
        parser.add_argument(
            option(parameter.name), type=kind, default=parameter.default, help=text + shown, metavar=metavar, **alone
        )
    return parser


def _without_none(kind: Any) -> Any:
    """The type that may be given on the command line for an optional parameter."""
    others = [member for member in get_args(kind) if member is not type(None)]
    return others[0] if type(None) in get_args(kind) and len(others) == 1 else kind


def summary(command: Command) -> str:
    """What it does, in the first sentence of its documentation."""
    return parse_docstring(command.run.__doc__ or "").short_description or ""


def option(name: str) -> str:
    """A parameter as it is given on the command line.

    >>> option("label_key")
    '--label-key'
    """
    return "--" + name.rpartition(".")[2].replace("_", "-")


def complaint(error: Exception) -> str:
    """What jsonargparse says about a value, on one line and in our words: what was expected, what came.

    >>> complaint(ValueError("seed: Expected a <class 'int'>. Got value: x"))
    'seed: expected int, got x'
    """
    message = re.sub(r"(Got|Given) value:$", r"\1 value: ''", " ".join(str(error).split()))  # as of an unset $VARIABLE
    message = re.sub(r"<class '(\w+)'>", r"\1", message)
    message = re.sub(r"Does not validate .+? Subtypes: \[(.+?)\] Errors: .+ Given value: ", _either, message)
    message = re.sub(r"Expected an? (.+)\. Got value: ", r"expected \1, got ", message)
    return re.sub(r"typing\.Literal\[(.+?)\]", r"one of \1", message)


def _either(found: re.Match[str]) -> str:
    kinds = [kind for kind in found[1].split(", ") if kind != "NoneType"]
    return f"expected {' or '.join(kinds)}, got "


def command_line(name: str, run: Callable[..., None], given: dict[str, object]) -> str:
    """The command with these values of its parameters, defaults left out."""
    words = ["ldreg", name]
    for parameter in signatures.signature(run).parameters.values():
        value = given[parameter.name]
        if parameter.default is parameter.empty:
            words.append(str(value))
        elif value != parameter.default:
            words += [option(parameter.name), str(value)]
    return shlex.join(words)
