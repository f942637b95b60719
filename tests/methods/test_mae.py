import copy
import dataclasses

import pytest
import torch
from lightly.models import utils
from lightly.models.modules import MaskedVisionTransformerTIMM
from tests.methods.small import transformer
from timm.models import VisionTransformer
from torch import nn

from ldreg.methods import MAE, MAEConfig

SMALL = MAEConfig(decoder_width=16, decoder_depth=1, decoder_heads=2)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("normalize", [True, False])
def test_loss_is_that_of_the_plain_steps(normalize: bool) -> None:
    """The whole image patched and predicted, and the error averaged over hidden patches by a 0/1 mask."""
    method = MAE(transformer(), MAEConfig(decoder_width=16, decoder_depth=1, decoder_heads=2, norm_pix_loss=normalize))
    images = torch.randn(5, 1, 8, 8)
    outcome = method((images,), seeded())
    kept, hidden = method.masks(5, generator=seeded())
    wrapped = MaskedVisionTransformerTIMM(method.encoder, weight_initialization="skip", pos_embed_initialization="skip")
    tokens = wrapped.encode(images, idx_keep=kept)
    torch.testing.assert_close(outcome.representations, tokens[:, 0])
    sequence = utils.repeat_token(method.decoder.mask_token, (5, 17))
    decoded = method.decoder(utils.set_at_index(sequence, kept, method.embed(tokens)))
    predictions = method.predict(decoded[:, 1:])
    # Pixels of patch (i, j), channel last: by slicing rather than by lightly's patchify.
    patches = torch.stack(
        [images[:, 0, i : i + 2, j : j + 2].flatten(1) for i in (0, 2, 4, 6) for j in (0, 2, 4, 6)], 1
    )
    if normalize:
        patches = utils.normalize_mean_var(patches)
    mask = torch.zeros(5, 16).scatter_(1, hidden - 1, 1.0)
    error = (predictions - patches).square().mean(2)
    torch.testing.assert_close(outcome.loss, (error * mask).sum() / mask.sum())


def test_patches_are_not_registers() -> None:
    vit = VisionTransformer(
        img_size=8, patch_size=2, in_chans=1, num_classes=0, embed_dim=16, depth=1, num_heads=2, reg_tokens=4
    )
    vit.dimension = 16  # type: ignore[assignment]
    method = MAE(vit, dataclasses.replace(SMALL, norm_pix_loss=False))
    nn.init.zeros_(method.predict.weight)  # so that the loss is the mean square of the hidden patches
    numbers = torch.arange(16.0).view(1, 1, 4, 4).expand(3, -1, -1, -1)
    images = numbers.repeat_interleave(2, 2).repeat_interleave(2, 3)
    kept, hidden = method.masks(3, generator=seeded())
    assert kept[:, :5].tolist() == [[0, 1, 2, 3, 4]] * 3
    expected = (hidden - 5).double().square().mean().item()
    assert method((images,), seeded()).loss.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("size", "patch", "channels", "ratio", "visible"),
    [(8, 2, 1, ratio, visible) for ratio, visible in ((0.5, 8), (0.6, 6), (0.7, 4), (0.75, 4), (0.8, 3), (0.9, 1))]
    + [(32, 4, 3, 0.75, 16), (32, 16, 3, 0.75, 1)],
)
def test_masks_split_the_patches(size: int, patch: int, channels: int, ratio: float, visible: int) -> None:
    """The number of visible ones is rounded down, as in the authors' code: int(16 * (1 - ratio))."""
    method = MAE(transformer(size, patch, channels), dataclasses.replace(SMALL, mask_ratio=ratio))
    kept, hidden = method.masks(7, generator=seeded())
    assert kept.shape == (7, 1 + visible)
    assert (kept[:, 0] == 0).all()
    for row in torch.cat((kept, hidden), 1):
        assert row.sort().values.tolist() == list(range((size // patch) ** 2 + 1))
    assert len(kept.sort(1).values.unique(dim=0)) > 1
    images, generator = torch.randn(7, channels, size, size), seeded()
    first, second = (method((images,), generator).loss for _ in range(2))
    assert first == method((images,), seeded()).loss != second


def test_hidden_pixels_do_not_reach_the_representations() -> None:
    method, images = MAE(transformer(), SMALL), torch.randn(1, 1, 8, 8)
    _, hidden = method.masks(1, generator=seeded())
    row, column = divmod(int(hidden[0, 0]) - 1, 4)
    changed = images.clone()
    changed[0, 0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] += 10
    before, after = method((images,), seeded()), method((changed,), seeded())
    assert torch.equal(before.representations, after.representations)
    assert not torch.equal(method.encoder(images), method.encoder(changed))


def test_the_encoder_stays_a_plain_timm_model_with_the_same_weights() -> None:
    method, images = MAE(transformer(), SMALL), torch.randn(4, 1, 8, 8)
    fresh = transformer()
    fresh.load_state_dict(method.encoder.state_dict())
    torch.testing.assert_close(method.encoder(images), fresh(images))
    assert {key.split(".")[0] for key in method.state_dict()} == {"encoder", "embed", "decoder", "predict"}
    before = method.encoder(images).detach()
    method((images,)).loss.backward()
    with torch.no_grad():
        for parameter in method.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)
    assert not torch.allclose(method.encoder(images), before)


def test_a_copy_works_on_its_own_encoder() -> None:
    method, images = MAE(transformer(), SMALL), torch.randn(4, 1, 8, 8)
    other = copy.deepcopy(method)
    with torch.no_grad():
        for parameter in other.encoder.parameters():
            parameter.zero_()
    assert method((images,), seeded()).representations.abs().max() > 0
    assert other((images,), seeded()).representations.abs().max() == 0


class Pooled(nn.Flatten):
    dimension = 64


def test_unfit_encoders_and_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^encoder: .*Pooled"):
        MAE(Pooled(), SMALL)
    averaged = VisionTransformer(8, 2, 1, num_classes=0, embed_dim=16, depth=1, num_heads=2, global_pool="avg")
    averaged.dimension = 16  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"^encoder: .*'avg'"):
        MAE(averaged, SMALL)
    with pytest.raises(ValueError, match=r"^mask_ratio: "):
        MAE(transformer(), MAEConfig(mask_ratio=0.99))
    with pytest.raises(ValueError, match=r"^norm_pix_loss: "):
        MAE(transformer(4, 1, 1), SMALL)
    with pytest.raises(ValueError, match=r"^views: .*\(2, 1, 16, 16\)"):
        MAE(transformer(), SMALL)((torch.zeros(2, 1, 16, 16),))
