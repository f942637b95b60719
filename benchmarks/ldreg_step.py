"""One step of LDReg on a CUDA device, forward and backward: fused kernels, plain way and the paper's pseudocode.

python benchmarks/ldreg_step.py             all sizes, with every cut of the distance kernel
python benchmarks/ldreg_step.py --short     1024 x 512 alone

Columns: `step`, time of one step between two CUDA events (median of 50); `host`, time until the call returns, which
is short only where nothing waits for the device; `kernels`, the sum of the kernels' own times; `launches`, their
number; `extra`, peak memory beyond the input; `error`, largest relative error of LID against float64, of 64 points.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from ldreg import LDReg, lid
from ldreg.dimension.cuda import large_step_kernels, step_kernels
from ldreg.dimension.cuda import step as fused

SIZES = ((1024, 512), (2048, 512), (2048, 2048), (4096, 2048), (8192, 2048))
LOG_LID = fused.Reduction(True, "plain", "mean", 0.0, 1.0)
TILES = (
    step_kernels.Tiles(64, 16, 4),
    step_kernels.Tiles(64, 16, 4, half=False),
    step_kernels.Tiles(32, 16, 2),
)
K = 64


class Way(NamedTuple):
    """A way to the same step: its value, its LID, the path LDReg is to take and the cut of the distance kernel."""

    name: str
    value: Callable[[Tensor], Tensor]
    lid: Callable[[Tensor], Tensor]
    path: str = "auto"
    tiles: step_kernels.Tiles = step_kernels.TILES


def pseudocode_value(x: Tensor) -> Tensor:
    """The paper's Algorithms 1 and 2."""
    a = torch.cdist(x, x.detach(), p=2).sort(dim=1).values
    m = a[:, 1:K].mean(1)
    return -0.01 * (m / (a[:, K] - m)).log().abs().mean()


def pseudocode_lid(x: Tensor) -> Tensor:
    a = torch.cdist(x, x, p=2).sort(dim=1).values[:, 1 : K + 1]
    return a.mean(1) / (a[:, -1] - a.mean(1))


def fused_lid(x: Tensor) -> Tensor:
    outcome = step_kernels.forward(x, None, None, K, LOG_LID)
    return outcome.rows[0].exp()


def screened_lid(x: Tensor) -> Tensor:
    outcome = large_step_kernels.forward(x, None, None, K, LOG_LID)
    return outcome.rows[0].exp()


def ways() -> list[Way]:
    reg = LDReg(k=K)
    plain = Way("plain", reg, lambda x: lid(x, K), "plain")
    cuts = [Way(f"fused {cut.side}/{cut.chunk}/{cut.warps}", reg, fused_lid, "differences", cut) for cut in TILES]
    cuts = [way if way.tiles.half else way._replace(name=f"{way.name} full") for way in cuts]
    screened = Way("screened", reg, screened_lid, "screened")
    return [Way("pseudocode", pseudocode_value, pseudocode_lid), plain, screened, *cuts]


@contextmanager
def chosen(way: Way) -> Iterator[None]:
    before = fused.PATH, step_kernels.TILES
    fused.PATH, step_kernels.TILES = way.path, way.tiles  # type: ignore[assignment]
    try:
        yield
    finally:
        fused.PATH, step_kernels.TILES = before


def step_times(step: Callable[[], object], repeats: int = 50) -> tuple[float, float]:
    """Median milliseconds of one step on the device and on the host."""
    for _ in range(10):
        step()
    events, host = [], []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        clock = time.perf_counter()
        start.record()
        step()
        end.record()
        host.append((time.perf_counter() - clock) * 1e3)
        events.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events), statistics.median(host)


def kernel_times(step: Callable[[], object], repeats: int = 5) -> dict[str, tuple[float, float]]:
    """Launches and milliseconds a step of each kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in profile.events() or []:
        if "CUDA" in str(event.device_type):
            count, took = found[event.name]
            found[event.name] = count + 1 / repeats, took + event.device_time / 1e3 / repeats
    return dict(found)


def peak_megabytes(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def float64_lid(x: Tensor, rows: Tensor) -> Tensor:
    distances = torch.cdist(x[rows].double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    distances[torch.arange(len(rows)), rows] = torch.inf
    nearest = distances.topk(K, largest=False).values
    return nearest.mean(1) / (nearest[:, -1] - nearest.mean(1))


def measure(way: Way, x: Tensor, rows: Tensor, exact: Tensor) -> dict[str, tuple[float, float]]:
    def step() -> object:
        return torch.autograd.grad(way.value(x), x)

    with chosen(way):
        took, host = step_times(step)
        each = kernel_times(step)
        memory = peak_megabytes(step)
        error = (way.lid(x.detach())[rows.to(x.device)].double().cpu() / exact - 1).abs().nan_to_num(torch.inf).max()
    launches, busy = (sum(values) for values in zip(*each.values(), strict=True))
    print(f"{way.name:22s} {took:8.3f} {host:8.3f} {busy:8.3f} {launches:9.0f} {memory:8.0f} {error.item():9.1e}")
    return each


def contest(n: int, dim: int) -> None:
    torch.manual_seed(0)
    data = torch.randn(n, dim) * 0.02 + 1
    rows = torch.arange(0, n, n // 64)
    exact = float64_lid(data, rows)
    x = data.cuda().requires_grad_()
    print(f"\n{n} x {n} x {dim}, N(1, 0.02²), k = {K}")
    print(f"{'ms':22s} {'step':>8s} {'host':>8s} {'kernels':>8s} {'launches':>9s} {'extra MB':>8s} {'error':>9s}")
    profiles = {way.name: measure(way, x, rows, exact) for way in ways()}
    for way in ("fused 64/16/4", "screened"):
        print(f"  {way}")
        for name, (count, took) in profiles[way].items():
            print(f"    {name[:60]:60s} {count:5.1f} x {took / count * 1e3:8.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description="One step of LDReg on a CUDA device.")
    parser.add_argument("--short", action="store_true", help="the smallest size alone")
    short = parser.parse_args().short
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    for n, dim in SIZES[:1] if short else SIZES:
        contest(n, dim)


if __name__ == "__main__":
    main()
