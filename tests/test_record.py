"""Records in files: every kind and version is read, what is written is read back, and anything else is refused."""

import base64
import json
import math
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.report.conftest import _run as make

from ldreg.record import SCHEMA, Finding, Record, Thumbnail, brief
from ldreg.thumbnails import data_uri, png_size

RESULTS = Path(__file__).parents[1] / "results"
EVALUATION = {
    "kind": "knn",
    "results": {"knn": 0.9, "k": 20, "classes": 10},
    "source": {"name": "first", "key": "abc"},
    "data": {"name": "digits", "path": None, "limit": None},
    "options": {"k": 20, "temperature": 0.1},
    "seed": None,
    "minutes": 0.5,
    "environment": {"command": "ldreg evaluate knn first", "ldreg": "0.2", "cores": 2, "processor": "x86", "gpu": None},
}
CARD = {
    "ldreg": "0.2",
    "encoder": {"name": "small_cnn"},
    "method": "simclr",
    "epochs": 3,
    "seed": 0,
    "minutes": 0.25,
    "stopped": None,
    "metrics": {"set/lid": 7.5, "set/knn": 0.9, "batch/loss": 3.0, "set/linear": None},
    "findings": [{"of": "images", "kind": "hubs", "severity": "note", "share": 1.0, "numbers": {}, "text": "x"}],
}
BARE: dict[str, Any] = {"name": "a", "settings": {}, "results": {}}
FOUND: dict[str, Any] = {"of": "images", "kind": "hubs", "severity": "note", "share": 1, "numbers": {}, "text": "x"}
PREFIX = "data:image/png;base64,"


def encoded(width: int, height: int) -> str:
    buffer = BytesIO()
    Image.new("L", (width, height)).save(buffer, format="PNG")
    return PREFIX + base64.b64encode(buffer.getvalue()).decode()


THUMBNAIL: dict[str, Any] = {"image": encoded(4, 4), "index": 3, "lid": 1.0, "label": "", "file": ""}


def read(tmp_path: Path, content: Any) -> Record:
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (tmp_path / "a.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return Record.from_json(tmp_path / "a.json")


def test_every_record_of_the_results_is_read() -> None:
    paths = [path for path in RESULTS.rglob("*.json") if not path.name.startswith("step-")]  # speeds, by `ldreg bench`
    assert len(paths) > 150
    for path in paths:
        content = json.loads(path.read_text())
        record = Record.from_json(path)
        assert record.name == content["name"]
        expected = {key: float("nan") if value is None else value for key, value in content["results"].items()}
        assert record.results == pytest.approx(expected, nan_ok=True)
        assert record.curves.keys() == content.get("curves", {}).keys()
        assert len(record.lid) == len(content.get("lid", []))


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    findings = [Finding("hubs", "note", 0.5, {"points": 3.0}, of="images", text="Some images are hubs.")]
    images = [Thumbnail(encoded(3, 4), 7, 1.5, "cat", "a.png"), Thumbnail(encoded(4, 4), 8, 2.5)]
    record = make(results={"lid": 7.25, "linear": 0.5}, lid=[1.5] * 40, map=[(0.5, -1.25)] * 40, eigenvalues=[1.0, 0.1])
    record = replace(record, findings=findings, classes={"a": 2.5}, most_collapsed=images, least_collapsed=images[:1])
    record = replace(record, tsne=[(0.0, 1.0)], tsne_labels=["a"], k=5, points=90)
    for name in ("a.json", "again.json"):
        record.to_json(tmp_path / name)
        assert Record.from_json(tmp_path / name) == record
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "a.json").read_bytes()
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == SCHEMA
    assert read(tmp_path, BARE) == Record("a", {}, {})


