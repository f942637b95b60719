"""Images that cannot be read: counted, listed, and an error when they are too many."""

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


class Tally:
    """The distinct unreadable files of a set of `count`, of which a share of `max_share` is borne.

    Each is logged once, however often it is met.

    >>> tally = Tally(200, max_share=0.01)
    >>> tally.add([Failure(7, "a.jpg", "truncated"), Failure(7, "a.jpg", "truncated")])
    >>> tally.listed
    ['a.jpg: truncated']
    """

    def __init__(self, count: int, *, max_share: float) -> None:
        self.count = count
        self.max_share = max_share
        self._failures: dict[str, Failure] = {}

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

    def exceeds(self, unreadable: int) -> bool:
        """Whether so many unreadable images are too many."""
        return unreadable > 0 and unreadable / self.count > self.max_share  # a product would be rounded past the bound

    def _message(self) -> str:
        bad = len(self._failures)
        return (
            f"max_unreadable: expected at most {self.max_share:.2%} unreadable images, got {bad} of {self.count} "
            f"({bad / self.count:.2%}) so far, among them {'; '.join(self.listed[:3])}"
        )
