"""Optimizers, learning rates scaled to the batch size, and the schedule over a training."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import Optimizer, ParamsT


class LARS(Optimizer):
    """SGD with momentum that scales each weight's step by the ratio of its norm to its gradient's norm.

    Per weight w with gradient g: v <- momentum * v + r * (g + weight_decay * w), then w <- w - lr * v, where
    r = trust_coefficient * |w| / (|g| + weight_decay * |w|), or 1 if |w| or |g| is 0, or in a parameter group with
    `adapt=False` (You, Gitman & Ginsburg, "Large Batch Training of Convolutional Networks", 2017).

    `timm.optim.Lars` launches some ten kernels per weight and scales the gradients in place. Here all weights of a
    group go through each operation together, nothing waits for the device, and gradients stay unchanged.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([0.0, 10.0])
    >>> LARS([weight], lr=1.0, trust_coefficient=0.1).step()
    >>> weight.data
    tensor([3.0000, 3.5000])
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        adapt: bool = True,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        options["trust_coefficient"] = trust_coefficient
        for name, value in options.items():
            if not value >= 0:
                raise ValueError(f"{name}: expected at least 0, got {value}")
        super().__init__(params, {**options, "adapt": adapt})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the closure's loss if there is a closure."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            gradients = [weight.grad for weight in weights]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
            velocities = [self.state[weight]["momentum_buffer"] for weight in weights]
            decay = group["weight_decay"]
            directions = torch._foreach_add(gradients, weights, alpha=decay) if decay else gradients
            torch._foreach_mul_(velocities, group["momentum"])
            if group["adapt"]:
                norms, slopes = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, gradients))
                ratios = group["trust_coefficient"] * norms / (slopes + decay * norms)
                # A weight of 0 could never leave it.
                ratios = ratios.where((norms > 0) & (slopes > 0), 1.0)
                torch._foreach_addcmul_(velocities, directions, ratios.unbind())
            else:
                torch._foreach_add_(velocities, directions)
            torch._foreach_add_(weights, velocities, alpha=-group["lr"])
        return loss


# Learning rate at a global batch size (paper, appendix "Experimental Settings").
SCALINGS: dict[str, Callable[[float, int], float]] = {
    "sqrt": lambda lr, batch_size: lr * math.sqrt(batch_size),
    "linear": lambda lr, batch_size: lr * batch_size / 256,
    "none": lambda lr, batch_size: lr,
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"lars": LARS, "sgd": SGD, "adamw": AdamW}
# Options of some optimizers only.
OPTIONS = {"lars": ("momentum", "trust_coefficient"), "sgd": ("momentum", "nesterov"), "adamw": ("betas",)}
# Learned inputs of transformers: like biases they are not decayed, whatever their rank.
TOKENS = {"cls_token", "class_token", "dist_token", "reg_token", "mask_token", "pos_embed", "pos_embedding"}


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer to use; the defaults are the paper's for SimCLR.

    Args:
        name: lars, sgd or adamw.
        lr: Base learning rate, scaled by lr_scaling to the batch size.
        lr_scaling: sqrt (lr * sqrt(batch size)), linear (lr * batch size / 256) or none; of the global batch size.
        weight_decay: Decay of weights; biases, norms and tokens have none unless decay_all is set.
        momentum: Momentum of lars and sgd.
        nesterov: Nesterov's momentum, for sgd.
        betas: Decay of adamw's averages of the gradient and of its square.
        trust_coefficient: Size of a step of lars relative to the weight's norm, at learning rate 1.
        bias_lr: Base learning rate of biases, norms and tokens, scaled alike (Barlow Twins: 0.0048); default lr.
        decay_all: Whether biases, norms and tokens decay as weights do, as in recipes that give one group of all
            parameters to torch's SGD (lightly's of CIFAR-10); not for lars.

    Raises:
        ValueError: a value is out of range, or an option does not apply to this optimizer.

    >>> OptimizerConfig("adamw", lr=1.5e-4, lr_scaling="linear", momentum=0.8)
    Traceback (most recent call last):
    ...
    ValueError: momentum: expected to be left out, as adamw has none, got 0.8
    """

    name: Literal["lars", "sgd", "adamw"] = "lars"
    lr: float = 0.075
    lr_scaling: Literal["sqrt", "linear", "none"] = "sqrt"
    weight_decay: float = 1e-6
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.95)
    trust_coefficient: float = 0.001
    bias_lr: float | None = None
    decay_all: bool = False

    def __post_init__(self) -> None:
        for name, known in (("name", OPTIMIZERS), ("lr_scaling", SCALINGS)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name}: expected {', '.join(known)}, got {value!r}")
        for name in ("lr", "bias_lr", "trust_coefficient"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a finite value above 0, got {value}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: expected a finite value of at least 0, got {self.weight_decay}")
        for name, share in (("momentum", self.momentum), ("betas", self.betas[0]), ("betas", self.betas[1])):
            if not 0 <= share < 1:
                raise ValueError(f"{name}: expected a value in [0, 1), got {share}")
        if self.decay_all and self.weight_decay == 0:
            raise ValueError("decay_all: expected False without weight_decay, got True")
        if self.nesterov and self.momentum == 0:
            raise ValueError("momentum: expected a value above 0 with nesterov, got 0")
        foreign = {option for name, options in OPTIONS.items() if name != self.name for option in options}
        foreign |= {"decay_all"} if self.name == "lars" else set()
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in foreign - set(OPTIONS[self.name]) and value != field.default:
                raise ValueError(f"{field.name}: expected to be left out, as {self.name} has none, got {value}")


def scaled_lr(config: OptimizerConfig, batch_size: int, *, lr: float | None = None) -> float:
    """The peak learning rate (or another one) at a global batch size: of all ranks, and of all batches accumulated.

    Raises:
        ValueError: batch_size is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    return SCALINGS[config.lr_scaling](config.lr if lr is None else lr, batch_size)


