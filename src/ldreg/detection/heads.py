"""The heads of the C4 detector: the encoder's last stage on each region, then its class, box and mask."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, l1_loss
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import RoIAlign

from ldreg.detection.masks import mask_targets

POOLED = 14  # side of the features taken from a region
MASK_CHANNELS = 256
BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)

Target = dict[str, Tensor]
Detections = dict[str, Tensor]


class Res5Heads(RoIHeads):  # type: ignore[misc]  # torchvision has no types
    """Regions to classes, boxes and masks by one stage that the three share (detectron2's Res5ROIHeads).

    Sampling and non-maximum suppression are torchvision's; pooling is the aligned one (RoIAlign v2), offsets are
    learned by L1, and masks from cells cut at one half, as in detectron2.

    Args:
        res5: features of regions (R, C, 14, 14) to (R, D, 7, 7).
        width: D.
        classes: of objects, without the background.
        stride: pixels per feature.
        regions: per image in training.
    """

    def __init__(self, res5: nn.Module, *, width: int, classes: int, stride: int, regions: int) -> None:
        super().__init__(
            RoIAlign(POOLED, 1 / stride, sampling_ratio=0, aligned=True),
            box_head=res5,
            box_predictor=FastRCNNPredictor(width, classes + 1),
            fg_iou_thresh=0.5,
            bg_iou_thresh=0.5,
            batch_size_per_image=regions,
            positive_fraction=0.25,
            bbox_reg_weights=BOX_WEIGHTS,
            score_thresh=0.05,
            nms_thresh=0.5,
            detections_per_img=100,
        )
        self.mask_predictor = MaskRCNNPredictor(width, MASK_CHANNELS, classes + 1)
        self._initialize()

    def _initialize(self) -> None:
        """Draw the new layers as detectron2 does."""
        for layer, deviation in (
            (self.box_predictor.cls_score, 0.01),
            (self.box_predictor.bbox_pred, 0.001),
            (self.mask_predictor.mask_fcn_logits, 0.001),
        ):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.mask_predictor.conv5_mask.bias)

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[Target] | None = None,
    ) -> tuple[list[Detections], dict[str, Tensor]]:
        """Losses in training; else what is detected, with masks (n, 14, 14) of probabilities inside the boxes."""
        (mapped,) = features.values()
        if not self.training:
            return self._detect(mapped, proposals, image_shapes), {}
        proposals, owners, labels, offsets = self.select_training_samples(proposals, targets)
        shared = self._shared(mapped, proposals)
        scores, moves = self._boxes(shared)
        losses = box_losses(scores, moves, torch.cat(labels), torch.cat(offsets))
        objects = [label > 0 for label in labels]
        assert targets is not None
        wanted = [
            _project(target["masks"], boxes[chosen], owner[chosen], shape, side=2 * shared.shape[-1])
            for target, boxes, owner, chosen, shape in zip(
                targets, proposals, owners, objects, image_shapes, strict=True
            )
        ]
        chosen = torch.cat(objects)
        predicted = self.mask_predictor(shared[chosen]).float()
        return [], losses | {"mask": mask_loss(predicted, torch.cat(labels)[chosen], torch.cat(wanted))}

    def _detect(self, mapped: Tensor, proposals: list[Tensor], image_shapes: list[tuple[int, int]]) -> list[Detections]:
        scores, moves = self._boxes(self._shared(mapped, proposals))
        found = self.postprocess_detections(scores, moves, proposals, image_shapes)
        boxes, confidences, labels = found
        counts = [len(one) for one in boxes]
        named = torch.cat(labels)
        # The masks are those of the boxes found, which the stage sees anew.
        predicted = self.mask_predictor(self._shared(mapped, boxes)).float() if len(named) else None
        side = POOLED if predicted is None else predicted.shape[-1]
        masks = mapped.new_zeros((0, side, side)) if predicted is None else _of_class(predicted, named).sigmoid()
        return [
            {"boxes": box, "scores": confidence, "labels": label, "masks": mask}
            for box, confidence, label, mask in zip(boxes, confidences, labels, masks.split(counts), strict=True)
        ]

    def _shared(self, mapped: Tensor, boxes: list[Tensor]) -> Tensor:
        """Features of all regions after the shared stage, (R, D, 7, 7)."""
        shared: Tensor = self.box_head(self.box_roi_pool(mapped, boxes))
        return shared

    def _boxes(self, shared: Tensor) -> tuple[Tensor, Tensor]:
        scores, moves = self.box_predictor(shared.mean((2, 3)))
        return scores.float(), moves.float()


def box_losses(scores: Tensor, moves: Tensor, labels: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    """The losses of classes and boxes: scores (R, K), moves (R, 4K), labels (R,) with 0 the background."""
    objects = (labels > 0).nonzero().squeeze(1)
    moved = moves.view(len(moves), -1, 4)[objects, labels[objects]]
    placed = l1_loss(moved, offsets[objects], reduction="sum") / max(1, len(labels))
    return {"class": cross_entropy(scores, labels), "box": placed}


def mask_loss(predicted: Tensor, labels: Tensor, wanted: Tensor) -> Tensor:
    """The binary cross entropy of each object's mask of its own class; 0 with a gradient where there is no object."""
    if not len(labels):
        return predicted.sum() * 0
    return binary_cross_entropy_with_logits(_of_class(predicted, labels), wanted)


def _of_class(predicted: Tensor, labels: Tensor) -> Tensor:
    return predicted[torch.arange(len(labels), device=labels.device), labels]


def _project(masks: Tensor, boxes: Tensor, owners: Tensor, shape: Sequence[int], *, side: int) -> Tensor:
    """The mask targets of boxes that lie in an image of another size than the masks'."""
    height, width = masks.shape[1:]
    scale = boxes.new_tensor([width / shape[1], height / shape[0]] * 2)
    return mask_targets(masks, boxes * scale, owners, side=side)
