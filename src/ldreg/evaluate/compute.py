"""Where and how precisely an evaluation computes."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Precision = Literal["fp32", "bf16"]
Synchronize = Callable[[nn.Module, torch.device], nn.Module]  # gives batch norms statistics of all processes

AUTOCAST: dict[Precision, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Compute:
    """The device, how many of them, and the precision of the arithmetic.

    Args:
        device: auto (a GPU where there is one), cpu or cuda
        devices: processes on this machine, with one device each
        precision: fp32, or bf16 mixed with float32

    >>> Compute(devices=0)
    Traceback (most recent call last):
    ValueError: devices: expected at least 1, got 0
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device: expected auto, cpu or cuda, got {self.device!r}")
        if self.devices < 1:
            raise ValueError(f"devices: expected at least 1, got {self.devices}")
        if self.precision not in AUTOCAST:
            raise ValueError(f"precision: expected {' or '.join(AUTOCAST)}, got {self.precision!r}")

    @property
    def torch_device(self) -> torch.device:
        """The device of this process."""
        return torch_device(self.device)


def torch_device(name: str) -> torch.device:
    """The device of this process: of several on one machine, each takes the GPU of its own number.

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
