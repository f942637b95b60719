"""On one process; several are in test_distributed."""

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from ldreg.methods import GlobalBatchNorm, synchronize_batch_norm


def network() -> nn.Sequential:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(32, 3), nn.BatchNorm1d(3, momentum=0.3))
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2, eps=1e-3), nn.ReLU(), head)


@pytest.mark.parametrize("training", [True, False])
def test_converted_module_is_the_same_on_one_process(training: bool) -> None:
    plain, converted = network().train(training), synchronize_batch_norm(network().train(training))
    x = torch.randn(5, 1, 4, 4)
    assert torch.equal(plain(x), converted(x))
    assert list(plain.state_dict()) == list(converted.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(value, converted.state_dict()[name]), name
    converted.load_state_dict(network().state_dict())


def test_conversion_keeps_parameters_and_reaches_nested_modules() -> None:
    plain = network()
    parameters = list(plain.parameters())
    plain[1].weight.requires_grad_(False)
    converted = synchronize_batch_norm(plain)
    assert all(a is b for a, b in zip(parameters, converted.parameters(), strict=True))
    kinds = [type(module) for module in converted.modules()]
    assert kinds.count(GlobalBatchNorm) == 2
    assert nn.BatchNorm1d not in kinds
    assert nn.BatchNorm2d not in kinds
    assert not next(m for m in converted.modules() if isinstance(m, GlobalBatchNorm)).weight.requires_grad
    assert synchronize_batch_norm(converted)[1] is converted[1]  # type: ignore[index]
    assert isinstance(synchronize_batch_norm(nn.BatchNorm2d(3)), GlobalBatchNorm)
    on_cuda = synchronize_batch_norm(network(), device="cuda:0")
    assert sum(isinstance(module, nn.SyncBatchNorm) for module in on_cuda.modules()) == 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_activation_inside_timms_norm_is_kept(device: str) -> None:
    norm = nn.Sequential(BatchNormAct2d(2)).eval()
    x = torch.randn(4, 2, 3, 3)
    expected = norm(x)
    assert (expected >= 0).all()
    assert torch.equal(synchronize_batch_norm(norm, device=device)(x), expected)


def test_unknown_batch_norms_and_inputs_of_one_dimension_are_refused() -> None:
    class Other(nn.BatchNorm2d):
        pass

    with pytest.raises(ValueError, match=r"module: expected batch norms of torch or timm's .* got Other"):
        synchronize_batch_norm(nn.Sequential(Other(2)))
    with pytest.raises(ValueError, match=r"input: expected at least 2 dimensions, got shape \(3,\)"):
        GlobalBatchNorm(3)(torch.zeros(3))
