"""The image files of points: those of a folder, or the paths in a file or in a column of words."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ldreg.io.images import IMG_EXTENSIONS
from ldreg.io.labels import load_names, name_array
from ldreg.text import count, listed

_LOOKED_AT = 50  # paths by which a column of images is known


class ShownImages(NamedTuple):
    """For each point its image file, None where it is missing; the array or column of the paths; what to say of it."""

    paths: list[Path | None]
    key: str | None
    said: str


def find_images(
    file: str, points: int, *, images: str | None = None, key: str | None = None, exclude: Sequence[str] = ()
) -> ShownImages | None:
    """The images of the points in `file`, one for each; None where there are none and none were asked for.

    Paths come from `images`, a file, or from the array or column `key` of `images` or of `file`. Without either, they
    come from a column of words in `file`, if it has paths of images that are there. Relative paths start in the folder
    `images`, else beside their file, else where the command runs. A folder without paths gives its image files in the
    order of their names.

    Raises:
        ValueError: another number of images than of points, or none of them is there.
        OSError: `images` cannot be read.
    """
    folder = Path(images) if images is not None and Path(images).is_dir() else None
    source = file if images is None or folder else images
    asked = images is not None or key is not None
    if key is None and source == file:
        key = name_array(file, points, exclude, fits=lambda words: _are_images(words, _bases(folder, file)))
        if key is None and folder is not None:
            return _of_folder(folder, points)
        if key is None:
            return None
    try:
        words = load_names(source, key=key, count=points)
    except ValueError as error:
        message = str(error).replace("--name-key", "--image-key")
        raise ValueError(message.replace(" labels", " image paths").replace(" names", " image paths")) from error
    base = next((base for base in _bases(folder, source) if _any_there(words, base)), None)
    if base is None:
        if not asked:
            return None
        raise ValueError(f"--images: expected paths of image files, got none that is there, such as {words[0]!r}")
    paths = [base / word if word and (base / word).is_file() else None for word in words]
    return ShownImages(paths, key if source == file else None, _said(f"{source}: images are", key, paths))


def _of_folder(folder: Path, points: int) -> ShownImages:
    paths: list[Path | None] = [
        path for path in sorted(folder.rglob("*")) if path.suffix.lower() in IMG_EXTENSIONS and path.is_file()
    ]
    if len(paths) != points:
        got = f"{count(len(paths))} in {str(folder)!r}"
        hint = "; --image-key NAME takes their paths from a column"
        raise ValueError(f"--images: expected {count(points)} image files, one for each point, got {got}{hint}")
    return ShownImages(paths, None, f"{folder}: images are those of the points in the order of their names")


def _bases(folder: Path | None, file: str) -> list[Path]:
    """Where relative paths may start."""
    return [folder] if folder is not None else [Path(file).parent, Path()]


def _are_images(words: Sequence[object], bases: Sequence[Path]) -> bool:
    """Whether the first words are paths with endings of images, and one of them is there."""
    first = [str(word) for word in words[:_LOOKED_AT] if word]
    known = bool(first) and all(word.lower().endswith((*IMG_EXTENSIONS, ".gif")) for word in first)
    return known and any(_any_there(first, base) for base in bases)


def _any_there(words: Sequence[str], base: Path) -> bool:
    return any((base / word).is_file() for word in words if word)


def _said(start: str, key: str | None, paths: Sequence[Path | None]) -> str:
    missing = paths.count(None)
    rest = f"; {count(missing)} of {count(len(paths))} are missing" if missing else ""
    return f"{start} {f'in {listed([key])}' if key else 'listed there'}{rest}"
