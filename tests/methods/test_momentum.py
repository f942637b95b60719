import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ldreg.methods import BYOL, Method, MoCoV2, MoCoV3
from ldreg.methods.momentum import MomentumBranch, cosine_momentum


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
def test_schedule_is_the_formula_of_byol(progress: float) -> None:
    expected = 1 - (1 - 0.99) * (math.cos(math.pi * progress) + 1) / 2
    assert cosine_momentum(progress, start=0.99, end=1.0) == pytest.approx(expected, abs=1e-15)
    assert cosine_momentum(progress, start=0.999, end=0.999) == 0.999


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_progress_out_of_range_is_refused(progress: float) -> None:
    with pytest.raises(ValueError, match="progress: expected a number from 0 to 1"):
        cosine_momentum(progress, start=0.99, end=1.0)


def test_update_is_the_moving_average_of_parameters_alone() -> None:
    torch.manual_seed(0)
    encoder, projector = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2)
    branch = MomentumBranch(encoder, projector)
    with torch.no_grad():
        for parameter in (*encoder.parameters(), *projector.parameters()):
            parameter.add_(torch.randn_like(parameter))
    encoder(torch.randn(5, 3))  # moves the encoder's running statistics, which the branch does not take over
    before = copy.deepcopy(branch)
    branch.update(encoder, projector, momentum=0.9)
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
