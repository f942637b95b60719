"""The image files of points: those of a folder, or the paths in a file or in a column of words."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ldreg.io.images import IMG_EXTENSIONS
from ldreg.io.labels import load_names, name_array
from ldreg.text import count, listed, one_line

_LOOKED_AT = 50  # paths by which a column of images is known
_ENDINGS = (*IMG_EXTENSIONS, ".gif")


class ShownImages(NamedTuple):
    """For each point its image file, None where it is missing; the array or column of the paths; what to say of it."""

    paths: list[Path | None]
    key: str | None
    said: str


def find_images(
    file: str | None,
    points: int,
    *,
    images: str | None = None,
    key: str | None = None,
    exclude: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> ShownImages | None:
    """The images of the points in `file`, one for each; None where there are none and none were asked for.

    Paths come from `images`, a file, or from the array or column `key` of `images` or of `file`. Without either, they
    come from a column of words in `file`, or from the `names` of the points, if these are paths of images that are
    there. Relative paths start in the folder `images`, beside their file, or where the command runs. A folder without
    paths gives its image files in the order of their names.

    Raises:
        ValueError: another number of images than of points, or none of them is there.
        OSError: `images` cannot be read.
    """
    folder = Path(images) if images is not None and Path(images).is_dir() else None
    source = file if images is None or folder else images
    asked = "--image-key" if images is None and key is not None else "--images" if images is not None else ""
    if images is not None and images == file:
        raise ValueError("--images: expected a folder or a file of paths, got FILE; --image-key names a column of it")
    if source is None or (key is None and source == file):
        bases = _bases(folder, file)
        if file is not None:
            key = name_array(file, points, exclude, fits=lambda words: _are_images(words, bases))
        if key is None and folder is not None and names is not None and _are_images(names, bases):
            start = next(base for base in bases if _any_there(names, base))
            paths = [start / name if _is_file(start / name) else None for name in names]
            return ShownImages(paths, None, _said(f"{folder}: images are those that name the points", None, paths))
        if key is None:
            return None if folder is None else _of_folder(folder, points)
    assert source is not None
    try:
        words = load_names(source, key=key, count=points)
    except ValueError as error:
        message = str(error).replace("--name-key", "--image-key")
        raise ValueError(message.replace(" labels", " image paths").replace(" names", " image paths")) from error
    base = next((base for base in _bases(folder, source) if _any_there(words, base)), None)
    if base is None:
        if not asked:
            return None
        got = f"got none that is there, such as {one_line(words[0], 60)!r}"
        raise ValueError(f"{asked}: expected paths of image files, {got}")
    paths = [base / word if word and _is_file(base / word) else None for word in words]
    return ShownImages(
        paths,
        key if source == file else None,
        _said(f"{source}: images are{'' if key else ' listed there'}", key, paths),
    )


def _of_folder(folder: Path, points: int) -> ShownImages:
    found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _ENDINGS and path.is_file()]
    paths: list[Path | None] = [*found]
    if len(paths) != points:
        got = f"{count(len(paths))} in {str(folder)!r}"
        hint = "; --image-key NAME takes their paths from a column"
        raise ValueError(f"--images: expected {count(points)} image files, one for each point, got {got}{hint}")
    if found != sorted(found, key=_by_numbers):
        hint = "--image-key NAME or a file of paths says which image is of which point"
        raise ValueError(
            f"--images: expected numbers of equal length in file names, as 2.png comes after 10.png; {hint}"
        )
    return ShownImages(paths, None, f"{folder}: images are those of the points in the order of their names")


def _by_numbers(path: Path) -> list[tuple[bool, int, str]]:
    """The parts of a path, to sort by its numbers as numbers."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", str(path))]


def _bases(folder: Path | None, file: str | None) -> list[Path]:
    """Where relative paths may start."""
    beside = [] if file is None else [Path(file).parent, Path()]
    return [*([] if folder is None else [folder]), *beside]


def _is_file(path: Path) -> bool:
    """Whether a file is there; False for a path that cannot be."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def _are_images(words: Sequence[object], bases: Sequence[Path]) -> bool:
    """Whether the first words are paths with endings of images, and one of them is there."""
    first = [str(word) for word in words[:_LOOKED_AT] if word]
    known = bool(first) and all(word.lower().endswith(_ENDINGS) for word in first)
    return known and any(_any_there(first, base) for base in bases)


def _any_there(words: Sequence[str], base: Path) -> bool:
    return any(_is_file(base / word) for word in words if word)


def _said(start: str, key: str | None, paths: Sequence[Path | None]) -> str:
    missing = paths.count(None)
    rest = f"; {count(missing)} of {count(len(paths))} are missing" if missing else ""
    return f"{start} {f'in {listed([key])}' if key else ''}{rest}"
