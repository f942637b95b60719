"""Walking over rows a few at a time, so that memory follows a budget and not the data."""

from collections.abc import Iterator


def slices(n: int, step: int) -> Iterator[slice]:
    """Consecutive slices that cover range(n), `step` long but for the last.

    >>> list(slices(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def even_slices(n: int, limit: int) -> list[slice]:
    """The fewest slices of nearly equal length, none over `limit`, that cover range(n).

    >>> even_slices(5, 4)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    parts = -(-n // limit)
    edges = [n * part // parts for part in range(parts + 1)]
    return [slice(edges[part], edges[part + 1]) for part in range(parts)]
