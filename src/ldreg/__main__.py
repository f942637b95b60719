"""`python -m ldreg` is `ldreg`. What takes long to import is imported from here on, and Ctrl-C is one line."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_SWALLOWING = ("numpy", "torch")  # while C code of PyTorch imports NumPy, an exception is lost and NumPy left broken


def run() -> NoReturn:
    """Run `ldreg` with the arguments of the process, and end it."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup and the like have it ignored
            signal.signal(signal.SIGINT, _interrupt)
        from ldreg import cli

        cli.run()
    except KeyboardInterrupt:
        print("ldreg: interrupted", file=sys.stderr)
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; where it would get lost, which is before any work has begun, end at once."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in _SWALLOWING)
    if any(getattr(spec, "_initializing", False) for spec in specs):
        os.write(2, b"ldreg: interrupted\n")
        os._exit(130)
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    run()
