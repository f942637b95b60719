"""Load encoders: of a run's folder, or from a state dict of timm, torchvision or the paper's authors."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from statistics import fmean

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ldreg.encoders.build import INITIALIZATION, EncoderConfig, build_encoder, create
from ldreg.encoders.layouts import (
    Layout,
    Weights,
    completed,
    has_decoder,
    in_timm_names,
    is_other_part,
    recognize,
    unwrap,
)
from ldreg.io.files import read_text
from ldreg.io.guard import check_file, check_fits, load_torch, named_errors, parse_errors
from ldreg.text import one_line
from ldreg.views.config import NORMALIZATIONS, Normalization

SUFFIXES = (".pt", ".pth", ".safetensors")
ENCODER = "encoder.safetensors"
CARD = "card.json"
# Above these, building the encoder would take all memory.
MOST_CHANNELS, MOST_PIXELS = 1024, 4096


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """An encoder with its weights, in float32, on the CPU, in eval mode, and the images that it takes.

    `module` maps normalized images (B, channels, size, size) to representations (B, D), D its attribute `dimension`;
    `key` is a hash of its weights and of the other fields.
    """

    module: nn.Module
    config: EncoderConfig
    channels: int
    size: int
    normalization: Normalization
    layout: Layout
    key: str


@dataclass(frozen=True)
class Card:
    """The encoder of a run and the images that it takes."""

    encoder: EncoderConfig
    channels: int
    size: int
    normalization: Normalization

    def check(self, encoder: EncoderConfig | None, **given: object) -> None:
        """Raise ValueError if arguments contradict the card; None and default options of an encoder do not."""
        for name, value in given.items():
            if value is not None and value != getattr(self, name):
                raise ValueError(f"{name}: expected {getattr(self, name)}, as in its card, got {value}")
        if encoder is None:
            return
        if encoder.timm_name != self.encoder.timm_name:
            raise ValueError(f"encoder.name: expected {self.encoder.name}, as in its card, got {encoder.name}")
        for field in (field for field in fields(EncoderConfig)[1:] if field.name not in INITIALIZATION):
            asked, own = getattr(encoder, field.name), getattr(self.encoder, field.name)
            if asked not in (field.default, own):
                raise ValueError(f"encoder.{field.name}: expected {own}, as in its card, got {asked}")


def load_encoder(
    path: str | PathLike[str],
    *,
    encoder: EncoderConfig | None = None,
    channels: int | None = None,
    size: int | None = None,
    normalization: Normalization | None = None,
) -> LoadedEncoder:
    """Load the encoder of a run's folder or of a .pt, .pth or .safetensors file, without running code in the file.

    A run's card describes its encoder completely. From a state dict of timm, torchvision or the paper's authors, also
    under a key such as "model" and with prefixes, usual ResNets and ViTs are recognized; name any other encoder.
    Classifiers, projectors, probes, decoders and targets are dropped. The default normalization is ImageNet's; for the
    authors' files it is theirs: none, or ImageNet's for MAE.

    Args:
        path: the folder or file.
        encoder: the encoder, if it is not recognized.
        channels: of the images; by default from the weights.
        size: side of the images; by default that of a ViT's position embedding, 32 for a ResNet with the CIFAR stem,
            and 224 for other models.
        normalization: how images are normalized.

    Raises:
        ValueError: the file is not a checkpoint, contains code, does not fit the encoder, holds NaN or inf, or
            contradicts an argument.
        OSError: the file does not exist or cannot be read.

    >>> import tempfile, timm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(timm.create_model("resnet18").state_dict(), f"{folder}/mine.pt")
    ...     loaded = load_encoder(f"{folder}/mine.pt")
    >>> loaded.config.name, loaded.channels, loaded.size, loaded.normalization, loaded.module.dimension
    ('resnet18', 3, 224, 'imagenet', 512)
    """
    if normalization not in (None, *NORMALIZATIONS):
        raise ValueError(f"normalization: expected one of {', '.join(NORMALIZATIONS)}, got {normalization!r}")
    file = find_file(Path(path))
    with named_errors(file):
        weights, card = read_weights(file)
        layout: Layout = "ldreg"
        if card is None:
            masked = has_decoder(weights)
            layout, weights = in_timm_names(weights)
            config, channels, size = recognize(weights, encoder=encoder, channels=channels, size=size)
            layout = "ldreg" if config.name == "small_cnn" else layout
            # The authors' transforms end with ToTensor; only those of their MAE normalize.
            normal: Normalization = "none" if layout == "authors" and not masked else "imagenet"
            card = Card(config, channels, size, normalization or normal)
        else:
            full = replace(card, encoder=completed(card.encoder, weights))
            full.check(encoder, channels=channels, size=size, normalization=normalization)
        if card.size > MOST_PIXELS:
            raise ValueError(f"size: expected at most {MOST_PIXELS}, got {card.size}")
    # Building the encoder draws random numbers, which must not affect later draws.
    with named_errors(file), torch.random.fork_rng(devices=[]):
        check_outline(card, weights)
        module = build_encoder(card.encoder, channels=card.channels, size=card.size)
    fill(module, weights, file=file, name=card.encoder.name)
    description = asdict(card)
    for name in INITIALIZATION:
        del description["encoder"][name]
    key = content_key(module, json.dumps(description, sort_keys=True))
    return LoadedEncoder(module.eval(), card.encoder, card.channels, card.size, card.normalization, layout, key)


def find_file(path: Path) -> Path:
    """The file itself, or the encoder of a run's folder."""
    if not path.is_dir():
        return path
    file = path / ENCODER
    if file.exists():
        return file
    if (path / "config.yaml").is_file():
        raise ValueError(f"{path}: expected a finished run, got one without {ENCODER}; ldreg pretrain --resume {path}")
    raise ValueError(f"{path}: expected a run folder with an {ENCODER}, or a file, got a folder without one")


