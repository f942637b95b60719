"""The proposals of the C4 detector: anchors, their head and their loss, as detectron2 has them, on torchvision's."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, l1_loss
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

RATIOS = (0.5, 1.0, 2.0)  # height over width
SAMPLED = 256  # anchors per image in the loss


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
    """The region proposal network on one map of features, with the numbers of detectron2's C4 models.

    `tested` regions of an image are looked at in evaluation.
    """
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
