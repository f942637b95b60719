"""How long runs would take and what memory they need, from rates that were measured."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ldreg.data import DataConfig, load_images, output_size
from ldreg.data.config import available_cores, worker_count
from ldreg.encoders import EncoderConfig
from ldreg.evaluate.extract import torch_device
from ldreg.record import Record
from ldreg.report.tables import Cell, Table
from ldreg.reproduce.jobs import GENERATED, Job, Workspace
from ldreg.reproduce.studies import DETECTION, RATES, method_of
from ldreg.text import duration
from ldreg.train.settings import Settings, named

_H200_CORES, _H200_GB = 16, 140
_KEPT = 0.7  # share of all module outputs that is kept for the gradient
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Estimate:
    """Minutes and gigabytes that a run may need, NaN where no rate is known; `measured` here, on such a run."""

    minutes: float
    gigabytes: float
    measured: bool = False


def estimate(job: Job, workspace: Workspace, records: Sequence[Record]) -> Estimate:
    """What a run would need on this machine: by the time of runs like it, else by the table of rates.

    Raises:
        ValueError: its images do not fill one batch, or are missing.
    """
    settings = workspace.settings(job)
    images, _ = _images(settings.data, workspace)
    if images < settings.run.batch_size:
        raise ValueError(f"batch_size: expected at most the {images} images there are, got {settings.run.batch_size}")
    gigabytes = _gigabytes(settings, workspace)
    alike = [record for record in records if _is_alike(record, job, cuda=_on_cuda(workspace))]
    if alike:
        rate = statistics.fmean(record.results["minutes"] / float(record.origin["epochs"] or 1) for record in alike)
        return Estimate(rate * settings.schedule.epochs, gigabytes, measured=True)
    return Estimate(_seconds(job, workspace) / 60, gigabytes)


def _on_cuda(workspace: Workspace) -> bool:
    return torch_device(workspace.device).type == "cuda"


def _is_alike(record: Record, job: Job, *, cuda: bool) -> bool:
    """Whether a record tells the time of such a run on a device like this one."""
    found, settings, epochs = record.settings, job.settings, record.origin.get("epochs")
    hardware = str(record.origin.get("hardware"))
    return (
        found.get("by", "ldreg") == job.arm.by
        and found.get("method") == settings.run.method
        and found.get("encoder.name") == settings.encoder.name
        and found.get("batch_size") == settings.run.batch_size
        and (found.get("moco.version") == "v3") == (method_of(job.arm) == "moco_v3")
        and isinstance(epochs, int | float)
        and epochs > 0
        and not record.origin.get("failed")
        and record.results.get("minutes", math.nan) > 0
        and (hardware == torch.cuda.get_device_name() if cuda else hardware.endswith(" cores"))
    )


def _images(data: DataConfig, workspace: Workspace) -> tuple[int, int]:
    """The number of training images and their side."""
    if workspace.generated and data.name == "folder" and data.path == workspace.detection_images:
        count, side = GENERATED["train"], GENERATED["size"]
    elif data.name in RATES["sets"]:
        count, side = RATES["sets"][data.name]
    else:
        return _read_images(data)
    return round(min(count, data.limit or count) * (1 - data.validation)), data.size or side


@cache
def _read_images(data: DataConfig) -> tuple[int, int]:
    with named("data", DataConfig):
        images = load_images(data, "train")
    return len(images), output_size(data, images)


def _entry(config: EncoderConfig) -> Mapping[str, Any] | None:
    """The rates of an encoder; None where none were measured."""
    entries: Sequence[Mapping[str, Any]] = RATES["encoders"]
    for entry in entries:
        if all(entry.get(key) in (None, getattr(config, key)) for key in ("name", "stem", "patch_size")):
            return entry
    return None


def _seconds(job: Job, workspace: Workspace, *, on_h200: bool = False) -> float:
    """By the table, on this machine or on an H200; NaN where the encoder has no rate."""
    settings = workspace.settings(job)
    count, side = _images(settings.data, workspace)
    cuda, entry, rate = on_h200 or _on_cuda(workspace), _entry(settings.encoder), math.nan
    if entry is not None:
        rate = entry.get("H200" if cuda else "cpu_core", math.nan)
        rate *= RATES["methods"].get(method_of(job.arm), 1.0) * (entry["size"] / side) ** 2
        if cuda and entry.get("compiled") and not (settings.trainer.compile and job.arm.by == "ldreg"):
            rate *= RATES["eager"]
    if cuda:
        precision = settings.trainer.precision
        here = RATES["matrix_speed"][precision] if on_h200 else matrix_speed(precision)
        rate *= here / RATES["matrix_speed"]["bf16"] * settings.trainer.devices * settings.trainer.nodes
    images = settings.schedule.epochs * (count - count % settings.run.batch_size)
    views = 0.0
    if job.arm.by == "lightly":  # processes make its views while the device trains on earlier ones
        workers = _H200_CORES if on_h200 else worker_count(settings.data)
        views = images / (RATES["lightly_pairs"] * max(1, workers))
    return max(images / rate, views) + float(RATES["start_seconds"]["cuda" if cuda else "cpu"])


@cache
def matrix_speed(precision: str) -> float:
    """Floating-point operations per second of a large matrix product on this GPU."""
    name = torch.cuda.get_device_name()
    if name == RATES["H200"]:
        return float(RATES["matrix_speed"][precision])
    side = 8192
    x = torch.ones(side, side, device="cuda", dtype=torch.float32 if precision == "fp32" else torch.bfloat16)
    best = math.inf
    for _ in range(4):
        start = time.perf_counter()
        (x @ x)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best


def _gigabytes(settings: Settings, workspace: Workspace) -> float:
    """Weights, gradients, optimizer and momentum encoder, and what the forward pass keeps; NaN where not known."""
    entry = _entry(settings.encoder)
    if entry is None:
        return math.nan
    _, side = _images(settings.data, workspace)
    size = 4 if settings.trainer.precision == "fp32" else 2
    views = 0.25 if settings.run.method == "mae" else 2
    copies = 17 if settings.run.method in ("byol", "moco") else 13
    outputs = entry["outputs"] * (side / entry["size"]) ** 2
    megabytes = entry["parameters"] * copies + outputs * size * _KEPT * views * settings.micro_batch
    return float(megabytes / 1e3)


def plan_table(jobs: Sequence[Job], workspace: Workspace, *, processes: int) -> tuple[Table, str]:
    """All runs with their state, time and memory to come, and the sum in words."""
    states = [(job, workspace.state(job)) for job in jobs]
    records = [Record.from_json(workspace.record_path(job)) for job, state in states if state == "done"]
    rows, ahead = [], list[Estimate]()
    for job, state in states:
        need, time_text = estimate(job, workspace, records), ""
        if state in ("missing", "to continue"):
            ahead.append(need)
            about = "" if need.measured else "~"
            time_text = _UNKNOWN if math.isnan(need.minutes) else f"{about}{duration(need.minutes)}"
        texts = (job.name, state, str(job.settings.schedule.epochs), time_text, _memory(need.gigabytes))
        rows.append([Cell(text) for text in texts])
    timed = [need for need in ahead if not math.isnan(need.minutes)]
    words = [f"{len(jobs)} runs, {len(records)} of them done;"]
    if timed:
        minutes = sum(need.minutes for need in timed) / processes
        gigabytes = max((need.gigabytes for need in timed if need.gigabytes > 0), default=math.nan)
        machine = torch.cuda.get_device_name() if _on_cuda(workspace) else f"a CPU with {available_cores()} cores"
        words.append(
            f"the others take about {duration(minutes)} here ({machine}), {processes} at a time, "
            f"and up to {_memory(gigabytes)} each."
        )
        if not all(need.measured for need in timed):
            words.append("Times with ~ are by rates measured elsewhere and may be off by a factor of two or three.")
        words += _on_h200([job for job, state in states if state != "done"], workspace)
    elif not ahead:
        words.append("there is nothing left to train.")
    if len(timed) < len(ahead):
        words.append(f"No rate is known for the encoder of {len(ahead) - len(timed)} of them.")
    if any(DETECTION in job.measures for job in jobs):
        words.append("Fine-tuning for detection comes on top.")
    return Table(["Run", "State", "Epochs", "Time", "Memory"], rows), " ".join(words)


def _on_h200(left: Sequence[Job], workspace: Workspace) -> list[str]:
    """What runs in half precision, which are made for a GPU, would take on an H200 that can hold them."""
    known = [(job, workspace.settings(job)) for job in left]
    fit = [
        job
        for job, settings in known
        if settings.trainer.precision != "fp32" and _gigabytes(settings, workspace) <= _H200_GB
    ]
    seconds = sum(_seconds(job, workspace, on_h200=True) for job in fit)
    if _on_cuda(workspace) or not fit or math.isnan(seconds):
        return []
    these = "they" if len(fit) == len(left) else f"{len(fit)} of them"
    return [f"On an H200 GPU {these} would take about {duration(seconds / 60)}, one at a time, by the same rates."]


def _memory(gigabytes: float) -> str:
    """Memory as people say it.

    >>> _memory(0.0312), _memory(93.52)
    ('31 MB', '94 GB')
    """
    if math.isnan(gigabytes):
        return _UNKNOWN
    return f"{1000 * gigabytes:.0f} MB" if gigabytes < 1 else f"{gigabytes:.0f} GB"
