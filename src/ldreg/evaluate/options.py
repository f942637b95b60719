"""The options of `ldreg evaluate`: words of the command line to a typed request."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ldreg.options import Option, Settings, built, fields_of, typed

if TYPE_CHECKING:
    from ldreg.evaluate.kinds import Kind


_OF_THE_WEIGHTS = ("name", "drop_path", "freeze_patch_embedding")


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
    data: Settings


def request(kind: str, source: str, options: Settings) -> Request:
    """What these options ask for.

    Raises:
        ValueError: an unknown option, which is named with the nearest ones, or a value of the wrong type or range.
    """
    from ldreg.encoders import EncoderConfig

    entry = kind_of(kind)
    values = typed(kind_options(kind), options)
    encoder = {key.partition(".")[2]: values[key] for key, _ in options if key.startswith("encoder.")}
    return Request(
        kind,
        source,
        _built(entry.config(), values),
        _built(OutputConfig, values),
        {name: values[name] for name in entry.shared if name != "cache"},
        built(EncoderConfig, encoder, "encoder.") if encoder else None,
        [(key, value) for key, value in options if key.startswith("data.")],
    )


def _built(config: type, values: Mapping[str, Any]) -> Any:
    return built(config, {field.name: values[field.name] for field in fields(config) if field.name in values})


def kind_of(name: str) -> "Kind":
    """The kind of this name."""
    from ldreg.evaluate.kinds import KINDS  # torch takes seconds to import

    return KINDS[name]


def kind_options(kind: str) -> list[Option]:
    """Every option of a kind of evaluation."""
    from ldreg.data import DataConfig
    from ldreg.encoders import EncoderConfig
    from ldreg.encoders.build import BEGINNINGS
    from ldreg.evaluate.extract import Compute

    entry = kind_of(kind)
    output = fields_of(OutputConfig)
    data = [option for option in fields_of(DataConfig, "data") if option.name != "size"]
    encoder = [option for option in fields_of(EncoderConfig, "encoder") if option.name not in BEGINNINGS]
    return [
        *fields_of(entry.config()),
        *fields_of(Compute, only=entry.shared),
        *(option for option in output if option.name != "cache" or "cache" in entry.shared),
        *(_by(option, "the run's own") for option in data if entry.data is None or option.name in entry.data),
        *(_by(option, "found from the weights") if option.name in _OF_THE_WEIGHTS else option for option in encoder),
    ]


def _by(option: Option, default: str) -> Option:
    """The option with words in place of a default, which is not that of its field."""
    return replace(option, default=None, help=f"{option.help} (default: {default})")
