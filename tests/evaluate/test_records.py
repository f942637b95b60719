"""A run's record: measured on all images, with the run's log and what `ldreg evaluate` left in its folder."""

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from ldreg.cli import main
from ldreg.data import DataConfig, ImageFiles, load_images
from ldreg.evaluate import records
from ldreg.evaluate.features import Features, features
from ldreg.evaluate.records import evaluated, evaluation_rows, record
from ldreg.evaluate.source import Source, open_source
from ldreg.inspection.measure import inspect
from ldreg.options import split as split_words
from ldreg.record import PRECISIONS, Record
from ldreg.train.recipes import load_recipe
from ldreg.train.run import pretrain
from ldreg.train.settings import resolve

OPTIONS = (
    "--schedule.epochs 1 --schedule.warmup_epochs 0 --batch_size 16 --monitor.k 8 --ldreg.k 8 --trainer.threads 1 "
    "--trainer.device cpu --data.name folder --data.resident no --data.workers 0 --data.size 12"
)
KINDS = ("bright", "dark", "noisy")


def paint(folder: Path) -> None:
    """Three kinds of pictures, 16 of each to train with and 4 to test."""
    generator = numpy.random.default_rng(0)
    for split, count in (("train", 16), ("test", 4)):
        for place, kind in enumerate(KINDS):
            (folder / split / kind).mkdir(parents=True)
            for number in range(count):
                low, high = ((200, 256), (0, 40), (0, 256))[place]
                pixels = generator.integers(low, high, (12, 10 + number % 3, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(folder / split / kind / f"{kind}{number}.png")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record")
    paint(folder / "images")
    options, _ = split_words(f"{OPTIONS} --data.path {folder / 'images'} --data.cache {folder / 'cache'}".split())
    settings = resolve(load_recipe("digits/simclr_ldreg"), options)
    pretrain(settings, folder / "run", command="ldreg pretrain --test")
    return folder / "run"


@pytest.fixture(scope="module")
def source(run: Path) -> Source:
    return open_source(run)


@pytest.fixture(scope="module")
def made(source: Source) -> Record:
    return record(source, thumbnails=6)


def test_dimensions_are_those_of_all_training_images(made: Record, source: Source) -> None:
    assert source.data is not None
    found = features(source.encoder, source.data, "train")
    report = inspect(found.representations, k=8)
    assert (made.points, made.k, len(made.lid), len(made.map)) == (48, 8, 48, 48)
    assert made.lid == pytest.approx(report.lid.tolist())
    assert made.results["lid"] == pytest.approx(report.mean.value)
    assert made.results["effective_rank"] == pytest.approx(report.effective_rank)
    assert made.results["lid_low"] == pytest.approx(sorted(made.lid)[2])  # 5 % of 47 steps
    of = {
        kind: [lid for lid, label in zip(made.lid, made.labels or (), strict=True) if label == kind] for kind in KINDS
    }
    assert made.classes == pytest.approx({kind: statistics.geometric_mean(values) for kind, values in of.items()})
    assert made.labels == ["bright"] * 16 + ["dark"] * 16 + ["noisy"] * 16
    assert 0 <= made.results["knn"] <= 1
    assert made.results["linear"] > 0.6


def test_thumbnails_are_the_images_of_lowest_and_highest_lid(made: Record, source: Source) -> None:
    assert source.data is not None
    images = load_images(source.data, "train")
    assert isinstance(images, ImageFiles)
    order = sorted(range(48), key=lambda place: made.lid[place])
    assert [image.index for image in made.most_collapsed] == order[:6]
    assert [image.index for image in made.least_collapsed] == order[::-1][:2]
    for image in (*made.most_collapsed, *made.least_collapsed):
        assert image.lid == pytest.approx(made.lid[image.index])
        assert image.file == Path(images.path(image.index)).name
        assert image.file.startswith(image.label)


def test_of_many_points_an_even_choice_is_listed(source: Source, made: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LISTED_POINTS", 5)
    part = record(source, name="part", thumbnails=0)
    assert (part.name, part.points, part.most_collapsed, part.least_collapsed) == ("part", 48, [], [])
    assert part.results["lid"] == made.results["lid"]
    assert part.lid == [made.lid[place] for place in (0, 12, 24, 35, 47)]
    assert part.labels == ["bright", "bright", "dark", "noisy", "noisy"]
    assert len(part.map) == 5
    monkeypatch.undo()
    sampled = record(source, points=20, thumbnails=3)  # neighbors come from all
    assert (sampled.points, len(sampled.lid)) == (20, 20)
    for image in sampled.most_collapsed:
        assert image.lid == pytest.approx(made.lid[image.index], rel=1e-4)


def test_without_the_images_a_note_gives_the_reason(run: Path, made: Record, tmp_path: Path) -> None:
    gone = record(open_source(run, data=[("data.path", str(tmp_path / "gone"))]))
    assert (gone.curves, gone.settings, set(gone.results)) == (made.curves, made.settings, {"minutes"})
    (note,) = gone.notes
    assert "data.path: " in note
    assert "gone" in note
    assert (len(gone.lid), len(gone.map), len(gone.most_collapsed)) == (0, 0, 0)
    shutil.copytree(run.parent / "images" / "train", tmp_path / "images" / "train")
    alone = record(open_source(run, data=[("data.path", str(tmp_path / "images"))]))  # without a test split
    assert {"linear", "knn"} & alone.results.keys() == set()
    assert alone.results["lid"] > 0


def test_findings_are_those_measured_and_those_of_the_run(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    card = json.loads((run / "card.json").read_text())

    def recorded(*given: tuple[str, str], data: list[tuple[str, str | None]]) -> list[tuple[str, str]]:
        common = {"kind": "hubs", "share": 1.0, "numbers": {}, "text": "x"}
        findings = [{"of": of, "severity": severity, **common} for of, severity in given]
        (tmp_path / "run" / "card.json").write_text(json.dumps({**card, "findings": findings}))
        made = record(open_source(tmp_path / "run", data=data), thumbnails=0)
        return [(found.of, found.severity) for found in made.findings]

    entries = [("images", "warning"), ("images", "note"), ("representations", "critical")]
    found = recorded(*entries, data=[])
    assert found.count(("images", "warning")) == 1
    assert ("images", "note") not in found
    assert ("representations", "critical") not in found  # was measured anew
    gone: list[tuple[str, str | None]] = [("data.path", str(tmp_path / "gone"))]
    assert recorded(*entries, data=gone) == [("representations", "critical"), ("images", "warning")]
    del card["findings"]
    (tmp_path / "run" / "card.json").write_text(json.dumps(card))  # of a run of an earlier version
    assert record(open_source(tmp_path / "run", data=gone)).findings == []
    (tmp_path / "run" / "card.json").write_text(json.dumps({**card, "findings": "none"}))
    with pytest.raises(ValueError, match=r"card\.json: .*findings: str in place of list"):
        record(open_source(tmp_path / "run", data=gone))


def test_a_plain_checkpoint_has_a_record_too(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "encoder.safetensors", tmp_path / "mine.safetensors")
    bare = record(open_source(tmp_path / "mine.safetensors"))
    assert (bare.name, bare.curves, bare.origin) == ("mine", {}, {})
    assert "--data.name" in bare.notes[0]
    options = [("data.name", "digits"), ("data.limit", "200")]
    measured = record(open_source(tmp_path / "mine.safetensors", data=options), thumbnails=2)
    assert (measured.points, measured.k) == (200, 64)
    assert measured.settings["data.name"] == "digits"
    assert measured.most_collapsed[0].file == ""


def test_damaged_files_of_a_run_are_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    for text in ("[1", "[1]"):
        (tmp_path / "run" / "environment.json").write_text(text)
        with pytest.raises(ValueError, match=r"environment\.json: expected "):
            record(open_source(tmp_path / "run"))
    (tmp_path / "run" / "environment.json").unlink()
    (tmp_path / "run" / "metrics.csv").unlink()
    made = record(open_source(tmp_path / "run"))
    assert (made.curves, "command" in made.origin) == ({}, False)


def test_images_of_undefined_lid_are_no_thumbnails() -> None:
    x = torch.zeros(30, 4)
    x[:15] = torch.randn(15, 4, generator=torch.Generator().manual_seed(0))
    report = inspect(x, k=5)
    assert (report.lid == 0).sum() > 0
    images = load_images(DataConfig(limit=30), "train")
    found = Features(x, images.labels, torch.arange(30), images.classes, "", reused=False)
    pictures = records._pictures(images, found, report, count=4)
    assert [image.lid for image in pictures["most_collapsed"]] == [0, 0, 0, 0]
    assert all(0 < image.lid < float("inf") for image in pictures["least_collapsed"])


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Source:
    shutil.copytree(runs / "simclr", tmp_path / "run", ignore=shutil.ignore_patterns("evaluation"))
    (tmp_path / "run" / "evaluation").mkdir()
    return open_source(tmp_path / "run")


def write(copy: Source, name: str, **content: Any) -> Path:
    path = copy.path / "evaluation" / name
    common = {"source": {"key": copy.encoder.key}, "data": {"name": "digits"}, "options": {}}
    path.write_text(json.dumps(common | content))
    return path


def rows(copy: Source) -> tuple[dict[str, float], list[str]]:
    found, notes = evaluated(copy)
    return evaluation_rows(found, {}, None, copy), notes


def test_what_was_evaluated_is_in_the_record_once(copy: Source) -> None:
    assert main(["evaluate", "linear", str(copy.path), "--strength", "100"]) == 0
    assert main(["evaluate", "dimension", str(copy.path), "--k", "8"]) == 0
    for words in (["knn", "--k", "20"], ["knn"]):
        assert main(["evaluate", words[0], str(copy.path), *words[1:]]) == 0
    made = record(copy, thumbnails=0)
    (path,) = (copy.path / "evaluation").glob("knn-k20*.json")
    document = json.loads(path.read_text())
    assert made.results["knn/k = 20"] == document["results"]["knn"]
    assert made.results["linear/fast protocol"] != made.results["linear"]  # with another strength
    assert made.results["lid/test images, k = 8"] > 0
    assert f"knn/k = {made.voters}" not in made.results  # in the same way as the record's own
    assert made.notes == []
    write(copy, "knn-digits.json", kind="knn", results={"knn": 0.25, "k": made.voters})  # as by another temperature
    assert record(copy, thumbnails=0).results[f"knn/k = {made.voters}"] == 0.25


def test_what_was_evaluated_is_not_measured_again(copy: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = record(copy, thumbnails=0).results
    for kind in ("knn", "linear"):
        assert main(["evaluate", kind, str(copy.path)]) == 0
    monkeypatch.setattr(records, "knn_accuracy", None)
    monkeypatch.setattr(records, "linear_accuracy", None)
    found = record(copy, thumbnails=0).results
    assert found == {name: pytest.approx(value, rel=1e-8, nan_ok=True) for name, value in measured.items()}
    other = open_source(copy.path, data=[("data.limit", "150")])  # other images
    with pytest.raises(TypeError):
        record(other, thumbnails=0)


def test_every_kind_has_its_rows(copy: Source) -> None:
    precisions = dict.fromkeys(PRECISIONS, 0.25)
    write(copy, "a.json", kind="linear", results={"linear": 0.5}, options={"protocol": "imagenet"})
    write(copy, "b.json", kind="finetune", results={"finetune": 0.6}, options={"fraction": 0.1})
    write(copy, "c.json", kind="finetune", results={"finetune": 0.7}, options={"fraction": 1.0})
    write(copy, "d.json", kind="transfer", results={"shapes": {"linear": 0.8}}, options={"protocol": "transfer"})
    write(copy, "e.json", kind="transfer", results={"shapes": {"linear": 0.9}}, options={"protocol": "fast"})
    write(copy, "f.json", kind="detection", data=None, results={**precisions, "iterations": 10})
    write(copy, "g.json", kind="knn", data={"name": "shapes"}, results={"knn": 0.4, "k": 20})
    write(copy, "h.json", kind="knn", results={"knn": 0.5, "k": 5})
    write(copy, "i.json", kind="knn", results={"knn": 0.25, "k": 5})  # two of a kind are named by their files
    write(copy, "j.json", kind="detection", results=dict.fromkeys(PRECISIONS, 0.5))
    results, notes = rows(copy)
    assert notes == []
    assert results == {
        "linear/imagenet protocol": 0.5,
        "finetune/10 % of labels": 0.6,
        "finetune/all labels": 0.7,
        "transfer/shapes": 0.8,
        "transfer/shapes, fast protocol": 0.9,
        **precisions,
        "knn/k = 20 on shapes": 0.4,
        "knn/k = 5": 0.5,
        "knn/k = 5 (i)": 0.25,
        **{f"{name}/j": 0.5 for name in PRECISIONS},
    }


KNN = {"kind": "knn", "results": {"knn": 0.5, "k": 20}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"kind": "\x1b" * 1_000_000, "results": {}}, "kind: "),
        ({**KNN, "results": {"knn": 0.5}}, "k: expected a finite number, got null"),
        ({**KNN, "results": {"knn": 95, "k": 20}}, "expected knn/k = 20 as a share from 0 to 1, got 95"),
        ({**KNN, "source": {"key": "0"}}, "other weights"),
        (b"\x80\x02", "expected the record of a run, got "),
    ],
)
def test_unusable_results_are_left_out_with_a_short_note(
    copy: Source, content: dict[str, Any] | bytes, reason: str
) -> None:
    bad = write(copy, "bad.json", **(content if isinstance(content, dict) else {}))
    if isinstance(content, bytes):
        bad.write_bytes(content)
    write(copy, "good.json", kind="knn", results={"knn": 0.5, "k": 5})
    results, (note,) = rows(copy)
    assert results == {"knn/k = 5": 0.5}
    assert note.startswith("evaluation/bad.json is left out: ")
    assert reason in note
    assert len(note) < 400
    assert note.isprintable()
