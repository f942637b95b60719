import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from ldreg.views import Views, ViewsConfig
from ldreg.views.config import POLICIES, Interpolation, Normalization, PolicyName
from ldreg.views.views import DRAWS, _chunks

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, generator=seeded(seed), dtype=torch.uint8)


def picture(height: int, width: int) -> Tensor:
    """A smooth image (3, height, width) with other colors in every corner, which tell crops and flips apart."""
    y, x = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)
    channels = [0.9 * x * (1 - 0.5 * y), 0.2 + 0.7 * y * x, (0.5 + 0.4 * torch.sin(6 * x)).expand(height, width)]
    texture = 0.1 * (torch.arange(height)[:, None] + torch.arange(width)).remainder(2)
    return (0.9 * torch.stack(channels) + texture).mul(255).round().to(torch.uint8)


def by_torchvision(policy: PolicyName, view: int, size: int, kernel: int) -> Callable[[Tensor], Tensor]:
    """The policy's transform of one image, from torchvision's own parts."""
    if policy == "mae":
        bicubic = InterpolationMode.BICUBIC
        crop = v2.RandomResizedCrop(size, (0.2, 1.0), interpolation=bicubic)
        parts: list[Any] = [crop, v2.Lambda(lambda image: image.clamp(0, 1))]
    else:
        intensities = (0.8, 0.8, 0.8, 0.2) if policy == "simclr" else (0.4, 0.4, 0.2, 0.1)
        blur = 0.5 if policy == "simclr" else (1.0, 0.1)[view]
        parts = [
            v2.RandomResizedCrop(size),
            v2.RandomApply([v2.ColorJitter(*intensities)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(kernel, (0.1, 2.0))], p=blur),
        ]
        if policy == "byol" and view == 1:
            parts.append(v2.RandomSolarize(0.5, p=0.2))
    # As float from the start: rounding in between, as of uint8, is no part of what is compared.
    first, last = v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)
    transform: Callable[[Tensor], Tensor] = v2.Compose([first, *parts, v2.RandomHorizontalFlip(), last])
    return transform


@pytest.mark.parametrize(("policy", "view"), [("simclr", 0), ("simclr", 1), ("byol", 0), ("byol", 1), ("mae", 0)])
@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_views_are_distributed_as_torchvisions(policy: PolicyName, view: int, count: int) -> None:
    image = picture(24, 20)
    torch.manual_seed(1)
    transform = by_torchvision(policy, view, size=16, kernel=3)
    theirs = torch.stack([transform(image) for _ in range(count)]).double()
    views = Views(ViewsConfig(policy), size=16, channels=3)
    ours = views(image.expand(8 * count, -1, -1, -1), seeded(2))[view].double()
    # By the standard error of the difference; the largest of the 768 pixels' deviations is allowed 5 of them.
    for name, statistic in MOMENTS.items():
        a, b = statistic(ours), statistic(theirs)
        error = (a.var(dim=0) / len(a) + b.var(dim=0) / len(b)).sqrt()
        assert ((a.mean(dim=0) - b.mean(dim=0)).abs() / error).max() < 5, name


MOMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": lambda x: x,
    "squares": lambda x: x**2,
    "saturation": lambda x: x.amax(dim=1) - x.amin(dim=1),
    "spread": lambda x: x.std(dim=(2, 3)),
    "roughness": lambda x: x.diff(dim=3).diff(dim=2).abs().mean(dim=(1, 2, 3)),
    "brightest": lambda x: x.amax(dim=(2, 3)),
}


@pytest.mark.parametrize("policy", ["simclr", "byol", "mae"])
def test_images_of_a_batch_are_drawn_apart(policy: PolicyName) -> None:
    views = Views(ViewsConfig(policy), size=16, channels=3)
    made = views(picture(24, 24).expand(6, -1, -1, -1), seeded())
    assert len(made) == views.count == (1 if policy == "mae" else 2)
    if policy != "mae":
        made += views(picture(16, 16).expand(6, 2, -1, -1, -1), seeded())
    everything = torch.cat(made).flatten(1)
    distances = torch.cdist(everything, everything) + torch.eye(len(everything))
    assert distances.min() > 0.1


