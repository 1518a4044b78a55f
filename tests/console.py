"""Commands of a page, run on a terminal as a reader types them; what they print has to be as the page says.

A block ``console`` holds commands after ``$ `` and, below each, its output. ``...`` in an output stands for
any text, and whitespace may differ. Instants are all alike. A message id of the page is the reader's own from
its first appearance in an output on. Standard error, where progress is shown, is not compared.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from tests.pages import examples
from tests.waiting import PATIENCE_SECONDS

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
MESSAGE_ID = re.compile(r"\b[0-9a-f]{44}\b")
#: Colours and the like.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Command:
    """A command, and what the page says that it prints."""

    line: str
    output: str


def commands(text: str) -> list[Command]:
    """Return the commands of all blocks of a text, in order."""
    blocks = "".join(examples(text, "console"))
    parts = re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", blocks, re.MULTILINE)
    return [Command(line, output) for line, output in parts]


def blocks(text: str) -> list[str]:
    """The blocks of a text, in order, each as a text of its own."""
    return [f"```console\n{block}```\n" for block in examples(text, "console")]


def section(page: str, title: str) -> str:
    """Return what stands below a heading, up to the next one of any level."""
    (text,) = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL)
    return str(text)


def is_said(page: str, printed: str) -> bool:
    """Whether an output is as the page says, where ``...`` stands for anything."""
    pieces = " ".join(page.split()).split("...")
    pattern = ".*".join(re.escape(piece.strip()) for piece in pieces)
    return re.fullmatch(pattern, " ".join(printed.split())) is not None


@dataclass
class Shell:
    """A reader's shell, which finds this Python's programs; an export in it counts for the commands after it.

    Args:
        environment: the variables that are set at first.
    """

    environment: dict[str, str]
    _ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self.environment = {**self.environment, "PATH": path, "TERM": "xterm", "COLUMNS": "100"}

    def run_all(self, text: str, replacing: Mapping[str, str] | None = None) -> None:
        """Run the commands of a text, each of which has to print what the text says.

        Args:
            text: a page or a part of it.
            replacing: what stands in the page, and what this machine has instead.
        """
        found = commands(text)
        assert found, "the text has no block `console`"
        for command in found:
            line = command.line
            for stands, here in {**self._ids, **(replacing or {})}.items():
                line = line.replace(stands, here)
            if line.startswith("export "):
                name, _, value = shlex.split(line)[1].partition("=")
                self.environment[name] = value
            else:
                self.compare(command, self.run(line))

    def run(self, line: str) -> str:
        """Return what a command prints on a terminal, without colours."""
        reading, writing = pty.openpty()
        with os.fdopen(reading, "rb", buffering=0) as screen, TemporaryFile() as errors:
            process = subprocess.Popen(
                ["bash", "-c", line],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=errors,
            )
            os.close(writing)
            printed = bytearray()
            # So Linux says that the terminal's other side is closed.
            with suppress(OSError):
                while piece := screen.read(65_536):
                    printed += piece
            process.wait(timeout=PATIENCE_SECONDS)
            errors.seek(0)
            # Seen where the test fails.
            sys.stderr.write(errors.read().decode())
        return CONTROL.sub("", printed.decode()).replace("\r", "")

    def compare(self, command: Command, printed: str) -> None:
        """Fail unless the output is as the page says; remember the ids that stand for the page's."""
        stands, here = MESSAGE_ID.findall(command.output), MESSAGE_ID.findall(printed)
        self._ids |= dict(zip(stands, here, strict=False))
        wanted, got = (MESSAGE_ID.sub("ID", INSTANT.sub("NOW", text)) for text in (command.output, printed))
        assert is_said(wanted, got), (
            f"$ {command.line}\nprints\n{printed}\nand not, as the page says,\n{wanted}"
        )
