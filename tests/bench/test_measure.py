"""Time and peak memory of a call."""

import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ldreg.bench import measure as module
from ldreg.bench.measure import available_bytes, measure

ALLOCATION = """
import json, numpy
from ldreg.bench.measure import measure
before = numpy.ones(40_000_000)  # 320 MB that were there and went before count for nothing
del before
def for_a_moment():
    numpy.ones(25_000_000)  # 200 MB
    return numpy.ones(1)
def kept():
    return numpy.ones(25_000_000)  # charged once, not for every repeat
print(json.dumps([measure(work, repeats=3)[0].extra_mb for work in (for_a_moment, kept)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of memory")
def test_memory_of_a_known_allocation() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATION], capture_output=True, text=True, check=True)
    for megabytes in json.loads(done.stdout):
        assert 180 < megabytes < 260


def test_every_repeat_is_timed_but_long_work_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count(1)

    def work() -> int:
        time.sleep(0.02)
        return next(calls)

    measured, result = measure(work, repeats=3)
    assert (len(measured.seconds), result, measured.host) == (3, 3, None)
    assert min(measured.seconds) >= 0.02
    assert measured.median == statistics.median(measured.seconds)
    monkeypatch.setattr(module, "_LONG", 0.001)
    assert len(measure(work, repeats=3)[0].seconds) == 1


def test_memory_is_unknown_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=PermissionError))
    assert measure(lambda: None, repeats=1)[0].extra_mb is None
    assert 1e7 < available_bytes() < 1e14


class FakeDevice:
    """A GPU whose clock is moved by the work, and whose memory by what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.peak = 0.0, 100e6
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = device.clock

            def elapsed_time(self, end: Any) -> float:
                return 1000 * float(end.at - self.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100e6)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: setattr(self, "peak", 100e6))

    def work(self, seconds: float, megabytes: float) -> None:
        self.clock += seconds
        self.peak = max(self.peak, 100e6 + 1e6 * megabytes)


def test_short_calls_on_a_gpu_are_timed_in_bursts_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    device, calls = FakeDevice(monkeypatch), []

    def work() -> None:
        calls.append(1)
        device.work(3.0 if len(calls) == 1 else 1e-3, megabytes=500 if len(calls) == 1 else 30)

    measured, _ = measure(work, repeats=2, device="cuda")
    assert measured.seconds == pytest.approx([1e-3] * len(measured.seconds))  # the first call compiled
    assert len(measured.seconds) == pytest.approx(15, abs=1)  # bursts of 20 calls until 0.3 s are timed
    assert len(calls) == 1 + module._SETTLING + 20 * len(measured.seconds)
    assert measured.extra_mb == pytest.approx(30)
    assert measured.host is not None
    assert 0 < measured.host < 1e-3


def test_long_calls_on_a_gpu_are_called_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    measured, _ = measure(lambda: device.work(40.0, megabytes=1), repeats=3, device="cuda")
    assert measured.seconds == (40.0,)
    assert device.clock == 80


@pytest.mark.gpu
def test_time_and_memory_of_known_work() -> None:
    x = torch.ones(4096, 4096, device="cuda")

    def work() -> torch.Tensor:
        (x + 1).sum()  # 67 MB for a moment
        return torch.ones(1, device="cuda")

    measured, result = measure(work, repeats=2, device="cuda")
    assert result.item() == 1
    assert measured.extra_mb is not None
    assert 67 <= measured.extra_mb < 75
    assert measured.host is not None
    assert 1e-6 < measured.median < 0.1
    assert measured.host < 0.1
