"""A linear classifier on an encoder, frozen or trained with it, as Lightning runs it."""

from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from ldreg.data import Batch, FileLoader, ImageFiles, ImageSet, Loader, ResidentLoader, derived_seed
from ldreg.distributed import active, total
from ldreg.evaluate.channels import with_channels
from ldreg.evaluate.compute import AUTOCAST, Precision
from ldreg.evaluate.extract import representations, undisturbed
from ldreg.evaluate.features import Features, plain_batches
from ldreg.evaluate.plans import Plan
from ldreg.optim import build_optimizer, build_scheduler
from ldreg.views import Views
from ldreg.views.views import DRAWS

IDENTITY, HISTORY = "ldreg_evaluation", "ldreg_history"  # keys of a checkpoint
_ROWS, _IMAGES = 16384, 1024  # representations, and images, that are taken at a time where nothing is learned


def linear_head(dimension: int, classes: int, *, normalized: bool, seed: int) -> nn.Module:
    """A classifier (B, dimension) to (B, classes), drawn by the seed: weights of deviation 0.01, no bias.

    Where `normalized`, a batch norm without scale and shift comes first, as is usual for probes trained by LARS (He et
    al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, appendix A.1) and as the authors of LDReg have
    it: one learning rate then fits encoders of any scale. Its statistics are the mean over all batches so far, since
    a frozen encoder's representations do not drift; the usual moving average would remember its start for long.

    >>> linear_head(8, 3, normalized=True, seed=0)
    Sequential(
      (0): BatchNorm1d(8, ..., affine=False, ...)
      (1): Linear(in_features=8, out_features=3, bias=True)
    )
    """
    linear = nn.Linear(dimension, classes)
    nn.init.normal_(linear.weight, std=0.01, generator=torch.Generator().manual_seed(derived_seed(seed, classes)))
    nn.init.zeros_(linear.bias)
    return (
        nn.Sequential(nn.BatchNorm1d(dimension, affine=False, momentum=None), linear)
        if normalized
        else nn.Sequential(linear)
    )


