import pytest
import torch
from lightly.models.modules import heads as lightly_heads
from torch import nn

from ldreg.methods.heads import Last, mlp


def kinds(head: nn.Module) -> list[type[nn.Module]]:
    return [type(layer) for layer in head.modules() if not list(layer.children())]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (mlp(6, (5, 4), last="scale"), lightly_heads.SimCLRProjectionHead(6, 5, 4)),
        (mlp(6, (5, 5, 4), last="scale"), lightly_heads.SimCLRProjectionHead(6, 5, 4, num_layers=3)),
        (mlp(6, (5, 4)), lightly_heads.BYOLProjectionHead(6, 5, 4)),
        (mlp(6, (5, 4), batch_norm=False), lightly_heads.MoCoProjectionHead(6, 5, 4)),
        (mlp(6, (5, 5, 4)), lightly_heads.BarlowTwinsProjectionHead(6, 5, 4)),
    ],
)
def test_layers_are_those_of_lightly(ours: nn.Module, theirs: nn.Module) -> None:
    assert kinds(ours) == kinds(theirs)
    widths = [
        [layer.out_features for layer in head.modules() if isinstance(layer, nn.Linear)] for head in (ours, theirs)
    ]
    assert widths[0] == widths[1]


@pytest.mark.parametrize(("last", "trained"), [("linear", 4), ("scale", 5), ("plain", 4)])
def test_what_the_last_norm_trains(last: Last, trained: int) -> None:
    """Two linear weights and the first norm's scale and shift, plus the last norm's scale where it has one."""
    head = mlp(6, (5, 4), last=last)
    assert len([p for p in head.parameters() if p.requires_grad]) == trained
    embeddings = head(torch.randn(32, 6))
    if last != "linear":
        torch.testing.assert_close(embeddings.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
        torch.testing.assert_close(embeddings.var(0, correction=0), torch.ones(4), atol=1e-2, rtol=0)


def test_a_single_width_is_one_linear_layer() -> None:
    assert kinds(mlp(6, (4,))) == [nn.Linear]
    assert mlp(6, (4,), batch_norm=False)[0].bias is not None
