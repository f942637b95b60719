import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import matplotlib
import pytest
import yaml
from PIL import Image
from torch import nn

from ldreg.cli import main
from ldreg.data import DataConfig
from ldreg.encoders import EncoderConfig, build_encoder
from ldreg.record import Record, Setting
from ldreg.reproduce import command, harness, jobs, measure, plan
from ldreg.reproduce.harness import one
from ldreg.reproduce.jobs import Arm, Job
from ldreg.reproduce.plan import estimate, plan_table
from ldreg.reproduce.request import request
from ldreg.reproduce.rows import method_of
from ldreg.reproduce.scales import SCALES
from ldreg.reproduce.workplace import Workplace, check_same, occupied
from ldreg.train.recipes import load_recipe
from ldreg.train.settings import Settings, resolve

CIFAR10_RECORDS = Path(__file__).parents[2] / "results" / "cifar10"
SHORT = ("--epochs", "1", "--schedule.warmup_epochs", "0")
SMALL = (*SHORT, "--data.limit", "600", "--monitor.k", "8", "--monitor.points", "200")
ASKED = [
    (EncoderConfig("small_cnn"), 1, 8),
    (EncoderConfig("resnet18", stem="cifar"), 3, 32),
    (EncoderConfig("test_vit", patch_size=2, drop_path=0.1), 1, 8),
]


def place(out: Path) -> Workplace:
    return Workplace(scale=SCALES["digits"], out=out, results=out / "results")


def job(*options: tuple[str, str], measures: frozenset[str] = frozenset()) -> Job:
    small = {"schedule.epochs": "1", "batch_size": "64", "monitor.k": "8", "monitor.points": "200"}
    return Job(Arm("digits/simclr", tuple(sorted({**small, **dict(options)}.items()))), 0, measures)


def test_the_log_of_workers_says_where_the_time_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def train(job: Job, where: Workplace) -> harness.Measure:
        now[0] += 131.4

        def measure() -> Record:
            now[0] += 14
            return Record(job.name, {}, {"lid": 5.0})

        return measure

    monkeypatch.setattr(harness, "_TRAINERS", {"ldreg": train})
    place(tmp_path).results.mkdir()
    one(job(), replace(place(tmp_path), at_once=3))
    said = capsys.readouterr().err
    assert re.fullmatch(rf"\d\d:\d\d:\d\d {re.escape(job().name)}: trained in 131 s, measured in 14 s\n", said)
    written = Record.from_json(place(tmp_path).record(job()))
    assert (written.results, written.origin["at_once"]) == ({"lid": 5.0}, 3)


def test_a_run_is_trained_and_measured_once_and_more_measured_of_it_later(tmp_path: Path) -> None:
    where, asked = place(tmp_path), job()
    assert where.state(asked) == "missing"
    where.results.mkdir()
    one(asked, where)
    assert where.state(asked) == "done"
    first = Record.from_json(where.record(asked))
    assert {"lid", "effective_rank", "linear", "knn", "minutes"} <= first.results.keys()
    assert first.origin["held_out"] == 360
    written = where.folder(asked).encoder.stat().st_mtime_ns

    more = job(measures=frozenset({"tsne", "transfer"}))
    assert where.state(more) == "to measure"
    one(more, where)
    second = Record.from_json(where.record(more))
    assert where.state(more) == "done"
    assert {key: second.results[key] for key in first.results} == dict(first.results)
    assert {f"transfer/{name}" for name in ("digits", "shapes", "textures")} <= second.results.keys()
    assert second.results["transfer/digits"] == pytest.approx(first.results["linear"])
    assert len(second.tsne) == 360
    assert where.folder(asked).encoder.stat().st_mtime_ns == written, "trained again"


def test_transfer_to_the_set_of_the_pretraining_is_its_linear_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, str] = {}

    def linear_on(source: object, data: DataConfig, *, protocol: str, **compute: object) -> float:
        taken[data.name] = protocol
        return 0.5

    monkeypatch.setattr(measure, "linear_on", linear_on)
    monkeypatch.setattr(measure, "load_images", lambda data, split: [data])
    where = replace(place(tmp_path), scale=SCALES["imagenet"])
    source = SimpleNamespace(data=DataConfig(name="imagenet", path="images"))
    found, tested = measure._transfer(source, where)  # type: ignore[arg-type]
    assert taken.pop("imagenet") == "imagenet"
    assert taken == dict.fromkeys(("food101", "cifar10", "cifar100", "birdsnap", "cars", "dtd"), "transfer")
    assert (len(found), len(tested)) == (7, 7)