class Classifier(pl.LightningModule):
    """Trains a head on an encoder's representations of augmented images, by cross-entropy.

    Every draw of a step is made for the batch of all processes from (seed, epoch, batch), and each process takes its
    part of it: two processes train as one does.

    Args:
        encoder: images (B, C, size, size) to representations (B, D).
        head: representations to logits (B, classes).
        views: of which there is one, the augmentation.
        train: labeled images.
        test: labeled images where the encoder is trained, or their representations where it is frozen.
        plan: of the training.
        precision: of the arithmetic.
        workers: decoding processes of a set of files.
        identity: the settings that a checkpoint belongs to, as text.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        views: Views,
        *,
        train: ImageSet,
        test: ImageSet | Features,
        plan: Plan,
        precision: Precision,
        workers: int,
        identity: str,
    ) -> None:
        super().__init__()
        self.head, self.views, self.plan = head, views, plan
        self.frozen = isinstance(test, Features)
        # A frozen encoder is no part of the module: it is neither trained nor put into every checkpoint.
        self._outside: tuple[nn.Module, ...] = (encoder,) if self.frozen else ()
        if not self.frozen:
            self.encoder = encoder
        self._train, self._test = train, test
        self._precision, self._workers, self._identity = precision, workers, identity
        self._losses: list[Tensor] = []
        self._batches: Loader | None = None
        self.history: list[dict[str, float]] = []

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return self.plan.steps(len(self._train))

    def on_fit_start(self) -> None:
        """Have a frozen encoder on the device, in its evaluation mode."""
        for encoder in self._outside:
            encoder.to(self.device).eval()

    def release(self) -> None:
        """Give a frozen encoder back to the CPU and end the processes that make batches, whatever ended it."""
        if self._batches is not None:
            self._batches.close()
        for encoder in self._outside:
            encoder.to("cpu")

    def train_dataloader(self) -> Loader:
        """The batches of this process."""
        world = self.trainer.world_size
        shared: dict[str, Any] = {
            "batch_size": self.plan.batch_size // world,
            "seed": self.plan.seed,
            "rank": self.global_rank,
            "world": world,
        }
        made: Any
        if isinstance(self._train, ImageFiles):
            crop = partial(_crop, self.views)
            made = FileLoader(self._train, workers=self._workers, crop=crop, device=self.device, **shared)
        else:
            made = ResidentLoader(self._train, device=self.device, **shared)
        made.sampler = made  # where Lightning looks for set_epoch
        self._batches = made
        return made  # type: ignore[no-any-return]

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """The cross-entropy of this process's part of the batch."""
        uniforms = self._drawn(batch_index, len(batch.labels))
        (view,) = self.views.render(with_channels(batch.images, self.views.channels), uniforms)
        x = self._represent(view)
        if batch_index == 0 and not torch.isfinite(x).all():
            raise ValueError("encoder: expected finite representations, got NaN or inf for a training image")
        loss = functional.cross_entropy(self.head(x), batch.labels)
        self._losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule that is moved on at each of its steps."""
        optimizer = build_optimizer(self, self.plan.optimizer, batch_size=self.plan.batch_size)
        scheduler = build_scheduler(optimizer, self.plan.schedule, steps_per_epoch=self.steps_per_epoch)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Have the checkpoint say what it belongs to and what was measured so far."""
        checkpoint[IDENTITY], checkpoint[HISTORY] = self._identity, list(self.history)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from what was measured."""
        self.history = list(checkpoint[HISTORY])

    def end_epoch(self) -> None:
        """Add the epoch's mean loss and the accuracy on the test images to the history.

        Raises:
            ArithmeticError: the loss or a weight is NaN or infinite.
        """
        losses, self._losses = torch.stack(self._losses).double().mean(), []
        loss = (total(losses) / self.trainer.world_size).item()
        norms = torch._foreach_norm([parameter.detach() for parameter in self.parameters()])
        if loss != loss or loss == float("inf") or not torch.isfinite(torch.stack([n.float() for n in norms])).all():
            raise ArithmeticError(f"the classifier diverged in epoch {self.current_epoch + 1}: its loss is {loss:.6g}")
        correct, count = self._correct()
        self.history.append({"loss": loss, "accuracy": correct / count})

    def _correct(self) -> tuple[int, int]:
        """How many test images are classified rightly, and how many there are, over all processes."""
        if isinstance(self._test, Features):
            return self._correct_features(self._test)
        part = torch.arange(len(self._test))[self.global_rank :: self.trainer.world_size]
        counts = torch.zeros(2, dtype=torch.int64, device=self.device)
        if len(part):
            batches = plain_batches(
                self._test.take(part), self.views, device=self.device, batch_size=_IMAGES // 2, workers=self._workers
            )
            network = nn.Sequential(self.encoder, self.head)
            pairs = ((batch.images, batch.labels) for batch in batches)
            logits, labels = representations(network, pairs, device=self.device, autocast=AUTOCAST[self._precision])
            counts += torch.stack([(logits.argmax(1) == labels).sum(), torch.tensor(len(labels), device=self.device)])
        if active():
            dist.all_reduce(counts)
        correct, count = counts.tolist()
        return correct, count

    def _correct_features(self, test: Features) -> tuple[int, int]:
        correct = 0
        with undisturbed(self.head, self.device):
            for x, labels in zip(test.representations.split(_ROWS), test.labels.split(_ROWS), strict=True):
                found = self.head(x.to(self.device)).argmax(1)
                correct += int((found == labels.to(self.device)).sum())
        return correct, len(test.labels)

    def _represent(self, view: Tensor) -> Tensor:
        if not self.frozen:
            trained: Tensor = self.encoder(view)
            return trained
        # In parts, which change nothing in evaluation mode: the paper's batch of 4096 would fill a GPU at once.
        with torch.no_grad():
            return torch.cat([self._outside[0](part) for part in view.split(_IMAGES)])

    def _drawn(self, batch_index: int, rows: int) -> Tensor:
        """The uniform numbers (rows, DRAWS) of this process's views; dropout draws by its own rank."""
        torch.manual_seed(derived_seed(self.plan.seed, self.current_epoch, batch_index, self.global_rank))
        seed = derived_seed(self.plan.seed, self.current_epoch, batch_index)
        generator = torch.Generator(self.device).manual_seed(seed)
        shape = (rows * self.trainer.world_size, sum(DRAWS))
        drawn = torch.rand(shape, generator=generator, device=self.device)
        return drawn[rows * self.global_rank : rows * (self.global_rank + 1)]


def _crop(views: Views, image: Tensor, generator: torch.Generator) -> Tensor:
    return views.crop(with_channels(image, views.channels), generator)
