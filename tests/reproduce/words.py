"""What `ldreg reproduce` makes of the words after it, records to show, and images to train on."""

import shlex
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ldreg.cli import COMMANDS
from ldreg.options import CommandLine, parse
from ldreg.record import Record, Setting
from ldreg.reproduce.jobs import Job
from ldreg.reproduce.reproduction import Reproduction, prepare
from ldreg.reproduce.studies import Arm
from ldreg.train.settings import record_settings

CLASSES = ("blue", "green", "red")
SIZE = 8


def request(words: Sequence[str]) -> Reproduction:
    found = parse(COMMANDS["reproduce"], words, command_line=CommandLine(shlex.join(["ldreg", "reproduce", *words])))
    return prepare(found["studies"], found["config"], found["settings"])


def put(
    folder: Path,
    arm: Arm,
    results: Sequence[Mapping[str, float]],
    *,
    settings: Mapping[str, Setting] | None = None,
    **origin: str | int,
) -> list[Record]:
    """Records of seeds from 0 on, as files and as they are."""
    folder.mkdir(exist_ok=True)
    made = []
    for seed, found in enumerate(results):
        job = Job(arm, seed)
        told = {**(job.expected if arm.by == "lightly" else record_settings(job.settings)), **(settings or {})}
        curves = {"lid": [(0.0, 5.0), (1.0, found.get("lid", 5.0))]}
        known = {"seed": seed, "epochs": 40, "held_out": 1000, **origin}
        made.append(Record(job.name, told, found, curves=curves, origin=known))
        made[-1].to_json(folder / f"{job.name}.json")
    return made


def draw(folder: Path, counts: Mapping[str, int], classes: Sequence[str] = CLASSES) -> Path:
    """Noise with a tint for each class, as PNG, which keeps every pixel."""
    generator = np.random.default_rng(0)
    for split, count in counts.items():
        for number, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 160, (SIZE, SIZE, 3), dtype=np.uint8)
                pixels[..., number] += 90
                Image.fromarray(pixels).save(folder / split / name / f"{index:02}.png")
    return folder


def as_archive(folder: Path) -> Path:
    """The images as CIFAR-10's lie in an archive."""
    with tarfile.open(folder.with_name("cifar10.tar"), "w") as tar:
        tar.add(folder, "cifar10")
    return folder.with_name("cifar10.tar")
