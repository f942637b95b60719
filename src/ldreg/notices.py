"""Lightning's Trainer without what it says about itself."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Advice of Lightning and torch to their own developers, or about what is not so here.
_ADVICE = (
    ".*LeafSpec.*",
    ".*broadcast_buffers.*",
    ".*does not have many workers.*",
    ".*`weights_only` was not set.*",
    ".*GPU available but not used.*",
    ".*sync_dist=True.*",
    ".*`max_epochs` was not set.*",
    ".*module\\(s\\) in eval mode.*",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning without its notices of the hardware, and without advice that does not apply here."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _ADVICE:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
