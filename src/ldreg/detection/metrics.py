"""Average precision of detections, by pycocotools, for boxes and for masks."""

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor

from ldreg.detection.coco import Scene
from ldreg.detection.masks import encode, paste
from ldreg.detection.model import Detections

Found = dict[str, Any]  # a detection as COCO's result format has it


@dataclass(frozen=True)
class Precision:
    """COCO's average precisions, shares in [0, 1]: over overlaps of 0.5 to 0.95, at 0.5, and at 0.75."""

    ap: float
    ap50: float
    ap75: float


def average_precision(annotations: COCO, found: Sequence[Found], *, kind: Literal["bbox", "segm"]) -> Precision:
    """The average precision of what was found in all images of the annotations; 0 where nothing was."""
    if not found:  # which pycocotools cannot load
        return Precision(0.0, 0.0, 0.0)
    # An object's area is that of what is judged.
    other = "segmentation" if kind == "bbox" else "bbox"
    judged = [{key: value for key, value in one.items() if key != other} for one in found]
    with redirect_stdout(StringIO()):
        evaluation = COCOeval(annotations, annotations.loadRes(judged), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return Precision(*(float(value) for value in evaluation.stats[:3]))


def as_found(
    detections: Detections, scene: Scene, *, shape: tuple[int, int], categories: Mapping[int, str]
) -> list[Found]:
    """What was detected in an image of height and width `shape`, in COCO's format and in the pixels of the scene."""
    boxes = original_boxes(detections["boxes"], scene, shape=shape)
    whole = ((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])).nonzero().squeeze(1)
    boxes = boxes[whole]
    masks = encode(paste(detections["masks"][whole], boxes, height=scene.height, width=scene.width))
    ids = list(categories)
    return [
        {
            "image_id": scene.id,
            "category_id": ids[label - 1],
            "score": score,
            "bbox": [left, top, right - left, bottom - top],
            "segmentation": mask,
        }
        for (left, top, right, bottom), label, score, mask in zip(
            boxes.tolist(),
            detections["labels"][whole].tolist(),
            detections["scores"][whole].tolist(),
            masks,
            strict=True,
        )
    ]


def original_boxes(boxes: Tensor, scene: Scene, *, shape: tuple[int, int]) -> Tensor:
    """Boxes (N, 4) in an image of height and width `shape`, in the pixels of the scene and cut off at its edges."""
    scale = boxes.new_tensor([scene.width / shape[1], scene.height / shape[0]] * 2)
    edges = boxes.new_tensor([scene.width, scene.height] * 2)
    return (boxes * scale).clamp(min=boxes.new_zeros(4), max=edges)
