"""What `ldreg reproduce` makes of the words after it."""

import shlex
from collections.abc import Sequence

from ldreg.cli import COMMANDS
from ldreg.options import CommandLine, parse
from ldreg.reproduce.options import Reproduction, prepare


def request(words: Sequence[str]) -> Reproduction:
    found = parse(COMMANDS["reproduce"], words, command_line=CommandLine(shlex.join(["ldreg", "reproduce", *words])))
    return prepare(found["studies"], found["config"], found["settings"], command=found["command"])
