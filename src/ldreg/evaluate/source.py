"""An encoder from a run folder or a checkpoint, and the images to evaluate it on."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ldreg.data import DataConfig
from ldreg.encoders import EncoderConfig
from ldreg.encoders.checkpoints import ENCODER, LoadedEncoder, load_encoder
from ldreg.train.folder import RunFolder
from ldreg.train.recipes import read_yaml
from ldreg.train.settings import Settings, resolve

# Settings of how images are read, not of which; they stay if another set is named.
READING = ("cache", "workers", "resident_limit", "max_unreadable")


@dataclass(frozen=True, eq=False)
class Source:
    """An encoder and where it comes from."""

    encoder: LoadedEncoder
    name: str  # of the run's folder or the file
    path: Path
    folder: RunFolder | None  # of the run whose encoder it is; None for a plain checkpoint
    settings: Settings | None  # of that run, or of the run in whose folder a checkpoint lies
    data: DataConfig | None  # the images to evaluate on: the run's own, or those of the options; None if unknown

    @property
    def results_folder(self) -> Path:
        """The folder of results: in the run's folder, or in the working directory for a plain checkpoint."""
        return self.folder.path / "evaluation" if self.folder is not None else Path("evaluation") / self.name

    @property
    def images(self) -> DataConfig:
        """The images to evaluate on; ValueError if nothing says which."""
        if self.data is None:
            raise ValueError(
                f"--data.name: expected a dataset, as {self.path} is no run folder, got none; "
                "images of your own are --data.name folder --data.path FOLDER"
            )
        return self.data

    def facts(self) -> dict[str, Any]:
        """What the file of a result says about the encoder."""
        facts = {name: getattr(self.encoder, name) for name in ("layout", "channels", "size", "normalization", "key")}
        return {"name": self.name, "path": str(self.path), "encoder": asdict(self.encoder.config), **facts}


def open_source(
    path: str | PathLike[str],
    *,
    encoder: EncoderConfig | None = None,
    size: int | None = None,
    normalization: str | None = None,
    data: Sequence[tuple[str, str | None]] = (),
) -> Source:
    """The encoder of a run folder, or of a checkpoint: encoder.safetensors, or a state dict in a known layout.

    A checkpoint may not say its encoder, size and normalization. Options such as ("data.path", "X") replace the run's;
    another data.name drops all of the run's but those of how images are read.

    Raises:
        ValueError: no encoder there, or options that do not fit it or are unknown.
        OSError: a file cannot be read.
    """
    where = Path(path)
    loaded = load_encoder(where, encoder=encoder, size=size, normalization=normalization)  # type: ignore[arg-type]  # which it checks
    run = RunFolder(where if where.is_dir() else where.parent)
    # A checkpoint in the folder of a finished run has its settings; a run's own encoder is the run.
    inside = run.config.is_file() and (where.is_dir() or run.card.is_file())
    settings = resolve(read_yaml(run.config)) if inside else None
    whole = where.resolve()
    named = whole if whole.is_dir() else whole.parent if whole.name == ENCODER else whole.with_suffix("")
    own = inside and (where.is_dir() or where.name == ENCODER)
    return Source(loaded, named.name or "encoder", where, run if own else None, settings, _data(settings, data))


def _data(settings: Settings | None, options: Sequence[tuple[str, str | None]]) -> DataConfig | None:
    given = dict(options)
    if "data.size" in given:
        raise ValueError("data.size: expected to be left out, as the encoder decides; --size gives it where it can")
    if settings is None:
        if options and not given.get("data.name"):
            raise ValueError("data.name: expected the name of a dataset, as a plain checkpoint has none, got none")
        return resolve({}, options).data if options else None
    own = settings.data
    same = given.get("data.name", own.name) == own.name
    found = resolve({"data": settings.tree["data"] if same else _reading(settings)}, options).data
    if same and found.validation not in (0, own.validation):
        raise ValueError(
            f"data.validation: expected 0 or the run's own {own.validation:g}, as the run was trained on the other "
            f"images, got {found.validation:g}"
        )
    return found


def reading_settings(source: Source, options: Sequence[tuple[str, str | None]]) -> DataConfig:
    """How images are read (cache, workers, ...): as in the run, unless these options replace it."""
    return resolve({} if source.settings is None else {"data": _reading(source.settings)}, options).data


def _reading(settings: Settings) -> dict[str, Any]:
    return {key: settings.tree["data"][key] for key in READING}
