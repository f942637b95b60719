"""The run folder: what a run leaves behind, and what it needs to go on."""

import itertools
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ldreg import __version__
from ldreg.io import files
from ldreg.io.files import Name, check_writable, exclusive, json_values, write_atomically
from ldreg.train.recipes import Tree, read_yaml

if TYPE_CHECKING:
    from torch import nn

_PACKAGES = ("torch", "torchvision", "timm", "lightly", "pytorch-lightning", "numpy", "scikit-learn", "safetensors")

logger = logging.getLogger("ldreg")


class RunFolder:
    """The files of one run, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"  # every setting, resolved
        self.environment = path / "environment.json"  # versions, hardware, command
        self.log = path / "log.txt"  # messages
        self.metrics = path / "metrics.csv"  # everything measured, a row each
        self.checkpoints = path / "checkpoints"  # whole states to go on from
        self.encoder = path / "encoder.safetensors"  # the trained encoder's weights
        self.card = path / "card.json"  # what the encoder is and how it was trained

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of a run except its checkpoints."""
        return (self.encoder, self.card, self.config, self.metrics, self.environment, self.log)


def check_outputs(*, inputs: Iterable[Name | None], outputs: Iterable[Name | None]) -> None:
    """Check before the work that every output can be written and replaces no input and no other output.

    If a run's folder or one of its files is read, all its files count as inputs. None stands for none.

    Raises:
        ValueError: an output is an input, or comes twice.
        OSError: an output cannot be written.
    """
    read: list[Path] = []
    for path in (Path(name) for name in inputs if name is not None):
        folder = RunFolder(path if path.is_dir() else path.resolve().parent)
        read += [] if path.is_dir() else [path]
        if folder.config.is_file() or folder.encoder.is_file():
            read += [*folder.files, folder.checkpoints]
    files.check_outputs(inputs=read, outputs=outputs)


def check_new(path: Path) -> None:
    """Check before the work that a run folder can be made here.

    Raises:
        ValueError: the folder holds something already.
        OSError: it cannot be made or written.
    """
    if path.exists() and (not path.is_dir() or _holds_something(path)):
        hint = f"; --resume {path} continues that run" if RunFolder(path).config.is_file() else ""
        raise ValueError(f"out: expected a new or empty folder, got {str(path)!r}, which holds something{hint}")
    above = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"cannot write {str(path)!r}: {str(above)!r} is not a folder")
    check_writable(above / ".ldreg")


def _holds_something(path: Path) -> bool:
    """Whether a folder holds more than what a run leaves that was killed before its settings were written."""
    folder = RunFolder(path)
    before = {folder.log.name, folder.environment.name, folder.checkpoints.name}
    partial = tuple(f".{file.name}." for file in (folder.environment, folder.config))  # of write_atomically
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(partial)}
    if folder.log.name not in names:  # no run was here
        return any(path.iterdir())
    return not names <= before or (folder.checkpoints.is_dir() and any(folder.checkpoints.iterdir()))


def create(path: Path, tree: Tree, *, command: str) -> RunFolder:
    """A new run folder with its settings and environment in it; to be held, where others may want it too.

    Raises:
        ValueError: the folder holds something already.
        OSError: it cannot be made or written.
    """
    check_new(path)
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    write_atomically(folder.environment, json.dumps(environment(command), indent=2) + "\n")
    # The settings come last: a folder with them is one that --resume takes.
    write_atomically(folder.config, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    return folder


def unused(path: Path) -> Path:
    """The path itself, or with a number after it if that is taken."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([path], numbered) if not candidate.exists())


def existing(path: Path) -> tuple[RunFolder, Tree]:
    """A run folder made before, and the settings in it.

    Raises:
        ValueError: it is none.
    """
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise ValueError(f"resume: expected a run folder with a config.yaml, got {str(path)!r}")
    folder.checkpoints.mkdir(exist_ok=True)
    return folder, read_yaml(folder.config)


def environment(command: str) -> dict[str, Any]:
    """What a reader needs to know to repeat the run: command, versions, hardware, time."""
    import torch  # which a command's help does without

    return {
        "command": command,
        "ldreg": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "gpus": torch.cuda.device_count(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def installed_version(name: str) -> str | None:
    """The version of a package, by its name for pip; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit that this package runs from: LDREG_COMMIT, or as git says; None if it was installed without one."""
    if os.environ.get("LDREG_COMMIT"):  # a copy of the code on another machine has no history
        return os.environ["LDREG_COMMIT"]
    source = Path(__file__).resolve().parent
    if "site-packages" in source.parts:
        return None
    git = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(git, cwd=source, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def save_encoder(folder: RunFolder, encoder: "nn.Module", card: dict[str, Any]) -> None:
    """Write the encoder's weights with the card inside, and the card as a file; NaN and inf become null.

    The card inside leaves out measurements, so that the same run gives the same bytes.
    """
    from safetensors.torch import save

    values = json_values(card)
    lasting = {key: value for key, value in values.items() if key not in ("metrics", "findings", "minutes")}
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    data = save(weights, metadata={"format": "pt", "ldreg": json.dumps(lasting, allow_nan=False)})
    write_atomically(folder.encoder, _ordered(data))
    write_atomically(folder.card, json.dumps(values, indent=2, allow_nan=False) + "\n")


def _ordered(data: bytes) -> bytes:
    """A safetensors file with the keys of its header sorted; the library leaves the metadata's order to chance."""
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the tensors after it stay aligned
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


@contextmanager
def held(folder: RunFolder, *, new: bool = False) -> Iterator[None]:
    """Keep other processes out of the folder, and write what the logger "ldreg" gets into the run's log.

    A new folder is made first, so that of two processes that begin a run there one finds it locked.

    Raises:
        ValueError: another process uses it.
    """
    if new:
        folder.path.mkdir(parents=True, exist_ok=True)
    handler = _RunLog(folder.log, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        with exclusive(folder.path, folder.log):
            yield
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):  # a line that could not be written was an error at once
            handler.close()


class _RunLog(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Raise if a line cannot be written; logging itself would print a traceback and go on."""
        raise


def say(message: str, *, level: int = logging.INFO) -> None:
    """Print a line on stderr and write it to the log."""
    logger.log(level, message)
    print(message, file=sys.stderr, flush=True)
