import itertools
from collections.abc import Callable

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from ldreg.views.config import Interpolation
from ldreg.views.crop import BOX_DRAWS, Boxes, flip, resized_crop, sample_boxes


def uniforms(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, BOX_DRAWS, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("height", "width", "size", "channels"), [(32, 32, 32, 3), (40, 60, 24, 3), (9, 8, 17, 1), (224, 130, 96, 3)]
)
def test_crop_is_torchvisions(interpolation: Interpolation, height: int, width: int, size: int, channels: int) -> None:
    images = torch.rand(20, channels, height, width, generator=torch.Generator().manual_seed(1))
    boxes = sample_boxes(uniforms(20), height=height, width=width, scale=(0.02, 1.0))
    cropped = resized_crop(images, boxes, size=size, interpolation=interpolation)
    assert cropped.shape == (20, channels, size, size)
    mode = InterpolationMode(interpolation)
    for image, result, box in zip(images, cropped, torch.stack(boxes, 1).tolist(), strict=True):
        expected = functional.resized_crop(image, *box, [size, size], interpolation=mode, antialias=True)
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


def test_crop_of_the_whole_is_the_image() -> None:
    images = torch.rand(2, 3, 8, 8)
    whole = Boxes(*(torch.full((2,), value) for value in (0, 0, 8, 8)))
    assert torch.equal(resized_crop(images, whole, size=8, interpolation="bicubic"), images)


def test_several_boxes_of_each_image_follow_one_another() -> None:
    images = torch.rand(2, 3, 10, 12)
    boxes = sample_boxes(uniforms(6), height=10, width=12, scale=(0.1, 1.0))
    together = resized_crop(images, boxes, size=6, interpolation="bilinear")
    apart = resized_crop(images.repeat_interleave(3, dim=0), boxes, size=6, interpolation="bilinear")
    torch.testing.assert_close(together, apart)


def torchvisions_boxes(count: int, height: int, width: int, scale: tuple[float, float]) -> Tensor:
    transform = v2.RandomResizedCrop(8, scale=scale)
    image = torch.empty(1, height, width)
    drawn = [transform.make_params([image]) for _ in range(count)]
    return torch.tensor([[one[name] for name in ("top", "left", "height", "width")] for one in drawn])


@pytest.mark.parametrize(
    ("height", "width", "scale"), [(32, 32, (0.08, 1.0)), (96, 50, (0.2, 1.0)), (28, 64, (0.3, 1.0))]
)
def test_boxes_are_distributed_as_torchvisions(height: int, width: int, scale: tuple[float, float]) -> None:
    torch.manual_seed(0)
    theirs = torchvisions_boxes(3000, height, width, scale)
    ours = torch.stack(sample_boxes(uniforms(30_000), height=height, width=width, scale=scale), dim=1)
    statistics: dict[str, Callable[[Tensor], Tensor]] = {
        "top": lambda box: box[:, 0],
        "left": lambda box: box[:, 1],
        "area": lambda box: box[:, 2] * box[:, 3],
        "aspect": lambda box: box[:, 3] / box[:, 2],
        "slack above": lambda box: (box[:, 0] + 0.5) / (height - box[:, 2] + 1),
        "slack left": lambda box: (box[:, 1] + 0.5) / (width - box[:, 3] + 1),
    }
    for name, statistic in statistics.items():
        assert ks_2samp(statistic(ours).numpy(), statistic(theirs).numpy()).pvalue > 1e-3, name
    correlations = torch.corrcoef(ours.T.double()), torch.corrcoef(theirs.T.double())
    torch.testing.assert_close(*correlations, atol=0.08, rtol=0)


def test_boxes_lie_inside() -> None:
    for height, width in itertools.product((2, 7, 50), repeat=2):
        top, left, h, w = sample_boxes(uniforms(2000), height=height, width=width, scale=(0.01, 1.0))
        assert all(bool(value) for value in ((top >= 0).all(), (left >= 0).all(), (h >= 1).all(), (w >= 1).all()))
        assert bool((top + h <= height).all())
        assert bool((left + w <= width).all())


@pytest.mark.parametrize(("height", "width"), [(100, 10), (10, 100), (10, 10)])
def test_where_no_try_fits_the_center_is_taken(height: int, width: int) -> None:
    # An area of the whole never fits at the extreme of the aspect ratios.
    ours = sample_boxes(torch.full((1, BOX_DRAWS), 0.999999), height=height, width=width, scale=(1.0, 1.0))
    transform = v2.RandomResizedCrop(8, scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3))
    transform.ratio, transform._log_ratio = (3 / 4, 4 / 3), torch.log(torch.tensor([4 / 3 - 1e-6, 4 / 3]))
    theirs = transform.make_params([torch.empty(1, height, width)])
    assert [value.item() for value in ours] == [theirs[name] for name in ("top", "left", "height", "width")]


def test_the_first_try_that_fits_counts() -> None:
    draws = torch.full((1, BOX_DRAWS), 0.5)
    draws[0, :2] = 0.999999  # the largest area ...
    draws[0, 10:12] = 0.999999  # ... at the extreme ratio does not fit, twice
    draws[0, 2] = 0.0
    draws[0, -2:] = torch.tensor([0.0, 0.999999])
    top, left, height, width = (value.item() for value in sample_boxes(draws, height=20, width=20, scale=(0.25, 1.0)))
    assert (top, left, height, width) == (0, 10, 10, 10)


def test_flip_is_torchvisions() -> None:
    images = torch.rand(2, 3, 4, 5)
    flipped = flip(images, torch.tensor([True, False]))
    assert torch.equal(flipped, torch.stack([functional.hflip(images[0]), images[1]]))
