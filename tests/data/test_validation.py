"""A part of the training images in the place of the test images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ldreg.data import DataConfig, ImageFiles, ResidentImages, load_images
from ldreg.data.datasets import validation_part


def numbered(labels: list[int]) -> ResidentImages:
    """Images whose pixels are their number."""
    pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    return ResidentImages(pixels, torch.tensor(labels), ("a", "b", "c"), "numbered")


def numbers(images: object) -> list[int]:
    assert isinstance(images, ResidentImages)
    return images.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("share", [0.1, 0.25, 1 / 3, 0.9])
def test_both_parts_are_the_whole_and_share_nothing(share: float) -> None:
    images = numbered([0] * 60 + [1] * 90 + [2] * 30)
    kept, aside = (validation_part(images, split, share=share) for split in ("train", "test"))
    assert sorted(numbers(kept) + numbers(aside)) == list(range(180))
    assert len(aside) == round(180 * share)
    for label, count in enumerate((60, 90, 30)):
        assert abs(int((aside.labels == label).sum()) - count * share) <= 1


def test_the_same_ones_every_time() -> None:
    images = numbered([0] * 60 + [1] * 60)
    first, second = (numbers(validation_part(images, "test", share=0.2)) for _ in range(2))
    assert first == second
    assert first != list(range(0, 120, 5))  # but no regular ones


def test_images_without_a_label_are_trained_on() -> None:
    images = numbered([0] * 20 + [-1] * 100 + [1] * 20)
    aside = validation_part(images, "test", share=0.5)
    assert aside.labels.bincount().tolist() == [10, 10]
    assert int((validation_part(images, "train", share=0.5).labels < 0).sum()) == 100


def test_where_no_image_has_a_label_any_may_be_set_aside() -> None:
    assert len(validation_part(numbered([-1] * 40), "test", share=0.25)) == 10


def test_the_test_images_are_not_among_them() -> None:
    config = DataConfig(validation=0.2)
    train, aside = load_images(config, "train"), load_images(config, "test")
    whole = load_images(DataConfig(), "train")
    assert isinstance(train, ResidentImages)
    assert isinstance(aside, ResidentImages)
    assert isinstance(whole, ResidentImages)
    assert (len(train), len(aside)) == (1150, 287)
    together = torch.cat((train.images, aside.images)).flatten(1).unique(dim=0)
    assert together.equal(whole.images.flatten(1).unique(dim=0))


def test_of_files_without_a_test_folder(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.full((9, 12 + number, 3), number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "train" / name / f"{number}.png")
    config = DataConfig(name="folder", path=str(tmp_path), validation=0.3, workers=0)
    train, aside = load_images(config, "train"), load_images(config, "test")
    assert isinstance(train, ImageFiles)
    assert isinstance(aside, ImageFiles)
    assert aside.labels.bincount().tolist() == [3, 3]
    paths = {images.path(row) for images in (train, aside) for row in range(len(images))}
    assert len(paths) == 20


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_wrong_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"validation: expected a share in \[0, 1\)"):
        DataConfig(validation=share)


def test_a_share_of_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"leaves images to train on and to test, got 0\.1 of 5"):
        validation_part(numbered([0] * 5), "test", share=0.1)
