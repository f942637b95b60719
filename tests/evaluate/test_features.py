"""Representations: those of the encoder, computed once, and again if anything they depend on changed or is damaged."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.data.pictures import save_transparent
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms.v2 import functional as tvf

from ldreg.data import DataConfig, ImageFiles, ResidentImages, load_images
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.extract import representations, undisturbed
from ldreg.evaluate.features import content_key, features, images_key

DIGITS = DataConfig()
Write = Callable[..., Path]


def test_representations_are_the_encoders_and_in_the_sets_order(untrained: LoadedEncoder, tmp_path: Path) -> None:
    images = load_images(DIGITS, "test")
    assert isinstance(images, ResidentImages)
    found = features(untrained, DIGITS, "test", device="cpu", cache=tmp_path)
    by_hand = (images.images.float() / 255 - 0.449) / 0.226  # the means over ImageNet's three channels
    with torch.no_grad():
        torch.testing.assert_close(found.representations, untrained.module(by_hand))
    assert torch.equal(found.labels, images.labels)
    assert found.indices.tolist() == list(range(360))
    assert found.classes == images.classes
    assert not found.representations.requires_grad


def test_the_second_time_the_encoder_is_not_called(
    pixels: LoadedEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LDREG_CACHE", str(tmp_path / "environment"))
    for folder, data in (("environment", DIGITS), ("data", replace(DIGITS, cache=str(tmp_path / "data")))):
        first = features(pixels, data, "test", device="cpu")
        taken = pixels.module.calls
        second = features(pixels, data, "test", device="cpu")
        assert pixels.module.calls == taken
        assert (first.reused, second.reused) == (False, True)
        assert second.classes == first.classes
        for name in ("representations", "labels", "indices"):
            assert torch.equal(getattr(first, name), getattr(second, name))
        assert (tmp_path / folder / "representations" / f"{first.key}.safetensors").is_file()


def test_anything_that_matters_changes_the_key(pixels: LoadedEncoder) -> None:
    images = load_images(DIGITS, "test")
    assert isinstance(images, ResidentImages)

    def key(encoder: LoadedEncoder = pixels, of: ResidentImages = images, **changed: Any) -> str:
        options = {"split": "test", "device": "cpu", "precision": "fp32", **changed}
        return content_key(encoder, of, **options)

    pixel, label = images.images.clone(), images.labels.clone()
    pixel[7, 0, 0, 0] ^= 1
    label[3] = (label[3] + 1) % 10
    others = [
        *(key(replace(pixels, **change)) for change in ({"key": "another"}, {"size": 16}, {"normalization": "half"})),
        *(key(split="train"), key(device="cuda"), key(precision="bf16")),
        key(of=ResidentImages(pixel, images.labels, images.classes, "digits")),
        key(of=ResidentImages(images.images, label, images.classes, "digits")),
        key(of=ResidentImages(images.images, images.labels, "abcdefghij", "digits")),
        *(key(of=images.take(rows)) for rows in (torch.arange(50), torch.arange(len(images)).flip(0))),
    ]
    assert len({key(), *others}) == 12
    assert key() == key(of=images.take(torch.arange(len(images))))


def test_an_edited_or_added_file_changes_the_key(write_images: Write) -> None:
    root = write_images(train={"cat": 2, "dog": 2})
    data = DataConfig("folder", str(root), resident="no")
    before = images_key(load_images(data, "train"))
    assert images_key(load_images(data, "train")) == before
    target = root / "train" / "cat" / "0.png"
    state = target.stat()
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    touched = images_key(load_images(data, "train"))
    (root / "train" / "dog" / "9.png").write_bytes(target.read_bytes())
    assert len({before, touched, images_key(load_images(data, "train"))}) == 3


Damage = Callable[[dict[str, torch.Tensor], dict[str, str]], object]


def cut(rows: int) -> Damage:
    return lambda tensors, _: tensors.update({name: part[:rows].contiguous() for name, part in tensors.items()})


# Files that safetensors can read, but not with the representations of these images.
DAMAGES: dict[str, Damage] = {
    "other key": lambda _, metadata: metadata.update(key="another"),
    "other classes": lambda _, metadata: metadata.update(classes='["0", "1"]'),
    "fewer labels": lambda tensors, _: tensors.update(labels=tensors["labels"][:-1].contiguous()),
    "other type": lambda tensors, _: tensors.update(representations=tensors["representations"].half()),
    "other label": lambda tensors, _: tensors["labels"][5].add_(50),
    "fewer rows": cut(100),
    "no rows": cut(0),
    "index too high": lambda tensors, _: tensors["indices"][-1].add_(9),
    "index below 0": lambda tensors, _: tensors["indices"][0].sub_(3),
    "index twice": lambda tensors, _: tensors["indices"][4].add_(1),
    "NaN": lambda tensors, _: tensors["representations"][3].fill_(float("nan")),
}


@pytest.mark.parametrize("damage", ["cut", "noise", *DAMAGES])
def test_a_damaged_file_is_replaced_with_a_warning(
    damage: str, pixels: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = features(pixels, DIGITS, "test", device="cpu", cache=tmp_path)
    path = tmp_path / "representations" / f"{first.key}.safetensors"
    if damage in DAMAGES:
        tensors = {name: part.clone() for name, part in load_file(path).items()}
        metadata = {"key": first.key, "classes": json.dumps(first.classes), "transparent": "0"}
        DAMAGES[damage](tensors, metadata)
        save_file(tensors, path, metadata=metadata)
    else:
        path.write_bytes(path.read_bytes()[:-100] if damage == "cut" else b"\xff" * 1000)
    again = features(pixels, DIGITS, "test", device="cpu", cache=tmp_path)
    assert not again.reused
    assert torch.equal(again.representations, first.representations)
    assert [message for message in caplog.messages if "made again" in message] == caplog.messages
    assert len(caplog.messages) == 1
    assert features(pixels, DIGITS, "test", device="cpu", cache=tmp_path).reused
    assert list(path.parent.iterdir()) == [path]


def test_many_at_once_leave_one_whole_file(pixels: LoadedEncoder, tmp_path: Path) -> None:
    expected = features(pixels, DIGITS, "test", device="cpu", cache=tmp_path / "alone").representations
    with ThreadPool(8) as pool:
        found = pool.map(lambda _: features(pixels, DIGITS, "test", device="cpu", cache=tmp_path / "shared"), range(8))
    assert all(torch.equal(one.representations, expected) for one in found)
    assert len(list((tmp_path / "shared" / "representations").iterdir())) == 1
    assert features(pixels, DIGITS, "test", device="cpu", cache=tmp_path / "shared").reused


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    pixels: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    found = features(pixels, DIGITS, "test", device="cpu", cache=tmp_path / "file")
    assert len(found.labels) == 360
    assert "cannot be kept" in caplog.text


def test_channels_and_sizes_become_the_encoders(pixels: LoadedEncoder, tmp_path: Path, write_images: Write) -> None:
    gray, color, large = (
        features(encoder, DIGITS, "test", device="cpu", cache=tmp_path).representations
        for encoder in (pixels, replace(pixels, channels=3, key="color"), replace(pixels, size=16))
    )
    assert torch.equal(color, gray.repeat(1, 3))
    digits = load_images(DIGITS, "test")
    assert isinstance(digits, ResidentImages)
    whole = tvf.resize(digits.images, [16, 16], antialias=True).float() / 255
    torch.testing.assert_close(large, whole.flatten(1))
    data = DataConfig("folder", str(write_images(train={"cat": 3}, side=(8, 8))), cache=str(tmp_path / "cache"))
    images = load_images(data, "train")
    assert isinstance(images, ResidentImages)
    found = features(pixels, data, "train", device="cpu").representations * 255
    luminance = (images.images * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1).flatten(1)
    torch.testing.assert_close(found, luminance, atol=1.01, rtol=0)


def test_files_of_other_sizes_are_resized_and_cropped_in_the_middle(
    pixels: LoadedEncoder, tmp_path: Path, write_images: Write
) -> None:
    root = write_images(train={"cat": 2}, side=(200, 260))
    data = DataConfig("folder", str(root), workers=0, cache=str(tmp_path / "cache"))
    images = load_images(data, "train")
    assert isinstance(images, ImageFiles)
    found = features(replace(pixels, channels=3, size=160), data, "train", device="cpu").representations
    shorter = tvf.resize(images.read(1).pixels, [183], antialias=True)  # 160 / 0.875
    torch.testing.assert_close(found[1], tvf.center_crop(shorter, [160, 160]).float().flatten() / 255)


def test_unreadable_files_are_left_out_and_transparent_ones_counted_also_where_representations_are_reused(
    pixels: LoadedEncoder, tmp_path: Path, write_images: Write, caplog: pytest.LogCaptureFixture
) -> None:
    root = write_images(train={"cat": 4, "dog": 4})
    (root / "train" / "cat" / "2.png").write_bytes(b"no image")
    for index in (0, 2, 3):
        save_transparent(root / "train" / "dog" / f"{index}.png", index)
    data = DataConfig("folder", str(root), workers=0, max_unreadable=0.5, cache=str(tmp_path / "cache"))
    for reused in (False, True):
        caplog.clear()
        found = features(replace(pixels, channels=3), data, "train", device="cpu")
        assert found.reused == reused
        assert found.indices.tolist() == [0, 1, 3, 4, 5, 6, 7]
        assert found.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
        assert any(line.startswith("3 of 7 images") for line in caplog.messages)


def test_representations_that_are_not_finite_are_refused_and_not_cached(pixels: LoadedEncoder, tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1).index_fill(0, torch.tensor([1]), float("nan"))

    with pytest.raises(ValueError, match=r"^encoder: expected finite .* for 1 of 360 images"):
        features(replace(pixels, module=Broken()), DIGITS, "test", device="cpu", cache=tmp_path)
    assert not (tmp_path / "representations").exists()
    with pytest.raises(ValueError, match="device: expected auto, cpu or cuda, got 'tpu'"):
        features(pixels, DIGITS, "test", device="tpu")


# extraction


def noise(count: int = 10) -> Tensor:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def small_encoder() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten())


def test_rows_are_the_encoders_output_in_eval_mode_and_in_order() -> None:
    model, x, y = small_encoder(), noise(), torch.arange(10)
    model[1].running_mean = torch.tensor([1.0, 2.0, 3.0])
    found, labels = representations(model, zip(x.split(4), y.split(4), strict=True), device="cpu")
    by_hand = torch.stack([model[0](image) for image in x]) - torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    by_hand = by_hand / (1 + 1e-5) ** 0.5  # the running variance is 1
    torch.testing.assert_close(found, by_hand.flatten(1))
    assert torch.equal(labels, y)
    assert not found.requires_grad


def test_modes_buffers_and_generators_stay_as_they_were() -> None:
    model = small_encoder()
    model[1].eval()  # a frozen part, which must not be set to train afterwards
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    loader = DataLoader(TensorDataset(noise(), torch.arange(10)), batch_size=5)
    iter(loader)
    assert not torch.equal(torch.get_rng_state(), state)  # what extraction has to guard against
    torch.set_rng_state(state)
    representations(model, loader, device="cpu")
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in model.modules()] == [True, True, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError), undisturbed(model, torch.device("cpu")):
        raise RuntimeError
    assert [part.training for part in model.modules()] == [True, True, False, True, True]


def test_a_lower_precision_is_computed_in_and_float32_returned() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8))
    batches = [(noise(), torch.zeros(10, dtype=torch.int64))]
    exact, _ = representations(model, batches, device="cpu")
    coarse, _ = representations(model, batches, device="cpu", autocast=torch.bfloat16, store="cpu")
    assert coarse.dtype == torch.float32
    assert torch.equal(coarse, coarse.bfloat16().float())
    torch.testing.assert_close(coarse, exact, rtol=0.05, atol=0.05)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="batches: expected at least one"):
        representations(small_encoder(), [], device="cpu")
    with pytest.raises(ValueError, match=r"encoder: expected output of shape \(10, D\), got \(10, 1, 4, 4\)"):
        representations(nn.Identity(), [(noise(), torch.arange(10))], device="cpu")
