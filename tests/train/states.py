"""States of runs, compared to the last bit."""

from typing import Any

import torch
from torch import Tensor

# What of a checkpoint has to be the same for two runs to be the same; the rest holds the time that was taken.
STATE = ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step")


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Bitwise the same, all the way down."""
    assert type(a) is type(b), where
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for place, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{where}/{place}")
    else:
        assert a == b, where
