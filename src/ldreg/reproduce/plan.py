"""How long runs would take and what memory they need, before any is begun."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ldreg.data import DataConfig, load_images, output_size
from ldreg.data.config import available_cores, worker_count
from ldreg.encoders import EncoderConfig, build_encoder
from ldreg.record import Record
from ldreg.report.tables import Cell, Table
from ldreg.reproduce.jobs import DETECTION, Job
from ldreg.reproduce.workplace import GENERATED, State, Workplace
from ldreg.text import duration
from ldreg.train.processes import on_cuda
from ldreg.train.settings import Settings

# Training images, channels and side by set; those of other sets are read when they are there.
_SETS: Mapping[str, tuple[int, int, int]] = {
    "digits": (1437, 1, 8),
    "shapes": (2000, 1, 8),
    "textures": (2000, 1, 8),
    "cifar10": (50_000, 3, 32),
    "cifar100": (50_000, 3, 32),
    "imagenet": (1_281_167, 3, 224),
}
_DETECTED = (GENERATED["train"], 3, GENERATED["size"])  # the generated images that table3 detects in
# Encoder passes of a step, in forward passes of one image: a gradient costs two more, a momentum encoder one.
_PASSES: Mapping[str, float] = {
    "simclr": 6, "simclr_tuned": 6, "vicreg": 6, "barlow_twins": 6, "byol": 8, "moco": 5, "mae": 3 * 0.25 * 1.5
}  # fmt: skip
_MOMENTUM = ("byol", "moco")
# Shares of the speed of large matrix products that training reached: measured on an H200 (bf16) and on two CPU cores.
_EFFICIENCY = {("cuda", True): 0.35, ("cuda", False): 0.14, ("cpu", True): 0.3, ("cpu", False): 0.3}
_STEP = {"cuda": 0.004, "cpu": 0.012}  # seconds of a step that no arithmetic explains
_RUN = {"cuda": 40.0, "cpu": 10.0}  # seconds of a run: building, compiling, measuring
_H200 = {"bf16": 7.9e14, "fp16": 7.9e14, "fp32": 5.1e13}  # what `matrix_speed` measured there
_H200_CORES, _H200_GB = 16, 140
_LIGHTLY_PAIR = 0.0022  # seconds of a core that two views by lightly take: 16 cores made 7300 pairs a second
_KEPT = 0.7  # share of all module outputs that is held for the gradient


@dataclass(frozen=True)
class Estimate:
    """Minutes and gigabytes that a run may need, and where the minutes are from."""

    minutes: float
    gigabytes: float
    basis: str


def estimate(job: Job, place: Workplace, measured: Sequence[Record]) -> Estimate:
    """What a run would need on this machine: by the time of its like where one was run, else by arithmetic.

    Raises:
        ValueError: its images do not fill one batch, or are not there.
    """
    settings = place.settings(job)
    count, _, _ = _shape(settings.data, place)
    if count < settings.run.batch_size:  # as the run itself would say
        raise ValueError(f"batch_size: expected at most the {count} images there are, got {settings.run.batch_size}")
    gigabytes = _gigabytes(settings, place)
    like = [record for record in measured if _alike(record, job) and _here(record, place)]
    if like:
        rates = [record.results["minutes"] / _epochs(record) for record in like]
        return Estimate(sum(rates) / len(rates) * settings.schedule.epochs, gigabytes, "measured")
    return Estimate(_seconds(settings, place, ours=job.arm.by == "ldreg") / 60, gigabytes, "arithmetic")


def _alike(record: Record, job: Job) -> bool:
    told, settings = record.settings, job.settings
    same = told.get("by", "ldreg") == job.arm.by
    same = same and told.get("method") == settings.run.method and told.get("encoder.name") == settings.encoder.name
    same = same and told.get("batch_size") == settings.run.batch_size
    same = same and (told.get("moco.version") == "v3") == _symmetric(settings.method)
    return same and _epochs(record) > 0 and record.results.get("minutes", math.nan) > 0


def _here(record: Record, place: Workplace) -> bool:
    """Whether a run was on such a device as this one: a GPU of the same name, or some CPU."""
    hardware = str(record.origin.get("hardware"))
    return hardware == torch.cuda.get_device_name() if on_cuda(place.device) else hardware.endswith(" cores")


def _epochs(record: Record) -> float:
    """How many epochs a run took; 0 where it does not say."""
    told = record.origin.get("epochs")
    return float(told) if isinstance(told, int | float) and not record.origin.get("failed") else 0.0


def _shape(data: DataConfig, place: Workplace) -> tuple[int, int, int]:
    """Images, channels and side."""
    generated = place.generated and data.path == place.detected
    known = _DETECTED if generated else _SETS.get(data.name)
    if known is None:
        return _read_shape(data)
    count, channels, side = known
    count = round(min(count, data.limit or count) * (1 - data.validation))
    return count, channels, data.size or side


@cache
def _read_shape(data: DataConfig) -> tuple[int, int, int]:
    from ldreg.train.assembly import named  # which brings Lightning

    with named("data", DataConfig):
        images = load_images(data, "train")
    return len(images), images.channels, output_size(data, images)


def _seconds(settings: Settings, place: Workplace, *, ours: bool, elsewhere: bool = False) -> float:
    """By arithmetic: here, or on an H200 elsewhere."""
    kind = "cuda" if elsewhere or on_cuda(place.device) else "cpu"
    count, channels, side = _shape(settings.data, place)
    work, _, _ = _encoder(settings.encoder, channels, side)
    steps = settings.schedule.epochs * (count // settings.run.batch_size)
    arithmetic = work * _passes(settings) * settings.run.batch_size * steps
    precision = settings.trainer.precision
    speed = _H200[precision] if elsewhere else matrix_speed(kind, precision)
    speed *= _EFFICIENCY[kind, settings.trainer.compile and ours]
    speed *= settings.trainer.devices * settings.trainer.nodes if kind == "cuda" else 1  # CPU processes share cores
    # Lightly's views are made by processes while the device trains on earlier ones.
    workers = _H200_CORES if elsewhere else worker_count(settings.data)
    views = 0.0 if ours else steps * settings.run.batch_size * _LIGHTLY_PAIR / max(1, workers)
    return max(arithmetic / speed + steps * _STEP[kind], views) + _RUN[kind]


def _passes(settings: Settings) -> float:
    return _PASSES["byol" if _symmetric(settings.method) else settings.run.method]


def _symmetric(method: object) -> bool:
    """Whether it is MoCo's third version, which encodes both views twice as BYOL does."""
    return getattr(method, "version", None) == "v3"


