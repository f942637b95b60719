"""The card that a run leaves with its encoder: which encoder, for which images."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean

from ldreg.encoders.build import BEGINNINGS, EncoderConfig
from ldreg.io.files import read_text
from ldreg.views.config import NORMALIZATIONS, Normalization

CARD = "card.json"
# Past these no image is meant; making an encoder for it would take all memory.
MOST_CHANNELS, MOST_PIXELS = 1024, 4096


@dataclass(frozen=True)
class Card:
    """What a run's card says of its encoder and of the images for it."""

    encoder: EncoderConfig
    channels: int
    size: int
    normalization: Normalization

    def check(self, encoder: EncoderConfig | None, **given: object) -> None:
        """Refuse arguments that say otherwise; None, and options of an encoder left at their defaults, say nothing.

        Raises:
            ValueError: naming the argument, what the card says, and what was given.
        """
        for name, value in given.items():
            if value is not None and value != getattr(self, name):
                raise ValueError(f"{name}: expected {getattr(self, name)}, as its card says, got {value}")
        if encoder is None:
            return
        if encoder.timm_name != self.encoder.timm_name:
            raise ValueError(f"encoder.name: expected {self.encoder.name}, as its card says, got {encoder.name}")
        for field in (field for field in fields(EncoderConfig)[1:] if field.name not in BEGINNINGS):
            asked, own = getattr(encoder, field.name), getattr(self.encoder, field.name)
            if asked not in (field.default, own):
                raise ValueError(f"encoder.{field.name}: expected {own}, as its card says, got {asked}")


def read_card(path: Path, metadata: Mapping[str, str]) -> Card | None:
    """The card in the metadata of a safetensors file, else beside a run's encoder; None where there is none.

    Raises:
        ValueError: it is not what a run writes.
        OSError: the file beside cannot be read.
    """
    beside = path.with_name(CARD)
    if "ldreg" in metadata:
        return parse_card(metadata["ldreg"])
    if path.name == "encoder.safetensors" and beside.is_file():
        return parse_card(read_text(beside))
    return None


def parse_card(text: str) -> Card:
    """The card written in JSON.

    Raises:
        ValueError: it is not what a run writes.

    >>> told = {"channels": 1, "size": 8, "mean": [0.5], "std": [0.5]}
    >>> parse_card(json.dumps({"encoder": {"name": "small_cnn"}, "input": told})).normalization
    'half'
    """
    try:
        told = json.loads(text)
        encoder = EncoderConfig(**told["encoder"])
        channels, size, mean, std = (told["input"][name] for name in ("channels", "size", "mean", "std"))
        normalization = name_normalization(list(map(float, mean)), list(map(float, std)), channels=channels)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        detail = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"expected the card of an ldreg run, got another or a damaged one ({detail})") from error
    for name, value, most in (("channels", channels, MOST_CHANNELS), ("size", size, MOST_PIXELS)):
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"expected the card of an ldreg run, got {name} {value!r} in it")
    return Card(encoder, channels, size, normalization)


def name_normalization(mean: list[float], std: list[float], *, channels: int) -> Normalization:
    """The name of the normalization with this mean and deviation; one-channel images take the average of the three.

    Raises:
        ValueError: it has no name.

    >>> name_normalization([0.449], [0.226], channels=1)
    'imagenet'
    """
    for name, known in NORMALIZATIONS.items():
        means, deviations = known if channels == 3 else tuple((fmean(part),) for part in known)
        pairs = zip([*mean, *std], [*means, *deviations], strict=False)
        if len(mean) == len(means) and len(std) == len(deviations) and all(abs(a - b) < 1e-6 for a, b in pairs):
            return name
    raise ValueError(f"mean {mean} and std {std} are no known normalization ({', '.join(NORMALIZATIONS)})")