def test_an_image_does_not_depend_on_the_rest_of_its_batch() -> None:
    views = Views(ViewsConfig("byol"), size=12, channels=3)
    images, uniforms = noise(5, 3, 16, 16), torch.rand(10, sum(DRAWS), generator=seeded())
    together = views.render(images, uniforms)
    for index in range(5):
        alone = views.render(images[index : index + 1], uniforms[2 * index : 2 * index + 2])
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a[0], b[index], atol=1e-5, rtol=0)


def test_the_generator_decides_and_goes_on() -> None:
    views, generator = Views(ViewsConfig("byol"), size=12, channels=3), seeded(3)
    images = noise(4, 3, 16, 16)
    once, then, again = (torch.stack(views(images, one)) for one in (generator, generator, seeded(3)))
    assert torch.equal(once, again)
    assert not torch.equal(once, then)


@pytest.mark.parametrize("policy", ["simclr", "byol", "mae"])
@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (1, 3, 32, 32), (3, 3, 20, 30), (7, 1, 9, 5)])
def test_shapes(policy: PolicyName, shape: tuple[int, ...]) -> None:
    views = Views(ViewsConfig(policy), size=10, channels=shape[1])
    for view in views(noise(*shape)):
        assert view.shape == (shape[0], shape[1], 10, 10)
        assert view.dtype == torch.float32
        assert view.is_contiguous()
        assert bool(view.isfinite().all())


def test_one_channel_equals_three_gray_channels() -> None:
    gray, uniforms = noise(6, 1, 12, 12), torch.rand(12, sum(DRAWS), generator=seeded())
    config = ViewsConfig("byol", normalization="half")
    one = Views(config, size=12, channels=1).render(gray, uniforms)
    three = Views(config, size=12, channels=3).render(gray.expand(-1, 3, -1, -1), uniforms)
    for a, b in zip(one, three, strict=True):
        # 0.2989 + 0.587 + 0.114 is 0.9999, so that torchvision's gray of gray is a little darker.
        torch.testing.assert_close(a.expand_as(b), b, atol=2e-3, rtol=0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_crops_made_in_a_worker_are_the_same_to_rounding(interpolation: Interpolation, channels: int) -> None:
    views = Views(ViewsConfig("byol", interpolation=interpolation, normalization="none"), size=12, channels=channels)
    image = noise(channels, 20, 30) // 2 + 64  # away from black and white, at which uint8 cuts bicubic's overshoot
    crops = views.crop(image, seeded())
    assert crops.shape == (2, channels, 12, 12)
    assert crops.dtype == torch.uint8
    uniforms = torch.full((2, sum(DRAWS)), 0.9999)  # no flip, jitter nor gray; blur of the first view alone
    uniforms[:, :22] = torch.rand(2, 22, generator=seeded())
    for a, b in zip(views.render(crops[None], uniforms), views.render(image[None], uniforms), strict=True):
        # Bicubic, torchvision rounds between the rows and the columns too.
        torch.testing.assert_close(a, b, atol=(1 if interpolation == "bilinear" else 2) / 255, rtol=0)


def test_each_view_is_of_its_own_crop() -> None:
    views = Views(ViewsConfig("simclr", jitter=0.0, grayscale=0.0, blur=False, flip=0.0), size=8, channels=3)
    crops = noise(3, 2, 3, 8, 8)
    for index, view in enumerate(views(crops)):
        assert torch.equal(view, views.plain(crops[:, index]))


@pytest.mark.parametrize(("height", "width"), [(8, 8), (20, 20), (20, 31), (15, 9)])
def test_plain_is_the_resized_center(height: int, width: int) -> None:
    images = noise(4, 3, height, width)
    side = min(height, width)
    square = functional.center_crop(functional.to_dtype(images, torch.float32, scale=True), [side, side])
    resized = functional.resize(square, [8, 8], antialias=True)
    expected = functional.normalize(resized, list(MEAN), list(DEVIATION))
    found = Views(ViewsConfig("simclr"), size=8, channels=3).plain(images)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("normalization", "channels", "low", "high"),
    [("none", 3, 0.0, 1.0), ("half", 1, -1.0, 1.0), ("imagenet", 1, -0.449 / 0.226, 0.551 / 0.226)],
)
def test_normalization(normalization: Normalization, channels: int, low: float, high: float) -> None:
    views = Views(ViewsConfig("simclr", normalization=normalization), size=2, channels=channels)
    ends = torch.tensor([0, 255], dtype=torch.uint8).expand(1, channels, 2, 2)
    found = views.plain(ends)[0, :, 0]
    torch.testing.assert_close(found, torch.tensor([low, high]).expand(channels, 2), atol=1e-5, rtol=0)


