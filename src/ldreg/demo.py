"""The demo: SimCLR on scikit-learn's digits without and with LDReg, compared in one report.

With ldreg[train] both are runs of `ldreg pretrain`; without it a smaller SimCLR is trained in plain PyTorch.
"""

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ldreg import __version__
from ldreg.evaluate.measure import measure, measure_set, voters
from ldreg.extras import missing
from ldreg.inspection.measure import quick_report
from ldreg.inspection.report import DimensionReport, findings_in_words
from ldreg.io.files import write_atomically
from ldreg.record import PointCloud, Record, Thumbnail
from ldreg.regularizers.ldreg import LDReg
from ldreg.report.pages import clouds_section, comparison_page
from ldreg.report.plots import cloud_panels
from ldreg.report.style import picture, plain_style
from ldreg.reproduce.plane import TARGETS, collapse_and_cure, reach_targets
from ldreg.thumbnails import data_uri

_THUMBNAILS = 12
EPOCHS = 60  # of the runs in plain PyTorch
_BATCH_SIZE = 256
_K = 32  # neighbors, of LDReg and of the measures
_TEST_EVERY = 5  # every fifth image is a test image
_TEMPERATURE = 0.2
_LEARNING_RATE = 2e-3
_MEASURE_EVERY = 10  # epochs

RECIPES = {"SimCLR": "digits/simclr", "SimCLR + LDReg": "digits/simclr_ldreg"}
_BETAS = {"SimCLR": 0.0, "SimCLR + LDReg": 0.1}  # as in the recipes

_COLLAPSE_TEXT = (
    "Each cloud spans the square, and its global dimension (GID, by DANCo) falls by a tenth at most, but neighborhoods "
    "are flattened ever more: the mean LID falls by 40 % and its Fisher-Rao distance (FR) to the plane's 2 grows. "
    "LDReg, applied to the most collapsed cloud, opens its neighborhoods again (paper, Figure 1(c))."
)
_TARGET_TEXT = (
    "One linear layer on uniform points of the plane, trained by LDReg alone to reach a given LID (paper, Appendix A). "
    "Each picture looks closely at one point, the star, with its 12 nearest neighbors in the circle: the layer "
    "flattens the cloud just as far as the target asks."
)


@dataclass(frozen=True)
class Demo:
    """The results of the demo and the path of its report."""

    runs: list[Record]
    reached: list[PointCloud]
    report: Path


