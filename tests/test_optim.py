import io
from typing import Any, cast

import pytest
import timm
import torch
from lightly.utils.scheduler import cosine_schedule, cosine_warmup_schedule
from pytorch_lightning.plugins.precision import MixedPrecision
from timm.optim.lars import Lars
from torch import nn
from torch.optim import SGD, AdamW

from ldreg.optim import (
    LARS,
    OptimizerConfig,
    ScheduleConfig,
    build_optimizer,
    build_scheduler,
    lr_factor,
    parameter_groups,
    scaled_lr,
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        images = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        module(images).square().mean().backward()
        optimizer.step()


CONFIGS = {
    "lars": OptimizerConfig(lr=0.5),
    "sgd": OptimizerConfig("sgd", lr=0.03, lr_scaling="linear", weight_decay=1e-4, nesterov=True),
    "adamw": OptimizerConfig("adamw", lr=1.5e-4, lr_scaling="linear", weight_decay=0.05),
}


@pytest.mark.parametrize(
    ("lr", "rule", "batch_size", "expected"),
    [
        # The paper's settings: SimCLR, SimCLR-Tuned, BYOL and MAE at batch size 2048, SimCLR at 4096.
        (0.075, "sqrt", 2048, 3.3941125),
        (0.075, "sqrt", 4096, 4.8),
        (0.5, "linear", 2048, 4.0),
        (0.4, "linear", 2048, 3.2),
        (1.5e-4, "linear", 2048, 1.2e-3),
        (0.01, "none", 2048, 0.01),
    ],
)
def test_learning_rates_scale_as_in_the_paper(lr: float, rule: Any, batch_size: int, expected: float) -> None:
    for bias_lr, expected_bias in ((None, expected), (lr / 10, expected / 10)):
        config = OptimizerConfig(lr=lr, lr_scaling=rule, bias_lr=bias_lr)
        assert scaled_lr(config, batch_size) == pytest.approx(expected)
        optimizer = build_optimizer(network(), config, batch_size=batch_size)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([expected, expected_bias])


@pytest.mark.parametrize("name", CONFIGS)
def test_biases_and_norms_are_not_decayed(name: str) -> None:
    module, config = network(), CONFIGS[name]
    optimizer = build_optimizer(module, config, batch_size=256)
    assert type(optimizer) is {"lars": LARS, "sgd": SGD, "adamw": AdamW}[name]
    weights, excluded = optimizer.param_groups
    assert [tuple(p.shape) for p in weights["params"]] == [(4, 3, 3, 3), (5, 16)]
    assert [tuple(p.shape) for p in excluded["params"]] == [(4,), (4,), (5,)]
    assert (weights["weight_decay"], excluded["weight_decay"]) == (config.weight_decay, 0.0)
    assert (weights["name"], excluded["name"]) == ("weights", "excluded")


def test_all_parameters_may_decay_as_in_one_group_of_torchs() -> None:
    ours, theirs = network(), network()
    config = OptimizerConfig("sgd", lr=0.1, lr_scaling="none", weight_decay=0.3, decay_all=True)
    optimizer = build_optimizer(ours, config, batch_size=6)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.3]
    train(ours, optimizer, range(4))
    train(theirs, SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.3), range(4))
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other)
    assert build_optimizer(network(), OptimizerConfig("adamw", decay_all=True), batch_size=1)


def test_options_reach_the_optimizers() -> None:
    def options(name: str, **changes: Any) -> dict[str, Any]:
        return build_optimizer(network(), OptimizerConfig(name, **changes), batch_size=1).param_groups[0]  # type: ignore[arg-type]

    lars = options("lars", momentum=0.7, trust_coefficient=0.02)
    assert (lars["momentum"], lars["trust_coefficient"], lars["adapt"]) == (0.7, 0.02, True)
    sgd = options("sgd", momentum=0.8, nesterov=True)
    assert (sgd["momentum"], sgd["nesterov"]) == (0.8, True)
    assert options("adamw", betas=(0.8, 0.99))["betas"] == (0.8, 0.99)


def test_tokens_and_what_models_name_are_excluded() -> None:
    module = nn.ModuleDict({"vit": timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1)})
    module.register_parameter("mask_token", nn.Parameter(torch.zeros(1, 1, 192)))
    _, excluded = parameter_groups(module)
    chosen = {id(parameter) for parameter in excluded}
    names = {name for name, p in module.named_parameters() if id(p) in chosen and p.ndim > 1}
    assert names == {"mask_token", "vit.pos_embed", "vit.cls_token"}


def test_no_weight_decay_of_submodules_is_followed() -> None:
    class Listing(nn.Linear):
        def no_weight_decay(self) -> set[str]:
            return {"weight"}

    listing = Listing(3, 2, bias=False)
    weights, excluded = parameter_groups(nn.Sequential(listing, nn.Linear(5, 4, bias=False)))
    assert ([tuple(p.shape) for p in weights], [tuple(p.shape) for p in excluded]) == ([(4, 5)], [(2, 3)])
    assert len(parameter_groups(listing)[1]) == 1


def test_frozen_parameters_are_left_out() -> None:
    module = network()
    module[0].requires_grad_(False)
    optimizer = build_optimizer(module, OptimizerConfig(), batch_size=1)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 3]
    module[1:].requires_grad_(False)
    for argument, batch_size in (("module", 1), ("batch_size", 0)):
        with pytest.raises(ValueError, match=f"^{argument}: "):
            build_optimizer(module, OptimizerConfig(), batch_size=batch_size)
    optimizer = build_optimizer(nn.Linear(2, 2, bias=False), OptimizerConfig(), batch_size=1)
    assert [group["name"] for group in optimizer.param_groups] == ["weights"]


