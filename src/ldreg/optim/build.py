"""From a config to an optimizer over a module's parameters."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from ldreg.optim.lars import LARS

# Rules for the learning rate at a global batch size (paper, appendix "Experimental Settings").
SCALINGS: dict[str, Callable[[float, int], float]] = {
    "sqrt": lambda lr, batch_size: lr * math.sqrt(batch_size),
    "linear": lambda lr, batch_size: lr * batch_size / 256,
    "none": lambda lr, batch_size: lr,
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"lars": LARS, "sgd": SGD, "adamw": AdamW}
# The options that only some optimizers have.
OPTIONS = {
    "lars": ("momentum", "trust_coefficient"),
    "sgd": ("momentum", "nesterov"),
    "adamw": ("betas",),
}
# Those of them that we heed and the optimizers do not know.
OURS = {"sgd": ("decay_all",), "adamw": ("decay_all",)}
# Learned inputs of transformers: like biases they are not decayed, whatever their rank.
TOKENS = {"cls_token", "class_token", "dist_token", "reg_token", "mask_token", "pos_embed", "pos_embedding"}


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer takes the steps; the defaults are the paper's for SimCLR.

    Args:
        name: lars, sgd or adamw.
        lr: Base learning rate, which lr_scaling turns into the one of the batch size.
        lr_scaling: sqrt (lr * sqrt(batch size)), linear (lr * batch size / 256) or none; of the global batch size.
        weight_decay: Decay of weights; biases, norms and tokens have none unless decay_all is set.
        momentum: Momentum of lars and sgd.
        nesterov: Nesterov's momentum, for sgd.
        betas: Decay of adamw's averages of the gradient and of its square.
        trust_coefficient: Size of a step of lars relative to the weight's norm, at learning rate 1.
        bias_lr: Base learning rate of biases, norms and tokens, scaled alike (Barlow Twins: 0.0048); by default lr.
        decay_all: Whether biases, norms and tokens decay as weights do, as in recipes that give one group of all
            parameters to torch's SGD (lightly's of CIFAR-10); not for lars.

    Raises:
        ValueError: a value out of range, or an option set that this optimizer does not have.

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
        """Refuse values out of range and options without effect."""
        if self.name not in OPTIMIZERS:
            raise ValueError(f"name: expected {', '.join(OPTIMIZERS)}, got {self.name!r}")
        if self.lr_scaling not in SCALINGS:
            raise ValueError(f"lr_scaling: expected {', '.join(SCALINGS)}, got {self.lr_scaling!r}")
        for name, value in (("lr", self.lr), ("bias_lr", self.bias_lr), ("trust_coefficient", self.trust_coefficient)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a finite value above 0, got {value}")
        if not isinstance(self.decay_all, bool):
            raise ValueError(f"decay_all: expected True or False, got {self.decay_all!r}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: expected a finite value of at least 0, got {self.weight_decay}")
        for name, share in (("momentum", self.momentum), ("betas", self.betas[0]), ("betas", self.betas[1])):
            if not 0 <= share < 1:
                raise ValueError(f"{name}: expected a value in [0, 1), got {share}")
        if self.decay_all and self.weight_decay == 0:
            raise ValueError("decay_all: expected False without weight_decay, got True")
        if self.nesterov and self.momentum == 0:
            raise ValueError("momentum: expected a value above 0 with nesterov, got 0")
        self._check_options_apply()

    def _check_options_apply(self) -> None:
        applicable = (*OPTIONS[self.name], *OURS.get(self.name, ()))
        every = {option for options in (*OPTIONS.values(), *OURS.values()) for option in options}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in every - set(applicable) and value != field.default:
                raise ValueError(f"{field.name}: expected to be left out, as {self.name} has none, got {value}")


def scaled_lr(config: OptimizerConfig, batch_size: int) -> float:
    """The peak learning rate at a global batch size: of all ranks, and of all batches accumulated.

    Raises:
        ValueError: batch_size is below 1.

    >>> round(scaled_lr(OptimizerConfig(lr=0.075, lr_scaling="sqrt"), 4096), 6)
    4.8
    """
    return scale(config.lr, config.lr_scaling, batch_size)


def scale(lr: float, rule: str, batch_size: int) -> float:
    """The base learning rate `lr` carried to `batch_size` by one of the rules."""
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    return SCALINGS[rule](lr, batch_size)


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
    lr = scaled_lr(config, batch_size)
    bias_lr = lr if config.bias_lr is None else scale(config.bias_lr, config.lr_scaling, batch_size)
    weights, excluded = parameter_groups(module)
    if not weights and not excluded:
        raise ValueError("module: expected parameters that require a gradient, got none")
    bias_decay = config.weight_decay if config.decay_all else 0.0
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": weights, "lr": lr, "weight_decay": config.weight_decay},
        {"name": "excluded", "params": excluded, "lr": bias_lr, "weight_decay": bias_decay},
    ]
    options: dict[str, Any] = {option: getattr(config, option) for option in OPTIONS[config.name]}
    if config.name == "lars":
        for group, adapt in zip(groups, (True, False), strict=True):
            group["adapt"] = adapt
    else:
        options["fused"] = all(parameter.is_cuda for parameter in (*weights, *excluded))
    optimizer = OPTIMIZERS[config.name]([group for group in groups if group["params"]], lr=lr, **options)
    # Fused optimizers offer to divide by the loss scale themselves, and Lightning then refuses to clip gradients, in
    # bfloat16 too, where there is no scale. Without the offer the gradient scaler divides before the clipping.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    return optimizer


def parameter_groups(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The module's weights, and what is excluded from decay and adaptation; both without frozen parameters.

    Excluded are parameters of at most one dimension (biases, norms), tokens and position embeddings, and what timm's
    models name in `no_weight_decay()`.

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
