"""Whole trainings: they learn, resume exactly, stop on NaN, and never leave a part of a result."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ldreg.encoders import LoadedEncoder
from ldreg.evaluate.detection import DetectionConfig
from ldreg.evaluate.detection.coco import Scene, encode, rasterize, read_split, write_generated
from ldreg.evaluate.detection.model import Res5Heads
from ldreg.evaluate.detection.run import (
    RESULT,
    WEIGHTS,
    DetectionResult,
    average_precision,
    detect,
    in_coco_format,
)
from ldreg.train.checkpoints import LAST, latest
from ldreg.train.engine import InterruptedRunError

Encoders = Callable[..., LoadedEncoder]
Finished = tuple[Path, DetectionResult, list[str]]


def quick(root: Path, **options: Any) -> DetectionConfig:
    small: dict[str, Any] = {
        "iterations": 4,
        "batch_size": 2,
        "train_sizes": (48, 64),
        "test_size": 64,
        "anchor_sizes": (16, 32),
        "regions": 8,
        "precise_iterations": 2,
        "device": "cpu",
        "workers": 0,
        "checkpoint_iterations": 2,
    }
    return DetectionConfig(str(root), **{**small, **options})


def interrupted_at(iteration: int) -> Callable[[str, float], None]:
    def progress(text: str, share: float) -> None:
        if text.startswith(f"iteration {iteration}/"):
            raise KeyboardInterrupt

    return progress


def saved_step(folder: Path) -> int:
    saved = latest(folder)
    assert saved is not None
    return saved.step


@pytest.fixture(scope="module")
def finished(encoder: Encoders, generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A training that ran through, and what it told."""
    out, told = tmp_path_factory.mktemp("runs") / "whole", []

    def progress(text: str, share: float) -> None:
        assert 0 <= share <= 1
        told.append(text)

    return out, detect(encoder(), quick(generated), out=out, progress=progress), told


def test_a_whole_training(finished: Finished) -> None:
    out, result, told = finished
    assert {path.name for path in out.iterdir()} == {RESULT, WEIGHTS}
    assert (result.iterations, result.images, result.dropped) == (4, 3, 0)
    assert 0 <= result.box_ap <= result.box_ap50 <= 1
    assert told[0].startswith("iteration 1/4, loss ")
    assert told[-1] == "evaluating"
    written = json.loads((out / RESULT).read_text())
    assert DetectionResult(**written["result"]) == result
    assert result.rows()["iterations"] == "4"


def test_an_interrupted_training_ends_the_same(
    encoder: Encoders, generated: Path, tmp_path: Path, finished: Finished
) -> None:
    out = tmp_path / "run"
    with pytest.raises(
        InterruptedRunError, match="interrupted at step 3; the same command goes on from step 2"
    ) as raised:
        detect(encoder(), quick(generated), out=out, progress=interrupted_at(3))
    assert raised.value.status == 130
    assert {path.name for path in out.iterdir()} == {LAST}
    told: list[str] = []
    # Where checkpoints fall, and how many processes read, changes nothing.
    options = quick(generated, checkpoint_iterations=3, workers=1)
    result = detect(encoder(), options, out=out, progress=lambda text, _: told.append(text))
    assert told[0].startswith("iteration 3/4")
    whole, expected, _ = finished
    assert replace(result, minutes=0.0) == replace(expected, minutes=0.0)
    one, other = load_file(whole / WEIGHTS), load_file(out / WEIGHTS)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_finished_training_is_not_done_twice(
    encoder: Encoders, generated: Path, finished: Finished, tmp_path: Path
) -> None:
    out, result, _ = finished
    told: list[str] = []
    assert detect(encoder(), quick(generated), out=out, progress=lambda text, _: told.append(text)) == result
    assert told == []
    with pytest.raises(ValueError, match=r"^out: expected .* got others for lr, seed"):
        detect(encoder(), quick(generated, seed=1, lr=0.1), out=out)
    (tmp_path / RESULT).write_text("{")
    with pytest.raises(ValueError, match=f"{RESULT}: expected the result of a detector"):
        detect(encoder(), quick(generated), out=tmp_path)


