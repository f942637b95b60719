"""Measures of quality: against NumPy and SciPy in float64, where they are exact, and what they refuse."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg, optimize, special, stats
from scipy.spatial.distance import pdist
from torch import Tensor

from ldreg.dimension.neighbors import neighbor_distances, neighbors
from ldreg.dimension.quality import (
    alignment,
    alpha_req,
    antihubs,
    gride,
    hub_counts,
    hubness,
    lidar,
    nesum,
    participation_ratio,
    uniformity,
    view_share,
)
from ldreg.dimension.spectrum import covariance_eigenvalues
from ldreg.dimension.synthetic import cube, gaussian

IMAGES, COLUMNS = 20_000, 8


def drawn(views: int, *, image: float, view: float) -> Tensor:
    """Views (V, N, D) whose variance has these two parts."""
    source = torch.Generator().manual_seed(0)
    means = math.sqrt(image) * torch.randn(IMAGES, COLUMNS, generator=source, dtype=torch.float64)
    noise = math.sqrt(view) * torch.randn(views, IMAGES, COLUMNS, generator=source, dtype=torch.float64)
    return means + noise


@pytest.mark.parametrize(("views", "image", "view"), [(2, 3.0, 1.0), (3, 1.0, 1.0), (8, 1.0, 9.0)])
def test_it_is_the_share_that_was_drawn_whatever_the_number_of_views(views: int, image: float, view: float) -> None:
    found = view_share(drawn(views, image=image, view=view))
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(view / (image + view), abs=0.01)


def test_it_is_that_of_the_analysis_of_variance() -> None:
    x = drawn(3, image=2.0, view=1.0)[:, :50].numpy()
    views, images, _ = x.shape
    grand = x.mean((0, 1))
    mean_squares = {
        "image": views * sum(((x[:, i].mean(0) - grand) ** 2).sum() for i in range(images)) / (images - 1),
        "view": sum(((x[v, i] - x[:, i].mean(0)) ** 2).sum() for v in range(views) for i in range(images))
        / (images * (views - 1)),
    }
    of_images = (mean_squares["image"] - mean_squares["view"]) / views
    expected = mean_squares["view"] / (mean_squares["view"] + of_images)
    assert view_share(list(x)).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_scale_and_offset_do_not_matter(scale: float) -> None:
    x = drawn(2, image=1.0, view=1.0)[:, :100]
    usual = view_share(x).item()
    assert view_share(scale * x).item() == pytest.approx(usual, rel=1e-9)
    assert view_share(scale * (x + 1000)).item() == pytest.approx(usual, rel=1e-9)


def test_every_dtype_and_a_mapped_file(tmp_path: Path) -> None:
    x = 10 * drawn(2, image=1.0, view=1.0)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32):
        assert view_share(x.to(dtype)) == view_share(x.to(dtype).double())
    np.save(tmp_path / "views.npy", x.numpy())
    assert view_share(np.load(tmp_path / "views.npy", mmap_mode="r")) == view_share(x)
    x = torch.tensor([[1.0], [-1.0], [0.0]], dtype=torch.float64)
    for largest in (1.7e308, 5e-324 * 2**20):
        share = view_share([largest * x, largest * (0.5 * x)]).item()
        assert share == pytest.approx(view_share([x, 0.5 * x]).item(), rel=1e-5)


def test_defined_values() -> None:
    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    assert view_share([x, x.roll(1, 0)]).item() > 0.95
    assert view_share([x, -x]).item() == 1.0  # the variance of the means is less than chance would make it
    for views in (3, 7, 100):
        assert view_share([x / 3] * views).item() == 0
    assert math.isnan(view_share(torch.full((2, 5, 3), 0.1)))
    for bad in (math.nan, math.inf):
        assert math.isnan(view_share([x, torch.where(x == x[3, 2], bad, x)]))
    assert not view_share([x, x.clone().requires_grad_()]).requires_grad


def test_no_digits_are_lost() -> None:
    """Neither to the dtype of other views nor beside a large constant column."""
    i = torch.tensor([[2**25 + 1], [2**25 + 3], [2**25 + 2]])
    assert view_share([i, i.float()]).item() == pytest.approx(12 / 37)
    x = torch.zeros(2, 4, 2, dtype=torch.float64)
    x[..., 0], x[..., 1] = 1.0, 1e-200 * torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.5, 2.0, 3.0, 4.0]]).double()
    assert view_share(x).item() == pytest.approx(view_share(1e200 * x[..., 1:]).item())


@pytest.mark.parametrize(
    "views",
    [
        *(None, 5, torch.tensor(3.0), [], [torch.zeros(4, 2)], [torch.zeros(4, 2), torch.zeros(5, 2)]),
        *([torch.zeros(shape)] * 2 for shape in ((1, 2), (4, 0), (4,))),
        [torch.zeros(4, 2, dtype=torch.complex64)] * 2,
    ],
)
def test_what_is_no_views_of_images_is_refused(views: Any) -> None:
    with pytest.raises(ValueError, match=r"^views: expected two or more .*, got "):
        view_share(views)


def powers(points: int, dimensions: int, *, seed: int = 0) -> Tensor:
    """Gaussian points whose variances fall as a power law, in a random basis, off the origin."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(points, dimensions, generator=source, dtype=torch.float64)
    x = x / torch.arange(1, dimensions + 1, dtype=torch.float64).sqrt()
    basis: Tensor = torch.linalg.qr(torch.randn(dimensions, dimensions, generator=source, dtype=torch.float64)).Q
    return x @ basis + 3


