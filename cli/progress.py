"""A progress bar for actions that take longer than 2 s, on standard error if that is a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from duewheel.cli.consoles import console

#: A shorter action is not worth a line that appears and disappears.
AFTER_SECONDS = 2.0


@contextmanager
def progress(
    doing: str, total: int | None = None, *, output: Console | None = None, counts: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; it disappears at the end.

    Args:
        doing: name of the action, such as `Sending`.
        total: how many things there are; None if that is not known beforehand.
        output: the console to draw on; standard error unless given.
        counts: whether the block reports how many things are done.

    Yields:
        A function to call with the number of things done since the last call.
    """
    output = output or console(stderr=True)
    if not output.is_terminal:
        yield lambda _: None
        return
    numbers = [MofNCompleteColumn()] if counts else []
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *numbers,
        TimeElapsedColumn(),
        console=output,
        transient=True,
        refresh_per_second=4,
    )
    task = bar.add_task(doing, total=total)
    timer = threading.Timer(AFTER_SECONDS, bar.start)
    timer.start()
    try:
        yield lambda number: bar.advance(task, number)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
