"""Contenders must do the same work, or their times say nothing."""

import pytest
import torch
from torch import Tensor

from ldreg.bench import BENCHMARKS, lid, regularizer
from ldreg.bench.lid import exact_neighbors, measure_points, sample
from ldreg.bench.measure import Points, Setting

K = 20


def brute_force(x: Tensor, k: int) -> Tensor:
    """Distances to the k nearest others, from differences in float64."""
    apart = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return apart.sort(dim=1).values[:, 1 : k + 1]


def exact_gradients(x: Tensor) -> Tensor:
    queries = x.double().requires_grad_()
    apart = torch.cdist(queries, queries.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    near = apart.sort(dim=1).values[:, 1 : K + 1]
    mean = near[:, :-1].mean(dim=1)
    (mean / (near[:, -1] - mean)).log().mean().neg().backward()
    assert queries.grad is not None
    return queries.grad


CONTENDERS = [(name, key) for name in ("lid", "regularizer") for key in BENCHMARKS[name].contenders if key != "torchid"]


@pytest.mark.parametrize(("name", "key"), [pair for pair in CONTENDERS if "captured" not in pair[1]])
def test_every_contender_gives_the_right_result(name: str, key: str) -> None:
    contender = BENCHMARKS[name].contenders[key]
    if contender.package:
        pytest.importorskip(contender.package)
    with torch.compiler.set_stance("force_eager"):
        measured, deviation = contender.measure(Setting(Points(300, 16), k=K, seed=1, repeats=1))
    assert deviation is not None
    assert deviation < 1e-3
    assert (measured.extra_mb is None) == (key == "ldreg (compiled)")  # PyTorch does not count the memory of graphs


def test_errors_are_against_brute_force() -> None:
    x = sample(Points(120, 8), seed=3)
    near = brute_force(x, K)
    right = near.mean(1) / (near[:, -1] - near.mean(1))
    assert lid.largest_error(x, K, right) < 1e-9
    right[17] *= 1.1
    assert lid.largest_error(x, K, right) == pytest.approx(0.1, rel=1e-3)
    right[3] = torch.nan
    assert lid.largest_error(x, K, right) == torch.inf
    expected, rows = exact_gradients(x), torch.tensor([3, 50])
    torch.testing.assert_close(regularizer.exact_gradient(x, rows, K), expected[rows], rtol=1e-6, atol=1e-12)
    assert regularizer.gradient_error(x, K, expected) < 1e-6
    expected[17] *= 1.1  # one of 120 may have chosen another of two equally near neighbors
    assert regularizer.gradient_error(x, K, expected) < 0.05
    expected[3] = torch.nan
    assert regularizer.gradient_error(x, K, 1.01 * expected) > 0.01


def test_exact_neighbors_are_those_of_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rows = sample(Points(200, 5), seed=3) + 10, torch.tensor([7, 199, 0])
    monkeypatch.setitem(lid._BLOCK_BYTES, "cpu", 8 * 5 * 33)  # blocks of 33 points
    distances, indices = exact_neighbors(x, rows, K)
    torch.testing.assert_close(distances, brute_force(x, K)[rows], rtol=1e-9, atol=0)
    apart = (x[rows][:, None].double() - x[indices].double()).norm(dim=2)
    torch.testing.assert_close(distances, apart, rtol=1e-9, atol=0)
    assert not (indices == rows[:, None]).any()


def test_chunks_cover_more_points_than_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sample(Points(300, 3), seed=2)
    expected = lid.scikit_learn(x, K)
    monkeypatch.setitem(lid._CHUNKS, "cpu", 128)
    with torch.compiler.set_stance("force_eager"):
        for way in (lid.cdist_topk, lid.matmul_topk):
            torch.testing.assert_close(way(x, K).to(expected), expected, rtol=1e-3, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("penalty", [regularizer.ours, regularizer.pseudocode_penalty])
def test_graphs_give_the_same_gradient(penalty: regularizer.Penalty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regularizer, "_graphs", {})
    for seed in (3, 4):
        x = sample(Points(120, 8), seed=seed)
        expected = exact_gradients(x)
        values = regularizer.captured_gradient(penalty, x.cuda(), K).cpu()
        assert (values - expected).abs().max() / expected.abs().max() < 1e-3


def test_a_measurement_of_points() -> None:
    seen: list[torch.Size] = []

    def run(x: Tensor, k: int) -> Tensor:
        seen.append(x.shape)
        return x.sum(dim=1)

    def error(x: Tensor, k: int, values: Tensor) -> float:
        return float(values[0] - x[0].sum())

    setting = Setting(Points(700, 3), k=5, repeats=2)
    measured, deviation = measure_points(run, error, setting)
    assert seen == [(256, 3), (700, 3), (700, 3)]  # a small call first, then those that are timed
    assert len(measured.seconds) == 2
    assert deviation == 0
    assert measure_points(run, None, setting)[1] is None
