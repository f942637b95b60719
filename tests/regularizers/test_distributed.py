"""Regularizers over two gloo processes against one process with the whole batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.points import normal
from tests.ranks import WORLD, on_every_rank
from torch import Tensor, nn

from ldreg import LDReg
from ldreg.distributed import gather, total
from ldreg.regularizers import Covariance, KoLeo, SIGReg, VarianceCovariance

# LDReg's options, each with the batch as reference, and with BYOL's online and momentum representations.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": "l2"},
    {"target": 2.0},
    {"target": 1.5, "norm": "frechet"},
    {"reference_grad": True},
    {"reference_grad": True, "norm": "l2", "estimator": "mle"},
    {"estimator": "tle", "reference_grad": True},
    {"queue_size": 40},
]
BASELINES: list[type[nn.Module]] = [Covariance, VarianceCovariance, KoLeo, SIGReg]

Loss = Callable[[nn.Module, Tensor], Tensor]


def batch() -> Tensor:
    """48 rows: degenerate points, so that ranks differ in how many are regular, and gradients of unlike size."""
    x = normal(48, 5, seed=7, dtype=torch.float64) * torch.linspace(0.5, 1.5, 48, dtype=torch.float64)[:, None]
    x[:10] = 0
    return x


def two_steps(loss: Loss, x: Tensor, rank: int | None) -> list[Tensor]:
    """The second step's gradient of an encoder's weights, by DDP if there are ranks; the first may fill a queue."""
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(5, 6, dtype=torch.float64)
    shell = model if rank is None else nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        model.zero_grad()
        loss(shell, x if rank is None else x.chunk(WORLD)[rank]).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def of_ldreg(options: dict[str, Any], rank: int | None, *, momentum: bool = False) -> list[Tensor]:
    """Gradients, and last the share of regular points."""
    reg = LDReg(k=6, beta=1.0, gather=rank is not None, **options)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        z = model(x)
        reference = torch.cat((z, z.detach() * 1.1 + 0.1)) if momentum else None
        value: Tensor = reg(z, reference, self_index=torch.arange(len(z)) if momentum else None)
        return value

    return [*two_steps(loss, batch(), rank), reg.regular_share]


def of_share(rank: int | None, *, joint: bool) -> list[Tensor]:
    """Gradients with a share, of a loss over the batch of all ranks, or of the mean of losses of each rank."""
    reg = LDReg(k=6, share=0.2, gather=rank is not None)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        z, penalty = reg.fork(model(x))
        z = gather(z) if joint and rank is not None else z
        mean: Tensor = 30 * z.sigmoid().square().mean() + penalty
        return mean

    return two_steps(loss, batch(), rank)


def of_baseline(kind: type[nn.Module], rows: int, rank: int | None) -> list[Tensor]:
    regularizer = kind(beta=1.0, gather=rank is not None)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        value: Tensor = regularizer(model(x))
        return value

    return two_steps(loss, batch()[-rows:], rank)


# What one process and two have to agree on.
CASES: dict[str, Callable[[int | None], list[Tensor]]] = {
    **{f"{options}": partial(of_ldreg, options) for options in OPTIONS},
    **{f"{options}, momentum": partial(of_ldreg, options, momentum=True) for options in OPTIONS},
    "share, joint loss": partial(of_share, joint=True),
    "share, mean of losses": partial(of_share, joint=False),
    **{f"{kind.__name__}, {rows} rows": partial(of_baseline, kind, rows) for kind in BASELINES for rows in (12, 2)},
}


def compute(rank: int) -> dict[str, Any]:
    """What all cases and the functions that they rest on give on this rank."""
    saved: dict[str, Any] = {name: case(rank) for name, case in CASES.items()}
    rows = torch.full((2, 1), float(rank), requires_grad=True)
    (gather(rows).squeeze(1) * torch.arange(4.0)).sum().backward()
    saved |= {"gather": rows.grad, "total": total(torch.tensor(rank + 1.0))}
    uneven = (torch.zeros(rank + 1, 2), torch.zeros(2, 2, dtype=(torch.bfloat16, torch.float64)[rank]))
    saved["uneven"] = [error_of(partial(gather, rows)) for rows in uneven]
    x, own = batch().chunk(WORLD)[rank], torch.arange(24)
    saved["beyond"] = [
        error_of(partial(reg, x, x, self_index=torch.where(own == 7, row, own)))
        for reg in (LDReg(k=6, gather=True), torch.compile(LDReg(k=6, gather=True), backend="aot_eager"))
        for row in (24, -2)
    ]
    return saved


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_every_rank(compute, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_one_process(ranks: list[dict[str, Any]], name: str) -> None:
    # BYOL's references lie rank by rank, which changes no neighbor.
    whole = CASES[name](None)
    assert whole[0].abs().max() > 1e-3
    for saved in ranks:
        torch.testing.assert_close(saved[name], whole, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", BASELINES)
def test_gather_changes_nothing_in_one_process(kind: type[nn.Module]) -> None:
    assert kind(gather=True)(normal(12, 5)) == kind()(normal(12, 5))


def test_gather_and_total(ranks: list[dict[str, Any]]) -> None:
    """And batches of other sizes or dtypes, or indices of another rank's rows, are errors on every rank."""
    beyond = [f"self_index: expected rows of the reference, 0 to 23, or -1, got {row}" for row in (24, -2, 24, -2)]
    for rank, saved in enumerate(ranks):
        assert saved["total"] == 3
        # Each of two ranks weighs row i of the gathered four by i; gradients are summed.
        assert saved["gather"].squeeze(1).tolist() == [2 * (2 * rank), 2 * (2 * rank + 1)]
        sizes, dtypes = saved["uneven"]
        assert sizes.endswith("got 1 to 2")
        assert dtypes.endswith("got torch.bfloat16 and torch.float64")
        assert saved["beyond"] == beyond