def build_optimizer(module: nn.Module, config: OptimizerConfig, *, batch_size: int) -> Optimizer:
    """The optimizer of a module's parameters that require a gradient, in groups named weights and excluded.

    Weights are decayed and, by LARS, adapted; biases, norms and tokens are neither, unless `decay_all` is set. Build it
    when the module is on its device: on CUDA, SGD and AdamW then take fused steps.

    Raises:
        ValueError: batch_size, the global one, is below 1, or no parameter requires a gradient.

    >>> optimizer = build_optimizer(nn.Linear(3, 2), OptimizerConfig(lr=0.1, lr_scaling="linear"), batch_size=512)
    >>> [(group["name"], group["lr"], group["weight_decay"], group["adapt"]) for group in optimizer.param_groups]
    [('weights', 0.2, 1e-06, True), ('excluded', 0.2, 0.0, False)]
    """
    lr, bias_lr = scaled_lr(config, batch_size), scaled_lr(config, batch_size, lr=config.bias_lr)
    weights, excluded = parameter_groups(module)
    if not weights and not excluded:
        raise ValueError("module: expected parameters that require a gradient, got none")
    decay = config.weight_decay
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": weights, "lr": lr, "weight_decay": decay},
        {"name": "excluded", "params": excluded, "lr": bias_lr, "weight_decay": decay if config.decay_all else 0.0},
    ]
    options: dict[str, Any] = {option: getattr(config, option) for option in OPTIONS[config.name]}
    if config.name == "lars":
        groups[0]["adapt"], groups[1]["adapt"] = True, False
    else:
        options["fused"] = all(parameter.is_cuda for parameter in (*weights, *excluded))
    optimizer = OPTIMIZERS[config.name]([group for group in groups if group["params"]], lr=lr, **options)
    # Fused optimizers can divide by the loss scale themselves. Lightning then refuses to clip gradients, even in
    # bfloat16, which has no loss scale. Without this the gradient scaler divides before the clipping.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    return optimizer