def read_weights(path: Path) -> tuple[Weights, Card | None]:
    """The state dict of a file, under its own names, and the card of a run's encoder."""
    content: object
    if check_file(path, SUFFIXES) == ".safetensors":
        with parse_errors("a safetensors file"), safe_open(path, framework="pt") as tensors:
            content = weights = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - no dict
            metadata: Mapping[str, str] = tensors.metadata() or {}
        if card := read_card(path, metadata):
            return weights, card
    else:
        with warnings.catch_warnings():
            # `check_weights` rejects sparse tensors.
            warnings.filterwarnings("ignore", message=".*sparse.*")
            content = load_torch(path)
    try:
        return unwrap(content), None
    except RecursionError as error:  # a dict in a torch file can contain itself
        raise ValueError("expected a state dict of names and tensors, got dicts or prefixes without end") from error


def check_outline(card: Card, weights: Weights) -> None:
    """Check the weights before building the encoder, since a short name can mean billions of weights."""
    if card.encoder.name == "small_cnn":
        return
    try:
        with torch.device("meta"):
            own = create(card.encoder, channels=card.channels, size=card.size).state_dict()
    except ValueError as error:
        if "meta tensors" not in str(error):
            raise
        return  # the model reads its tensors while it is built; none of the 1,351 of timm 1.0.30 does
    check_weights(own, weights, name=card.encoder.name)
    check_fits(sum(tensor.numel() * tensor.element_size() for tensor in own.values()))


def restore(module: nn.Module, file: Path, *, name: str) -> None:
    """Load the weights of a file into an existing encoder, in place."""
    with named_errors(file):
        weights, _ = read_weights(file)
    fill(module, weights, file=file, name=name)


@torch.no_grad()
def fill(module: nn.Module, weights: Weights, *, file: Path, name: str) -> None:
    """Load the weights into the encoder, in place, without other parts; all must be finite."""
    own = module.state_dict()
    with named_errors(file):
        check_weights(own, weights, name=name)
        module.load_state_dict({key: weights.get(key, own[key]) for key in own})
        for key, tensor in module.state_dict().items():
            if not tensor.isfinite().all():
                raise ValueError(f"expected finite weights, got NaN or inf in {key}")


