"""Contenders must do the same work, or their times say nothing."""

import numpy
import pytest
import torch

from ldreg.benchmarking import lid, regularizer
from ldreg.benchmarking.contest import Array, Size
from ldreg.benchmarking.suite import BENCHMARKS
from ldreg.benchmarking.worker import sample

K = 20


def brute_force(x: Array, k: int) -> Array:
    """LID by the mean over all k distances, from differences in float64."""
    points = x.astype(numpy.float64)
    distances = numpy.sort(numpy.linalg.norm(points[:, None] - points[None], axis=2), axis=1)[:, 1 : k + 1]
    mean = distances.mean(axis=1)
    return numpy.asarray(mean / (distances[:, -1] - mean))


@pytest.mark.parametrize("name", lid.BENCHMARK.contenders)
def test_every_contender_gives_the_same_lid(name: str) -> None:
    contender = lid.BENCHMARK.contenders[name]
    if contender.package is not None:
        pytest.importorskip(contender.package)
    x = sample(Size(300, 16), seed=1)
    values = contender.run(x, K)
    if contender.normalize is not None:
        values = contender.normalize(values, K)
    numpy.testing.assert_allclose(values, brute_force(x, K), rtol=1e-3)


def test_chunks_cover_more_points_than_one_chunk() -> None:
    x = sample(Size(1100, 3), seed=2)
    numpy.testing.assert_allclose(lid.cdist_topk(x, K), lid.scikit_learn(x, K), rtol=1e-3)


def test_regularizers_give_the_same_gradient() -> None:
    x = sample(Size(120, 8), seed=3)
    points = torch.from_numpy(x.astype(numpy.float64)).requires_grad_()
    apart = torch.cdist(points, points.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    near = apart.sort(dim=1).values[:, 1 : K + 1]
    mean = near[:, :-1].mean(dim=1)
    (mean / (near[:, -1] - mean)).log().mean().neg().backward()
    assert points.grad is not None
    expected = points.grad.numpy()
    for name, contender in regularizer.BENCHMARK.contenders.items():
        off = numpy.abs(contender.run(x, K) - expected).max() / numpy.abs(expected).max()
        assert off < 1e-3, name


def test_input_is_left_as_it_was() -> None:
    x = sample(Size(100, 4), seed=4)
    before = x.copy()
    for benchmark in BENCHMARKS.values():
        for contender in benchmark.contenders.values():
            if contender.package is None:
                contender.run(x, K)
    numpy.testing.assert_array_equal(x, before)


def test_deviations() -> None:
    own = numpy.array([1.0, 4.0])
    assert lid.largest_relative(numpy.array([1.1, 4.2]), own) == pytest.approx(0.1)
    gradients = numpy.ones((1000, 2)) * (3, 4)
    off = gradients.copy()
    off[:, 0] += 0.01
    off[:3] = -7  # so few may have chosen another of two equally near neighbors
    assert regularizer.nearly_largest_relative(off, gradients) == pytest.approx(0.002)
    off[:20] = 0
    assert regularizer.nearly_largest_relative(off, gradients) == pytest.approx(1)


def test_same_seed_same_points() -> None:
    numpy.testing.assert_array_equal(sample(Size(4, 3), seed=0), sample(Size(4, 3), seed=0))
    assert (sample(Size(4, 3), seed=0) != sample(Size(4, 3), seed=1)).all()
    assert sample(Size(4, 3), seed=0).dtype == numpy.float32
