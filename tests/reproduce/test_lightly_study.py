"""Lightly's run as one of a study: what is asked for, trained, refused, planned and told."""

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reproduce.words import as_archive, draw, put, request

from ldreg.cli import main
from ldreg.record import Record
from ldreg.reproduce.claims import claims
from ldreg.reproduce.document import document
from ldreg.reproduce.jobs import ADDED_LATER, Job, Workspace
from ldreg.reproduce.statistics import Section
from ldreg.reproduce.studies import SCALES, STUDIES, Arm

CIFAR10 = SCALES["cifar10"]
THEIRS, SAME, _, _, OWN, NEARER = (row.arm for row in STUDIES["anchor"].rows(CIFAR10))
FACTS: dict[str, Any] = {"hardware": "H200", "held_out": 10_000, "epochs": 30}
SMALL = ("--batch_size", "32", "--epochs", "2", "--trainer.precision", "fp32", "--trainer.device", "cpu")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 and 72 images, as CIFAR-10's lie in an archive."""
    top = tmp_path_factory.mktemp("images")
    return as_archive(draw(top / "images", {"train": 32, "test": 36}, classes=("green", "red")))


def records(folder: Path, arm: Arm, results: Sequence[dict[str, float]], **origin: str | int) -> list[Record]:
    return put(folder, arm, results, settings={}, **FACTS, **origin)


def of(knn: float, speed: float) -> dict[str, float]:
    return {"knn": knn, "images_per_second": speed, "linear": knn, "lid": 12.0, "effective_rank": 30.0, "minutes": 2.0}


