"""Where rich writes to: a terminal only if the stream is one, whatever FORCE_COLOR says."""

from __future__ import annotations

import sys

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """Return a console on standard output or standard error; NO_COLOR takes its colours away."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, force_terminal=stream.isatty())
