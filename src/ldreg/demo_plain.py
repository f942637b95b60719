"""SimCLR on scikit-learn's digits in plain PyTorch: the runs of `ldreg demo` where ldreg[train] is not installed."""

import math
import platform
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from ldreg.dimension.estimators import lid
from ldreg.dimension.geometry import geometric_mean
from ldreg.dimension.spectrum import effective_rank
from ldreg.evaluate.knn import knn_accuracy, voters
from ldreg.evaluate.linear import linear_accuracy
from ldreg.inspection import inspect
from ldreg.inspection.report import DimensionReport, findings_in_words
from ldreg.record import Record
from ldreg.regularizers.ldreg import LDReg
from ldreg.thumbnails import Thumbnail, data_uri
from ldreg.version import __version__

EPOCHS = 60
_BATCH = 256
_K = 32  # neighbors, of LDReg and of what is measured
_TEST = 5  # every so many images are test images
_TEMPERATURE = 0.2
_RATE = 2e-3
_EVERY = 10  # epochs between measurements


def plain_run(name: str, *, beta: float, epochs: int = EPOCHS, seed: int = 0, thumbnails: int = 12) -> Record:
    """Train a small CNN with LDReg of strength `beta` added (0: SimCLR alone), and measure it as a record.

    Raises:
        ValueError: fewer than one epoch.
    """
    if epochs < 1:
        raise ValueError(f"epochs: expected at least 1, got {epochs}")
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    classes = torch.tensor(digits.target)
    held = torch.arange(len(images)) % _TEST == 0
    started = time.monotonic()
    encoder, curves = _train(images[~held], beta=beta, epochs=epochs, seed=seed)
    minutes = (time.monotonic() - started) / 60
    with torch.no_grad():
        train, test = encoder(images[~held]), encoder(images[held])
    rows = (train, classes[~held], test, classes[held])
    report = inspect(train, [str(digit) for digit in classes[~held].tolist()], _K)
    order = report.lid.argsort()
    settings = {"method": "simclr", "regularizer": "ldreg" if beta else "none", "batch_size": _BATCH}
    return Record(
        name,
        settings=settings | ({"ldreg.beta": beta, "ldreg.k": _K} if beta else {}),
        results={
            "lid": report.mean.value,
            "lid_low": report.lid_low,
            "effective_rank": report.effective_rank,
            "frechet_variance": report.frechet_variance,
            "linear": linear_accuracy(*rows).accuracy,
            "knn": knn_accuracy(*rows, k=voters(len(train))),
            "minutes": minutes,
        },
        curves=curves,
        origin={
            "command": "ldreg demo, in plain PyTorch",
            "version": __version__,
            "hardware": platform.processor() or platform.machine(),
            "seed": seed,
            "epochs": epochs,
            "minutes": minutes,
        },
        lid=report.lid.tolist(),
        eigenvalues=report.eigenvalues.tolist(),
        map=[(across, up) for across, up in report.coordinates.tolist()],
        labels=report.labels,
        k=_K,
        most_collapsed=_pictures(images[~held], report, order[:thumbnails]),
        least_collapsed=_pictures(images[~held], report, order.flip(0)[: thumbnails // 3]),
        images=len(train),
        tested=len(test),
        voters=voters(len(train)),
        findings=findings_in_words(report, "representations"),
        classes={each.label: each.mean.value for each in report.classes},
    )


def _train(
    images: Tensor, *, beta: float, epochs: int, seed: int
) -> tuple[nn.Module, dict[str, list[tuple[float, float]]]]:
    """The encoder after training, ready to evaluate, and its curves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder, head = _encoder(), nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
        optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=_RATE, weight_decay=1e-4)
        reg = LDReg(k=_K, beta=beta) if beta else None
        curves: dict[str, list[tuple[float, float]]] = {"loss": [], "lid": [], "effective_rank": []}
        for epoch in range(epochs):
            encoder.train()
            for batch in torch.randperm(len(images)).split(_BATCH):
                if len(batch) <= _K:
                    continue
                representations = encoder(torch.cat([_view(images[batch]), _view(images[batch])]))
                loss = _contrast(head(representations))
                loss = loss if reg is None else loss + reg(representations)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            curves["loss"].append((epoch + 1, loss.item()))
            encoder.eval()
            if (epoch + 1) % _EVERY == 0 or epoch + 1 == epochs:
                with torch.no_grad():
                    found = encoder(images)
                curves["lid"].append((epoch + 1, geometric_mean(lid(found, k=_K)).item()))
                curves["effective_rank"].append((epoch + 1, effective_rank(found).item()))
    return encoder, curves


def _encoder() -> nn.Module:
    """Images (B, 1, 8, 8) to representations (B, 128)."""
    layers: list[nn.Module] = []
    for before, width, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2), (64, 128, 1)):
        layers += [nn.Conv2d(before, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _view(images: Tensor) -> Tensor:
    """Images (B, 1, S, S), each turned, scaled, moved and made noisy at random."""
    count = len(images)
    turn = torch.empty(count).uniform_(-math.pi / 12, math.pi / 12)
    scale = torch.empty(count).uniform_(0.7, 1.1)
    shift = torch.empty(count, 2, 1).uniform_(-0.25, 0.25)
    matrix = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], 1).view(-1, 2, 2) * scale.view(-1, 1, 1)
    grid = functional.affine_grid(torch.cat([matrix, shift], 2), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False) + 0.1 * torch.randn_like(images)


def _contrast(embeddings: Tensor) -> Tensor:
    """SimCLR's loss of two views, one after the other (2B, D)."""
    directions = functional.normalize(embeddings)
    similarity = (directions @ directions.T / _TEMPERATURE).fill_diagonal_(-torch.inf)
    return functional.cross_entropy(similarity, torch.arange(len(embeddings)).roll(len(embeddings) // 2))


def _pictures(images: Tensor, report: DimensionReport, rows: Tensor) -> list[Thumbnail]:
    labels = report.labels or [""] * len(images)
    return [
        Thumbnail(
            data_uri((images[row] * 255).round().to(torch.uint8)),
            index=row,
            lid=report.lid[row].item(),
            label=labels[row],
        )
        for row in rows.tolist()
    ]
