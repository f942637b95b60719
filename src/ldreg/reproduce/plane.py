"""The paper's experiments in the plane: local collapse (Figure 1(c)) and reaching a target LID (Appendix A)."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ldreg.dimension.estimators import Convention, estimate_lid
from ldreg.dimension.geometry import fisher_rao, geometric_mean
from ldreg.dimension.global_dim import danco
from ldreg.dimension.synthetic import local_collapse
from ldreg.record import PointCloud
from ldreg.regularizers.ldreg import LDReg
from ldreg.report.plots import cloud_panels
from ldreg.report.tables import Cell, Table
from ldreg.text import number

TARGETS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
Progress = Callable[[float], None]


def measure(caption: str, points: Tensor, *, k: int, convention: Convention = "paper") -> PointCloud:
    """The local and global dimension of points (N, 2), and how far they are from filling the plane."""
    estimate = estimate_lid(points, k, convention=convention)
    mean = geometric_mean(estimate.lid)
    # Of the twentieth of the points that lie closest to the middle, the one whose LID is closest to the mean.
    middle = (points - points.mean(0)).norm(dim=1).topk(max(1, len(points) // 20), largest=False).indices
    anchor = int(middle[fisher_rao(estimate.lid[middle], mean).argmin()])
    radius = estimate.neighbors.distances[anchor, -1].item()
    distance = fisher_rao(mean, 2.0).item()
    return PointCloud(caption, points, estimate.lid, mean.item(), distance, danco(points), anchor, radius)


def reach_target(
    target: float, *, n: int = 1000, k: int = 12, steps: int = 200, seed: int = 0, progress: Progress | None = None
) -> PointCloud:
    """Train one linear layer on uniform points of the plane until their geometric-mean LID is the target.

    A linear map changes the LID of points that fill the plane only as it flattens them to the width of a neighborhood,
    so the layer starts nearly flat, where LDReg has a slope in either direction. The Fisher-Rao distance is that of
    the Fréchet mean to the target, as in Appendix A, and the mean over the first k - 1 neighbors, as in the paper's
    pseudocode, since the other convention cannot read less than 1 + 2/k.

    Args:
        target: LID to reach; the plane allows 1 to 2.
        n: number of points.
        k: number of neighbors; few, so that the square's border costs little.
        steps: of Adam, with a learning rate that falls to 0 along a cosine.
        seed: of points and layer.
        progress: called with the fraction done.
    """
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(n, 2, generator=generator) * 2 - 1
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight, generator=generator)
        layer.weight[1] *= 0.1
    reg = LDReg(k=k, beta=1.0, norm="frechet", target=target, convention="pseudocode", reference_grad=True)

    def loss(done: float) -> Tensor:
        # Fresh points at first: on one set, chance hollows that the nearly flat slope of wide clouds cannot leave.
        batch = torch.rand(n, 2, generator=generator) * 2 - 1 if done < 0.6 else points
        value: Tensor = reg(layer(batch))
        return value

    _descend(loss, list(layer.parameters()), steps=steps, rate=8e-3, progress=progress)
    reached = layer(points).detach()
    return measure(f"target {target:.1f}", reached, k=k, convention="pseudocode")


def reach_targets(
    targets: Sequence[float] = TARGETS, *, steps: int = 200, seed: int = 0, progress: Progress | None = None
) -> list[PointCloud]:
    """`reach_target` for each target: the panels of Appendix A."""

    def part(place: int) -> Progress | None:
        return None if progress is None else lambda done: progress((place + done) / len(targets))

    return [reach_target(target, steps=steps, seed=seed, progress=part(place)) for place, target in enumerate(targets)]


def collapse_and_cure(
    *, n: int = 2000, k: int = 64, steps: int = 60, seed: int = 0, progress: Progress | None = None
) -> list[PointCloud]:
    """Four clouds that fill the square and collapse locally ever more, and the last after LDReg: Figure 1(c)."""
    clouds = [
        measure(f"collapse {strength:.0%}", local_collapse(n, strength, seed=seed), k=k)
        for strength in (0.0, 0.8, 0.95, 1.0)
    ]
    points = clouds[-1].points.clone().requires_grad_()
    reg = LDReg(k=k, beta=1.0, target=2.0)
    _descend(lambda done: reg(points), [points], steps=steps, rate=4e-3, progress=progress)
    return [*clouds, measure("the last, after LDReg", points.detach(), k=k)]


def _descend(
    loss: Callable[[float], Tensor], parameters: list[Tensor], *, steps: int, rate: float, progress: Progress | None
) -> None:
    optimizer = torch.optim.Adam(parameters, lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss(step / steps).backward()
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress((step + 1) / steps)


# What makes the clouds of a study, by its name.
CLOUDS: Mapping[str, Callable[[], list[PointCloud]]] = {"figure1": collapse_and_cure, "targets": reach_targets}


@cache
def clouds(study: str) -> list[PointCloud]:
    """The clouds of a study in the plane."""
    return CLOUDS[study]()


def cloud_figure(study: str) -> dict[str, Figure]:
    """The clouds side by side."""
    shown, close = clouds(study), study == "targets"
    return {"Points of the plane, colored by LID": cloud_panels(shown, columns=3 if close else len(shown), close=close)}


def cloud_table(study: str) -> Table:
    """The numbers of the clouds."""
    rows = [
        [cloud.caption, number(cloud.mean_lid), f"{cloud.fisher_rao:.2f}", number(cloud.global_dimension)]
        for cloud in clouds(study)
    ]
    columns = ["Cloud", "LID, geometric mean", "Fisher-Rao distance to 2", "Global dimension"]
    return Table(columns, [[Cell(text) for text in row] for row in rows])
