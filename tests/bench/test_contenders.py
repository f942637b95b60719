"""Contenders must do the same work, or their times say nothing."""

import pytest
import torch
from torch import Tensor

from ldreg.bench import lid, points, regularizer
from ldreg.bench.benchmark import Benchmark, Points, Setting
from ldreg.bench.points import OnPoints, checked_rows, exact_neighbors, sample

K = 20


def brute_force(x: Tensor, k: int) -> Tensor:
    """Distances to the k nearest others, from differences in float64."""
    apart = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return apart.sort(dim=1).values[:, 1 : k + 1]


def ways(benchmark: Benchmark) -> dict[str, OnPoints]:
    """Those who can be asked here."""
    found: dict[str, OnPoints] = {}
    for name, contender in benchmark.contenders.items():
        assert isinstance(contender.measure, OnPoints)
        found[name] = contender.measure
    return found


@pytest.mark.parametrize("name", lid.BENCHMARK.contenders)
def test_every_contender_gives_the_same_lid(name: str) -> None:
    if package := lid.BENCHMARK.contenders[name].package:
        pytest.importorskip(package)
    way = ways(lid.BENCHMARK)[name]
    x = sample(Points(300, 16), seed=1)
    with torch.compiler.set_stance("force_eager"):
        values = way.run(x, K)
    if way.normalize is not None:
        values = way.normalize(values, K)
    near = brute_force(x, K)
    expected = near.mean(1) / (near[:, -1] - near.mean(1))
    torch.testing.assert_close(values.double(), expected, rtol=1e-3, atol=0)
    assert way.judge is not None
    assert way.judge(x, K, values) < 1e-4


def test_chunks_cover_more_points_than_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sample(Points(300, 3), seed=2)
    expected = lid.scikit_learn(x, K)
    monkeypatch.setitem(lid._CHUNKS, "cpu", 128)
    with torch.compiler.set_stance("force_eager"):
        for way in (lid.cdist_topk, lid.matmul_topk):
            torch.testing.assert_close(way(x, K).to(expected), expected, rtol=1e-3, atol=0)


def test_exact_neighbors_are_those_of_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rows = sample(Points(200, 5), seed=3) + 10, torch.tensor([7, 199, 0])
    monkeypatch.setitem(points._BLOCK_BYTES, "cpu", 8 * 5 * 33)  # blocks of 33 points
    distances, indices = exact_neighbors(x, rows, K)
    torch.testing.assert_close(distances, brute_force(x, K)[rows], rtol=1e-9, atol=0)
    apart = (x[rows][:, None].double() - x[indices].double()).norm(dim=2)
    torch.testing.assert_close(distances, apart, rtol=1e-9, atol=0)
    assert not (indices == rows[:, None]).any()


def exact_gradients(x: Tensor) -> Tensor:
    queries = x.double().requires_grad_()
    apart = torch.cdist(queries, queries.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    near = apart.sort(dim=1).values[:, 1 : K + 1]
    mean = near[:, :-1].mean(dim=1)
    (mean / (near[:, -1] - mean)).log().mean().neg().backward()
    assert queries.grad is not None
    return queries.grad


CAPTURED = [name for name in regularizer.BENCHMARK.contenders if "captured" in name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CAPTURED)
def test_graphs_give_the_same_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regularizer, "_graphs", {})
    for seed in (3, 4):
        x = sample(Points(120, 8), seed=seed)
        expected = exact_gradients(x)
        values = ways(regularizer.BENCHMARK)[name].run(x.cuda(), K).cpu()
        assert (values - expected).abs().max() / expected.abs().max() < 1e-3


@pytest.mark.parametrize(
    "name", [name for name in regularizer.BENCHMARK.contenders if name not in ("torchid", *CAPTURED)]
)
def test_regularizers_give_the_same_gradient(name: str) -> None:
    x = sample(Points(120, 8), seed=3)
    expected = exact_gradients(x)
    with torch.compiler.set_stance("force_eager"):
        values = ways(regularizer.BENCHMARK)[name].run(x, K)
    assert (values - expected).abs().max() / expected.abs().max() < 1e-3
    assert regularizer.nearly_largest_error(x, K, values) < 1e-3
    rows = torch.tensor([3, 50])
    torch.testing.assert_close(regularizer.exact_gradient(x, rows, K), expected[rows], rtol=1e-6, atol=1e-12)


def test_input_is_left_as_it_was() -> None:
    x = sample(Points(100, 4), seed=4)
    before = x.clone()
    with torch.compiler.set_stance("force_eager"):
        for benchmark in (lid.BENCHMARK, regularizer.BENCHMARK):
            for name, way in ways(benchmark).items():
                if benchmark.contenders[name].package is None and name not in CAPTURED:
                    way.run(x, K)
    assert torch.equal(x, before)
    assert x.grad is None


def test_errors_by_hand() -> None:
    x = sample(Points(60, 4), seed=5)
    right = lid.ours(x, K)
    assert lid.largest_error(x, K, right) < 1e-5
    right[17] *= 1.1
    assert lid.largest_error(x, K, right) == pytest.approx(0.1, rel=1e-3)
    right[3] = torch.nan
    assert lid.largest_error(x, K, right) == torch.inf
    exact = torch.tensor([3.0, 4.0]).repeat(1000, 1)
    off = exact.clone()
    off[:, 0] += 0.01
    off[:3] = -7  # so few may have chosen another of two equally near neighbors
    assert regularizer.off_by(off, exact) == pytest.approx(0.002, rel=1e-3)
    off[:20] = 0
    assert regularizer.off_by(off, exact) == pytest.approx(1)


def test_same_seed_same_points() -> None:
    torch.testing.assert_close(sample(Points(4, 3), seed=0), sample(Points(4, 3), seed=0), rtol=0, atol=0)
    assert (sample(Points(4, 3), seed=0) != sample(Points(4, 3), seed=1)).all()
    assert sample(Points(4, 3), seed=0).dtype == torch.float32
    assert checked_rows(torch.zeros(9, 1), 4).unique().shape == (4,)


def test_a_measurement_of_points() -> None:
    seen: list[torch.Size] = []

    def run(x: Tensor, k: int) -> Tensor:
        seen.append(x.shape)
        return x.sum(dim=1)

    way = OnPoints(run, judge=lambda x, k, values: float(values[0] - 2 * x[0].sum()), normalize=lambda v, k: 2 * v)
    outcome = way(Setting(Points(700, 3), k=5, repeats=2))
    assert seen == [(256, 3), (700, 3), (700, 3)]  # a small call first, then those that are timed
    assert len(outcome.measured.seconds) == 2
    assert outcome.deviation == 0
    assert OnPoints(run, None)(Setting(Points(300, 3), k=5, repeats=1)).deviation is None


def test_the_memory_of_graphs_is_not_told() -> None:
    setting = Setting(Points(100, 4), K, 0, 1, "cpu", 1)
    assert OnPoints(lid.ours, None)(setting).measured.extra_mb is not None
    assert OnPoints(lid.ours, None, graphed=True)(setting).measured.extra_mb is None
