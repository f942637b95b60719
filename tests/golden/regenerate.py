"""Write the golden data anew from the tree that is imported.

    PYTHONPATH=src OMP_NUM_THREADS=1 python tests/golden/regenerate.py [CASE ...]

Run it only when behavior is meant to change, look at `git diff tests/golden/data`, and list the change in CHANGELOG.md.
To freeze another version, put its `src` on PYTHONPATH in place of this one's.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.golden.cases import CASES
from tests.golden.frozen import write
from tests.golden.place import Place


def regenerate(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["LDREG_CACHE"] = f"{scratch}/cache"
        os.environ.pop("COLUMNS", None)
        for name in names or list(CASES):
            print(name, file=sys.stderr)
            write(name, CASES[name].frozen(Place(Path(scratch) / name, Path(scratch) / "shared")))


if __name__ == "__main__":
    regenerate(sys.argv[1:])
