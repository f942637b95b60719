"""An encoder from whoever has one: a run's folder, or a state dict of timm, torchvision or the paper's authors."""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ldreg.encoders.build import BEGINNINGS, EncoderConfig, build_encoder, create, replace_stem
from ldreg.encoders.cards import MOST_PIXELS, Card, read_card
from ldreg.encoders.layouts import Layout, Weights, beside, has_decoder, in_timm_names, unwrap
from ldreg.encoders.recognition import completed, recognize
from ldreg.io.guard import check_file, check_fits, named_errors, parse_errors
from ldreg.io.torch_files import load_torch
from ldreg.text import one_line
from ldreg.views.config import NORMALIZATIONS, Normalization

SUFFIXES = (".pt", ".pth", ".safetensors")
ENCODER = "encoder.safetensors"


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """An encoder with its weights, in float32, on the CPU, in eval mode, and what images it takes.

    `module` maps normalized images (B, channels, size, size) to representations (B, D), D its attribute `dimension`;
    `key` is a hash of its weights and of all that is said here of its images.
    """

    module: nn.Module
    config: EncoderConfig
    channels: int
    size: int
    normalization: Normalization
    layout: Layout
    key: str


def load_encoder(
    path: str | PathLike[str],
    *,
    encoder: EncoderConfig | None = None,
    channels: int | None = None,
    size: int | None = None,
    normalization: Normalization | None = None,
) -> LoadedEncoder:
    """The encoder of a run's folder, or of a .pt, .pth or .safetensors file; no code in a file is ever run.

    A run's card says all there is to know. A state dict of timm, of torchvision or of the paper's authors, also under
    a key such as "model" and with prefixes, says which encoder it is of where that is a usual ResNet or ViT; others
    have to be named. Classifiers, projectors, probes, decoders and targets beside the encoder are left out. The
    normalization is ImageNet's unless given; for the authors' it is theirs: none, and ImageNet's for their MAE.

    Args:
        path: the folder or file.
        encoder: which encoder, where the file does not say.
        channels: of the images; read from the weights unless given.
        size: side of the images; by default the one that a ViT was made for, 224 for other models, and 32 for a
            ResNet with the CIFAR stem.
        normalization: what images are normalized by.

    Raises:
        ValueError: what is no checkpoint, or has code in it, does not fit the encoder, holds NaN or inf, or
            contradicts an argument.
        OSError: there is no such file, or it cannot be read.

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
            layout, weights, card = describe(weights, encoder=encoder, channels=channels, size=size)
            card = replace(card, normalization=normalization or card.normalization)
        else:
            told = replace(card, encoder=completed(card.encoder, weights))
            told.check(encoder, channels=channels, size=size, normalization=normalization)
        if card.size > MOST_PIXELS:
            raise ValueError(f"size: expected at most {MOST_PIXELS}, got {card.size}")
    # Making the encoder draws random weights, which must not change what is drawn after.
    with named_errors(file), torch.random.fork_rng(devices=[]):
        check_outline(card, weights)
        module = build_encoder(card.encoder, channels=card.channels, size=card.size)
    fill(module, weights, file=file, name=card.encoder.name)
    key = content_key(module, json.dumps(_told(card), sort_keys=True))
    return LoadedEncoder(module.eval(), card.encoder, card.channels, card.size, card.normalization, layout, key)


def describe(
    weights: Weights, *, encoder: EncoderConfig | None, channels: int | None, size: int | None
) -> tuple[Layout, Weights, Card]:
    """The layout of a state dict without a card, its weights under timm's names, and what a card would say.

    Raises:
        ValueError: the encoder or the size cannot be told, or what is given contradicts the weights.
    """
    masked = has_decoder(weights)
    layout, weights = in_timm_names(weights)
    config, channels, size = recognize(weights, encoder=encoder, channels=channels, size=size)
    # The authors' transforms end with ToTensor; only those of their MAE normalize.
    normalization: Normalization = "none" if layout == "authors" and not masked else "imagenet"
    return "ldreg" if config.name == "small_cnn" else layout, weights, Card(config, channels, size, normalization)


def find_file(path: Path) -> Path:
    """The file itself, or the encoder of a run's folder.

    Raises:
        ValueError: a folder without an encoder.
    """
    if not path.is_dir():
        return path
    file = path / ENCODER
    if file.exists():
        return file
    if (path / "config.yaml").is_file():
        raise ValueError(f"{path}: expected a finished run, got one without {ENCODER}; ldreg pretrain --resume {path}")
    raise ValueError(f"{path}: expected a run folder with an {ENCODER}, or a file, got a folder without one")


def read_weights(path: Path) -> tuple[Weights, Card | None]:
    """The state dict of a file, as it is named there, and the card of a run's encoder.

    Raises:
        ValueError: it is no checkpoint, damaged, or holds more than weights.
        OSError: it cannot be read.
    """
    if check_file(path, SUFFIXES) != ".safetensors":
        return _read_torch(path), None
    with parse_errors("a safetensors file"), safe_open(path, framework="pt") as tensors:
        weights = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - no dict
        metadata: Mapping[str, str] = tensors.metadata() or {}
    card = read_card(path, metadata)
    return (weights if card else _unwrapped(weights)), card


def _read_torch(path: Path) -> Weights:
    with warnings.catch_warnings():
        # torch speaks to its users of a sparse tensor's checks; that it is sparse is said by `fill`.
        warnings.filterwarnings("ignore", message=".*sparse.*")
        return _unwrapped(load_torch(path))


def _unwrapped(content: object) -> Weights:
    try:
        return unwrap(content)
    except RecursionError as error:  # a dict in a file of torch can hold itself
        raise ValueError("expected a state dict of names and tensors, got dicts or prefixes without end") from error


def check_outline(card: Card, weights: Weights) -> None:
    """Hold the weights against an encoder that is not made yet: a name of a few letters can stand for billions of them.

    Raises:
        ValueError: the weights are not those of the encoder, or it does not fit into memory.
    """
    if card.encoder.name == "small_cnn":
        return
    try:
        with torch.device("meta"):
            model = create(card.encoder, channels=card.channels, size=card.size)
            if card.encoder.stem == "cifar":
                replace_stem(model, channels=card.channels)
    except ValueError as error:
        if "meta tensors" not in str(error):
            raise
        return  # a model that reads its tensors while it is made; with timm 1.0.30 none of 1,351 does
    own = model.state_dict()
    check_weights(own, weights, name=card.encoder.name)
    check_fits(sum(tensor.numel() * tensor.element_size() for tensor in own.values()))


def restore(module: nn.Module, file: Path, *, name: str) -> None:
    """Put the weights of a file into an encoder that is there already, in place.

    Raises:
        ValueError: it is no checkpoint, damaged, or of another encoder.
        OSError: it cannot be read.
    """
    with named_errors(file):
        weights, _ = read_weights(file)
    fill(module, weights, file=file, name=name)


@torch.no_grad()
def fill(module: nn.Module, weights: Weights, *, file: Path, name: str) -> None:
    """Put the weights into the encoder, in place; what lies beside an encoder is left out.

    Raises:
        ValueError: keys are missing or unexpected, shapes or types differ, or a value is NaN or inf.
    """
    own = module.state_dict()
    with named_errors(file):
        check_weights(own, weights, name=name)
        module.load_state_dict({key: weights.get(key, own[key]) for key in own})
        for key, tensor in module.state_dict().items():
            if not tensor.isfinite().all():
                raise ValueError(f"expected finite weights, got NaN or inf in {key}")


def check_weights(own: Weights, weights: Weights, *, name: str) -> None:
    """Refuse weights that are not those of an encoder, whose state dict is `own`.

    Raises:
        ValueError: keys are missing or unexpected, or shapes or types differ.
    """
    # Counts batches in training alone; files older than the counter go without.
    missing = [key for key in own if key not in weights and not key.endswith(".num_batches_tracked")]
    unexpected = [key for key in weights if key not in own and not beside(key)]
    shared = [(key, own[key], weights[key]) for key in own if key in weights]
    unlike = [(key, mine, found) for key, mine, found in shared if mine.shape != found.shape]
    shapes = [f"{key}: expected {tuple(mine.shape)}, found {tuple(found.shape)}" for key, mine, found in unlike]
    types = [told for key, mine, found in shared if mine.shape == found.shape and (told := _type(key, mine, found))]
    parts = {
        "keys missing": missing,
        "keys unexpected": unexpected,
        "shapes that differ": shapes,
        "types that differ": types,
    }
    if counted := [f"{what}: {len(keys)} ({_first(keys)})" for what, keys in parts.items() if keys]:
        raise ValueError(f"does not fit {name}: {', '.join(counted)}")


def _first(told: Sequence[str], count: int = 3) -> str:
    more = f"; {len(told) - count} more" if len(told) > count else ""
    return "; ".join(one_line(each, 100) for each in told[:count]) + more


def _type(key: str, own: Tensor, found: Tensor) -> str | None:
    """What keeps the values of a tensor from taking the place of the encoder's own; None where nothing does."""
    expected, dtype = (str(tensor.dtype).removeprefix("torch.") for tensor in (own, found))
    if found.layout != torch.strided or found.is_quantized or found.is_meta:
        kind = "meta" if found.is_meta else str(found.layout).removeprefix("torch.")
        return f"{key}: expected dense {expected}, found {kind} {dtype}"
    if found.is_floating_point() != own.is_floating_point():
        return f"{key}: expected {expected}, found {dtype}"
    if found.numel() * found.element_size() > found.untyped_storage().nbytes():  # a few bytes, repeated
        return f"{key}: expected every value to be stored, found an expanded view"
    return None


def _told(card: Card) -> dict[str, Any]:
    """All that a card says of a trained encoder."""
    told = asdict(card)
    return {**told, "encoder": {name: value for name, value in told["encoder"].items() if name not in BEGINNINGS}}


def content_key(module: nn.Module, description: str) -> str:
    """A hash (sha256, hex) of all weights, by name, dtype, shape and bytes, and of a description."""
    digest = hashlib.sha256(description.encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