def _gigabytes(settings: Settings, place: Workplace) -> float:
    """Weights, gradients, optimizer and momentum encoder, and what the forward pass keeps."""
    _, channels, side = _shape(settings.data, place)
    _, weights, outputs = _encoder(settings.encoder, channels, side)
    size = 4 if settings.trainer.precision == "fp32" else 2
    views = 0.25 if settings.run.method == "mae" else 2
    copies = 17 if settings.run.method in _MOMENTUM else 13
    kept = outputs * size * _KEPT * views * settings.micro_batch
    return (weights * copies + kept) / 1e9


@cache
def _encoder(config: EncoderConfig, channels: int, side: int) -> tuple[float, int, int]:
    """Floating-point operations of one image, number of weights, and elements that modules put out for it."""
    encoder, image = _built(config, channels, side)
    outputs = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        nonlocal outputs
        outputs += output.numel() if isinstance(output, Tensor) else 0

    leaves = [module for module in encoder.modules() if not list(module.children())]
    hooks = [module.register_forward_hook(count) for module in leaves]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoder(image)
    for hook in hooks:
        hook.remove()
    return float(counter.get_total_flops()), sum(weight.numel() for weight in encoder.parameters()), outputs


def _built(config: EncoderConfig, channels: int, side: int) -> tuple[nn.Module, Tensor]:
    """The encoder and an image for it, without values: to draw weights and to compute takes seconds."""
    shape = (1, channels, side, side)
    try:
        with torch.device("meta"):
            return build_encoder(config, channels=channels, size=side).eval(), torch.zeros(shape)
    except (RuntimeError, ValueError):  # some models of timm look at values; an error of another cause comes again
        return build_encoder(config, channels=channels, size=side).eval(), torch.zeros(shape)


