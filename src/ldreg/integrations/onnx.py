"""An encoder as an ONNX file, for runtimes without PyTorch."""

import json
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ldreg.encoders.checkpoints import find_file, load_encoder
from ldreg.evaluate.extract import undisturbed
from ldreg.extras import advice, missing
from ldreg.integrations import check_whole
from ldreg.integrations.timm import data_config
from ldreg.io.files import check_writable, write_atomically

__all__ = ["Exported", "export_encoder"]

_LARGEST = 2**31 - 1  # bytes in a protobuf message
# Relative to the largest representation; float32 rounding gives about 1e-6, a wrong operator far more.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """An ONNX file that maps `images` float32 (batch, channels, size, size) to `representations` (batch, dimension)."""

    path: Path
    channels: int
    size: int
    dimension: int
    opset: int
    difference: float  # the largest from PyTorch's representations, relative to the largest of these


def export_encoder(
    encoder: str | PathLike[str] | nn.Module,
    path: str | PathLike[str],
    *,
    channels: int | None = None,
    size: int | None = None,
    normalize: bool = False,
) -> Exported:
    """Write an encoder in eval mode to an ONNX file, after checking that onnxruntime gives the same representations.

    The file's metadata describes its images (`input_size`, `mean`, `std`) as JSON under "ldreg".

    Args:
        encoder: a run's folder, a file that `ldreg.encoders.load_encoder` takes, or a module.
        path: the file to write, ending in .onnx.
        channels: of the images; by default 3 for a module, and those of a checkpoint.
        size: side of the images; required for a module, and for a checkpoint without one.
        normalize: whether the file takes images with values from 0 to 1 and normalizes them as the run did; otherwise
            it takes normalized images.

    Raises:
        ValueError: the encoder is not a checkpoint; the path does not end in .onnx or is a file of the run; a module
            has no size, is to be normalized, or cannot be exported; representations are not finite float32 (B, D) or
            differ from PyTorch's; the file exceeds 2 GB.
        OSError: a file cannot be read or written.
        ModuleNotFoundError: onnx, onnxscript or onnxruntime is not installed.
    """
    if (package := missing("onnx")) is not None:
        raise ModuleNotFoundError(advice(package), name=package)
    check_whole(1, **{name: value for name, value in {"channels": channels, "size": size}.items() if value is not None})
    _check_path(path, encoder)
    check_writable(path)
    module, channels, size, metadata = _source(encoder, channels=channels, size=size, normalize=normalize)
    images = torch.rand(3, channels, size, size, generator=torch.Generator().manual_seed(0))
    device = next((tensor.device for tensor in chain(module.parameters(), module.buffers())), torch.device("cpu"))
    with undisturbed(module, device):
        expected = _representations(module, images.to(device))
        model = _exported(module, images[:2].to(device))
    model.metadata_props.add(key="ldreg", value=json.dumps(metadata))
    if model.ByteSize() > _LARGEST:
        got = f"one of {model.ByteSize() / 2**30:.1f} GB"
        raise ValueError(f"encoder: expected one that fits into an ONNX file of 2 GB, got {got}")
    content = model.SerializeToString()
    difference = _compared(content, images, expected)
    write_atomically(path, content)
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    return Exported(Path(path), channels, size, expected.shape[1], opset, difference)


def _source(
    encoder: str | PathLike[str] | nn.Module, *, channels: int | None, size: int | None, normalize: bool
) -> tuple[nn.Module, int, int, dict[str, Any]]:
    """The module to write, the channels and size of its images, and the file's metadata."""
    if not isinstance(encoder, nn.Module):
        loaded = load_encoder(encoder, channels=channels, size=size)
        images = data_config(loaded) | {"normalizes": normalize}
        module = _Normalized(loaded.module, mean=images["mean"], std=images["std"]) if normalize else loaded.module
        return module, loaded.channels, loaded.size, images
    if size is None:
        raise ValueError("size: expected the side of the images for a module, got None")
    if normalize:
        raise ValueError("normalize: expected False for a module, which has no normalization, got True")
    if wrong := {str(tensor.dtype) for tensor in encoder.parameters() if tensor.dtype != torch.float32}:
        raise ValueError(f"encoder: expected weights in float32, got {', '.join(sorted(wrong))}")
    channels = 3 if channels is None else channels
    return encoder, channels, size, {"input_size": (channels, size, size), "normalizes": False}


class _Normalized(nn.Module):
    """An encoder of images from 0 to 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, *, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.encoder((images - self.mean) / self.std)
        return found


def _check_path(path: str | PathLike[str], encoder: str | PathLike[str] | nn.Module) -> None:
    """Raise ValueError if the file would replace an input or does not end in .onnx."""
    target = Path(path).resolve()  # a link is followed when its target is replaced
    if not isinstance(encoder, nn.Module):
        file = find_file(Path(encoder))
        read = {each.resolve() for each in (file, file.with_name("card.json"), file.with_name("config.yaml"))}
        if target in read or (target.exists() and file.with_name("checkpoints").resolve() in target.parents):
            raise ValueError(f"cannot write {str(path)!r}: it is an input, the encoder or another file of its run")
    if not target.name.lower().endswith(".onnx"):
        raise ValueError(f"cannot write {str(path)!r}: expected a name that ends in .onnx")


def _representations(module: nn.Module, images: Tensor) -> Tensor:
    found: Any = module(images)
    if not isinstance(found, Tensor) or found.ndim != 2:
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"encoder: expected a module that maps images to a tensor (B, D), got {got}")
    if found.dtype != torch.float32:
        raise ValueError(f"encoder: expected representations in float32, got {found.dtype}")
    if not torch.isfinite(found).all():
        raise ValueError("encoder: expected finite representations of random images, got NaN or inf")
    return found.cpu()


def _exported(module: nn.Module, images: Tensor) -> Any:
    """The ONNX model, for any number of images; from a single image the exporter would infer a constant batch."""
    try:
        program = torch.onnx.export(
            module,
            (images,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=["images"],
            output_names=["representations"],
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        cause = error.__cause__ or error  # the exporter's own message is a page on how to report it
        kind, text = type(cause).__name__, str(cause).strip().partition("\n")[0]
        raise ValueError(f"encoder: expected a module that torch.onnx exports, got {kind}: {text}") from error
    assert program is not None
    return program.model_proto


def _compared(content: bytes, images: Tensor, expected: Tensor) -> float:
    """The relative difference of onnxruntime and PyTorch, for one image and for several; rounding must explain it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    differences = []
    for rows in (slice(0, 1), slice(0, None)):
        found = torch.from_numpy(session.run(None, {"images": images[rows].numpy()})[0])
        differences.append((found - expected[rows]).abs().max())
    difference = torch.stack(differences).max().item()  # NaN if one is NaN
    scale = expected.abs().max().item()
    share = difference / scale if scale else difference
    if not share < _TOLERANCE:
        raise ValueError(f"encoder: expected the same representations of onnxruntime, got some {share:.1e} away")
    return share
