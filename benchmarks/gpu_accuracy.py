"""LID on a CUDA device against float64, with TF32 globally on; prints one line a case.

python benchmarks/gpu_accuracy.py
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ldreg import LDReg, lid
from ldreg.bench.regularizer import pseudocode_penalty
from ldreg.dimension.estimators import mom


def float64_lid(x: Tensor, k: int) -> Tensor:
    """By differences in float64, a block of rows at a time."""
    parts = []
    for start in range(0, len(x), 256):
        rows = torch.arange(start, min(start + 256, len(x)), device=x.device)
        distances = torch.cdist(x[rows].double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
        distances[torch.arange(len(rows), device=x.device), rows] = torch.inf
        parts.append(mom(distances.topk(k, largest=False).values)[0])
    return torch.cat(parts)


def cases() -> dict[str, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(8192, 2048)
    cloud = torch.randn(8192, 5) @ torch.linalg.qr(torch.randn(512, 5)).Q.T
    return {
        "N(1, 0.02²)": x * 0.02 + 1,
        "N(31, 0.02²)": x * 0.02 + 31,
        "5-d cloud, std 1e-3, unit mean": cloud * 1e-3 + 512**-0.5,
        "scale 1e-12": x * 1e-12,
        "scale 1e12": x * 1e12,
        "scale 1e30": x[:, :512] * 1e30,
    }


def milliseconds(work: Callable[[], object], repeats: int = 20) -> float:
    for _ in range(5):
        work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e3


def step(value: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    def run() -> None:
        x.grad = None
        value(x).backward()

    return run


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    print("\nlargest relative error of LID against float64, k = 64, TF32 on; pseudocode beside it")
    for name, x in cases().items():
        x = x.cuda()
        exact = float64_lid(x, 64)
        error = (lid(x, 64).double() / exact - 1).abs().max().item()
        theirs = torch.cdist(x, x).sort(dim=1).values[:, 1:65]
        mu = theirs.mean(1)
        wrong = ((mu / (theirs[:, -1] - mu)).double() / exact - 1).abs()
        print(f"{name:32s} {error:9.1e}   cdist {wrong.nan_to_num(torch.inf).max().item():9.1e}")
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    print("\nforward + backward, k = 64, milliseconds (peak extra MB)")
    for n, d in ((1024, 512), (4096, 2048), (8192, 2048)):
        x = torch.randn(n, d, device="cuda", requires_grad=True)
        reg = LDReg(k=64)
        line = f"{n} x {n} x {d}:"
        for label, value in (("pseudocode", partial(pseudocode_penalty, k=64)), ("LDReg", reg)):
            took = milliseconds(step(value, x))
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step(value, x)()
            line += f"  {label} {took:7.2f} ({(torch.cuda.max_memory_allocated() - before) / 2**20:6.0f})"
        print(line)
    x = torch.randn(50_000, 2048, device="cuda")
    print(f"whole set 50,000 x 2048, no gradient: {milliseconds(lambda: lid(x, 64), 3):.0f} ms")


if __name__ == "__main__":
    main()