def test_json_has_null_for_what_it_cannot_hold(tmp_path: Path) -> None:
    make(results={"lid": math.nan}, lid=[math.inf, 1.0], map=[], labels=None).to_json(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert (content["results"], content["lid"]) == ({"lid": None}, [None, 1.0])
    record = Record.from_json(tmp_path / "run.json")
    assert math.isnan(record.results["lid"])
    assert record.lid == [math.inf, 1.0]


@pytest.mark.parametrize("content", [{**BARE, "new": 1}, EVALUATION, CARD])
def test_a_newer_file_is_named_as_that(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"a\.json: expected schema {SCHEMA} or earlier, got 9, .* newer ldreg"):
        read(tmp_path, content | {"schema": 9})


def test_an_evaluation_and_the_card_of_a_run_are_records(tmp_path: Path) -> None:
    record = read(tmp_path, EVALUATION)
    assert (record.name, record.results, record.voters) == ("first", {"knn/k = 20": 0.9}, 20)
    assert record.settings["data.name"] == "digits"
    assert record.origin == {
        "command": "ldreg evaluate knn first", "version": "0.2", "hardware": "x86, 2 cores", "minutes": 0.5,
        "weights": "abc", "data": "digits",
    }  # fmt: skip
    record = read(tmp_path, CARD)
    expected = {"lid": 7.5, "knn": 0.9, "linear": float("nan"), "minutes": 0.25}
    assert record.results == pytest.approx(expected, nan_ok=True)
    assert (record.settings["method"], record.origin["epochs"]) == ("simclr", 3)
    assert [found.kind for found in record.findings] == ["hubs"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[1]", "list in place of dict"),
        (b"\x80\x02weights", "a file that is not text"),
        ("{", "Expecting property name"),
        ('{"name": "a", "settings": {}, "results": {}, "origin": {"speed": NaN}}', "NaN in place of a number"),
        ('{"name": "a", "settings": {}, "results": {}, "origin": {"speed": 1e999}}', "origin: speed: a number too"),
        ({"name": "a", "settings": {}}, "no key 'results'"),
        *(
            ({**BARE, key: value}, reason)
            for key, value, reason in [
                ("colour", 1, "the unknown key 'colour'"),
                ("name", 1, "name: int in place of str"),
                ("schema", "x", "schema: str in place of a number"),
                ("results", [1], "results: list in place of dict"),
                ("results", {"lid": "7"}, "results: lid: str in place of a number"),
                ("results", {"lid": 10**400}, "results: lid: a number too large"),
                ("results", {"knn": 95}, "results: expected knn as a share from 0 to 1"),
                ("settings", {"b": {}}, "settings: b: dict in place of a plain value"),
                ("origin", {"hardware": {}}, "origin: hardware: dict in place of a plain value"),
                ("origin", {"held_out": -1}, "origin: held_out: -1 in place of a count"),
                ("origin", {"held_out": 1.5}, "origin: held_out: float in place of int"),
                ("origin", {"tested/digits": "x"}, "origin: tested/digits: str in place of a number"),
                ("origin", {"minutes": True}, "origin: minutes: bool in place of a number"),
                ("curves", {"lid": [[None, 1]]}, "curves: lid: null in place of a number"),
                ("curves", {"lid": [[1e300, 1]]}, "curves: lid: a number too large"),
                ("map", [[1, 2, 3]], "map: 3 values in place of 2"),
                ("map", [[1e31, 0]], "map: a number too large, expected at most 1e+30"),
                ("tsne", [[1, 2], [3]], "tsne: 1 values in place of 2"),
                ("tsne_labels", [1], "tsne_labels: int in place of str"),
                ("lid", [1e-320], "lid: a number too small"),
                ("k", -2, "k: -2 in place of a count"),
                ("classes", {"a": "x"}, "classes: a: str in place of a number"),
                ("notes", "all", "notes: str in place of list"),
                ("findings", [{"of": "images"}], "findings: no key 'kind'"),
                ("findings", [{**FOUND, "severity": "bad"}], "findings: severity: 'bad' in place of one of critical"),
                ("findings", [{**FOUND, "share": []}], "findings: share: list in place of a number"),
            ]
        ),
        *(
            ({**BARE, "most_collapsed": [{**THUMBNAIL, **odd}]}, "most_collapsed: ")
            for odd in (
                {"image": "javascript:alert(1)"}, {"index": -1}, {"index": True}, {"index": 1.5}, {"lid": "1"},
                {"lid": 10**400}, {"label": None}, {"file": ["x"]}, {"more": 1},
            )
        ),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, content: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        read(tmp_path, content)
    assert str(error.value).startswith(f"{tmp_path / 'a.json'}: expected the record of a run, got ")


def test_records_are_checked() -> None:
    for name in ("linear", "box_ap", "box_ap/detection-b", "linear/imagenet protocol", "transfer/shapes"):
        with pytest.raises(ValueError, match=f"results: expected {name} as a share from 0 to 1, got 35"):
            make(results={name: 35.0})
    make(results={"lid/test images, k = 20": 35.0})
    with pytest.raises(ValueError, match="labels: expected 40 values, one for each point of map, got 3"):
        make(labels=["a"] * 3)
    with pytest.raises(ValueError, match="tsne_labels: expected 2 values, one for each point of tsne, got 1"):
        Record("a", {}, {}, tsne=[(0.0, 0.0)] * 2, tsne_labels=["a"])
    with pytest.raises(ValueError, match="most_collapsed: expected at most 500 images, got 501"):
        Record("a", {}, {}, most_collapsed=[Thumbnail(encoded(1, 1), 0, 1.0)] * 501)


def test_many_findings_of_a_kind_are_counted() -> None:
    several = [Finding("hubs", "note", 0.1, {}, of="images", text=str(place)) for place in range(5)]
    shown = brief([*several, Finding("degenerate", "critical", 1.0, {}, of="images", text="first")])
    assert [found.text for found in shown[:4]] == ["first", "0", "1", "2"]
    assert shown[4].share == pytest.approx(0.2)


# Thumbnails


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_keep_their_pixels_and_large_ones_their_shape(channels: int) -> None:
    image = torch.arange(channels * 20, dtype=torch.uint8).view(channels, 4, 5)
    picture = Image.open(BytesIO(base64.b64decode(data_uri(image).removeprefix(PREFIX))))
    assert (picture.size, picture.mode) == ((5, 4), "L" if channels == 1 else "RGB")
    pixel = picture.getpixel((2, 3))
    assert (list(pixel) if isinstance(pixel, tuple) else [pixel]) == image[:, 3, 2].tolist()
    assert png_size(data_uri(torch.zeros(channels, 300, 600, dtype=torch.uint8))) == (64, 32)
    noise = torch.randint(0, 256, (channels, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
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
