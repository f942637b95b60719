import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from ldreg.bench import measure as module
from ldreg.bench.measure import Measurement, available_bytes, measure

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of memory")

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


@linux
def test_memory_of_a_known_allocation() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATION], capture_output=True, text=True, check=True)
    for megabytes in json.loads(done.stdout):
        assert 180 < megabytes < 260


def test_times_every_repeat() -> None:
    calls: list[int] = []

    def work() -> int:
        calls.append(1)
        time.sleep(0.02)
        return len(calls)

    measured, result = measure(work, repeats=3)
    assert len(calls) == len(measured.seconds) == 3
    assert min(measured.seconds) >= 0.02
    assert result == 3
    assert measured.host is None


def test_long_work_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONG", 0.001)
    measured, _ = measure(lambda: time.sleep(0.005), repeats=3)
    assert len(measured.seconds) == 1


def test_median_is_of_the_repeats() -> None:
    assert Measurement((3.0, 1.0, 2.0), None).median == 2


def test_memory_is_unknown_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    assert measure(lambda: numpy.zeros(1), repeats=1)[0].extra_mb is None


def test_available_memory_is_plausible() -> None:
    assert 1e7 < available_bytes() < 1e14


class FakeDevice:
    """A GPU whose clock is moved by the work, and whose memory by what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.held, self.peak, self.waits = 0.0, 100e6, 100e6, 0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = device.clock

            def elapsed_time(self, end: Any) -> float:
                return 1000 * float(end.at - self.at)

        for name, stand_in in {
            "Event": Event,
            "synchronize": self.wait,
            "memory_allocated": lambda: device.held,
            "max_memory_allocated": lambda: device.peak,
            "reset_peak_memory_stats": self.forget,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    def wait(self) -> None:
        self.waits += 1

    def forget(self) -> None:
        self.peak = self.held

    def work(self, seconds: float, megabytes: float) -> None:
        self.clock += seconds
        self.peak = max(self.peak, self.held + 1e6 * megabytes)


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
    device, calls = FakeDevice(monkeypatch), []

    def work() -> None:
        calls.append(1)
        device.work(40.0, megabytes=1)

    measured, _ = measure(work, repeats=3, device="cuda")
    assert measured.seconds == (40.0,)
    assert len(calls) == 2
