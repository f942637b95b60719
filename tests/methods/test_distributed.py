"""Two gloo processes against one that holds the whole batch, for every method, without and with LDReg."""

from typing import Any

import pytest
import torch
from tests.methods.small import NAMES, build
from tests.ranks import WORLD, on_every_rank
from torch import Tensor, nn

from ldreg import LDReg
from ldreg.methods import Method, synchronize_batch_norm

IMAGES = 8  # images on each rank
CASES: dict[str, dict[str, Any]] = {
    **{key: {} for key in NAMES},
    **{key: {"momentum": 0.5} for key in ("byol", "moco", "moco_v3")},
    **{key: {"projector": (16, 40)} for key in ("vicreg, wide", "barlow_twins, wide")},
}
NORMS: list[dict[str, Any]] = [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}]


def make(case: str) -> Method:
    return build(case.removesuffix(", wide"), **CASES[case]).double()


def batch(case: str, *, step: int, rank: int | None) -> tuple[tuple[Tensor, ...], torch.Generator]:
    """Views and generator of one rank, or of the whole batch; MAE's masks of rank 1 are the later rows' then."""
    count, generator = WORLD * IMAGES, torch.Generator().manual_seed(step)
    views = torch.randn(1 if case == "mae" else 2, count, 1, 8, 8, dtype=torch.float64, generator=generator)
    masks = torch.Generator().manual_seed(100 + step)
    if rank is not None:
        views = views.chunk(WORLD, 1)[rank]
        torch.rand(rank * IMAGES, 16, generator=masks)
    return views.unbind(), masks


def train(case: str, *, regularized: bool, rank: int | None, distributed: bool) -> dict[str, Any]:
    """Two steps: the losses, the second step's gradients, and all parameters and buffers at the end."""
    method = make(case)
    reg = LDReg(k=4, beta=0.5, gather=distributed)
    shell: nn.Module = method
    if distributed:
        shell = nn.parallel.DistributedDataParallel(synchronize_batch_norm(method))
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for step in range(2):
        views, generator = batch(case, step=step, rank=rank)
        optimizer.zero_grad()
        outcome = shell(views, generator)
        loss = outcome.loss
        if regularized:
            loss = loss + reg(outcome.representations, outcome.reference, self_index=outcome.self_index)
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
        method.after_step((step + 1) / 4)
    gradients = {name: p.grad for name, p in method.named_parameters() if p.grad is not None}
    return {"losses": losses, "gradients": gradients, "state": method.state_dict()}


def normalize(options: dict[str, Any], *, rank: int | None, dtype: torch.dtype) -> dict[str, Tensor]:
    """Two training steps of batch norm alone: the second's output and gradients, and the state."""
    norm: nn.Module = nn.BatchNorm2d(3, **options, dtype=torch.promote_types(dtype, torch.float32))
    norm = norm if rank is None else synchronize_batch_norm(norm)
    for step in range(2):
        x = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64).to(dtype) + 3
        weights = torch.linspace(-1, 1, x.numel(), dtype=dtype).view_as(x)
        x, weights = (x, weights) if rank is None else (x.chunk(WORLD)[rank], weights.chunk(WORLD)[rank])
        x = x.contiguous().requires_grad_()
        y = norm(x)
        norm.zero_grad()
        (y.square() * weights).sum().backward()
    assert x.grad is not None
    gradients = {f"{name}.grad": p.grad for name, p in norm.named_parameters() if p.grad is not None}
    return {"output": y.detach(), "input.grad": x.grad, **gradients, **norm.state_dict()}


def compute(rank: int) -> dict[str, Any]:
    results = {
        (case, regularized): train(case, regularized=regularized, rank=rank, distributed=True)
        for case in CASES
        for regularized in (False, True)
    }
    norms = [
        normalize(options, rank=rank, dtype=dtype) for options in NORMS for dtype in (torch.float64, torch.bfloat16)
    ]
    return {"results": results, "norms": norms}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return on_every_rank(compute, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("regularized", [False, True], ids=["alone", "ldreg"])
def test_two_processes_train_as_one(ranks: list[Any], case: str, regularized: bool) -> None:
    whole = train(case, regularized=regularized, rank=None, distributed=False)
    assert max(gradient.abs().max() for gradient in whole["gradients"].values()) > 1e-3
    for saved in ranks:
        got = saved["results"][case, regularized]
        for part in ("losses", "gradients", "state"):
            torch.testing.assert_close(got[part], whole[part], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("index", range(len(NORMS)))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_batch_norm_over_ranks_is_batch_norm_of_the_whole(ranks: list[Any], index: int, dtype: torch.dtype) -> None:
    whole = normalize(NORMS[index], rank=None, dtype=dtype)
    parts = [saved["norms"][2 * index + (dtype == torch.bfloat16)] for saved in ranks]
    for name, expected in whole.items():
        if name in ("output", "input.grad"):
            got = torch.cat([part[name] for part in parts])
        elif name.endswith(".grad"):
            got = parts[0][name] + parts[1][name]
        else:
            got = parts[0][name]
            assert torch.equal(got, parts[1][name])
        rtol, atol = (3e-2, 5e-2) if dtype == torch.bfloat16 else (1e-9, 1e-12)
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)
