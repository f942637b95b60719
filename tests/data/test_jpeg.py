import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ldreg.data.decoding import plain_jpeg_size


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


def test_what_stands_before_the_frame_does_not_matter() -> None:
    exif = Image.Exif()
    exif[0x010E] = "described at length " * 100
    assert plain_jpeg_size(written(exif=exif)) == (20, 30)


def test_a_few_bytes_after_the_end_do_not_matter_and_many_do() -> None:
    assert plain_jpeg_size(written() + bytes(40)) == (20, 30)
    assert plain_jpeg_size(written() + bytes(100)) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xd8",
        b"\xff\xd8\xff\xd9",
        b"hello" * 20,
        written(kind="PNG"),
        written("L"),
        written("CMYK"),
        written(progressive=True),
        written(keep_rgb=True),
    ],
    ids=["empty", "start", "start and end", "text", "png", "gray", "cmyk", "progressive", "rgb"],
)
def test_what_the_cpu_has_to_read_is_not_plain(content: bytes) -> None:
    assert plain_jpeg_size(content) is None


@pytest.mark.parametrize(("transform", "size"), [(0, None), (1, (20, 30)), (2, None)])
def test_adobe_s_marker_tells_the_colors(transform: int, size: tuple[int, int] | None) -> None:
    content = written()
    marker = b"\xff\xee" + (14).to_bytes(2, "big") + b"Adobe" + bytes(6) + bytes([transform])
    assert plain_jpeg_size(content[:2] + marker + content[2:]) == size


@pytest.mark.parametrize("marker", [0xDB, 0xC4])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"quality": 95}])
def test_a_jpeg_that_lacks_a_table_is_not_plain(marker: int, options: dict[str, Any]) -> None:
    parts = segments(written(**options))
    places = [place for place, part in enumerate(parts) if part[1] == marker]
    assert places
    for place in places:
        assert plain_jpeg_size(joined(parts[:place] + parts[place + 1 :])) is None


@pytest.mark.parametrize("marker", [0xDB, 0xC4])
@pytest.mark.parametrize("left", [0, 1, 5, 17, 20, 64])
def test_a_table_that_ends_early_is_none(marker: int, left: int) -> None:
    parts = segments(written())
    assert plain_jpeg_size(joined(parts)) == (20, 30)
    for place, part in enumerate(parts[:-1]):
        if part[1] == marker and left < len(part) - 4:
            cut = segment(marker, part[4 : 4 + left])
            assert plain_jpeg_size(joined([*parts[:place], cut, *parts[place + 1 :]])) is None


def test_a_second_frame_is_not_plain() -> None:
    parts = segments(written())
    [frame] = [part for part in parts if part[1] == 0xC0]
    large = frame[:5] + b"\xff\xdc\xff\xdc" + frame[9:]
    assert plain_jpeg_size(joined([large, *parts])) is None
    assert plain_jpeg_size(joined([frame, *parts])) is None


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
    ids=["empty", "no end", "nothing", "one", "unknown", "twice", "in part"],
)
def test_an_odd_scan_is_not_plain(scan: bytes) -> None:
    *parts, rest = segments(written())
    data = rest[14:]
    usual = segment(0xDA, b"\x03\x01\0\x02\x11\x03\x11\0\x3f\0")
    assert rest.startswith(usual)
    assert plain_jpeg_size(joined([*parts, usual, data])) == (20, 30)
    assert plain_jpeg_size(joined([*parts, segment(0xDA, scan), data])) is None


@pytest.mark.parametrize("sampling", [0x00, 0x55, 0x44, 0x13])
def test_an_odd_sampling_is_not_plain(sampling: int) -> None:
    parts = segments(written())
    [place] = [place for place, part in enumerate(parts) if part[1] == 0xC0]
    frame = bytearray(parts[place])
    frame[11] = sampling
    assert plain_jpeg_size(joined([*parts[:place], bytes(frame), *parts[place + 1 :]])) is None


def test_a_jpeg_cut_anywhere_is_not_plain() -> None:
    content = written()
    assert all(plain_jpeg_size(content[:end]) is None for end in range(len(content) - 1))


def test_a_jpeg_with_any_byte_changed_is_no_error() -> None:
    content = written()
    for place in range(len(content)):
        for value in (0, 0xFF, 0xDA):
            plain_jpeg_size(content[:place] + bytes([value]) + content[place + 1 :])


def test_a_decompression_bomb_is_not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 599)
    assert plain_jpeg_size(written()) is None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    assert plain_jpeg_size(written()) == (20, 30)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert plain_jpeg_size(written()) == (20, 30)