def test_a_record_made_with_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    asked = job()
    settings = {**dict(_flat(asked)), "optimizer.lr": 0.5}
    with pytest.raises(ValueError, match=r"x\.json: expected optimizer\.lr = 0\.002, as the recipe .* got 0\.5; move"):
        check_same(tmp_path / "x.json", settings, asked)
    check_same(tmp_path / "x.json", {**dict(_flat(asked)), "data.path": "elsewhere", "of another time": 1}, asked)


def _flat(asked: Job) -> dict[str, object]:
    from ldreg.train.recipes import flattened

    return flattened(asked.settings.tree)


def test_a_run_whose_loss_is_no_number_is_recorded_as_such(tmp_path: Path) -> None:
    where, asked = place(tmp_path), job(("optimizer.lr", "1e30"), ("optimizer.name", "sgd"))
    where.results.mkdir()
    one(asked, where)
    record = Record.from_json(where.record(asked))
    assert "not finite" in str(record.origin["failed"])
    assert where.state(asked) == "done"


def test_the_plan_says_what_is_there_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "table1", "--scale", "digits", "--out", str(out), "--plan"]) == 0
    said = capsys.readouterr().out
    assert said.count("missing") == 10
    assert "10 runs, 0 of them done" in said
    assert not out.exists()
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.split()[0].endswith("-epochs40-seed0") for line in lines if "missing" in line) == 10, "whole names"
    assert said.count("~") == 11, "every time is a guess, and is told to be"


def test_estimates_grow_with_the_work_and_follow_what_was_measured(tmp_path: Path) -> None:
    where = place(tmp_path)
    short, long = (estimate(job(("schedule.epochs", epochs)), where, []) for epochs in ("1", "400"))
    assert long.minutes > 3 * short.minutes
    assert short.basis == "arithmetic"
    known = Record(
        "known",
        {"method": "simclr", "encoder.name": "small_cnn", "batch_size": 64},
        {"minutes": 3.0},
        origin={"epochs": 10, "hardware": "some processor, 4 cores"},
    )
    assert estimate(job(("schedule.epochs", "20")), where, [known]).minutes == pytest.approx(6)
    elsewhere = replace(known, origin={"epochs": 10, "hardware": "NVIDIA H200"})
    assert estimate(job(("schedule.epochs", "20")), where, [elsewhere]).basis == "arithmetic"
    heavy = Job(Arm("imagenet/simclr"), 0)
    _, words = plan_table([heavy], where, processes=1)
    assert "days" in words or " h" in words
    assert 100 < estimate(heavy, where, []).gigabytes < 400, "measured at half the batch on an H200: 93.5 GB"


def test_the_plan_counts_without_values_and_with_them_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def build(config: EncoderConfig, *, channels: int, size: int) -> nn.Module:
        encoder = build_encoder(config, channels=channels, size=size)
        made.append(next(encoder.parameters()).device.type)
        return encoder

    def looking(config: EncoderConfig, *, channels: int, size: int) -> nn.Module:
        encoder = build(config, channels=channels, size=size)
        next(encoder.parameters()).sum().item()  # as some models of timm do, which fails without values
        return encoder

    monkeypatch.setattr(plan, "build_encoder", build)
    without = [plan._encoder.__wrapped__(*asked) for asked in ASKED]
    assert made == ["meta"] * 3
    monkeypatch.setattr(plan, "build_encoder", looking)
    assert [plan._encoder.__wrapped__(*asked) for asked in ASKED] == without
    assert made[3:] == ["meta", "cpu"] * 3
    multiplied = 64 * 16 * 1 + 16 * 32 * 16 + 4 * 64 * 32 + 4 * 128 * 64  # pixels, channels out and in
    assert without[0][0] == 2 * 9 * multiplied


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table1", "--trainer.device", "tpu"], "trainer.device: expected"),
        (["table1", "--trainer.devices", "3"], "batch_size: expected a multiple of devices × nodes × accumulate = 3"),
        (["table1", "--data.path", "x"], "data.path: expected none for digits"),
        (
            ["table1", "--data.name", "cars", "--data.path", "x"],
            "--data.path: expected images at x, found nothing there",
        ),
        (
            ["table2", "--scale", "imagenet", "--datasets", "dtd=x"],
            "--datasets: dtd: expected images at x, found nothing",
        ),
        (["table3", "--coco", "x"], "--coco: expected images at x, found nothing there"),
    ],
)
def test_the_plan_finds_wrong_settings_of_the_machine(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words, "--plan"]) == 2
    assert said in capsys.readouterr().err


def test_records_are_shown_with_all_their_seeds_unless_some_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "table1", "--scale", "cifar10", "--results", str(CIFAR10_RECORDS), "--show"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert "78.5 ± 0.55" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path), "--seeds", "1"]) == 0
    assert "±" not in capsys.readouterr().out


