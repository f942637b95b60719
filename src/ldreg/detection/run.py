"""Object detection and instance segmentation with an encoder: the training, the evaluation and the result."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from safetensors.torch import save_file
from torch import nn

from ldreg.detection.coco import CocoSplit, read_coco
from ldreg.detection.config import DetectionConfig
from ldreg.detection.model import MaskRCNN, build_model, check_encoder
from ldreg.detection.module import Detecting, Progress
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.io.files import check_writable, read_text, write_atomically
from ldreg.train.checkpoints import LAST, PREVIOUS, check_same, latest
from ldreg.train.engine import SAME_COMMAND, fit, interruptible, quiet
from ldreg.train.processes import check_hardware, exclusive, on_cuda

RESULT, WEIGHTS = "detection.json", "detector.safetensors"
_DISPLAY_STEPS = 20  # steps on a GPU between two displays of the loss, which make the host wait
# Settings that may differ when a training is resumed.
_CHANGEABLE = {"path", "schedule", "iterations", "warmup_iterations", "device", "workers", "checkpoint_iterations"}


@dataclass(frozen=True)
class DetectionResult:
    """Average precisions on the validation images, in [0, 1], after the last iteration.

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

    The same call resumes from the last checkpoint in `out`, or returns the result of a finished training.

    Args:
        encoder: a ResNet.
        config: how and on what.
        out: folder for checkpoints, the detector's weights (detector.safetensors) and the result (detection.json).
        progress: called with a text and the fraction that is done.

    Raises:
        ValueError: an encoder that is not a ResNet, data that is missing or broken, an `out` that another process uses
            or that was made with other settings, or an image that cannot be read.
        ArithmeticError: the loss became NaN; the last good checkpoint stays.
        InterruptedRunError: by a signal.
        OSError: a file cannot be written.
    """
    check_encoder(encoder)
    check_hardware(config.device, config.devices, 1, config.precision)
    train, val = read_coco(Path(config.path))
    settings = identity(encoder, config, train, val)
    out.mkdir(parents=True, exist_ok=True)
    with quiet(), exclusive(out):
        check_writable(out / RESULT)
        if (finished := _finished(out, settings)) is not None:
            return finished
        if saved := latest(out):
            check_same(saved.settings, settings, where=_where(saved.path))
        model = _model(encoder, config, classes=len(train.categories))
        module = Detecting(model, config, train=train, val=val, progress=progress)
        fitted = fit(
            module,
            out,
            settings,
            saved=saved,
            device=config.device,
            devices=config.devices,
            precision=config.precision,
            displays=[_Display(config.total_iterations, progress)] if progress else [],
            max_steps=config.total_iterations,
            max_epochs=-1,  # an epoch ends where a checkpoint is due
            reload_dataloaders_every_n_epochs=1,
            strategy="ddp" if config.devices > 1 else "auto",  # running statistics are those of the first process
            benchmark=False,  # images differ in size
            inference_mode=False,  # the evaluation begins with new statistics, which are written into buffers
        )
        with interruptible(fitted.trainer, out, SAME_COMMAND):
            fitted.trainer.test(module, verbose=False)
        dropped = train.dropped + val.dropped
        result = _result(module, config, minutes=fitted.minutes, images=len(val.scenes), dropped=dropped)
        if fitted.trainer.is_global_zero:
            _write(out, module, result, settings)
        return result


class _Display(Callback):
    """Show the loss of the training."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress = total, progress

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        done = trainer.global_step
        due = module.device.type == "cpu" or done % _DISPLAY_STEPS == 0 or done == self._total
        if due and trainer.is_global_zero:
            self._progress(f"iteration {done}/{self._total}, loss {outputs['loss'].item():.3f}", done / self._total)


def _model(encoder: LoadedEncoder, config: DetectionConfig, *, classes: int) -> MaskRCNN:
    """The detector before its first iteration, drawn by the seed."""
    torch.manual_seed(config.seed)
    model = build_model(encoder, config, classes=classes)
    if config.devices > 1 and on_cuda(config.device) and config.norm == "batch":
        return cast(MaskRCNN, nn.SyncBatchNorm.convert_sync_batchnorm(model))
    return model


def identity(encoder: LoadedEncoder, config: DetectionConfig, train: CocoSplit, val: CocoSplit) -> dict[str, Any]:
    """Everything that the result depends on."""
    fixed = {name: value for name, value in asdict(config).items() if name not in _CHANGEABLE}
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in fixed.items()},
        "iterations": config.total_iterations,
        "warmup_iterations": config.warmup,
        "encoder": encoder.key,
        "train2017": train.fingerprint,
        "val2017": val.fingerprint,
    }


def _where(file: Path) -> str:
    return f"out: expected a new folder or the settings that {file} was made with"


def _finished(out: Path, settings: dict[str, Any]) -> DetectionResult | None:
    """The result of a finished training; ValueError if it is of another training or cannot be read."""
    file = out / RESULT
    if not file.exists():
        return None
    try:
        content = json.loads(read_text(file))
        made, result = dict(content["settings"]), DetectionResult(**content["result"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file}: expected the result of a detector, got something else ({error})") from error
    check_same(made, settings, where=_where(file))
    return result


def _result(
    module: Detecting, config: DetectionConfig, *, minutes: float, images: int, dropped: int
) -> DetectionResult:
    box, mask = module.box, module.mask
    assert box is not None
    assert mask is not None
    precisions = (box.ap, box.ap50, box.ap75, mask.ap, mask.ap50, mask.ap75)
    return DetectionResult(*precisions, config.total_iterations, round(minutes, 2), images, dropped)


def _write(out: Path, module: Detecting, result: DetectionResult, settings: dict[str, Any]) -> None:
    """Write the detector and then its result, each in one step; remove the checkpoints."""
    weights = {name: value.detach().cpu().contiguous() for name, value in module.model.state_dict().items()}
    fresh = out / f"{WEIGHTS}.writing"
    save_file(weights, fresh, metadata={"format": "pt", "categories": json.dumps(module.categories)})
    fresh.replace(out / WEIGHTS)
    content = {"result": asdict(result), "settings": settings}
    write_atomically(out / RESULT, json.dumps(content, indent=2, allow_nan=False) + "\n")
    for name in (LAST, PREVIOUS):
        (out / name).unlink(missing_ok=True)
