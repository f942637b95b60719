import itertools
import math
from collections.abc import Callable

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from ldreg.views.config import Interpolation
from ldreg.views.transforms import (
    BOX_DRAWS,
    JITTER_DRAWS,
    Jitter,
    color_jitter,
    flip,
    gaussian_blur,
    grayscale,
    resample,
    resized_crop,
    sample_boxes,
    sample_jitter,
    solarize,
)


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
def test_center_is_taken_if_no_try_fits(height: int, width: int) -> None:
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


INTENSITIES = (0.8, 0.6, 0.4, 0.2)
STEPS = (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation, functional.adjust_hue)


def sampled(count: int, *, probability: float = 1.0, seed: int = 0) -> Jitter:
    draws = torch.rand(count, JITTER_DRAWS, generator=torch.Generator().manual_seed(seed))
    return sample_jitter(draws, intensities=INTENSITIES, probability=probability)


def by_torchvision(image: Tensor, factors: list[float], order: list[int]) -> Tensor:
    for index in order:
        image = STEPS[index](image, factors[index])
    return image


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_is_torchvisions(channels: int) -> None:
    images = torch.rand(200, channels, 6, 7, generator=torch.Generator().manual_seed(1))
    images[:40] = images[:40].round()  # pure and gray colors, where hue has its corners
    images[40:60] = images[40:60, :1]
    drawn = sampled(200)
    assert len(drawn.order.unique(dim=0)) == 24
    parameters = zip(images, drawn.factors.tolist(), drawn.order.tolist(), strict=True)
    expected = torch.stack([by_torchvision(*one) for one in parameters])
    torch.testing.assert_close(color_jitter(images, drawn), expected, atol=1e-5, rtol=0)


def test_factors_are_distributed_as_torchvisions() -> None:
    torch.manual_seed(0)
    transform = v2.ColorJitter(*INTENSITIES)
    drawn = [transform.make_params([]) for _ in range(3000)]
    ours = sampled(20_000)
    for index, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        theirs = torch.tensor([one[f"{name}_factor"] for one in drawn])
        assert ks_2samp(ours.factors[:, index].numpy(), theirs.numpy()).pvalue > 1e-3, name
    correlations = torch.corrcoef(ours.factors.T)
    torch.testing.assert_close(correlations, torch.eye(4), atol=0.03, rtol=0)


def test_all_orders_are_equally_likely() -> None:
    count = 24_000
    _, counts = sampled(count).order.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    chi_squared = ((counts - count / 24).double() ** 2 / (count / 24)).sum().item()
    assert chi_squared < 49.7  # 99.9 % of chi-squared with 23 degrees of freedom


def test_jitter_happens_at_its_rate() -> None:
    factors = sampled(10_000, probability=0.8).factors
    rate = (factors[:, 0] != 1).double().mean().item()
    assert abs(rate - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 10_000)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (flip, functional.hflip),
        (grayscale, lambda image: functional.rgb_to_grayscale(image, num_output_channels=3)),
        (solarize, lambda image: functional.solarize(image, 0.5)),
    ],
    ids=["flip", "grayscale", "solarize"],
)
def test_images_that_are_changed_are_torchvisions(
    ours: Callable[[Tensor, Tensor], Tensor], theirs: Callable[[Tensor], Tensor]
) -> None:
    images = torch.rand(2, 3, 4, 5)
    images[0, 0, 0, :3] = torch.tensor([0.5, 0.0, 1.0])
    changed = ours(images, torch.tensor([True, False]))
    torch.testing.assert_close(changed, torch.stack([theirs(images[0]), images[1]]))


@pytest.mark.parametrize(
    ("height", "width", "channels", "kernel"), [(32, 32, 3, 3), (8, 8, 1, 3), (50, 40, 3, 23), (6, 7, 3, 11)]
)
def test_blur_is_torchvisions(height: int, width: int, channels: int, kernel: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(20, channels, height, width, generator=generator)
    sigma = torch.rand(20, generator=generator) * 3 + 0.1
    result = gaussian_blur(images, sigma, torch.ones(20, dtype=torch.bool), width=kernel)
    expected = [
        functional.gaussian_blur(image, [kernel, kernel], [value, value])
        for image, value in zip(images, sigma.tolist(), strict=True)
    ]
    torch.testing.assert_close(result, torch.stack(expected), atol=1e-5, rtol=0)


def test_blur_leaves_other_images_unchanged() -> None:
    images = torch.rand(2, 3, 16, 16)
    result = gaussian_blur(images, torch.ones(2), torch.tensor([False, True]), width=5)
    assert torch.equal(result[0], images[0])
    assert (result[1] - images[1]).abs().max() > 0.05


def test_resample_is_the_sum_over_rows_and_columns() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 2, 5, 7, generator=generator, dtype=torch.float64)
    rows = torch.rand(6, 4, 5, generator=generator, dtype=torch.float64)
    columns = torch.rand(6, 3, 7, generator=generator, dtype=torch.float64)
    expected = torch.einsum("nchw,nsh,ntw->ncst", images.repeat_interleave(2, dim=0), rows, columns)
    torch.testing.assert_close(resample(images, rows, columns), expected)


def test_resample_does_not_copy_its_own_layout() -> None:
    images = torch.rand(2, 5, 3, 7).transpose(1, 2)
    eye = torch.eye(5).expand(2, 5, 5), torch.eye(7).expand(2, 7, 7)
    result = resample(images, *eye)
    assert result.stride() == images.stride()
    assert torch.equal(result, images)
