"""The paper's settings, scikit-learn's accuracy, learning on digits, and going on after an interruption."""

import logging
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
from ldreg.evaluate.classifier import Classifier, linear_head
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.features import features
from ldreg.evaluate.plans import augmentation, fitted_plan
from ldreg.evaluate.protocols import PROTOCOLS, FinetuneConfig, LinearConfig, finetune, linear_evaluation, usual_plan
from ldreg.io.locks import exclusive
from ldreg.optim import LARS, build_optimizer, build_scheduler
from ldreg.train.checkpoints import LAST
from ldreg.train.engine import InterruptedRunError

DIGITS, CPU = DataConfig(), Compute("cpu")
FAST: dict[str, Any] = {"min_scale": 0.5, "batch_size": 256}


def evaluate(encoder: LoadedEncoder, config: LinearConfig, path: Path, **more: Any) -> Any:
    return linear_evaluation(encoder, DIGITS, config, work=path / "work", cache=path / "cache", compute=CPU, **more)


def test_the_imagenet_protocol_is_that_of_the_papers_table() -> None:
    plan = PROTOCOLS["imagenet"]
    head = linear_head(8, 3, normalized=True, seed=0)
    optimizer = build_optimizer(head, plan.optimizer, batch_size=plan.batch_size)
    scheduler = build_scheduler(optimizer, plan.schedule, steps_per_epoch=312)
    assert isinstance(optimizer, LARS)
    assert (plan.batch_size, plan.schedule.epochs) == (4096, 90)
    weights, bias = optimizer.param_groups
    assert weights["lr"] == bias["lr"] == pytest.approx(0.1 * 4096 / 256)
    assert (weights["weight_decay"], weights["momentum"]) == (0, 0.9)
    # Cosine without warm-up: the peak at once, half of it half-way, 1e-6 at the end.
    lrs = []
    for _ in range(90 * 312):
        lrs.append(weights["lr"])
        optimizer.step()
        scheduler.step()
    assert lrs[0] == pytest.approx(1.6)
    assert lrs[45 * 312] == pytest.approx(0.8, rel=1e-5)
    assert weights["lr"] == pytest.approx(1e-6)


def test_the_transfer_protocol_is_that_of_the_papers_appendix() -> None:
    plan = PROTOCOLS["transfer"]
    optimizer = build_optimizer(linear_head(8, 3, normalized=True, seed=0), plan.optimizer, batch_size=512)
    assert isinstance(optimizer, torch.optim.SGD)
    weights = optimizer.param_groups[0]
    assert (plan.batch_size, plan.schedule.epochs) == (256, 30)
    assert (weights["lr"], weights["weight_decay"], weights["momentum"], weights["nesterov"]) == (
        0.01,
        5e-4,
        0.9,
        True,
    )
    assert (plan.schedule.warmup_epochs, plan.schedule.min_lr) == (0, 1e-6)


@pytest.mark.parametrize("kind", ["untrained", "pixels"])
def test_fast_equals_scikit_learns_logistic_regression(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
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
    assert found.accuracy > 0.9
    assert (found.best, found.epochs, found.test_images, found.train_images) == (None, 0, 360, 1437)


def test_a_fit_is_saved_for_each_strength(untrained: LoadedEncoder, tmp_path: Path) -> None:
    first = evaluate(untrained, LinearConfig("fast"), tmp_path)
    (saved,) = (tmp_path / "work").glob("*.json")
    stamp = saved.stat().st_mtime_ns
    assert evaluate(untrained, LinearConfig("fast"), tmp_path) == first
    assert saved.stat().st_mtime_ns == stamp
    assert evaluate(untrained, LinearConfig("fast", strength=3000), tmp_path).accuracy < first.accuracy


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "5.5", "null", '"text"', '{"accuracy": 0.1}', "\\xff", "[" * 100_000),
        '{"accuracy": NaN, "iterations": 3, "converged": true, "minutes": 0.1}',
        '{"accuracy": 5.5, "iterations": 3, "converged": true, "minutes": 0.1}',
        '{"accuracy": "0.9", "iterations": 3, "converged": true, "minutes": 0.1}',
        '{"accuracy": 0.9, "iterations": 3, "converged": true, "minutes": null}',
        '{"accuracy": 0.9, "iterations": 3, "converged": 1, "minutes": 0.1}',
        '{"accuracy": 0.9, "iterations": 3, "converged": true, "minutes": 0.1, "more": 0}',
    ],
)
def test_a_damaged_fit_is_repeated_with_a_warning(
    content: str, pixels: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LinearConfig("fast", strength=1000)
    first = evaluate(pixels, config, tmp_path)
    (saved,) = (tmp_path / "work").glob("*.json")
    saved.write_bytes(content.encode("latin-1"))
    assert replace(evaluate(pixels, config, tmp_path), minutes=first.minutes) == first
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"{saved}: cannot be used and is made again (")
    assert "\n" not in warning
    assert evaluate(pixels, config, tmp_path).accuracy == first.accuracy
    assert len(caplog.records) == 1


