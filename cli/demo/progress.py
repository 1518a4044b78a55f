"""The demo's lines on standard error, each with the seconds since its start."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.text import Text

from duewheel.cli.consoles import console

_SECONDS_BETWEEN_LINES = 2.0


class Progress:
    """Shows sentences, and the state of the demo: on a terminal in one line that changes, elsewhere in a new
    line for each change."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._started_at = time.monotonic()
        self._shown = ""
        self._shown_at = float("-inf")
        self._status = self._console.status("")

    def say(self, sentence: str) -> None:
        """Show a sentence that stays."""
        self._console.print(Text(f"{self._seconds()}  {sentence}"), soft_wrap=True)

    def show(self, numbers: Mapping[str, int], doing: str) -> None:
        """Show how many orders and messages are in each state, and the present step."""
        counts = "  ".join(f"{name} {number:>5}" for name, number in numbers.items())
        state = f"{counts}  {doing}"
        if self._console.is_terminal:
            self._status.update(Text(f"{self._seconds()}  {state}"))
            self._status.start()
        elif state != self._shown and time.monotonic() - self._shown_at >= _SECONDS_BETWEEN_LINES:
            self._shown, self._shown_at = state, time.monotonic()
            self.say(state)

    def stop(self) -> None:
        """Remove the line that changes; the sentences stay."""
        self._status.stop()

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._started_at:6.1f} s"
