"""The command line as typed functions: a signature and its docstring become options, checks, help and completion.

jsonargparse checks the values. It does not name near options, wants each option spelled in one way, and writes Python's
types into its help, so words are split and help is written here.
"""

import argparse
import difflib
import inspect
import re
import shlex
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentError, ArgumentParser

Settings = list[tuple[str, str | None]]
"""Options that a command passes on unchecked: pairs of key and value, None where no value was given."""

CommandLine = NewType("CommandLine", str)
"""The command as it was typed, for the record of what it made."""

_WIDTH = 80  # columns of the help
_INDENT = 20  # columns before the meaning of an option


@dataclass(frozen=True)
class Command:
    """One command of `ldreg`. A function may be given as "module:function", which is imported when it is needed.

    Parameters of `run` that are not keyword-only are positional; one with a default may be left out. The fields of a
    parameter that is a dataclass are options. A parameter annotated `Settings` gets all options that no other takes,
    one annotated `CommandLine` the typed command.
    """

    run: Callable[..., None] | str
    summary: str  # one line for `ldreg --help`
    examples: tuple[str, ...] = ()
    metavars: Mapping[str, str] = field(default_factory=dict)  # for values in the help, where a type does not say
    less_memory: str = "a smaller problem may fit"  # what to try if memory runs out
    second_word: str = ""  # what a stray second word may have been meant for
    # Lists the options of the parameter annotated `Settings`, given those on the command line, or None for all.
    settings: "Callable[[Settings | None], Iterable[Option]] | str" = ""
    details: Callable[[], str] | str = ""  # returns text for the end of the help

    @property
    def function(self) -> Callable[..., Any]:
        """The function that carries it out."""
        return _imported(self.run)

    def setting_options(self, given: Settings | None) -> list["Option"]:
        """The options of the parameter annotated `Settings`."""
        return list(_imported(self.settings)(given)) if self.settings else []


_PATHS = ("FILE", "FOLDER", "FOLDER|FILE", "MODEL")  # of which an empty word is an error


def _imported(place: Callable[..., Any] | str) -> Callable[..., Any]:
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Option:
    """One value that the command line takes."""

    key: str  # "k", "data.path"
    kind: Any
    default: Any
    help: str
    group: str = ""
    dashes: bool = False  # whether it is written with dashes; settings have underscores, as in YAML
    positional: bool = False

    @property
    def flag(self) -> str:
        """As it is written.

        >>> Option("label_key", str, None, "", dashes=True).flag, Option("data.max_unreadable", int, 0, "").flag
        ('--label-key', '--data.max_unreadable')
        """
        return f"--{self.key.replace('_', '-') if self.dashes else self.key}"

    @property
    def name(self) -> str:
        """Without the prefix of its group."""
        return self.key.rpartition(".")[2]

    @property
    def value_type(self) -> Any:
        """The type that may be given for an optional value."""
        members = get_args(self.kind) if get_origin(self.kind) in (Union, types.UnionType) else ()
        others = [member for member in members if member is not type(None)]
        return others[0] if len(others) == 1 and len(members) == 2 else self.kind

    @property
    def is_switch(self) -> bool:
        """Whether it may stand without a value."""
        return self.value_type is bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it takes; empty if any."""
        if self.is_switch:
            return ("true", "false")
        return tuple(map(str, get_args(self.value_type))) if get_origin(self.value_type) is Literal else ()


def options_of(function: Callable[..., Any]) -> list[Option]:
    """Every option of a command's function."""
    hints, helps = get_type_hints(function), _helps(function)
    dashes = Settings not in hints.values()  # else its own options are written as its settings are
    found = []
    for parameter in inspect.signature(function).parameters.values():
        kind, name = hints[parameter.name], parameter.name
        if is_dataclass(kind):
            assert isinstance(kind, type)
            found += fields_of(kind)
        elif kind not in (Settings, CommandLine):
            positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            default = MISSING if parameter.default is parameter.empty else parameter.default
            option = Option(name, kind, default, helps.get(name, ""), dashes=dashes, positional=positional)
            found.append(replace(option, kind=option.value_type))
    return found


