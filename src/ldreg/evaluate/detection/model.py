"""Mask R-CNN with the C4 shape around a pretrained ResNet: proposals, heads and the whole detector."""

import copy
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, grid_sample, l1_loss
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import RoIAlign, roi_align

from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.detection import DetectionConfig
from ldreg.evaluate.detection.samples import Sample
from ldreg.views.config import NORMALIZATIONS

RATIOS = (0.5, 1.0, 2.0)  # height over width
SAMPLED = 256  # anchors per image in the loss
POOLED = 14  # side of the features taken from a region
Target = dict[str, Tensor]
Detections = dict[str, Tensor]
STAGES = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3")
LUMINANCE = (0.299, 0.587, 0.114)  # weights of red, green and blue (ITU-R BT.601), for encoders of gray images


class Anchors(AnchorGenerator):  # type: ignore[misc]  # torchvision has no types
    """Anchors every `stride` pixels, in float32 whatever the precision of the features, and not rounded.

    torchvision rounds them, and makes them in the features' precision, in which bfloat16 tells pixels apart up to 256.
    """

    def __init__(self, sizes: Sequence[int], *, stride: int) -> None:
        super().__init__((tuple(sizes),), (RATIOS,))
        self.stride = stride

    def generate_anchors(
        self,
        scales: list[int],
        aspect_ratios: list[float],
        dtype: torch.dtype = torch.float32,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - as torchvision has it
    ) -> Tensor:
        """The anchors about the origin, (sizes · ratios, 4)."""
        sides = torch.as_tensor(scales, dtype=dtype, device=device)
        heights = torch.as_tensor(aspect_ratios, dtype=dtype, device=device).sqrt()
        half = torch.stack((sides / heights[:, None], sides * heights[:, None]), dim=-1).view(-1, 2) / 2
        return torch.cat((-half, half), dim=1)

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        """All anchors (H · W · A, 4) on the one map of features (B, C, H, W), the same for each image."""
        (features,) = feature_maps
        self.set_cell_anchors(torch.float32, features.device)
        strides = [[torch.tensor(self.stride, device=features.device)] * 2]
        (anchors,) = self.grid_anchors([list(features.shape[-2:])], strides)
        return [anchors] * len(image_list.image_sizes)


class ProposalHead(RPNHead):  # type: ignore[misc]  # torchvision has no types
    """torchvision's head, whose outputs are float32: scores are sorted, and offsets become pixels."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Objectness (B, A, H, W) and offsets (B, 4A, H, W) of each map."""
        scores, offsets = super().forward(x)
        return [score.float() for score in scores], [offset.float() for offset in offsets]


class Proposals(RegionProposalNetwork):  # type: ignore[misc]  # torchvision has no types
    """torchvision's region proposal network with detectron2's loss: L1 offsets, all over the anchors sampled."""

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The losses of objectness and of offsets."""
        positive, negative = (torch.cat(picked) > 0 for picked in self.fg_bg_sampler(labels))
        picked, wanted = positive | negative, torch.cat(regression_targets)
        scores = objectness.flatten()[picked]
        share = SAMPLED * len(labels)
        scored = binary_cross_entropy_with_logits(scores, torch.cat(labels)[picked], reduction="sum")
        placed = l1_loss(pred_bbox_deltas[positive], wanted[positive], reduction="sum")
        return scored / share, placed / share


def build_proposals(channels: int, *, stride: int, sizes: Sequence[int], tested: int) -> Proposals:
    """The region proposal network with the numbers of detectron2's C4 models; `tested` regions go into evaluation."""
    anchors = Anchors(sizes, stride=stride)
    return Proposals(
        anchors,
        ProposalHead(channels, anchors.num_anchors_per_location()[0]),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=SAMPLED,
        positive_fraction=0.5,
        pre_nms_top_n={"training": 12_000, "testing": 6000},
        post_nms_top_n={"training": 2000, "testing": tested},
        nms_thresh=0.7,
    )


