"""The live view: a few lines that change in place on a terminal, a new line for each change elsewhere.

Written to standard error, so that standard output holds only the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_SECONDS_BETWEEN_LINES = 2.0


@dataclass(frozen=True)
class View:
    """The visible state of a running demo.

    Attributes:
        doing: the present step, such as `DAG pay_orders: running`.
        placed: orders placed.
        paid: orders paid.
        waiting: timeout messages that are not due yet.
        due: timeout messages that are released and not handled yet.
        cancelled: orders cancelled.
    """

    doing: str
    placed: int = 0
    paid: int = 0
    waiting: int = 0
    due: int = 0
    cancelled: int = 0

    def numbers(self) -> dict[str, int]:
        """Return the counts by name, in the order of an order's life."""
        return {name: number for name, number in asdict(self).items() if name != "doing"}


class Progress:
    """Shows views and sentences with the seconds since it was made; a context manager.

    Args:
        console: the console to write to; standard error unless given.
        clock: gives the seconds that have passed since some moment; the monotonic clock unless given.
    """

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._started_at = clock()
        self._shown: View | None = None
        self._shown_at = float("-inf")
        self._live = Live(console=self._console, transient=True) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the changing lines; the sentences stay."""
        if self._live is not None:
            self._live.stop()

    def say(self, sentence: str) -> None:
        """Show a sentence that stays."""
        self._console.print(Text(f"{self._seconds()}  {sentence}"), soft_wrap=True)

    def show(self, view: View) -> None:
        """Show the present state."""
        if self._live is not None:
            self._live.update(Group(Text(f"{self._seconds()}  {view.doing}"), _table(view)))
            self._live.start()
        elif view != self._shown and self._clock() - self._shown_at >= _SECONDS_BETWEEN_LINES:
            self._shown, self._shown_at = view, self._clock()
            numbers = "  ".join(f"{name} {number:>5}" for name, number in view.numbers().items())
            self.say(f"{numbers}  {view.doing}")

    def _seconds(self) -> str:
        return f"{self._clock() - self._started_at:6.1f} s"


def _table(view: View) -> Table:
    table = Table(padding=(0, 2))
    for name in view.numbers():
        table.add_column(name, justify="right", min_width=6)
    table.add_row(*(str(number) for number in view.numbers().values()))
    return table
