import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from ldreg.views.blur import gaussian_blur, sample_sigma


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


def test_images_it_does_not_apply_to_stay_as_they_are() -> None:
    images = torch.rand(2, 3, 16, 16)
    result = gaussian_blur(images, torch.ones(2), torch.tensor([False, True]), width=5)
    assert torch.equal(result[0], images[0])
    assert (result[1] - images[1]).abs().max() > 0.05


def test_sigma_is_distributed_as_torchvisions() -> None:
    torch.manual_seed(0)
    transform = v2.GaussianBlur(23, sigma=(0.1, 2.0))
    theirs = [transform.make_params([])["sigma"][0] for _ in range(3000)]
    ours = sample_sigma(torch.rand(20_000, generator=torch.Generator().manual_seed(0)))
    assert ks_2samp(ours.numpy(), theirs).pvalue > 1e-3
