"""Open models of timm, torchvision and transformers, and own encoders, with a representation of every layer.

A layer's representation is the mean over its pixels, or over its tokens without padding. The output is what the model
hands on to a classifier or, of a sentence encoder, the embedding of the sentence.
"""

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ldreg.encoders.checkpoints import load_encoder
from ldreg.evaluate.extract import Pooling, pooled
from ldreg.options import did_you_mean
from ldreg.text import listed, one_line
from ldreg.views import Views, ViewsConfig

OUTPUT = "output"
_FORMS = "timm:NAME, torchvision:NAME, hf:FOLDER, a run folder or a checkpoint"
_STAGES = (
    "features",
    "blocks",
    "layers",
    "encoder.layers",
)  # what holds the stages of a model, if not the model itself
_POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_SENTENCE_STEPS = ("Transformer", "Pooling", "Normalize")
_MOST_TOKENS = 512  # of a text; longer ones are cut


@dataclass(frozen=True)
class ImageInput:
    """The images that a model takes; they have as many channels as there are means."""

    size: int
    mean: Sequence[float]
    std: Sequence[float]


@dataclass(frozen=True)
class TextInput:
    """How texts become the tokens that a model takes."""

    tokenizer: Any
    longest: int


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model in eval mode; `layers` maps a batch to the representations (B, D) of each layer by name, output last."""

    module: nn.Module
    layers: Callable[[Any], dict[str, Tensor]]
    takes: ImageInput | TextInput


def open_model(spec: str, *, texts: bool, download: bool = False, random_weights: bool = False) -> OpenedModel:
    """The model that `timm:NAME`, `torchvision:NAME`, `hf:FOLDER` or the path of a run or checkpoint names.

    Args:
        spec: the model.
        texts: whether it shall take texts, and not images.
        download: whether weights that are not on this machine may be downloaded.
        random_weights: whether a model of timm or torchvision is built with random weights, always the same.

    Raises:
        ValueError: there is no such model, it takes something else, or it has no weights on this machine.
    """
    kind, colon, name = spec.partition(":")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "timm" and colon:
            found = _timm(name, download=download, random_weights=random_weights)
        elif kind == "torchvision" and colon:
            found = _torchvision(name, download=download, random_weights=random_weights)
        elif random_weights:
            raise ValueError(f"expected a model of timm or torchvision for --random-weights, got {spec!r}")
        elif kind == "hf" and colon:
            found = _transformers(name, texts=texts, download=download)
        elif download:
            raise ValueError(f"expected a model of timm, torchvision or transformers for --download, got {spec!r}")
        elif Path(spec, "config.json").is_file():
            raise ValueError(f"expected {_FORMS}, got {spec!r}; did you mean 'hf:{spec}'?")
        elif Path(spec).exists():
            loaded = load_encoder(spec)
            config = ViewsConfig("mae", normalization=loaded.normalization)
            mean, std = Views(config, size=loaded.size, channels=loaded.channels).normalization
            found = OpenedModel(loaded.module, _layers_of(loaded.module), ImageInput(loaded.size, mean, std))
        else:
            near = did_you_mean(kind, ("timm", "torchvision", "hf")) if colon else ""
            raise ValueError(f"expected {_FORMS}, got {spec!r}{near}")
    if isinstance(found.takes, TextInput) != texts:
        wanted, got = ("texts", "images") if texts else ("images", "texts")
        raise ValueError(f"expected a model of {wanted}, got {spec!r}, which takes {got}")
    return found


def _timm(name: str, *, download: bool, random_weights: bool) -> OpenedModel:
    import timm

    if not timm.is_model(name):
        raise ValueError(f"expected a model of timm, got {name!r}{did_you_mean(name, timm.list_models())}")
    options: dict[str, Any] = {"pretrained": not random_weights, "num_classes": 0}
    if not (random_weights or download):
        options["pretrained_cfg_overlay"] = {"file": _cached(name, timm.get_pretrained_cfg(name))}
    try:
        module = timm.create_model(name, **options)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"expected a model of timm with weights, got {name!r}: {one_line(str(error))}") from error
    config = timm.data.resolve_model_data_config(module)
    channels, height, width = config["input_size"]
    if height != width or len(config["mean"]) != channels:
        raise ValueError(f"expected a model of square images, got {name!r}, which takes {config['input_size']}")
    return OpenedModel(module.eval(), _layers_of(module), ImageInput(height, config["mean"], config["std"]))


def _cached(name: str, config: Any) -> str:
    """The file of a timm model's weights in the caches of the hub and of torch."""
    files: list[Any] = []
    if config is not None and config.hf_hub_id:
        from huggingface_hub import try_to_load_from_cache

        known = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
        files += [try_to_load_from_cache(config.hf_hub_id, file) for file in known]
    if config is not None and config.url:
        files.append(_of_torch_hub(config.url))
    found = next((file for file in files if isinstance(file, str) and Path(file).is_file()), None)
    if found is None:
        raise _no_weights(name)
    return found