def test_the_plan_refuses_fewer_images_than_a_batch_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1", "--scale", "digits", "--data.limit", "100", "--plan"]) == 2
    assert "batch_size: expected at most the 100 images there are, got 256" in capsys.readouterr().err


@pytest.mark.parametrize("study", ["table1", "minlid", "starts", "search"])
def test_few_epochs_are_planned_without_the_recipes_warm_up(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", study, "--scale", "cifar10", "--epochs", "2", "--plan", "--methods", "simclr"]
    assert main([*words, "--schedule.warmup_epochs", "0"]) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "schedule.warmup_epochs: expected at least 0 and fewer than the 2 epochs" in capsys.readouterr().err


@pytest.mark.parametrize("study", ["table1", "table3"])
def test_detection_alone_is_no_option(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", study, "--scale", "digits", "--detection", "5", "--plan"]) == 2
    told = "--detection: expected an option of it, such as --detection.lr, got '5'"
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_plan_names_a_folder_without_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data.name", "folder", "--data.path", str(tmp_path), "--plan"]
    assert main(["reproduce", "wallclock", *words]) == 2
    assert capsys.readouterr().err.startswith(f"ldreg reproduce: error: {tmp_path}: expected images (.jpg, ")


def test_the_plan_counts_the_images_of_a_folder_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(3):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / label / f"{number}.png")
    seen: list[tuple[int, int, int]] = []
    shape = plan._shape

    def told(data: DataConfig, where: Workplace) -> tuple[int, int, int]:
        seen.append(shape(data, where))
        return seen[-1]

    monkeypatch.setattr(plan, "_shape", told)
    words = ["--batch_size", "4", "--data.name", "folder", "--data.path", str(tmp_path), "--plan"]
    assert main(["reproduce", "wallclock", *words]) == 0
    assert {*seen} == {(6, 3, 16)}
    assert "2 runs" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["simclr", "simclr_tuned", "byol", "mae", "moco", "vicreg", "barlow_twins"])
def test_the_plan_knows_what_a_gpu_takes_as_well_as_it_says(method: str, tmp_path: Path) -> None:
    """By the records of runs that had an H200 to themselves."""
    arms = [SCALES["cifar10"].arm(name) for name in (method, f"{method}_ldreg")]
    folder = Path(__file__).parents[2] / "results" / "cifar10"
    found = [Record.from_json(path) for arm in arms for path in folder.glob(f"{arm.slug}-seed*.json")]
    alone = [record.results["minutes"] for record in found if record.origin.get("at_once", 1) == 1]
    assert alone
    place = Workplace(scale=SCALES["cifar10"], out=tmp_path, results=tmp_path, options=(("trainer.device", "cpu"),))
    told = plan._seconds(place.settings(Job(arms[0], 0)), place, ours=True, elsewhere=True) / 60
    assert 1 / 3 < told / (sum(alone) / len(alone)) < 3, "a factor of two or three"


def test_the_plan_says_what_a_gpu_takes_of_runs_made_for_one(tmp_path: Path) -> None:
    def words(*asked: str) -> str:
        own = request([*asked, "--trainer.device", "cpu", "--out", str(tmp_path)])
        return plan_table(own.jobs, own.place, processes=1)[1]

    assert re.search(r" On an H200 GPU they would take about \d+ min, one at", words("table1", "--scale", "cifar10"))
    assert "GPU" not in words("table1", "--scale", "digits")
    assert "GPU" not in words("table1", "--scale", "cifar10", "--trainer.precision", "fp32")
    assert " On an H200 GPU 2 of them would take about " in words("table1", "--scale", "imagenet"), "others do not fit"


def test_the_plan_tells_the_versions_of_moco_apart(tmp_path: Path) -> None:
    second, third = (Job(Arm(f"cifar10/{name}"), 0) for name in ("moco", "moco_v3"))
    assert estimate(third, place(tmp_path), []).minutes > 1.4 * estimate(second, place(tmp_path), []).minutes
    told: dict[str, Setting] = {"method": "moco", "moco.version": "v2", "encoder.name": "resnet18", "batch_size": 512}
    known = Record("known", told, {"minutes": 3.0}, origin={"epochs": 10, "hardware": "some processor, 4 cores"})
    assert [estimate(each, place(tmp_path), [known]).basis for each in (second, third)] == ["measured", "arithmetic"]


def test_the_plan_shares_a_batch_among_devices(tmp_path: Path) -> None:
    alone, many = (
        estimate(Job(Arm("imagenet/simclr"), 0), replace(place(tmp_path), options=options), [])
        for options in ((), (("trainer.devices", "8"),))
    )
    assert many.gigabytes < alone.gigabytes / 4


