"""The experiments in the plane reach what the paper says."""

import math

import pytest

from ldreg.reproduce.plane import TARGETS, collapse_and_cure, reach_target, reach_targets


def test_a_target_is_reached() -> None:
    cloud = reach_target(1.4, n=500, steps=120)
    assert cloud.mean_lid == pytest.approx(1.4, rel=0.03)
    assert cloud.fisher_rao == pytest.approx(math.log(2 / cloud.mean_lid), rel=1e-5)
    assert cloud.points.shape == (500, 2)
    assert cloud.caption == "target 1.4"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_every_target_is_reached_within_3_percent(seed: int) -> None:
    done: list[float] = []
    clouds = reach_targets(seed=seed, progress=done.append)
    for target, cloud in zip(TARGETS, clouds, strict=True):
        assert cloud.mean_lid == pytest.approx(target, rel=0.03)
    assert clouds[0].global_dimension < 1.25
    assert clouds[-1].global_dimension > 1.9
    assert done == sorted(done)
    assert done[-1] == 1


def test_local_collapse_hides_from_global_dimension_and_is_cured() -> None:
    *collapsing, cured = collapse_and_cure()
    means = [cloud.mean_lid for cloud in collapsing]
    assert means == sorted(means, reverse=True)
    assert means[0] > 1.9
    assert means[-1] < 1.25
    assert min(cloud.global_dimension for cloud in collapsing) > 1.7
    assert cured.mean_lid > 1.9
    assert cured.fisher_rao < 0.1 < collapsing[-1].fisher_rao
