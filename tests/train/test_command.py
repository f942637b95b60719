"""`ldreg pretrain`: words to a request, and one line where they are wrong."""

from pathlib import Path

import pytest
import yaml

from ldreg.cli import main
from ldreg.train.command import request
from ldreg.train.folder import create
from ldreg.train.recipes import load_recipe
from ldreg.train.settings import resolve


def test_print_config_is_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["pretrain", "--recipe", "imagenet/byol_ldreg", "--data.path", "x", "--print_config"]) == 0
    text = capsys.readouterr().out
    path = tmp_path / "printed.yaml"
    path.write_text(text)
    assert resolve(load_recipe(str(path))) == resolve(load_recipe("imagenet/byol_ldreg"), [("data.path", "x")])
    assert yaml.safe_load(text)["ldreg"]["beta"] == 0.005


@pytest.mark.parametrize(
    ("method", "regularizer", "recipe"),
    [
        (None, None, "digits/simclr_ldreg"),
        ("byol", None, "digits/byol_ldreg"),
        ("byol", "none", "digits/byol"),
        (None, "koleo", "digits/simclr"),
    ],
)
def test_the_default_recipe_follows_method_and_regularizer(
    method: str | None, regularizer: str | None, recipe: str
) -> None:
    options: list[tuple[str, str | None]] = [("method", method)] if method else []
    options += [("regularizer", regularizer)] if regularizer else []
    assert request(options, out="x").settings == resolve(load_recipe(recipe), options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--recipe digits/simclrr", "got 'digits/simclrr'; nearest: 'digits/simclr'"),
        ("--recipe ../../secrets", "recipe: expected"),
        ("--recipe", "--recipe: expected a value"),
        ("--method dino", "method: expected one of barlow_twins, byol, "),
        ("--resume nowhere --out x", "--out: has no effect with --resume"),
        ("--batch_size 40 --ldreg.k 80", "ldreg.k: expected fewer than the 80 representations"),
        ("--batch_size 2000", "batch_size: expected at most 1437"),
        ("--batch_size 2000 --trainer.accumulate 2", "batch_size: expected at most the 1437 images"),
        ("--batch_size 4 --trainer.accumulate 4 --regularizer none", "batch_size: expected at least 2"),
        ("--data.limit 150 --batch_size 64 --monitor.knn_k 200", "monitor.knn_k: expected at most the 150 images"),
        ("--data.limit 30 --batch_size 20 --ldreg.k 8", "monitor.k: expected fewer than the 30 images"),
        ("--schedule.epochs 1 --schedule.warmup_epochs 0.95", "schedule.warmup_epochs: expected to leave a step of 5"),
        ("--schedule.min_lr 5", "schedule.min_lr: expected at most the peak learning rate"),
        ("--trainer.precision fp16 --trainer.device cpu", "trainer.precision: expected fp32 or bf16 on a CPU"),
        ("--trainer.nodes 2", "trainer.nodes: expected torchrun or SLURM"),
        ("--data.name folder", "data.path: expected"),
        ("--data.name folder --data.path nowhere", "nowhere"),
        ("--views.policy mae --views.jitter 0 --views.blur false", "views.policy: expected a policy of 2 view(s)"),
        ("--trainer.device cuda", "trainer.device: expected a CUDA device"),
    ],
)
def test_errors_are_one_line_and_leave_no_folder(
    words: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", *words.split()]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert line.startswith("ldreg pretrain: error: ")
    assert message in line
    assert not list(tmp_path.rglob("*.yaml"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.name", "folder", "--data.path", "empty", "--out", "run"], "found none"),
        (["--out", "full"], "out: expected a new or empty folder"),
        (["--out", "full/file/run"], "is not a folder"),
    ],
)
def test_folders_that_do_not_fit_are_one_line_and_stay_as_they_are(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/file").write_text("x")
    assert main(["pretrain", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file", "full"]


def test_resume_keeps_the_runs_settings(tmp_path: Path) -> None:
    tree = resolve(load_recipe("digits/byol"), [("seed", "7")]).tree
    create(tmp_path / "run", tree, command="ldreg pretrain")
    asked = request([("trainer.threads", "1")], resume=str(tmp_path / "run"))
    assert (asked.settings.run.method, asked.settings.run.seed, asked.resume) == ("byol", 7, True)
    with pytest.raises(ValueError, match=r"--seed: --resume goes on with the run's own settings"):
        request([("seed", "8")], resume=str(tmp_path / "run"))


def test_resume_refuses_an_option_that_is_newer_than_the_run(tmp_path: Path) -> None:
    tree = resolve(load_recipe("digits/byol"), []).tree
    optimizer = {name: value for name, value in tree["optimizer"].items() if name != "decay_all"}
    create(tmp_path / "run", {**tree, "optimizer": optimizer}, command="ldreg pretrain")
    assert request([], resume=str(tmp_path / "run")).resume
    with pytest.raises(ValueError, match=r"--optimizer.decay_all: --resume goes on with the run's own settings"):
        request([("optimizer.decay_all", "true")], resume=str(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"decay_none"):
        request([("optimizer.decay_none", "true")], resume=str(tmp_path / "run"))


@pytest.mark.parametrize("variable", ["TORCHELASTIC_RUN_ID", "SLURM_PROCID"])
def test_processes_of_a_launcher_need_a_folder_to_agree_on(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0")
    with pytest.raises(ValueError, match=r"^--out: expected a folder"):
        request([])
