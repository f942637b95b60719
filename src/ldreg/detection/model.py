"""Mask R-CNN with the C4 shape around a ResNet that was trained elsewhere."""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import timm
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models.detection.image_list import ImageList

from ldreg.detection.config import DetectionConfig
from ldreg.detection.heads import Detections, Res5Heads
from ldreg.detection.regions import Proposals, build_proposals
from ldreg.detection.samples import Sample
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.views.config import NORMALIZATIONS

STAGES = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3")
# Weights of red, green and blue in luminance (ITU-R BT.601), for encoders of gray images.
LUMINANCE = (0.299, 0.587, 0.114)


class MaskRCNN(nn.Module):
    """Images of any sizes to detections (He et al., "Mask R-CNN", ICCV 2017), on one map of features.

    Args:
        backbone: images (B, C, H, W) to features (B, D, H / stride, W / stride).
        proposals: features to regions.
        heads: regions to classes, boxes and masks.
        normalization: mean and standard deviation by channel, of pixels from 0 to 1.
        stride: pixels per feature.
        train_norms: whether batch norms are trained; else they stay as they are, in training too.
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
        regions, proposal_losses = self.proposals(images, features, targets)
        detections, losses = self.heads(features, regions, images.image_sizes, targets)
        named = {
            {"loss_objectness": "objectness", "loss_rpn_box_reg": "proposal"}[name]: loss
            for name, loss in proposal_losses.items()
        }
        return named | losses, detections

    def _batch(self, images: Sequence[Tensor]) -> ImageList:
        """Normalized images in one tensor, padded by zeros to a multiple of the stride."""
        tall, wide = (max(image.shape[axis] for image in images) for axis in (1, 2))
        channels = len(self.mean)
        padded = self.mean.new_zeros(
            (len(images), channels, *(-(-side // self.stride) * self.stride for side in (tall, wide)))
        )
        for place, image in zip(padded, images, strict=True):
            pixels = image.to(self.mean.dtype) / 255
            if channels == 1:
                pixels = torch.einsum("chw,c->hw", pixels, pixels.new_tensor(LUMINANCE))[None]
            place[:, : image.shape[1], : image.shape[2]] = (pixels - self.mean) / self.deviation
        return ImageList(padded, [(image.shape[1], image.shape[2]) for image in images])


def build_model(encoder: LoadedEncoder, config: DetectionConfig, *, classes: int) -> MaskRCNN:
    """Mask R-CNN C4 around a copy of the encoder, as MoCo fine-tunes it on COCO.

    The encoder's stem and first three stages make the features (conv4), its last stage works on each region (res5),
    with one more norm after it, and nothing is frozen (FREEZE_AT 0). New layers are drawn anew. After
    coco_R_50_C4_2x_moco.yaml, Base-RCNN-C4-BN.yaml and Res5ROIHeadsExtraNorm of facebookresearch/moco (He et al.,
    "Momentum Contrast", CVPR 2020, section 4.2), with detectron2's defaults for all that those do not set. Where this
    differs from detectron2: padding to a multiple of the stride, mask targets from bit masks rather than polygons.

    Raises:
        ValueError: the encoder is no ResNet of timm.
    """
    check_encoder(encoder)
    module = copy.deepcopy(encoder.module).requires_grad_(True)
    backbone = nn.Sequential(OrderedDict((name, getattr(module, name)) for name in STAGES))
    width, stride = measure(backbone, channels=encoder.channels)
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
    """Refuse an encoder that the C4 shape cannot be made of.

    Raises:
        ValueError: it is no ResNet of timm.
    """
    if not isinstance(encoder.module, timm.models.ResNet):
        raise ValueError(
            "encoder: expected a ResNet, such as resnet50, whose stages layer1 to layer4 the C4 shape takes apart, "
            f"got {encoder.config.name}"
        )


@torch.no_grad()
def measure(backbone: nn.Module, *, channels: int) -> tuple[int, int]:
    """Channels and stride of a backbone's features: 16 with the ImageNet stem, 4 with the one for CIFAR."""
    side = 128
    features: Tensor = backbone.eval()(torch.zeros(1, channels, side, side))
    return features.shape[1], side // features.shape[2]
