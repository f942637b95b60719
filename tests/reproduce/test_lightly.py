"""Lightly's recipe: its pixels, loss and schedule, that it goes on where it stood, and its measures, each by hand."""

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightly.models import ResNetGenerator
from lightly.utils.benchmarking import knn_predict
from PIL import Image
from tests.reproduce.words import CLASSES, SIZE, as_archive, draw
from torch import Tensor, nn
from torch.nn import functional
from torchvision import transforms
from torchvision.datasets import ImageFolder

from ldreg.data import DataConfig, ResidentImages, load_images
from ldreg.evaluate.measure import linear_accuracy, measure
from ldreg.record import Record
from ldreg.reproduce import lightly
from ldreg.reproduce.jobs import ADDED_LATER, Job, Workspace
from ldreg.reproduce.lightly import EpochLog, LightlySimCLR, Pictures, batches, find_checkpoint, train
from ldreg.reproduce.runs import one
from ldreg.reproduce.studies import SCALES, STUDIES, Arm
from ldreg.train.checkpoints import SETTINGS
from ldreg.train.engine import InterruptedRunError

K, EPOCHS, BATCH = 8, 3, 32
COUNTS = {"train": 26, "test": 10}  # of every class: 78 and 30, so that two batches of 32 leave 14 images out


@dataclass(frozen=True)
class Made:
    """A run that was interrupted in its second epoch and went on."""

    folder: Path
    job: Job
    place: Workspace
    record: Record
    interruption: InterruptedRunError
    said: tuple[list[str], list[str]]  # before and after
    rates: list[float]  # of every step


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    top = tmp_path_factory.mktemp("anchor")
    folder = draw(top / "images", COUNTS)
    asked, place = small(), workspace(top, ("data.path", str(as_archive(folder))))
    assert place.state(asked) == "missing"
    first: list[str] = []
    second: list[str] = []
    rates: list[float] = []
    step = LightlySimCLR.training_step

    def watched(module: Any, batch: Any, batch_idx: int) -> Tensor:
        rates.append(module.optimizers().param_groups[0]["lr"])
        return step(module, batch, batch_idx)

    def interrupt(message: str) -> None:
        first.append(message)
        if len(first) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LightlySimCLR, "training_step", watched)
        patch.setattr(lightly, "say", interrupt)
        with pytest.raises(InterruptedRunError) as caught:
            one(asked, place)
        assert place.state(asked) == "to continue"
        patch.setattr(lightly, "say", second.append)
        one(asked, place)
    assert place.state(asked) == "done"
    record = Record.from_json(place.record_path(asked))
    return Made(folder, asked, place, record, caught.value, (first, second), rates)


def small(**options: object) -> Job:
    known = {"batch_size": BATCH, "schedule__epochs": EPOCHS, "trainer__precision": "fp32", **options}
    return Job(Arm("cifar10/simclr_lightly", by="lightly").but(**known), 0)


def workspace(out: Path, *options: tuple[str, str]) -> Workspace:
    here = (("data.cache", str(out / "cache")), ("data.workers", "0"), ("trainer.device", "cpu"))
    (out / "results").mkdir(parents=True, exist_ok=True)
    return Workspace(replace(SCALES["cifar10"], k=K), out, out / "results", options=(*here, *options))


def training_images(made: Made) -> ResidentImages:
    images = load_images(made.place.settings(made.job).data, "train")
    assert isinstance(images, ResidentImages)
    return images


def test_an_interrupted_run_goes_on_after_its_last_whole_epoch(made: Made) -> None:
    before, after = made.said
    assert [line.rsplit(", ", 1)[0] for line in before] == ["lightly, epoch 1/3", "lightly, epoch 2/3"]
    assert [line.rsplit(", ", 1)[0] for line in after] == ["lightly, epoch 2/3", "lightly, epoch 3/3"]
    assert made.interruption.status == 130
    assert "interrupted at step 4; the same command goes on from step 2" in str(made.interruption)
    losses, speeds, seconds = (dict(made.record.curves[name]) for name in ("loss", "images_per_second", "seconds"))
    assert list(losses) == list(speeds) == list(seconds) == [1, 2, 3]
    assert 0 < seconds[1] < seconds[2] < seconds[3] <= 60 * made.record.results["minutes"]
    for epoch, line in ((1, before[0]), (2, after[0]), (3, after[1])):
        assert f"loss {losses[epoch]:.4f} " in line
    assert f"loss {losses[2]:.4f} " not in before[1], "the views of the first epoch again"
    # The first epoch of each process starts workers and warms up; the third is the one left.
    assert made.record.results["images_per_second"] == speeds[3]


