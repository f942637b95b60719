"""What is asked of a benchmark run, checked before anything is measured."""

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ldreg.bench.contest import Contender, parse_sizes
from ldreg.bench.measure import Device
from ldreg.bench.suite import BENCHMARKS


@dataclass(frozen=True)
class Plan:
    """What to run: benchmarks by name, sizes ("full", "quick" or a list), contenders (empty: all), and how.

    Benchmarks in which none of the contenders takes part are left out.

    Raises:
        ValueError: for an unknown name, a number out of range, or a device that is not there.
    """

    benchmarks: tuple[str, ...]
    sizes: str = "full"
    contenders: tuple[str, ...] = ()
    k: int = 64
    repeats: int = 3
    threads: int | None = None
    seed: int = 0
    command: str = ""
    device: Literal["auto", "cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        self._check_names()
        lows = {"k": (self.k, 2), "repeats": (self.repeats, 1), "threads": (self.workers, 1), "seed": (self.seed, 0)}
        for name, (value, low) in lows.items():
            if value < low:
                raise ValueError(f"{name}: expected at least {low}, got {value}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: expected a CUDA device for 'cuda', got none on this machine")
        self._check_sizes()

    def _check_names(self) -> None:
        known = {name: tuple(BENCHMARKS[name].contenders) for name in self.benchmarks}
        for name in self.contenders:
            if not any(name in names for names in known.values()):
                lists = [", ".join(names) for names in known.values()]
                told = (
                    lists if len(known) == 1 else [f"{key}: {names}" for key, names in zip(known, lists, strict=True)]
                )
                raise ValueError(f"contenders: expected some of {'; '.join(told)}, got {name!r}")
        if not self.taken:
            raise ValueError("benchmarks: expected at least one, got none")

    def _check_sizes(self) -> None:
        kinds = {BENCHMARKS[name].size for name in self.taken}
        listed = self.sizes not in ("full", "quick")
        if listed and len(kinds) > 1:
            raise ValueError(f"sizes: expected full or quick for benchmarks of several kinds, got {self.sizes!r}")
        sizes = [(name, size) for name in self.taken for size in self.sizes_of(name)]
        for name, size in sizes if listed else ():
            BENCHMARKS[name].check(size)
        smallest = min((size.candidates for _, size in sizes if size.candidates is not None), default=None)
        if smallest is not None and self.k >= smallest:
            raise ValueError(f"k: expected less than {smallest}, the smallest number of points, got {self.k}")

    @property
    def taken(self) -> tuple[str, ...]:
        """The benchmarks that are run: those in which somebody asked for takes part."""
        return tuple(name for name in self.benchmarks if self.contenders_of(name))

    @property
    def left_out(self) -> tuple[str, ...]:
        """The benchmarks that are not."""
        return tuple(name for name in self.benchmarks if name not in self.taken)

    @property
    def workers(self) -> int:
        """Threads that every contender gets, or worker processes."""
        return (os.cpu_count() or 1) if self.threads is None else self.threads

    @property
    def place(self) -> Device:
        """The device that is run on; auto is the GPU where there is one."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device

    def sizes_of(self, name: str) -> tuple[Any, ...]:
        """The sizes at which a benchmark is run."""
        benchmark = BENCHMARKS[name]
        presets = {"full": benchmark.full_sizes(self.place), "quick": benchmark.quick_sizes}
        return presets[self.sizes] if self.sizes in presets else parse_sizes(self.sizes, benchmark.size)

    def contenders_of(self, name: str) -> dict[str, Contender]:
        """Who takes part in a benchmark."""
        everyone = BENCHMARKS[name].contenders
        return {key: who for key, who in everyone.items() if not self.contenders or key in self.contenders}