def demo(
    out: Path,
    *,
    epochs: int | None = None,
    steps: int = 200,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> Demo:
    """Train and evaluate both runs, redraw two figures of the paper, and write everything and a report into `out`.

    Without ldreg[train] the runs leave no folders.

    Args:
        out: folder to write into; created if missing. Runs go to new folders in it.
        epochs: of each run; None: those of the recipe, or 60 without ldreg[train].
        steps: of the training toward each target in the plane.
        seed: of every random draw.
        progress: called with the name of the step and the fraction done.

    Raises:
        ValueError: no epochs, or a seed out of range.
    """
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs: expected at least 1, got {epochs}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected 0 to 2**63 - 1, got {seed}")
    step = progress or (lambda name, done: None)
    out.mkdir(parents=True, exist_ok=True)
    runs = []
    for place, (name, recipe) in enumerate(RECIPES.items()):
        step(f"training {name}", 0.4 * place)
        runs.append(_run(name, recipe, out / "runs", epochs=epochs, seed=seed))
        runs[-1].to_json(out / f"{Path(recipe).name}.json")
    collapsed = collapse_and_cure(seed=seed, progress=lambda done: step("local collapse", 0.8 + 0.05 * done))
    reached = reach_targets(TARGETS, steps=steps, seed=seed, progress=lambda done: step("targets", 0.85 + 0.1 * done))
    step("drawing", 0.95)
    _draw_panels(collapsed, reached, out)
    sections = [
        clouds_section("Local collapse that global dimension does not see", _COLLAPSE_TEXT, collapsed),
        clouds_section("Any local dimension on request", _TARGET_TEXT, reached, close=True),
    ]
    report = out / "report.html"
    write_atomically(report, comparison_page(runs, title="SimCLR on digits, without and with LDReg", further=sections))
    step("done", 1.0)
    return Demo(runs, reached, report)


@plain_style()
def _draw_panels(collapsed: Sequence[PointCloud], reached: Sequence[PointCloud], out: Path) -> None:
    """Draw both experiments in the plane, as in the paper."""
    write_atomically(out / "local_collapse.png", picture(cloud_panels(collapsed, columns=5), "png"))
    write_atomically(out / "target_lid.png", picture(cloud_panels(reached, columns=3, close=True), "png"))


def _run(name: str, recipe: str, folder: Path, *, epochs: int | None, seed: int) -> Record:
    """One run by its recipe in a new folder, or in plain PyTorch without ldreg[train]."""
    if missing("train") is not None:
        return plain_run(name, beta=_BETAS[name], epochs=EPOCHS if epochs is None else epochs, seed=seed)
    from ldreg.evaluate.records import record
    from ldreg.evaluate.source import open_source
    from ldreg.train.folder import unused
    from ldreg.train.recipes import load_recipe
    from ldreg.train.run import pretrain
    from ldreg.train.settings import resolve

    options: list[tuple[str, str | None]] = [("seed", str(seed))]
    if epochs is not None:
        options.append(("schedule.epochs", str(epochs)))
    settings = resolve(load_recipe(recipe), options)
    path = unused(folder / Path(recipe).name)
    words = " ".join(f"--{key} {value}" for key, value in options)
    pretrain(settings, path, command=f"ldreg pretrain --recipe {recipe} {words}")
    return record(open_source(path), name=name, thumbnails=_THUMBNAILS, cache=folder.parent / "cache")


def plain_run(name: str, *, beta: float, epochs: int = EPOCHS, seed: int = 0, thumbnails: int = 12) -> Record:
    """Train SimCLR on digits in plain PyTorch, with LDReg of strength `beta` (0: without it), and measure it."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    classes = torch.tensor(digits.target)
    is_test = torch.arange(len(images)) % _TEST_EVERY == 0
    started = time.monotonic()
    encoder, curves = _train(images[~is_test], beta=beta, epochs=epochs, seed=seed)
    minutes = (time.monotonic() - started) / 60
    with torch.no_grad():
        train, test = encoder(images[~is_test]), encoder(images[is_test])
    results = measure_set((train, classes[~is_test], test, classes[is_test]), k=_K) | {"minutes": minutes}
    del results["spread"]
    report = quick_report(train, [str(digit) for digit in classes[~is_test].tolist()], _K, plane=True)
    order = report.lid.argsort()
    settings = {"method": "simclr", "regularizer": "ldreg" if beta else "none", "batch_size": _BATCH_SIZE}
    return Record(
        name,
        settings=settings | ({"ldreg.beta": beta, "ldreg.k": _K} if beta else {}),
        results=results,
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
        most_collapsed=_pictures(images[~is_test], report, order[:thumbnails]),
        least_collapsed=_pictures(images[~is_test], report, order.flip(0)[: thumbnails // 3]),
        images=len(train),
        tested=len(test),
        voters=voters(len(train)),
        findings=findings_in_words(report, "representations"),
        classes={each.label: each.mean.value for each in report.classes},
    )


def _train(
    images: Tensor, *, beta: float, epochs: int, seed: int
) -> tuple[nn.Module, dict[str, list[tuple[float, float]]]]:
    """The trained encoder, in eval mode, and its curves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder, head = _encoder(), nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
        optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=_LEARNING_RATE, weight_decay=1e-4)
        reg = LDReg(k=_K, beta=beta) if beta else None
        curves: dict[str, list[tuple[float, float]]] = {"loss": [], "lid": [], "effective_rank": []}
        for epoch in range(epochs):
            encoder.train()
            for batch in torch.randperm(len(images)).split(_BATCH_SIZE):
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
            if (epoch + 1) % _MEASURE_EVERY == 0 or epoch + 1 == epochs:
                with torch.no_grad():
                    measured = measure(encoder(images), k=_K)
                for name in ("lid", "effective_rank"):
                    curves[name].append((epoch + 1, measured[name]))
    return encoder, curves


def _encoder() -> nn.Module:
    """Images (B, 1, 8, 8) to representations (B, 128)."""
    layers: list[nn.Module] = []
    for before, width, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2), (64, 128, 1)):
        layers += [nn.Conv2d(before, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _view(images: Tensor) -> Tensor:
    """Images (B, 1, S, S), each rotated, scaled, shifted and with noise, at random."""
    count = len(images)
    turn = torch.empty(count).uniform_(-math.pi / 12, math.pi / 12)
    scale = torch.empty(count).uniform_(0.7, 1.1)
    shift = torch.empty(count, 2, 1).uniform_(-0.25, 0.25)
    matrix = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], 1).view(-1, 2, 2) * scale.view(-1, 1, 1)
    grid = functional.affine_grid(torch.cat([matrix, shift], 2), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False) + 0.1 * torch.randn_like(images)


def _contrast(embeddings: Tensor) -> Tensor:
    """SimCLR's loss of embeddings (2B, D), view after view."""
    directions = functional.normalize(embeddings)
    similarity = (directions @ directions.T / _TEMPERATURE).fill_diagonal_(-torch.inf)
    return functional.cross_entropy(similarity, torch.arange(len(embeddings)).roll(len(embeddings) // 2))


def _pictures(images: Tensor, report: DimensionReport, rows: Tensor) -> list[Thumbnail]:
    labels, lid = report.labels or [""] * len(images), report.lid.tolist()
    pictures = (images * 255).round().to(torch.uint8)
    return [Thumbnail(data_uri(pictures[row]), row, lid[row], labels[row]) for row in rows.tolist()]
