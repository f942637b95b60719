"""The paper's settings, scikit-learn's accuracy, learning on digits, exact resumption, and what labels have to be."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from ldreg.data import DataConfig
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.classification import (
    check_classes,
    classifier_accuracy,
    load_classification,
    stratified,
    transfer,
)
from ldreg.evaluate.classifier import linear_head
from ldreg.evaluate.extract import Precision
from ldreg.evaluate.features import Progress, Setup, features
from ldreg.evaluate.protocols import (
    PROTOCOLS,
    FinetuneConfig,
    LinearConfig,
    TransferConfig,
    augmentation,
    dataset_paths,
    fitted_plan,
    usual_plan,
)
from ldreg.io.files import exclusive
from ldreg.optim import LARS, build_optimizer, build_scheduler
from ldreg.train.checkpoints import LAST
from ldreg.train.engine import InterruptedRunError

Write = Callable[..., Path]
DIGITS = DataConfig()
FAST: dict[str, Any] = {"min_scale": 0.5, "batch_size": 256}


def setup(path: Path, progress: Progress | None = None, *, device: Any = "cpu", precision: Precision = "fp32") -> Setup:
    return Setup(path, device, precision=precision, cache=path / "cache", progress=progress)


def evaluate(encoder: LoadedEncoder, config: Any, path: Path, progress: Progress | None = None) -> Any:
    return classifier_accuracy(encoder, DIGITS, config, setup(path, progress))


def saved(path: Path) -> Any:
    """The weights in the one checkpoint below a folder."""
    (file,) = path.rglob(LAST)
    return torch.load(file, weights_only=True)["state_dict"]


def test_protocols_have_the_published_settings() -> None:
    head = linear_head(8, 3, normalized=True, seed=0)
    plan = PROTOCOLS["imagenet"]
    optimizer = build_optimizer(head, plan.optimizer, batch_size=plan.batch_size)
    scheduler = build_scheduler(optimizer, plan.schedule, steps_per_epoch=312)
    assert isinstance(optimizer, LARS)
    assert (plan.batch_size, plan.schedule.epochs) == (4096, 90)
    weights, bias = optimizer.param_groups
    assert (weights["weight_decay"], weights["momentum"]) == (0, 0.9)
    lrs = []  # cosine without warm-up
    for _ in range(90 * 312):
        lrs.append(weights["lr"])
        optimizer.step()
        scheduler.step()
    assert (lrs[0], lrs[45 * 312], weights["lr"]) == pytest.approx((0.1 * 4096 / 256, 0.8, 1e-6), rel=1e-5)
    assert weights["lr"] == bias["lr"]
    plan = PROTOCOLS["transfer"]
    sgd = build_optimizer(head, plan.optimizer, batch_size=512).param_groups[0]
    assert (plan.batch_size, plan.schedule.epochs, plan.schedule.warmup_epochs) == (256, 30, 0)
    assert [sgd[name] for name in ("lr", "weight_decay", "momentum", "nesterov")] == [0.01, 5e-4, 0.9, True]
    for fraction, epochs in ((1.0, 30), (0.1, 30), (0.01, 60)):
        tuning = usual_plan(FinetuneConfig(fraction=fraction))
        assert (tuning.optimizer.name, tuning.optimizer.nesterov, tuning.optimizer.weight_decay) == ("sgd", True, 0)
        assert tuning.schedule.epochs == epochs
        assert replace(tuning, batch_size=4096).peak_lr == pytest.approx(0.8)


@pytest.mark.parametrize("kind", ["untrained", "pixels"])
def test_fast_is_scikit_learns_logistic_regression(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    encoder: LoadedEncoder = request.getfixturevalue(kind)
    found = evaluate(encoder, LinearConfig("fast"), tmp_path)
    train, test = (
        features(encoder, DIGITS, split, device="cpu", cache=tmp_path / "cache") for split in ("train", "test")
    )
    assert train.reused
    assert test.reused
    scaler = StandardScaler().fit(train.representations.double().numpy())
    rows, asked = (scaler.transform(part.representations.double().numpy()) for part in (train, test))
    model = LogisticRegression(C=1.0, max_iter=5000, tol=1e-8).fit(rows, train.labels.numpy())
    assert found.accuracy == pytest.approx(np.mean(model.predict(asked) == test.labels.numpy()), abs=0.005)
    assert (found.best, found.epochs, found.test_images, found.train_images) == (None, 0, 360, 1437)


def test_a_fit_is_saved_for_each_strength(
    untrained: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = evaluate(untrained, LinearConfig("fast"), tmp_path)
    (file,) = (tmp_path / "work").glob("*.json")
    stamp = file.stat().st_mtime_ns
    assert evaluate(untrained, LinearConfig("fast"), tmp_path) == first
    assert file.stat().st_mtime_ns == stamp
    assert evaluate(untrained, LinearConfig("fast", strength=3000), tmp_path).accuracy < first.accuracy
    for times in (1, 2):  # also if the fit was saved
        evaluate(untrained, LinearConfig("fast", iterations=2), tmp_path)
        assert caplog.text.count("iterations: 2 did not") == times
    for strength in (0.0, 1e30):
        assert 0 <= evaluate(untrained, LinearConfig("fast", strength=strength, iterations=5), tmp_path).accuracy <= 1


def test_a_damaged_fit_is_repeated_with_a_warning(
    pixels: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LinearConfig("fast", strength=1000)
    first = evaluate(pixels, config, tmp_path)
    (file,) = (tmp_path / "work").glob("*.json")
    whole = {"accuracy": 0.9, "iterations": 3, "converged": True, "minutes": 0.1}
    wrong = ({"accuracy": float("nan")}, {"accuracy": 5.5}, {"minutes": None}, {"more": 0})
    for content in ("", "[]", "null", '{"accuracy": 0.1}', "\xff", "[" * 100_000, *wrong):
        text = content if isinstance(content, str) else json.dumps(whole | content)
        file.write_bytes(text.encode("latin-1"))
        assert replace(evaluate(pixels, config, tmp_path), minutes=first.minutes) == first
        (warning,) = caplog.messages
        assert warning.startswith(f"{file}: ")
        assert "\n" not in warning
        assert evaluate(pixels, config, tmp_path).accuracy == first.accuracy
        assert len(caplog.messages) == 1
        caplog.clear()


def test_small_sets_give_warnings(pixels: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = evaluate(pixels, LinearConfig("imagenet", epochs=3), tmp_path)
    assert (found.steps, found.batch_size, found.lr) == (3, 1024, pytest.approx(0.1 * 1024 / 256))
    assert caplog.text.count("batch_size: 1024 in place of 4096 for 1437 training images") == 1
    assert caplog.text.count("digits: only 3 optimizer steps") == 1
    caplog.clear()
    assert evaluate(pixels, LinearConfig("transfer", epochs=3, batch_size=14), tmp_path).steps == 3 * 102
    assert not caplog.messages


@pytest.mark.parametrize(
    "config",
    [
        LinearConfig("imagenet", epochs=8, lr=60, min_scale=0.8, batch_size=64),
        LinearConfig("transfer", epochs=8, lr=0.1, min_scale=0.5, batch_size=64),
    ],
    ids=["imagenet", "transfer"],
)
def test_both_protocols_learn_digits_through_an_untrained_encoder(
    config: LinearConfig, untrained: LoadedEncoder, tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in untrained.module.state_dict().items()}
    found = evaluate(untrained, config, tmp_path)
    assert found.accuracy > 0.85
    assert found.best == max(epoch["accuracy"] for epoch in found.history)
    assert len(found.history) == found.epochs == 8
    assert found.history[0]["loss"] > found.history[-1]["loss"]
    assert not untrained.module.training
    for name, value in untrained.module.state_dict().items():  # batch norms' statistics among them
        assert torch.equal(value, before[name])
    # The accuracy is that of the saved head, without the encoder, after the last epoch.
    state = saved(tmp_path / "work")
    test = features(untrained, DIGITS, "test", device="cpu", cache=tmp_path / "cache")
    x = (test.representations - state["head.0.running_mean"]) / (state["head.0.running_var"] + 1e-5).sqrt()
    guessed = (x @ state["head.1.weight"].T + state["head.1.bias"]).argmax(1)
    assert found.accuracy == found.history[-1]["accuracy"] == (guessed == test.labels).double().mean().item()
    assert not [name for name in state if name.startswith("encoder")]


def test_test_images_go_through_the_encoder_once(pixels: LoadedEncoder, tmp_path: Path) -> None:
    # One batch of 360 test images, and one training batch an epoch; the last call finds a finished training.
    for epochs, calls in ((2, 1 + 2), (3, 1 + 2 + 3), (3, 1 + 2 + 3)):
        evaluate(pixels, LinearConfig("transfer", epochs=epochs, batch_size=1024), tmp_path)
        assert pixels.module.calls == calls


@pytest.mark.parametrize(
    "config",
    [
        LinearConfig("transfer", epochs=4, lr=0.1, flip=0.5, **FAST),
        FinetuneConfig(epochs=4, batch_size=128, fraction=0.5),
    ],
    ids=["linear", "finetune"],
)
def test_an_interrupted_evaluation_resumes_bitwise(config: Any, untrained: LoadedEncoder, tmp_path: Path) -> None:
    def stop(step: str, fraction: float) -> None:
        if step.startswith("epoch 2/"):
            raise KeyboardInterrupt

    whole, handler = evaluate(untrained, config, tmp_path / "whole"), signal.getsignal(signal.SIGINT)
    with pytest.raises(InterruptedRunError, match="the same command goes on from step") as raised:
        evaluate(untrained, config, tmp_path / "broken", stop)
    assert raised.value.status == 130
    assert signal.getsignal(signal.SIGINT) == handler
    steps: list[str] = []
    resumed = evaluate(untrained, config, tmp_path / "broken", lambda step, _: steps.append(step))
    assert [step[:9] for step in steps if step.startswith("epoch")] == ["epoch 3/4", "epoch 4/4"]
    assert resumed.history == whole.history
    one, two = (saved(tmp_path / name / "work") for name in ("whole", "broken"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_only_whole_checkpoints_of_the_same_settings_that_nobody_uses_are_taken(
    untrained: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LinearConfig("transfer", epochs=2, **FAST)
    whole = evaluate(untrained, config, tmp_path)
    (path,) = (tmp_path / "work").rglob(LAST)
    for other in (replace(config, lr=0.5), replace(config, seed=1), replace(config, flip=0.5)):
        evaluate(untrained, replace(other, epochs=1), tmp_path)
    evaluate(replace(untrained, key="another"), config, tmp_path)
    assert len(list((tmp_path / "work").rglob(LAST))) == 5  # other settings do not resume from a checkpoint
    path.write_bytes(path.read_bytes()[:1000])
    assert evaluate(untrained, config, tmp_path).history == whole.history
    assert str(path) in caplog.text
    with exclusive(path.parent, path.parent / "lock"), pytest.raises(ValueError, match="no other process works on"):
        evaluate(untrained, config, tmp_path)


def test_bf16_trains_and_a_training_that_diverges_says_so(untrained: LoadedEncoder, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError, match=r"not finite (at|after) step"):
        evaluate(untrained, LinearConfig("transfer", epochs=1, lr=1e30, **FAST), tmp_path)
    assert not list((tmp_path / "work").rglob(LAST))
    config = LinearConfig("transfer", epochs=4, lr=0.3, **FAST)
    assert classifier_accuracy(untrained, DIGITS, config, setup(tmp_path, precision="bf16")).accuracy > 0.7


def test_representations_that_are_not_finite_are_refused(pixels: LoadedEncoder, tmp_path: Path) -> None:
    class Mirrored(nn.Module):
        """Finite on plain images, NaN on others."""

        dimension = 64

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = images.flatten(1)
            return x * float("nan") if len(x) == 256 else x

    with pytest.raises(ValueError, match=r"^encoder: expected finite .* for a training image"):
        evaluate(replace(pixels, module=Mirrored()), LinearConfig("transfer", epochs=1, **FAST), tmp_path)


@pytest.mark.parametrize(
    ("options", "images", "devices", "message"),
    [
        ({"batch_size": 300}, 299, 1, "batch_size: expected at most the 299 .* got 300"),
        ({"batch_size": 9}, 299, 2, "batch_size: expected a multiple of the 2 .* got 9"),
        ({"batch_size": 2}, 299, 2, "batch_size: expected a multiple of the 2 .* got 2"),
        ({"lr": 1e-7}, 299, 1, "lr: expected .* 1e-06"),
        ({}, 1, 1, "batch_size: expected at most the 1 .* got 256"),
    ],
)
def test_batches_that_do_not_fit_are_refused(options: dict[str, Any], images: int, devices: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted_plan(LinearConfig("transfer", **options), images=images, devices=devices)
    flip = [augmentation(LinearConfig("transfer"), DataConfig(name))["flip"] for name in ("digits", "cifar10")]
    assert flip == [0.0, 0.5]  # digits are not mirrored


@pytest.mark.parametrize(
    ("protocol", "name", "values"),
    [
        ("fast", "lr", [0.1]),
        ("fast", "seed", [0]),
        ("fast", "strength", [-1.0, 1e300]),
        ("fast", "iterations", [0]),
        ("transfer", "strength", [1.0]),
        ("transfer", "epochs", [0]),
        ("transfer", "batch_size", [1]),
        ("transfer", "lr", [0.0, 1e300, float("nan")]),
        ("transfer", "weight_decay", [-1.0, 1e300]),
        ("transfer", "flip", [2.0]),
        ("transfer", "min_scale", [0.0, 1.1]),
        ("transfer", "seed", [-1, 2**63]),
    ],
)
def test_options_out_of_range_are_named(protocol: Any, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{name}: expected "):
            LinearConfig(protocol, **{name: value})
    with pytest.raises(ValueError, match=r"^fraction: expected"):
        FinetuneConfig(fraction=0)


def test_fine_tuning_beats_a_probe_and_leaves_the_encoder_as_it_was(untrained: LoadedEncoder, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in untrained.module.state_dict().items()}
    options: dict[str, Any] = {"epochs": 4, "batch_size": 64, "min_scale": 0.8}
    found = evaluate(untrained, FinetuneConfig(lr=0.4, **options), tmp_path / "tuned")
    probe = evaluate(untrained, LinearConfig("transfer", lr=0.1, **options), tmp_path / "probe")
    assert found.accuracy > 0.93 > probe.accuracy
    assert found.best >= found.accuracy == found.history[-1]["accuracy"]
    assert all(torch.equal(value, before[name]) for name, value in untrained.module.state_dict().items())
    state = saved(tmp_path / "tuned")  # batch norms' statistics among it
    assert not any(torch.equal(state[f"encoder.{name}"], value) for name, value in before.items())
    part = evaluate(untrained, FinetuneConfig(epochs=1, fraction=0.1), tmp_path)
    assert (part.train_images, part.test_images, part.batch_size) == (142, 360, 128)


@pytest.mark.gpu
def test_on_a_gpu_it_learns_too_and_the_encoder_comes_back(untrained: LoadedEncoder, tmp_path: Path) -> None:
    config = LinearConfig("transfer", epochs=8, lr=0.1, min_scale=0.5, batch_size=64)
    for precision in ("fp32", "bf16"):
        on_gpu = setup(tmp_path, device="cuda", precision=precision)
        assert classifier_accuracy(untrained, DIGITS, config, on_gpu).accuracy > 0.85
    assert {parameter.device.type for parameter in untrained.module.parameters()} == {"cpu"}
    fast = [
        classifier_accuracy(untrained, DIGITS, LinearConfig("fast"), setup(tmp_path, device=device)).accuracy
        for device in ("cpu", "cuda")
    ]
    assert fast[0] == pytest.approx(fast[1], abs=0.01)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({"": 4}, {"": 4}, "folder: expected labels, got none for the 4 training"),
        ({"cat": 4, "dog": 4}, {"cat": 4}, "folder: expected test images .* got none of 'dog'"),
        ({"cat": 4, "dog": 0}, {"cat": 4, "dog": 2}, "expected training images .* got none of 'dog'"),
        ({"cat": 4}, {"cat": 4}, "got only 'cat'"),
        ({"cat": 2, "dog": 2}, {}, "test split"),
    ],
)
def test_bad_labels_are_one_line(
    train: dict[str, int], test: dict[str, int], message: str, write_images: Write
) -> None:
    splits = {"train": train, "test": test} if test else {"train": train}
    with pytest.raises(ValueError, match=message) as raised:
        load_classification(DataConfig("folder", str(write_images(**splits)), resident="no"))
    assert "\n" not in str(raised.value)


def test_classes_must_agree_and_training_labels_may_be_unknown_in_part() -> None:
    part, whole = torch.tensor([1, -1, 0, -1]), torch.tensor([0, 1])
    assert check_classes(part, whole, "ab", "ab", data="x").tolist() == [0, 2]
    for train, test, classes, message in (
        (whole, part, "ab", "expected a label for each of the 4 test images, got 2"),
        (whole, whole, "ac", "got 'b', 'c' in one"),
        (whole, whole, "ba", "got another order"),
    ):
        with pytest.raises(ValueError, match=f"^x: .*{message}"):
            check_classes(train, test, "ab", classes, data="x")


def test_a_part_has_its_share_of_every_class_and_is_always_the_same() -> None:
    labels = torch.tensor([0] * 100 + [1] * 40 + [2] * 3)[torch.randperm(143)]
    part, other = stratified(labels, 0.1, seed=0), stratified(labels, 0.1, seed=1)
    assert torch.bincount(labels[part.unique()]).tolist() == [10, 4, 1]
    assert torch.equal(part, stratified(labels, 0.1, seed=0))
    assert not torch.equal(part, other)


@pytest.mark.parametrize("text", ["", "digits,", "cifar10=", "=/data", "digits,digits"])
def test_wrong_lists_of_datasets_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="datasets: expected "):
        dataset_paths(text)
    with pytest.raises(ValueError, match="epochs: expected to be left out, as protocol fast has none"):
        TransferConfig("fast", epochs=1, datasets="digits")


def photos(write_images: Write, **test: int) -> DataConfig:
    root = write_images(train=dict.fromkeys(("cat", "dog"), 8), test=test or {"cat": 4, "dog": 4})
    return DataConfig("folder", str(root), resident="no", workers=0)


def test_a_dataset_that_fails_stops_all_before_any_is_evaluated(
    untrained: LoadedEncoder, tmp_path: Path, write_images: Write
) -> None:
    sets = {"digits": DIGITS, "folder": photos(write_images, cat=2)}
    with pytest.raises(ValueError, match=r"^folder: expected test images of every class"):
        transfer(untrained, sets, LinearConfig("fast"), setup(tmp_path))
    assert not {"work", "cache"} & {path.name for path in tmp_path.iterdir()}


def test_a_name_like_a_datasets_gets_a_hint_if_there_are_no_classes(
    untrained: LoadedEncoder, tmp_path: Path, write_images: Write
) -> None:
    (tmp_path / "known" / "cifar-10-batches-py").mkdir(parents=True)
    known = DataConfig("folder", str(tmp_path / "known"), resident="no")
    hints = {}
    for name, data in {"cifar1O": known, "photos": known, "folder": known, "cats": photos(write_images, cat=2)}.items():
        with pytest.raises(ValueError, match=f"^{name}: ") as caught:
            transfer(untrained, {name: data}, LinearConfig("fast"), setup(tmp_path))
        hints[name] = str(caught.value).partition("nearest: ")[2]
    assert hints == {"cifar1O": "cifar10, cifar100", "photos": "", "folder": "", "cats": ""}


def test_finished_datasets_are_not_evaluated_again(
    untrained: LoadedEncoder, tmp_path: Path, write_images: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {"digits": DIGITS, "cars2": photos(write_images)}  # a folder may be called nearly as a dataset
    config = LinearConfig("transfer", epochs=2, lr=0.1, min_scale=0.5)
    steps: list[tuple[str, float]] = []
    run = setup(tmp_path, lambda step, fraction: steps.append((step, fraction)))

    def broken(encoder: LoadedEncoder, data: DataConfig, *others: Any) -> Any:
        if data.name == "folder":
            raise KeyboardInterrupt
        return classifier_accuracy(encoder, data, *others)

    monkeypatch.setattr("ldreg.evaluate.classification.classifier_accuracy", broken)
    with pytest.raises(KeyboardInterrupt):
        transfer(untrained, sets, config, run)
    (first,) = (tmp_path / "work").rglob(LAST)
    stamp = first.stat().st_mtime_ns
    monkeypatch.undo()
    steps.clear()
    found = transfer(untrained, sets, config, run)
    assert list(found) == ["digits", "cars2"]
    assert first.stat().st_mtime_ns == stamp
    assert not [step for step, _ in steps if step.startswith("digits: epoch")]
    assert steps[-1][0].startswith("cars2: epoch 2/2")
    assert steps[-1][1] == 1.0
    # A file set in color and of another size goes through an encoder for 8x8 gray images; 16 images are one batch.
    cars = found["cars2"]
    assert (cars.train_images, cars.batch_size, cars.test_images) == (16, 16, 8)
    assert cars.accuracy > 0.5  # the classes differ in brightness
