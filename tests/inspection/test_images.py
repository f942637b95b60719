"""Images of points: where their paths come from, what the page holds of them, and what is refused."""

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ldreg.cli import main
from ldreg.inspection.images import find_images
from ldreg.thumbnails import SHEET, TILE, sheets, tiles

POINTS = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of one color each, but for the fourth, in img/; embeddings with and without their paths."""
    (tmp_path / "img").mkdir()
    x = np.random.default_rng(0).normal(size=(POINTS, 4)).astype("float32")
    names = [f"img/{row:02}.png" for row in range(POINTS)]
    for row, name in enumerate(names):
        if row != 3:
            Image.new("RGB", (20, 20), (8 * row, 0, 100)).save(tmp_path / name)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, paths=np.array(names), words=np.array([f"w{row}" for row in range(POINTS)]))
    with (tmp_path / "x.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["a", "b", "c", "d", "title", "file"])
        rows.writerows([*values, f"the {name}", name] for values, name in zip(x.tolist(), names, strict=True))
    (tmp_path / "paths.txt").write_text("\n".join(names))
    return tmp_path


def run(*words: str | Path) -> int:
    return main(["inspect", *map(str, words), "--k", "5"])


def held(page: Path) -> dict[int, list[int]]:
    """The color of the image of each row that has one, from the data in a page."""
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    kinds = {"Int32Array": "<i4", "Uint16Array": "<u2"}
    rows, places = (
        np.frombuffer(base64.b64decode(packed[1]), kinds[packed[0]])
        for packed in (data["columns"]["row"], data["images"]["places"])
    )
    pictures = [Image.open(io.BytesIO(base64.b64decode(sheet))) for sheet in data["images"]["sheets"]]
    middle = TILE // 2
    return {
        int(row): list(
            pictures[place // SHEET**2].getpixel(
                (int(place % SHEET * TILE + middle), int(place % SHEET**2 // SHEET * TILE + middle))
            )
        )
        for row, place in zip(rows, places, strict=True)
        if place >= 0
    }


@pytest.mark.usefixtures("quick_danco")
@pytest.mark.parametrize(
    "words",
    [
        ["x.csv"],
        ["x.csv", "--image-key", "file"],
        ["x.npz", "--key", "x"],
        ["x.npz", "--key", "x", "--image-key", "paths"],
        ["x.npy", "--images", "paths.txt"],
        ["x.npy", "--images", "x.csv", "--image-key", "file"],
        ["x.csv", "--images", "."],
    ],
)
def test_each_row_has_its_image(
    folder: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert run(*words, "--html", "page.html") == 0
    said = capsys.readouterr().err
    assert "1 of 30 are missing" in said
    assert "left out 'file'" not in said
    colors = held(folder / "page.html")
    assert sorted(colors) == [row for row in range(POINTS) if row != 3]
    for row, color in colors.items():
        assert color == pytest.approx([8 * row, 0, 100], abs=4)


@pytest.mark.usefixtures("quick_danco")
def test_paths_start_beside_their_file(folder: Path) -> None:
    page = folder / "page.html"
    assert run(folder / "x.csv", "--html", page) == 0
    assert len(held(page)) == POINTS - 1


def test_a_folder_gives_its_images_in_order(folder: Path) -> None:
    Image.new("L", (4, 4)).save(folder / "img" / "03.png")
    (folder / "img" / "notes.txt").write_text("no image")
    found = find_images(str(folder / "x.npy"), POINTS, images=str(folder / "img"))
    assert found is not None
    assert found.paths == [folder / f"img/{row:02}.png" for row in range(POINTS)]


def test_words_that_are_no_paths_of_images_are_none(folder: Path) -> None:
    assert find_images(str(folder / "x.npy"), POINTS) is None
    assert find_images(str(folder / "x.csv"), POINTS, exclude=["file"]) is None
    for path in (folder / "img").iterdir():
        path.unlink()
    assert find_images(str(folder / "x.csv"), POINTS) is None  # none is there


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["x.npy", "--images", "img", "--html", "p.html"], ["--images", "30", "29"]),
        (["x.npy", "--images", "none.txt", "--html", "p.html"], ["none.txt"]),
        (["x.npy", "--images", "short.txt", "--html", "p.html"], ["short.txt", "30", "image paths", "2"]),
        (["x.npy", "--images", "wrong.txt", "--html", "p.html"], ["--images", "nowhere.png"]),
        (["x.csv", "--image-key", "files", "--html", "p.html"], ["'files'"]),
        (["x.npz", "--key", "x", "--image-key", "files", "--html", "p.html"], ["'files'"]),
        (["x.csv", "--images", "img"], ["--images", "--html"]),
        (["x.csv", "--image-key", "file"], ["--image-key", "--html"]),
        (["x.csv", "--map", "tsne"], ["--map", "--html"]),
        (["x.csv", "--map", "mds", "--html", "p.html"], ["--map", "mds"]),
    ],
)
def test_what_does_not_fit_is_refused(
    folder: Path,
    words: list[str],
    named: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    (folder / "short.txt").write_text("img/00.png\nimg/01.png")
    (folder / "wrong.txt").write_text("\n".join(["nowhere.png"] * POINTS))
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in named), said
    assert len(said.strip().splitlines()) == 1
    assert not (folder / "p.html").exists()


def test_images_of_any_kind_become_tiles(tmp_path: Path) -> None:
    gray = np.full((6, 6), 200, dtype=np.uint8)
    made = {
        "gray.png": Image.fromarray(gray),
        "wide.jpg": Image.new("RGB", (900, 100), (200, 200, 200)),
        "clear.png": Image.new("RGBA", (50, 50), (0, 0, 0, 0)),
        "deep.png": Image.fromarray(gray.astype(np.uint16) * 256),
        "ink.tif": Image.new("CMYK", (50, 50), (0, 0, 0, 55)),
        "palette.gif": Image.fromarray(gray).convert("P"),
    }
    for name, image in made.items():
        image.save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes((tmp_path / "gray.png").read_bytes()[:40])
    (tmp_path / "page.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    found = tiles([tmp_path / name for name in made])
    middles = [None if one is None else one.getpixel((TILE // 2, TILE // 2)) for one in found]
    expected = [200, 200, 255, 200, 200, 200]
    assert middles == [pytest.approx((value,) * 3, abs=2) for value in expected]
    assert [one.size for one in found if one is not None] == [(TILE, TILE)] * 6
    wide = found[1]
    assert wide is not None
    assert wide.getpixel((0, 0)) == (128, 128, 128)  # whole, with gray above and below
    assert tiles([tmp_path / "broken.png", tmp_path / "page.svg", tmp_path / "none.png", tmp_path, None]) == [None] * 5
    with pytest.raises(ValueError, match="uint8"):
        tiles([torch.zeros(3, 8, 8)])


def test_tiles_do_not_run_into_each_other() -> None:
    colors = np.random.default_rng(0).integers(0, 256, size=(SHEET * SHEET + 3, 3))
    made = sheets([Image.new("RGB", (TILE, TILE), tuple(color.tolist())) for color in colors])
    pictures = [np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet)))).astype(int) for sheet in made]
    assert [picture.shape for picture in pictures] == [(SHEET * TILE, SHEET * TILE, 3), (TILE, SHEET * TILE, 3)]
    for place, color in enumerate(colors):
        sheet, spot = pictures[place // SHEET**2], place % SHEET**2
        part = sheet[spot // SHEET * TILE :, spot % SHEET * TILE :][:TILE, :TILE]
        assert abs(part - color).max() <= 4


@pytest.mark.parametrize("how", ["column", "names"])
def test_images_of_a_folder_follow_the_paths_that_the_points_have(how: str, tmp_path: Path) -> None:
    """Also where the paths begin above the folder, and where the order of names is not that of the rows."""
    (tmp_path / "img").mkdir()
    names = [f"{row}.png" for row in range(12)]
    for name in names:
        Image.new("RGB", (4, 4)).save(tmp_path / "img" / name)
    file = tmp_path / "x.npz"
    columns: dict[str, Any] = {"paths": np.array([f"img/{name}" for name in names])} if how == "column" else {}
    np.savez(file, x=np.zeros((12, 2)), **columns)
    found = find_images(str(file), 12, images=str(tmp_path / "img"), names=names if how == "names" else None)
    assert found is not None
    assert [path and path.name for path in found.paths] == names
    np.savez(file, x=np.zeros((12, 2)))
    with pytest.raises(ValueError, match=r"^--images: expected numbers of equal length"):
        find_images(str(file), 12, images=str(tmp_path / "img"))


def test_paths_that_cannot_be_are_missing(folder: Path) -> None:
    names = ["img/00.png", *["x" * 300 + ".png"] * (POINTS - 1)]
    (folder / "odd.csv").write_text("path\n" + "\n".join(names))
    found = find_images(str(folder / "x.npy"), POINTS, images=str(folder / "odd.csv"))
    assert found is not None
    assert [path is None for path in found.paths] == [False, *[True] * (POINTS - 1)]


@pytest.mark.parametrize("images", ["img", "paths.txt"])
def test_no_output_replaces_an_image(
    images: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    Image.new("RGB", (4, 4)).save(folder / "img/03.png")
    before = (folder / "img/05.png").read_bytes()
    assert run("x.npy", "--images", images, "--html", "p.html", "--json", "img/05.png") == 2
    assert "05.png" in capsys.readouterr().err
    assert (folder / "img/05.png").read_bytes() == before


def test_noise_fits_into_tiles() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (SHEET * SHEET, TILE, TILE, 3), dtype=np.uint8)
    [sheet] = sheets([Image.fromarray(one) for one in noise])
    assert Image.open(io.BytesIO(base64.b64decode(sheet))).size == (SHEET * TILE, SHEET * TILE)
