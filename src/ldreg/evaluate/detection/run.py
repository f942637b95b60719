"""Object detection and instance segmentation with an encoder: the training, the evaluation and the result."""

import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal, cast

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_fabric.utilities import move_data_to_device
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from pytorch_lightning.callbacks import LambdaCallback
from safetensors.torch import save_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from ldreg.data.config import DataConfig, worker_count
from ldreg.data.images import derived_seed
from ldreg.distributed import active, world
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.detection import DetectionConfig
from ldreg.evaluate.detection.coco import CocoSplit, Scene, encode, read_coco
from ldreg.evaluate.detection.model import Detections, MaskRCNN, build_model, check_encoder, paste
from ldreg.evaluate.detection.samples import IterationOrder, TestSamples, TrainingSamples, readable
from ldreg.evaluate.extract import torch_device
from ldreg.evaluate.features import Progress
from ldreg.io.files import check_writable, exclusive, read_text, write_atomically
from ldreg.record import PRECISIONS
from ldreg.train.checkpoints import LAST, PREVIOUS, check_same, latest
from ldreg.train.engine import SAME_COMMAND, check_hardware, fit, interruptible, quiet

CocoDetection = dict[str, Any]  # a detection in COCO's result format
Precision = tuple[float, float, float]  # over overlaps of 0.5 to 0.95, at 0.5, and at 0.75
RESULT, WEIGHTS = "detection.json", "detector.safetensors"
_MADE_WITH = "out: expected a new folder or the settings that {} was made with"
_DISPLAY_STEPS = 20  # steps on a GPU between two displays of the loss
# Settings that may differ when a training is resumed.
_CHANGEABLE = {"path", "schedule", "iterations", "warmup_iterations", "device", "workers", "checkpoint_iterations"}


