"""The training and the evaluation of a detector, as Lightning runs them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from ldreg.data.config import available_cores
from ldreg.data.order import derived_seed
from ldreg.detection.coco import CocoSplit
from ldreg.detection.config import DetectionConfig, lr_factor
from ldreg.detection.metrics import Found, Precision, as_found, average_precision
from ldreg.detection.model import MaskRCNN
from ldreg.detection.samples import IterationOrder, TestSamples, TrainingSamples, as_list, readable
from ldreg.distributed import active

Progress = Callable[[str, float], None]


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
        self.box: Precision | None = None
        self.mask: Precision | None = None
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
        self.box = average_precision(self._val.annotations, found, kind="bbox")
        self.mask = average_precision(self._val.annotations, found, kind="segm")

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
    _average([value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None])


def _average(values: Sequence[Tensor]) -> None:
    """Replace values by their average over all processes."""
    if active():
        for value in values:
            dist.all_reduce(value)
            value /= dist.get_world_size()
