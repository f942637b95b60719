"""`python -m ldreg` is `ldreg`."""

import sys

from ldreg.cli import main

if __name__ == "__main__":
    sys.exit(main())