def test_encoders_that_are_to_detect_are_trained_on_images_to_detect_in_unless_others_are_given() -> None:
    usual, given = (request(["table3", "--methods", "byol", *more]) for more in ([], ["--data.path", "photos"]))
    assert usual.place.settings(usual.jobs[0]).data.path == "reproduction/digits/generated/train2017"
    assert given.place.settings(given.jobs[0]).data.path == "photos"
    other = request(["table1", "--data.name", "folder", "--data.path", "photos"])
    assert other.place.settings(other.jobs[0]).data.path == "photos"


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    with occupied(tmp_path), pytest.raises(ValueError, match="no other process works in"), occupied(tmp_path):
        pass


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table99"], "got 'table99'"),
        ([], "expected the name of a table or figure"),
        (["--scale", "digits"], "expected the name of a table or figure"),
        (["table1", "--scale", "mnist"], "--scale: expected one of imagenet, cifar10, digits, got 'mnist'"),
        (["table1", "--seeds", "0"], "--seeds: expected a whole number from 1 to 1000, got '0'"),
        (["table1", "--seeds", "999999999999"], "--seeds: expected a whole number from 1 to 1000, got"),
        (["table1", "--epochs", "9" * 5000], "--epochs: expected a whole number from 1 to 1000000, got"),
        (["table1", "--jobs", "many"], "--jobs: expected a whole number"),
        (["table1", "--schedule.epochs", "3"], "--schedule.epochs: expected --epochs in its place, got '3'"),
        (["table1", "--seed", "3"], "--seed: expected --seeds in its place"),
        (["table1", "--method", "byol"], "--method: expected to be left out, as table1 has its own values, got 'byol'"),
        (["batches", "--batch_size", "64"], "--batch_size: expected to be left out, as batches has its own"),
        (["figure2b", "--views.jitter", "1"], "--views.jitter: expected to be left out, as figure2b"),
        (
            ["table1", "--epochs", "1", "--data.limit", "300"],
            "simclr-data.limit=300-epochs1-seed0: schedule.warmup_epochs",
        ),
        (["table1", "--show"], "expected records of these runs, got none"),
        (["table3", "--detection.lrr", "1"], "--detection.lrr: detection has no such option"),
        (["table3", "--detection.lr", "fast"], "--detection.lr: expected float, got fast"),
        (["table3", "--detection.lr", "-1"], "--detection.lr: expected a finite value above 0, got -1"),
        (["table3", "--detection.path", "coco"], "--detection.path: expected --coco in its place, got 'coco'"),
        (["table3", "--trainer.device", "abacus"], "--trainer.device: expected one of 'auto', 'cpu', 'cuda'"),
        (["table1", "--optimizer.lrr", "3"], "optimizer.lrr"),
        (["table1", "--scale", "cifar10"], "data.path: expected the folder or archive of cifar10"),
        (
            ["table2", "--scale", "imagenet", "--datasets", "mnist=x"],
            "--datasets: expected NAME=PATH with a name among",
        ),
        (["table1", "--out"], "--out: expected a value"),
    ],
)
def test_wrong_words_are_answered_in_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "iterations"),
    [
        (["--scale", "imagenet"], 180_000),
        (["--scale", "imagenet", "--detection.schedule", "1x"], 90_000),
        (["--scale", "imagenet", "--detection.iterations", "10"], 10),
        (["--scale", "cifar10"], 90_000),
    ],
)
def test_detectors_of_the_papers_scale_are_trained_as_long_as_the_papers(words: list[str], iterations: int) -> None:
    config = request(["table3", "--coco", "coco", *words]).place.detection_config()
    assert (config.total_iterations, config.batch_size, config.peak_lr) == (iterations, 16, 0.02)


def test_settings_of_an_arm_are_checked_once_for_all_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []

    def counted(*given: Any) -> Settings:
        checked.append(given)
        return resolve(*given)

    monkeypatch.setattr(jobs, "resolve", counted)
    counts = []
    for seeds in ("1", "3"):
        jobs._settings.cache_clear()
        asked = request(["wallclock", "--seeds", seeds, "--trainer.device", "cpu"])
        assert [asked.place.settings(one).run.seed for one in asked.jobs] == [*range(int(seeds))] * 2
        counts.append(len(checked))
        checked.clear()
    assert counts[0] == counts[1] > 0
    run = asked.jobs[2]
    assert run.settings == resolve(load_recipe(run.arm.recipe), [*run.arm.options, ("seed", "2")])
    assert asked.place.settings(run).trainer.device == "cpu"


