"""An encoder from a run folder or a checkpoint, and the images to evaluate it on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ldreg.data import DataConfig
from ldreg.encoders import EncoderConfig
from ldreg.encoders.checkpoints import ENCODER, LoadedEncoder, load_encoder
from ldreg.train.folder import RunFolder
from ldreg.train.recipes import read_yaml
from ldreg.train.settings import Settings, resolve
from ldreg.views.config import Normalization

# Settings of how images are read, not of which; they stay if another set is named.
READING = ("cache", "workers", "resident_limit", "max_unreadable")


@dataclass(frozen=True, eq=False)
class Source:
    """An encoder and where it comes from.

    Args:
        encoder: with its weights.
        name: of the run's folder or the file.
        path: to the folder or file.
        folder: of the run whose encoder it is; None for a plain checkpoint.
        settings: of that run, or of the run in whose folder a checkpoint lies; None for others.
        data: the images to evaluate on: the run's own unless others are asked for; None if unknown.
    """

    encoder: LoadedEncoder
    name: str
    path: Path
    folder: RunFolder | None
    settings: Settings | None
    data: DataConfig | None

    @property
    def results_folder(self) -> Path:
        """Where results go: into the run's folder, or below the working directory for a plain checkpoint."""
        return self.folder.path / "evaluation" if self.folder is not None else Path("evaluation") / self.name

    @property
    def images(self) -> DataConfig:
        """The images to evaluate on.

        Raises:
            ValueError: nothing says which.
        """
        if self.data is None:
            raise ValueError(
                f"--data.name: expected a dataset, as {self.path} is no run folder, got none; "
                "images of your own are --data.name folder --data.path FOLDER"
            )
        return self.data


def open_source(
    path: str | PathLike[str],
    *,
    encoder: EncoderConfig | None = None,
    size: int | None = None,
    normalization: Normalization | None = None,
    data: Sequence[tuple[str, str | None]] = (),
) -> Source:
    """The encoder of a run folder or of a checkpoint.

    Args:
        path: a run folder, an encoder.safetensors, or a state dict in timm's, torchvision's or the authors' layout.
        encoder: which encoder, if the file does not say.
        size: side of the images, if the file does not say.
        normalization: of the images, if the file does not say.
        data: options such as ("data.path", "X") that replace the run's. With another name, the run's own options are
            dropped.

    Raises:
        ValueError: no encoder there, or options that do not fit it or are unknown.
        OSError: a file cannot be read.
    """
    where = Path(path)
    loaded = load_encoder(where, encoder=encoder, size=size, normalization=normalization)
    folder = _run(where)
    settings = None if folder is None else resolve(read_yaml(folder.config))
    own = where.is_dir() or where.name == ENCODER
    return Source(loaded, _name(where), where, folder if own else None, settings, _data(settings, data))


def _run(path: Path) -> RunFolder | None:
    """The run whose folder this is, or in whose folder this file lies."""
    folder = RunFolder(path if path.is_dir() else path.parent)
    return folder if folder.config.is_file() and (path.is_dir() or folder.card.is_file()) else None


def _name(path: Path) -> str:
    """The name of the run's folder, or of the file unless it is a run's encoder.safetensors."""
    whole = path.resolve()
    named = whole if whole.is_dir() else whole.parent if whole.name == ENCODER else whole.with_suffix("")
    return named.name or "encoder"


def _data(settings: Settings | None, options: Sequence[tuple[str, str | None]]) -> DataConfig | None:
    for key, _ in options:
        if not key.startswith("data."):
            raise ValueError(f"data: expected options such as data.path, got {key!r}")
        if key == "data.size":
            raise ValueError("data.size: expected to be left out, as the encoder decides; --size gives it where it can")
    if settings is not None:
        found = resolve({"data": _own_data(settings.tree["data"], options)}, options).data
        own = settings.data
        if found.name == own.name and found.validation not in (0, own.validation):
            raise ValueError(
                f"data.validation: expected 0 or the run's own {own.validation:g}, as the run was trained on the other "
                f"images, got {found.validation:g}"
            )
        return found
    if not options:
        return None
    if not dict(options).get("data.name"):
        raise ValueError("data.name: expected the name of a dataset, as a plain checkpoint has none, got none")
    return resolve({}, options).data


def reading_settings(source: Source, options: Sequence[tuple[str, str | None]]) -> DataConfig:
    """How images are read (cache, workers, ...): as in the run, unless these options replace it.

    Raises:
        ValueError: an option of the wrong type or range.
    """
    tree = {} if source.settings is None else {"data": {key: source.settings.tree["data"][key] for key in READING}}
    return resolve(tree, options).data


def _own_data(own: Mapping[str, Any], options: Sequence[tuple[str, str | None]]) -> dict[str, Any]:
    """The run's data settings; if other images are named, only how images are read."""
    name = dict(options).get("data.name", own["name"])
    return dict(own) if name == own["name"] else {key: own[key] for key in READING}