def test_a_saved_fit_that_did_not_converge_repeats_the_warning(
    pixels: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for times in (1, 2):
        evaluate(pixels, LinearConfig("fast", iterations=2), tmp_path)
        assert caplog.text.count("iterations: 2 did not bring the fit to its end") == times
    assert len(list((tmp_path / "work").glob("*.json"))) == 1


@pytest.mark.parametrize("strength", [0.0, 1e30])
def test_any_strength_within_bounds_ends(strength: float, pixels: LoadedEncoder, tmp_path: Path) -> None:
    assert 0 <= evaluate(pixels, LinearConfig("fast", strength=strength, iterations=5), tmp_path).accuracy <= 1


def test_few_steps_give_a_warning(pixels: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = evaluate(pixels, LinearConfig("transfer", epochs=3, batch_size=512), tmp_path)
    assert found.steps == 3 * 2
    warning = (
        "digits: only 6 optimizer steps: the protocol is made for larger sets; --batch_size, --epochs or --protocol"
    )
    assert caplog.text.count(warning) == 1
    caplog.clear()
    assert evaluate(pixels, LinearConfig("transfer", epochs=3, batch_size=14), tmp_path).steps == 3 * 102
    assert "optimizer steps" not in caplog.text


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
    assert found.accuracy == found.history[-1]["accuracy"]
    assert found.best == max(epoch["accuracy"] for epoch in found.history)
    assert len(found.history) == found.epochs == 8
    assert found.history[0]["loss"] > found.history[-1]["loss"]
    assert not untrained.module.training
    for name, value in untrained.module.state_dict().items():  # batch norms' statistics among them
        assert torch.equal(value, before[name])


def test_the_reported_accuracy_is_that_of_the_saved_head(untrained: LoadedEncoder, tmp_path: Path) -> None:
    found = evaluate(untrained, LinearConfig("transfer", epochs=2, **FAST), tmp_path)
    (path,) = (tmp_path / "work").rglob(LAST)
    state = torch.load(path, weights_only=True)["state_dict"]
    test = features(untrained, DIGITS, "test", device="cpu", cache=tmp_path / "cache")
    x = (test.representations - state["head.0.running_mean"]) / (state["head.0.running_var"] + 1e-5).sqrt()
    guessed = (x @ state["head.1.weight"].T + state["head.1.bias"]).argmax(1)
    assert found.accuracy == (guessed == test.labels).double().mean().item()
    assert not [name for name in state if name.startswith("encoder")]


def test_test_images_go_through_the_encoder_once(pixels: LoadedEncoder, tmp_path: Path) -> None:
    evaluate(pixels, LinearConfig("transfer", epochs=2, batch_size=1024), tmp_path)
    # One batch of 360 test images, and one training batch an epoch.
    assert pixels.module.calls == 1 + 2
    evaluate(pixels, LinearConfig("transfer", epochs=3, batch_size=1024), tmp_path)
    assert pixels.module.calls == 1 + 2 + 3
    evaluate(pixels, LinearConfig("transfer", epochs=3, batch_size=1024), tmp_path)  # finished before
    assert pixels.module.calls == 1 + 2 + 3


def stop_after(epochs: int) -> Callable[[str, float], None]:
    def progress(step: str, fraction: float) -> None:
        if step.startswith(f"epoch {epochs}/"):
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_evaluation_goes_on_bitwise(untrained: LoadedEncoder, tmp_path: Path) -> None:
    config = LinearConfig("transfer", epochs=4, lr=0.1, flip=0.5, **FAST)
    whole = evaluate(untrained, config, tmp_path / "whole")
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(InterruptedRunError, match="the same command goes on from step") as raised:
        evaluate(untrained, config, tmp_path / "broken", progress=stop_after(2))
    assert raised.value.status == 130
    assert signal.getsignal(signal.SIGINT) == handler
    steps: list[str] = []
    resumed = evaluate(untrained, config, tmp_path / "broken", progress=lambda step, _: steps.append(step))
    assert [step[:9] for step in steps if step.startswith("epoch")] == ["epoch 3/4", "epoch 4/4"]
    assert resumed.history == whole.history
    one, two = (
        torch.load(next((tmp_path / name / "work").rglob(LAST)), weights_only=True)["state_dict"]
        for name in ("whole", "broken")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_other_settings_do_not_go_on_from_a_checkpoint(untrained: LoadedEncoder, tmp_path: Path) -> None:
    config = LinearConfig("transfer", epochs=1, **FAST)
    evaluate(untrained, config, tmp_path)
    for other in (replace(config, lr=0.5), replace(config, seed=1), replace(config, flip=0.5)):
        evaluate(untrained, other, tmp_path)
    evaluate(replace(untrained, key="another"), config, tmp_path)
    assert len(list((tmp_path / "work").rglob(LAST))) == 5


def test_a_damaged_checkpoint_restarts_training_with_a_warning(
    untrained: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LinearConfig("transfer", epochs=2, **FAST)
    whole = evaluate(untrained, config, tmp_path)
    (path,) = (tmp_path / "work").rglob(LAST)
    path.write_bytes(path.read_bytes()[:1000])
    assert evaluate(untrained, config, tmp_path).history == whole.history
    assert "so training begins anew" in caplog.text


def test_a_folder_in_use_is_refused(untrained: LoadedEncoder, tmp_path: Path) -> None:
    config = LinearConfig("transfer", epochs=1, **FAST)
    evaluate(untrained, config, tmp_path)
    (path,) = (tmp_path / "work").rglob(LAST)
    with (
        exclusive(path.parent, path.parent / "lock"),
        pytest.raises(ValueError, match="no other process works on"),
    ):
        evaluate(untrained, config, tmp_path)


def test_bf16_trains_too(untrained: LoadedEncoder, tmp_path: Path) -> None:
    config = LinearConfig("transfer", epochs=4, lr=0.3, **FAST)
    found = linear_evaluation(
        untrained, DIGITS, config, work=tmp_path, cache=tmp_path, compute=Compute("cpu", precision="bf16")
    )
    assert found.accuracy > 0.7


def test_a_default_batch_too_large_is_reduced_with_a_warning(
    untrained: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = evaluate(untrained, LinearConfig("imagenet", epochs=1), tmp_path)
    assert (found.batch_size, found.lr) == (1024, pytest.approx(0.1 * 1024 / 256))
    assert caplog.text.count("batch_size: 1024 in place of 4096, as there are 1437 training images") == 1


@pytest.mark.parametrize(
    ("config", "images", "devices", "message"),
    [
        (
            LinearConfig("transfer", batch_size=300),
            299,
            1,
            "expected at most the 299 training images there are, got 300",
        ),
        (LinearConfig("transfer", batch_size=9), 299, 2, "expected a multiple of the 2 processes, of 2 each, got 9"),
        (LinearConfig("transfer", batch_size=2), 299, 2, "expected a multiple of the 2 processes, of 2 each, got 2"),
        (LinearConfig("transfer", lr=1e-7), 299, 1, "lr: expected a peak of at least 1e-06"),
        (LinearConfig("transfer"), 1, 1, "expected at most the 1 training images there are, got 256"),
    ],
)
def test_batches_that_do_not_fit_are_refused(config: LinearConfig, images: int, devices: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted_plan(PROTOCOLS["transfer"], config, images=images, devices=devices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "slow"}, "protocol: expected imagenet, transfer or fast, got 'slow'"),
        ({"protocol": "fast", "lr": 0.1}, "lr: expected to be left out, as protocol fast has none, got 0.1"),
        ({"protocol": "transfer", "strength": 1.0}, "strength: expected to be left out, as protocol transfer has none"),
        ({"protocol": "transfer", "epochs": 0}, "epochs: expected at least 1, got 0"),
        ({"protocol": "transfer", "batch_size": 1}, "batch_size: expected at least 2, got 1"),
        ({"protocol": "transfer", "lr": 0.0}, "lr: expected a number above 0 and at most 1e.30, got 0.0"),
        ({"protocol": "transfer", "weight_decay": -1.0}, "weight_decay: expected 0 to 1e.30, got -1.0"),
        ({"protocol": "transfer", "flip": 2.0}, "flip: expected between 0 and 1, got 2.0"),
        ({"protocol": "transfer", "min_scale": 0.0}, "min_scale: expected above 0 and at most 1, got 0.0"),
        ({"protocol": "fast", "strength": -1.0}, "strength: expected 0 to 1e.30, got -1.0"),
        ({"protocol": "fast", "iterations": 0}, "iterations: expected at least 1, got 0"),
        ({"protocol": "fast", "strength": 1e300}, "strength: expected 0 to 1e.30, got 1e.300"),
        ({"protocol": "transfer", "lr": 1e300}, "lr: expected a number above 0 and at most 1e.30, got 1e.300"),
        ({"protocol": "transfer", "weight_decay": 1e300}, "weight_decay: expected 0 to 1e.30, got 1e.300"),
        ({"protocol": "transfer", "seed": -1}, "seed: expected 0 to"),
        ({"protocol": "fast", "seed": 0}, "seed: expected to be left out, as protocol fast has none, got 0"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinearConfig(**options)


def test_digits_are_not_mirrored_by_default() -> None:
    config = LinearConfig("transfer")
    assert augmentation(config, DIGITS) == {"flip": 0.0, "min_scale": 0.08}
    assert augmentation(config, DataConfig("cifar10"))["flip"] == 0.5
    assert augmentation(replace(config, flip=0.3), DIGITS)["flip"] == 0.3


def test_representations_that_are_not_finite_are_refused(pixels: LoadedEncoder, tmp_path: Path) -> None:
    class Mirrored(nn.Module):
        """Finite on plain images, NaN on others."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = images.flatten(1)
            return x * float("nan") if torch.is_grad_enabled() or len(x) == 256 else x

    with pytest.raises(ValueError, match="expected finite representations, got NaN or inf for a training image"):
        evaluate(replace(pixels, module=Mirrored()), LinearConfig("transfer", epochs=1, **FAST), tmp_path)


def test_a_training_that_diverges_says_so(untrained: LoadedEncoder, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError, match=r"not finite (at|after) step"):
        evaluate(untrained, LinearConfig("transfer", epochs=1, lr=1e30, **FAST), tmp_path)
    assert not list((tmp_path / "work").rglob(LAST))


def test_the_draws_of_two_processes_are_those_of_one(untrained: LoadedEncoder) -> None:
    class Ranked:
        def __init__(self, rank: int, world: int) -> None:
            self.plan, self.current_epoch, self.device = PROTOCOLS["transfer"], 3, torch.device("cpu")
            self.global_rank, self.trainer = rank, type("Trainer", (), {"world_size": world})()

    whole = Classifier._drawn(Ranked(0, 1), 5, 8)  # type: ignore[arg-type]
    parts = [Classifier._drawn(Ranked(rank, 2), 5, 4) for rank in (0, 1)]  # type: ignore[arg-type]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(whole, Classifier._drawn(Ranked(0, 1), 6, 8))  # type: ignore[arg-type]


def test_lightning_logs_nothing(untrained: LoadedEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        evaluate(untrained, LinearConfig("transfer", epochs=1, **FAST), tmp_path)
    assert [record.name for record in caplog.records if record.name.startswith(("pytorch", "lightning"))] == []


def tune(encoder: LoadedEncoder, config: FinetuneConfig, path: Path, **more: Any) -> Any:
    return finetune(encoder, DIGITS, config, work=path, compute=CPU, **more)


def test_fine_tuning_has_the_published_settings() -> None:
    plan = usual_plan(0.1)
    assert (plan.optimizer.name, plan.optimizer.nesterov, plan.optimizer.weight_decay) == ("sgd", True, 0)
    assert replace(plan, batch_size=4096).peak_lr == pytest.approx(0.8)
    assert plan.schedule.epochs == 30
    assert usual_plan(0.01).schedule.epochs == 60


def test_fine_tuning_beats_a_probe_and_leaves_the_encoder_as_it_was(untrained: LoadedEncoder, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in untrained.module.state_dict().items()}
    found = tune(untrained, FinetuneConfig(epochs=4, lr=0.4, batch_size=64, min_scale=0.8), tmp_path)
    probe = linear_evaluation(
        untrained,
        DIGITS,
        LinearConfig("transfer", epochs=4, lr=0.1, batch_size=64, min_scale=0.8),
        work=tmp_path,
        cache=tmp_path,
        compute=CPU,
    )
    assert found.accuracy > 0.93 > probe.accuracy
    assert found.best >= found.accuracy == found.history[-1]["accuracy"]
    for name, value in untrained.module.state_dict().items():
        assert torch.equal(value, before[name])
    state = torch.load(next(tmp_path.rglob("finetune*/" + LAST)), weights_only=True)["state_dict"]
    moved = [name for name, value in before.items() if not torch.equal(state[f"encoder.{name}"], value)]
    assert set(moved) == set(before)  # batch norms' statistics among them


def test_fine_tuning_takes_a_part_of_the_images(untrained: LoadedEncoder, tmp_path: Path) -> None:
    found = tune(untrained, FinetuneConfig(epochs=1, fraction=0.1), tmp_path)
    assert (found.train_images, found.test_images, found.batch_size) == (142, 360, 128)


def test_interrupted_fine_tuning_goes_on_bitwise(untrained: LoadedEncoder, tmp_path: Path) -> None:
    config = FinetuneConfig(epochs=3, batch_size=128, fraction=0.5)
    whole = tune(untrained, config, tmp_path / "whole")

    def stop(step: str, fraction: float) -> None:
        if step.startswith("epoch 1/"):
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match=r"goes on from step 5\b"):
        tune(untrained, config, tmp_path / "broken", progress=stop)
    assert tune(untrained, config, tmp_path / "broken").history == whole.history
    one, two = (
        torch.load(next((tmp_path / name).rglob(LAST)), weights_only=True)["state_dict"] for name in ("whole", "broken")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.gpu
def test_on_a_gpu_it_learns_too_and_the_encoder_comes_back(untrained: LoadedEncoder, tmp_path: Path) -> None:
    config = LinearConfig("transfer", epochs=8, lr=0.1, min_scale=0.5, batch_size=64)
    for precision in ("fp32", "bf16"):
        found = linear_evaluation(
            untrained,
            DIGITS,
            config,
            work=tmp_path,
            cache=tmp_path,
            compute=Compute("cuda", precision=precision),
        )
        assert found.accuracy > 0.85
    assert {parameter.device.type for parameter in untrained.module.parameters()} == {"cpu"}
    fast = [
        linear_evaluation(
            untrained, DIGITS, LinearConfig("fast"), work=tmp_path, cache=tmp_path, compute=Compute(device)
        )
        for device in ("cpu", "cuda")
    ]
    assert fast[0].accuracy == pytest.approx(fast[1].accuracy, abs=0.01)
