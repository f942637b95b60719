"""Each kind of finding, by its fields and numbers, and sets that are small, odd or degenerate."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ldreg.dimension.spectrum import effective_rank, relative_spread
from ldreg.dimension.streaming import stream_lid
from ldreg.evaluate.features import features
from ldreg.evaluate.source import open_source
from ldreg.inspection.findings import Points, compare, find, local_dimension
from ldreg.inspection.measure import inspect
from ldreg.io.files import json_values
from ldreg.record import Finding
from ldreg.train.recipes import load_recipe
from ldreg.train.run import pretrain
from ldreg.train.settings import resolve


def normal(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def points(x: Tensor, k: int = 32, labels: Sequence[str] | None = None, rows: Tensor | None = None) -> Points:
    """What a search of all points, or of some rows, gives."""
    found = stream_lid(x, k, device="cpu")
    rows = torch.arange(len(x)) if rows is None else rows
    return Points(
        found.lid[rows],
        found.neighbors.distances[rows],
        found.neighbors.indices[rows],
        rows,
        len(x),
        x.shape[1],
        float(effective_rank(x.float())),
        float(relative_spread(x.float())),
        float((x.double() - x.double().mean(0)).square().sum(1).mean().sqrt()),
        (x == 0).all(1)[rows],
        None if labels is None else [labels[row] for row in rows.tolist()],
    )


def kinds(found: Sequence[Finding]) -> set[str]:
    return {finding.kind for finding in found}


def serious(found: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in found if finding.serious)


def beside(own: Points, other: Points) -> str:
    """What a set is called beside another."""
    return compare(own, other, own_findings=find(own), other_findings=find(other)).kind


def one(found: Sequence[Finding], kind: str) -> Finding:
    (finding,) = (finding for finding in found if finding.kind == kind)
    return finding


def structured(n: int = 2400, d: int = 64, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Twelve clusters of unit norm that overlap, as topics of sentences do, with falling spectra of their own."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 12
    centers = torch.randn(12, d, generator=generator)
    bases = torch.randn(12, d, d, generator=generator) * torch.arange(1, d + 1)[:, None] ** -0.3 / d**0.5
    noise = torch.randn(n, d, generator=generator)
    x = 0.5 * centers[y] + torch.einsum("nd,nde->ne", noise, bases[y])
    return torch.nn.functional.normalize(x, dim=1), y


def squeezed(x: Tensor, which: Tensor, d: int) -> Tensor:
    """The chosen points on d principal axes of their own."""
    out = x.clone()
    mean = x[which].mean(0)
    axes = torch.linalg.svd(x[which] - mean, full_matrices=False).Vh[:d]
    out[which] = mean + (x[which] - mean) @ axes.T @ axes
    return out


def names(y: Tensor) -> list[str]:
    return [str(value) for value in y.tolist()]


@pytest.mark.parametrize("k", [16, 64])
@pytest.mark.parametrize("labeled", [False, True])
def test_healthy_sets_have_no_serious_findings(k: int, labeled: bool) -> None:
    x, y = structured()
    digits = load_digits()
    for data, labels in ((x, names(y)), (torch.tensor(digits.data).float(), names(torch.tensor(digits.target)))):
        assert serious(find(points(data, k, labels if labeled else None))) == ()
    assert serious(find(points(normal(1500, 20), k))) == ()


@pytest.mark.parametrize(("classes", "d"), [((3, 7), 3), ((5,), 2)])
def test_squeezed_classes_are_a_collapsed_group_though_the_mean_of_lid_may_rise(
    classes: tuple[int, ...], d: int
) -> None:
    x, y = structured()
    spoiled, rows = x, []
    for c in classes:
        spoiled = squeezed(spoiled, y == c, d)
        rows += torch.nonzero(y == c).flatten().tolist()
    healthy, low = points(x, 64), points(spoiled, 64, names(y))
    found = find(low)
    groups = [finding for finding in found if finding.kind == "collapsed_group"]
    assert found[0].kind == "collapsed_group"
    assert found[0].severity == "critical"
    assert sum(finding.share for finding in groups) == pytest.approx(len(rows) / len(x), abs=0.02)
    assert {row for finding in groups for row in finding.rows} <= set(rows)
    assert {name for finding in groups for name, _ in finding.labels} == {str(c) for c in classes}
    for finding in groups:
        assert finding.numbers["lid"] < 0.5 * finding.numbers["bulk"]
        assert set(finding.examples) <= set(finding.rows)
    assert (beside(low, healthy), beside(healthy, low)) == ("collapsed_beside", "comparison_collapsed")


def test_most_of_the_points_can_be_the_collapsed_group_also_with_few_neighbors() -> None:
    x, y = structured()
    for c in range(9):
        x = squeezed(x, y == c, 3)
    low = normal(500, 64) * torch.arange(1, 65) ** -0.25
    low[:450, 3:] *= 0.01
    for data, k, share in ((x, 32, 0.75), (low, 16, 0.9)):
        groups = [finding for finding in find(points(data, k)) if finding.kind == "collapsed_group"]
        assert sum(finding.share for finding in groups) == pytest.approx(share, abs=0.05)


def test_a_sample_of_the_points_finds_the_group_by_rows_of_the_data() -> None:
    x, y = structured()
    rows = torch.arange(1, len(x), 2)
    low = squeezed(x, y == 3, 2)
    finding = one(find(points(low, 32, rows=rows)), "collapsed_group")
    assert set(finding.rows) <= set(torch.nonzero(y == 3).flatten().tolist())
    assert finding.share == pytest.approx(1 / 6, abs=0.02)  # odd rows have the odd classes


@pytest.mark.parametrize(("share", "severity"), [(0.05, "warning"), (0.45, "critical"), (0.9, "critical")])
def test_dead_rows_are_degenerate_and_never_healthier(share: float, severity: str) -> None:
    x = torch.relu(normal(2000, 64) @ normal(64, 64, 1))
    dead = x.clone()
    dead[: round(share * len(x))] = 0
    healthy, low = points(x), points(dead)
    finding = one(find(low), "degenerate")
    assert share <= finding.share < share + 0.01  # k dead rows are equally far from the points nearest to them
    assert finding.severity == severity
    assert finding.numbers["dead"] == finding.numbers["zero"] == round(share * len(x))
    assert beside(low, healthy) == "collapsed_beside"


def test_noise_around_a_constant_is_a_complete_collapse() -> None:
    x = torch.ones(1000, 64) + 1e-5 * normal(1000, 64)
    digits = points(torch.tensor(load_digits().data[:1000]).float())
    low = points(x)
    found = find(low)
    assert [finding.kind for finding in found] == ["complete_collapse"]
    assert found[0].numbers["spread"] < 1e-4
    assert beside(low, digits) == "collapsed_beside"
    (finding,) = find(points(torch.ones(100, 8), 16))
    assert (finding.kind, finding.numbers["equal"]) == ("complete_collapse", 1.0)


def test_a_class_is_compared_with_others_at_the_same_share_of_its_points() -> None:
    x, y = structured()
    small = (y != 4) | (torch.arange(len(x)) < 70 * 12)  # class 4 keeps 70 points
    assert "collapsed_class" not in kinds(find(points(x[small], 64, names(y[small]))))
    finding = one(find(points(squeezed(x, y == 4, 2), 32, names(y))), "collapsed_class")
    assert finding.labels == (("4", 200),)
    assert finding.numbers["points"] == 200
    assert finding.numbers["ratio"] > 2


def test_duplicates_are_counted_by_group() -> None:
    x = normal(1000, 16)
    x[:150] = x[200]
    x[900:902] = x[300]
    finding = one(find(points(x, 16)), "duplicates")
    assert finding.share == pytest.approx(0.154, abs=0.004)
    assert finding.severity == "warning"
    assert finding.numbers == {"groups": 2, "largest": 151}
    assert len(finding.examples) == 2


@pytest.mark.parametrize(("n", "d", "count", "noise", "k"), [(1000, 16, 100, 1e-3, 16), (2000, 64, 600, 1e-4, 64)])
def test_near_duplicates(n: int, d: int, count: int, noise: float, k: int) -> None:
    x = normal(n, d)
    x[:count] = x[n // 2 : n // 2 + count] + noise * normal(count, d, 1)
    found = find(points(x, k))
    finding = one(found, "near_duplicates")
    assert (finding.severity, finding.share) == ("warning", 2 * count / n)
    assert finding.rows == (*range(count), *range(n // 2, n // 2 + count))
    assert finding.numbers == {"groups": count, "largest": 2}
    assert "duplicates" not in kinds(found)


def test_copies_of_every_point_make_the_distances_jump() -> None:
    x = normal(500, 16).repeat_interleave(2, 0) + 1e-3 * normal(1000, 16, 1)
    finding = one(find(points(x, 16)), "copies")
    assert (finding.share, finding.numbers["before"]) == (1.0, 1)


def test_clusters_smaller_than_k_are_a_note() -> None:
    centers = 5 * normal(40, 32).repeat_interleave(30, 0)
    finding = one(find(points(centers + normal(1200, 32, 1), 64)), "small_clusters")
    assert (finding.severity, finding.numbers["before"]) == ("note", 29)


def test_low_rank() -> None:
    line = normal(1000, 1) @ normal(1, 64, 1) + 0.01 * normal(1000, 64, 2)
    assert one(find(points(line)), "low_rank").severity == "warning"
    plane = normal(1000, 2) @ normal(2, 64, 1)
    assert one(find(points(plane)), "low_rank").severity == "note"


def test_hubs() -> None:
    x = torch.cat([100 * torch.nn.functional.normalize(normal(990, 500), dim=1), 0.1 * normal(10, 500, 1)])
    finding = one(find(points(x, 8)), "hubs")
    assert finding.numbers["taken"] > 0.5
    assert finding.rows == tuple(range(990, 1000))


def test_halves_of_a_set_are_similar_and_noise_is_higher() -> None:
    x, _ = structured()
    first, second = points(x[0::2]), points(x[1::2])
    assert beside(first, second) == "similar_beside"
    assert beside(points(x[0::2] + 0.3 * normal(1200, 64)), second) == "higher_beside"
    assert beside(points(x[:500]), second) == "not_compared"


def test_random_halves_of_unequal_clusters_are_not_collapsed_beside_each_other() -> None:
    generator = torch.Generator().manual_seed(2)
    chances = torch.arange(1, 61) ** -1.2
    y = torch.multinomial(chances, 1000, replacement=True, generator=generator)
    x = torch.nn.functional.normalize(normal(60, 64, 3)[y] / 8 + 0.04 * normal(1000, 64, 4), dim=1)
    for seed in range(3):
        order = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))
        first, second = (points(x[order[part::2].sort().values], 32) for part in (0, 1))
        assert "collapsed_beside" not in (beside(first, second), beside(second, first))


def test_rows_of_the_same_things_are_compared_one_by_one() -> None:
    x, y = structured()
    low = x.clone()
    low[y == 3] = squeezed(x, y == 3, 6)[y == 3] + 0.1 * (x - squeezed(x, y == 3, 6))[y == 3]
    first, second = points(low, 16), points(x, 16)
    found = compare(first, second, own_findings=(), other_findings=())
    assert found.kind == "collapsed_beside"
    assert found.numbers["fell"] == pytest.approx(1 / 12, abs=0.03)
    shuffled = points(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))], 16)
    assert compare(shuffled, second, own_findings=(), other_findings=()).numbers["fell"] == 0


@pytest.mark.parametrize("d", [2, 5, 10])
def test_local_dimension_is_the_dimension_of_a_cube_and_ignores_a_jump(d: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4000, d, generator=generator)
    distances = stream_lid(x, 48, device="cpu").neighbors.distances
    whole = local_dimension(distances).median().item()
    assert whole == pytest.approx(d, rel=0.2)
    distances[:, 44:] *= 10
    assert local_dimension(distances).median().item() == pytest.approx(whole, rel=0.15)


ODD = {
    "three points": (normal(3, 2), 2),
    "k close to N": (normal(40, 5), 39),
    "k = 2": (normal(50, 3), 2),
    "k = 5": (normal(50, 3), 5),
    "k = 8": (normal(50, 3), 8),
    "float16": (normal(300, 8).half().float(), 16),
    "float64": (normal(300, 8).double(), 16),
    "grid": (torch.cartesian_prod(*[torch.arange(8.0)] * 3), 16),
    "every row doubled": (normal(200, 8).repeat(2, 1), 16),
    "LID inf everywhere": (torch.eye(60), 16),
    "all zero": (torch.zeros(60, 4), 16),
    "one outlier": (torch.cat([normal(300, 4), torch.full((1, 4), 1e6)]), 16),
    "one coordinate": (normal(300, 1), 16),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("labels", ["none", "equal", "one each", "two"])
def test_odd_sets_give_numbers_that_json_can_hold(name: str, labels: str) -> None:
    x, k = ODD[name]
    given = {"none": None, "equal": ["a"] * len(x), "one each": [str(i) for i in range(len(x))]}
    own = points(x, k, given.get(labels, [str(i % 2) for i in range(len(x))]))
    found = find(own)
    for finding in found:
        json.dumps(json_values(asdict(finding)), allow_nan=False)
        assert 0 <= finding.share <= 1
        assert set(finding.examples) <= set(range(len(x)))
    assert "collapsed_group" not in kinds(found)
    beside = compare(own, own, own_findings=found, other_findings=found)
    assert beside.kind != "collapsed_beside"
    json.dumps(json_values(asdict(beside)), allow_nan=False)


def test_degenerate_sets_by_kind() -> None:
    found = find(points(torch.eye(60), 16))
    assert one(found, "degenerate").numbers == {"zero": 0, "infinite": 60, "dead": 0, "noise": 0}
    assert one(find(points(normal(200, 8).repeat(2, 1), 16)), "duplicates").numbers == {"groups": 200, "largest": 2}
    assert math.isnan(local_dimension(torch.zeros(3, 8)).nanmedian().item())
    assert not np.isnan([finding.share for finding in found]).any()


def test_rows_that_differ_by_noise_are_degenerate() -> None:
    x = normal(1000, 32)
    noisy = x.clone()
    noisy[:300] = 1e-6 * normal(300, 32, 1)
    finding = one(find(points(noisy)), "degenerate")
    assert (finding.severity, finding.numbers["noise"]) == ("critical", 300)
    assert finding.rows == tuple(range(300))
    assert beside(points(noisy), points(x)) == "collapsed_beside"
    assert beside(points(x), points(noisy)) == "comparison_collapsed"


def test_odd_but_sound_sets_are_not_called_collapsed() -> None:
    outliers = [normal(1000, dimensions) for dimensions in (8, 64)]
    for x in outliers:
        x[:80] *= 20
        assert serious(find(points(x, 64))) == ()
    dense = normal(1000, 16)
    dense[:200] = 0.05 * dense[:200] + normal(8, 16, 5).repeat_interleave(25, 0)
    dead = normal(2000, 128) * torch.arange(1, 129) ** -0.6
    dead[:200] = 0
    tied = torch.poisson(torch.full((1000, 30), 0.3), generator=torch.Generator().manual_seed(0))
    for x, k in ((dense, 32), (dead, 64), (tied, 16), (tied, 32)):
        assert not kinds(find(points(x, k))) & {"near_duplicates", "collapsed_group"}
    labels = [str(row % 10) for row in range(1000)]
    assert "collapsed_class" not in kinds(find(points(normal(1000, 10, 3), 16, labels, torch.arange(0, 1000, 53))))


def representations(folder: Path, recipe: str = "digits/simclr", **options: str) -> Tensor:
    """Of the training images, by an encoder that was trained for a quarter of the recipe's epochs."""
    few = {"schedule.epochs": "20", "monitor.every_epochs": "20", "monitor.probe": "false", "monitor.knn": "false"}
    changes = [*few.items(), *((name.replace("__", "."), value) for name, value in options.items())]
    pretrain(resolve(load_recipe(recipe), changes), folder, command="test")
    source = open_source(folder)
    assert source.data is not None
    return features(source.encoder, source.data, "train", cache=folder / "cache").representations


@pytest.mark.slow
def test_an_encoder_that_minimized_lid_is_told_from_sound_ones(tmp_path: Path) -> None:
    plain = representations(tmp_path / "plain")
    sound = representations(tmp_path / "ldreg", "digits/simclr_ldreg")
    minimized = partial(representations, regularizer="minlid", minlid__k="32", minlid__beta="10")
    assert told(sound, plain) in ("similar_beside", "higher_beside")
    flat = minimized(tmp_path / "minlid")
    assert told(flat, plain) == "collapsed_beside"


def told(x: Tensor, trusted: Tensor) -> str:
    report = inspect(x, k=64, compare=trusted)
    return next(finding.kind for finding in report.findings if "lid_5" in finding.numbers)
