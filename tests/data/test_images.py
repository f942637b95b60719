import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tests.data.pictures import pixels
from torchvision.io import ImageReadMode, decode_image

from ldreg.data import ImageFiles, ResidentImages
from ldreg.data.decoding import UnreadableImageError, image_size, read_image, to_rgb
from ldreg.data.decoding import decode as pixels_of
from ldreg.data.images import Failure, Tally


def decoded(image: Image.Image, path: Path, **options: Any) -> NDArray[np.uint8]:
    """What decoding gives of an image saved at the path, (H, W, 3)."""
    image.save(path, **options)
    result = read_image(str(path)).pixels
    assert result.dtype == torch.uint8
    lines = result.permute(1, 2, 0)
    assert lines.is_contiguous()  # which is what resizing is fastest on
    return np.asarray(lines.numpy())


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".ppm"])
def test_lossless_colors_come_back_exactly(tmp_path: Path, suffix: str) -> None:
    assert (decoded(Image.fromarray(pixels(0, 5, 7)), tmp_path / f"a{suffix}") == pixels(0, 5, 7)).all()


@pytest.mark.parametrize("suffix", [".png", ".pgm", ".tif"])
def test_gray_becomes_three_equal_channels(tmp_path: Path, suffix: str) -> None:
    gray = pixels(0)[:, :, 0]
    assert (decoded(Image.fromarray(gray), tmp_path / f"a{suffix}") == gray[:, :, None]).all()


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_sixteen_bits_keep_their_high_byte(tmp_path: Path, suffix: str) -> None:
    gray = np.random.default_rng(0).integers(0, 65536, (6, 5), dtype=np.uint16)
    gray[0, :2] = 0, 65535
    assert (decoded(Image.fromarray(gray), tmp_path / f"a{suffix}") == (gray // 256)[:, :, None]).all()


def test_palettes_are_looked_up(tmp_path: Path) -> None:
    colors, chosen, image = palette()
    assert (decoded(image, tmp_path / "a.png") == colors[chosen]).all()


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
    row = {
        "gray2.png": (2, bytes([0b00011011])),
        "gray4.png": (4, bytes([0x05, 0xAF])),
        "gray8.png": (8, bytes(range(4))),
    }
    values = {"gray2.png": [0, 85, 170, 255], "gray4.png": [0, 85, 170, 255], "gray8.png": [0, 1, 2, 3]}
    keys = {"gray2.png": 2, "gray4.png": 10, "gray8.png": 2}
    for name, (depth, content) in row.items():
        (folder / name).write_bytes(png(4, depth=depth, color=0, row=content, key=struct.pack(">H", keys[name])))
        shown = np.repeat(np.array(values[name])[None, :, None], 3, axis=2)
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
        found = pixels_of((tmp_path / name).read_bytes())
        assert found.transparent, name
        lines = found.pixels.permute(1, 2, 0)
        assert lines.is_contiguous(), name
        assert np.abs(lines.numpy() - shown).max() <= 0.5 + 1e-9, name  # rounded to the nearest


def test_opaque_images_are_as_they_are_and_not_counted(tmp_path: Path) -> None:
    rgb, opaque = pixels(0), np.full((8, 8), 255, dtype=np.uint8)
    Image.fromarray(np.dstack([rgb, opaque])).save(tmp_path / "rgba.png")
    Image.fromarray(np.dstack([rgb[:, :, 0], opaque])).save(tmp_path / "la.png")
    colors, chosen, image = palette()
    image.save(tmp_path / "palette.png", transparency=bytes([255] * 4))
    image.save(tmp_path / "unused.gif", transparency=7)
    expected = {"rgba.png": rgb, "la.png": np.repeat(rgb[:, :, :1], 3, axis=2)}
    expected |= {"palette.png": colors[chosen], "unused.gif": colors[chosen]}
    for name, shown in expected.items():
        found = pixels_of((tmp_path / name).read_bytes())
        assert not found.transparent, name
        assert (found.pixels.permute(1, 2, 0).numpy() == shown).all(), name


@pytest.mark.parametrize("mode", ["PA", "RGBa"])
def test_further_modes_of_pillow_are_composited(mode: str) -> None:
    """By Pillow's own way from each of them to RGBA."""
    alpha = np.full((8, 8), 255, dtype=np.uint8)
    alpha[:4] = 64
    rgba = Image.fromarray(np.dstack([pixels(0), alpha]))
    image = rgba.convert(mode)
    whole = np.asarray(image.convert("RGBA"))
    found = to_rgb(image)
    assert found.transparent
    assert (
        np.abs(found.pixels.permute(1, 2, 0).numpy() - onto_white(whole[:, :, :3], whole[:, :, 3])).max() <= 0.5 + 1e-9
    )


def test_the_log_counts_transparent_images_of_a_pass_once(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(100, max_share=0.01)
    tally.finish_pass(20, transparent=0)
    for read, transparent in ((20, 3), (20, 3), (100, 12), (90, 10)):
        tally.finish_pass(read, transparent=transparent)
    assert [record.getMessage().split(" have ")[0] for record in caplog.records] == [
        "3 of 20 images",
        "12 of 100 images",
    ]
    assert tally.transparent == 10


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    bits = pixels(0)[:, :, 0] > 127
    assert (decoded(Image.fromarray(bits), tmp_path / "a.png") == 255 * bits[:, :, None]).all()


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
    cmyk = decoded(Image.fromarray(smooth()).convert("CMYK"), tmp_path / "b.jpg", quality=95)
    assert np.abs(cmyk.astype(int) - smooth()).max() <= 12


def test_the_orientation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    assert decoded(Image.fromarray(smooth()), tmp_path / "a.jpg", exif=exif).shape == (16, 24, 3)


def test_a_jpeg_under_another_name_is_read_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(smooth()).save(path, format="JPEG")
    assert read_image(str(path)).pixels.shape == (3, 16, 24)


def encoded(tmp_path: Path, suffix: str) -> bytes:
    path = tmp_path / f"whole{suffix}"
    Image.fromarray(pixels(0, 64, 64)).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif"])
def test_a_truncated_image_is_unreadable(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(encoded(tmp_path, suffix)[:1500])
    with pytest.raises(UnreadableImageError):
        read_image(str(path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "the file is empty"), (b"hello" * 20, "not an image of a known format"), (b"\xff\xd8\xff\xe0junk", "")],
)
def test_what_is_no_image_is_unreadable_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(UnreadableImageError, match=f"^{reason}" if reason else ".+") as caught:
        read_image(str(path))
    assert "0x" not in str(caught.value)
    with pytest.raises(UnreadableImageError):
        image_size(str(path))


def test_more_than_sixteen_bits_are_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray(np.full((4, 4), 1e6, dtype=np.float32)).save(path)
    with pytest.raises(UnreadableImageError, match="at most 16 bits a channel, got pixels of mode F"):
        read_image(str(path))
    Image.fromarray(np.full((4, 4), 1_000_000, dtype=np.int32)).save(path)
    with pytest.raises(UnreadableImageError, match="at most 16 bits a channel, got pixels of mode I"):
        read_image(str(path))


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImageError, match="No such file"):
        read_image(str(tmp_path / "gone.png"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read anything")
def test_a_forbidden_file_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(pixels(0)).save(path)
    path.chmod(0)
    with pytest.raises(UnreadableImageError, match="Permission denied"):
        read_image(str(path))


def test_files_know_their_paths_whatever_bytes_are_in_them(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xc3\xa9 \xff.png")
    files = ImageFiles([odd, tmp_path / "b.png"], torch.tensor([0, -1]), ["one"], "odd")
    assert files.path(0) == odd
    assert files.path(1) == str(tmp_path / "b.png")
    assert (len(files), files.channels, files.labeled) == (2, 3, False)


def test_taking_images_keeps_everything_else() -> None:
    images = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 1, 2, 2)
    resident = ResidentImages(images, torch.tensor([0, 1, -1]), ["a", "b"], "tiny", unreadable=["x: y"])
    taken = resident.take(torch.tensor([2, 0]))
    assert taken.images[:, 0, 0, 0].tolist() == [2, 0]
    assert taken.labels.tolist() == [-1, 0]
    assert (taken.classes, taken.name, taken.unreadable) == (("a", "b"), "tiny", ("x: y",))
    assert not resident.labeled
    assert resident.take(torch.tensor([0, 1])).labeled
    files = ImageFiles(["a", "b", "c"], torch.tensor([0, 1, -1]), ["a", "b"], "tiny", size=9, max_unreadable=0.5)
    chosen = files.take(torch.tensor([2, 0]))
    assert [chosen.path(0), chosen.path(1)] == ["c", "a"]
    assert (chosen.size, chosen.labels.tolist()) == (9, [-1, 0])


def test_the_labeled_ones_can_be_taken() -> None:
    labels = torch.tensor([1, -1, 0, -1])
    resident = ResidentImages(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels, ["a", "b"], "tiny")
    for images in (resident, ImageFiles(["a", "b", "c", "d"], labels, ["a", "b"], "tiny")):
        assert images.labeled_indices.tolist() == [0, 2]
        assert images.labeled_indices.dtype == torch.int64
        chosen = images.take(images.labeled_indices)
        assert (chosen.labels.tolist(), chosen.labeled) == ([1, 0], True)
    nothing = ImageFiles(["a"], torch.tensor([-1]), [], "tiny")
    assert nothing.labeled_indices.shape == (0,)


def test_some_of_the_files_count_in_the_tally_of_all(caplog: pytest.LogCaptureFixture) -> None:
    files = ImageFiles([f"{number}.png" for number in range(10)], torch.full((10,), -1), [], "tiny", max_unreadable=0.1)
    some = files.take(torch.tensor([7, 3]))
    some.tally.add([Failure(0, some.path(0), "cut")])
    files.tally.add([Failure(7, files.path(7), "cut")])
    assert [record.getMessage() for record in caplog.records] == ["unreadable image: 7.png: cut"]
    with pytest.raises(ValueError, match="got 2 of 10"):
        some.tally.add([Failure(1, some.path(1), "cut")])


def test_odd_names_stay_on_one_line_that_any_log_takes(caplog: pytest.LogCaptureFixture) -> None:
    names = [b"new\nline\r.png", b"\xff.png", b"\x1b[2J.png", "caf\u00e9 'x'.png".encode()]
    tally = Tally(1000, max_share=0.01)
    tally.add(Failure(index, os.fsdecode(name), "cut") for index, name in enumerate(names))
    expected = [r"'new\nline\r.png': cut", r"'\udcff.png': cut", r"'\x1b[2J.png': cut", "caf\u00e9 'x'.png: cut"]
    assert tally.listed == expected
    assert [record.getMessage() for record in caplog.records] == [f"unreadable image: {line}" for line in expected]
    assert all(line.encode() for line in tally.listed)


@pytest.mark.parametrize("limit", [40, 20])  # Pillow warns past its limit, and refuses past twice its limit
def test_decompression_bombs_are_unreadable_without_a_word_of_pillow_s(
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


def test_sets_refuse_what_is_not_images_and_labels() -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"images: expected uint8 \(N, C, S, S\), got torch.float32 \(2, 1, 4, 4\)"):
        ResidentImages(torch.zeros(2, 1, 4, 4), labels, ["a"], "tiny")
    with pytest.raises(ValueError, match=r"images: .* got torch.uint8 \(2, 1, 4, 5\)"):
        ResidentImages(torch.zeros(2, 1, 4, 5, dtype=torch.uint8), labels, ["a"], "tiny")
    with pytest.raises(ValueError, match=r"labels: expected int64 \(1,\), got torch.int64 \(2,\)"):
        ImageFiles(["a"], labels, ["a"], "tiny")
    with pytest.raises(ValueError, match="labels: expected -1 to 0, got 0 to 1"):
        ImageFiles(["a", "b"], torch.tensor([0, 1]), ["a"], "tiny")


def test_the_tally_counts_an_image_once_and_names_the_first_of_too_many(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(100, max_share=0.02)
    for _ in range(3):
        tally.add([Failure(4, "d.png", "cut"), Failure(9, "i.png", "empty")])
    assert tally.listed == ["d.png: cut", "i.png: empty"]
    assert [record.getMessage() for record in caplog.records] == [
        "unreadable image: d.png: cut",
        "unreadable image: i.png: empty",
    ]
    expected = "at most 2.00% unreadable images, got 3 of 100 (3.00%) so far, among them d.png: cut; i.png: empty; k"
    with pytest.raises(ValueError, match="max_unreadable: expected") as caught:
        tally.add([Failure(10, "k.png", "cut")])
    assert expected in str(caught.value)