def test_settings_for_every_run_are_in_their_names() -> None:
    asked = request(["figure2b", "--scale", "digits", "--monitor.k", "8", "--batch_size", "128"])
    assert sorted(str(one.settings.views.jitter) for one in asked.jobs) == ["0.0", "0.25", "0.5", "1.0"]
    assert {one.settings.run.batch_size for one in asked.jobs} == {128}
    assert asked.jobs[0].name == "simclr-batch_size128-monitor.k=8-epochs40-jitter0.0-seed0"


def reproduce(out: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "ldreg", "reproduce", *words, "--scale", "digits", "--out", str(out)]


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*waited: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(harness, "_ended_by", interrupted)
    words = ["reproduce", "table1", "--scale", "digits", "--methods", "simclr", "--jobs", "1", "--out", str(tmp_path)]
    assert main(words) == 130
    assert capsys.readouterr().err.splitlines() == [
        f"2 runs to do, 0 done before; 1 at a time, into {tmp_path}",
        f"what they say until they are done is in {tmp_path / 'workers.log'}",
        "ldreg reproduce: interrupted; the same command goes on where this one stood",
    ]


@pytest.mark.slow
def test_a_study_that_was_killed_half_way_goes_on_and_does_no_run_twice(tmp_path: Path) -> None:
    command = reproduce(tmp_path, "table1,figure2cd", *SMALL, "--jobs", "2")
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    results = tmp_path / "results"
    while len(list(results.glob("*.json")) if results.exists() else []) < 4:
        assert started.poll() is None, "ended too early"
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait(60) == 143
    begun = re.findall(r"^\d\d:\d\d:\d\d \S+$", (tmp_path / "workers.log").read_text(), flags=re.MULTILINE)
    assert len(begun) <= len(list(results.glob("*.json"))) + 2, "a run was begun after the end was asked for"
    before = {path.name: path.stat().st_mtime_ns for path in results.glob("*.json")}
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{10 - len(before)} runs to do, {len(before)} done before" in done.stderr
    assert {name: (results / name).stat().st_mtime_ns for name in before} == before
    assert len(list(results.glob("*.json"))) == 10
    timed = r"^\d\d:\d\d:\d\d (\S+): trained in \d+ s, measured in \d+ s$"
    named = re.findall(timed, (tmp_path / "workers.log").read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in results.glob("*.json"))
    page = (tmp_path / "table1-figure2cd.html").read_text()
    assert "Table 1: linear evaluation" in page
    assert "–</td>" not in page
    for name in ("effective-rank", "lid-geometric-mean"):
        for kind in ("png", "pdf"):
            assert (tmp_path / "figures" / f"figure2cd-{name}.{kind}").stat().st_size > 5000
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "0 runs to do, 10 done before" in again.stderr
    assert again.stdout == done.stdout


@pytest.mark.slow
def test_a_study_that_is_out_of_time_shows_what_there_is_and_goes_on(tmp_path: Path) -> None:
    started = time.monotonic()
    subprocess.run(reproduce(tmp_path / "four", "figure2b", *SMALL, "--jobs", "1"), capture_output=True, check=True)
    minutes = 2 * (time.monotonic() - started) / 60  # for some eight runs, of 400
    out = tmp_path / "in pieces"
    command = reproduce(out, "figure2b", *SMALL, "--jobs", "1", "--seeds", "100", "--minutes", f"{minutes:.3f}")
    before: dict[str, int] = {}
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        records = {path.name: path.stat().st_mtime_ns for path in (out / "results").glob("*.json")}
        assert done.returncode == 75, done.stderr
        assert f"{400 - len(before)} runs to do, {len(before)} done before" in done.stderr
        assert f"the time is over with {400 - len(records)} of 400 runs left; the same command" in done.stderr
        assert "Figure 2(b)" in done.stdout
        assert before.items() < records.items()
        before = records


def test_runs_that_end_in_no_time_are_left() -> None:
    never: Future[None] = Future()
    with pytest.raises(harness._TimeOverError):
        harness._ended_by(time.monotonic() + 0.01, [never])
    ended: Future[None] = Future()
    ended.set_result(None)
    for until in (time.monotonic() - 1, 6e10, 1e300, math.inf):
        assert harness._ended_by(until, [never, ended]) == [ended]


