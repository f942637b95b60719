import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from ldreg.data.file_batches import prefetched


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ldreg-prefetch"]


class Numbers:
    """Counts what is made, and knows whether it was closed and by which thread."""

    def __init__(self, count: int, *, fail_at: int | None = None) -> None:
        self.count, self.fail_at = count, fail_at
        self.made = 0
        self.enough = threading.Semaphore(0)
        self.closed_by: threading.Thread | None = None

    def items(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                if number == self.fail_at:
                    raise KeyError("broken")
                self.made += 1
                self.enough.release()
                yield number
        finally:
            self.closed_by = threading.current_thread()


def test_items_come_in_order_and_the_thread_ends() -> None:
    numbers = Numbers(50)
    assert list(prefetched(numbers.items())) == list(range(50))
    assert threads() == []
    assert numbers.closed_by is not threading.main_thread()


def test_nothing_is_made_before_the_first_is_asked_for() -> None:
    numbers = Numbers(5)
    items = prefetched(numbers.items())
    assert threads() == []
    assert next(items) == 0
    items.close()


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_thread_goes_ahead_so_far_and_no_further(ahead: int) -> None:
    numbers = Numbers(20)
    items = prefetched(numbers.items(), ahead=ahead)
    assert next(items) == 0
    # One is used, `ahead` lie ready, and one waits for room.
    for _ in range(ahead + 2):
        assert numbers.enough.acquire(timeout=10)
    assert not numbers.enough.acquire(timeout=0.2)
    assert numbers.made == ahead + 2
    items.close()


def test_an_error_comes_in_its_place() -> None:
    numbers = Numbers(10, fail_at=4)
    items = prefetched(numbers.items())
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="broken"):
        next(items)
    assert threads() == []
    assert list(items) == []


@pytest.mark.parametrize("used", [1, 5])
def test_leaving_early_ends_the_thread_and_closes_what_it_went_through(used: int) -> None:
    numbers = Numbers(1000)
    items = prefetched(numbers.items())
    for _ in range(used):
        next(items)
    items.close()
    assert threads() == []
    assert numbers.closed_by is not None
    assert numbers.made < 1000


def test_an_error_in_the_loop_ends_the_thread() -> None:
    numbers = Numbers(1000)

    def loop() -> None:
        for item in prefetched(numbers.items()):
            if item == 3:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        loop()
    del caught  # the traceback keeps the loop's iterator
    assert threads() == []
    assert numbers.closed_by is not None


def test_the_surroundings_are_those_of_the_thread() -> None:
    around = threading.local()

    @contextmanager
    def surroundings() -> Iterator[None]:
        around.here = True
        yield

    def items() -> Generator[bool, None, None]:
        yield around.here

    assert list(prefetched(items(), surroundings=surroundings)) == [True]
    assert not hasattr(around, "here")
