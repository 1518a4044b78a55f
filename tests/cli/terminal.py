"""A command in a terminal of its own, whose screen is read and whose keys are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from types import TracebackType
from typing import Self

_PROGRAM = """
{first}
from duewheel.cli.__main__ import run
run()
"""


class Terminal:
    """Runs the command line in a pseudo terminal; a context manager that ends it.

    Args:
        line: the command without its first word.
        more: further arguments, as they are.
        first: a statement of Python that the program runs first.
        columns: the width of the window.
    """

    def __init__(self, line: str, *more: str, first: str = "", columns: int = 120) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        own = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(first=first), *line.split(), *more],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**own, "TERM": "xterm-256color"},
            start_new_session=True,
            # So that Ctrl-C reaches it as a signal.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.screen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def read_until(self, words: str) -> str:
        """Return what was written since the last call, up to and with these words.

        Raises:
            EOFError: the command ended before.
        """
        while words not in self.screen:
            self._read()
        found, self.screen = self.screen.split(words, 1)
        return found + words

    def rest(self) -> str:
        """Return what is written until the command ends."""
        try:
            while True:
                self._read()
        except EOFError:
            return self.screen

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def _read(self) -> None:
        try:
            read = os.read(self._master, 65536)
        except OSError:
            # What Linux says when the last process has closed the other side.
            read = b""
        if not read:
            raise EOFError(self.screen)
        self.screen += read.decode("utf-8", "replace")
