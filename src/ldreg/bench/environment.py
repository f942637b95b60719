"""The machine, the versions and the commit that a measurement belongs to."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = (
    *("ldreg", "torch", "triton", "torchvision", "timm", "lightly", "pytorch-lightning", "numpy"),
    *("scikit-learn", "scikit-dimension", "faiss-cpu", "torchid"),
)


def environment(*, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Everything about here and now that timings depend on."""
    return {
        "gpu": _gpu() if device == "cuda" else None,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(Path(__file__).parent),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


class Others:
    """How much of the machine other processes take while this one and its children measure."""

    def __init__(self) -> None:
        self._start = _clocks()

    def cores(self) -> float | None:
        """Cores kept busy by others on average since the start; None where the system does not tell."""
        if self._start is None or (now := _clocks()) is None:
            return None
        busy, own, wall = (end - start for start, end in zip(self._start, now, strict=True))
        return max(0.0, busy - own) / wall


def _clocks() -> tuple[float, float, float] | None:
    """Seconds that all cores were busy, that this process and its finished children took of it, and of the clock."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except FileNotFoundError:
        return None
    idle, waiting = fields[3:5]
    own = os.times()
    return (
        (sum(fields) - idle - waiting) / os.sysconf("SC_CLK_TCK"),
        own.user + own.system + own.children_user + own.children_system,
        time.monotonic(),
    )


def commit(folder: Path) -> str | None:
    """The commit that a folder is checked out at, marked where the folder differs from it; None outside of git.

    LDREG_COMMIT says it for a copy of the code on another machine, which has no history.
    """
    if os.environ.get("LDREG_COMMIT"):
        return os.environ["LDREG_COMMIT"]
    try:
        head = _git(folder, "rev-parse", "--short=10", "HEAD")
        return f"{head} with local changes" if _git(folder, "status", "--porcelain", "--", "..") else head
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _gpu() -> str:
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name} ({properties.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda})"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
