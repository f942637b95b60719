import io
from typing import Any, cast

import pytest
import torch
from timm.optim.lars import Lars
from torch import Tensor, nn

from ldreg.optim import LARS, ScheduleConfig, build_scheduler
from ldreg.optim.lars import trust_ratios

SHAPES = ((4, 3), (5, 2, 3, 3), (1, 7), (4,), (6,))
DECAY, TRUST, MOMENTUM = 0.1, 0.02, 0.9


def parameters(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in SHAPES]


def gradients(step: int) -> list[Tensor]:
    return [parameter.detach() * 3 for parameter in parameters(100 + step)]


def groups(params: list[nn.Parameter], **excluded: Any) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0, **excluded},
    ]


def train(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(params, gradients(step), strict=True):
            parameter.grad = gradient.to(parameter)
        optimizer.step()


def reference(steps: int, lr: float) -> list[Tensor]:
    """The paper's algorithm 1, weight by weight, with the learning rate inside the momentum."""
    weights = [p.detach().clone() for p in parameters()]
    velocities = [torch.zeros_like(w) for w in weights]
    for step in range(steps):
        for i, gradient in enumerate(gradients(step)):
            w, v = weights[i], velocities[i]
            local, decay = 1.0, 0.0
            if w.ndim > 1:
                decay = DECAY
                w_norm, g_norm = float((w**2).sum() ** 0.5), float((gradient**2).sum() ** 0.5)
                local = TRUST * w_norm / (g_norm + decay * w_norm)
            velocities[i] = MOMENTUM * v + lr * local * (gradient + decay * w)
            weights[i] = w - velocities[i]
    return weights


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_steps_follow_the_paper(dtype: torch.dtype, tolerance: float) -> None:
    params = parameters(dtype=dtype)
    train(LARS(groups(params, adapt=False), lr=0.3, momentum=MOMENTUM, trust_coefficient=TRUST), params, range(5))
    for parameter, expected in zip(params, reference(5, 0.3), strict=True):
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=tolerance, atol=tolerance)


def test_steps_agree_with_timm_under_a_schedule() -> None:
    ours, theirs = parameters(), parameters()
    first = LARS(groups(ours, adapt=False), lr=0.3, trust_coefficient=TRUST)
    second = cast(Any, Lars)(
        groups(theirs, always_adapt=False), lr=0.3, momentum=0.9, trust_coeff=TRUST, always_adapt=True
    )
    schedule = ScheduleConfig(epochs=6, warmup_epochs=2)
    schedulers = [build_scheduler(optimizer, schedule, steps_per_epoch=1) for optimizer in (first, second)]
    for step in range(6):
        train(first, ours, range(step, step + 1))
        train(second, theirs, range(step, step + 1))
        for scheduler in schedulers:
            scheduler.step()
    for parameter, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-8, atol=1e-8)  # timm adds 1e-8 to the denominator


def test_weights_are_adapted_without_decay_too() -> None:
    weight = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    weight.grad = torch.tensor([[0.0, 100.0]])
    LARS([weight], lr=2.0, trust_coefficient=0.01).step()
    # |w| = 5: a step of length 2 * 0.01 * 5, whatever the gradient's.
    torch.testing.assert_close(weight.detach(), torch.tensor([[3.0, 3.9]]))


@pytest.mark.parametrize(
    ("weight", "gradient", "expected"),
    [((0.0, 0.0), (1.0, 2.0), (-0.5, -1.0)), ((1.0, 2.0), (0.0, 0.0), (0.95, 1.9))],
    ids=["zero weight", "zero gradient"],
)
def test_zero_norms_leave_the_step_unscaled(weight: Any, gradient: Any, expected: Any) -> None:
    parameter = nn.Parameter(torch.tensor([weight]))
    parameter.grad = torch.tensor([gradient])
    LARS([parameter], lr=0.5, weight_decay=0.1).step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([expected]))


def test_ratios_by_hand() -> None:
    ratios = trust_ratios(
        [torch.tensor([3.0, 4.0]), torch.tensor([1.0])],
        [torch.tensor([0.0, 2.0]), torch.tensor([-4.0])],
        coefficient=0.2,
        weight_decay=0.4,
    )
    torch.testing.assert_close(ratios, torch.tensor([0.2 * 5 / (2 + 2), 0.2 / 4.4]))


def test_gradients_are_left_alone_and_missing_ones_skipped() -> None:
    params = parameters()
    optimizer = LARS(params, lr=0.1, weight_decay=0.5)
    params[0].grad = gradients(0)[0]
    optimizer.step()
    torch.testing.assert_close(params[0].grad, gradients(0)[0], rtol=0, atol=0)
    assert not torch.equal(params[0], parameters()[0])
    for parameter, untouched in zip(params[1:], parameters()[1:], strict=True):
        assert torch.equal(parameter, untouched)


def test_resuming_is_bitwise_the_same() -> None:
    def build() -> tuple[list[nn.Parameter], LARS]:
        params = parameters(dtype=torch.float32)
        return params, LARS(groups(params, adapt=False), lr=0.3, trust_coefficient=TRUST)

    whole, optimizer = build()
    train(optimizer, whole, range(6))
    half, optimizer = build()
    train(optimizer, half, range(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    resumed, optimizer = build()
    optimizer.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    with torch.no_grad():
        for parameter, saved in zip(resumed, half, strict=True):
            parameter.copy_(saved)
    train(optimizer, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(resumed, whole, strict=True))


def test_closure_is_called_with_gradients() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([weight], lr=0.1)

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 4.0
    assert float(weight.detach().sum()) < 4.0


@pytest.mark.parametrize("option", ["lr", "momentum", "weight_decay", "trust_coefficient"])
def test_negative_options_are_refused(option: str) -> None:
    options: dict[str, Any] = {"lr": 0.1, option: -1.0}
    with pytest.raises(ValueError, match=f"^{option}: expected at least 0, got -1.0"):
        LARS(parameters(), **options)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_steps_on_cuda_wait_for_nothing_and_agree_with_cpu() -> None:
    cpu = parameters(dtype=torch.float32)
    cuda = [nn.Parameter(parameter.detach().cuda()) for parameter in cpu]
    train(LARS(groups(cpu, adapt=False), lr=0.3, trust_coefficient=TRUST), cpu, range(3))
    optimizer = LARS(groups(cuda, adapt=False), lr=0.3, trust_coefficient=TRUST)
    for step in range(3):
        for parameter, gradient in zip(cuda, gradients(step), strict=True):
            parameter.grad = gradient.to(parameter)
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for parameter, expected in zip(cuda, cpu, strict=True):
        torch.testing.assert_close(parameter.cpu(), expected, rtol=1e-5, atol=1e-6)
