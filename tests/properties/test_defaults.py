"""Which device and dtype torch makes tensors in where none is named changes nothing: data bring their own."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ldreg import LDReg, effective_rank, fisher_rao, global_dimension, inspect, lid
from ldreg.dimension.expected import expected_lid
from ldreg.dimension.streaming import stream_lid
from ldreg.regularizers import Covariance, KoLeo, SIGReg, VarianceCovariance

SMALL, LARGE = (torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (60, 2000))


def trained(build: Callable[[], nn.Module]) -> list[Tensor]:
    """Value and gradient of the last of three steps, the state, and the value of a module that takes up that state."""
    module, x = build(), SMALL.clone().requires_grad_()
    for _ in range(3):
        x.grad = None
        value = module(x)
        value.backward()
    resumed = build().to_empty(device="cpu")
    resumed.load_state_dict(module.state_dict())
    assert x.grad is not None
    return [value.detach(), x.grad, *module.state_dict().values(), resumed(x).detach()]


def reported() -> list[Any]:
    """What the report of a set, compared with another, draws at random or looks up."""
    report = inspect(LARGE, k=10, sample=1000, device="cpu", compare=2 * LARGE)
    assert report.comparison is not None
    return [report.index, report.lid, report.coordinates, report.mean.value, report.danco, report.comparison.fisher_rao]


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "lid of a small set": lambda: lid(SMALL, 10),
    "lid of blocks": lambda: lid(LARGE, 10, estimator="tle"),
    "lid in a reference": lambda: lid(SMALL, 10, LARGE, self_index=torch.full((60,), -1, device="cpu")),
    "lid in parts": lambda: stream_lid(SMALL, 10, device="cpu", budget=4000),
    "effective rank": lambda: effective_rank(SMALL),
    "DANCo": lambda: global_dimension(LARGE),
    "DANCo, drawn": lambda: global_dimension(SMALL),
    "TwoNN": lambda: global_dimension(LARGE, estimator="twonn"),
    "Fisher-Rao": lambda: fisher_rao(SMALL.abs(), 2.0),
    "Fisher-Rao of whole numbers": lambda: fisher_rao(torch.tensor([257, 3], device="cpu"), 2.0),
    "expected LID": lambda: expected_lid(torch.linspace(2, 1, 500, dtype=torch.float32, device="cpu"), 20, 1000, 500),
    "a report": reported,
    "LDReg": lambda: trained(lambda: LDReg(10, reference_grad=True)),
    "LDReg with a queue": lambda: trained(lambda: LDReg(10, queue_size=100, target=3.0, norm="l2")),
    "KoLeo": lambda: trained(KoLeo),
    "SIGReg": lambda: trained(lambda: SIGReg(num_slices=16, center=True)),
    "covariance": lambda: trained(Covariance),
    "variance and covariance": lambda: trained(VarianceCovariance),
}


@pytest.mark.parametrize("default", [torch.device("meta"), torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_default_device_and_dtype_do_not_matter(name: str, default: torch.device | torch.dtype) -> None:
    """On the device "meta" nothing can be computed."""
    expected, before = FUNCTIONS[name](), torch.get_default_dtype()
    try:
        if isinstance(default, torch.dtype):
            torch.set_default_dtype(default)
        with default if isinstance(default, torch.device) else nullcontext():
            found = FUNCTIONS[name]()
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