@pytest.mark.parametrize("shape", [(300, 40), (50, 200), (400, 150)])
def test_measures_of_the_spectrum_are_those_of_numpy(shape: tuple[int, int]) -> None:
    x = powers(*shape)
    values = np.linalg.eigvalsh(np.cov(x.numpy(), rowvar=False))[::-1]
    values = values[: min(shape[0] - 1, shape[1])]
    found = covariance_eigenvalues(x)
    assert participation_ratio(found).item() == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-10)
    assert nesum(found).item() == pytest.approx(values.sum() / values[0], rel=1e-10)
    first, last = (11, 100) if len(values) >= 100 else (len(values) // 10, len(values))
    ranks = np.arange(first, last + 1)
    logs, y = np.log(ranks), np.log(values[first - 1 : last])
    line = np.polyfit(logs, y, 1, w=ranks**-0.5)
    power = alpha_req(found)
    assert power.alpha == pytest.approx(-line[0], rel=1e-8)
    rest = np.average((y - np.polyval(line, logs)) ** 2, weights=1 / ranks)
    around = np.average((y - np.average(y, weights=1 / ranks)) ** 2, weights=1 / ranks)
    assert power.r2 == pytest.approx(1 - rest / around, rel=1e-8)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_measures_of_the_spectrum_do_not_depend_on_scale(scale: float) -> None:
    values = 1 / torch.arange(1, 301, dtype=torch.float64)
    assert participation_ratio(scale * values).item() == pytest.approx(participation_ratio(values).item(), rel=1e-12)
    assert nesum(scale * values).item() == pytest.approx(nesum(values).item(), rel=1e-12)
    assert alpha_req(scale * values) == pytest.approx((1.0, 1.0), rel=1e-9)


def test_defined_values_of_a_spectrum() -> None:
    none = torch.zeros(200)
    assert participation_ratio(none).item() == nesum(none).item() == 0
    assert all(math.isnan(value) for value in (*alpha_req(none), *alpha_req(torch.ones(7))))
    assert alpha_req(torch.ones(200)) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"^first: expected 1 <= first < last, got 5 and 5"):
        alpha_req(torch.ones(9), first=5, last=5)


def test_uniformity_is_that_of_all_pairs() -> None:
    x = gaussian(700, 6, ambient=12) + 0.5
    unit = (x / x.norm(dim=1, keepdim=True)).double().numpy()
    expected = np.log(np.exp(-2 * pdist(unit, "sqeuclidean")).mean())
    assert uniformity(x).item() == pytest.approx(expected, rel=1e-6)
    assert uniformity(1e-30 * x).item() == pytest.approx(expected, rel=1e-5)  # it looks at directions alone
    assert uniformity(torch.cat([x, torch.zeros(100, 12)])).item() == pytest.approx(expected, rel=1e-6)


def test_defined_values_of_uniformity() -> None:
    assert uniformity(torch.ones(9, 3)).item() == pytest.approx(0, abs=1e-6)
    assert math.isnan(uniformity(torch.zeros(9, 3)))
    assert math.isnan(uniformity([[1.0, 2.0]]))
    with pytest.raises(ValueError, match=r"^x: expected finite numbers, got NaN or inf in 1 of 3 rows"):
        uniformity([[1.0], [math.nan], [2.0]])