def test_the_surroundings_precision_does_not_matter() -> None:
    views = Views(ViewsConfig("byol"), size=12, channels=3)
    images = noise(4, 3, 16, 16)
    expected = torch.stack(views(images, seeded()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(torch.stack(views(images, seeded())), expected)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = torch.stack(views(images, seeded()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("policy", ["simclr", "byol", "mae"])
def test_rendering_compiles_as_one_graph(policy: PolicyName) -> None:
    eager, compiled = (Views(ViewsConfig(policy), size=12, channels=3) for _ in range(2))
    compiled.compile(fullgraph=True, backend="eager")
    images = noise(4, 3, 16, 16)
    for a, b in zip(eager(images, seeded()), compiled(images, seeded()), strict=True):
        torch.testing.assert_close(a, b)
    assert torch.equal(pickle.loads(pickle.dumps(compiled)).crop(images[0], seeded()), eager.crop(images[0], seeded()))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("policy", ["simclr", "byol", "mae"])
def test_views_on_cuda_wait_for_nothing_and_agree_with_cpu(policy: PolicyName) -> None:
    views = Views(ViewsConfig(policy), size=24, channels=3)
    images, uniforms = noise(16, 3, 32, 40), torch.rand(16 * views.count, sum(DRAWS), generator=seeded())
    on_gpu, draws, generator = images.cuda(), uniforms.cuda(), torch.Generator("cuda").manual_seed(0)
    views(on_gpu, generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        views(on_gpu, generator)
        views.plain(on_gpu)
        found = views.render(on_gpu, draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(found, views.render(images, uniforms), strict=True):
        # A box or a threshold may fall the other side of a rounding error in some image, not in many.
        assert ((a.cpu() - b).abs() > 1e-3).double().mean() < 0.01


@pytest.mark.parametrize(
    ("argument", "options", "size", "channels"),
    [("size", {}, 1, 3), ("channels", {}, 8, 4), ("grayscale", {"grayscale": 0.3}, 8, 1)],
)
def test_what_cannot_be_is_an_error(argument: str, options: dict[str, float], size: int, channels: int) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: "):
        Views(ViewsConfig("simclr", **options), size=size, channels=channels)  # type: ignore[arg-type]


def test_images_that_do_not_fit_are_errors() -> None:
    views = Views(ViewsConfig("simclr"), size=8, channels=3)
    shapes = r"uint8 \(B, 3, H, W\) or \(B, 2, 3, 8, 8\)"
    shapes_of_others = ((2, 1, 8, 8), (2, 3, 8), (2, 3, 3, 8, 8), (2, 2, 3, 9, 8))
    for images in (torch.rand(2, 3, 8, 8), *(noise(*shape) for shape in shapes_of_others)):
        with pytest.raises(ValueError, match=f"images: expected {shapes}, got "):
            views(images)
    with pytest.raises(ValueError, match=r"images: expected uint8 \(B, 3, H, W\), got uint8 \(2, 2, 3, 8, 8\)"):
        views.plain(noise(2, 2, 3, 8, 8))
    with pytest.raises(ValueError, match=r"image: expected uint8 \(3, H, W\), got float32 \(3, 8, 8\)"):
        views.crop(torch.rand(3, 8, 8))


def test_the_papers_tables() -> None:
    simclr, byol, mae = (ViewsConfig(name).resolve() for name in POLICIES)
    assert (simclr.jitter, simclr.blur, simclr.solarize) == ((0.8, 0.8, 0.8, 0.2), (0.5, 0.5), (0.0, 0.0))
    assert (byol.jitter, byol.blur, byol.solarize) == ((0.4, 0.4, 0.2, 0.1), (1.0, 0.1), (0.0, 0.2))
    for policy in (simclr, byol):
        assert (policy.flip, policy.jitter_probability, policy.grayscale) == (0.5, 0.8, 0.2)
    assert ViewsConfig("mae", jitter=0.0, grayscale=0.0, blur=False).resolve() == mae


def test_options_override_the_policy() -> None:
    policy = ViewsConfig(
        "byol", jitter=2.0, flip=0.1, min_scale=0.3, max_scale=0.9, grayscale=0.0, blur=False, interpolation="bicubic"
    ).resolve()
    assert policy.jitter == (0.8, 0.8, 0.4, 0.2)
    assert (policy.flip, policy.scale, policy.grayscale) == (0.1, (0.3, 0.9), 0.0)
    assert (policy.blur, policy.solarize, policy.interpolation) == ((0.0, 0.0), (0.0, 0.2), "bicubic")


SIZES = ((61, 47), (33, 90), (40, 40), (120, 50))


def photo(seed: int, height: int, width: int) -> Tensor:
    """An image with coarse and fine parts, uint8 (3, H, W)."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    noisy = smooth + generator.integers(-40, 41, smooth.shape)
    return torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)).permute(2, 0, 1)


def drawn(views: Views, images: list[Tensor]) -> list[list[list[int]]]:
    return [views.draw_boxes(image.shape[1], image.shape[2], seeded(seed)) for seed, image in enumerate(images)]


@pytest.mark.parametrize(
    ("config", "size", "beyond"),
    [
        (ViewsConfig("simclr", interpolation="bilinear"), 32, 0),
        (ViewsConfig("mae", interpolation="bilinear"), 32, 0),
        (ViewsConfig("simclr", interpolation="bicubic"), 32, 0.01),
        (ViewsConfig("byol", interpolation="bilinear"), 150, 0),
    ],
    ids=["two views", "one view", "bicubic", "enlarged"],
)
def test_crops_cut_at_once_are_those_of_one_image(config: ViewsConfig, size: int, beyond: float) -> None:
    views = Views(config, size=size, channels=3)
    images = [photo(seed, *SIZES[seed % len(SIZES)]) for seed in range(8)]
    made = views.crop_batch(images, drawn(views, images))
    assert made.shape == (8, views.count, 3, size, size)
    assert made.dtype == torch.uint8
    theirs = [views.crop(image, seeded(seed)) for seed, image in enumerate(images)]
    difference = (made.int() - torch.stack(theirs).int()).abs().float()
    assert (difference > 1).float().mean() <= beyond
    assert difference.max() <= (16 if beyond else 1)
    assert difference.mean() < 0.3


def test_the_number_cut_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    views = Views(ViewsConfig("simclr"), size=16, channels=3)
    images = [photo(seed, *SIZES[seed % len(SIZES)]) for seed in range(8)]
    boxes = drawn(views, images)
    whole = views.crop_batch(images, boxes)
    for pixels, parts in ((1, 8), (2 * 120 * 90, 4)):
        monkeypatch.setattr("ldreg.views.views.PADDED", pixels)
        assert len(list(_chunks(images))) == parts
        # Sums of as many zeros more may be rounded differently, and so may what lies half between two gray levels.
        assert (views.crop_batch(images, boxes).int() - whole.int()).abs().max() <= 1