def test_all_runs_have_the_same_length(tmp_path: Path) -> None:
    asked = request(["anchor", "--scale", "cifar10", "--seeds", "2", "--out", str(tmp_path)])
    assert [job.name for job in asked.jobs][::2] == [
        "simclr_by_lightly-epochs30-seed0",
        "simclr_lightly-epochs30-seed0",
        "simclr_lightly-optimizer.decay_all=False-epochs30-seed0",
        "simclr_lightly-encoder.init=timm-encoder.zero_init=True-optimizer.decay_all=False-epochs30-seed0",
        "simclr-epochs30-seed0",
        "simclr-encoder.init=torch-encoder.zero_init=False-optimizer.decay_all=True-epochs30-seed0",
    ]
    assert len(asked.jobs) == 12
    assert [job.arm.by for job in asked.jobs[::2]] == ["lightly", *["ldreg"] * 5]
    longer = request(["anchor", "--scale", "cifar10", "--epochs", "200", "--batch_size", "256", "--out", str(tmp_path)])
    assert {job.settings.schedule.epochs for job in longer.jobs} == {200}
    assert longer.jobs[0].name == "simclr_by_lightly-batch_size256-epochs200-seed0"
    assert longer.jobs[0].command == ("ldreg reproduce anchor --scale cifar10 --epochs 200 --seeds 1 --batch_size 256")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--optimizer.lr", "0.1"), "optimizer.lr: expected 0.12, as lightly's recipe has it, got 0.1"),
        (("--views.grayscale", "0"), "views.grayscale: expected None, as lightly's recipe has it, got 0"),
        (("--trainer.precision", "fp16"), "trainer.precision: expected fp32 or bf16, as lightly's"),
        (("--trainer.devices", "2"), "seed0: trainer.devices: expected 1, as lightly's recipe has it, got 2"),
        (("--batch_size", "65"), "expected at most 64 for 64 images, got 65"),
    ],
)
def test_settings_that_lightly_does_not_have_are_rejected(
    option: tuple[str, str], said: str, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--out", str(tmp_path), "--data.path", str(archive), "--data.cache", str(tmp_path / "images"))
    small = ("--batch_size", "32") if option[0] != "--batch_size" else ()
    assert main(["reproduce", "anchor", "--scale", "cifar10", *place, *small, *option]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_records_of_ours_and_of_lightlys_are_not_mistaken_for_each_other(tmp_path: Path) -> None:
    place = Workspace(scale=CIFAR10, out=tmp_path, results=tmp_path)
    for made, asked in ((SAME, THEIRS), (THEIRS, SAME)):
        (record,) = records(tmp_path, made, [of(0.7, 1.0)])
        path = place.record_path(Job(asked, 0))
        record.to_json(path)
        with pytest.raises(ValueError, match=f"expected the record of {path.stem}, got that of {record.name}"):
            place.state(Job(asked, 0))
        replace(record, name=path.stem).to_json(path)
        with pytest.raises(ValueError, match=rf"expected by = '{asked.by}', .* got '{made.by}'"):
            place.state(Job(asked, 0))


def test_records_that_lack_a_setting_have_its_default_and_lightlys_what_lightly_has(tmp_path: Path) -> None:
    place = Workspace(scale=CIFAR10, out=tmp_path, results=tmp_path)
    for arm in (THEIRS, SAME):
        (record,) = records(tmp_path, arm, [of(0.7, 1.0)])
        before = {key: value for key, value in record.settings.items() if key not in ADDED_LATER}
        replace(record, settings=before).to_json(place.record_path(Job(arm, 0)))
    assert place.state(Job(THEIRS, 0)) == "done"
    with pytest.raises(ValueError, match=r"expected encoder.init = 'torch', as the recipe .* now says, got 'timm'"):
        place.state(Job(SAME, 0))


def words(found: dict[Arm, list[Record]]) -> str:
    return " ".join(claim.words for claim in claims(Section(STUDIES["anchor"], CIFAR10, found)))


def test_the_words_say_the_difference_with_its_noise_and_the_ratio_of_speeds(tmp_path: Path) -> None:
    gathered = {
        THEIRS: records(tmp_path, THEIRS, [of(0.700, 5000), of(0.710, 6000), of(0.690, 5500)], workers=16),
        SAME: records(tmp_path, SAME, [of(0.705, 44_000), of(0.711, 46_000), of(0.689, 20_000)]),
        OWN: records(tmp_path, OWN, [of(0.660, 33_000), of(0.670, 33_000), of(0.650, 33_000)]),
    }
    # Seeds of two trainers have nothing in common. Squares within: 2 + 2.587 and 2 + 2; 2.78 * sqrt(4.587 / 4 * 2 / 3).
    assert "+0.17 points (noise 2.43), within noise; 8.0 times as fast (median 44,000 images" in words(gathered)
    assert "to 5,500 of lightly, whose loader has 16 workers). Beside lightly, ldreg's own recipe" in words(gathered)
    assert "-4.00 points (noise 2.27), worse by more than noise; 6.0 times as fast" in words(gathered)
    varied = {**gathered, NEARER: records(tmp_path, NEARER, [of(0.70, 1.0), of(0.71, 1.0), of(0.69, 1.0)])}
    assert words(varied).endswith("kNN accuracy +0.00 points (noise 2.27), within noise."), "as fast as what it varies"
    elsewhere = {**gathered, SAME: [replace(gathered[SAME][0], origin={**FACTS, "hardware": "a CPU"})]}
    assert "speeds cannot be compared" in words(elsewhere)
    still = {**gathered, THEIRS: records(tmp_path, THEIRS, [of(0.7, 0.0)])}
    assert "times as fast" not in words(still)
    assert words({SAME: gathered[SAME], OWN: gathered[OWN]}) == ""


def test_the_document_and_the_terminal_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    records(results, THEIRS, [of(0.700, 5000)], workers=16)
    records(results, SAME, [of(0.720, 40_000)])
    text = document([STUDIES["anchor"]], CIFAR10, results, what="anchor", folder="images").text
    # Of 10 000 images: 200 * sqrt((0.7 * 0.3 + 0.72 * 0.28) / 10000) = 1.28.
    said = "kNN accuracy +2.00 points (noise 1.28), better by more than noise; 8.0 times as fast"
    assert said in text
    assert "| lightly's recipe | by lightly | 1 | 70.0 | 70.0 | 30.00 | 12.00 | 5,000 | 2.00 |" in text
    assert main(["reproduce", "anchor", "--scale", "cifar10", "--show", "--out", str(tmp_path)]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_our_short_run_alone_is_no_anchor(tmp_path: Path) -> None:
    records(tmp_path, OWN, [of(0.7, 1.0)])
    text = document([STUDIES["table1"], STUDIES["anchor"]], CIFAR10, tmp_path, what="all", folder="images").text
    assert "## Table 1" in text
    assert "- Beyond the paper: beside lightly: no runs of its own yet" in text


@pytest.mark.slow
def test_the_whole_study_at_the_smallest_size(archive: Path, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "ldreg", "reproduce", "anchor", "--scale", "cifar10", "--out", str(tmp_path)),
        *(*SMALL, "--schedule.warmup_epochs", "0", "--trainer.compile", "false", "--data.workers", "0"),
        *("--monitor.k", "8", "--monitor.every_steps", "1", "--data.path", str(archive), "--jobs", "1"),
        *("--data.cache", str(tmp_path / "images")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "6 runs to do, 0 done before" in done.stderr
    assert "times as fast (median" in " ".join(done.stdout.split())
    assert (tmp_path / "workers.log").read_text().count(" s, measured in ") == 6
    found = [Record.from_json(path) for path in sorted((tmp_path / "results").glob("*.json"))]
    assert len(found) == 6
    for record in found:
        assert all(math.isfinite(record.results[name]) for name in STUDIES["anchor"].metrics)
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "0 runs to do, 6 done before" in again.stderr
    assert again.stdout == done.stdout
