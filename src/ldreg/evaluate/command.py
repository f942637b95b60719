"""`ldreg evaluate`: an evaluation from the options of the command line."""

from typing import TYPE_CHECKING

from ldreg.evaluate.options import request
from ldreg.extras import require
from ldreg.options import Settings

if TYPE_CHECKING:
    from ldreg.evaluate.result import Evaluation


def evaluate(kind: str, source: str, options: Settings, *, command: str = "") -> "Evaluation":
    """Evaluate the encoder of a source by one kind of evaluation, as `ldreg evaluate` documents it.

    Raises:
        ValueError: a source, data or options that do not fit.
        ArithmeticError: a training diverged.
        OSError: a file cannot be read or written.
    """
    asked = request(kind, source, options)
    require("train")
    from ldreg.evaluate.run import carry_out

    return carry_out(asked, command=command)
