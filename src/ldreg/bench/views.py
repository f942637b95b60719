"""Views of a batch of images: ours on the device beside per-image transforms in worker processes."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ldreg.bench.benchmark import OWN, Benchmark, Contender, Goal, Outcome, Pictures, Setting
from ldreg.bench.measure import measure

_RESERVE = 3  # batches of each worker before the first that is timed: two are made in advance, and one is at work

# What a ResNet-50 in bf16 takes on an H200: two views of 256 images at 224 px in 105.5 ms.
RESNET50_VIEWS = 4900


def ours(setting: Setting) -> Outcome:
    """As `ldreg pretrain` makes them: compiled on a GPU, files decoded there where it can."""
    return _measured(setting, compiled=setting.device == "cuda", decode="auto")


def ours_plain(setting: Setting) -> Outcome:
    """Not compiled, and files decoded by worker processes."""
    return _measured(setting, compiled=False, decode="cpu")


def _by_workers(name: str) -> Callable[[Setting], Outcome]:
    return lambda setting: _measured(setting, name)


def _measured(setting: Setting, name: str = "ours", **options: Any) -> Outcome:
    """Seconds of a batch, by as many batches at a time as there are workers, who bring them all at once.

    Loaders make batches in advance: so many are taken first that the workers, and no reserve of theirs, set the pace.
    """
    from ldreg.bench import view_makers  # brings torchvision and lightly

    together = 1 if name == "ours" and not setting.size.files else setting.threads
    with tempfile.TemporaryDirectory() as folder:
        batches: Any = view_makers.MAKERS[name](setting, Path(folder), **options)
        for _ in range(_RESERVE * together):
            next(batches)

        def work() -> None:
            for _ in range(together):
                next(batches)

        measured, _ = measure(work, repeats=setting.repeats, device=setting.device)
        batches.close()
    # Worker processes have memory of their own, of which this one's tells nothing.
    each = tuple(seconds / together for seconds in measured.seconds)
    return Outcome(replace(measured, seconds=each, extra_mb=None, host=None))


def _contender(measure: Callable[[Setting], Outcome], **options: Any) -> Contender:
    return Contender(measure, package="lightly", install="ldreg[train]", **options)


_FILES = Pictures(128, 224, files=True)

BENCHMARK = Benchmark(
    title="Two views of every image",
    contenders={
        OWN: _contender(ours),
        "ldreg (plain)": _contender(ours_plain, devices=("cuda",), counts=False),
        "torchvision v2": _contender(_by_workers("torchvision v2")),
        "torchvision (PIL)": _contender(_by_workers("torchvision (PIL)")),
        "lightly": _contender(_by_workers("lightly")),
    },
    size=Pictures,
    sizes={
        "cpu": (Pictures(512, 32), Pictures(64, 224), Pictures(64, 224, files=True)),
        "cuda": (Pictures(512, 32), Pictures(128, 224), _FILES),
    },
    quick_sizes=(Pictures(16, 32), Pictures(4, 96, files=True)),
    goals=(Goal(_FILES, "views/s", RESNET50_VIEWS, device="cuda"),),
    columns=("img/s", "views/s", "time vs ldreg"),
    picture="rates",
    conditions="SimCLR's views of random pictures; others than ldreg run in as many worker processes as threads",
)
