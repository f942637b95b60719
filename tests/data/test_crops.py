import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ldreg.data import RandomCrops, samples
from ldreg.views import Views, ViewsConfig

SIZES = ((61, 47), (33, 90), (40, 40), (120, 50))


def photo(seed: int, height: int, width: int) -> Tensor:
    """An image with coarse and fine parts, uint8 (3, H, W)."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    noisy = smooth + generator.integers(-40, 41, smooth.shape)
    return torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)).permute(2, 0, 1)


def drawn(random_crops: RandomCrops, images: list[Tensor]) -> list[list[list[int]]]:
    return [
        random_crops.draw(image.shape[1], image.shape[2], torch.Generator().manual_seed(seed))
        for seed, image in enumerate(images)
    ]


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
def test_cut_at_once_they_are_the_crops_of_the_views(config: ViewsConfig, size: int, beyond: float) -> None:
    views = Views(config, size=size, channels=3)
    random_crops = RandomCrops(views)
    images = [photo(seed, *SIZES[seed % len(SIZES)]) for seed in range(8)]
    made = random_crops.cut(images, drawn(random_crops, images))
    assert made.shape == (8, views.count, 3, size, size)
    assert made.dtype == torch.uint8
    theirs = [views.crop(image, torch.Generator().manual_seed(seed)) for seed, image in enumerate(images)]
    for seed, image in enumerate(images):
        assert torch.equal(random_crops(image, torch.Generator().manual_seed(seed)), theirs[seed])
    difference = (made.int() - torch.stack(theirs).int()).abs().float()
    assert (difference > 1).float().mean() <= beyond
    assert difference.max() <= (16 if beyond else 1)
    assert difference.mean() < 0.3


def test_the_number_cut_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random_crops = RandomCrops(Views(ViewsConfig("simclr"), size=16, channels=3))
    images = [photo(seed, *SIZES[seed % len(SIZES)]) for seed in range(8)]
    boxes = drawn(random_crops, images)
    whole = random_crops.cut(images, boxes)
    for pixels, parts in ((1, 8), (2 * 120 * 90, 4)):
        monkeypatch.setattr(samples, "PADDED", pixels)
        assert len(list(samples._chunks(images))) == parts
        # Sums of as many zeros more may be rounded differently, and so may what lies half between two gray levels.
        assert (random_crops.cut(images, boxes).int() - whole.int()).abs().max() <= 1


def test_boxes_lie_in_the_image_and_depend_on_the_generator() -> None:
    random_crops = RandomCrops(Views(ViewsConfig("simclr"), size=16, channels=3))
    generator = torch.Generator().manual_seed(0)
    boxes = [box for _ in range(200) for box in random_crops.draw(30, 70, generator)]
    assert all(
        top >= 0 and left >= 0 and height >= 1 and width >= 1 and top + height <= 30 and left + width <= 70
        for top, left, height, width in boxes
    )
    assert len({tuple(box) for box in boxes}) > 300


def test_worker_processes_can_be_sent_them() -> None:
    random_crops = RandomCrops(Views(ViewsConfig("simclr"), size=16, channels=3))
    sent: RandomCrops = pickle.loads(pickle.dumps(random_crops))
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert sent.draw(30, 70, generators[0]) == random_crops.draw(30, 70, generators[1])