def test_hubness_is_the_skewness_of_scipy() -> None:
    indices = neighbors(gaussian(500, 50), 10).indices
    counts = hub_counts(indices, 500)
    brute = np.array([(indices.numpy() == row).sum() for row in range(500)])
    assert counts.tolist() == brute.tolist()
    assert hubness(counts).item() == pytest.approx(stats.skew(brute), rel=1e-12)
    assert antihubs(counts).item() == (brute == 0).mean()
    assert hubness(counts) > 2 > 1 > hubness(hub_counts(neighbors(cube(500, 2), 10).indices, 500))


@pytest.mark.parametrize("place", range(5))
def test_gride_has_the_largest_likelihood(place: int) -> None:
    distances = neighbor_distances(gaussian(300, 5), 32).double().numpy()
    near = 2**place
    mu = distances[:, 2 * near - 1] / distances[:, near - 1]

    def minus_likelihood(d: float) -> float:
        density = np.log(d) + (near - 1) * np.log(mu**d - 1) - (d * (2 * near - 1) + 1) * np.log(mu)
        return float(-(density - special.betaln(near, near)).sum())

    expected = optimize.minimize_scalar(
        minus_likelihood, bounds=(0.5, 50), method="bounded", options={"xatol": 1e-10}
    ).x
    found = gride(torch.from_numpy(distances))[place]
    assert found.neighbor == 2 * near
    assert found.distance == pytest.approx(distances[:, 2 * near - 1].mean())
    assert found.dimension == pytest.approx(expected, rel=1e-6)


def test_defined_values_of_gride() -> None:
    assert gride(torch.ones(5, 1)) == []
    assert [scale.dimension for scale in gride(torch.ones(5, 4))] == [math.inf, math.inf]
    assert math.isnan(gride(torch.zeros(5, 2))[0].dimension)
    some = torch.tensor([[0.0, 1.0], [1.0, 2.0]])
    assert gride(some)[0].dimension == pytest.approx(gride(some[1:])[0].dimension)


def test_alignment_is_the_mean_over_pairs_of_views() -> None:
    x = drawn(3, image=1.0, view=0.5)[:, :50]
    unit = x / x.norm(dim=-1, keepdim=True)
    pairs = [(unit[i] - unit[j]).square().sum(1).mean().item() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert alignment(x).item() == pytest.approx(np.mean(pairs), rel=1e-12)
    assert alignment([x[0], 5 * x[0]]).item() == pytest.approx(0, abs=1e-15)
    assert alignment([x[0], -x[0]]).item() == pytest.approx(4)
    assert alignment([torch.cat([x[0], x[0]]), torch.cat([-x[0], 0 * x[0]])]).item() == pytest.approx(4)
    assert math.isnan(alignment([torch.zeros(3, 2)] * 2))


@pytest.mark.parametrize(("images", "delta"), [(200, 1e-4), (6, 1e-4), (200, 0.3)])
def test_lidar_is_that_of_the_written_formula(images: int, delta: float) -> None:
    x = drawn(4, image=1.0, view=0.2)[:, :images].numpy()
    means = x.mean(0)
    within = sum(np.outer(e, e) for view in x for e in view - means) / (4 * images) + delta * np.eye(COLUMNS)
    root = np.linalg.inv(linalg.sqrtm(within))
    values = np.linalg.eigvalsh(root @ np.cov(means, rowvar=False) @ root).clip(0)
    shares = values[values > 1e-12] / values.sum()
    assert lidar(list(x), delta=delta).item() == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-8)


def test_defined_values_of_lidar() -> None:
    x = drawn(2, image=1.0, view=0.2)[:, :40]
    assert lidar(x[:, :1].expand(2, 2, COLUMNS)).item() == 0
    assert lidar(torch.full((2, 7, 3), 0.1)).item() == 0
    assert math.isnan(lidar([x[0], x[1] * math.nan]))
    with pytest.raises(ValueError, match=r"^delta: expected more than the rounding"):
        lidar(1e160 * x)
    with pytest.raises(ValueError, match=r"^delta: expected a finite number above 0, got 0"):
        lidar(x, delta=0)


@pytest.mark.parametrize("measure", [alignment, lidar])
def test_measures_of_views_refuse_what_is_no_views(measure: Any) -> None:
    with pytest.raises(ValueError, match=r"^views: expected two or more .*, got "):
        measure([torch.zeros(4, 2), torch.zeros(5, 2)])
