"""Samples have the dimension, the support and the reproducibility that they promise."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.dimension.estimators import lid
from ldreg.dimension.geometry import geometric_mean
from ldreg.dimension.synthetic import SAMPLES, ball, cube, gaussian, local_collapse, sphere


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_any_ambient_space(name: str) -> None:
    coordinates = 4 if name == "sphere" else 3
    plain = SAMPLES[name](200, 3, seed=5, dtype=torch.float64)
    embedded = SAMPLES[name](200, 3, ambient=20, seed=5, dtype=torch.float64)
    assert plain.shape == (200, coordinates)
    assert embedded.shape == (200, 20)
    assert torch.linalg.matrix_rank(embedded).item() == coordinates
    torch.testing.assert_close(torch.pdist(embedded), torch.pdist(plain), rtol=1e-12, atol=1e-12)
    for argument, sizes in {"n": (0, 2, None), "d": (5, 0, None), "ambient": (5, 3, coordinates - 1)}.items():
        with pytest.raises(ValueError, match=f"^{argument}: expected"):
            SAMPLES[name](*sizes[:2], ambient=sizes[2])


@pytest.mark.parametrize("name", SAMPLES)
def test_the_seed_decides_and_a_generator_moves_on(name: str) -> None:
    sample = SAMPLES[name]
    state = torch.get_rng_state()
    assert torch.equal(sample(10, 2, seed=1), sample(10, 2, seed=1))
    assert not torch.equal(sample(10, 2, seed=1), sample(10, 2, seed=2))
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(sample(10, 2, seed=generator), sample(10, 2, seed=1))
    assert not torch.equal(sample(10, 2, seed=generator), sample(10, 2, seed=1))
    assert torch.equal(torch.get_rng_state(), state)


def test_dtypes_share_their_points() -> None:
    wide = gaussian(10, 3, dtype=torch.float64)
    assert torch.equal(gaussian(10, 3), wide.float())
    assert torch.equal(gaussian(10, 3, dtype=torch.bfloat16), wide.to(torch.bfloat16))


@pytest.mark.parametrize("x", [cube(20_000, 2, dtype=torch.float64), local_collapse(20_000, 0.0, dtype=torch.float64)])
def test_the_cube_and_points_without_collapse_are_uniform_in_the_square(x: Tensor) -> None:
    counts = torch.histogramdd(x, bins=[4, 4], range=[0, 1, 0, 1]).hist / len(x)
    assert counts.sum() == 1
    torch.testing.assert_close(counts, torch.full((4, 4), 1 / 16).double(), atol=0.006, rtol=0)


@pytest.mark.parametrize("d", [1, 2, 7])
def test_the_volume_within_a_radius_of_the_ball_is_uniform(d: int) -> None:
    volume = ball(20_000, d, dtype=torch.float64).norm(dim=1) ** d
    grid = torch.linspace(0.1, 0.9, 9).double()
    share = (volume[:, None] < grid).double().mean(dim=0)
    torch.testing.assert_close(share, grid, atol=0.015, rtol=0)


def test_sphere_has_unit_norm_and_no_preferred_direction() -> None:
    x = sphere(20_000, 4, dtype=torch.float64)
    torch.testing.assert_close(x.norm(dim=1), torch.ones(20_000).double())
    torch.testing.assert_close(x.T @ x / len(x), torch.eye(5).double() / 5, atol=0.006, rtol=0)


def test_gaussian_is_standard() -> None:
    x = gaussian(20_000, 3, dtype=torch.float64)
    torch.testing.assert_close(x.T.cov(), torch.eye(3).double(), atol=0.04, rtol=0)
    assert x.pow(4).mean().item() == pytest.approx(3, abs=0.15)


def test_full_collapse_without_thickness_leaves_one_line_per_cell() -> None:
    one_line = local_collapse(500, 1.0, cells=1, thickness=0.0, dtype=torch.float64)
    along, across = torch.linalg.svdvals(one_line - one_line.mean(dim=0)).tolist()
    assert across < 1e-12 * along
    assert torch.linalg.svdvals(local_collapse(500, 1.0, thickness=0.0, dtype=torch.float64))[1] > 1


def test_thickness_is_the_share_of_the_width_that_is_left() -> None:
    def width(strength: float, thickness: float) -> float:
        x = local_collapse(500, strength, cells=1, thickness=thickness, seed=3, dtype=torch.float64)
        return float(torch.linalg.svdvals(x - x.mean(dim=0))[1])

    assert width(1.0, 0.1) == pytest.approx(2 * width(1.0, 0.05), rel=0.01)
    assert width(0.5, 0.0) == pytest.approx(width(1.0, 0.5), rel=1e-9)


@pytest.mark.parametrize("n", [1000, 2000])
def test_collapse_lowers_local_dimension_but_not_the_extent(n: int) -> None:
    samples = [local_collapse(n, strength, seed=2) for strength in (0.0, 0.5, 0.8, 1.0)]
    local = [geometric_mean(lid(x, 64)).item() for x in samples]
    assert local == sorted(local, reverse=True)
    assert local[0] == pytest.approx(2, abs=0.1)
    assert local[-1] < 1.3
    for x in samples:
        small, large = torch.linalg.eigvalsh(x.T.cov()).tolist()
        assert large < 1.5 * small
        assert math.sqrt(small) > 0.2


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        *(({"n": 0}, "n"), ({"cells": 0}, "cells"), ({"thickness": 2.0}, "thickness")),
        *(({"strength": value}, "strength") for value in (-0.1, 1.1, math.nan)),
    ],
)
def test_local_collapse_names_the_wrong_argument(options: dict[str, Any], argument: str) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: expected"):
        local_collapse(**({"n": 5, "strength": 0.5} | options))
