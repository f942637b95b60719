import math
from typing import Any

import pytest
import torch
from lightly.utils.scheduler import cosine_schedule, cosine_warmup_schedule
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from ldreg.optim import OptimizerConfig, ScheduleConfig, build_optimizer, build_scheduler, lr_factor


def factors(total: int, warmup: int, floor: float = 0.0) -> list[float]:
    return [lr_factor(step, total=total, warmup=warmup, floor=floor) for step in range(total + 1)]


def test_warmup_is_linear_and_meets_the_cosine() -> None:
    values = factors(total=12, warmup=4)
    assert values[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert values[8] == pytest.approx(0.5)  # half-way down the cosine
    assert values[6] == pytest.approx((1 + math.sqrt(0.5)) / 2)  # a quarter of it
    assert values[12] == 0.0
    assert min(values[:12]) > 0


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_factors_agree_with_lightlys(floor: float) -> None:
    values = factors(total=25, warmup=5, floor=floor)
    warmup = [cosine_warmup_schedule(step, 25, 1.0, floor, 5, 0.0) for step in range(5)]
    # Lightly's cosine reaches the end value in its last step, ours after it: one step more makes them the same.
    decay = [cosine_schedule(step, 21, 1.0, floor) for step in range(21)]
    assert values == pytest.approx(warmup + decay, abs=1e-12)


def test_factors_agree_with_torchs_cosine() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = CosineAnnealingLR(optimizer, T_max=10, eta_min=0.5)
    for value in factors(total=10, warmup=0, floor=0.25):
        assert scheduler.get_last_lr()[0] == pytest.approx(2.0 * value)
        optimizer.step()
        scheduler.step()


def test_one_step_is_taken_at_the_peak() -> None:
    assert factors(total=1, warmup=0, floor=0.3) == [1.0, pytest.approx(0.3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"step": 0, "total": 5, "warmup": 5},
            "warmup: expected at least 0 and fewer than the 5 steps in total, got 5",
        ),
        ({"step": 0, "total": 5, "warmup": -1}, "warmup: expected at least 0"),
        ({"step": 0, "total": 0}, "total: expected at least 1 step, got 0"),
        ({"step": 6, "total": 5}, "step: expected 0 to 5, got 6"),
        ({"step": -1, "total": 5}, "step: expected 0 to 5, got -1"),
        ({"step": 0, "total": 5, "floor": 1.5}, r"floor: expected a share in \[0, 1\], got 1.5"),
    ],
)
def test_impossible_steps_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        lr_factor(**{"warmup": 0, "floor": 0.0, **arguments})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs: expected at least 1, got 0"),
        ({"epochs": 5}, "warmup_epochs: expected at least 0 and fewer than the 5 epochs, got 10.0"),
        ({"warmup_epochs": -1}, "warmup_epochs: expected at least 0"),
        ({"min_lr": -0.1}, "min_lr: expected a finite value of at least 0, got -0.1"),
    ],
)
def test_bad_schedules_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ScheduleConfig(**options)


def test_scheduler_moves_every_group_by_the_same_factor() -> None:
    config = OptimizerConfig(lr=0.2, lr_scaling="none", bias_lr=0.05)
    optimizer = build_optimizer(nn.Linear(2, 2), config, batch_size=1)
    scheduler = build_scheduler(optimizer, ScheduleConfig(4, 0.5, min_lr=0.02), steps_per_epoch=2)
    for factor in factors(total=8, warmup=1, floor=0.1):
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2 * factor, 0.05 * factor])
        optimizer.step()
        if scheduler.last_epoch < 8:
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02)


def test_scheduler_resumes_where_it_was() -> None:
    def build() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = build_optimizer(nn.Linear(2, 2), OptimizerConfig(), batch_size=64)
        return optimizer, build_scheduler(optimizer, ScheduleConfig(5, 1), steps_per_epoch=3)

    def advance(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    whole = advance(*build(), 12)
    first = build()
    advance(*first, 7)
    second = build()
    for new, old in zip(second, first, strict=True):
        new.load_state_dict(old.state_dict())
    assert advance(*second, 5) == whole[7:]


def test_scheduler_refuses_what_cannot_be() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ValueError, match=r"^steps_per_epoch: expected at least 1, got 0"):
        build_scheduler(optimizer, ScheduleConfig(), steps_per_epoch=0)
    with pytest.raises(ValueError, match=r"^min_lr: expected at most the peak learning rate 0.1, got 0.2"):
        build_scheduler(optimizer, ScheduleConfig(min_lr=0.2), steps_per_epoch=1)
    with pytest.raises(ValueError, match=r"^warmup: expected at least 0 and fewer than the 2 steps"):
        build_scheduler(optimizer, ScheduleConfig(2, 1.9), steps_per_epoch=1)
