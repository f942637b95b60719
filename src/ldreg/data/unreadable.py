"""Unreadable images: counted, listed, and an error when they are too many. Transparent images: counted."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

logger = logging.getLogger("ldreg")


class UnreadableImageError(ValueError):
    """One image file that cannot be decoded; the message says why."""


@dataclass(frozen=True)
class Failure:
    """An image of a set that could not be read: its index, its path and the reason."""

    index: int
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.path)}: {shown(self.reason)}"


def shown(text: object) -> str:
    r"""A path or message as it is, or with escapes in quotes where it would break a line of a log.

    >>> print(shown("a b.png"), shown("a\nb.png"))
    a b.png 'a\nb.png'
    """
    plain = str(text)
    return plain if plain.isprintable() else repr(plain)


def transparent_line(transparent: int, read: int) -> str:
    """What the log says of transparent images.

    >>> transparent_line(662, 978)
    '662 of 978 images have transparent pixels; composited onto white'
    """
    return f"{transparent} of {read} images have transparent pixels; composited onto white"


class Tally:
    """The distinct unreadable files of a set of `count`, of which a share of `max_share` is borne.

    Each is logged once, however often it is met. `transparent` is how many images of the last whole pass over the set,
    or a part of it, had transparent pixels.

    >>> tally = Tally(200, max_share=0.01)
    >>> tally.add([Failure(7, "a.jpg", "truncated"), Failure(7, "a.jpg", "truncated")])
    >>> tally.listed
    ['a.jpg: truncated']
    """

    def __init__(self, count: int, *, max_share: float) -> None:
        self.count = count
        self.max_share = max_share
        self.transparent = 0
        self._failures: dict[str, Failure] = {}
        self._read = 0

    @property
    def listed(self) -> list[str]:
        """The unreadable images met so far, each as its path and the reason."""
        return [str(failure) for failure in self._failures.values()]

    def add(self, failures: Iterable[Failure]) -> None:
        """Count what is new among the failures and log it.

        Raises:
            ValueError: once the share of unreadable images is past the bound.
        """
        for failure in failures:
            if failure.path not in self._failures:
                self._failures[failure.path] = failure
                logger.warning("unreadable image: %s", failure)
        if self.exceeds(len(self._failures)):
            raise ValueError(self._message())

    def passed(self, read: int, *, transparent: int) -> None:
        """Log how many of the images read in one pass are transparent, unless a pass over as many has said so."""
        self.transparent = transparent
        if transparent and read > self._read:
            logger.warning(transparent_line(transparent, read))
            self._read = read

    def exceeds(self, unreadable: int) -> bool:
        """Whether so many unreadable images are too many."""
        return unreadable > 0 and unreadable / self.count > self.max_share  # a product would be rounded past the bound

    def _message(self) -> str:
        bad = len(self._failures)
        return (
            f"max_unreadable: expected at most {self.max_share:.2%} unreadable images, got {bad} of {self.count} "
            f"({bad / self.count:.2%}) so far, among them {'; '.join(self.listed[:3])}"
        )
