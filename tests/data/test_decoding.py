"""Image files to pixels; nvJPEG itself is tested only with a GPU."""

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.data.pictures import pixels, save
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image

from ldreg.data import DataConfig, ImageFiles, ResidentImages, decoding, device_decoder, load_images
from ldreg.data.decoding import UnreadableImageError, decode, image_size, nvjpeg, plain_jpeg_size, read_image


def decoded(image: Image.Image, path: Path, **options: Any) -> NDArray[np.uint8]:
    """What decoding gives of an image saved at the path, (H, W, 3)."""
    image.save(path, **options)
    result = read_image(str(path)).pixels
    assert result.dtype == torch.uint8
    lines = result.permute(1, 2, 0)
    assert lines.is_contiguous()  # which is what resizing is fastest on
    return np.asarray(lines.numpy())


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".ppm"])
def test_lossless_files_come_back_exactly(tmp_path: Path, suffix: str) -> None:
    path, gray = tmp_path / f"a{suffix}", pixels(0)[:, :, 0]
    assert (decoded(Image.fromarray(pixels(0, 5, 7)), path) == pixels(0, 5, 7)).all()
    assert (decoded(Image.fromarray(gray), path) == gray[:, :, None]).all()
    assert (decoded(Image.fromarray(gray > 127), path) == 255 * (gray > 127)[:, :, None]).all()


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_sixteen_bits_keep_their_high_byte(tmp_path: Path, suffix: str) -> None:
    gray = np.random.default_rng(0).integers(0, 65536, (6, 5), dtype=np.uint16)
    gray[0, :2] = 0, 65535
    assert (decoded(Image.fromarray(gray), tmp_path / f"a{suffix}") == (gray // 256)[:, :, None]).all()


def palette() -> tuple[NDArray[np.uint8], NDArray[np.uint8], Image.Image]:
    """Four colors (4, 3), which of them each pixel has (6, 5), and the image."""
    colors = pixels(1, 1, 4).reshape(4, 3)
    chosen = np.random.default_rng(2).integers(0, 4, (6, 5), dtype=np.uint8)
    chosen[0, :4] = range(4)
    image = Image.frombytes("P", (5, 6), chosen.tobytes())
    image.putpalette(colors.flatten().tolist())
    return colors, chosen, image


def onto_white(colors: NDArray[Any], alpha: NDArray[Any]) -> NDArray[np.float64]:
    """Colors (..., C) from 0 to 255 over white by their alpha (...) from 0 to 255, in float64."""
    share = alpha.astype(np.float64)[..., None] / 255
    return colors.astype(np.float64) * share + 255 * (1 - share)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, *, depth: int, color: int, row: bytes, key: bytes) -> bytes:
    """A PNG of one row in which the pixels of one gray or color are transparent."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, 1, depth, color, 0, 0, 0)) + chunk(b"tRNS", key)
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")


def transparent_files(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Files with transparent pixels, and what viewers show of them on white."""
    rgb, alpha = pixels(0), np.random.default_rng(3).integers(0, 256, (8, 8), dtype=np.uint8)
    alpha[0, :3] = 0, 255, 128
    rgba = Image.fromarray(np.dstack([rgb, alpha]))
    expected = {}
    kinds: dict[str, dict[str, Any]] = {"a.png": {}, "a.tif": {}, "a.webp": {"lossless": True, "exact": True}}
    for name, options in kinds.items():
        rgba.save(folder / name, **options)
        expected[name] = onto_white(rgb, alpha)
    gray_alpha = Image.fromarray(np.dstack([rgb[:, :, 0], alpha]))
    for name in ("la.png", "la.tif"):
        gray_alpha.save(folder / name)
        expected[name] = onto_white(np.repeat(rgb[:, :, :1], 3, axis=2), alpha)
    colors, chosen, image = palette()
    table = np.array([0, 128, 255, 10])
    image.save(folder / "palette.png", transparency=table.astype(np.uint8).tobytes())
    expected["palette.png"] = onto_white(colors, table)[chosen]
    for name in ("palette.gif", "one.png"):
        image.save(folder / name, transparency=2)
        expected[name] = onto_white(colors, np.array([255, 255, 0, 255]))[chosen]
    for depth, content, values, key in (
        (2, bytes([0b00011011]), [0, 85, 170, 255], 2),
        (4, bytes([0x05, 0xAF]), [0, 85, 170, 255], 10),
        (8, bytes(range(4)), [0, 1, 2, 3], 2),
    ):
        name = f"gray{depth}.png"
        (folder / name).write_bytes(png(4, depth=depth, color=0, row=content, key=struct.pack(">H", key)))
        shown = np.repeat(np.array(values)[None, :, None], 3, axis=2)
        expected[name] = onto_white(shown, np.array([[255, 255, 0, 255]]))
    deep = struct.pack(">HHH", 0x1234, 0x8000, 0x12FF)
    (folder / "gray16.png").write_bytes(png(3, depth=16, color=0, row=deep, key=deep[:2]))
    expected["gray16.png"] = np.repeat(np.array([255.0, 0x80, 0x12])[None, :, None], 3, axis=2)
    (folder / "color16.png").write_bytes(png(2, depth=16, color=2, row=deep + deep[::-1], key=deep))
    expected["color16.png"] = np.array([[[255.0, 255, 255], [0xFF, 0, 0x34]]])
    return expected


def test_transparent_pixels_are_composited_onto_white(tmp_path: Path) -> None:
    expected = transparent_files(tmp_path)
    for name, shown in expected.items():
        found = decode((tmp_path / name).read_bytes())
        assert found.transparent, name
        lines = found.pixels.permute(1, 2, 0)
        assert lines.is_contiguous(), name
        assert np.abs(lines.numpy() - shown).max() <= 0.5 + 1e-9, name  # rounded to the nearest


def test_opaque_images_are_unchanged_and_not_counted(tmp_path: Path) -> None:
    rgb, opaque = pixels(0), np.full((8, 8), 255, dtype=np.uint8)
    Image.fromarray(np.dstack([rgb, opaque])).save(tmp_path / "rgba.png")
    Image.fromarray(np.dstack([rgb[:, :, 0], opaque])).save(tmp_path / "la.png")
    colors, chosen, image = palette()
    image.save(tmp_path / "palette.png", transparency=bytes([255] * 4))
    image.save(tmp_path / "unused.gif", transparency=7)
    image.save(tmp_path / "opaque.png")
    expected = {"rgba.png": rgb, "la.png": np.repeat(rgb[:, :, :1], 3, axis=2)}
    expected |= dict.fromkeys(("palette.png", "unused.gif", "opaque.png"), colors[chosen])
    for name, shown in expected.items():
        found = decode((tmp_path / name).read_bytes())
        assert not found.transparent, name
        assert (found.pixels.permute(1, 2, 0).numpy() == shown).all(), name


def smooth(height: int = 16, width: int = 24) -> NDArray[np.uint8]:
    """Colors that JPEG keeps nearly as they are, other ones in every channel."""
    y, x = np.mgrid[:height, :width]
    return np.stack([4 * x + 20, 9 * y + 60, 200 - 3 * x], axis=2).astype(np.uint8)


# Torchvision 0.29 announces that its decoders will go; as an independent reference they serve as long as they stay.
@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")
def test_jpeg_is_what_torchvision_decodes(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    ours = decoded(Image.fromarray(smooth()), path, quality=95)
    theirs = decode_image(str(path), mode=ImageReadMode.RGB).permute(1, 2, 0).numpy()
    assert np.abs(ours.astype(int) - theirs).max() <= 1
    assert np.abs(ours.astype(int) - smooth()).max() <= 12


def test_gray_and_cmyk_jpegs_become_rgb(tmp_path: Path) -> None:
    gray = decoded(Image.fromarray(smooth()[:, :, 0]), tmp_path / "a.jpg", quality=95)
    assert np.abs(gray.astype(int) - smooth()[:, :, :1]).max() <= 6
    # by its content, whatever its name
    cmyk = decoded(Image.fromarray(smooth()).convert("CMYK"), tmp_path / "b.png", format="JPEG", quality=95)
    assert np.abs(cmyk.astype(int) - smooth()).max() <= 12


def test_the_orientation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    assert decoded(Image.fromarray(smooth()), tmp_path / "a.jpg", exif=exif).shape == (16, 24, 3)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif"])
def test_a_truncated_image_is_unreadable(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"cut{suffix}", 0, 64, 64)
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(UnreadableImageError):
        read_image(str(path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "the file is empty"), (b"hello" * 20, "not an image of a known format"), (b"\xff\xd8\xff\xe0junk", "")],
)
def test_other_content_is_unreadable_with_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(UnreadableImageError, match=f"^{reason}" if reason else ".+") as caught:
        read_image(str(path))
    assert "0x" not in str(caught.value)
    with pytest.raises(UnreadableImageError):
        image_size(str(path))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_more_than_sixteen_bits_are_unreadable(tmp_path: Path, dtype: Any) -> None:
    Image.fromarray(np.full((4, 4), 1_000_000, dtype=dtype)).save(tmp_path / "a.tif")
    with pytest.raises(UnreadableImageError, match="16 bits"):
        read_image(str(tmp_path / "a.tif"))


@pytest.mark.parametrize("limit", [40, 20])  # Pillow warns past its limit, and refuses past twice its limit
def test_decompression_bombs_are_unreadable_without_a_warning(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(pixels(0)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for read in (read_image, image_size):
            with pytest.raises(UnreadableImageError, match=r"Image size \(64 pixels\) exceeds limit"):
                read(str(path))
    assert said == []
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64)
    assert read_image(str(path)).pixels.shape == (3, 8, 8)


def written(mode: str = "RGB", kind: str = "JPEG", **options: Any) -> bytes:
    """An image of 30 x 20 (width x height) pixels as a file."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, format=kind, **options)
    return file.getvalue()


def segments(content: bytes) -> list[bytes]:
    """The segments before the scan's data, markers included, and then the rest."""
    found, place = [], 2
    while content[place + 1] != 0xDA:
        length = 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        found.append(content[place : place + length])
        place += length
    return [*found, content[place:]]


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (2 + len(content)).to_bytes(2, "big") + content


def joined(parts: list[bytes]) -> bytes:
    return b"\xff\xd8" + b"".join(parts)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quality": 95, "subsampling": 0},
        {"subsampling": "4:2:2"},
        {"comment": b"said \xff\xd9"},
        {"optimize": True},
    ],
)
def test_usual_jpegs_are_known_with_their_size(options: dict[str, Any]) -> None:
    assert plain_jpeg_size(written(**options)) == (20, 30)
    assert plain_jpeg_size(written(**options) + bytes(40)) == (20, 30)
    assert plain_jpeg_size(written(**options) + bytes(100)) is None


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"hello" * 20),
        *(written(kind="PNG"), written("L"), written("CMYK"), written(progressive=True), written(keep_rgb=True)),
    ],
)
def test_other_images_are_not_plain(content: bytes) -> None:
    assert plain_jpeg_size(content) is None