@pytest.mark.parametrize("name", CONFIGS)
def test_resuming_is_bitwise_the_same(name: str) -> None:
    whole = network()
    train(whole, build_optimizer(whole, CONFIGS[name], batch_size=256), range(6))
    half = network()
    optimizer = build_optimizer(half, CONFIGS[name], batch_size=256)
    train(half, optimizer, range(3))
    file = io.BytesIO()
    torch.save((half.state_dict(), optimizer.state_dict()), file)
    weights, state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    resumed = network()
    resumed.load_state_dict(weights)
    optimizer = build_optimizer(resumed, CONFIGS[name], batch_size=256)
    optimizer.load_state_dict(state)
    train(resumed, optimizer, range(3, 6))
    assert not torch.equal(next(whole.parameters()), next(half.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_lightning_may_clip_gradients_in_mixed_precision(name: str) -> None:
    module = network()
    optimizer = build_optimizer(module, CONFIGS[name], batch_size=256)
    train(module, optimizer, range(1))
    MixedPrecision("bf16-mixed", "cpu").clip_gradients(optimizer, 1e-3)
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    assert float(nn.utils.get_total_norm(gradients)) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_on_cuda_are_fused_and_may_be_clipped(name: str) -> None:
    module = network().cuda()
    optimizer = build_optimizer(module, CONFIGS[name], batch_size=256)
    assert optimizer.param_groups[0]["fused"]
    module(torch.randn(6, 3, 4, 4, device="cuda")).square().mean().backward()
    MixedPrecision("bf16-mixed", "cuda").clip_gradients(optimizer, 1e-3)
    optimizer.step()


SHAPES = ((4, 3), (5, 2, 3, 3), (1, 7), (4,), (6,))
OPTIONS: dict[str, Any] = {"lr": 0.3, "momentum": 0.9}


def parameters(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in SHAPES]


def groups(params: list[nn.Parameter], **excluded: Any) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0, **excluded},
    ]


def set_gradients(params: list[nn.Parameter], step: int) -> None:
    for parameter, gradient in zip(params, parameters(100 + step), strict=True):
        parameter.grad = (3 * gradient.detach()).to(parameter)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-5)])
def test_steps_agree_with_timm_under_a_schedule(dtype: torch.dtype, tolerance: float) -> None:
    ours, theirs = parameters(dtype=dtype), parameters()
    first = LARS(groups(ours, adapt=False), trust_coefficient=0.02, **OPTIONS)
    second = cast(Any, Lars)(groups(theirs, always_adapt=False), trust_coeff=0.02, always_adapt=True, **OPTIONS)
    schedule = ScheduleConfig(epochs=6, warmup_epochs=2)
    schedulers = [build_scheduler(optimizer, schedule, steps_per_epoch=1) for optimizer in (first, second)]
    for step in range(6):
        for params, optimizer, scheduler in zip((ours, theirs), (first, second), schedulers, strict=True):
            set_gradients(params, step)
            optimizer.step()
            scheduler.step()
    for parameter, expected in zip(ours, theirs, strict=True):  # timm adds 1e-8 to the denominator
        torch.testing.assert_close(parameter.double(), expected, rtol=tolerance, atol=tolerance)


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


def test_gradients_are_left_alone_and_missing_ones_skipped() -> None:
    params, before = parameters(), parameters()
    gradient = torch.ones_like(params[0])
    params[0].grad = gradient.clone()
    LARS(params, lr=0.1, weight_decay=0.5).step()
    assert torch.equal(params[0].grad, gradient)
    assert [torch.equal(a, b) for a, b in zip(params, before, strict=True)] == [False, True, True, True, True]


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
    with pytest.raises(ValueError, match=f"^{option}: "):
        LARS(parameters(), **options)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_steps_on_cuda_wait_for_nothing_and_agree_with_cpu() -> None:
    cpu = parameters(dtype=torch.float32)
    cuda = [nn.Parameter(parameter.detach().cuda()) for parameter in cpu]
    optimizers = [LARS(groups(params, adapt=False), trust_coefficient=0.02, **OPTIONS) for params in (cpu, cuda)]
    for step in range(3):
        for params, optimizer in zip((cpu, cuda), optimizers, strict=True):
            set_gradients(params, step)
            torch.cuda.set_sync_debug_mode("error")
            try:
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    for parameter, expected in zip(cuda, cpu, strict=True):
        torch.testing.assert_close(parameter.cpu(), expected, rtol=1e-5, atol=1e-6)


def factors(total: int, warmup: int, floor: float = 0.0) -> list[float]:
    return [lr_factor(step, total=total, warmup=warmup, floor=floor) for step in range(total + 1)]


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_factors_agree_with_lightlys(floor: float) -> None:
    values = factors(total=25, warmup=5, floor=floor)
    warmup = [cosine_warmup_schedule(step, 25, 1.0, floor, 5, 0.0) for step in range(5)]
    # Lightly's cosine reaches the end value in its last step, ours after it: one step more makes them the same.
    decay = [cosine_schedule(step, 21, 1.0, floor) for step in range(21)]
    assert values == pytest.approx(warmup + decay, abs=1e-12)


def test_one_step_is_taken_at_the_peak() -> None:
    assert factors(total=1, warmup=0, floor=0.3) == [1.0, pytest.approx(0.3)]


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


def test_scheduler_rejects_bad_arguments() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ValueError, match=r"^steps_per_epoch: "):
        build_scheduler(optimizer, ScheduleConfig(), steps_per_epoch=0)
    with pytest.raises(ValueError, match=r"^min_lr: "):
        build_scheduler(optimizer, ScheduleConfig(min_lr=0.2), steps_per_epoch=1)
    with pytest.raises(ValueError, match=r"^warmup_epochs: "):
        build_scheduler(optimizer, ScheduleConfig(2, 1.9), steps_per_epoch=1)
