import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background; tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("COLUMNS", None)  # tables are 80 columns wide, whatever the terminal of those who run the tests


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep decoded sets and representations away from those of whoever runs the tests."""
    folder, before = tmp_path_factory.mktemp("cache"), os.environ.get("LDREG_CACHE")
    os.environ["LDREG_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["LDREG_CACHE"]
    else:
        os.environ["LDREG_CACHE"] = before


@pytest.fixture
def odd_style() -> dict[Any, Any]:
    """What a matplotlibrc or a notebook may set, and no picture of ours follows."""
    looks = {"lines.linewidth": 7.0, "font.size": 25.0, "xtick.direction": "in", "axes.facecolor": "black"}
    return {**looks, "savefig.bbox": "tight", "savefig.facecolor": "red", "text.antialiased": False}


@pytest.fixture(autouse=True)
def no_log_into_a_closed_stream() -> None:
    """Take away what a test left in the loggers of libraries that set up logging where they are first imported.

    They write to the standard error of that moment, which for a test with captured output is closed when it ends.
    """
    known = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    for logger in (logging.root, *known):
        for handler in list(logger.handlers):
            if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
                logger.removeHandler(handler)


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over all that was imported: else it looks at that for half a second each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Leave what was imported to the end of the process, as ever; libraries complain of what outlives it."""
    gc.unfreeze()
