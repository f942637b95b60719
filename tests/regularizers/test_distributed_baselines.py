"""The gathered baselines over two gloo processes against one process with the whole batch."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from ldreg.regularizers.covariance import Covariance, VarianceCovariance
from ldreg.regularizers.koleo import KoLeo
from ldreg.regularizers.sigreg import SIGReg

WORLD_SIZE = 2
KINDS = {"covariance": Covariance, "variance_covariance": VarianceCovariance, "koleo": KoLeo, "sigreg": SIGReg}
BATCHES = {"usual": 12, "one row each": 2}


def encoder() -> nn.Linear:
    linear = nn.Linear(5, 4, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(4, 5, generator=torch.Generator().manual_seed(1)))
        linear.bias.zero_()
    return linear


def images(rows: int) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def run(model: nn.Linear, regularizer: nn.Module, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Value and weight gradient of two training steps; SIGReg's directions differ between them."""
    results = []
    for _ in range(2):
        model.zero_grad()
        value = regularizer(model(x))
        value.backward()
        gradient = model.weight.grad
        assert gradient is not None
        if distributed.is_initialized():  # what DistributedDataParallel does, which takes seconds to import
            distributed.all_reduce(gradient)
            gradient /= WORLD_SIZE
        results.append((value.detach().clone(), gradient.clone()))
    return results


def worker(rank: int, folder: Path) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=WORLD_SIZE
    )
    results = {}
    for batch, rows in BATCHES.items():
        for name, kind in KINDS.items():
            rows_here = images(rows).chunk(WORLD_SIZE)[rank]
            results[batch, name] = run(encoder(), kind(1.0, gather=True), rows_here)
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, __file__, str(rank), tmp_path]) for rank in range(WORLD_SIZE)]
    assert [process.wait(timeout=120) for process in processes] == [0] * WORLD_SIZE
    for rank in range(WORLD_SIZE):
        results = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for (batch, name), found in results.items():
            expected = run(encoder(), KINDS[name](1.0), images(BATCHES[batch]))
            for step in range(2):
                torch.testing.assert_close(found[step], expected[step], rtol=1e-9, atol=1e-12, msg=f"{batch} {name}")
            assert expected[0][1].abs().max() > 1e-3


def test_gather_changes_nothing_in_one_process() -> None:
    x = images(12)
    for kind in KINDS.values():
        assert kind(1.0, gather=True)(x) == kind(1.0)(x)


if __name__ == "__main__":
    worker(int(sys.argv[1]), Path(sys.argv[2]))
