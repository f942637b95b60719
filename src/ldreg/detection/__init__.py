"""Object detection and instance segmentation: Mask R-CNN with the C4 shape on an encoder, judged as COCO does."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ldreg.detection.config import DetectionConfig

if TYPE_CHECKING:
    from ldreg.detection.generated import write_generated
    from ldreg.detection.run import DetectionResult, detect

__all__ = ["DetectionConfig", "DetectionResult", "detect", "write_generated"]

# Loaded when asked for: the settings alone, which a --help shows, need neither torchvision nor pycocotools.
_HOMES = {"DetectionResult": "run", "detect": "run", "write_generated": "generated"}


def __getattr__(name: str) -> Any:
    """A public name from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("pycocotools") is None:
        raise ValueError("detection needs pycocotools: pip install 'ldreg[detection]' brings it")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
