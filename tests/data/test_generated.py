from typing import Any, Literal

import numpy as np
import pytest
import torch

from ldreg.data import DataConfig, ResidentImages, load_images, output_size

Name = Literal["shapes", "textures"]
NAMES: tuple[Name, ...] = ("shapes", "textures")


def drawn(name: Name, split: Literal["train", "test"] = "train", **options: Any) -> ResidentImages:
    images = load_images(DataConfig(name, **options), split)
    assert isinstance(images, ResidentImages)
    return images


def checksum(images: ResidentImages) -> int:
    values = images.images.flatten().long()
    return int((values * (torch.arange(len(values)) % 65521)).sum())


@pytest.mark.parametrize("name", NAMES)
def test_sets_are_gray_balanced_and_distinct(name: Name) -> None:
    train, test = drawn(name), drawn(name, "test")
    assert (train.images.shape, test.images.shape) == ((2000, 1, 8, 8), (500, 1, 8, 8))
    assert len(train.classes) == 8
    assert train.classes == test.classes
    assert train.labels.bincount().tolist() == [250] * 8
    assert int(test.labels.bincount().max() - test.labels.bincount().min()) == 1
    assert output_size(DataConfig(name), train) == 8
    assert len(torch.cat([train.images, test.images]).flatten(1).unique(dim=0)) == 2500
    assert len(drawn(name, limit=50).labels.unique()) == 8
    with pytest.raises(ValueError, match=f"path: expected none for {name}"):
        DataConfig(name, path="x")
    with pytest.raises(ValueError, match=r"^resident: "):
        drawn(name, resident="no")


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("shapes", "train", 330193615133),
        ("shapes", "test", 41385942340),
        ("textures", "train", 418591805100),
        ("textures", "test", 53410701958),
    ],
)
def test_pixels_have_known_checksums(name: Name, split: Literal["train", "test"], expected: int) -> None:
    # known values: another drawing would make figures of different versions incomparable
    assert checksum(drawn(name, split)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_size_draws_the_same_scenes_finer(name: Name) -> None:
    small, large = drawn(name), drawn(name, size=32)
    assert large.images.shape == (2000, 1, 32, 32)
    assert torch.equal(small.labels, large.labels)
    averaged = torch.nn.functional.avg_pool2d(large.images.double(), 4)
    # but for the noise, which averages out in the large ones
    pairs = np.array([np.corrcoef(a.flatten(), b.flatten())[0, 1] for a, b in zip(small.images, averaged, strict=True)])
    assert np.median(pairs) > 0.8
    assert load_images(DataConfig(name, size=5), "test").size == 5
