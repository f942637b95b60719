"""A real shell in a terminal of its own, in which keys are pressed."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

# How each shell is started for someone at a terminal, without the settings of this computer, and the file of settings
# that it then reads in the home folder.
RCS = {
    "bash": (["bash", "--noprofile", "--rcfile", ".bashrc", "-i"], ".bashrc"),
    "zsh": (["zsh", "-d", "-i"], ".zshrc"),
    "fish": (["fish", "-i"], ".config/fish/config.fish"),
}
_PROMPT = "ready>"
_PROMPTS = {
    "bash": f"PS1='{_PROMPT} '",
    "zsh": f"PS1='{_PROMPT} '; LISTMAX=10000",  # no question before a long list
    "fish": f"function fish_prompt; echo '{_PROMPT} '; end; set -g fish_autosuggestion_enabled 0",
}
# Lets `ldreg completion` do its work, and of any other call shows the words.
_LDREG = """#!/bin/sh
if [ "$1" = completion ]; then exec "{python}" -m ldreg "$@"; fi
printf '[['; printf '<%s>' "$@"; echo ']]'
"""
# A shell wants the terminal to be the one that controls it.
_CONTROLLED = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
_PATIENCE = 60.0  # seconds
_KILL_LINE = "\x15"


class Terminal:
    """A shell at a terminal, whose home holds these settings and a stand-in for `ldreg`."""

    def __init__(self, shell: str, settings: str, home: Path) -> None:
        command, file = RCS[shell]
        (home / "bin").mkdir()
        (home / "bin" / "ldreg").write_text(_LDREG.format(python=sys.executable))
        (home / "bin" / "ldreg").chmod(0o755)
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(f"{settings}\n{_PROMPTS[shell]}\n")
        (home / ".local/share/fish/generated_completions").mkdir(parents=True)  # else fish reads all manuals for them
        known = {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
        environment = known | {"PATH": f"{home}/bin:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(home)}
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 1000, 200, 0, 0))  # a list has to fit
        self._shell = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLED, *command],
            stdin=follower, stdout=follower, stderr=follower, cwd=home, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        self._unread = ""

    def __enter__(self) -> Self:
        self._read_until(_PROMPT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._leader)

    def said(self, keys: str) -> str:
        """What `ldreg` shows of its words after these keys and Enter."""
        return self.shown(keys, then="").rpartition("[[")[2]

    def shown(self, keys: str, *, then: str = f"{_KILL_LINE}ldreg") -> str:
        """What stands on the terminal after these keys; they are taken back, unless something else is to follow."""
        os.write(self._leader, f"{keys}{then}\r".encode())
        text = self._read_until("]]")
        self._read_until(_PROMPT)
        return text

    def _read_until(self, wanted: str) -> str:
        """What the terminal shows next, before this."""
        ends = time.monotonic() + _PATIENCE
        while wanted not in self._unread:
            left = max(0.0, ends - time.monotonic())
            assert select.select([self._leader], [], [], left)[0], f"no {wanted!r} in {self._unread!r}"
            self._unread += os.read(self._leader, 4096).decode(errors="replace")
        text, _, self._unread = self._unread.partition(wanted)
        return text
