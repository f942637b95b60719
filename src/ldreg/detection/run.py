"""An encoder in, its worth for object detection and instance segmentation out."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import nn

from ldreg.detection.coco import CocoSplit, read_coco
from ldreg.detection.config import DetectionConfig
from ldreg.detection.model import MaskRCNN, build_model, check_encoder
from ldreg.detection.module import Detecting, Progress
from ldreg.detection.train import CHECKPOINT, build_trainer, fit, on_cuda, peek
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.io.files import check_writable, read_text, write_atomically
from ldreg.notices import quiet

RESULT, WEIGHTS = "detection.json", "detector.safetensors"
# What may differ between the two parts of a training that was interrupted.
_ELSEWHERE = {"path", "schedule", "iterations", "warmup_iterations", "device", "workers", "checkpoint_iterations"}


@dataclass(frozen=True)
class DetectionResult:
    """What a detector reached on the validation images: average precisions, shares in [0, 1], after the last iteration.

    `images` were evaluated; `dropped` annotations had an empty box or mask; `minutes` are those of training and
    evaluation.
    """

    box_ap: float
    box_ap50: float
    box_ap75: float
    mask_ap: float
    mask_ap50: float
    mask_ap75: float
    iterations: int
    minutes: float
    images: int
    dropped: int

    def rows(self) -> list[tuple[str, str]]:
        """Names and values as people read them; precisions in percent, as papers have them.

        >>> DetectionResult(0.35, 0.55, 0.38, 0.31, 0.52, 0.33, 90000, 720.0, 5000, 0).rows()[0]
        ('box AP', '35.00')
        """
        names = ("box AP", "box AP50", "box AP75", "mask AP", "mask AP50", "mask AP75")
        shares = (getattr(self, name.lower().replace(" ", "_")) for name in names)
        return [
            *((name, f"{100 * share:.2f}") for name, share in zip(names, shares, strict=True)),
            ("iterations", f"{self.iterations:,}"),
            ("images evaluated", f"{self.images:,}"),
            ("annotations left out", f"{self.dropped:,}"),
            ("minutes", f"{self.minutes:.1f}"),
        ]


def detect(
    encoder: LoadedEncoder, config: DetectionConfig, *, out: Path, progress: Progress | None = None
) -> DetectionResult:
    """Fine-tune Mask R-CNN C4 from an encoder, and evaluate it on the validation images.

    The same call goes on from the last checkpoint in `out`, and gives the result that is there of a training that was
    finished. The result is written last and at once, so that a part of it is never there.

    Args:
        encoder: a ResNet.
        config: how and on what.
        out: folder for checkpoints, the detector's weights (detector.safetensors) and the result (detection.json).
        progress: told what is done, in words, and the share of it.

    Raises:
        ValueError: an encoder that is no ResNet, data that is missing or broken, settings other than those of what
            lies in `out`, or an image that cannot be read.
        ArithmeticError: the loss went NaN; the last good checkpoint stays.
        KeyboardInterrupt: by a signal; the message says where the training stands.
        OSError: a file cannot be written.
    """
    with quiet():
        check_encoder(encoder)
        trainer, checkpoints = build_trainer(config, out, progress=progress)
        train, val = read_coco(Path(config.path))
        known = identity(encoder, config, train, val)
        out.mkdir(parents=True, exist_ok=True)
        check_writable(out / RESULT)
        if (finished := _finished(out, known)) is not None:
            return finished
        if (out / CHECKPOINT).exists():
            _check_same(out / CHECKPOINT, peek(out / CHECKPOINT)[1], known)
        text = json.dumps(known, sort_keys=True)
        model = _model(encoder, config, classes=len(train.categories))
        module = Detecting(model, config, train=train, val=val, identity=text, progress=progress)
        fit(trainer, module, out)
        trainer.test(module, verbose=False)
        counts = {"images": len(val.scenes), "dropped": train.dropped + val.dropped}
        result = _result(module, config, minutes=checkpoints.seconds / 60, **counts)
        if trainer.is_global_zero:
            _write(out, module, result, known)
        return result


def _model(encoder: LoadedEncoder, config: DetectionConfig, *, classes: int) -> MaskRCNN:
    """The detector before its first iteration, the same for the same seed."""
    torch.manual_seed(config.seed)
    model = build_model(encoder, config, classes=classes)
    if config.devices > 1 and on_cuda(config.device) and config.norm == "batch":
        return cast(MaskRCNN, nn.SyncBatchNorm.convert_sync_batchnorm(model))
    return model


def identity(encoder: LoadedEncoder, config: DetectionConfig, train: CocoSplit, val: CocoSplit) -> dict[str, Any]:
    """Everything that a result depends on, by name."""
    told = {name: value for name, value in asdict(config).items() if name not in _ELSEWHERE}
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in told.items()},
        "iterations": config.total_iterations,
        "warmup_iterations": config.warmup,
        "encoder": encoder.key,
        "train2017": train.fingerprint,
        "val2017": val.fingerprint,
    }


def _check_same(file: Path, made: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    if differing := sorted(key for key in made.keys() | asked.keys() if made.get(key) != asked.get(key)):
        raise ValueError(
            f"out: expected a new folder or the settings that {file} was made with, "
            f"got others for {', '.join(differing)}"
        )


def _finished(out: Path, known: Mapping[str, Any]) -> DetectionResult | None:
    """The result of the same training that was finished before.

    Raises:
        ValueError: there is one of another training, or it cannot be read.
    """
    file = out / RESULT
    if not file.exists():
        return None
    try:
        told = json.loads(read_text(file))
        made, result = dict(told["settings"]), DetectionResult(**told["result"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file}: expected the result of a detector, got something else ({error})") from error
    _check_same(file, made, known)
    return result


def _result(
    module: Detecting, config: DetectionConfig, *, minutes: float, images: int, dropped: int
) -> DetectionResult:
    box, mask = module.box, module.mask
    assert box is not None
    assert mask is not None
    precisions = (box.ap, box.ap50, box.ap75, mask.ap, mask.ap50, mask.ap75)
    return DetectionResult(*precisions, config.total_iterations, round(minutes, 2), images, dropped)


def _write(out: Path, module: Detecting, result: DetectionResult, known: Mapping[str, Any]) -> None:
    """Leave the detector and its result; the checkpoint is not needed any more."""
    weights = {name: value.detach().cpu().contiguous() for name, value in module.model.state_dict().items()}
    fresh = out / f"{WEIGHTS}.writing"
    save_file(weights, fresh, metadata={"format": "pt", "categories": json.dumps(module.categories)})
    fresh.replace(out / WEIGHTS)
    content = {"result": asdict(result), "settings": known}
    write_atomically(out / RESULT, json.dumps(content, indent=2, allow_nan=False) + "\n")
    (out / CHECKPOINT).unlink(missing_ok=True)
