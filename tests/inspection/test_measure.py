import math
import runpy
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldreg.dimension import streaming
from ldreg.dimension.estimators import estimate_lid
from ldreg.dimension.search import Neighbors
from ldreg.dimension.spectrum import rankme
from ldreg.inspection import measure
from ldreg.inspection.interval import mean_lid
from ldreg.inspection.measure import inspect, principal_plane

Array = NDArray[np.float64]
COVERAGE = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "coverage.py"))

pytestmark = pytest.mark.usefixtures("quick_danco")


def gaussian(n: int, d: int, *, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def brute_force(x: Tensor, k: int) -> tuple[Array, Array]:
    """LID by the method of moments and distances to the k-th neighbor, from differences in float64."""
    points = x.double().numpy()
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(-1))
    nearest = np.sort(distances + np.diag([np.inf] * len(points)), axis=1)[:, :k]
    mean, last = nearest.mean(1), nearest[:, -1]
    return mean / (last - mean), last


def test_statistics_are_those_of_float64_brute_force() -> None:
    x = gaussian(200, 6)
    lid, last = brute_force(x, 15)
    report = inspect(x, k=15)
    np.testing.assert_allclose(report.lid, lid, rtol=1e-4)
    np.testing.assert_allclose(report.kth_distance, last, rtol=1e-5)
    assert report.quartiles == pytest.approx(np.quantile(lid, (0.25, 0.5, 0.75)), rel=1e-5)
    assert report.rankme == pytest.approx(rankme(x).item())
    assert report.twonn.value == pytest.approx(6, rel=0.25)
    assert (report.danco.value, report.danco.note) == (200, "")
    assert [point.index for point in report.most_collapsed] == np.argsort(lid)[:10].tolist()
    assert [point.lid for point in report.most_collapsed] == pytest.approx(np.sort(lid)[:10], rel=1e-4)
    assert all(point.standard_error > 0 and point.label is None for point in report.most_collapsed)
    assert (report.points, report.dimensions, report.measured, report.k) == (200, 6, 200, 15)


def test_sample_measures_some_points_among_all() -> None:
    x = gaussian(300, 5)
    whole, part = inspect(x, k=20), inspect(x, k=20, sample=40)
    assert part.measured == len(part.lid) == len(part.coordinates) == 40
    assert part.index.unique().tolist() == part.index.tolist()
    torch.testing.assert_close(part.lid, whole.lid[part.index])
    torch.testing.assert_close(part.kth_distance, whole.kth_distance[part.index])
    assert {point.index for point in part.most_collapsed} <= set(part.index.tolist())
    assert part.effective_rank == whole.effective_rank
    assert inspect(x, k=20, sample=301).measured == 300


@pytest.mark.parametrize("seeds", [(1, 1, 2), (-(2**63), -(2**63), 2**64 - 1)])
def test_sample_depends_on_the_seed_alone(seeds: tuple[int, ...]) -> None:
    x = gaussian(100, 3)
    first, again, other = (inspect(x, k=8, sample=20, seed=seed).index.tolist() for seed in seeds)
    assert first == again != other


def test_classes_hold_their_own_points() -> None:
    x, labels = gaussian(120, 4), [("10", "2", "owl")[i % 3] for i in range(120)]
    report = inspect(x, labels, k=15)
    assert [row.label for row in report.classes] == ["2", "10", "owl"]
    for row in report.classes:
        lid = report.lid[[label == row.label for label in labels]]
        assert (row.count, row.regular) == (40, 40)
        assert row.mean.value == pytest.approx(lid.log().mean().exp().item(), rel=1e-5)
        assert row.mean.low < row.mean.value < row.mean.high
    assert report.labels == tuple(labels)
    assert all(point.label == labels[point.index] for point in report.most_collapsed)
    part = inspect(x, labels, k=15, sample=25)
    assert part.labels == tuple(labels[i] for i in part.index.tolist())
    assert sum(row.count for row in part.classes) == 25


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1] * 25,
        torch.tensor([0.0, 1.0] * 25),
        np.array([0, 1] * 25),
        ["0", "1"] * 25,
        list(torch.tensor([0, 1] * 25)),
        np.array([[0], [1]] * 25),
    ],
)
def test_labels_of_any_kind_name_the_same_classes(labels: Any) -> None:
    assert [row.label for row in inspect(gaussian(50, 3), labels, k=8).classes] == ["0", "1"]


