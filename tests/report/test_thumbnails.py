"""Thumbnails: small PNGs with the pixels of the image, and nothing else gets into a record or page."""

import base64
import json
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from ldreg.record import Record
from ldreg.thumbnails import Thumbnail, data_uri, png_size, read_thumbnail

PREFIX = "data:image/png;base64,"


def decoded(uri: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(uri.removeprefix(PREFIX))))


def encoded(width: int, height: int) -> str:
    buffer = BytesIO()
    Image.new("L", (width, height)).save(buffer, format="PNG")
    return PREFIX + base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_keep_their_pixels(channels: int) -> None:
    image = torch.arange(channels * 20, dtype=torch.uint8).view(channels, 4, 5)
    picture = decoded(data_uri(image))
    assert (picture.size, picture.mode) == ((5, 4), "L" if channels == 1 else "RGB")
    pixel = picture.getpixel((2, 3))
    expected = image[:, 3, 2].tolist()
    assert (list(pixel) if isinstance(pixel, tuple) else [pixel]) == expected


def test_large_images_shrink_and_keep_their_shape() -> None:
    assert decoded(data_uri(torch.zeros(3, 300, 600, dtype=torch.uint8))).size == (64, 32)
    noise = torch.randint(0, 256, (3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert png_size(data_uri(noise)) == (64, 64)  # the largest that a thumbnail gets


@pytest.mark.parametrize("image", [torch.zeros(3, 4, 4), torch.zeros(2, 4, 4).byte(), torch.zeros(4, 4).byte()])
def test_other_tensors_are_refused(image: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="image: expected uint8"):
        data_uri(image)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "http://evil.example/x.png",
        "data:text/html;base64,PHNjcmlwdD4=",
        "data:image/svg+xml;base64,PHN2Zz4=",
        f'{encoded(4, 4)}" onerror="alert(1)',
        f"{encoded(4, 4)}\n",
        PREFIX + base64.b64encode(b"GIF89a" + bytes(40)).decode(),
        PREFIX + "A",
        encoded(65, 4),
        encoded(4, 60000),
        encoded(4, 4) + "A" * 50_000,
    ],
)
def test_nothing_but_small_pngs(uri: str) -> None:
    with pytest.raises(ValueError, match=r"image: expected|base64|padding|characters"):
        Thumbnail(uri, 0, 1.0)


def test_round_trip_in_a_record(tmp_path: Path) -> None:
    images = [Thumbnail(encoded(3, 4), 7, 1.5, "cat", "a.png"), Thumbnail(encoded(4, 4), 8, 2.5)]
    record = Record("a", {}, {}, most_collapsed=images, least_collapsed=images[:1], tsne=[(0.0, 1.0)], k=5, points=9)
    record.to_json(tmp_path / "a.json")
    assert Record.from_json(tmp_path / "a.json") == record


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "javascript:alert(1)"},
        {"index": -1},
        {"index": True},
        {"index": 1.5},
        {"lid": "1"},
        {"lid": 10**400},
        {"label": None},
        {"file": ["x"]},
        {"more": 1},
    ],
)
def test_hostile_records_are_refused(changes: dict[str, object], tmp_path: Path) -> None:
    good = {"image": encoded(4, 4), "index": 3, "lid": 1.0, "label": "", "file": ""}
    assert read_thumbnail(good).index == 3
    path = tmp_path / "run.json"
    content = {"name": "a", "settings": {}, "results": {}, "most_collapsed": [good, good | changes]}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="expected the record of a run, got most_collapsed: "):
        Record.from_json(path)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("tsne", [[1, 2], [3]], "tsne: not enough values"),
        ("tsne_labels", [1], "tsne_labels: int in place of str"),
        ("points", 1.5, "points: float in place of int"),
        ("k", "many", "k: str in place of a number"),
        ("results", {"lid": 10**400}, "results: lid: a number too large"),
        ("notes", "all", "notes: str in place of list"),
        ("points", -1, "points: -1 in place of a count"),
        ("most_collapsed", {}, "most_collapsed: dict in place of list"),
    ],
)
def test_fields_are_checked(field: str, value: object, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"name": "a", "settings": {}, "results": {}, field: value}))
    with pytest.raises(ValueError, match=reason):
        Record.from_json(path)


def test_no_record_has_thumbnails_without_end() -> None:
    with pytest.raises(ValueError, match="most_collapsed: expected at most 500 images, got 501"):
        Record("a", {}, {}, most_collapsed=[Thumbnail(encoded(1, 1), 0, 1.0)] * 501)
    with pytest.raises(ValueError, match="tsne_labels: expected 2 values, one for each point of tsne, got 1"):
        Record("a", {}, {}, tsne=[(0.0, 0.0)] * 2, tsne_labels=["a"])
