"""MAE: reconstruct the patches of an image that are hidden from the encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ldreg.methods.base import Method, MethodEntry, Outcome, check_positive
from ldreg.methods.losses import reconstruction

if TYPE_CHECKING:  # slow imports
    from lightly.models.modules import MaskedVisionTransformerTIMM
    from timm.models import VisionTransformer


@dataclass(frozen=True)
class MAEConfig:
    """Options of MAE (He et al., CVPR 2022), by default the original's.

    Args:
        mask_ratio: Share of the patches that are hidden from the encoder.
        decoder_width: Columns of the decoder's tokens.
        decoder_depth: Number of the decoder's blocks.
        decoder_heads: Number of attention heads in each of them.
        norm_pix_loss: Whether each patch to be reconstructed is normalized to mean 0 and variance 1 first.

    Raises:
        ValueError: a value is out of range, or the width is not a multiple of the heads and of 4.
    """

    mask_ratio: float = 0.75
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    norm_pix_loss: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.mask_ratio < 1:
            raise ValueError(f"mask_ratio: expected a number between 0 and 1, got {self.mask_ratio}")
        for name in ("decoder_width", "decoder_depth", "decoder_heads"):
            check_positive(name, getattr(self, name))
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            raise ValueError(
                f"decoder_width: expected a multiple of 4 and of decoder_heads ({self.decoder_heads}), "
                f"got {self.decoder_width}"
            )


class MAE(Method):
    """Reconstruct hidden patches from the few that the encoder sees (He et al., CVPR 2022).

    The encoder is a timm `VisionTransformer` with a class token; its weights are initialized again as in MAE, with
    fixed sine-cosine positions. Representations (N, D) are the class token of the masked image after the final norm.

    Raises:
        ValueError: the encoder is of another type, or has too few patches or pixels for the options; in the call,
            images do not have the encoder's size.

    >>> from timm.models import VisionTransformer
    >>> encoder = VisionTransformer(
    ...     img_size=8, patch_size=2, in_chans=1, num_classes=0, embed_dim=16, depth=1, num_heads=2)
    >>> encoder.dimension = 16
    >>> method = MAE(encoder, MAEConfig(decoder_width=16, decoder_depth=1, decoder_heads=2))
    >>> method((torch.randn(6, 1, 8, 8),)).representations.shape
    torch.Size([6, 16])
    """

    view_count = 1
    candidates = 1
    _masked: "MaskedVisionTransformerTIMM"

    def __init__(self, encoder: nn.Module, config: MAEConfig) -> None:
        from lightly.models.modules import MaskedVisionTransformerDecoderTIMM, MaskedVisionTransformerTIMM

        super().__init__(encoder)
        vit = _class_token_transformer(encoder)
        self.patch_size, self.channels = vit.patch_embed.patch_size[0], vit.patch_embed.proj.in_channels
        self.patches, self.prefix = vit.patch_embed.num_patches, vit.num_prefix_tokens
        self.size = self.patch_size * round(self.patches**0.5)
        self.visible, self.normalize = int(self.patches * (1 - config.mask_ratio)), config.norm_pix_loss
        pixels = self.channels * self.patch_size**2
        if not 0 < self.visible < self.patches:
            raise ValueError(
                f"mask_ratio: expected to leave 1 to {self.patches - 1} of {self.patches} patches visible, "
                f"got {config.mask_ratio}"
            )
        if self.normalize and pixels == 1:
            raise ValueError("norm_pix_loss: expected False where a patch is a single number, got True")
        # Not registered as a child: it holds the encoder again, and a mask token of its own that MAE does not use.
        object.__setattr__(self, "_masked", MaskedVisionTransformerTIMM(vit))
        self.embed = nn.Linear(self.dimension, config.decoder_width)
        self.decoder = MaskedVisionTransformerDecoderTIMM(
            num_patches=self.patches,
            embed_dim=config.decoder_width,
            depth=config.decoder_depth,
            num_heads=config.decoder_heads,
            num_prefix_tokens=self.prefix,
        )
        self.predict = nn.Linear(config.decoder_width, pixels)
        for layer in (self.embed, self.predict):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, views: Sequence[Tensor], generator: torch.Generator | None = None) -> Outcome:
        """The outcome of one view; the generator draws the hidden patches."""
        from lightly.models import utils

        self._check(views)
        images = views[0]
        if images.shape[1:] != (self.channels, self.size, self.size):
            expected = (len(images), self.channels, self.size, self.size)
            raise ValueError(f"views: expected shape {expected}, got {tuple(images.shape)}")
        visible, hidden = self.masks(len(images), device=images.device, generator=generator)
        tokens = self._masked.encode(images, idx_keep=visible)
        predictions = self.predict(utils.get_at_index(self._decode(tokens, visible), hidden))
        patches = utils.get_at_index(utils.patchify(images, self.patch_size), hidden - self.prefix)
        loss = reconstruction(predictions, patches, normalize=self.normalize)
        return Outcome(loss, {"reconstruction": loss.detach()}, tokens[:, 0])

    def compiled_parts(self) -> list[nn.Module]:
        """The blocks of encoder and decoder; the whole encoder is never called on a masked image."""
        return [self._masked.vit.blocks, self.decoder.blocks]

    def masks(
        self, count: int, *, device: torch.device | str = "cpu", generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Indices of the visible and of the hidden tokens of each of `count` images: two tensors (count, ·).

        The class token and any registers are visible and come first.
        """
        order = torch.rand(count, self.patches, device=device, generator=generator).argsort(1) + self.prefix
        prefix = torch.arange(self.prefix, device=device).expand(count, -1)
        return torch.cat((prefix, order[:, : self.visible]), 1), order[:, self.visible :]

    def _decode(self, tokens: Tensor, visible: Tensor) -> Tensor:
        """The decoder's tokens (N, L, W), from the encoder's visible tokens and mask tokens elsewhere."""
        from lightly.models import utils

        seen = self.embed(tokens)
        blank = self.decoder.mask_token.to(seen.dtype).expand(len(seen), self.patches + self.prefix, -1)
        decoded: Tensor = self.decoder(utils.set_at_index(blank, visible, seen))
        return decoded


def _class_token_transformer(encoder: nn.Module) -> "VisionTransformer":
    from timm.models import VisionTransformer

    if not isinstance(encoder, VisionTransformer):
        raise ValueError(f"encoder: expected a timm VisionTransformer for MAE, got {type(encoder).__name__}")
    if encoder.cls_token is None or encoder.global_pool != "token":
        raise ValueError(f"encoder: expected pooling by a class token for MAE, got {encoder.global_pool!r}")
    grid = encoder.patch_embed.grid_size
    if grid[0] != grid[1] or encoder.patch_embed.patch_size[0] != encoder.patch_embed.patch_size[1]:
        raise ValueError(f"encoder: expected square images and patches for MAE, got a grid of {tuple(grid)}")
    return encoder


METHODS = {"mae": MethodEntry(MAEConfig, MAE)}
