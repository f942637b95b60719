"""Regularizers over two gloo processes against one process with the whole batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from ldreg import LDReg
from ldreg.distributed import gather, leave, total
from ldreg.regularizers import Covariance, KoLeo, SIGReg, VarianceCovariance

WORLD = 2
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
ROWS = (12, 2)  # of the whole batch: a usual one, and one row for each rank


def batch(*, world: int) -> Tensor:
    x = torch.randn(24 * world, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    x[:10] = 0  # degenerate points, so that ranks differ in how many are regular
    return x


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 6, dtype=torch.float64)


def forward(reg: LDReg, z: Tensor, momentum: bool) -> Tensor:
    """The batch as reference, or BYOL's online and momentum representations."""
    reference = torch.cat((z, z.detach() * 1.1 + 0.1)) if momentum else None
    value: Tensor = reg(z, reference, self_index=torch.arange(len(z)) if momentum else None)
    return value


def gradients(x: Tensor, options: dict[str, Any], *, momentum: bool, distributed: bool) -> list[Tensor]:
    """Those of the parameters, and last the share of regular points."""
    model, reg = encoder(), LDReg(k=6, beta=1.0, gather=distributed, **options)
    shell = nn.parallel.DistributedDataParallel(model) if distributed else model
    for _ in range(2):  # the second step sees the queue
        model.zero_grad()
        forward(reg, shell(x), momentum).backward()
    return [*(parameter.grad for parameter in model.parameters() if parameter.grad is not None), reg.regular_share]


def baseline_steps(kind: type[nn.Module], rows: int, rank: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Value and weight gradient of two training steps; the directions of SIGReg differ between them."""
    model, regularizer = encoder(), kind(beta=1.0, gather=rank is not None)
    x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = []
    for _ in range(2):
        model.zero_grad()
        value = regularizer(model(x if rank is None else x.chunk(WORLD)[rank]))
        value.backward()
        gradient = model.weight.grad
        assert isinstance(gradient, Tensor)
        if rank is not None:  # as DistributedDataParallel does
            dist.all_reduce(gradient)
            gradient /= WORLD
        steps.append((value.detach().clone(), gradient.clone()))
    return steps


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    x = batch(world=WORLD).chunk(WORLD)[rank]
    results = [gradients(x, options, momentum=m, distributed=True) for options in OPTIONS for m in (False, True)]
    rows = torch.full((2, 1), float(rank), requires_grad=True)
    (gather(rows).squeeze(1) * torch.arange(4.0)).sum().backward()
    torch.save({"results": results, "gather": rows.grad, "total": total(torch.tensor(rank + 1.0))}, f"{folder}/{rank}")
    uneven = (torch.zeros(rank + 1, 2), torch.zeros(2, 2, dtype=(torch.bfloat16, torch.float64)[rank]))
    Path(f"{folder}/uneven{rank}").write_text("\n".join(map(refusal, uneven)))
    torch.save([[baseline_steps(kind, rows, rank) for kind in BASELINES] for rows in ROWS], f"{folder}/baselines{rank}")
    Path(f"{folder}/beyond{rank}").write_text("\n".join(beyond(x)))
    dist.destroy_process_group()
    leave(0)


def refusal(rows: Tensor) -> str:
    try:
        gather(rows)
    except ValueError as error:
        return str(error)
    return "no error"


def beyond(x: Tensor) -> list[str]:
    """What LDReg says of rows of the gathered reference that are none of the rank's own, as it is and compiled."""
    said, own = [], torch.arange(len(x))
    for reg in (LDReg(k=6, gather=True), torch.compile(LDReg(k=6, gather=True), backend="aot_eager")):
        for row in (len(x), -2):
            try:
                reg(x, x, self_index=torch.where(own == 7, row, own))
            except ValueError as error:
                said.append(str(error))
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    start_processes(worker, args=(str(folder),), nprocs=WORLD, start_method="spawn")
    return folder


@pytest.mark.parametrize("index", range(len(OPTIONS)))
@pytest.mark.parametrize("momentum", [False, True])
def test_gradient_is_that_of_one_process(folder: Path, index: int, momentum: bool) -> None:
    # BYOL's references lie rank by rank, which changes no neighbor.
    whole = gradients(batch(world=WORLD), OPTIONS[index], momentum=momentum, distributed=False)
    for rank in range(WORLD):
        got = torch.load(folder / str(rank))["results"][2 * index + momentum]
        assert 0 < whole[-1] < 1
        for ours, expected in zip(got, whole, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize("rows", ROWS)
def test_baselines_have_the_gradient_of_one_process(folder: Path, kind: type[nn.Module], rows: int) -> None:
    expected = baseline_steps(kind, rows)
    assert expected[0][1].abs().max() > 1e-3
    for rank in range(WORLD):
        found = torch.load(folder / f"baselines{rank}")[ROWS.index(rows)][BASELINES.index(kind)]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", BASELINES)
def test_gather_changes_nothing_in_one_process(kind: type[nn.Module]) -> None:
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    assert kind(gather=True)(x) == kind()(x)


def test_gather_and_total(folder: Path) -> None:
    for rank in range(WORLD):
        saved = torch.load(folder / str(rank))
        assert saved["total"] == 3
        # Each of two ranks weighs row i of the gathered four by i; gradients are summed.
        assert saved["gather"].squeeze(1).tolist() == [2 * (2 * rank), 2 * (2 * rank + 1)]


def test_batches_of_other_sizes_or_dtypes_are_refused_on_every_rank(folder: Path) -> None:
    for rank in range(WORLD):
        sizes, dtypes = (folder / f"uneven{rank}").read_text().splitlines()
        assert sizes.endswith("got 1 to 2")
        assert dtypes.endswith("got torch.bfloat16 and torch.float64")


def test_self_index_is_of_the_ranks_own_reference(folder: Path) -> None:
    expected = [f"self_index: expected rows of the reference, 0 to 23, or -1, got {row}" for row in (24, -2, 24, -2)]
    for rank in range(WORLD):
        assert (folder / f"beyond{rank}").read_text().splitlines() == expected
