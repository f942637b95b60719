import io
import math
from typing import Any

import pytest
import timm
import torch
from pytorch_lightning.plugins.precision import MixedPrecision
from torch import nn
from torch.optim import SGD, AdamW

from ldreg.optim import LARS, OptimizerConfig, build_optimizer, parameter_groups, scaled_lr


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
    config = OptimizerConfig(lr=lr, lr_scaling=rule)
    assert scaled_lr(config, batch_size) == pytest.approx(expected)
    optimizer = build_optimizer(network(), config, batch_size=batch_size)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([expected, expected])


def test_biases_may_have_a_rate_of_their_own() -> None:
    config = OptimizerConfig(lr=0.2, lr_scaling="linear", weight_decay=1.5e-6, bias_lr=0.0048)
    optimizer = build_optimizer(network(), config, batch_size=1024)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.8, 0.0192])


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


def test_lars_adapts_weights_and_leaves_biases_to_plain_momentum() -> None:
    module = nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[3.0, 4.0]]))
        module.bias.fill_(1.0)
    module(torch.tensor([[0.0, 1.0]])).sum().backward()  # gradients (0, 1) and 1
    build_optimizer(module, OptimizerConfig(lr=0.1, lr_scaling="none", weight_decay=0.0), batch_size=1).step()
    torch.testing.assert_close(module.weight.detach(), torch.tensor([[3.0, 4.0 - 0.1 * 0.001 * 5]]))
    torch.testing.assert_close(module.bias.detach(), torch.tensor([0.9]))


def test_tokens_and_what_models_name_are_excluded() -> None:
    module = nn.ModuleDict({"vit": timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1)})
    module.register_parameter("mask_token", nn.Parameter(torch.zeros(1, 1, 192)))
    _, excluded = parameter_groups(module)
    chosen = {id(parameter) for parameter in excluded}
    names = {name for name, p in module.named_parameters() if id(p) in chosen and p.ndim > 1}
    assert names == {"mask_token", "vit.pos_embed", "vit.cls_token"}


def test_a_models_own_list_is_followed_where_it_stands() -> None:
    class Listing(nn.Linear):
        def no_weight_decay(self) -> set[str]:
            return {"weight"}

    weights, excluded = parameter_groups(nn.Sequential(Listing(3, 2, bias=False), nn.Linear(5, 4, bias=False)))
    assert ([tuple(p.shape) for p in weights], [tuple(p.shape) for p in excluded]) == ([(4, 5)], [(2, 3)])
    assert [tuple(p.shape) for p in parameter_groups(Listing(3, 2, bias=False))[1]] == [(2, 3)]


def test_frozen_parameters_are_left_out() -> None:
    module = network()
    module[0].requires_grad_(False)
    optimizer = build_optimizer(module, OptimizerConfig(), batch_size=1)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 3]
    module[1:].requires_grad_(False)
    with pytest.raises(ValueError, match=r"^module: expected parameters that require a gradient, got none"):
        build_optimizer(module, OptimizerConfig(), batch_size=1)


def test_a_module_without_biases_has_one_group() -> None:
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "adam"}, "name: expected lars, sgd, adamw, got 'adam'"),
        ({"lr_scaling": "cubic"}, "lr_scaling: expected sqrt, linear, none, got 'cubic'"),
        ({"lr": 0.0}, "lr: expected a finite value above 0, got 0.0"),
        ({"lr": math.nan}, "lr: expected a finite value above 0, got nan"),
        ({"bias_lr": -1.0}, "bias_lr: expected a finite value above 0, got -1.0"),
        ({"trust_coefficient": 0.0}, "trust_coefficient: expected a finite value above 0, got 0.0"),
        ({"weight_decay": -0.1}, "weight_decay: expected a finite value of at least 0, got -0.1"),
        ({"momentum": 1.0}, r"momentum: expected a value in \[0, 1\), got 1.0"),
        ({"name": "adamw", "betas": (0.9, 1.0)}, r"betas: expected a value in \[0, 1\), got 1.0"),
        ({"name": "sgd", "nesterov": True, "momentum": 0.0}, "momentum: expected a value above 0 with nesterov, got 0"),
        ({"nesterov": True}, "nesterov: expected to be left out, as lars has none, got True"),
        ({"betas": (0.9, 0.999)}, "betas: expected to be left out, as lars has none"),
        ({"name": "sgd", "trust_coefficient": 0.1}, "trust_coefficient: expected to be left out, as sgd has none"),
        ({"name": "adamw", "momentum": 0.5}, "momentum: expected to be left out, as adamw has none, got 0.5"),
        ({"decay_all": True}, "decay_all: expected to be left out, as lars has none, got True"),
        (
            {"name": "sgd", "decay_all": True, "weight_decay": 0.0},
            "decay_all: expected False without weight_decay, got",
        ),
        ({"name": "sgd", "decay_all": 1}, "decay_all: expected True or False, got 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        OptimizerConfig(**options)


def test_batch_size_is_checked() -> None:
    with pytest.raises(ValueError, match=r"^batch_size: expected at least 1, got 0"):
        build_optimizer(network(), OptimizerConfig(), batch_size=0)


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
