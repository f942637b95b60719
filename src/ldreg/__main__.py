"""`python -m ldreg` is `ldreg`."""

from ldreg.cli import run

if __name__ == "__main__":
    run()