def check_weights(own: Weights, weights: Weights, *, name: str) -> None:
    """Raise ValueError if keys, shapes or types differ from those of `own`, the encoder's state dict."""
    wrong: dict[str, list[str]] = {
        # `num_batches_tracked` only counts training batches, and old files lack it.
        "keys missing": [key for key in own if key not in weights and not key.endswith(".num_batches_tracked")],
        "keys unexpected": [key for key in weights if key not in own and not is_other_part(key)],
        "shapes that differ": [],
        "types that differ": [],
    }
    for key in (key for key in own if key in weights):
        mine, found = own[key], weights[key]
        if mine.shape != found.shape:
            wrong["shapes that differ"].append(f"{key}: expected {tuple(mine.shape)}, found {tuple(found.shape)}")
        elif problem := _wrong_type(mine, found):
            wrong["types that differ"].append(f"{key}: {problem}")
    counted = []
    for what, keys in wrong.items():
        first = "; ".join(one_line(each, 100) for each in keys[:3])
        more = f"; {len(keys) - 3} more" if len(keys) > 3 else ""
        counted += [f"{what}: {len(keys)} ({first}{more})"] if keys else []
    if counted:
        raise ValueError(f"does not fit {name}: {', '.join(counted)}")


def _wrong_type(own: Tensor, found: Tensor) -> str | None:
    """Why the encoder cannot take the values of a tensor; None if it can."""
    expected, dtype = (str(tensor.dtype).removeprefix("torch.") for tensor in (own, found))
    if found.layout != torch.strided or found.is_quantized or found.is_meta:
        kind = "meta" if found.is_meta else str(found.layout).removeprefix("torch.")
        return f"expected dense {expected}, found {kind} {dtype}"
    if found.is_floating_point() != own.is_floating_point():
        return f"expected {expected}, found {dtype}"
    if found.numel() * found.element_size() > found.untyped_storage().nbytes():  # an expanded view repeats a few bytes
        return "expected every value to be stored, found an expanded view"
    return None


def content_key(module: nn.Module, description: str) -> str:
    """A hash (sha256, hex) of a description and of the name, dtype, shape and bytes of all weights."""
    digest = hashlib.sha256(description.encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_card(path: Path, metadata: Mapping[str, str]) -> Card | None:
    """The card in the metadata of a safetensors file, else next to a run's encoder; None if there is none."""
    file = path.with_name(CARD)
    if "ldreg" not in metadata and not (path.name == ENCODER and file.is_file()):
        return None
    text = metadata["ldreg"] if "ldreg" in metadata else read_text(file)
    try:
        card = json.loads(text)
        encoder = EncoderConfig(**card["encoder"])
        channels, size, mean, std = (card["input"][name] for name in ("channels", "size", "mean", "std"))
        normalization = name_normalization(list(map(float, mean)), list(map(float, std)), channels=channels)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        detail = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"expected the card of an ldreg run, got another or a damaged one ({detail})") from error
    for name, value, most in (("channels", channels, MOST_CHANNELS), ("size", size, MOST_PIXELS)):
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"expected the card of an ldreg run, got {name} {value!r} in it")
    return Card(encoder, channels, size, normalization)


def name_normalization(mean: list[float], std: list[float], *, channels: int) -> Normalization:
    """The normalization with this mean and deviation; for one-channel images, the average of its three channels.

    >>> name_normalization([0.449], [0.226], channels=1)
    'imagenet'
    """
    for name, known in NORMALIZATIONS.items():
        means, deviations = known if channels == 3 else tuple((fmean(part),) for part in known)
        pairs = zip([*mean, *std], [*means, *deviations], strict=False)
        if len(mean) == len(means) and len(std) == len(deviations) and all(abs(a - b) < 1e-6 for a, b in pairs):
            return name
    raise ValueError(f"mean {mean} and std {std} are not a known normalization ({', '.join(NORMALIZATIONS)})")