def fields_of(config: type, prefix: str = "", *, only: Iterable[str] | None = None) -> list[Option]:
    """The options that the fields of a dataclass, or the parameters of a class, make."""
    if is_dataclass(config):
        hints = get_type_hints(config)
        makers = {entry.name: entry.default_factory for entry in fields(config)}
        defaults = {entry.name: entry.default for entry in fields(config)}
        defaults |= {name: make() for name, make in makers.items() if make is not MISSING}
    else:
        hints = get_type_hints(vars(config)["__init__"])
        defaults = {name: entry.default for name, entry in inspect.signature(config).parameters.items()}
    helps, group = _helps(config), f"{prefix}." if prefix else ""
    chosen = [name for name in defaults if only is None or name in only]
    return [Option(f"{group}{name}", hints[name], defaults[name], helps.get(name, ""), prefix) for name in chosen]


def _helps(documented: Any) -> dict[str, str]:
    """What a docstring says about each parameter, and those of base classes about inherited fields."""
    classes = documented.__mro__[-2::-1] if isinstance(documented, type) else (documented,)
    found = [entry for each in classes for entry in parse_docstring(each.__doc__ or "").params]
    return {entry.arg_name: " ".join((entry.description or "").split()) for entry in found}


def parse(command: Command, words: Sequence[str], *, command_line: CommandLine = CommandLine("")) -> dict[str, Any]:
    """The arguments of a command's function from the words after its name.

    Raises:
        ValueError: an unknown option, which is named with the nearest, or a value that is missing or wrong.
    """
    hints = get_type_hints(command.function)
    options = options_of(command.function)
    pairs, places = split(words, options)
    named = [option for option in options if not option.positional]
    known = {option.key for option in named}
    for key, _ in pairs:
        if key not in known and difflib.get_close_matches(f"--{key}", ["--help"], cutoff=0.8):
            raise ValueError(f"unknown option --{key}; did you mean '--help'?")
    values = typed(named, pairs if Settings not in hints.values() else [pair for pair in pairs if pair[0] in known])
    for option in named:
        if values[option.key] == "" and command.metavars.get(option.key) in _PATHS:  # as of an unset $NAME
            raise ValueError(f"{option.flag}: expected a path, got ''")
    values |= _placed([option for option in options if option.positional], places, command)
    arguments: dict[str, Any] = {}
    for name in inspect.signature(command.function).parameters:
        kind = hints[name]
        if kind == Settings:
            arguments[name] = [pair for pair in pairs if pair[0] not in known]
        elif kind is CommandLine:
            arguments[name] = command_line
        elif is_dataclass(kind):
            arguments[name] = built(kind, {entry.name: values[entry.name] for entry in fields(kind)})  # type: ignore[arg-type]
        else:
            arguments[name] = values[name]
    return arguments


def split(words: Sequence[str], options: Iterable[Option] = ()) -> tuple[Settings, list[str]]:
    """The options among words as pairs of key and value, and the words that belong to none.

    Keys are written with dashes or underscores. The word after an option is its value unless it begins with two
    dashes; that of a switch, such as `--compile`, has to be true or false.

    >>> split(["run", "--ldreg.beta", "0.1", "--data.max-unreadable=0", "--compile", "--x", "-1"])
    ([('ldreg.beta', '0.1'), ('data.max_unreadable', '0'), ('compile', None), ('x', '-1')], ['run'])
    """
    known = {option.key: option for option in options}
    pairs: Settings = []
    places: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            places.append(word)
            continue
        key, equals, value = word.lstrip("-").partition("=")
        key = key.replace("-", "_")
        if not word.startswith("--") or not key:
            flags = [*(option.flag for option in known.values()), "--help"]
            raise ValueError(f"unknown option {word}{did_you_mean(word, flags)}")
        switch = key in known and known[key].is_switch
        if equals:
            pairs.append((key, value))
        elif rest and not rest[0].startswith("--") and (not switch or rest[0].lower() in ("true", "false")):
            pairs.append((key, rest.pop(0)))
        else:
            pairs.append((key, None))
    return pairs, places


