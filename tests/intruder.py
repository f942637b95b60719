"""A payload of pickled files that shows whether code in them was run."""

import os
from pathlib import Path
from typing import Any


class Intruder:
    """Unpickled with code allowed, it makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)
