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
