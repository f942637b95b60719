"""The options of `ldreg evaluate`: words of the command line to a typed request."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from ldreg.train.command import Options
from ldreg.train.recipes import flattened, nearest

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from ldreg.evaluate.kinds import Kind


# What holds where an option is not given, and is not the default of its field.
_DEFAULTS = {
    "encoder.name": "found from the weights",
    "encoder.drop_path": "",
    "encoder.freeze_patch_embedding": "",
}


@dataclass(frozen=True)
class OutputConfig:
    """Where the encoder's images and the results are.

    Args:
        size: side of the images, where the checkpoint does not say
        normalization: of the images, where the checkpoint does not say: imagenet, cifar, half or none
        cache: folder below which representations are kept; default that of --data.cache
        out: folder for results and checkpoints; default evaluation in the run's folder, else evaluation/NAME
        json: write the results, with what a reader needs to repeat them, to this file
    """

    size: int | None = None
    normalization: str | None = None
    cache: str | None = None
    out: str | None = None
    json: str | None = None


@dataclass(frozen=True)
class Request:
    """An evaluation to be made."""

    kind: str
    source: str
    config: Any  # of the class that the kind has
    output: OutputConfig
    compute: Mapping[str, Any]
    encoder: Any  # an EncoderConfig, or None where none is named
    data: Options


def request(kind: str, source: str, options: Options) -> Request:
    """What these options ask for.

    Raises:
        ValueError: an unknown option, which is named with the nearest ones, or a value of the wrong type or range.
    """
    from jsonargparse import ArgumentError

    from ldreg.encoders import EncoderConfig

    entry = kind_of(kind)
    parser = _parser(entry)
    try:
        tree = parser.parse_args(_arguments(kind, entry, parser, options)).as_dict()
    except ArgumentError as error:
        raise ValueError(_readable(error)) from error
    named = any(key.startswith("encoder.") for key, _ in options)
    return Request(
        kind,
        source,
        _built(entry.config(), tree),
        _built(OutputConfig, {"cache": None, **tree}),
        {name: tree[name] for name in entry.shared if name != "cache"},
        _built(EncoderConfig, tree["encoder"]) if named else None,
        [(key, value) for key, value in options if key.startswith("data.")],
    )


def kind_help(kind: str) -> str:
    """Every option of a kind with its meaning, and examples."""
    entry = kind_of(kind)
    text = _parser(entry).format_help().partition("\n\n")[2]
    # A group as a whole is no option here.
    text = re.sub(r"^ +--\w+ CONFIG .*\n", "", text, flags=re.MULTILINE)
    text = "".join(map(_with_true_default, re.split(r"^(?=  --)", text, flags=re.MULTILINE)))
    examples = "\n".join(f"  {example}" for example in entry.examples)
    return (
        f"usage: ldreg evaluate {kind} SOURCE [--OPTION VALUE ...]\n\n{entry.about}\n\nexamples:\n{examples}\n\n{text}"
    )


def _with_true_default(entry: str) -> str:
    """An option's help without its type, and with what stands for it where it is not given."""
    key = entry.strip().removeprefix("--").partition(" ")[0]

    def default(found: re.Match[str]) -> str:
        if found[1] is None:
            return " (required)"
        told = _DEFAULTS.get(key, "the run's own" if key.startswith("data.") else " ".join(found[1].split()))
        return f" (default: {told})" if told and found[1] != "null" else ""

    told = re.sub(r"\s+\((?:required,\s+)?type:[^()]*?(?:,\s+default:\s+((?:[^()]|\([^()]*\))*))?\)", default, entry)
    return re.sub(r"^(.{1,80}) (\(default: .*\))$", _folded, told, flags=re.MULTILINE)


def _folded(line: re.Match[str]) -> str:
    """A line of help, its end on the next one where it is too long."""
    return line[0] if len(line[0]) <= 80 else f"{line[1]}\n{'':24}{line[2]}"


def kind_of(name: str) -> "Kind":
    """The kind of this name."""
    from ldreg.evaluate.kinds import KINDS  # torch takes seconds to import

    return KINDS[name]


def _parser(entry: "Kind") -> "ArgumentParser":
    from jsonargparse import ArgumentParser

    from ldreg.data import DataConfig
    from ldreg.encoders import EncoderConfig
    from ldreg.encoders.build import BEGINNINGS
    from ldreg.evaluate.compute import Compute

    parser = ArgumentParser(exit_on_error=False, default_env=False)
    parser.add_class_arguments(entry.config(), as_group=True)
    if set(entry.shared) - {"cache"}:
        skip = {field.name for field in fields(Compute) if field.name not in entry.shared}
        parser.add_class_arguments(Compute, as_group=True, skip=skip)
    parser.add_class_arguments(OutputConfig, as_group=True, skip=set() if "cache" in entry.shared else {"cache"})
    own = entry.data
    if own != ():
        skip = {field.name for field in fields(DataConfig) if own is not None and field.name not in own}
        parser.add_class_arguments(DataConfig, "data", skip=skip | {"size"})
    parser.add_class_arguments(EncoderConfig, "encoder", skip=set(BEGINNINGS))
    return parser


def _arguments(kind: str, entry: "Kind", parser: "ArgumentParser", options: Options) -> list[str]:
    """The options as the parser takes them.

    Raises:
        ValueError: one is unknown, has no value, or is needed and missing.
    """
    known = flattened(parser.get_defaults().as_dict())
    needed = [field.name for field in fields(entry.config()) if field.default is MISSING]
    for key in needed:
        if key not in dict(options):
            raise ValueError(f"--{key}: expected a value, got none")
    found = []
    for key, value in options:
        if key not in known:
            raise ValueError(f"--{key}: {kind} has no such option; nearest: {nearest(key, known)}")
        if value is None and not isinstance(known[key], bool):
            raise ValueError(f"--{key}: expected a value, got none")
        found.append(f"--{key}={'true' if value is None else value}")
    return found


def _built(config: type, tree: Mapping[str, Any]) -> Any:
    """The config with what a tree has for its fields; those that it lacks have their defaults."""
    values = {field.name: tree[field.name] for field in fields(config) if field.name in tree}
    return config(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _readable(error: Exception) -> str:
    """What jsonargparse says about a value, in one line: the option, what was expected, what came."""
    from ldreg.subcommands import complaint

    return re.sub(r'^Parser key "([^"]+)": ', r"--\1: ", complaint(error))