def test_degenerate_points_are_counted_and_left_out() -> None:
    # Ten equal rows (LID 0), six mutually equally far ones far away (LID inf), the rest regular, two of them equal.
    apart = torch.cat([torch.full((6, 4), 1000.0), 100 * torch.eye(6)], dim=1)
    x = torch.cat([torch.full((10, 10), 50.0), apart, torch.nn.functional.pad(gaussian(60, 4), (0, 6))])
    x[70] = x[30]
    report = inspect(x, k=5)
    assert (report.zero, report.infinite, report.duplicated) == (10, 6, 12)
    assert report.degenerate_share == pytest.approx(16 / 76)
    assert report.mean.value == pytest.approx(report.lid[16:].log().mean().exp().item(), rel=1e-5)
    assert (report.most_collapsed[0].index, report.most_collapsed[0].copies) == (0, 10)
    assert min(point.index for point in report.most_collapsed[1:]) > 15


def test_global_dimensions_of_few_and_of_many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    report = inspect(gaussian(8, 3), k=4)
    assert report.danco.value is None
    assert "got 8" in report.danco.note
    assert report.mean.value > 0
    monkeypatch.setattr(measure, "_GLOBAL_POINTS", 64)
    report = inspect(gaussian(200, 3), k=8)
    assert report.danco.value == 64
    assert report.twonn.note == report.danco.note == "from 64 points drawn at random"


@pytest.mark.parametrize("sample", [None, 60])
def test_a_second_set_is_measured_as_if_it_were_the_first(sample: int | None) -> None:
    x, other = gaussian(150, 3), gaussian(100, 8, seed=1)
    comparison = inspect(x, ["a", "b"] * 75, k=10, compare=other, sample=sample).comparison
    alone = inspect(other, k=10, sample=sample)
    assert comparison is not None
    means = [np.log(brute_force(data, 10)[0]).mean() for data in (x, other)]
    assert sample or comparison.fisher_rao == pytest.approx(abs(means[0] - means[1]), rel=1e-4)
    assert {**comparison.other.to_dict(), "title": alone.title} == alone.to_dict()
    assert torch.equal(comparison.other.coordinates, alone.coordinates)


def test_a_read_only_memory_map_is_measured_as_it_is(tmp_path: Path) -> None:
    x = gaussian(100, 4)
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    torch.testing.assert_close(inspect(mapped, k=10).lid, inspect(x, k=10).lid)


def test_the_same_input_gives_the_same_report_and_leaves_random_state_alone() -> None:
    x, labels = gaussian(100, 4), ["a", "b"] * 50
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second = (inspect(x, labels, k=10, compare=x[:50], sample=60) for _ in range(2))
    assert torch.equal(torch.rand(2), expected)
    assert first.to_dict() == second.to_dict()
    assert torch.equal(first.coordinates, second.coordinates)


