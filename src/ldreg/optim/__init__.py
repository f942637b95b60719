"""Optimizers, the rules that scale their learning rates, and schedules."""

from ldreg.optim.build import OptimizerConfig, build_optimizer, parameter_groups, scaled_lr
from ldreg.optim.lars import LARS
from ldreg.optim.schedule import ScheduleConfig, build_scheduler, lr_factor

__all__ = [
    "LARS",
    "OptimizerConfig",
    "ScheduleConfig",
    "build_optimizer",
    "build_scheduler",
    "lr_factor",
    "parameter_groups",
    "scaled_lr",
]