def test_the_optimizer_is_that_of_the_benchmark_through_an_interruption(made: Made) -> None:
    top = 0.06 * BATCH / 128
    wanted = [top / 2 * (1 + math.cos(math.pi * epoch / EPOCHS)) for epoch in (0, 1, 1, 2)]
    assert made.rates == pytest.approx(np.repeat(wanted, sum(COUNTS["train"] for _ in CLASSES) // BATCH).tolist())
    [optimizer], _ = LightlySimCLR(small(batch_size=512).settings).configure_optimizers()
    [group] = optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (0.24, 0.9, 5e-4, False)


def test_a_finished_run_is_measured_again_but_not_trained(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(lightly, "say", said.append)
    state = torch.get_rng_state()
    one(made.job, made.place)
    again = Record.from_json(made.place.record_path(made.job))
    assert torch.equal(torch.get_rng_state(), state)
    assert said == []
    assert again.curves == made.record.curves
    same = made.record.results.keys() - {"minutes"}
    assert {key: again.results[key] for key in same} == {key: made.record.results[key] for key in same}
    assert again.results["minutes"] == pytest.approx(made.record.results["minutes"], abs=1), "a loaded machine is slow"


def test_measures_are_those_of_the_backbone_on_plain_normalized_images(made: Made) -> None:
    x, y = by_hand(made, "train")
    x_test, y_test = by_hand(made, "test")
    results = made.record.results
    found = measure(x_test, k=K)
    assert {name: results[name] for name in ("lid", "effective_rank")} == pytest.approx(
        {name: found[name] for name in ("lid", "effective_rank")}, rel=1e-3
    )
    unit, unit_test = functional.normalize(x), functional.normalize(x_test)
    votes = knn_predict(unit_test, unit.T, y, len(CLASSES), knn_k=len(x), knn_t=0.1)
    assert results["knn"] == pytest.approx((votes[:, 0] == y_test).float().mean().item())
    assert results["linear"] == pytest.approx(linear_accuracy(x, y, x_test, y_test).accuracy)
    assert results["linear"] > 0.8, "the tint tells the classes"


def by_hand(made: Made, split: str) -> tuple[Tensor, Tensor]:
    """Representations from the checkpoint's weights in lightly's own model, of images read by torchvision."""
    network = ResNetGenerator("resnet-18")
    names = ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"]
    weights = checkpoint(made)["state_dict"]
    for number, name in enumerate(names):
        prefix = f"backbone.{number}."
        part = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
        network.get_submodule(name).load_state_dict(part)
    network.eval()
    plain = transforms.Compose([
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])  # fmt: skip
    pairs = list(ImageFolder(str(made.folder / split), plain))
    x = torch.stack([image for image, _ in pairs])
    with torch.no_grad():
        for name in names:
            x = network.get_submodule(name)(x)
    return x.mean((2, 3)), torch.tensor([label for _, label in pairs])


def checkpoint(made: Made) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(made.place.folder(made.job).path / "last.ckpt", weights_only=True)
    return content


def test_the_record_tells_the_recipe_and_where_it_comes_from(made: Made) -> None:
    record, asked = made.record, made.job
    assert record.name == asked.name == "simclr_by_lightly-batch_size32-epochs3-trainer.precision=fp32-seed0"
    assert {**record.settings} == {**asked.expected}
    told = {"by": "lightly", "method": "simclr", "batch_size": 32, "seed": 0, "schedule.epochs": 3}
    assert told.items() <= record.settings.items()
    # Our linear scaling is from batches of 256, lightly's from 128.
    assert (record.settings["optimizer.lr"], record.settings["optimizer.lr_scaling"]) == (0.12, "linear")
    assert {*STUDIES["anchor"].metrics} <= record.results.keys()
    origin = record.origin
    assert origin["command"] == asked.command
    assert "lightly 1." in str(origin["version"])
    assert (origin["seed"], origin["epochs"], origin["held_out"], origin["workers"]) == (0, 3, 30, 0)
    assert {"commit", "hardware"} <= origin.keys()
    assert 0 < record.results["minutes"] < 2
    assert origin["minutes"] == pytest.approx(record.results["minutes"], abs=1e-4)
    assert (record.points, record.k) == (30, K)


def test_a_checkpoint_of_another_run_is_refused_and_one_from_before_a_setting_existed_is_not(
    made: Made, tmp_path: Path
) -> None:
    content = checkpoint(made)
    told = json.loads(content[SETTINGS])
    older = {key: value for key, value in told.items() if key not in ADDED_LATER}

    def found(settings: dict[str, Any]) -> int:
        torch.save({**content, SETTINGS: json.dumps(settings)}, tmp_path / "last.ckpt")
        saved = find_checkpoint(tmp_path, made.job.expected)
        assert saved is not None
        return saved.epoch

    assert found(told) == found(older) == 2
    for base, key, value in (
        (told, "optimizer.decay_all", False),
        (older, "seed", 1),
        (told, "schedule.epochs", 4),
    ):
        with pytest.raises(ValueError, match=f"expected the settings of this run, got others for {re.escape(key)}$"):
            found({**base, key: value})


def test_what_cannot_be_measured_is_refused_before_training(tmp_path: Path) -> None:
    alone, mixed = draw(tmp_path / "alone", {"train": 12}), draw(tmp_path / "mixed", {"train": 12, "test": 4})
    for index in range(12):
        Image.new("RGB", (9 + index, 8)).save(mixed / "train" / "red" / f"{index:02}.png")
    for path, message in ((alone, "expected a folder test or val"), (mixed, "data: expected square images of one")):
        with pytest.raises(ValueError, match=message):
            train(small(data__name="folder", batch_size=8), workspace(tmp_path / "out", ("data.path", str(path))))
    assert not (tmp_path / "out" / "runs").exists()


def test_lightly_gets_the_archives_pixels(made: Made) -> None:
    pictures = Pictures(training_images(made))
    read = ImageFolder(str(made.folder / "train"))
    assert len(pictures) == len(read) == 78
    for (picture, label), (image, number) in zip((pictures[index] for index in range(78)), read, strict=True):
        assert label == number
        assert np.array_equal(np.asarray(picture), np.asarray(image))
    gray = load_images(DataConfig(), "test")
    assert isinstance(gray, ResidentImages)
    picture, _ = Pictures(gray)[7]
    assert np.array_equal(np.asarray(picture), np.repeat(gray.images[7].numpy()[0, :, :, None], 3, 2))


def test_batches_are_two_different_normalized_views_of_the_same_images(made: Made) -> None:
    images = training_images(made)
    found = list(batches(images, made.place.settings(made.job), size=SIZE, pin=False))
    assert len(found) == 2
    (first, second), labels, names = found[0]
    assert first.shape == second.shape == (BATCH, 3, SIZE, SIZE)
    assert not torch.equal(first, second)
    indices = torch.tensor([int(name) for name in names])
    assert not torch.equal(indices, indices.sort().values), "in the order of the archive"
    assert torch.equal(labels, images.labels[indices])
    # Black is (0 - mean) / deviation of ImageNet, white (1 - mean) / deviation: no value lies beyond.
    mean, deviation = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = torch.cat([first, second]) * deviation + mean
    assert -1e-5 < pixels.min() < 0.2 and 0.8 < pixels.max() < 1 + 1e-5  # noqa: PT018


def test_the_loss_is_that_of_simclr() -> None:
    torch.manual_seed(0)
    module = LightlySimCLR(small().settings).double()
    views = torch.randn(2, 6, 3, SIZE, SIZE, dtype=torch.float64)
    loss = module.training_step(((views[0], views[1]), None, None), 0)
    head = module.projection_head.layers
    assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear, nn.BatchNorm1d]
    z = torch.cat([head(module.backbone(view)) for view in views])
    z = z / z.norm(dim=1, keepdim=True)
    similar = (z @ z.T / 0.5).fill_diagonal_(-math.inf)
    terms = [similar[i].logsumexp(0) - similar[i, (i + 6) % 12] for i in range(12)]
    assert loss.item() == pytest.approx(torch.stack(terms).mean().item())


def test_speed_is_the_median_without_the_epochs_that_a_process_begins_with() -> None:
    log = EpochLog()
    speeds = [(10.0, 1.0), (100.0, 0.0), (20.0, 1.0), (300.0, 0.0), (120.0, 0.0)]
    epochs = [{"loss": 1.0, "speed": speed, "first": first} for speed, first in speeds]
    for seen, speed in ((epochs[:1], 10.0), (epochs, 120.0)):
        log.load_state_dict({"epochs": seen, "seconds": 60.0})
        assert log.speed == speed
        assert log.curves["images_per_second"] == [(number, one["speed"]) for number, one in enumerate(seen, 1)]
        assert log.curves["seconds"] == [], "as in old checkpoints"
        assert log.state_dict() == {"epochs": seen}


def test_worker_processes_and_mixed_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = small(data__name="shapes", data__limit=64, schedule__epochs=2, trainer__precision="bf16")
    place = workspace(tmp_path, ("data.workers", "1"))
    one(asked, place)
    record = Record.from_json(place.record_path(asked))
    assert record.settings["trainer.precision"] == "bf16"
    assert record.origin["workers"] == 1
    assert all(math.isfinite(value) for value in record.results.values())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lightly")]
    assert [line.rsplit(", ", 1)[0] for line in lines] == ["lightly, epoch 1/2", "lightly, epoch 2/2"]