@cache
def matrix_speed(kind: str, precision: str) -> float:
    """Floating-point operations per second of a large matrix product here."""
    side = 8192 if kind == "cuda" else 1024
    dtype = torch.float32 if precision == "fp32" or kind == "cpu" else torch.bfloat16
    x = torch.ones(side, side, device=kind, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        y = x @ x
        y[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best


def plan_table(jobs: Sequence[Job], place: Workplace, *, processes: int) -> tuple[Table, str]:
    """All runs with their state and what is still to come of time and memory, and the sum in words."""
    states: list[State] = [place.state(job) for job in jobs]
    known = [Record.from_json(place.record(job)) for job, state in zip(jobs, states, strict=True) if state == "done"]
    rows, minutes, most, guessed = [], 0.0, 0.0, False
    for job, state in zip(jobs, states, strict=True):
        need = estimate(job, place, known)
        ahead = need.minutes if state in ("missing", "to continue") else 0.0
        minutes, most = minutes + ahead, max(most, need.gigabytes if ahead else 0.0)
        guess = bool(ahead) and need.basis == "arithmetic"
        guessed = guessed or guess
        texts = (
            job.name,
            state,
            str(job.settings.schedule.epochs),
            f"{'~' if guess else ''}{duration(ahead)}" if ahead else "",
            _memory(need.gigabytes),
        )
        rows.append([Cell(text) for text in texts])
    left = sum(state != "done" for state in states)
    words = f"{len(jobs)} runs, {len(jobs) - left} of them done; "
    if minutes:
        words += (
            f"the others take about {duration(minutes / processes)} here ({_machine(place)}), {processes} at a time, "
            f"and up to {_memory(most)} each."
        )
        words += " Times with ~ are by arithmetic and may be off by a factor of two or three." if guessed else ""
        words += _elsewhere([job for job, state in zip(jobs, states, strict=True) if state != "done"], place)
    else:
        words += "there is nothing left to train."
    if any(DETECTION in job.measures for job in jobs):
        words += " Fine-tuning for detection comes on top."
    return Table(["Run", "State", "Epochs", "Time", "Memory"], rows), words


def _elsewhere(left: Sequence[Job], place: Workplace) -> str:
    """What runs in half precision, made for a GPU, would take on one that can hold them; said where there is none."""
    if on_cuda(place.device):
        return ""
    settings = {job: place.settings(job) for job in left}
    halved = {job: own for job, own in settings.items() if own.trainer.precision != "fp32"}
    fit = [job for job, own in halved.items() if _gigabytes(own, place) <= _H200_GB]
    if not fit:
        return ""
    seconds = sum(_seconds(settings[job], place, ours=job.arm.by == "ldreg", elsewhere=True) for job in fit)
    these = "they" if len(fit) == len(left) else f"{len(fit)} of them"
    return f" On an H200 GPU {these} would take about {duration(seconds / 60)}, one at a time, by the same arithmetic."


def _machine(place: Workplace) -> str:
    return torch.cuda.get_device_name() if on_cuda(place.device) else f"a CPU with {available_cores()} cores"


def _memory(gigabytes: float) -> str:
    """Gigabytes as people say them.

    >>> _memory(0.0312), _memory(93.52)
    ('31 MB', '94 GB')
    """
    return f"{1000 * gigabytes:.0f} MB" if gigabytes < 1 else f"{gigabytes:.0f} GB"