def _no_weights(name: str) -> ValueError:
    advice = "--download fetches them, --random-weights does without them"
    return ValueError(f"expected weights of {name} on this machine, got none; {advice}")


def _of_torch_hub(url: str) -> str:
    return str(Path(torch.hub.get_dir(), "checkpoints", Path(url).name))


def _torchvision(name: str, *, download: bool, random_weights: bool) -> OpenedModel:
    from torchvision import models

    names = models.list_models(module=models)
    if name not in names:
        raise ValueError(f"expected a model of torchvision, got {name!r}{did_you_mean(name, names)}")
    weights = models.get_model_weights(name).DEFAULT
    if not (random_weights or download or Path(_of_torch_hub(weights.url)).is_file()):
        raise _no_weights(name)
    try:
        if not random_weights and Path(_of_torch_hub(weights.url)).is_file():
            # torchvision unpickles its weights; a file that loads without running code is harmless.
            torch.load(_of_torch_hub(weights.url), map_location="meta", weights_only=True)
        module = models.get_model(name, weights=None if random_weights else weights)
    except (RuntimeError, OSError, pickle.UnpicklingError) as error:
        raise ValueError(f"expected weights of {name}, got: {one_line(str(error))}") from error
    # The classifier is the last linear map.
    heads = [path for path, part in module.named_modules() if isinstance(part, nn.Linear)]
    if heads:
        parent, _, last = heads[-1].rpartition(".")
        setattr(module.get_submodule(parent), last, nn.Identity())
    prepared = weights.transforms()
    size = prepared.crop_size[0]
    return OpenedModel(module.eval(), _layers_of(module), ImageInput(size, prepared.mean, prepared.std))


def _layers_of(module: Any) -> Callable[[Tensor], dict[str, Tensor]]:
    """What maps images to the representation of each layer, and the output."""
    if hasattr(module, "forward_intermediates"):  # of timm

        def by_timm(images: Tensor) -> dict[str, Tensor]:
            final, layers = module.forward_intermediates(images, output_fmt="NCHW")
            found = {str(place): layer.flatten(2).mean(2) for place, layer in enumerate(layers, 1)}
            return found | {OUTPUT: module.forward_head(final)}

        return by_timm
    parts = dict(module.named_modules())
    stages = list(next((parts[path] for path in _STAGES if path in parts), module).named_children())
    stages = [(name, part) for name, part in stages if list(part.children())] or stages
    channels_last = type(module).__name__ == "SwinTransformer"

    def by_hooks(images: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}

        def keep(name: str, part: nn.Module, given: Any, made: Any) -> None:
            if isinstance(made, Tensor) and made.ndim in (3, 4):
                found[name] = made.mean(1 if made.ndim == 3 else (1, 2) if channels_last else (2, 3))

        hooks = [part.register_forward_hook(partial(keep, name)) for name, part in stages]
        try:
            output = module(images)
        finally:
            for hook in hooks:
                hook.remove()
        return found | {OUTPUT: output.flatten(1)}

    return by_hooks


