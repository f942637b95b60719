"""Where JPEGs are decoded; what nvJPEG itself gives is tested where there is a GPU."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ldreg.data import DataConfig, ImageFiles, ResidentImages, decoding, device_decoder, load_images
from ldreg.data.decoding import decode, nvjpeg, read_image

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Forget what was found and said before."""
    decoding._test_nvjpeg.cache_clear()
    decoding.log_once.cache_clear()
    yield
    decoding._test_nvjpeg.cache_clear()
    decoding.log_once.cache_clear()


def pillow(contents: list[Tensor], *, device: torch.device) -> list[Tensor]:
    return [decode(content.numpy().tobytes()).pixels for content in contents]


def gray(contents: list[Tensor], *, device: torch.device) -> list[Tensor]:
    return [torch.full((3, 24, 40), 128, dtype=torch.uint8) for _ in contents]


def failing(error: Exception) -> Callable[..., Any]:
    def decoder(contents: list[Tensor], *, device: torch.device) -> list[Tensor]:
        raise error

    return decoder


def test_on_a_cpu_worker_processes_decode_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ldreg")
    assert device_decoder("auto", "cpu") is None
    assert device_decoder("cpu", CUDA) is None
    assert not caplog.records


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^decode: expected auto or cpu, as nvJPEG needs a CUDA device .*, got gpu$"):
        device_decoder("gpu", "cpu")


@pytest.mark.parametrize("asked", ["auto", "gpu"])
def test_where_nvjpeg_gives_the_colors_written_it_decodes(
    asked: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ldreg")
    monkeypatch.setattr(decoding, "nvjpeg", pillow)
    decoder = device_decoder(asked, CUDA)
    assert decoder is not None
    assert device_decoder(asked, CUDA) is not None
    assert [record.getMessage() for record in caplog.records] == ["images are decoded on the GPU by nvJPEG"]


@pytest.mark.parametrize(
    ("decoder", "reason"),
    [
        (failing(RuntimeError("not compiled with\nnvJPEG support")), "(not compiled with nvJPEG support)"),
        (failing(AttributeError("no such operator")), "(no such operator)"),
        (gray, "nvJPEG gives other colors there than were written"),
    ],
    ids=["not built", "not there", "wrong"],
)
def test_where_nvjpeg_does_not_work_the_reason_is_told(
    decoder: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ldreg")
    monkeypatch.setattr(decoding, "nvjpeg", decoder)
    assert device_decoder("auto", CUDA) is None
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("images are decoded on the CPU, as ")
    assert reason in said
    with pytest.raises(ValueError, match="decode: expected auto or cpu") as caught:
        device_decoder("gpu", CUDA)
    assert reason in str(caught.value)


def test_other_errors_of_a_decoder_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "nvjpeg", failing(TypeError("called wrongly")))
    with pytest.raises(TypeError, match="called wrongly"):
        device_decoder("auto", CUDA)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_torchvision_s_operator_fails_as_expected() -> None:
    assert device_decoder("auto", CUDA) is None


def test_a_set_of_files_knows_where_it_is_decoded(tmp_path: Path) -> None:
    for number, side in enumerate((8, 9)):
        Image.new("RGB", (side, 8)).save(tmp_path / f"{number}.jpg")
    images = load_images(DataConfig("folder", str(tmp_path), decode="gpu"), "train")
    assert isinstance(images, ImageFiles)
    assert images.decoding == "gpu"
    assert images.take(torch.tensor([1])).decoding == "gpu"


def test_a_set_in_memory_is_not_decoded_on_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="decode: expected auto or cpu for digits, which comes as one array, got gpu"):
        load_images(DataConfig(decode="gpu"), "train")
    for number in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.jpg")
    for resident in ("auto", "yes"):
        config = DataConfig("folder", str(tmp_path), cache=str(tmp_path), resident=resident, decode="gpu")
        with pytest.raises(ValueError, match="decode: expected auto or cpu where the images are held in memory"):
            load_images(config, "train")
    config = DataConfig("folder", str(tmp_path), cache=str(tmp_path), resident="no", decode="gpu")
    assert isinstance(load_images(config, "train"), ImageFiles)
    config = DataConfig("folder", str(tmp_path), cache=str(tmp_path), decode="cpu")
    assert isinstance(load_images(config, "train"), ResidentImages)


def smooth(height: int, width: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    waves = [127 + 100 * np.sin(x / 19 + phase) * np.cos(y / 23 - phase) for phase in range(3)]
    return Image.fromarray(np.stack(waves, axis=2).astype(np.uint8))


@pytest.mark.gpu
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_nvjpeg_gives_what_pillow_gives(tmp_path: Path, subsampling: str) -> None:
    decoder = device_decoder("gpu", CUDA)
    assert decoder is not None
    paths = []
    for number, (height, width) in enumerate(((350, 400), (333, 499), (37, 51))):
        paths.append(tmp_path / f"{number}.jpg")
        smooth(height, width).save(paths[-1], quality=92, subsampling=subsampling)
    contents = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in paths]
    for image, path in zip(decoder(contents), paths, strict=True):
        assert image.device == CUDA
        reference = read_image(str(path)).pixels
        assert image.shape == reference.shape
        assert (image.cpu().float() - reference.float()).abs().mean() < 2


@pytest.mark.gpu
def test_nvjpeg_fails_with_the_error_that_is_expected() -> None:
    file = io.BytesIO()
    smooth(64, 64).save(file, format="JPEG")
    cut = torch.frombuffer(bytearray(file.getvalue()[:200] + b"\xff\xd9"), dtype=torch.uint8)
    with pytest.raises(RuntimeError):
        nvjpeg([cut], device=CUDA)
    whole = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    assert nvjpeg([whole], device=CUDA)[0].shape == (3, 64, 64)