def parameter_groups(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The module's weights, and its parameters excluded from decay and adaptation; frozen parameters are in neither.

    Excluded are parameters of at most one dimension (biases, norms), tokens and position embeddings, and those that
    timm's models name in `no_weight_decay()`.

    >>> weights, excluded = parameter_groups(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    >>> len(weights), len(excluded)
    (1, 3)
    """
    named_by_models = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        if callable(names := getattr(part, "no_weight_decay", None))
        for name in names()
    }
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            exclude = parameter.ndim <= 1 or name.rpartition(".")[2] in TOKENS or name in named_by_models
            groups[exclude].append(parameter)
    return groups


@dataclass(frozen=True)
class ScheduleConfig:
    """How long to train, and the learning rate over that time.

    Args:
        epochs: Passes over the data.
        warmup_epochs: Epochs (or a fraction) in which the learning rate rises linearly to its peak.
        min_lr: Learning rate of the weights at the end of the cosine.

    Raises:
        ValueError: epochs below 1, min_lr below 0, or warmup_epochs not in [0, epochs).

    >>> ScheduleConfig(epochs=10, warmup_epochs=10)
    Traceback (most recent call last):
    ...
    ValueError: warmup_epochs: expected at least 0 and fewer than the 10 epochs, got 10
    """

    epochs: int = 100
    warmup_epochs: float = 10.0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs: expected at least 1, got {self.epochs}")
        if not 0 <= self.warmup_epochs < self.epochs:
            raise ValueError(
                f"warmup_epochs: expected at least 0 and fewer than the {self.epochs} epochs, got {self.warmup_epochs}"
            )
        if not 0 <= self.min_lr < math.inf:
            raise ValueError(f"min_lr: expected a finite value of at least 0, got {self.min_lr}")

    def check(self, *, peak: float, steps_per_epoch: int) -> None:
        """Raise ValueError if the schedule does not fit the peak learning rate or the steps of an epoch."""
        total = self.epochs * steps_per_epoch
        if round(self.warmup_epochs * steps_per_epoch) >= total:
            raise ValueError(
                f"warmup_epochs: expected to leave a step of {total} after the warm-up, "
                f"got {self.warmup_epochs} epochs of {steps_per_epoch}; take 0, or more epochs"
            )
        if self.min_lr > peak:
            raise ValueError(f"min_lr: expected at most the peak learning rate {peak:g}, got {self.min_lr}")


def lr_factor(step: int, *, total: int, warmup: int, floor: float) -> float:
    """The factor of the peak learning rate in optimizer step `step` of `total`, counted from 0.

    The first `warmup` steps rise linearly from 1/warmup to 1. The rest fall along a half cosine from 1 to `floor`,
    which is reached after the last step (Loshchilov & Hutter, "SGDR", ICLR 2017, without restarts). No step has
    learning rate 0.
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (total - warmup)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def build_scheduler(optimizer: Optimizer, config: ScheduleConfig, *, steps_per_epoch: int) -> LambdaLR:
    """The schedule of an optimizer created at its peak learning rates; step it after every optimizer step.

    All parameter groups follow the same factor; the first one ends at `min_lr`. The schedule takes
    `epochs * steps_per_epoch` optimizer steps; with accumulated gradients, count those, not batches.

    Raises:
        ValueError: steps_per_epoch is below 1, min_lr is above the peak, or the warm-up leaves no step for the cosine.

    >>> from torch import nn, optim
    >>> optimizer = optim.SGD(nn.Linear(2, 2).parameters(), lr=0.8)
    >>> scheduler = build_scheduler(optimizer, ScheduleConfig(epochs=4, warmup_epochs=1), steps_per_epoch=2)
    >>> scheduler.get_last_lr()
    [0.4]
    """
    if steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch: expected at least 1, got {steps_per_epoch}")
    peak = optimizer.param_groups[0]["lr"]
    config.check(peak=peak, steps_per_epoch=steps_per_epoch)
    total = config.epochs * steps_per_epoch
    warmup = round(config.warmup_epochs * steps_per_epoch)

    def factor(step: int) -> float:
        return lr_factor(step, total=total, warmup=warmup, floor=config.min_lr / peak)

    return LambdaLR(optimizer, factor)