@pytest.mark.parametrize("moment", ["iteration 3", "evaluating"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_it_with_the_code_that_a_shell_expects(
    number: int, status: int, moment: str, encoder: Encoders, generated: Path, tmp_path: Path, finished: Finished
) -> None:
    def progress(text: str, share: float) -> None:
        if text.startswith(moment):
            signal.raise_signal(number)

    with pytest.raises(InterruptedRunError) as raised:
        detect(encoder(), quick(generated), out=tmp_path, progress=progress)
    assert raised.value.status == status
    assert saved_step(tmp_path) == (4 if moment == "evaluating" else 2)
    assert not (tmp_path / RESULT).exists()
    if moment == "evaluating":  # which is repeated
        result = detect(encoder(), quick(generated), out=tmp_path)
        assert replace(result, minutes=0.0) == replace(finished[1], minutes=0.0)


def test_checkpoints_of_others_are_refused(encoder: Encoders, generated: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        detect(encoder(), quick(generated), out=tmp_path, progress=interrupted_at(3))
    with pytest.raises(ValueError, match=r"got others for encoder$"):
        detect(replace(encoder(), key="another"), quick(generated), out=tmp_path)
    (tmp_path / LAST).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="expected a checkpoint of ldreg, got one that cannot be read"):
        detect(encoder(), quick(generated), out=tmp_path)


def test_a_loss_that_is_not_finite_stops_it(
    encoder: Encoders, generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = Res5Heads.forward, []

    def broken(self: Res5Heads, *args: Any) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        calls.append(1)
        found, losses = plain(self, *args)
        return found, losses if len(calls) < 4 else {**losses, "box": losses["box"] * float("nan")}

    monkeypatch.setattr(Res5Heads, "forward", broken)
    with pytest.raises(ArithmeticError, match=r"the loss is not finite at step 4: .*box = nan"):
        detect(encoder(), quick(generated), out=tmp_path)
    assert saved_step(tmp_path) == 2  # the last good one
    assert not (tmp_path / RESULT).exists()


def test_a_detector_that_finds_nothing_has_precision_zero(
    encoder: Encoders, generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Res5Heads.__init__

    def strict(self: Res5Heads, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        self.score_thresh = 2.0

    monkeypatch.setattr(Res5Heads, "__init__", strict)
    result = detect(encoder(), quick(generated, iterations=1, norm="frozen"), out=tmp_path)
    assert [value for name, value in result.rows().items() if "AP" in name] == ["0.00"] * 6


def test_what_is_wrong_is_said_before_training(encoder: Encoders, copied: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="expected a ResNet"):
        detect(encoder("small_cnn"), quick(tmp_path / "nowhere"), out=out)
    with pytest.raises(ValueError, match="precision: expected fp32 or bf16 on a CPU"):
        detect(encoder(), quick(copied, precision="fp16"), out=tmp_path / "unused")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device: expected a CUDA device"):
            detect(encoder(), quick(copied, device="cuda"), out=out)
    (copied / "annotations" / "instances_val2017.json").write_text("")
    with pytest.raises(ValueError, match="got an empty file"):
        detect(encoder(), quick(copied), out=out)
    assert not out.exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_read_is_named(encoder: Encoders, copied: Path, tmp_path: Path, workers: int) -> None:
    for file in (copied / "train2017").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"\.png: expected an image, .*$") as error:
        detect(encoder(), quick(copied, workers=workers), out=tmp_path / "out")
    assert "\n" not in str(error.value)


def overfit(root: Path, encoder: LoadedEncoder, **options: Any) -> None:
    """Train on a few images, and evaluate on the same."""
    write_generated(root / "coco", train=4, val=1, size=96)
    for kind in ("train2017", "annotations/instances_train2017.json"):
        same = root / "coco" / kind.replace("train", "val")
        shutil.rmtree(same) if same.is_dir() else same.unlink()
        same.symlink_to(root / "coco" / kind)
    for block in encoder.module.modules():
        if isinstance(norm := getattr(block, "bn2", None), nn.BatchNorm2d):
            nn.init.ones_(norm.weight)  # which start at 0: good for long trainings, slow in short ones
    small = {"train_sizes": (72,), "test_size": 72, "anchor_sizes": (16, 32, 64), "regions": 16, "flip": 0.0}
    long = {"iterations": 170, "precise_iterations": 10, "checkpoint_iterations": 1000}
    lr = 0.12  # for a batch of 16; 0.015 here
    result = detect(encoder, quick(root / "coco", lr=lr, **{**small, **long, **options}), out=root / "out")
    assert result.box_ap50 > 0.9
    assert result.mask_ap50 > 0.9
    assert result.images == 4


@pytest.mark.slow
def test_a_resnet18_overfits(encoder: Encoders, tmp_path: Path) -> None:
    overfit(tmp_path, encoder("resnet18"))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resnet18_overfits_on_a_gpu(encoder: Encoders, tmp_path: Path, precision: str) -> None:
    overfit(tmp_path, encoder("resnet18"), device="cuda", precision=precision, regions=64)


TWO_PROCESSES = """
import sys
from pathlib import Path

import torch

from ldreg.encoders import EncoderConfig, LoadedEncoder, build_encoder
from ldreg.evaluate.detection import DetectionConfig
from ldreg.evaluate.detection.run import detect

torch.manual_seed(0)
config = EncoderConfig("test_resnet")
encoder = LoadedEncoder(build_encoder(config, channels=3, size=64).eval(), config, 3, 64, "imagenet", "timm", "key")
settings = DetectionConfig(
    sys.argv[1], iterations=4, batch_size=4, train_sizes=(64,), test_size=64, anchor_sizes=(16, 32), regions=8,
    precise_iterations=2, device="cpu", workers=0, checkpoint_iterations=2, devices=2,
)
result = detect(encoder, settings, out=Path(sys.argv[2]))
print(result.box_ap, result.images)
"""


@pytest.mark.slow
def test_two_processes_share_the_work(generated: Path, tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, generated, out], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert len(lines) == 2
    assert len(set(lines)) == 1  # both know the whole result
    assert lines[0].endswith(" 3")
    assert {path.name for path in out.iterdir()} == {RESULT, WEIGHTS}


def truth(root: Path) -> tuple[Any, list[dict[str, Any]]]:
    train = read_split(root, "train2017")
    ids = list(train.categories)
    found = [
        {
            "image_id": scene.id,
            "category_id": ids[one.label - 1],
            "score": 0.9,
            "bbox": [one.box[0], one.box[1], one.box[2] - one.box[0], one.box[3] - one.box[1]],
            "segmentation": encode(
                torch.from_numpy(rasterize(one.segmentation, height=scene.height, width=scene.width))[None]
            )[0],
        }
        for scene in train.scenes
        for one in scene.instances
    ]
    return train.annotations, found


def test_the_truth_is_perfect_and_nothing_is_worth_nothing(generated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    annotations, found = truth(generated)
    for kind in ("bbox", "segm"):
        assert average_precision(annotations, found, kind=kind) == (1.0, 1.0, 1.0)
        assert average_precision(annotations, [], kind=kind) == (0.0, 0.0, 0.0)
    assert capsys.readouterr().out == ""


def test_wrong_classes_and_shifted_boxes_cost(generated: Path) -> None:
    annotations, found = truth(generated)
    confused = [{**one, "category_id": {1: 3, 3: 7, 7: 1}[one["category_id"]]} for one in found]
    assert average_precision(annotations, confused, kind="bbox")[1] < 0.2
    # Two thirds of a box moved by a fifth of it overlap: (1 - 0.2) / (1 + 0.2).
    moved = [{**one, "bbox": [one["bbox"][0] + 0.2 * one["bbox"][2], *one["bbox"][1:]]} for one in found]
    precision = average_precision(annotations, moved, kind="bbox")
    assert precision == pytest.approx((0.4, 1.0, 0.0))  # 0.50, 0.55, 0.60, 0.65 of ten overlaps
    assert average_precision(annotations, moved, kind="segm")[0] == 1.0  # the masks did not move


def test_detections_go_back_to_the_original_size() -> None:
    scene = Scene(5, "", height=100, width=200, instances=())
    detections = {
        "boxes": torch.tensor([[10.0, 20.0, 110.0, 120.0], [-9.0, 0.0, 900.0, 20.0], [450.0, 0.0, 500.0, 20.0]]),
        "labels": torch.tensor([2, 1, 1]),
        "scores": torch.tensor([0.75, 0.5, 0.25]),
        "masks": torch.ones(3, 14, 14),
    }
    first, second = in_coco_format(detections, scene, shape=(200, 400), categories={4: "cat", 8: "dog"})
    assert (first["image_id"], first["category_id"], first["score"]) == (5, 8, 0.75)
    assert (first["bbox"], second["bbox"]) == ([5.0, 10.0, 50.0, 50.0], [0.0, 0.0, 200.0, 10.0])
    assert second["category_id"] == 4
    mask = rasterize(first["segmentation"], height=100, width=200)
    assert mask[10:60, 5:55].sum() == mask.sum() == 50 * 50 - 4  # at a corner, a mask fades out along both sides