def _placed(places: Sequence[Option], words: list[str], command: Command) -> dict[str, Any]:
    """The positional arguments; the last one takes all words that are left if it is a list."""
    several = bool(places) and get_origin(places[-1].kind) is list
    expected = " ".join(option.key.upper() for option in places)
    if len(words) < sum(option.default is MISSING for option in places):
        raise ValueError(f"expected {expected}, got {shlex.join(words) or 'nothing'}")
    if len(words) > len(places) and not several:
        raise ValueError(f"expected {expected or 'options only'}, got also {words[len(places)]!r}{command.second_word}")
    for option, word in zip(places, words, strict=False):
        if option.choices and word not in option.choices:
            proposed = did_you_mean(word, option.choices)
            raise ValueError(f"{option.key}: expected one of {', '.join(option.choices)}, got {word!r}{proposed}")
    values: dict[str, Any] = {option.key: option.default for option in places[len(words) :]}
    values |= {option.key: word for option, word in zip(places, words, strict=False)}
    return values | ({places[-1].key: words[len(places) - 1 :]} if several else {})


def built(config: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """The dataclass with these values; an error names the whole key."""
    try:
        return config(**values)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from error


def typed(options: Iterable[Option], pairs: Settings, *, dashes: bool = True) -> dict[str, Any]:
    """All values by key: those given, and the defaults of the others. ValueError names what is missing or wrong."""
    known = {option.key: option for option in options}
    shown = {key: option.flag if dashes else key for key, option in known.items()}
    for key, _ in pairs:
        if key not in known:
            proposed = did_you_mean(f"--{key}", shown.values()) or f"; nearest: {nearest(key, known)}"
            raise ValueError(f"unknown option --{key}{proposed}")
    values = {key: "true" if value is None and known[key].is_switch else value for key, value in pairs}
    for key, option in known.items():
        if values.get(key, "" if option.default is not MISSING else None) is None:
            raise ValueError(f"{shown[key]}: expected a value, got none")
    parser = _parser(tuple((key, option.kind) for key, option in known.items()))
    try:
        given = vars(parser.parse_args([f"--{key}={value}" for key, value in values.items()], defaults=False).as_flat())
    except ArgumentError as error:
        raise ValueError(_complaint(error, shown)) from error
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return {key: given.get(key, option.default) for key, option in known.items()}


@cache
def _parser(kinds: tuple[tuple[str, Any], ...]) -> ArgumentParser:
    """A parser of these keys, which takes longer to make than to use."""
    parser = ArgumentParser(exit_on_error=False, default_env=False, add_help=False)
    for key, kind in kinds:
        parser.add_argument(f"--{key}", type=kind, default=None)
    return parser


def _complaint(error: ArgumentError, shown: Mapping[str, str]) -> str:
    """What jsonargparse says of a wrong value, in one line: the option, what was expected, what came."""

    def either(found: re.Match[str]) -> str:
        kinds = [kind for kind in found[1].split(", ") if kind != "NoneType"]
        return f"expected {' or '.join(kinds)}, got "

    message = re.sub(r"(Got|Given) value:$", r"\1 value: ''", " ".join(str(error).split()))  # as of an unset $VARIABLE
    message = re.sub(r"<class '(\w+)'>", r"\1", message)
    message = re.sub(r"Does not validate .+? Subtypes: \[(.+?)\] Errors: .+ Given value: ", either, message)
    message = re.sub(r"Expected an? (.+)\. Got value: ", r"expected \1, got ", message)
    message = re.sub(r"typing\.Literal\[(.+?)\]", r"one of \1", message)
    return re.sub(r'^Parser key "([^"]+)": ', lambda found: f"{shown[found[1]]}: ", message)


def nearest(name: str, names: Iterable[str], *, count: int = 3) -> str:
    """The names most like a wrong one, for an error message.

    >>> nearest("simcrl", ["byol", "simclr", "moco"], count=1)
    "'simclr'"
    >>> nearest("data.size", ["data.limit", "size"], count=1)
    "'size'"
    """
    known, last = sorted(names), name.rpartition(".")[2]
    alike = [entry for entry in known if entry.rpartition(".")[2] == last]  # the same name in another group
    close = [*alike, *difflib.get_close_matches(name, [entry for entry in known if entry not in alike], count, 0.4)]
    if not close:
        close = [entry for entry in known if last in entry] or known
    return " or ".join(repr(entry) for entry in close[:count])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that proposes the known word most like a wrong one; empty if none is like it.

    >>> did_you_mean("inspekt", ["inspect", "demo"]), did_you_mean("wholly", ["inspect", "demo"])
    ("; did you mean 'inspect'?", '')
    """
    names = {name.lstrip("-"): name for name in known}  # dashes make any two options alike
    close = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def help_text(name: str, command: Command, words: Sequence[str] = ()) -> str:
    """The help of a command; the words decide which settings it lists, such as those of a method.

    Raises:
        ValueError: an option among the words lacks its value.
    """
    options = options_of(command.function)
    own = {"help", *(option.key for option in options)}
    pairs, _ = split(words, options)
    settings = command.setting_options([pair for pair in pairs if pair[0] not in own])
    for option in (*options, *settings):
        if dict(pairs).get(option.key, "") is None and not option.is_switch:
            raise ValueError(f"{option.flag}: expected a value, got none")
    places = [
        ("{}" if option.default is MISSING else "[{}]").format(option.key.upper())
        + (" ..." if get_origin(option.kind) is list else "")
        for option in options
        if option.positional
    ]
    details = parse_docstring(command.function.__doc__ or "").long_description or ""
    parts = [
        " ".join(["usage: ldreg", name, *places, "[--OPTION VALUE ...]"]),
        textwrap.fill(" ".join(f"{command.summary} {details}".split()), _WIDTH),
        "\n  ".join(["examples:", *command.examples]) if command.examples else "",
        options_help([*options, Option("help", bool, False, "print this text"), *settings], command.metavars),
        _imported(command.details)() if command.details else "",
    ]
    return "\n\n".join(filter(None, parts))


def options_help(options: Sequence[Option], metavars: Mapping[str, str] | None = None) -> str:
    """One entry for each option, under the name of its group."""
    groups: dict[str, list[str]] = {}
    for option in options:
        title = "arguments" if option.positional else f"{option.group} options".strip()
        groups.setdefault(title, []).append(_entry(option, (metavars or {}).get(option.key, "")))
    return "\n\n".join("\n".join([f"{title}:", *entries]) for title, entries in groups.items())


def _entry(option: Option, metavar: str) -> str:
    """An option with its values, meaning and default."""
    if not metavar:
        words = {int: "N", float: "X", str: "TEXT"}
        metavar = f"{{{','.join(option.choices)}}}" if option.choices else words.get(option.value_type, "[A,B,...]")
    value = "" if option.is_switch and not option.default else f" {metavar}"
    head = f"  {option.key.upper()}" if option.positional else f"  {option.flag}{value}"
    lines = textwrap.wrap(option.help + _default(option), _WIDTH - _INDENT)
    if len(head) < _INDENT and lines:
        head = f"{head:<{_INDENT}}{lines.pop(0)}"
    return "\n".join([head, *(" " * _INDENT + line for line in lines)])


def _default(option: Option) -> str:
    usual = option.default
    if usual is MISSING:
        return "" if option.positional else " (required)"
    if usual is None or usual is False or usual in ("", ()):
        return ""
    if usual is True:
        return " (default: true)"
    if isinstance(usual, tuple | list):
        usual = f"[{','.join(map(str, usual))}]"
    return f" (default: {f'{usual:g}' if isinstance(usual, float) else usual})"


def completion(
    shell: str, commands: Mapping[str, Command], version: str, words: Mapping[str, Sequence[str]] | None = None
) -> str:
    """The script that makes bash, zsh or fish complete commands, options and their values.

    `words` are the values that an option takes, by its key, where its type does not say.
    """
    import shtab

    root = argparse.ArgumentParser(prog="ldreg")
    root.add_argument("--version", action="version", version=version)
    groups = {"": root.add_subparsers()}
    for name, command in commands.items():
        group, _, last = name.rpartition(" ")
        if group not in groups:
            groups[group] = groups[""].add_parser(group, help=f"kinds of {group}").add_subparsers()
        parser = groups[group].add_parser(last, help=command.summary)
        for option in [*options_of(command.function), *command.setting_options(None)]:
            several: dict[str, Any] = {"nargs": "+"} if get_origin(option.kind) is list and option.positional else {}
            several |= {"nargs": "?"} if option.positional and option.default is not MISSING else {}
            action = parser.add_argument(option.key if option.positional else option.flag, **several)
            action.choices = option.choices or (words or {}).get(option.key)
            if not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # which shtab reads
    return shtab.complete(root, shell)