@pytest.mark.parametrize(("done", "begun"), [(0, 1), (1, 1), (1, 2)])
def test_out_of_time_is_said_with_a_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: int, begun: int
) -> None:
    given = []

    def carry_out(jobs: list[Job], place: Workplace, *, seconds: float, **rest: object) -> int:
        given.append(seconds)
        place.results.mkdir(parents=True)
        for job in jobs[:done]:
            Record(job.name, _flat(job), {"minutes": 2.0}, origin={"seed": 0}).to_json(place.record(job))  # type: ignore[arg-type]
        for job in jobs[done:begun]:
            folder = place.folder(job)
            folder.path.mkdir(parents=True)
            folder.config.write_text(yaml.safe_dump(job.settings.tree))
        return len(jobs) - done

    monkeypatch.setattr(harness, "carry_out", carry_out)
    words = ["reproduce", "wallclock", "--scale", "digits", "--out", str(tmp_path)]
    of = len(request(words[1:]).jobs)
    assert main([*words, "--minutes", "1.5"]) == 75
    shown = capsys.readouterr()
    assert f"ldreg reproduce: the time is over with {of - done} of {of} runs left; the same command goes" in shown.err
    assert ("Table 4" in shown.out) == bool(done)
    assert 60 < given[0] <= 90


def test_too_little_time_to_begin_is_an_error_and_not_to_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "carry_out", lambda jobs, place, **rest: len(jobs))
    assert main(["reproduce", "wallclock", "--scale", "digits", "--out", str(tmp_path), "--minutes", "0.25"]) == 2
    expected = "--minutes: expected enough to begin a run, got 0.25: the time was over before one had"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "ten"])
def test_minutes_that_are_none(minutes: str) -> None:
    with pytest.raises(ValueError, match=f"--minutes: expected a positive number, got '{minutes}'"):
        request(["table1", "--minutes", minutes])


@pytest.mark.parametrize("word", ["--plan", "--show"])
def test_minutes_of_what_trains_nothing(word: str) -> None:
    with pytest.raises(ValueError, match=f"--minutes: expected to be given without {word}, which trains nothing"):
        request(["table1", "--minutes", "5", word])


OF_TRAINING = [
    ("table1", ["--jobs", "2"]),
    ("table1", ["--data.path", "images"]),
    ("table1", ["--trainer.device", "cpu"]),
    ("table2", ["--datasets", "dtd=images"]),
    ("table3", ["--coco", "images"]),
    ("table3", ["--detection.lr", "0.1"]),
]


@pytest.mark.parametrize(("study", "option"), OF_TRAINING)
def test_what_trains_nothing_takes_no_option_of_training(study: str, option: list[str]) -> None:
    words = [study, "--scale", "imagenet", *option]
    said = f"{option[0]}: expected to be given without --show, which trains nothing, got both"
    with pytest.raises(ValueError, match=re.escape(said)):
        request([*words, "--show"])
    said = f"{option[0]}: expected to be left out, as --write takes all records, got {option[1]!r}"
    with pytest.raises(ValueError, match=re.escape(said)):
        request([*words, "--write", "text.md"])
    assert request(words).jobs
    assert request([*words, "--plan"]).jobs, "a plan is of the same command"


def test_all_that_show_would_not_heed_is_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"^--data\.path, --jobs: expected to be given without --show, which"):
        request(["table1", "--data.path", "images", "--seeds", "2", "--jobs", "2", "--show"])


