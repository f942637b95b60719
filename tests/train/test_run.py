"""Whole runs on digits: every method learns, runs resume bitwise, and what goes wrong is said."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.train.options import changed
from tests.train.states import STATE, assert_same

from ldreg import LDReg
from ldreg.methods import BYOL, Outcome
from ldreg.monitor.log import read_metrics
from ldreg.train import checkpoints
from ldreg.train.checkpoints import LAST, PREVIOUS, SETTINGS, NotFiniteError, latest
from ldreg.train.folder import RunFolder, held
from ldreg.train.module import Pretraining
from ldreg.train.recipes import load_recipe
from ldreg.train.run import Result, pretrain
from ldreg.train.settings import Settings, resolve

METHODS = ("simclr", "simclr_tuned", "byol", "moco", "vicreg", "barlow_twins", "mae")
QUICK = {"schedule.epochs": "3", "schedule.warmup_epochs": "0.4", "trainer.threads": "1", "trainer.device": "cpu"}


def quick(recipe: str, **options: str) -> Settings:
    return resolve(load_recipe(recipe), list(changed(QUICK, **options).items()))


def train(settings: Settings, path: Path, *, resume: bool = False) -> Result:
    return pretrain(settings, path, command="test", resume=resume)


def weights(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path / "checkpoints" / LAST, weights_only=True)
    return state


@pytest.mark.parametrize("regularizer", ["none", "ldreg"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_on_digits(method: str, regularizer: str, tmp_path: Path) -> None:
    recipe = f"digits/{method}" + ("_ldreg" if regularizer == "ldreg" else "")
    epochs = "10" if method == "moco" else "4"  # its loss rises until the queue has left its random start behind
    result = train(
        quick(recipe, schedule__epochs=epochs, monitor__every_steps="1", monitor__every_epochs="10"), tmp_path
    )
    logged = read_metrics(RunFolder(tmp_path).metrics)
    losses = [value for _, _, value in logged["terms/ssl_loss"]]
    start = 8 if method == "moco" else 0
    assert sum(losses[-4:]) < sum(losses[start : start + 4])
    # Ten classes: chance is 0.1.
    assert result.metrics["set/linear"] > 0.6
    assert ("terms/regularizer" in logged) == (regularizer == "ldreg")
    shares = [value for _, _, value in logged.get("batch/view_share", [])]
    # MAE has one view, and of MoCo with a queue one passes the encoder.
    assert (not shares) if method in ("mae", "moco") else (all(0 < share < 1 for share in shares) and shares)


def test_ldreg_raises_lid_and_minlid_lowers_it(tmp_path: Path) -> None:
    found = {}
    for name in ("none", "ldreg", "minlid"):
        strength = {} if name == "none" else {f"{name}.beta": "1.0", f"{name}.k": "32"}
        options = {**QUICK, "schedule.epochs": "6", "regularizer": name, "monitor.every_epochs": "6", **strength}
        result = train(resolve(load_recipe("digits/simclr"), list(options.items())), tmp_path / name)
        found[name] = result.metrics["set/lid"]
    assert found["minlid"] < 0.9 * found["none"]
    assert found["ldreg"] > 1.02 * found["none"]


def test_the_pull_is_logged_with_beta_and_with_a_share(tmp_path: Path) -> None:
    for recipe in ("simclr_ldreg", "byol_ldreg", "moco_ldreg", "mae_ldreg", "simclr"):
        for share in (None, "0.2"):
            if recipe == "simclr" and share:
                continue
            options = {"ldreg__share": share} if share else {}
            run = quick(f"digits/{recipe}", schedule__epochs="1", monitor__every_steps="2", **options)
            train(run, tmp_path / recipe / str(share))
            logged = read_metrics(RunFolder(tmp_path / recipe / str(share)).metrics)
            pulls = logged.get("terms/pull", [])
            assert [step for step, _, _ in pulls] == ([] if recipe == "simclr" else [1, 2, 4]), recipe
            expected = pytest.approx(0.2, rel=1e-3)
            assert all(value == expected if share else 0 < value < 10 for _, _, value in pulls), (recipe, pulls)
            if pulls:
                assert 0 < logged["terms/pull_at_weights"][0][2] < 1
                assert ("terms/share" in logged) == bool(share)
                betas = {value for _, _, value in logged["terms/effective_beta"]}
                assert len(betas) == (3 if share else 1), recipe


def test_a_share_in_training_is_that_of_the_formula(tmp_path: Path) -> None:
    """One step of plain SGD from the same start: the updates are linear in the factor that is logged."""
    common = {"schedule__epochs": "1", "batch_size": "1024", "monitor__every_steps": "1", "trainer__clip_norm": "null"}
    common |= {"optimizer__name": "sgd", "optimizer__momentum": "0", "optimizer__weight_decay": "0"}
    found = {}
    for name, strength in (("share", {"ldreg__share": "0.3"}), ("beta", {"ldreg__beta": "auto"})):
        train(quick("digits/simclr_ldreg", **common, **strength), tmp_path / name)
        found[name] = weights(tmp_path / name)["state_dict"]
    logged = read_metrics(RunFolder(tmp_path / "share").metrics)
    beta = {"ldreg__beta": repr(logged["terms/effective_beta"][0][2])}
    train(quick("digits/simclr_ldreg", **common, **beta), tmp_path / "same")
    for name, value in weights(tmp_path / "same")["state_dict"].items():
        torch.testing.assert_close(found["share"][name], value, rtol=1e-4, atol=1e-6)
    assert read_metrics(RunFolder(tmp_path / "beta").metrics)["terms/pull"][0][2] == pytest.approx(0.1, rel=0.05)


def test_a_share_and_a_beta_exclude_each_other() -> None:
    def chosen(recipe: str, **options: str) -> dict[str, Any]:
        found = quick(recipe, **options).regularizer
        return {name: found.get(name) for name in ("beta", "share", "smoothing")}

    assert chosen("digits/simclr_ldreg", ldreg__share="0.1") == {"beta": None, "share": 0.1, "smoothing": 0.0}
    assert chosen("digits/simclr_share", ldreg__beta="0.3") == {"beta": 0.3, "share": None, "smoothing": None}
    assert chosen("digits/byol", regularizer="koleo", koleo__share="0.1")["share"] == 0.1
    with pytest.raises(ValueError, match=r"^ldreg.share: expected no ldreg.beta with it, got 0.3"):
        quick("digits/simclr_ldreg", ldreg__share="0.1", ldreg__beta="0.3")
    with pytest.raises(ValueError, match=r"^ldreg.smoothing: has no effect without ldreg.share"):
        quick("digits/simclr_ldreg", ldreg__smoothing="0.5")
    with pytest.raises(ValueError, match=r"^ldreg.beta: expected a number with several processes"):
        quick("digits/simclr_ldreg", ldreg__beta="auto", trainer__devices="2")


@pytest.mark.parametrize(
    ("recipe", "queue"), [("digits/byol_ldreg", "0"), ("digits/moco_ldreg", "0"), ("digits/moco_ldreg", "300")]
)
def test_measuring_the_pull_changes_no_weight(recipe: str, queue: str, tmp_path: Path) -> None:
    for every in ("1", "1000"):
        options = {"schedule__epochs": "2", "ldreg__queue_size": queue, "monitor__every_steps": every}
        train(quick(recipe, **options), tmp_path / every)
    measured, plain = (weights(tmp_path / every)["state_dict"] for every in ("1", "1000"))
    assert len(read_metrics(RunFolder(tmp_path / "1").metrics)["terms/pull"]) == 10
    assert len(read_metrics(RunFolder(tmp_path / "1000").metrics)["terms/pull"]) == 1
    assert_same(measured, plain)


class KilledError(Exception):
    """Stands for a kill, inside one process."""


def break_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    look = checkpoints.FiniteGuard.on_train_batch_end

    def killed(self: Any, trainer: Any, *args: Any) -> None:
        look(self, trainer, *args)
        if trainer.global_step == step:
            raise KilledError

    monkeypatch.setattr(checkpoints.FiniteGuard, "on_train_batch_end", killed)


@pytest.mark.parametrize(
    ("recipe", "step", "every"),
    [("simclr_ldreg", 8, None), ("byol_ldreg", 9, "3"), ("moco", 12, "2"), ("mae_ldreg", 4, "1")],
)
def test_a_resumed_run_is_bitwise_the_unbroken_one(
    recipe: str, step: int, every: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"monitor__every_steps": "2"} | ({"trainer__checkpoint_steps": every} if every else {})
    settings = quick(f"digits/{recipe}", **options)
    train(settings, tmp_path / "whole")
    with monkeypatch.context() as patch:
        break_at(patch, step)
        with pytest.raises(KilledError):
            train(settings, tmp_path / "broken")
    train(settings, tmp_path / "broken", resume=True)
    whole, broken = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert_same({name: whole[name] for name in STATE}, {name: broken[name] for name in STATE})
    clocked = "images_per_second"
    metrics = [read_metrics(RunFolder(tmp_path / name).metrics) for name in ("whole", "broken")]
    first, second = ({name: rows for name, rows in logged.items() if name != clocked} for logged in metrics)
    assert_same(first, second)


def test_seeds_differ_and_repeat(tmp_path: Path) -> None:
    one = {"schedule__epochs": "1", "schedule__warmup_epochs": "0"}
    first = train(quick("digits/simclr", **one), tmp_path / "a").module.state_dict()
    again = train(quick("digits/simclr", **one), tmp_path / "b").module.state_dict()
    other = train(quick("digits/simclr", seed="1", **one), tmp_path / "c").module.state_dict()
    assert_same(dict(first), dict(again))
    assert not torch.equal(first["method.encoder.blocks.0.0.weight"], other["method.encoder.blocks.0.0.weight"])


def test_accumulated_parts_take_one_step_of_the_optimizer(tmp_path: Path) -> None:
    options = {"trainer__accumulate": "2", "schedule__epochs": "1", "schedule__warmup_epochs": "0"}
    result = train(quick("digits/byol", **options), tmp_path)
    # 11 parts of 128 images: five steps of two parts each; the last part is left out.
    assert weights(tmp_path)["global_step"] == result.module.total_steps == 5
    assert result.module.trainer.num_training_batches == 10
    logged = read_metrics(RunFolder(tmp_path).metrics)
    assert logged["batch/loss"][-1][2] == logged["terms/ssl_loss"][-1][2]  # not divided by the number of parts


def test_the_regularizer_can_start_later(tmp_path: Path) -> None:
    train(quick("digits/simclr_ldreg", regularizer_start="1.5", monitor__every_steps="1"), tmp_path)
    steps = [step for step, _, _ in read_metrics(RunFolder(tmp_path).metrics)["terms/regularizer"]]
    assert steps == list(range(9, 16))  # of five steps each, one and a half epochs are over before the ninth


def test_a_method_is_told_how_much_was_done_before_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(BYOL, "after_step", lambda method, progress: told.append(progress))
    train(quick("digits/byol", schedule__epochs="2", monitor__every_epochs="10"), tmp_path)
    assert told == [step / 10 for step in range(10)]


def test_bf16_channels_last_and_clipping_run_together(tmp_path: Path) -> None:
    options = {"trainer__precision": "bf16", "trainer__channels_last": "true", "trainer__clip_norm": "1.0"}
    result = train(quick("digits/vicreg_ldreg", schedule__epochs="1", schedule__warmup_epochs="0", **options), tmp_path)
    assert result.metrics["batch/loss"] == result.metrics["batch/loss"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    train(quick("digits/simclr", trainer__checkpoint_steps="3"), path)
    return path


def test_a_finished_run_is_left_as_it_is(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and path.name != "log.txt"}
    result = train(quick("digits/simclr", trainer__checkpoint_steps="3"), finished, resume=True)
    assert {path: path.read_bytes() for path in before} == before
    assert result.metrics["set/linear"] > 0.6


def test_a_damaged_checkpoint_gives_way_to_the_one_before(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "checkpoints" / LAST).write_bytes(b"")
    for name in ("encoder.safetensors", "card.json"):
        (run / name).unlink()
    train(quick("digits/simclr", trainer__checkpoint_steps="3"), run, resume=True)
    assert_same(weights(run)["state_dict"], weights(finished)["state_dict"])
    assert (run / "encoder.safetensors").read_bytes()[-1000:] == (finished / "encoder.safetensors").read_bytes()[-1000:]
    for name in (LAST, PREVIOUS):
        (run / "checkpoints" / name).write_bytes(b"PK")
    with pytest.raises(ValueError, match="expected a checkpoint of ldreg, got one that cannot be read"):
        train(quick("digits/simclr"), run, resume=True)


def test_a_checkpoint_of_other_settings_is_refused(finished: Path) -> None:
    with pytest.raises(ValueError, match=r"got others for optimizer\.lr, schedule\.epochs"):
        train(quick("digits/simclr", optimizer__lr="0.01", schedule__epochs="4"), finished, resume=True)


def test_a_run_from_before_an_option_goes_on_with_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick("digits/simclr", trainer__checkpoint_steps="3")
    with monkeypatch.context() as patch:
        break_at(patch, 8)
        with pytest.raises(KilledError):
            train(settings, tmp_path)
    path = tmp_path / "checkpoints" / LAST
    content = weights(tmp_path)
    told = json.loads(content[SETTINGS])
    for option in ("encoder.init", "encoder.zero_init"):
        del told[option]
    torch.save({**content, SETTINGS: json.dumps(told)}, path)
    with pytest.raises(ValueError, match=r"got others for optimizer\.lr$"):
        train(quick("digits/simclr", trainer__checkpoint_steps="3", optimizer__lr="0.01"), tmp_path, resume=True)
    assert train(settings, tmp_path, resume=True).stopped is None
    torch.save({**content, SETTINGS: json.dumps({**told, "encoder.zero_init": False})}, path)
    with pytest.raises(ValueError, match=r"got others for encoder\.zero_init$"):
        train(settings, tmp_path, resume=True)


def test_bad_input_before_the_first_step_removes_a_new_folder_and_never_that_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = quick("digits/simclr")
    new, resumed = tmp_path / "new", tmp_path / "resumed"
    with monkeypatch.context() as patch:
        break_at(patch, 2)
        with pytest.raises(KilledError):
            train(settings, resumed)  # it has no checkpoint yet
    before = {path.name for path in resumed.iterdir()}
    assert latest(resumed / "checkpoints") is None

    def refuse(self: Pretraining, *_: Any) -> None:
        raise ValueError("bad input")

    monkeypatch.setattr(Pretraining, "training_step", refuse)
    for path, resume in ((new, False), (resumed, True)):
        with pytest.raises(ValueError, match="bad input"):
            train(settings, path, resume=resume)
    assert not new.exists()
    assert {path.name for path in resumed.iterdir()} == before


def test_a_run_in_use_is_refused(finished: Path) -> None:
    with held(RunFolder(finished)), pytest.raises(ValueError, match="no other process works on"):
        train(quick("digits/simclr"), finished, resume=True)


def test_weights_that_a_step_broke_are_never_saved(tmp_path: Path) -> None:
    options = {"optimizer__name": "sgd", "optimizer__lr": "1e38", "batch_size": "1437", "schedule__epochs": "2"}
    with pytest.raises(NotFiniteError, match="the weights are not finite after step 1"):
        train(quick("digits/simclr", optimizer__weight_decay="1e38", schedule__warmup_epochs="0", **options), tmp_path)
    assert latest(tmp_path / "checkpoints") is None
    assert not (tmp_path / "encoder.safetensors").exists()


@pytest.mark.parametrize("regularizer", ["ldreg", "koleo", "covariance"])
def test_representations_gone_nan_are_no_bad_input(regularizer: str, tmp_path: Path) -> None:
    options = {"regularizer": regularizer, "optimizer__lr": "1e30", "schedule__warmup_epochs": "0"}
    with pytest.raises(NotFiniteError, match=r"not finite at step 2: .*regularizer = nan"):
        train(quick("digits/simclr", **options), tmp_path)


def test_representations_gone_nan_elsewhere_are_no_bad_input() -> None:
    """On another rank, or in the momentum branch: here the loss alone tells of them."""
    generator = torch.Generator().manual_seed(0)
    own, other = torch.randn(2, 16, 4, generator=generator)
    module: Any = SimpleNamespace(regularizer=LDReg(k=4))

    def added(loss: float, rows: torch.Tensor) -> torch.Tensor:
        whole = torch.cat((own, rows))
        return Pretraining._penalty(module, Outcome(torch.tensor(loss), {}, own, whole, torch.arange(16)))

    assert added(1.0, other).isfinite()
    assert added(math.nan, other * math.nan).isnan()
    with pytest.raises(ValueError, match="reference: expected finite numbers"):
        added(1.0, other * math.nan)


def test_processes_must_be_as_many_as_were_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"trainer\.devices: expected devices × nodes to be the 2 processes started"):
        train(quick("digits/simclr"), tmp_path)


@pytest.mark.parametrize("resumed", [False, True])
def test_only_the_folder_of_a_new_run_goes_where_training_cannot_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    folder = tmp_path / "run"
    if resumed:
        pretrain(quick("digits/simclr", schedule__epochs="1"), folder)
        RunFolder(folder).card.unlink()  # as if it was not finished

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("data: cannot be read")

    monkeypatch.setattr("ldreg.train.run.Run.train", refuse)
    with pytest.raises(ValueError, match=r"^data: cannot be read"):
        pretrain(quick("digits/simclr", schedule__epochs="1"), folder, resume=resumed)
    assert folder.exists() == resumed
    assert not resumed or (RunFolder(folder).checkpoints / LAST).exists()
