"""How a run ends that could not go on: what was wrong, and what it has left to go on from."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ldreg.train.checkpoints import NotFiniteError, latest, peek
from ldreg.train.folder import RunFolder

# What the system says where no more can be written, whoever fills the disk.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def explained(folder: RunFolder) -> Iterator[None]:
    """Have a run that cannot go on by itself say where it stands."""
    try:
        yield
    except NotFiniteError as error:
        saved = latest(folder.checkpoints)
        good = f"the last good state, of step {peek(saved)['step']}, is {saved}" if saved else "nothing was saved yet"
        logging.getLogger("ldreg").error("%s; %s", error, good)
        raise NotFiniteError(f"{error}; {good}") from error
    except ChildProcessError as error:
        raise ChildProcessError(f"{error}; {stands(folder)}") from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        message = f"cannot write {error.filename or folder.path}: {error.strerror}; {stands(folder)}"
        raise OSError(message) from error


def stands(folder: RunFolder) -> str:
    """What a run that has ended early has left to go on from."""
    saved = latest(folder.checkpoints)
    return f"--resume {folder.path} goes on from step {peek(saved)['step']}" if saved else "nothing was saved yet"
