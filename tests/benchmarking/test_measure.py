import json
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

from ldreg.benchmarking import measure as module
from ldreg.benchmarking.measure import Measurement, available_bytes, measure

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of memory")

ALLOCATION = """
import json, numpy
from ldreg.benchmarking.measure import measure
before = numpy.ones(40_000_000)  # 320 MB that were there and went before count for nothing
del before
def work():
    numpy.ones(25_000_000)  # 200 MB for a moment
    return numpy.ones(1)
print(json.dumps(measure(work, repeats=3)[0].extra_mb))
"""


@linux
def test_memory_of_a_known_allocation() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATION], capture_output=True, text=True, check=True)
    assert 180 < json.loads(done.stdout) < 260


@linux
def test_a_result_is_charged_once() -> None:
    code = ALLOCATION.replace("    numpy.ones(25_000_000)  # 200 MB for a moment\n    return numpy.ones(1)",
                              "    return numpy.ones(25_000_000)")  # fmt: skip
    assert code != ALLOCATION
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 180 < json.loads(done.stdout) < 260


def test_times_every_repeat() -> None:
    calls: list[int] = []

    def work() -> numpy.ndarray[tuple[int], numpy.dtype[numpy.float64]]:
        calls.append(1)
        time.sleep(0.02)
        return numpy.full(2, float(len(calls)))

    measured, result = measure(work, repeats=3)
    assert len(calls) == len(measured.seconds) == 3
    assert min(measured.seconds) >= 0.02
    assert result[0] == 3


def test_long_work_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONG", 0.001)
    measured, _ = measure(lambda: time.sleep(0.005) or numpy.zeros(1), repeats=3)  # type: ignore[func-returns-value]
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