@pytest.mark.parametrize(("transform", "size"), [(0, None), (1, (20, 30)), (2, None)])
def test_adobe_marker_gives_the_color_space(transform: int, size: tuple[int, int] | None) -> None:
    marker = segment(0xEE, b"Adobe" + bytes(6) + bytes([transform]))
    assert plain_jpeg_size(joined([marker, *segments(written())])) == size


@pytest.mark.parametrize("marker", [0xDB, 0xC4])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"quality": 95}])
def test_a_jpeg_without_a_whole_table_is_not_plain(marker: int, options: dict[str, Any]) -> None:
    parts = segments(written(**options))
    places = [place for place, part in enumerate(parts[:-1]) if part[1] == marker]
    assert places
    for place in places:
        assert plain_jpeg_size(joined(parts[:place] + parts[place + 1 :])) is None
        for left in (0, 1, 5, 17, 20, 64):
            if left < len(parts[place]) - 4:
                cut = segment(marker, parts[place][4 : 4 + left])
                assert plain_jpeg_size(joined([*parts[:place], cut, *parts[place + 1 :]])) is None


def test_odd_frames_are_not_plain() -> None:
    parts = segments(written())
    [place] = [place for place, part in enumerate(parts) if part[1] == 0xC0]
    frame = parts[place]
    large = frame[:5] + b"\xff\xdc\xff\xdc" + frame[9:]
    for first in (large, frame):
        assert plain_jpeg_size(joined([first, *parts])) is None
    for sampling in (b"\x00", b"\x55", b"\x44", b"\x13"):
        odd = frame[:11] + sampling + frame[12:]
        assert plain_jpeg_size(joined([*parts[:place], odd, *parts[place + 1 :]])) is None


