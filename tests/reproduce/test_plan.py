"""Estimates of time and memory: they follow records and the table of rates, and nothing is run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from tests.reproduce.words import request

from ldreg.cli import main
from ldreg.record import Record, Setting
from ldreg.reproduce import plan
from ldreg.reproduce.jobs import Job, Workspace
from ldreg.reproduce.plan import estimate, plan_table
from ldreg.reproduce.studies import RATES, SCALES, STUDIES, Arm

RESULTS = Path(__file__).parents[2] / "results" / "cifar10"
CPU = (("trainer.device", "cpu"),)


def workspace(scale: str = "digits", *options: tuple[str, str]) -> Workspace:
    return Workspace(scale=SCALES[scale], out=Path("none"), results=Path("none"), options=(*CPU, *options))


def job(recipe: str, *options: tuple[str, str]) -> Job:
    return Job(Arm(recipe, tuple(sorted(options))), 0)


def test_the_plan_lists_what_is_there_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "table1", "--scale", "digits", "--out", str(out), "--plan"]) == 0
    said = capsys.readouterr().out
    assert "10 runs, 0 of them done" in said
    assert not out.exists()
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if "missing" in line]
    assert [row[0].endswith("-epochs40-seed0") for row in rows] == [True] * 10, "whole names"
    assert [row[3][0] for row in rows] == ["~"] * 10, "no time was measured here"


def test_records_of_this_machine_give_the_time() -> None:
    asked = job("digits/simclr", ("schedule.epochs", "20"), ("batch_size", "64"))
    settings: dict[str, Setting] = {"method": "simclr", "encoder.name": "small_cnn", "batch_size": 64}
    known = Record("known", settings, {"minutes": 3.0}, origin={"epochs": 10, "hardware": "some processor, 4 cores"})
    assert estimate(asked, workspace(), [known]).minutes == pytest.approx(6)
    others = [
        replace(known, origin={"epochs": 10, "hardware": "NVIDIA H200"}),
        replace(known, origin={**known.origin, "failed": "loss = nan"}),
        *(replace(known, settings={**settings, **other}) for other in ({"batch_size": 8}, {"by": "lightly"})),
    ]
    assert not estimate(asked, workspace(), others).measured


def test_the_versions_of_moco_are_told_apart() -> None:
    second, third = job("cifar10/moco"), job("cifar10/moco_v3")
    assert estimate(third, workspace(), []).minutes > 1.4 * estimate(second, workspace(), []).minutes
    told: dict[str, Setting] = {"method": "moco", "moco.version": "v2", "encoder.name": "resnet18", "batch_size": 512}
    known = Record("known", told, {"minutes": 3.0}, origin={"epochs": 10, "hardware": "some processor, 4 cores"})
    assert [estimate(each, workspace(), [known]).measured for each in (second, third)] == [True, False]


@pytest.mark.parametrize("method", ["simclr", "simclr_tuned", "byol", "mae", "moco", "vicreg", "barlow_twins"])
def test_the_rates_are_those_of_the_records(method: str) -> None:
    """Of runs that had an H200 to themselves; the estimate says that it may be off by a factor of two or three."""
    arms = [SCALES["cifar10"].arm(name) for name in (method, f"{method}_ldreg")]
    found = [Record.from_json(path) for arm in arms for path in RESULTS.glob(f"{arm.slug}-seed*.json")]
    alone = [record.results["minutes"] for record in found if record.origin.get("at_once", 1) == 1]
    minutes = plan._seconds(Job(arms[0], 0), workspace("cifar10"), on_h200=True) / 60
    assert minutes == pytest.approx(sum(alone) / len(alone), rel=0.5)


def test_every_encoder_of_the_studies_has_rates() -> None:
    for scale in SCALES.values():
        arms = {row.arm for study in STUDIES.values() for row in study.rows(scale)}
        configs = {Job(arm, 0).settings.encoder for arm in arms}
        for config in configs:
            entry = plan._entry(config)
            assert entry is not None, config
            assert entry["cpu_core"] > 0
            assert scale.name == "digits" or entry["H200"] > 0


def test_time_and_memory_grow_with_epochs_pixels_and_batch() -> None:
    def need(*options: tuple[str, str], recipe: str = "cifar10/simclr") -> plan.Estimate:
        return estimate(job(recipe, *options), workspace("cifar10"), [])

    own, longer = need(), need(("schedule.epochs", "400"))
    assert longer.minutes == pytest.approx(4 * own.minutes, rel=0.01)
    assert need(("data.size", "64")).minutes == pytest.approx(4 * own.minutes, rel=0.01)
    assert need(("data.size", "64")).gigabytes > 3 * own.gigabytes
    assert need(("batch_size", "64")).gigabytes < own.gigabytes / 4
    # docs/howto/pretrain.md has 93.5 GB for SimCLR and 104.5 GB for BYOL at a batch of 1024.
    for name, measured in (("simclr", 93.5), ("byol", 104.5)):
        assert need(("batch_size", "1024"), recipe=f"imagenet/{name}").gigabytes == pytest.approx(measured, rel=0.2)
    shared = estimate(job("imagenet/simclr"), workspace("imagenet", ("trainer.devices", "8")), [])
    assert shared.gigabytes < need(recipe="imagenet/simclr").gigabytes / 4


def test_an_encoder_without_rates_has_no_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "wallclock", "--scale", "cifar10", "--encoder.name", "resnet34", "--trainer.device", "cpu"]
    assert main([*words, "--plan"]) == 0
    said = capsys.readouterr().out
    assert len(re.findall(r"missing +100 +unknown +unknown", said)) == 2
    assert "No rate is known for the encoder of 2 of them." in said


def test_a_gpu_is_named_for_runs_made_for_one(tmp_path: Path) -> None:
    def words(*asked: str) -> str:
        own = request([*asked, "--trainer.device", "cpu", "--out", str(tmp_path)])
        return plan_table(own.jobs, own.workspace, processes=1)[1]

    assert re.search(r" On an H200 GPU they would take about \d+ min, one at", words("table1", "--scale", "cifar10"))
    assert "GPU" not in words("table1", "--scale", "digits")
    assert "GPU" not in words("table1", "--scale", "cifar10", "--trainer.precision", "fp32")
    assert " On an H200 GPU 2 of them would take about " in words("table1", "--scale", "imagenet"), "others do not fit"


def test_lightlys_views_take_processes() -> None:
    theirs, ours = (row.arm for row in STUDIES["anchor"].rows(SCALES["cifar10"])[:2])
    places = [workspace("cifar10", ("data.workers", count)) for count in ("4", "8")]
    slow, fast = (plan._seconds(Job(theirs, 0), place, on_h200=True) for place in places)
    images = 30 * 97 * 512  # whose views 16 cores make beside an H200
    start = RATES["start_seconds"]["cuda"]
    assert slow == fast == pytest.approx(images / (16 * RATES["lightly_pairs"]) + start, rel=0.01), (
        "16 cores of an H200's"
    )
    assert plan._seconds(Job(ours, 0), places[0], on_h200=True) < slow / 2


def test_the_images_of_a_folder_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(3):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / label / f"{number}.png")
    words = ["reproduce", "wallclock", "--data.name", "folder", "--data.path", str(tmp_path), "--plan"]
    assert main([*words, "--batch_size", "4"]) == 0
    assert "2 runs" in capsys.readouterr().out
    assert main([*words, "--batch_size", "7"]) == 2
    assert "batch_size: expected at most the 6 images there are, got 7" in capsys.readouterr().err