class DetectorTraining(pl.LightningModule):
    """A detector with its data and optimizer.

    The images of an iteration, their augmentation and the sampled regions are functions of the seed, the iteration and
    the rank, so that a training can be resumed at a checkpoint.
    """

    def __init__(
        self, model: MaskRCNN, config: DetectionConfig, train: CocoSplit, val: CocoSplit, progress: Progress | None
    ) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.precisions: dict[Literal["bbox", "segm"], Precision] = {}
        self._train, self._val, self._progress = train, val, progress
        self._found: list[CocoDetection] = []
        self._workers = worker_count(DataConfig(workers=config.workers), processes=config.devices)

    def train_dataloader(self) -> Any:
        """The batches up to the next checkpoint."""
        done, every = self.trainer.global_step, self.config.checkpoint_iterations
        # After the last iteration Lightning asks once more, draws nothing, and would warn of an empty loader.
        return self._batches(done, max(done + 1, min(self.config.total_iterations, (done // every + 1) * every)))

    def training_step(self, batch: Any, batch_index: int) -> dict[str, Any]:
        """The sum of the losses, and each of them."""
        torch.manual_seed(derived_seed(self.config.seed, self.trainer.global_step, self.global_rank))
        losses, _ = self.model(batch)
        return {"loss": torch.stack(tuple(losses.values())).sum(), "terms": {k: v.detach() for k, v in losses.items()}}

    def configure_optimizers(self) -> Any:
        """SGD, stepped down twice."""
        config = self.config
        optimizer = SGD(parameter_groups(self.model, config), lr=config.peak_lr, momentum=config.momentum)
        schedule = LambdaLR(
            optimizer, lambda step: lr_factor(step, total=config.total_iterations, warmup=config.warmup)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Samples on the device."""
        checked = [(one[0], readable(one[1])) for one in batch] if self.trainer.testing else [*map(readable, batch)]
        return move_data_to_device(checked, device)

    def test_dataloader(self) -> Any:
        """This process's share of the validation images, one by one."""
        mine = range(self.global_rank, len(self._val.scenes), self.trainer.world_size)
        samples = TestSamples(self._val.scenes, mine, shorter=self.config.test_size, longer=self.config.max_size)
        return DataLoader(samples, batch_size=1, collate_fn=list, num_workers=self._workers)

    def on_test_start(self) -> None:
        """Measure the batch-norm statistics that the evaluation uses."""
        config = self.config
        if config.norm == "batch" and config.precise_iterations:
            self._show("measuring batch statistics", 0.0)
            total = config.total_iterations
            loader = self._batches(total, total + config.precise_iterations)
            torch.manual_seed(derived_seed(config.seed, total, self.global_rank))
            batches = (move_data_to_device([*map(readable, batch)], self.device) for batch in loader)
            measure_statistics(self.model, batches)
        self.model.eval()

    def test_step(self, batch: Any, batch_index: int) -> None:
        """Keep what is found in one image."""
        ((index, sample),) = batch
        _, (detections,) = self.model([sample])
        shape = (sample.image.shape[1], sample.image.shape[2])
        self._found += in_coco_format(
            detections, self._val.scenes[index], shape=shape, categories=self._train.categories
        )
        share = (batch_index + 1) * self.trainer.world_size / len(self._val.scenes)
        self._show("evaluating", min(1.0, share))

    def show_step(self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, *rest: Any) -> None:
        """Show the loss of a training step; on a GPU only of some, as reading it makes the host wait."""
        done, total = trainer.global_step, self.config.total_iterations
        due = self.device.type == "cpu" or done % _DISPLAY_STEPS == 0 or done == total
        if due and self._progress is not None and trainer.is_global_zero:
            self._show(f"iteration {done}/{total}, loss {outputs['loss'].item():.3f}", done / total)

    def _show(self, text: str, share: float) -> None:
        if self._progress is not None and self.trainer.is_global_zero:
            self._progress(text, share)

    def on_test_end(self) -> None:
        """Compute the average precisions of the detections of all processes."""
        parts: list[list[CocoDetection]] = [self._found] * world()
        if active():
            dist.all_gather_object(parts, self._found)
        # In the order of images whatever the number of processes, as equal scores are ranked by place.
        found = sorted((one for part in parts for one in part), key=lambda one: one["image_id"])
        for kind in ("bbox", "segm"):
            self.precisions[kind] = average_precision(self._val.annotations, found, kind=kind)

    def _batches(self, start: int, stop: int) -> Any:
        """The training samples of iterations start to stop on this process."""
        config, scenes, processes = self.config, self._train.scenes, self.trainer.world_size
        samples = TrainingSamples(scenes, sizes=config.train_sizes, longer=config.max_size, flip=config.flip)
        order = IterationOrder(
            scenes.landscape,
            batch_size=config.batch_size // processes,
            seed=config.seed,
            rank=self.global_rank,
            world=processes,
            start=start,
            stop=stop,
        )
        return DataLoader(
            samples,
            batch_sampler=order,
            collate_fn=list,
            num_workers=self._workers,
            pin_memory=self.device.type == "cuda",
        )


def parameter_groups(model: nn.Module, config: DetectionConfig) -> list[dict[str, Any]]:
    """Parameters for SGD: weights and biases decay, those of norms do not (as in detectron2)."""
    norms = {id(own) for part in model.modules() if isinstance(part, _BatchNorm) for own in part.parameters()}
    moved = [parameter for parameter in model.parameters() if parameter.requires_grad]
    spared = [parameter for parameter in moved if id(parameter) in norms]
    decayed = [parameter for parameter in moved if id(parameter) not in norms]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


@torch.no_grad()
def measure_statistics(model: MaskRCNN, batches: Any) -> None:
    """Set the batch norms' running statistics to the average over batches of these images.

    The running ones weigh the last few batches most (Wu & Johnson, "Rethinking 'Batch' in BatchNorm", 2021, section 3).
    """
    norms = model.norms()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain average
    model.train()
    for batch in batches:
        model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    if active():
        for value in (value for norm in norms for value in (norm.running_mean, norm.running_var)):
            if value is not None:
                dist.all_reduce(value)
                value /= world()


def lr_factor(iteration: int, *, total: int, warmup: int) -> float:
    """The factor on the peak learning rate at an iteration, counted from 0.

    It rises linearly from 1/1000 to 1, and is divided by 10 after 2/3 and again after 8/9 of all iterations, which is
    detectron2's WarmupMultiStepLR with the steps of its 1x and 2x schedules.

    >>> [lr_factor(i, total=90_000, warmup=1000) for i in (0, 1000, 59_999, 60_000, 80_000)]
    [0.001, 1.0, 1.0, 0.1, 0.01]
    """
    rise = 1.0 if iteration >= warmup else 0.001 + 0.999 * iteration / warmup
    passed = (3 * iteration >= 2 * total) + (9 * iteration >= 8 * total)
    return float(rise * (1.0, 0.1, 0.01)[passed])


def average_precision(annotations: COCO, found: Sequence[CocoDetection], *, kind: Literal["bbox", "segm"]) -> Precision:
    """COCO's average precision of the detections in all images of the annotations; 0 if there are none."""
    if not found:  # which pycocotools cannot load
        return (0.0, 0.0, 0.0)
    # The area of an object is that of its box for boxes and that of its mask for masks.
    other = "segmentation" if kind == "bbox" else "bbox"
    judged = [{key: value for key, value in one.items() if key != other} for one in found]
    with redirect_stdout(StringIO()):
        evaluation = COCOeval(annotations, annotations.loadRes(judged), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    whole, half, strict = map(float, evaluation.stats[:3])
    return (whole, half, strict)


def in_coco_format(
    detections: Detections, scene: Scene, *, shape: tuple[int, int], categories: Mapping[int, str]
) -> list[CocoDetection]:
    """Detections in an image of height and width `shape`, in COCO's format and in the pixels of the scene."""
    boxes = detections["boxes"]
    scale = boxes.new_tensor([scene.width / shape[1], scene.height / shape[0]] * 2)
    boxes = (boxes * scale).clamp(min=boxes.new_zeros(4), max=boxes.new_tensor([scene.width, scene.height] * 2))
    whole = ((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])).nonzero().squeeze(1)
    boxes, ids = boxes[whole], list(categories)
    labels, scores = (detections[name][whole].tolist() for name in ("labels", "scores"))
    masks = encode(paste(detections["masks"][whole], boxes, height=scene.height, width=scene.width))
    return [
        {
            "image_id": scene.id,
            "category_id": ids[label - 1],
            "score": score,
            "bbox": [left, top, right - left, bottom - top],
            "segmentation": mask,
        }
        for (left, top, right, bottom), label, score, mask in zip(boxes.tolist(), labels, scores, masks, strict=True)
    ]


@dataclass(frozen=True)
class DetectionResult:
    """Average precisions in [0, 1] on the validation images after the last iteration."""

    box_ap: float
    box_ap50: float
    box_ap75: float
    mask_ap: float
    mask_ap50: float
    mask_ap75: float
    iterations: int
    minutes: float  # of training and evaluation
    images: int  # evaluated
    dropped: int  # annotations with an empty box or mask

    def rows(self) -> dict[str, str]:
        """Values by names as people read them, precisions in percent."""
        return {
            **{name.replace("_ap", " AP"): f"{100 * getattr(self, name):.2f}" for name in PRECISIONS},
            "iterations": f"{self.iterations:,}",
            "images evaluated": f"{self.images:,}",
            "annotations left out": f"{self.dropped:,}",
            "minutes": f"{self.minutes:.1f}",
        }


def detect(
    encoder: LoadedEncoder, config: DetectionConfig, *, out: Path, progress: Progress | None = None
) -> DetectionResult:
    """Fine-tune Mask R-CNN C4 from an encoder, and evaluate it on the validation images.

    The same call resumes from the last checkpoint in `out`, or returns the result of a finished training. There are
    the checkpoints, then the detector's weights (detector.safetensors) and the result (detection.json).

    Raises:
        ValueError: an encoder that is not a ResNet, data that is missing or broken, an `out` that another process uses
            or that was made with other settings, or an image that cannot be read.
        ArithmeticError: the loss became NaN; the last good checkpoint stays.
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
            check_same(saved.settings, settings, where=_MADE_WITH.format(saved.path))
        torch.manual_seed(config.seed)
        model = build_model(encoder, config, classes=len(train.categories))
        if config.devices > 1 and torch_device(config.device).type == "cuda" and config.norm == "batch":
            model = cast(MaskRCNN, nn.SyncBatchNorm.convert_sync_batchnorm(model))
        module = DetectorTraining(model, config, train, val, progress)
        fitted = fit(
            module,
            out,
            settings,
            saved=saved,
            device=config.device,
            devices=config.devices,
            precision=config.precision,
            displays=[LambdaCallback(on_train_batch_end=module.show_step)],
            max_steps=config.total_iterations,
            max_epochs=-1,  # an epoch ends where a checkpoint is due
            reload_dataloaders_every_n_epochs=1,
            strategy="ddp" if config.devices > 1 else "auto",  # running statistics are those of the first process
            benchmark=False,  # images differ in size
            inference_mode=False,  # the evaluation begins with new statistics, which are written into buffers
        )
        with interruptible(fitted.trainer, out, SAME_COMMAND):
            fitted.trainer.test(module, verbose=False)
        result = DetectionResult(
            *module.precisions["bbox"],
            *module.precisions["segm"],
            iterations=config.total_iterations,
            minutes=round(fitted.minutes, 2),
            images=len(val.scenes),
            dropped=train.dropped + val.dropped,
        )
        if fitted.trainer.is_global_zero:
            _write(out, model, train.categories, result, settings)
        return result


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
    check_same(made, settings, where=_MADE_WITH.format(file))
    return result


def _write(
    out: Path, model: MaskRCNN, categories: Mapping[int, str], result: DetectionResult, settings: dict[str, Any]
) -> None:
    """Write the detector and then its result, each in one step; remove the checkpoints."""
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    fresh = out / f"{WEIGHTS}.writing"
    save_file(weights, fresh, metadata={"format": "pt", "categories": json.dumps([*categories.values()])})
    fresh.replace(out / WEIGHTS)
    content = {"result": asdict(result), "settings": settings}
    write_atomically(out / RESULT, json.dumps(content, indent=2, allow_nan=False) + "\n")
    for name in (LAST, PREVIOUS):
        (out / name).unlink(missing_ok=True)
