"""The kinds of evaluation by name: their options, what carries them out, and what the help says of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ldreg.evaluate.dimension import DimensionConfig
from ldreg.evaluate.finetune import FinetuneConfig
from ldreg.evaluate.judging import detection, dimensions, finetuned, knn, linear, transferred
from ldreg.evaluate.knn import KnnConfig
from ldreg.evaluate.protocols import LinearConfig
from ldreg.evaluate.tasks import Outcome, Task
from ldreg.evaluate.transfer import TransferConfig


@dataclass(frozen=True)
class Kind:
    """One kind of evaluation.

    Args:
        config: loads the class of its own options.
        run: carries it out.
        shared: which of device, devices, precision and cache it takes.
        data: which settings of the data it takes; None: all of them.
        about: a sentence for the help.
        examples: for the help.
    """

    config: Callable[[], type]
    run: Callable[[Any, Task], Outcome]
    shared: tuple[str, ...]
    about: str
    examples: tuple[str, ...]
    data: tuple[str, ...] | None = None


def _detection_config() -> type:
    from ldreg.detection.config import DetectionConfig

    return DetectionConfig


_TRAINED = ("device", "devices", "precision")
_READING = ("cache", "workers", "resident_limit", "max_unreadable")

KINDS: Mapping[str, Kind] = {
    "linear": Kind(
        lambda: LinearConfig,
        linear,
        (*_TRAINED, "cache"),
        "Accuracy of a linear classifier on frozen representations, after the last epoch.",
        (
            "ldreg evaluate linear runs/first",
            "ldreg evaluate linear runs/first --protocol imagenet --devices 4",
            "ldreg evaluate linear resnet50.pth --data.name cifar10 --data.path cifar10",
        ),
    ),
    "knn": Kind(
        lambda: KnnConfig,
        knn,
        ("device", "precision", "cache"),
        "Accuracy of the weighted vote of nearest neighbors.",
        ("ldreg evaluate knn runs/first", "ldreg evaluate knn runs/first --k 20"),
    ),
    "finetune": Kind(
        lambda: FinetuneConfig,
        finetuned,
        _TRAINED,
        "Accuracy after training the whole encoder with labels, after the last epoch.",
        ("ldreg evaluate finetune runs/first --fraction 0.1",),
    ),
    "dimension": Kind(
        lambda: DimensionConfig,
        dimensions,
        ("device", "precision", "cache"),
        "LID, effective rank and all else that `ldreg inspect` measures.",
        ("ldreg evaluate dimension runs/first", "ldreg evaluate dimension runs/first --representations first.npy"),
    ),
    "transfer": Kind(
        lambda: TransferConfig,
        transferred,
        (*_TRAINED, "cache"),
        "Linear accuracy on each of a list of datasets, after the last epoch.",
        (
            "ldreg evaluate transfer runs/first --datasets cifar10=/data/cifar10,dtd=dtd",
            "ldreg evaluate transfer runs/first --datasets digits --protocol fast",
        ),
        data=_READING,
    ),
    "detection": Kind(
        _detection_config,
        detection,
        (),
        "Average precision of a Mask R-CNN (C4) fine-tuned from the encoder.",
        ("ldreg evaluate detection runs/first --path /data/coco --schedule 2x",),
        data=(),
    ),
}
