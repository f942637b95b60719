"""Adapters for other libraries: one module per library, named after it and imported only where it is used."""

from ldreg.dimension.neighbors import as_whole


def check_whole(least: int, **values: object) -> None:
    """Raise ValueError if a value is not an integer or is below `least`.

    >>> check_whole(2, k=64)
    >>> check_whole(2, k=64.0)
    Traceback (most recent call last):
    ValueError: k: expected an integer, got 64.0
    """
    for name, value in values.items():
        whole = as_whole(value)
        if whole is None:
            raise ValueError(f"{name}: expected an integer, got {value!r}")
        if whole < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
