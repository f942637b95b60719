"""Representations of images from an encoder, on a device and in a precision."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

Precision = Literal["fp32", "bf16"]
Pooling = Literal["mean", "cls"]

AUTOCAST: dict[Precision, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}


def torch_device(name: str) -> torch.device:
    """The device of this process; of several on one machine, each takes the GPU of its own number.

    Raises:
        ValueError: a name other than auto, cpu and cuda, or a GPU is asked for and there is none.

    >>> torch_device("cpu")
    device(type='cpu')
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected a CUDA device for 'cuda', got none on this machine")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def representations(
    encoder: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    device: torch.device | str,
    autocast: torch.dtype | None = None,
    store: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Representations (N, D) in float32 of all images, and their labels (N,), in the order of the batches.

    Args:
        encoder: maps images (B, C, H, W) to representations (B, D); it must lie on the device.
        batches: pairs of normalized float images (B, C, H, W) and labels (B,).
        device: where the encoder runs.
        autocast: the dtype to compute in, such as torch.bfloat16; None: that of the encoder.
        store: where the results are kept; None: on the device.

    Raises:
        ValueError: where there is no batch, or the encoder's output is not (B, D).

    >>> encoder, images = nn.Flatten(), torch.arange(8.0).reshape(2, 1, 2, 2)
    >>> x, y = representations(encoder, [(images, torch.tensor([3, 4]))], device="cpu")
    >>> x.shape, y.tolist(), encoder.training
    (torch.Size([2, 4]), [3, 4], True)
    """
    device = torch.device(device)
    store = device if store is None else torch.device(store)
    found: list[Tensor] = []
    labels: list[Tensor] = []
    with undisturbed(encoder, device), torch.autocast(device.type, autocast, enabled=autocast is not None):
        for images, classes in batches:
            output = encoder(images.to(device, non_blocking=True))
            if output.ndim != 2 or len(output) != len(images):
                raise ValueError(f"encoder: expected output of shape ({len(images)}, D), got {tuple(output.shape)}")
            found.append(output.float().to(store))
            labels.append(classes.to(store))
    if not found:
        raise ValueError("batches: expected at least one batch, got none")
    return torch.cat(found), torch.cat(labels)


@contextmanager
def undisturbed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode without gradients; afterwards every submodule's mode and torch's generators are as they were.

    A run must not change by being measured, and merely iterating a DataLoader draws from the global generator.

    >>> dropout = nn.Dropout(0.5)
    >>> with undisturbed(dropout, torch.device("cpu")):
    ...     dropout(torch.ones(2))
    tensor([1., 1.])
    """
    modes = [(part, part.training) for part in module.modules()]
    devices = [device] if device.type == "cuda" else []
    # Not inference mode: a module that builds and keeps a tensor on first use could not train with it afterwards.
    with torch.random.fork_rng(devices), torch.no_grad():
        try:
            module.eval()
            yield
        finally:
            for part, training in modes:
                part.training = training


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Images uint8 (..., C, H, W) with so many channels: gray is repeated, color becomes luminance (ITU-R 601).

    Luminance is rounded as by Pillow, so that gray held in three channels stays what it is.

    Raises:
        ValueError: channels, or those of the images, are neither 1 nor 3.

    >>> import torch
    >>> with_channels(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 3).shape
    torch.Size([2, 3, 8, 8])
    """
    present = images.shape[-3]
    if present == channels:
        return images
    if {present, channels} != {1, 3}:
        raise ValueError(f"channels: expected 1 or 3, got images of {present} for an encoder of {channels}")
    if channels == 1:
        red, green, blue = images.int().split(1, dim=-3)
        gray: Tensor = (19595 * red + 38470 * green + 7471 * blue + (1 << 15)) >> 16
        return gray.to(images.dtype)
    return images.expand(*images.shape[:-3], 3, *images.shape[-2:])


def pooled(hidden: Tensor, mask: Tensor | None = None, *, how: Pooling = "mean") -> Tensor:
    """Representations (N, D) of hidden states (N, T, D), where the mask (N, T) is 0 at padding.

    Raises:
        ValueError: hidden is of another shape, or a mask has nothing but padding in a row.

    >>> hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]])
    >>> pooled(hidden, torch.tensor([[1, 1, 0]])), pooled(hidden, how="cls")
    (tensor([[2., 3.]]), tensor([[1., 2.]]))
    """
    if hidden.ndim != 3:
        raise ValueError(f"hidden: expected hidden states (N, T, D), got shape {tuple(hidden.shape)}")
    mask = torch.ones(hidden.shape[:2], device=hidden.device) if mask is None else mask
    if mask.shape != hidden.shape[:2]:
        raise ValueError(f"mask: expected {tuple(hidden.shape[:2])}, got {tuple(mask.shape)}")
    if not mask.any(1).all():
        raise ValueError("mask: expected a token in every row, got one of padding alone")
    if how == "cls":  # of rows with padding on the left, that is not at 0
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.bool().int().argmax(1)]
    hidden = hidden.float()  # a sum over many tokens in half precision would lose digits
    weights = mask.to(hidden.dtype)
    return (hidden * weights.unsqueeze(2)).sum(1) / weights.sum(1, keepdim=True)
