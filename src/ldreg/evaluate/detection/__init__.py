"""Object detection and instance segmentation: Mask R-CNN C4 on an encoder, judged as COCO does; its settings.

The defaults are MoCo's on COCO, with half of its iterations.
"""

import math
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["1x", "2x"]

_ITERATIONS: dict[Schedule, int] = {"1x": 90_000, "2x": 180_000}
_REFERENCE_BATCH = 16  # which lr is given for
_WARMUP = 1000  # iterations
_LEAST = {
    **dict.fromkeys(("iterations", "batch_size", "test_size", "regions", "test_regions", "devices"), 1),
    **dict.fromkeys(("warmup_iterations", "precise_iterations", "workers", "seed"), 0),
    "checkpoint_iterations": 1,
}


@dataclass(frozen=True)
class DetectionConfig:
    """How Mask R-CNN is trained on a set in COCO's layout, and evaluated there.

    Args:
        path: Folder with train2017, val2017 and annotations/instances_{train,val}2017.json.
        schedule: 1x (90,000 iterations) or 2x (180,000; MoCo's, and so the LDReg paper's), for a batch of 16.
        iterations: Iterations to train, in place of the schedule's.
        batch_size: Images of an iteration, over all devices.
        lr: Peak learning rate at a batch of 16; in proportion at others.
        weight_decay: Decay of weights and biases; norms have none.
        momentum: Momentum of SGD.
        warmup_iterations: Iterations in which the learning rate rises linearly from lr/1000; by default 1000, and at
            most a tenth of all.
        train_sizes: Lengths of the images' shorter side in training, of which one is drawn for each image.
        test_size: Length of the shorter side in evaluation.
        max_size: Length that the longer side may reach.
        flip: Probability of a horizontal flip in training.
        anchor_sizes: Sides of the square anchors in pixels; each comes in the ratios 1:2, 1:1 and 2:1.
        regions: Regions per image that the heads are trained on.
        test_regions: Regions per image that are looked at in evaluation.
        norm: batch (batch norms are trained, with the statistics of all devices' images, and one more follows res5;
            MoCo's choice) or frozen (they stay as pretrained, for few images a batch; no further one).
        precise_iterations: Iterations whose batch statistics, averaged, are those of the evaluation, with norm batch;
            0 keeps the running ones.
        devices: GPUs, or processes on a CPU.
        device: auto (CUDA where there is one), cpu or cuda.
        precision: fp32, bf16 or fp16 (CUDA).
        workers: Processes per device that read images; by default as many as cores, at most 16, shared by devices.
        seed: Of new layers, order, augmentation and sampling.
        checkpoint_iterations: Iterations between two checkpoints.

    Raises:
        ValueError: a value out of range.

    >>> DetectionConfig("coco", schedule="2x").total_iterations
    180000
    >>> DetectionConfig("coco", batch_size=8).peak_lr
    0.01
    >>> DetectionConfig("coco", iterations=300).warmup
    30
    """

    path: str
    schedule: Schedule = "1x"
    iterations: int | None = None
    batch_size: int = 16
    lr: float = 0.02
    weight_decay: float = 1e-4
    momentum: float = 0.9
    warmup_iterations: int | None = None
    train_sizes: tuple[int, ...] = (640, 672, 704, 736, 768, 800)
    test_size: int = 800
    max_size: int = 1333
    flip: float = 0.5
    anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)
    regions: int = 512
    test_regions: int = 1000
    norm: Literal["batch", "frozen"] = "batch"
    precise_iterations: int = 200
    devices: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    workers: int | None = None
    seed: int = 0
    checkpoint_iterations: int = 5000

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: expected at least {least}, got {value}")
        for name, fits, expected in (
            ("lr", 0 < self.lr < math.inf, "a finite number above 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "a finite number of at least 0"),
            ("momentum", 0 <= self.momentum < 1, "a number in [0, 1)"),
            ("flip", 0 <= self.flip <= 1, "a probability"),
        ):
            if not fits:
                raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)}")
        for name, sizes in (("train_sizes", self.train_sizes), ("anchor_sizes", self.anchor_sizes)):
            if not sizes or min(sizes) < 1:
                raise ValueError(f"{name}: expected one or more sizes of at least 1, got {sizes}")
        if self.max_size < max(*self.train_sizes, self.test_size):
            raise ValueError(f"max_size: expected at least the sizes of the shorter side, got {self.max_size}")
        if self.warmup >= self.total_iterations:
            total = self.total_iterations
            raise ValueError(f"warmup_iterations: expected fewer than the {total} iterations, got {self.warmup}")
        if self.batch_size % self.devices:
            raise ValueError(f"batch_size: expected a multiple of the {self.devices} devices, got {self.batch_size}")

    @property
    def total_iterations(self) -> int:
        """How many iterations training takes."""
        return _ITERATIONS[self.schedule] if self.iterations is None else self.iterations

    @property
    def peak_lr(self) -> float:
        """The learning rate after the warm-up."""
        return self.lr * self.batch_size / _REFERENCE_BATCH

    @property
    def warmup(self) -> int:
        """Iterations of the warm-up."""
        given = self.warmup_iterations
        return min(_WARMUP, self.total_iterations // 10) if given is None else given
