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
    """

    config: Callable[[], type]
    run: Callable[[Any, Task], Outcome]
    shared: tuple[str, ...]
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
    ),
    "knn": Kind(
        lambda: KnnConfig,
        knn,
        ("device", "precision", "cache"),
    ),
    "finetune": Kind(
        lambda: FinetuneConfig,
        finetuned,
        _TRAINED,
    ),
    "dimension": Kind(
        lambda: DimensionConfig,
        dimensions,
        ("device", "precision", "cache"),
    ),
    "transfer": Kind(
        lambda: TransferConfig,
        transferred,
        (*_TRAINED, "cache"),
        data=_READING,
    ),
    "detection": Kind(
        _detection_config,
        detection,
        (),
        data=(),
    ),
}