def test_progress_rises_from_zero_to_one() -> None:
    seen: list[tuple[str, float]] = []
    inspect(gaussian(200, 4), k=10, compare=gaussian(100, 3), progress=lambda *step: seen.append(step))
    fractions = [fraction for _, fraction in seen]
    assert fractions[0] == 0
    assert fractions[-1] == 1
    assert fractions == sorted(fractions)
    steps = ["LID", "spectrum", "RankMe", "map", "TwoNN", "DANCo", "findings", "measures"]
    assert {name for name, _ in seen} == {*steps, *(f"comparison: {step}" for step in steps), "done"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 20}, r"^x: .* got 20; try k=8$"),
        ({"x": gaussian(3, 40), "k": 5}, r"^x: .* got 3; are rows and columns exchanged\?$"),
        ({"x": gaussian(40, 384), "k": 64}, r"^x: .* got 40; try k=16; are rows and columns exchanged\?$"),
        ({"x": "file.npy"}, r"^x: .* got 'file.npy'; .*`ldreg inspect`"),
        ({"k": 1}, r"^k: .*got 1"),
        ({"compare": torch.randn(5, 3), "k": 6}, r"^compare: .* got 5; try k=2$"),
        ({"labels": [1, 2, 3]}, r"^labels: expected 20, .* got 3"),
        ({"labels": "labels.csv"}, r"^labels: expected 20, .* got 'labels.csv'$"),
        ({"labels": np.array(3)}, r"^labels: expected 20, .* got array\(3\)$"),
        ({"labels": np.eye(20)[:, :3]}, r"^labels: .* got shape \(20, 3\); argmax\(1\)"),
        ({"labels": [1] * 20, "compare_labels": [1] * 20}, r"^compare_labels: .* compare"),
        ({"compare": gaussian(9, 3), "compare_labels": [1] * 9}, r"^compare_labels: .* labels"),
        (
            {"labels": [1] * 20, "compare": gaussian(9, 3), "compare_labels": [1, 2]},
            r"^compare_labels: expected 9, .* got 2$",
        ),
        ({"sample": 0}, r"^sample: .* got 0"),
        ({"seed": 2**64}, r"^seed: .* got 18446744073709551616$"),
        ({"seed": -(2**63) - 1}, r"^seed: .*, got -9223372036854775809$"),
        *(({"device": name}, f"^device: .*got '{name}'") for name in ("abacus", "meta", "mps")),
        ({"estimator": "guess"}, r"^estimator: .*'guess'"),
        ({"x": torch.randn(20)}, r"^x: .*\(20,\)"),
        ({"x": torch.randn(20, 2, 2)}, r"^x: .*\(20, 2, 2\)"),
        ({"x": torch.full((20, 2), 2e38) * torch.tensor([1.0, -1.0]).repeat(10).unsqueeze(1)}, r"^x: .*up to 2e.38$"),
        ({"compare": torch.full((20, 2), math.inf)}, r"^compare: .* 20 of 20 rows \(from 0: 0, 1, 2, 3, 4, \.\.\.\)"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect(**{"x": gaussian(20, 3), "k": 5, **change})


@pytest.mark.parametrize("name", ["x", "compare"])
@pytest.mark.parametrize("sample", [None, 3])
def test_bad_rows_are_counted_whether_they_are_measured_or_not(name: str, sample: int | None) -> None:
    bad = gaussian(40, 3)
    bad[[5, 6, 30]] = math.nan
    arguments: dict[str, Any] = {"x": gaussian(40, 3), "k": 5, "sample": sample, name: bad}
    with pytest.raises(
        ValueError, match=rf"^{name}: .* NaN or inf in 3 of 40 rows \(from 0: 5, 6, 30\); skip_nonfinite"
    ):
        inspect(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_an_absent_device_is_named() -> None:
    with pytest.raises(ValueError, match="no CUDA device for 'cuda'"):
        inspect(gaussian(20, 3), k=5, device="cuda")


@pytest.mark.parametrize("estimator", ["mom", "tle"])
@pytest.mark.parametrize("sample", [None, 50])
def test_what_does_not_fit_on_the_device_is_measured_all_the_same(
    estimator: Any, sample: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, other, labels = gaussian(150, 30) + 5, gaussian(80, 60, seed=1).half(), ["a", "b"] * 75
    report = partial(inspect, x, labels, 12, compare=other, sample=sample, estimator=estimator)
    whole = report(device="cpu")
    blocks: list[int] = []
    search: Callable[..., Neighbors] = streaming.__dict__["search"]

    def watched(queries: Tensor, block: Tensor, *arguments: Any, **options: Any) -> Neighbors:
        blocks.append(len(block))
        return search(queries, block, *arguments, **options)

    # Here "cpu:0" is a device that tensors on "cpu" do not lie on, with too little memory for them.
    monkeypatch.setattr(streaming, "search", watched)
    monkeypatch.setattr(streaming, "_available", lambda device: 20_000)
    monkeypatch.setattr(measure, "resident", lambda x, k, device: x)
    streamed = report(device="cpu:0")
    assert len(blocks) > 20
    assert max(blocks) < 80
    assert streamed.to_dict() == whole.to_dict()
    assert torch.equal(streamed.coordinates, whole.coordinates)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("estimator", ["mom", "tle"])
def test_a_set_larger_than_the_memory_of_the_gpu_is_measured_there(estimator: Any) -> None:
    x = gaussian(200_000, 1024) @ torch.diag(torch.logspace(0, -3, 1024))
    total = torch.cuda.get_device_properties(0).total_memory
    report = partial(inspect, x, k=20, sample=2000, estimator=estimator)
    expected = report(device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.8 * x.nbytes / total)
    try:
        found = report(device="auto")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.device.startswith("cuda (")
    torch.testing.assert_close(found.lid, expected.lid, rtol=1e-5, atol=0)
    assert found.effective_rank == pytest.approx(expected.effective_rank, rel=1e-9)
    assert found.rankme == pytest.approx(expected.rankme, rel=1e-9)
    assert (found.twonn, found.danco) == (expected.twonn, expected.danco)
    torch.testing.assert_close(found.coordinates, expected.coordinates, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_measures_what_the_cpu_does() -> None:
    x, labels = gaussian(300, 5), [i % 3 for i in range(300)]
    cpu, gpu = (inspect(x, labels, k=20, device=device) for device in ("cpu", "cuda"))
    assert gpu.device.startswith("cuda (")
    torch.testing.assert_close(gpu.lid, cpu.lid, rtol=1e-4, atol=0)
    assert [gpu.mean.low, gpu.mean.high] == pytest.approx([cpu.mean.low, cpu.mean.high], rel=1e-4)


class TestPlane:
    def test_is_that_of_a_full_decomposition(self) -> None:
        x = gaussian(300, 12).double() * torch.logspace(0, -2, 12, dtype=torch.float64) + 30
        centered = x - x.mean(0)
        expected = centered @ torch.linalg.svd(centered, full_matrices=False).Vh[:2].T
        found = principal_plane(x, torch.arange(300))
        torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-6, atol=1e-6)
        rows = torch.tensor([4, 50, 99])
        torch.testing.assert_close(principal_plane(x, rows), found[rows])

    @pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
    def test_keeps_its_shape_at_any_scale(self, scale: float) -> None:
        x = gaussian(100, 6) * torch.linspace(3, 1, 6)
        found = principal_plane(x * scale, torch.arange(100))
        torch.testing.assert_close(found / scale, principal_plane(x, torch.arange(100)), rtol=1e-3, atol=1e-3)

    def test_of_one_dimension_is_a_line_and_of_equal_points_the_origin(self) -> None:
        found = principal_plane(gaussian(20, 1), torch.arange(20))
        assert found.shape == (20, 2)
        assert (found[:, 1] == 0).all()
        assert (found[:, 0] != 0).any()
        assert not principal_plane(torch.ones(20, 3), torch.arange(20)).any()


class TestInterval:
    @pytest.mark.parametrize("further", [0, 8])
    def test_is_the_sum_over_what_each_point_adds(self, further: int) -> None:
        """Against the same variance written as loops over points and neighbors."""
        n, k = 60, 12
        x = gaussian(n, 3).double()
        wide = estimate_lid(x, k + further).neighbors
        found = estimate_lid(x, k)
        logs = found.lid.log().tolist()
        mean = sum(logs) / n
        variances = [sum((value - mean) ** 2 for value in logs) / (n * (n - 1))]
        for reach in (3, 7):  # 0.75 and 2 times the root of 12
            slopes, placed, listed = [], torch.zeros(n, n).tolist(), torch.zeros(n, n).tolist()
            for i, (distances, indices) in enumerate(zip(*map(Tensor.tolist, wide), strict=True)):
                ranks = range(k - reach, k + min(reach, further) + 1)
                ratios = [sum(distances[:rank]) / rank / distances[rank - 1] for rank in ranks]
                slopes.append(statistics.linear_regression(ranks, [math.log(r / (1 - r)) for r in ratios]).slope)
                ratio = sum(distances[:k]) / k / distances[k - 1]
                for distance, index in zip(distances[:k], indices[:k], strict=True):
                    placed[i][index] = (distance / distances[k - 1] - ratio) / (ratio * (1 - ratio)) / k
                    listed[i][index] = placed[i][index] - slopes[i]
            added = [logs[j] - mean + sum(listed[i][j] for i in range(n)) for j in range(n)]
            pairs = sum(listed[i][j] ** 2 + placed[i][j] * placed[j][i] / 2 for i in range(n) for j in range(n))
            middle = sum(added) / n
            variances.append((sum((value - middle) ** 2 for value in added) - pairs) / (n * (n - 1)))
        assert max(variances) > variances[0]
        margin = 2.0009954 * math.sqrt(max(variances))  # t of 59, 97.5 %
        interval = mean_lid(found, torch.arange(n), n, beyond=wide.distances[:, k:])
        low, high = math.exp(mean - margin), math.exp(mean + margin)
        assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-6)

    def test_is_wide_where_clusters_have_about_k_points(self) -> None:
        """Whether a cluster has k points more or less is chance, and changes the estimates of all of them."""
        kind = COVERAGE["KINDS"]["10 clusters of about k points, 16-d"]
        assert COVERAGE["coverage"](kind, draws=40).share >= 0.9

    def test_of_degenerate_lists_is_finite(self) -> None:
        x = torch.cat([torch.zeros(30, 2), gaussian(30, 2)])
        for k in (2, 5, 29, 30):
            wide = estimate_lid(x, k + 8).neighbors.distances
            interval = mean_lid(estimate_lid(x, k), torch.arange(60), 60, beyond=wide[:, k:])
            assert 0 < interval.low < interval.value < interval.high < math.inf

    @pytest.mark.slow
    @pytest.mark.parametrize("name", COVERAGE["KINDS"])
    def test_covers_kinds_of_data_as_often_as_it_says(self, name: str) -> None:
        # 0.93 to 0.97, and 1.4 standard errors of 1000 draws.
        assert 0.92 <= COVERAGE["coverage"](COVERAGE["KINDS"][name], draws=1000).share <= 0.98

    def test_is_never_narrower_than_for_independent_values(self) -> None:
        # Each point's only neighbors are its two closest in a chain of clusters, where pulls happen to cancel.
        for seed in range(20):
            found = estimate_lid(gaussian(12, 2, seed=seed), 3)
            logs = found.lid.double().log()
            margin = 2.2009852 * (logs.var() / 12).sqrt().item()  # t of 11, 97.5 %
            interval = mean_lid(found, torch.arange(12), 12)
            assert math.log(interval.high / interval.low) >= 2 * margin * (1 - 1e-6)