def _transformers(name: str, *, texts: bool, download: bool) -> OpenedModel:
    """A checkpoint of transformers, or one of sentence-transformers with its pooling and normalization."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    local = {"local_files_only": not download}
    try:
        steps = {step["type"].rpartition(".")[2]: step["path"] for step in _settings(name, "modules.json", local) or []}
        if unknown := [step for step in steps if step not in _SENTENCE_STEPS]:
            raise ValueError(f"{listed(unknown)} in modules.json, where only {listed(_SENTENCE_STEPS)} are supported")
        folder = {**local, "subfolder": steps.get("Transformer", ""), "trust_remote_code": False}
        if _file(name, str(Path(folder["subfolder"], "config.json")), local) is None:
            raise ValueError("no config.json there" + ("" if download else "; --download fetches hf:OWNER/NAME"))
        module, loading = transformers.AutoModel.from_pretrained(
            name, **folder, dtype=torch.float32, output_loading_info=True
        )
        if missing := sorted(key for key in loading["missing_keys"] if "pooler" not in key):
            raise ValueError(f"no weights for {listed(missing, 3)}")
        how: Pooling = "mean"
        if "Pooling" in steps:
            modes = _settings(name, f"{steps['Pooling']}/config.json", local) or {}
            used = [mode for mode, value in modes.items() if value is True and mode.startswith("pooling_mode_")]
            if len(used) != 1 or used[0] not in _POOLINGS:
                raise ValueError(f"pooling by {listed(used)}; expected one of {listed(list(_POOLINGS))}")
            how = _POOLINGS[used[0]]
        part = module.get_encoder() if module.config.is_encoder_decoder else module
        part = getattr(part, "text_model" if texts else "vision_model", part)  # of CLIP
        takes: ImageInput | TextInput
        if part.main_input_name == "input_ids":
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, **folder)
            files = [str(Path(folder["subfolder"], file)) for file in tokenizer.vocab_files_names.values()]
            if not any(_file(name, file, local) for file in files):  # else every word would be unknown
                raise ValueError(f"no tokenizer: none of {listed(files)}")
            tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
            most = getattr(part.config, "max_position_embeddings", None) or _MOST_TOKENS
            most = (_settings(name, "sentence_bert_config.json", local) or {}).get("max_seq_length") or most
            takes = TextInput(tokenizer, min(most, tokenizer.model_max_length, _MOST_TOKENS))
        elif part.main_input_name == "pixel_values":
            prepared = transformers.AutoImageProcessor.from_pretrained(name, **folder)
            size = prepared.crop_size or prepared.size
            takes = ImageInput(size.height or size.shortest_edge, prepared.image_mean, prepared.image_std)
        else:
            raise ValueError(f"a model of {part.main_input_name}")
    except Exception as error:  # libraries fail in many ways on a folder that is no checkpoint
        what = one_line(f"{error}" or type(error).__name__, 200)
        raise ValueError(f"expected a checkpoint of transformers in {name!r}, got {what}") from error

    def forward(batch: Any) -> dict[str, Tensor]:
        inputs = {"pixel_values": batch} if isinstance(batch, Tensor) else batch
        made = part(**inputs, output_hidden_states=True, return_dict=True)
        mask = None if isinstance(batch, Tensor) else batch["attention_mask"]

        def mean(hidden: Tensor) -> Tensor:
            return hidden.flatten(2).mean(2) if hidden.ndim == 4 else pooled(hidden, mask, how=how)

        found = {str(place): mean(one) for place, one in enumerate(made.hidden_states)}
        output = mean(made.last_hidden_state)
        return found | {OUTPUT: functional.normalize(output) if "Normalize" in steps else output}

    return OpenedModel(part.eval(), forward, takes)


def _file(name: str, file: str, local: dict[str, bool]) -> str | None:
    """The path of a file of a checkpoint; None if it has none of that name."""
    from transformers.utils import cached_file

    quiet = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "gated_repo", "connection_errors")}
    found: str | None = cached_file(name, file, **local, **quiet)
    return found


def _settings(name: str, file: str, local: dict[str, bool]) -> Any:
    """The content of a JSON file of a checkpoint; None if it has none of that name."""
    path = _file(name, file, local)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