@pytest.mark.parametrize(
    "scan",
    [
        b"",
        b"\0",
        b"\0\0\x3f\0",
        b"\x01\x01\0\0\x3f\0",
        b"\x03\x01\0\x02\x11\x4d\x11\0\x3f\0",
        b"\x03\x01\0\x02\x11\x02\x11\0\x3f\0",
        b"\x03\x01\0\x02\x11\x03\x11\0\x3e\0",
    ],
)
def test_an_odd_scan_is_not_plain(scan: bytes) -> None:
    *parts, rest = segments(written())
    data = rest[14:]
    usual = segment(0xDA, b"\x03\x01\0\x02\x11\x03\x11\0\x3f\0")
    assert rest.startswith(usual)
    assert plain_jpeg_size(joined([*parts, usual, data])) == (20, 30)
    assert plain_jpeg_size(joined([*parts, segment(0xDA, scan), data])) is None


def test_a_jpeg_cut_anywhere_is_not_plain_and_with_any_byte_changed_no_error() -> None:
    content = written()
    assert all(plain_jpeg_size(content[:end]) is None for end in range(len(content) - 1))
    for place in range(len(content)):
        for value in (0, 0xFF, 0xDA):
            plain_jpeg_size(content[:place] + bytes([value]) + content[place + 1 :])