class Res5Heads(RoIHeads):  # type: ignore[misc]  # torchvision has no types
    """Regions to classes, boxes and masks by one stage that the three share (detectron2's Res5ROIHeads).

    Sampling and non-maximum suppression are torchvision's; pooling is the aligned one (RoIAlign v2), offsets are
    learned by L1, and masks from cells cut at one half, as in detectron2. `res5` maps features of regions
    (R, C, 14, 14) to (R, width, 7, 7); `classes` are without the background.
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
            bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),
            score_thresh=0.05,
            nms_thresh=0.5,
            detections_per_img=100,
        )
        self.mask_predictor = MaskRCNNPredictor(width, 256, classes + 1)
        # New layers are drawn as in detectron2.
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
        wanted = []
        for target, boxes, owner, chosen, shape in zip(targets, proposals, owners, objects, image_shapes, strict=True):
            height, width = target["masks"].shape[1:]  # those of the image before it was resized
            scale = boxes.new_tensor([width / shape[1], height / shape[0]] * 2)
            side = 2 * shared.shape[-1]
            wanted.append(mask_targets(target["masks"], boxes[chosen] * scale, owner[chosen], side=side))
        learned = torch.cat(objects)
        predicted = self.mask_predictor(shared[learned]).float()
        return [], {**losses, "mask": mask_loss(predicted, torch.cat(labels)[learned], torch.cat(wanted))}

    def _detect(self, mapped: Tensor, proposals: list[Tensor], image_shapes: list[tuple[int, int]]) -> list[Detections]:
        scores, moves = self._boxes(self._shared(mapped, proposals))
        boxes, confidences, labels = self.postprocess_detections(scores, moves, proposals, image_shapes)
        counts, named = [len(one) for one in boxes], torch.cat(labels)
        if len(named):
            # The masks are those of the boxes found, whose features the stage computes anew.
            masks = _of_class(self.mask_predictor(self._shared(mapped, boxes)).float(), named).sigmoid()
        else:
            masks = mapped.new_zeros((0, POOLED, POOLED))
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


def mask_targets(masks: Tensor, boxes: Tensor, owners: Tensor, *, side: int) -> Tensor:
    """The part of masks (N, H, W) inside boxes (R, 4) in their pixels: 0 and 1, (R, side, side), float.

    `owners` (R,) are the indices of the masks. As in detectron2, averaged in each cell and cut at one half.
    """
    if not len(boxes):
        return boxes.new_zeros((0, side, side))
    rows = torch.cat((owners[:, None].to(boxes), boxes), dim=1)
    cells = roi_align(masks[:, None].to(boxes), rows, (side, side), 1.0, 0, aligned=True)
    targets: Tensor = (cells[:, 0] >= 0.5).to(boxes)
    return targets


def paste(masks: Tensor, boxes: Tensor, *, height: int, width: int) -> Tensor:
    """Predicted masks (N, M, M), probabilities inside boxes (N, 4), as bool (N, height, width) of the image.

    Each pixel's center is looked up in the mask, bilinearly, zero outside it; half and more counts as inside.

    >>> paste(torch.ones(1, 4, 4), torch.tensor([[1.0, 0.0, 3.0, 2.0]]), height=2, width=4).int()
    tensor([[[0, 1, 1, 0],
             [0, 1, 1, 0]]], dtype=torch.int32)
    """
    pasted = torch.zeros((len(masks), height, width), dtype=torch.bool, device=masks.device)
    for whole, mask, (left, top, right, bottom) in zip(pasted, masks, boxes.tolist(), strict=True):
        columns = range(max(0, math.floor(left)), min(width, math.ceil(right)))
        rows = range(max(0, math.floor(top)), min(height, math.ceil(bottom)))
        if columns and rows:
            # Where the centers of the pixels lie between the edges of the box, -1 and 1.
            xs = (torch.tensor(columns, device=masks.device) + 0.5 - left) / (right - left) * 2 - 1
            ys = (torch.tensor(rows, device=masks.device) + 0.5 - top) / (bottom - top) * 2 - 1
            grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1)[None]
            found = grid_sample(mask[None, None].float(), grid, align_corners=False)
            whole[rows.start : rows.stop, columns.start : columns.stop] = found[0, 0] >= 0.5
    return pasted


class MaskRCNN(nn.Module):
    """Images of any sizes to detections (He et al., "Mask R-CNN", ICCV 2017), on one map of features.

    The backbone maps images (B, C, H, W) to features (B, D, H / stride, W / stride). The normalization is mean and
    standard deviation by channel, of pixels from 0 to 1. Batch norms that are not trained stay as they are.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        proposals: Proposals,
        heads: Res5Heads,
        *,
        normalization: tuple[Sequence[float], Sequence[float]],
        stride: int,
        train_norms: bool,
    ) -> None:
        super().__init__()
        self.backbone, self.proposals, self.heads = backbone, proposals, heads
        self.stride, self.train_norms = stride, train_norms
        mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in normalization)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("deviation", deviation, persistent=False)
        if not train_norms:
            for norm in self.norms():
                norm.requires_grad_(False)
        self.train()

    def norms(self) -> list[_BatchNorm]:
        """All batch norms."""
        return [part for part in self.modules() if isinstance(part, _BatchNorm)]

    def train(self, mode: bool = True) -> "MaskRCNN":
        """Training or evaluation; norms that are not trained always evaluate."""
        super().train(mode)
        if not self.train_norms:
            for norm in self.norms():
                norm.eval()
        return self

    def forward(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], list[Detections]]:
        """Losses by name in training, else detections in the pixels of each sample's image."""
        images = self._batch([sample.image for sample in samples])
        features = {"res4": self.backbone(images.tensors)}
        targets: Any = None
        if self.training:
            targets = [{"boxes": one.boxes, "labels": one.labels, "masks": one.masks} for one in samples]
        regions, proposed = self.proposals(images, features, targets)
        detections, losses = self.heads(features, regions, images.image_sizes, targets)
        if self.training:
            losses = {"objectness": proposed["loss_objectness"], "proposal": proposed["loss_rpn_box_reg"], **losses}
        return losses, detections

    def _batch(self, images: Sequence[Tensor]) -> ImageList:
        """Normalized images in one tensor, padded by zeros to a multiple of the stride."""
        sides = (max(image.shape[axis] for image in images) for axis in (1, 2))
        channels = len(self.mean)
        padded = self.mean.new_zeros((len(images), channels, *(-(-one // self.stride) * self.stride for one in sides)))
        for place, image in zip(padded, images, strict=True):
            pixels = image.to(self.mean.dtype) / 255
            if channels == 1:
                pixels = torch.einsum("chw,c->hw", pixels, pixels.new_tensor(LUMINANCE))[None]
            place[:, : image.shape[1], : image.shape[2]] = (pixels - self.mean) / self.deviation
        return ImageList(padded, [(image.shape[1], image.shape[2]) for image in images])


def build_model(encoder: LoadedEncoder, config: DetectionConfig, *, classes: int) -> MaskRCNN:
    """Mask R-CNN C4 around a copy of the encoder, as MoCo fine-tunes it on COCO.

    The encoder's stem and first three stages make the features (conv4), its last stage works on each region (res5),
    with one more norm after it, and nothing is frozen (FREEZE_AT 0). This follows coco_R_50_C4_2x_moco.yaml,
    Base-RCNN-C4-BN.yaml and Res5ROIHeadsExtraNorm of facebookresearch/moco (He et al., "Momentum Contrast", CVPR 2020,
    section 4.2), and detectron2's defaults otherwise. Two things differ from detectron2: images are padded to a
    multiple of the stride, and mask targets come from bit masks rather than polygons.

    Raises:
        ValueError: the encoder is no ResNet of timm.
    """
    check_encoder(encoder)
    module = copy.deepcopy(encoder.module).requires_grad_(True)
    backbone = nn.Sequential(OrderedDict((name, getattr(module, name)) for name in STAGES))
    with torch.no_grad():  # 16 pixels per feature with the ImageNet stem, 4 with the one for CIFAR
        _, width, side, _ = backbone.eval()(torch.zeros(1, encoder.channels, 128, 128)).shape
    stride = 128 // side
    depth = cast(int, module.num_features)
    res5 = nn.Sequential(OrderedDict(layer4=cast(nn.Module, module.layer4)))
    if config.norm == "batch":
        res5.add_module("norm", nn.BatchNorm2d(depth))
    mean, deviation = NORMALIZATIONS[encoder.normalization]
    if encoder.channels == 1:
        mean, deviation = ((sum(values) / 3,) for values in (mean, deviation))
    return MaskRCNN(
        backbone,
        build_proposals(width, stride=stride, sizes=config.anchor_sizes, tested=config.test_regions),
        Res5Heads(res5, width=depth, classes=classes, stride=stride, regions=config.regions),
        normalization=(mean, deviation),
        stride=stride,
        train_norms=config.norm == "batch",
    )


def check_encoder(encoder: LoadedEncoder) -> None:
    """Raise ValueError for an encoder that is no ResNet of timm, which the C4 shape cannot be made of."""
    if not isinstance(encoder.module, timm.models.ResNet):
        raise ValueError(
            "encoder: expected a ResNet, such as resnet50, whose stages layer1 to layer4 the C4 shape takes apart, "
            f"got {encoder.config.name}"
        )
