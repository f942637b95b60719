import copy
import math
from collections.abc import Callable

import pytest
import torch
from lightly.models.modules import heads as lightly_heads
from torch import nn

from ldreg.methods import BYOL, Method, MoCoV2, MoCoV3
from ldreg.methods.heads import Last, MomentumBranch, cosine_momentum, mlp


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


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
def test_schedule_is_the_formula_of_byol(progress: float) -> None:
    expected = 1 - (1 - 0.99) * (math.cos(math.pi * progress) + 1) / 2
    assert cosine_momentum(progress, start=0.99, end=1.0) == pytest.approx(expected, abs=1e-15)
    assert cosine_momentum(progress, start=0.999, end=0.999) == 0.999


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_progress_out_of_range_is_refused(progress: float) -> None:
    with pytest.raises(ValueError, match="progress: "):
        cosine_momentum(progress, start=0.99, end=1.0)


def test_update_is_the_moving_average_of_parameters_alone() -> None:
    torch.manual_seed(0)
    encoder, projector = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2)
    branch = MomentumBranch(encoder, projector, start=0.9, end=0.9)
    with torch.no_grad():
        for parameter in (*encoder.parameters(), *projector.parameters()):
            parameter.add_(torch.randn_like(parameter))
    encoder(torch.randn(5, 3))  # moves the encoder's running statistics, which the branch does not take over
    before = copy.deepcopy(branch)
    branch.update(encoder, projector, 0.5)
    online = [*encoder.parameters(), *projector.parameters()]
    for new, old, source in zip(branch.parameters(), before.parameters(), online, strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * source)
    for new_buffer, old_buffer in zip(branch.buffers(), before.buffers(), strict=True):
        assert torch.equal(new_buffer, old_buffer)


@pytest.mark.parametrize(
    ("name", "kind", "momentum"), [("byol", BYOL, 0.9975), ("moco", MoCoV2, 0.999), ("moco_v3", MoCoV3, 0.9975)]
)
def test_after_step_follows_by_the_momentum_of_that_time(
    make: Callable[..., Method], name: str, kind: type[BYOL | MoCoV2 | MoCoV3], momentum: float
) -> None:
    method = make(name)
    assert isinstance(method, kind)
    followed, source = next(method.target.parameters()), next(method.encoder.parameters())
    with torch.no_grad():
        source.add_(1)
    method.after_step(2 / 3)  # a quarter of the way from 1 back to 0.99 is left
    torch.testing.assert_close(source - followed, torch.full_like(source, momentum))


@pytest.mark.parametrize("name", ["byol", "moco", "moco_v3"])
def test_the_branch_has_no_gradient_and_its_own_statistics(make: Callable[..., Method], name: str) -> None:
    method = make(name)
    views = torch.randn(2, 8, 1, 8, 8).unbind()
    method(views).loss.backward()
    trained = {key for key, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {key for key, _ in method.named_parameters() if not key.startswith("target.")}
    assert method.get_buffer("target.encoder.1.num_batches_tracked") == 1
    assert method.get_buffer("target.encoder.1.running_mean").abs().max() > 0
