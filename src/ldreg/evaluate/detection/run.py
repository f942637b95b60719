"""Object detection and instance segmentation with an encoder: the training, the evaluation and the result."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal, cast

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from pytorch_lightning.callbacks import Callback
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from ldreg.data.config import available_cores
from ldreg.data.order import derived_seed
from ldreg.distributed import active
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.detection.coco import CocoSplit, Scene, encode, read_coco
from ldreg.evaluate.detection.config import DetectionConfig, lr_factor
from ldreg.evaluate.detection.model import Detections, MaskRCNN, build_model, check_encoder, paste
from ldreg.evaluate.detection.samples import IterationOrder, TestSamples, TrainingSamples, as_list, readable
from ldreg.evaluate.extract import torch_device
from ldreg.io.files import check_writable, read_text, write_atomically
from ldreg.io.locks import exclusive
from ldreg.train.checkpoints import LAST, PREVIOUS, check_same, latest
from ldreg.train.engine import SAME_COMMAND, check_hardware, fit, interruptible, quiet

Progress = Callable[[str, float], None]
Found = dict[str, Any]  # a detection in COCO's result format
Precision = tuple[float, float, float]  # over overlaps of 0.5 to 0.95, at 0.5, and at 0.75
RESULT, WEIGHTS = "detection.json", "detector.safetensors"
_DISPLAY_STEPS = 20  # steps on a GPU between two displays of the loss, which make the host wait
# Settings that may differ when a training is resumed.
_CHANGEABLE = {"path", "schedule", "iterations", "warmup_iterations", "device", "workers", "checkpoint_iterations"}


class Detecting(pl.LightningModule):
    """A detector with its data and optimizer.

    The images of an iteration, their augmentation and the sampled regions are functions of the seed, the iteration and
    the rank, so that a training can be resumed at a checkpoint.

    Args:
        model: the detector.
        config: of its training.
        train: what it is trained on.
        val: what it is evaluated on.
        progress: called in the evaluation with a text and the fraction that is done.
    """

    def __init__(
        self,
        model: MaskRCNN,
        config: DetectionConfig,
        *,
        train: CocoSplit,
        val: CocoSplit,
        progress: Progress | None,
    ) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.precisions: dict[Literal["bbox", "segm"], Precision] = {}
        self._train, self._val, self._progress = train, val, progress
        self._found: list[Found] = []

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
        """Samples on the device.

        Raises:
            ValueError: one of them could not be read.
        """
        if self.trainer.testing:
            return [(index, readable(sample).to(device)) for index, sample in batch]
        return [readable(sample).to(device, non_blocking=True) for sample in batch]

    def test_dataloader(self) -> Any:
        """This process's share of the validation images, one by one."""
        mine = range(self.global_rank, len(self._val.scenes), self.trainer.world_size)
        samples = TestSamples(self._val.scenes, mine, shorter=self.config.test_size, longer=self.config.max_size)
        return DataLoader(samples, batch_size=1, collate_fn=as_list, num_workers=self._workers)

    def on_test_start(self) -> None:
        """Find the statistics of the batch norms that the evaluation takes."""
        config = self.config
        if config.norm == "batch" and config.precise_iterations:
            if self._progress is not None and self.trainer.is_global_zero:
                self._progress("measuring batch statistics", 0.0)
            total = config.total_iterations
            loader = self._batches(total, total + config.precise_iterations)
            torch.manual_seed(derived_seed(config.seed, total, self.global_rank))
            measure_statistics(self.model, ([readable(one).to(self.device) for one in batch] for batch in loader))
        self.model.eval()

    def test_step(self, batch: Any, batch_index: int) -> None:
        """Take note of what is found in one image."""
        ((index, sample),) = batch
        _, (detections,) = self.model([sample])
        shape = (sample.image.shape[1], sample.image.shape[2])
        scene = self._val.scenes[index]
        self._found += as_found(detections, scene, shape=shape, categories=self._train.categories)
        if self._progress is not None and self.trainer.is_global_zero:
            share = (batch_index + 1) * self.trainer.world_size / len(self._val.scenes)
            self._progress("evaluating", min(1.0, share))

    def on_test_end(self) -> None:
        """Judge what all processes found."""
        parts: list[list[Found]] = [self._found]
        if active():
            parts = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(parts, self._found)
        # In the order of images whatever the number of processes, as equal scores are ranked by place.
        found = sorted((one for part in parts for one in part), key=lambda one: one["image_id"])
        for kind in ("bbox", "segm"):
            self.precisions[kind] = average_precision(self._val.annotations, found, kind=kind)

    @property
    def categories(self) -> list[str]:
        """Names of the classes, in the order of the labels."""
        return list(self._train.categories.values())

    @property
    def _workers(self) -> int:
        given = self.config.workers
        return max(1, min(16, available_cores() // self.config.devices)) if given is None else given

    def _batches(self, start: int, stop: int) -> Any:
        """The training samples of iterations start to stop on this process."""
        config, scenes = self.config, self._train.scenes
        world = self.trainer.world_size
        samples = TrainingSamples(scenes, sizes=config.train_sizes, longer=config.max_size, flip=config.flip)
        order = IterationOrder(
            scenes.landscape,
            batch_size=config.batch_size // world,
            seed=config.seed,
            rank=self.global_rank,
            world=world,
            start=start,
            stop=stop,
        )
        return DataLoader(
            samples,
            batch_sampler=order,
            collate_fn=as_list,
            num_workers=self._workers,
            pin_memory=self.device.type == "cuda",
        )


def parameter_groups(model: nn.Module, config: DetectionConfig) -> list[dict[str, Any]]:
    """What SGD moves: weights and biases, which decay, and the parameters of norms, which do not (as detectron2)."""
    norms = {id(own) for part in model.modules() if isinstance(part, _BatchNorm) for own in part.parameters()}
    moved = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = (
        ([parameter for parameter in moved if id(parameter) not in norms], config.weight_decay),
        ([parameter for parameter in moved if id(parameter) in norms], 0.0),
    )
    return [{"params": chosen, "weight_decay": decay} for chosen, decay in groups if chosen]


@torch.no_grad()
def measure_statistics(model: MaskRCNN, batches: Any) -> None:
    """Set the batch norms' running statistics to the average over batches of these images.

    The running ones weigh the last few batches most, with weights that have moved since (precise BN; Wu & Johnson,
    "Rethinking 'Batch' in BatchNorm", 2021, section 3).
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
                value /= dist.get_world_size()


def average_precision(annotations: COCO, found: Sequence[Found], *, kind: Literal["bbox", "segm"]) -> Precision:
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
    return (float(evaluation.stats[0]), float(evaluation.stats[1]), float(evaluation.stats[2]))


def as_found(
    detections: Detections, scene: Scene, *, shape: tuple[int, int], categories: Mapping[int, str]
) -> list[Found]:
    """Detections in an image of height and width `shape`, in COCO's format and in the pixels of the scene."""
    boxes = original_boxes(detections["boxes"], scene, shape=shape)
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


def original_boxes(boxes: Tensor, scene: Scene, *, shape: tuple[int, int]) -> Tensor:
    """Boxes (N, 4) in an image of height and width `shape`, in the pixels of the scene and cut off at its edges."""
    scale = boxes.new_tensor([scene.width / shape[1], scene.height / shape[0]] * 2)
    edges = boxes.new_tensor([scene.width, scene.height] * 2)
    return (boxes * scale).clamp(min=boxes.new_zeros(4), max=edges)


@dataclass(frozen=True)
class DetectionResult:
    """Average precisions in [0, 1] on the validation images after the last iteration.

    Args:
        images: how many were evaluated.
        dropped: how many annotations had an empty box or mask.
        minutes: of training and evaluation.
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
        torch.manual_seed(config.seed)
        model = build_model(encoder, config, classes=len(train.categories))
        if config.devices > 1 and torch_device(config.device).type == "cuda" and config.norm == "batch":
            model = cast(MaskRCNN, nn.SyncBatchNorm.convert_sync_batchnorm(model))
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
        result = DetectionResult(
            *module.precisions["bbox"],
            *module.precisions["segm"],
            iterations=config.total_iterations,
            minutes=round(fitted.minutes, 2),
            images=len(val.scenes),
            dropped=train.dropped + val.dropped,
        )
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
