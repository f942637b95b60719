"""What went wrong, in one line that a terminal takes."""

import difflib
import os
import re
import sys
import traceback
from collections.abc import Iterable

from jsonargparse import ArgumentError

from ldreg.completion import table
from ldreg.subcommands import complaint, option

_LONGEST = 1000  # characters of an error; names in files from strangers can be of any length


def fail(program: str, error: BaseException, *, status: int = 2) -> int:
    """Say on stderr what went wrong, with LDREG_DEBUG=1 in full, and return the exit status."""
    if os.environ.get("LDREG_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"{program}: error: {_one_line(error, program)}", file=sys.stderr)
    return status


def _one_line(error: BaseException, program: str) -> str:
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    if is_out_of_memory(error) and not isinstance(error, ArithmeticError):  # which tells of one run among several
        message = f"out of memory; {_LESS_MEMORY.get(program, 'a smaller problem may fit')}"
    if isinstance(error, ArgumentError):
        message = _argument_message(error, program)
        message += _proposed(message, program)
    return shown(message) or type(error).__name__


def meant(word: str, known: Iterable[str]) -> str:
    """A question that proposes the known word most like a wrong one; nothing where none is like it.

    >>> meant("inspekt", ["inspect", "demo"]), meant("wholly", ["inspect", "demo"])
    ("; did you mean 'inspect'?", '')
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _known_options(program: str) -> Iterable[str]:
    return table().get(program.removeprefix("ldreg").strip(), ([], {}))[1]


def shown(message: str) -> str:
    """A message on one line that a terminal takes, whatever a file or a name in it held; too long a one in its ends."""
    from ldreg.text import printable

    line = printable(" ".join(message.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-(_LONGEST // 2) :]}"


_LESS_MEMORY = {
    "ldreg inspect": "--sample measures fewer points, --device cpu needs no GPU memory",
    "ldreg evaluate": "a smaller --batch_size or --precision bf16 needs less, --device cpu needs no GPU memory",
    "ldreg pretrain": "a smaller --batch_size, --trainer.accumulate or --trainer.precision bf16 needs less",
}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, of whatever type, says that memory ran out."""
    said = str(error)
    return isinstance(error, MemoryError) or "out of memory" in said or "can't allocate memory" in said


def _argument_message(error: ArgumentError, program: str) -> str:
    """What jsonargparse says about a wrong argument, in the words of the command line."""
    message = re.sub(r'^Parser key "([^"]+)": ', lambda match: f"{_shown_name(match[1], program)}: ", complaint(error))
    return re.sub(r"required: (\w+\.)?(\w+)$", lambda match: f"required: {match[2].upper()}", message)


def _proposed(message: str, program: str) -> str:
    """What may have been meant by the first word that nothing takes; nothing where that cannot be told."""
    unknown = re.fullmatch(r"unrecognized arguments: ([^\s=]+).*", message)
    if unknown is None:
        return ""
    if unknown[1].startswith("-"):
        return meant(unknown[1], _known_options(program))
    return "; a second file is for --compare" if program == "ldreg inspect" else ""


def _shown_name(key: str, program: str) -> str:
    """An option as it is given, and an argument without a dash by its name."""
    name = key.rpartition(".")[2]
    return option(name) if option(name) in _known_options(program) else name
