"""Representations of images, taken from an encoder without leaving a trace in it or in the random generators."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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

    The generators matter although nothing here draws from them: merely iterating a DataLoader takes a number from the
    global one, and a run that is measured must not differ from one that is not.

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
