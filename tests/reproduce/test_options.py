"""What `ldreg reproduce` accepts, and what it rejects in one line before any work."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.reproduce.words import request

from ldreg.cli import COMMANDS, main
from ldreg.options import CommandLine, parse
from ldreg.reproduce import jobs
from ldreg.reproduce.reproduction import ReproduceOptions, prepare
from ldreg.reproduce.runs import check_data
from ldreg.reproduce.studies import STUDIES, method_of
from ldreg.train.recipes import load_recipe
from ldreg.train.settings import Settings, resolve


def test_words_are_typed_options() -> None:
    words = "Table1 --scale cifar10 --seeds 3 --epochs 2 --out a --detection.lr 1 --batch_size 64 --trainer.compile"
    found = parse(COMMANDS["reproduce"], [*words.split(), "--plan"], command_line=CommandLine("x"))
    assert found["config"] == ReproduceOptions(scale="cifar10", seeds=3, epochs=2, out=Path("a"), plan=True)
    assert found["settings"] == [("detection.lr", "1"), ("batch_size", "64"), ("trainer.compile", None)]
    assert (found["studies"], found["command"]) == ("Table1", "x")
    assert [job.seed for job in prepare("wallclock", ReproduceOptions(seeds=2)).jobs] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("table99", "got 'table99'"),
        ("", "expected STUDIES, got nothing"),
        ("table1 table2", "got also 'table2'; several names have commas between them"),
        ("all,anchor", "anchor: expected --scale cifar10, got digits"),
        ("table1 --seeds 999999999999", "--seeds: expected a whole number from 1 to 1000, got"),
        ("table1 --epochs " + "9" * 5000, "--epochs: "),
        ("table1 --jobs many", "--jobs: expected int, got many"),
        *((f"table1 --minutes {text}", "--minutes: expected ") for text in ("0", "-1", "nan", "inf", "ten")),
        ("table1 --schedule.epochs 3", "--schedule.epochs: expected --epochs in its place, got '3'"),
        ("table1 --seed 3", "--seed: expected --seeds in its place"),
        ("table1 --method byol", "--method: expected to be left out, as table1 has its own values, got 'byol'"),
        ("figure2b --views.jitter 1", "--views.jitter: expected to be left out, as figure2b"),
        ("table1 --epochs 1 --data.limit 300", "data.limit=300-epochs1-seed0: schedule.warmup_epochs"),
        ("table1 --show", "expected records of these runs, got none"),
        ("table1 --methods resnet", "--methods: expected names among simclr, "),
        ("table3 --detection.lrr 1", "unknown option --detection.lrr; did you mean '--detection.lr'?"),
        ("table3 --detection.lr -1", "--detection.lr: expected a finite number above 0, got -1.0"),
        ("table3 --detection.path coco", "--detection.path: expected --coco in its place, got 'coco'"),
        ("table3 --detection 5", "--detection: expected an option of it, such as --detection.lr, got '5'"),
        ("table3 --trainer.device abacus", "--trainer.device: expected one of 'auto', 'cpu', 'cuda'"),
        ("table1 --optimizer.lrr 3", "optimizer.lrr"),
        ("table1 --scale cifar10", "data.path: expected the folder or archive of cifar10"),
        # Options that do not apply to these studies.
        ("table1 --coco x", "--coco: applies only to table3, got 'x' with table1"),
        ("table2,tsne --detection.lr 1", "--detection.lr: applies only to table3, got '1'"),
        ("table2 --datasets shapes=x", "--datasets: expected to be left out, got"),
        ("table2 --scale imagenet --datasets imagenet=x", "with a name among food101, cifar10, cifar100,"),
        ("table2 --scale imagenet --datasets dtd=x,dtd=y", "each once, got 'dtd=y'"),
        ("figure1 --epochs 3", "--epochs: expected to be left out, as nothing is trained for figure1, got 3"),
        ("figure1,targets --batch_size 8", "--batch_size: expected to be left out, as nothing is trained for f"),
        # Options that contradict the mode.
        ("table1 --plan --show", "--show: expected to be given without --plan, got both"),
        ("table1 --minutes 5 --plan", "--minutes: expected to be left out with --plan"),
        ("table1 --out a --results b --write x.md", "--out: expected to be given without --results"),
        ("table1 --write x.md --seeds 2", "--seeds: expected to be left out with --write"),
        ("table1 --write nowhere/x.md", "cannot write 'nowhere/x.md'"),
        ("table1 --write x.md", "expected records of these studies, got none"),
        # Machines and images, found by a plan.
        ("table1 --trainer.devices 3 --plan", "batch_size: expected a multiple of devices × nodes"),
        ("table1 --data.path x --plan", "data.path: expected none for digits"),
        ("table1 --data.limit 100 --plan", "batch_size: expected at most the 100 images there are, got 256"),
        ("table1 --data.name cars --data.path x --plan", "--data.path: expected images at x, found"),
        ("table2 --scale imagenet --datasets dtd=x --plan", "--datasets: dtd: expected images at x, f"),
        ("table3 --coco x --plan", "--coco: expected images at x, found nothing there"),
        ("wallclock --data.name folder --data.path . --plan", ".: expected images (.jpg, "),
    ],
)  # fmt: skip
def test_wrong_words_are_answered_in_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("*.*"))


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
    for mode in (["--show"], ["--write", "text.md"]):
        with pytest.raises(ValueError, match=f"^{re.escape(option[0])}: expected to be "):
            request([*words, *mode])
    assert request(words).jobs
    assert request([*words, "--plan"]).jobs, "a plan is of the same command"


def test_names_are_taken_in_any_case_and_beside_all() -> None:
    assert {method_of(job.arm) for job in request(["Table1", "--methods", "SimCLR, BYOL"]).jobs} == {"simclr", "byol"}
    named = [study.name for study in request(["All"]).studies]
    assert set(STUDIES) - {*named} == {"table3", "search", "share_search", "baselines", "anchor"}
    both = request(["all, table3"])
    assert {study.name for study in both.studies} == {*named, "table3"}
    assert both.name == "report"


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["--coco", "coco", "--show"], {"table3"}),
        (["--write", "text.md"], {"search", "share_search", "baselines", "anchor"}),
    ],
)
def test_all_has_more_studies_with_coco_and_where_it_writes(words: list[str], more: set[str]) -> None:
    usual = {study.name for study in request(["all"]).studies}
    assert {study.name for study in request(["all", *words]).studies} == usual | more


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
    config = request(["table3", "--coco", "coco", *words]).workspace.detection_config()
    assert (config.total_iterations, config.batch_size, config.peak_lr) == (iterations, 16, 0.02)


def test_encoders_that_are_to_detect_are_trained_on_images_to_detect_in_unless_others_are_given() -> None:
    paths = []
    for words in (
        ["table3"],
        ["table3", "--data.path", "photos"],
        ["table1", "--data.name", "folder", "--data.path", "a"],
    ):
        asked = request([*words, "--methods", "byol"])
        paths.append(asked.workspace.settings(asked.jobs[0]).data.path)
    assert paths == ["reproduction/digits/generated/train2017", "photos", "a"]


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
        assert [asked.workspace.settings(one).run.seed for one in asked.jobs] == [*range(int(seeds))] * 2
        counts.append(len(checked))
        checked.clear()
    assert counts[0] == counts[1] > 0
    run = asked.jobs[2]
    assert run.settings == resolve(load_recipe(run.arm.recipe), [*run.arm.options, ("seed", "2")])
    assert asked.workspace.settings(run).trainer.device == "cpu"


def test_settings_for_every_run_are_in_their_names() -> None:
    asked = request(["figure2b", "--scale", "digits", "--monitor.k", "8", "--batch_size", "128"])
    assert sorted(str(one.settings.views.jitter) for one in asked.jobs) == ["0.0", "0.25", "0.5", "1.0"]
    assert {one.settings.run.batch_size for one in asked.jobs} == {128}
    assert asked.jobs[0].name == "simclr-batch_size128-monitor.k=8-epochs40-jitter0.0-seed0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("table2 --scale cifar10 --data.name digits", "--datasets: cifar10: path: expected the folder or archive of"),
        ("table2 --scale cifar10 --data.name digits --datasets cifar10=/nowhere", "found nothing there"),
        (
            "table1 --methods simclr --data.validation 0.01 --epochs 1",
            r"simclr-.*: data: expected more than the k = 32",
        ),
        ("table1,search --methods simclr --batch_size 1400", r"simclr-.*validation0\.1.*: batch_size: .* at most 1294"),
    ],
)
def test_images_are_checked_before_any_run(words: str, said: str, tmp_path: Path) -> None:
    asked = request([*words.split(), "--out", str(tmp_path)])
    with pytest.raises(ValueError, match=said):
        check_data(asked.jobs, asked.workspace)
