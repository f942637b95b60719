"""How every page begins, by which it is told from the files of others; imports nothing that takes long."""

from pathlib import Path

OPENING = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
)


def is_page(path: Path) -> bool:
    """Whether a file is a page that ldreg wrote. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(OPENING)) == OPENING.encode()


def check_own(path: Path, *, option: str) -> None:
    """Refuse to write a page over a file that somebody else made: one that is no page of ldreg, and not empty.

    Args:
        path: of the page.
        option: by which another is named.

    Raises:
        ValueError: there is such a file.
        OSError: it cannot be read.
    """
    if would_lose(path) and not is_page(path):
        raise ValueError(f"cannot write {str(path)!r}: it is there and no page of ldreg; {option} FILE names another")


def would_lose(path: Path) -> bool:
    """Whether something would be lost by writing there: a file that is not empty, and no device or pipe."""
    return path.is_file() and path.stat().st_size > 0
