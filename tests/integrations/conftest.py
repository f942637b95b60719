"""Runs as `ldreg pretrain` leaves them, without the training."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

from ldreg.encoders import EncoderConfig, build_encoder
from ldreg.train.folder import RunFolder, save_encoder
from ldreg.views import Views, ViewsConfig

MEASURES = {"lid", "lid_low", "frechet_variance", "effective_rank", "spread", "degenerate"}
MakeRun = Callable[..., tuple[Path, nn.Module]]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Makes a run's folder for an encoder; returns it with the encoder whose weights it holds, in eval mode."""

    def make(config: EncoderConfig, *, size: int, channels: int = 3) -> tuple[Path, nn.Module]:
        folder = RunFolder(tmp_path / "runs" / f"{config.name}_{size}_{channels}")
        folder.path.mkdir(parents=True)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            encoder = build_encoder(config, channels=channels, size=size)
            for tensor in encoder.state_dict().values():
                if tensor.is_floating_point() and tensor.ndim == 1:  # norms and biases begin with zeros and ones
                    tensor.add_(0.1 * torch.rand(tensor.shape))
        mean, std = Views(ViewsConfig(normalization="cifar"), size=size, channels=channels).normalization
        images = {"channels": channels, "size": size, "mean": mean, "std": std}
        save_encoder(folder, encoder, {"encoder": asdict(config), "input": images})
        return folder.path, encoder.eval()

    return make