def test_what_of_table3_there_is_is_among_all_where_coco_is_given() -> None:
    for mode in (["--show"], ["--write", "text.md"]):
        assert "table3" in [study.name for study in request(["all", "--coco", "coco", *mode]).studies]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table1", "--coco", "x"], "--coco: expected beside table3, which alone heeds it, got 'x' beside table1"),
        (
            ["table2,tsne", "--detection.lr", "1"],
            "--detection.lr: expected beside table3, which alone heeds it, got '1'",
        ),
        (["table1", "--datasets", "dtd=x"], "--datasets: expected beside table2, which alone heeds it, got 'dtd=x'"),
        (
            ["table2", "--datasets", "shapes=x"],
            "--datasets: expected to be left out, as no other set of digits needs a",
        ),
        (
            ["table2", "--scale", "imagenet", "--datasets", "imagenet=x"],
            "with a name among food101, cifar10, cifar100,",
        ),
        (["table2", "--scale", "imagenet", "--datasets", "dtd=x,dtd=y"], "each once, got 'dtd=y'"),
        (
            ["figure1", "--methods", "byol"],
            "--methods: expected to be left out, as nothing is trained for figure1, got",
        ),
        (["figure1", "--epochs", "3"], "--epochs: expected to be left out, as nothing is trained for figure1, got '3'"),
        (
            ["figure1,targets", "--batch_size", "8"],
            "--batch_size: expected to be left out, as nothing is trained for fi",
        ),
        (
            ["table1", "--out", "a", "--results", "b", "--write", "x.md"],
            "--out: expected to be given without --results",
        ),
    ],
)
def test_options_that_nothing_asked_for_would_heed(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        request(words)


def test_a_set_of_the_scale_needs_a_path_where_another_is_trained_on(tmp_path: Path) -> None:
    words = ["table2", "--scale", "cifar10", "--data.name", "digits", "--out", str(tmp_path)]
    with pytest.raises(ValueError, match=r"^--datasets: cifar10: path: expected the folder or archive of cifar10"):
        command.check_data(request(words))
    with pytest.raises(ValueError, match="found nothing there"):
        command.check_data(request([*words, "--datasets", f"cifar10={tmp_path / 'nowhere'}"]))


def test_what_is_shown_is_of_the_settings_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = request(["wallclock", "--scale", "digits", "--out", str(tmp_path)])
    asked.place.results.mkdir()
    for job in asked.jobs:
        Record(job.name, _flat(job), {"minutes": 2.0}, origin={"seed": 0}).to_json(asked.place.record(job))  # type: ignore[arg-type]
    assert main(["reproduce", "wallclock", "--show", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "27.8 h" in told
    assert "figures" not in told
    assert (tmp_path / "wallclock.html").exists()
    other = {**_flat(asked.jobs[0]), "batch_size": 99}
    made = Record(asked.jobs[0].name, other, {"minutes": 2.0}, origin={"seed": 0})  # type: ignore[arg-type]
    made.to_json(asked.place.record(asked.jobs[0]))
    assert main(["reproduce", "wallclock", "--show", "--out", str(tmp_path)]) == 2
    assert "expected batch_size = 256" in capsys.readouterr().err
    replace(made, settings={}, origin={"seed": 1}).to_json(asked.place.record(asked.jobs[0]))
    assert main(["reproduce", "wallclock", "--show", "--out", str(tmp_path)]) == 2
    assert f"got that of {made.name} of seed 1" in capsys.readouterr().err


def test_rows_of_methods_that_were_not_asked_for_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table1,methods,figure1", "--batch_size", "128", "--out", str(tmp_path)]
    asked = request([*words, "--methods", "byol"])
    asked.place.results.mkdir()
    for run in asked.jobs:
        Record(run.name, _flat(run), {"lid": 4.0}, origin={"seed": 0}).to_json(asked.place.record(run))  # type: ignore[arg-type]
    assert main(["reproduce", *words, "--methods", "byol", "--show"]) == 0
    told = capsys.readouterr().out
    row = re.compile(r"^ *(SimCLR|BYOL|MAE|MoCo|VICReg|Barlow)(?!, )[^\n]*  ", flags=re.MULTILINE)
    assert row.findall(told) == ["BYOL", "BYOL"]
    assert "MoCo, VICReg and Barlow Twins\n\nNo row of it is of these methods.\n" in told
    assert re.search(r"^ *Cloud ", told, flags=re.MULTILINE)
    assert main(["reproduce", *words, "--show"]) == 0
    assert set(row.findall(capsys.readouterr().out)) == {"SimCLR", "BYOL", "MAE", "MoCo", "VICReg", "Barlow"}


def test_a_report_does_not_follow_a_matplotlibrc(tmp_path: Path, odd_style: dict[Any, Any]) -> None:
    asked = request(["figure2cd,figure1", "--out", str(tmp_path)])
    asked.place.results.mkdir()
    for run in asked.jobs:
        known = Record(run.name, _flat(run), {"lid": 4.0, "effective_rank": 9.0}, origin={"seed": 0})  # type: ignore[arg-type]
        known.to_json(asked.place.record(run))

    def shown() -> dict[str, bytes]:
        assert main(["reproduce", "figure2cd,figure1", "--out", str(tmp_path), "--show"]) == 0
        return {
            path.name: path.read_bytes() for path in tmp_path.rglob("*.*") if path.suffix in (".html", ".png", ".pdf")
        }

    plain = shown()
    assert len(plain) == 7
    with matplotlib.rc_context(odd_style):
        assert shown() == plain


class PoolHere:
    """A pool of one process that is this one."""

    _processes: ClassVar[dict[int, object]] = {}

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, run: Callable[..., None], *arguments: object) -> Future[None]:
        future: Future[None] = Future()
        try:
            run(*arguments)
            future.set_result(None)
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: object) -> None:
        pass


def runs_where(monkeypatch: pytest.MonkeyPatch, wrong: Mapping[str, Exception]) -> list[str]:
    """Have runs of digits by these recipes go wrong and others end at once; which were begun."""
    begun: list[str] = []

    def run(job: Job, place: Workplace) -> None:
        begun.append(job.arm.recipe.removeprefix("digits/"))
        if begun[-1] in wrong:
            raise wrong[begun[-1]]
        Record(job.name, _flat(job), {"lid": 4.0}, origin={"seed": 0}).to_json(place.record(job))  # type: ignore[arg-type]

    monkeypatch.setattr(harness, "ProcessPoolExecutor", PoolHere)
    monkeypatch.setattr(harness, "one", run)
    return begun


def test_a_run_that_fails_does_not_keep_the_others_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "methods", "--jobs", "1", "--out", str(tmp_path)]
    broken = {"moco_ldreg": RuntimeError("CUDA out of memory"), "vicreg_ldreg": ValueError("no such thing")}
    begun = runs_where(monkeypatch, broken)
    assert main(words) == 1
    every = ["moco", "moco_ldreg", "vicreg", "vicreg_ldreg", "barlow_twins", "barlow_twins_ldreg"]
    assert begun == every
    said = capsys.readouterr()
    assert "2 of 6 runs failed (moco_ldreg-epochs40-seed0: CUDA out of memory, and vicreg_ldreg-" in said.err
    assert "Traceback (most recent call last)" in said.err  # which goes to the log where the run has its own process
    assert "Table 15" in said.out
    begun.clear()
    broken.clear()
    assert main(words) == 0  # the same command tries them again, and them alone
    assert begun == ["moco_ldreg", "vicreg_ldreg"]