def test_a_decompression_bomb_is_not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, size in ((599, None), (600, (20, 30)), (None, (20, 30))):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert plain_jpeg_size(written()) == size


CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    """Forget what was found and said before."""
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


def test_on_a_cpu_worker_processes_decode_without_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ldreg")
    assert device_decoder("auto", "cpu") is None
    assert device_decoder("cpu", CUDA) is None
    assert not caplog.records
    with pytest.raises(ValueError, match=r"^decode: .* CUDA .*, got gpu$"):
        device_decoder("gpu", "cpu")


@pytest.mark.parametrize("asked", ["auto", "gpu"])
def test_working_nvjpeg_is_used(asked: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
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
        (gray, "other colors"),
    ],
    ids=["not built", "not there", "wrong"],
)
def test_reason_of_unusable_nvjpeg_is_given(
    decoder: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ldreg")
    monkeypatch.setattr(decoding, "nvjpeg", decoder)
    assert device_decoder("auto", CUDA) is None
    [said] = caplog.messages
    assert said.startswith("images are decoded on the CPU")
    assert reason in said
    with pytest.raises(ValueError, match=r"^decode: ") as caught:
        device_decoder("gpu", CUDA)
    assert reason in str(caught.value)


def test_other_errors_of_a_decoder_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "nvjpeg", failing(TypeError("called wrongly")))
    with pytest.raises(TypeError, match="called wrongly"):
        device_decoder("auto", CUDA)


def test_a_set_in_memory_is_not_decoded_on_a_gpu(tmp_path: Path) -> None:
    save(tmp_path / "0.jpg", 0)
    config = DataConfig("folder", str(tmp_path), cache=str(tmp_path), decode="gpu")
    for held in (DataConfig(decode="gpu"), config, replace(config, resident="yes")):
        with pytest.raises(ValueError, match=r"^decode: "):
            load_images(held, "train")
    files = load_images(replace(config, resident="no"), "train")
    assert isinstance(files, ImageFiles)
    assert files.decoding == files.take(torch.tensor([0])).decoding == "gpu"
    assert isinstance(load_images(replace(config, decode="cpu"), "train"), ResidentImages)


def waves(height: int, width: int) -> Image.Image:
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
        waves(height, width).save(paths[-1], quality=92, subsampling=subsampling)
    contents = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in paths]
    for image, path in zip(decoder(contents), paths, strict=True):
        assert image.device == CUDA
        reference = read_image(str(path)).pixels
        assert image.shape == reference.shape
        assert (image.cpu().float() - reference.float()).abs().mean() < 2


@pytest.mark.gpu
def test_nvjpeg_fails_with_the_error_that_is_expected() -> None:
    file = io.BytesIO()
    waves(64, 64).save(file, format="JPEG")
    cut = torch.frombuffer(bytearray(file.getvalue()[:200] + b"\xff\xd9"), dtype=torch.uint8)
    with pytest.raises(RuntimeError):
        nvjpeg([cut], device=CUDA)
    whole = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    assert nvjpeg([whole], device=CUDA)[0].shape == (3, 64, 64)
