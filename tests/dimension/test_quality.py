"""The share of the view: against known variance components, scale, offset, and what it refuses."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ldreg.dimension.quality import view_share

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