def test_where_the_first_run_fails_all_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = runs_where(monkeypatch, {"moco": ValueError("no such thing")})
    assert main(["reproduce", "methods", "--jobs", "1", "--out", str(tmp_path)]) == 2
    assert begun == ["moco"]


def test_a_full_disk_is_full_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = runs_where(monkeypatch, {"vicreg": OSError(28, "No space left on device")})
    assert main(["reproduce", "methods", "--jobs", "1", "--out", str(tmp_path)]) == 2
    assert begun == ["moco", "moco_ldreg", "vicreg"]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_in_one_line(tmp_path: Path) -> None:
    command = reproduce(tmp_path, "wallclock", "--jobs", "1")
    started = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not list((tmp_path / "runs").glob("*/checkpoints/*.ckpt")):
        assert started.poll() is None
        time.sleep(0.1)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    for child in children:
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)
    _, error = started.communicate(timeout=60)
    assert started.returncode == 2
    assert "the process of a run was killed" in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_everything_at_the_smallest_scale(tmp_path: Path) -> None:
    subprocess.run(reproduce(tmp_path, "all", *SMALL), check=True, capture_output=True)
    records = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")]
    assert len(records) == 56  # with one epoch LDReg has no later start
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"tsne-t-sne-of-held-out-images.pdf", "figure1-points-of-the-plane-colored-by-lid.png"} <= names
    assert (tmp_path / "report.md").read_text().count("## ") == 19


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table1", "--plan", "--show"], "--show: expected to be given without --plan"),
        (["table1", "table2"], "expected names with commas between them, as in 'table1,table2', got 'table2' apart"),
        (["all,anchor"], "anchor: expected --scale cifar10, got digits"),
    ],
)
def test_words_that_contradict_each_other(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        request(words)


def test_names_are_taken_in_any_case_and_beside_all() -> None:
    assert {method_of(job.arm) for job in request(["Table1", "--methods", "SimCLR, BYOL"]).jobs} == {"simclr", "byol"}
    named = [study.name for study in request(["All"]).studies]
    assert not {"table3", "search", "anchor"} & {*named}
    both = request(["all, table3"])
    assert {study.name for study in both.studies} == {*named, "table3"}
    assert both.name == "report"


def test_what_cannot_be_written_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begun(*given: object, **more: object) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr(harness, "ProcessPoolExecutor", begun)
    words = ["reproduce", "wallclock", "--scale", "digits", "--out"]
    for name in ("workers.log", f"results/{request(['wallclock']).jobs[0].name}.json"):
        out = tmp_path / name.partition("/")[0]
        (out / name).mkdir(parents=True)
        assert main([*words, str(out)]) == 2
        assert f"{out / name}: Is a directory" in capsys.readouterr().err
    nowhere = Path("/proc/self/fdinfo")  # where nobody can write
    if nowhere.is_dir():
        assert main([*words, str(tmp_path / "out"), "--results", str(nowhere)]) == 2
        assert f"cannot write '{nowhere}/simclr" in capsys.readouterr().err


def test_the_origin_of_a_report_has_its_numbers_in_their_order() -> None:
    records = [Record(str(seed), {}, {}, origin={"seed": seed, "epochs": 100 - seed}) for seed in (10, 9)]
    assert "2 runs; commits unknown; on ; seeds 9, 10; epochs 90, 91." in command._origin(records, "ldreg")
