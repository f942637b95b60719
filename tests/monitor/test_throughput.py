from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from ldreg.monitor.throughput import Throughput, batch_size


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rate_counts_images_over_time_and_leaves_out_pauses() -> None:
    clock = Clock()
    speed = Throughput(clock)
    speed.restart()
    speed.add(300)
    clock.now = 2.0
    with speed.paused():
        clock.now = 100.0
    speed.add(300)
    clock.now = 101.0
    assert speed.rate() == pytest.approx(600 / 3)
    speed.restart()
    assert speed.rate() is None


def test_a_pause_before_the_first_restart_is_no_error() -> None:
    speed = Throughput(Clock())
    with speed.paused():
        speed.add(1)
    assert speed.rate() is None


class Batch(NamedTuple):
    images: Tensor
    labels: Tensor


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (Batch(torch.ones(6, 2), torch.ones(6)), 6),
        ((["a", "b"], {"x": torch.ones(4, 3)}), 4),
        (torch.ones(3), 3),
        (torch.tensor(1.0), 0),
        ("text", 0),
    ],
)
def test_the_first_tensor_says_how_large_a_batch_is(batch: object, size: int) -> None:
    assert batch_size(batch) == size
