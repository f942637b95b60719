import math

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from ldreg.views.color import JITTER_DRAWS, Jitter, color_jitter, grayscale, luminance, sample_jitter, solarize

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


@pytest.mark.parametrize("index", range(4))
def test_each_step_alone_is_torchvisions(index: int) -> None:
    images = torch.rand(9, 3, 5, 5, generator=torch.Generator().manual_seed(2))
    values = torch.linspace(-0.5, 0.5, 9) if index == 3 else torch.linspace(0, 2.6, 9)
    factors = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(9, 1)
    factors[:, index] = values
    result = color_jitter(images, Jitter(factors, torch.arange(4).repeat(9, 1)))
    expected = torch.stack([STEPS[index](image, value) for image, value in zip(images, values.tolist(), strict=True)])
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)
    moved = (result - images).abs().amax(dim=(1, 2, 3)) > 1e-3
    assert moved.sum() == 9 - int((values == factors.new_tensor(0.0 if index == 3 else 1.0)).sum())


def test_a_third_of_a_turn_takes_red_to_green() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    turned = color_jitter(red, Jitter(torch.tensor([[1.0, 1.0, 1.0, 1 / 3]]), torch.arange(4)[None]))
    torch.testing.assert_close(turned.flatten(), torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)


def test_neutral_jitter_keeps_the_image() -> None:
    images = torch.rand(50, 3, 6, 6)
    drawn = sampled(50, probability=0.0)
    assert torch.equal(drawn.factors, torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(50, 1))
    torch.testing.assert_close(color_jitter(images, drawn), images, atol=1e-6, rtol=0)


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


def test_factors_are_never_negative() -> None:
    draws = torch.rand(2000, JITTER_DRAWS)
    factors = sample_jitter(draws, intensities=(2.0, 1.2, 1.0, 0.5), probability=1.0).factors
    assert bool((factors[:, :3] >= 0).all())
    assert factors[:, 0].max() > 2.9
    assert bool((factors[:, 3].abs() <= 0.5).all())


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


def test_grayscale_and_luminance_are_torchvisions() -> None:
    images = torch.rand(2, 3, 4, 5)
    applied = torch.tensor([True, False])
    expected = torch.stack([functional.rgb_to_grayscale(images[0], num_output_channels=3), images[1]])
    torch.testing.assert_close(grayscale(images, applied), expected)
    assert torch.equal(luminance(images[:, :1]), images[:, :1])


def test_solarize_is_torchvisions() -> None:
    images = torch.rand(2, 3, 4, 5)
    images[0, 0, 0, :3] = torch.tensor([0.5, 0.0, 1.0])
    expected = torch.stack([functional.solarize(images[0], 0.5), images[1]])
    torch.testing.assert_close(solarize(images, torch.tensor([True, False])), expected)
