"""Measures against closed forms and the functions they are made of, and on what a collapsed encoder puts out."""

import math

import pytest
import torch
from torch import Tensor

import ldreg
from ldreg.evaluate.measure import evenly_spaced, knn_accuracy, linear_accuracy, measure, measure_set


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_dimensions_of_a_cube_embedded_in_more() -> None:
    cube = torch.rand(3000, 3, generator=torch.Generator().manual_seed(0)) @ torch.linalg.qr(normal(20, 3)).Q.T
    found = measure(cube, k=64)
    assert found["lid"] == pytest.approx(3, abs=0.25)
    assert found["effective_rank"] == pytest.approx(3, abs=0.01)
    assert found["frechet_variance"] == pytest.approx(1 / 64, abs=0.01)
    assert found["degenerate"] == 0


def test_values_are_those_of_the_public_functions() -> None:
    x = normal(200, 5)
    lid = ldreg.lid(x, k=20)
    found = measure(x, k=20)
    assert found["lid"] == pytest.approx(ldreg.geometric_mean(lid).item())
    assert found["frechet_variance"] == pytest.approx(ldreg.frechet_variance(lid).item())
    assert found["effective_rank"] == pytest.approx(ldreg.effective_rank(x).item())
    assert (lid < found["lid_low"]).sum() == int(0.05 * 199)
    assert found["lid_low"] in lid


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_spread_is_the_distance_to_the_mean_over_the_norm(offset: float, scale: float) -> None:
    x = normal(300, 5).double() + offset
    expected = ((x - x.mean(0)).square().sum() / x.square().sum()).sqrt().item()
    assert measure((x * scale).float())["spread"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e38, 1e-45])
def test_equal_rows_have_no_spread(value: float) -> None:
    assert measure(torch.full((100, 3), value))["spread"] == 0


def test_degenerate_points_are_left_out_and_counted() -> None:
    x = torch.cat([normal(300, 4), torch.full((100, 4), 50.0)])
    found = measure(x, k=20)
    assert found["degenerate"] == 0.25
    assert found["lid"] == pytest.approx(measure(x[:300], k=20)["lid"])
    assert found["lid_low"] == 0
    assert measure(x[:315], k=20)["lid_low"] > 0  # 15 equal rows: fewer than 20, and fewer than 5 %


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_a_finding_and_no_error(bad: float) -> None:
    x = normal(100, 4)
    x[3, 2] = bad
    found = measure(x)
    assert found["degenerate"] == 1
    assert all(math.isnan(value) for name, value in found.items() if name != "degenerate")


def test_values_at_the_end_of_float32_are_measured() -> None:
    x = normal(100, 4)
    assert measure(x * 5e37) == pytest.approx(measure(x), rel=1e-5)


def test_half_precision_and_gradients_are_taken() -> None:
    x = normal(200, 4).bfloat16().requires_grad_()
    assert measure(x)["lid"] == pytest.approx(measure(x.detach().float())["lid"])


def test_too_few_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match="k"):
        measure(normal(64, 4), k=64)


def labeled(rows: int = 400) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = normal(2 * rows, 6)
    labels = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return x[:rows], labels[:rows], x[rows:], labels[rows:]


def test_set_measures_are_the_evaluations_own() -> None:
    four = labeled()
    found = measure_set(four, points=100, k=20, knn_k=30)
    assert found["knn"] == knn_accuracy(*four, k=30)
    assert found["linear"] == linear_accuracy(*four).accuracy
    assert found["lid"] == pytest.approx(measure(four[0][::4], k=20)["lid"])


def test_without_labels_only_dimensions_are_measured() -> None:
    train, labels, test, truth = labeled()
    dimensions = list(measure(train))
    assert dimensions == ["lid", "lid_low", "frechet_variance", "effective_rank", "spread", "degenerate"]
    assert list(measure_set((train, None, None, None))) == dimensions
    assert list(measure_set((train, labels, None, None))) == dimensions
    assert list(measure_set((train, labels - 1, test, truth))) == dimensions
    assert list(measure_set((train, labels, test, truth - 1))) == dimensions
    assert list(measure_set((train, labels, test, truth), knn=False, probe=False)) == dimensions
    assert list(measure_set((train, labels, test, truth), knn=False)) == [*dimensions, "linear"]
    assert list(measure_set((train, labels, test, truth), probe=False)) == [*dimensions, "knn"]


def test_probes_of_what_is_not_finite_are_nan() -> None:
    train, labels, test, truth = labeled()
    test[0] = math.nan
    found = measure_set((train, labels, test, truth))
    assert math.isnan(found["knn"])
    assert math.isnan(found["linear"])
    assert math.isfinite(found["lid"])


def test_the_rows_measured_are_spread_over_all() -> None:
    assert evenly_spaced(torch.arange(1000), 10).tolist() == list(range(0, 1000, 100))
    assert evenly_spaced(torch.arange(7), 7).tolist() == list(range(7))
    assert len(evenly_spaced(torch.arange(1999), 1000).unique()) == 1000
