"""The paper's numbers: what its tables report, by the names that results have here (accuracies and AP in percent)."""

import math
from collections.abc import Mapping

Values = Mapping[str, float]


def _values(linear: float, effective_rank: float, lid: float) -> Values:
    return {"linear": linear, "effective_rank": effective_rank, "lid": lid}


# The paper names no version.
_MOCO = (_values(68.7, 595.0, 17.1), _values(69.6, 651.8, 22.3))
# Table 1 and the table of additional linear evaluations: by method, without and with LDReg.
LINEAR: Mapping[str, tuple[Values, Values]] = {
    "simclr": (_values(64.3, 470.2, 18.8), _values(64.8, 529.6, 20.0)),
    "simclr_tuned": (_values(67.2, 525.8, 24.9), _values(67.5, 561.7, 26.1)),
    "byol": (_values(67.6, 583.8, 15.9), _values(68.5, 594.0, 22.3)),
    "simclr_vit": (_values(72.9, 283.7, 13.3), _values(73.0, 326.1, 13.7)),
    "mae": (_values(57.0, 86.4, 25.8), _values(57.6, 154.1, 29.8)),
    "moco": _MOCO,
    "moco_v3": _MOCO,
    "vicreg": (_values(66.7, 546.7, 21.5), _values(66.9, 602.4, 22.5)),
    "barlow_twins": (_values(65.5, 602.1, 20.8), _values(65.6, 754.0, 24.1)),
}

_TRANSFER = ("imagenet", "food101", "cifar10", "cifar100", "birdsnap", "cars", "dtd")


def _transfer(*accuracies: float) -> Values:
    return {f"transfer/{name}": value for name, value in zip(_TRANSFER, accuracies, strict=True)}


# Table 2: SimCLR at batch 2048 for 100 epochs and at batch 4096 for 1000, without and with LDReg.
TRANSFER: Mapping[str, tuple[Values, Values]] = {
    "short": (
        _transfer(64.3, 69.0, 89.1, 71.2, 32.0, 36.7, 67.8),
        _transfer(64.8, 69.1, 89.2, 70.6, 33.4, 37.3, 67.7),
    ),
    "long": (
        _transfer(69.0, 71.1, 90.1, 71.6, 37.5, 35.3, 70.7),
        _transfer(69.8, 73.3, 91.8, 75.1, 38.7, 41.6, 70.8),
    ),
}

AP = ("box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75")


def _ap(*values: float) -> Values:
    return dict(zip(AP, values, strict=True))


# Table 3: COCO, without and with LDReg.
DETECTION: Mapping[str, tuple[Values, Values]] = {
    "simclr": (_ap(35.24, 55.05, 37.88, 31.30, 51.70, 32.82), _ap(35.26, 55.10, 37.78, 31.38, 51.88, 32.90)),
    "byol": (_ap(36.30, 55.64, 38.82, 32.17, 52.53, 34.30), _ap(36.82, 56.47, 39.62, 32.47, 53.15, 34.60)),
    "long": (_ap(36.48, 56.22, 39.28, 32.12, 52.70, 34.02), _ap(37.15, 57.20, 39.82, 32.82, 53.81, 34.74)),
}

# Wall-clock hours of 100 epochs on four A100, without and with LDReg.
HOURS = (27.8, 27.1)

# L1 against L2, by norm and neighborhood size.
NORMS: Mapping[tuple[str, int], float] = {("l1", 64): 64.8, ("l1", 128): 64.6, ("l2", 64): 64.4, ("l2", 128): 64.5}

# Min LID by beta; at 10 the paper reports a complete collapse, which NaN stands for.
MINLID: Mapping[float, Values] = {
    0.01: _values(64.2, 150.7, 16.0),
    0.1: _values(63.1, 15.0, 3.8),
    1.0: _values(46.4, 1.0, 1.6),
    10.0: _values(math.nan, math.nan, math.nan),
}

# Linear accuracy by batch size, without and with LDReg.
BATCHES: Mapping[int, tuple[float, float]] = {512: (63.6, 64.1), 1024: (64.2, 64.7), 2048: (64.3, 64.8)}

# BYOL with other regularizers, by name and beta.
REGULARIZERS: Mapping[tuple[str, float], Values] = {
    ("covariance", 0.01): _values(67.6, 583.5, 15.9),
    ("covariance", 0.1): _values(67.5, 593.5, 15.8),
    ("variance_covariance", 0.01): _values(67.8, 539.2, 15.5),
    ("variance_covariance", 0.1): _values(67.7, 798.4, 16.8),
}
