"""MAE: reconstruct the patches of an image that are hidden from the encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ldreg.methods.base import Method, MethodEntry, Outcome, check, check_positive
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
    """

    mask_ratio: float = 0.75
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    norm_pix_loss: bool = True

    def __post_init__(self) -> None:
        check(0 < self.mask_ratio < 1, "mask_ratio", "a number between 0 and 1", self.mask_ratio)
        width, depth, heads = self.decoder_width, self.decoder_depth, self.decoder_heads
        check_positive(decoder_width=width, decoder_depth=depth, decoder_heads=heads)
        fits = width % heads == 0 and width % 4 == 0
        check(fits, "decoder_width", f"a multiple of 4 and of decoder_heads ({heads})", width)


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
        share = f"a share that leaves 1 to {self.patches - 1} of {self.patches} patches visible"
        check(0 < self.visible < self.patches, "mask_ratio", share, config.mask_ratio)
        check(not (self.normalize and pixels == 1), "norm_pix_loss", "False where a patch is a single number", True)
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
        expected = (len(images), self.channels, self.size, self.size)
        check(images.shape == expected, "views", f"shape {expected}", tuple(images.shape))
        visible, hidden = self.masks(len(images), device=images.device, generator=generator)
        # The decoder reads all tokens, so all of them fork, and not the class token alone.
        for_loss, tokens = self.fork(self._masked.encode(images, idx_keep=visible))
        predictions = self.predict(utils.get_at_index(self._decode(for_loss, visible), hidden))
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
    pooled = encoder.cls_token is not None and encoder.global_pool == "token"
    check(pooled, "encoder", "pooling by a class token for MAE", repr(encoder.global_pool))
    grid, patch = encoder.patch_embed.grid_size, encoder.patch_embed.patch_size
    square = grid[0] == grid[1] and patch[0] == patch[1]
    check(square, "encoder", "square images and patches for MAE", f"a grid of {tuple(grid)}")
    return encoder


METHODS = {"mae": MethodEntry(MAEConfig, MAE)}
