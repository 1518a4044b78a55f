"""Waiting for something to be logged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import PATIENCE_SECONDS


class Logged(logging.Handler):
    """Says when words were logged.

    Args:
        words: what the message has to contain.

    Attributes:
        count: how often.
    """

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self._heard = threading.Event()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Listen to one message."""
        if self._words in self.format(record):
            self.count += 1
            self._heard.set()

    def wait(self) -> None:
        """Return once the words were logged."""
        assert self._heard.wait(PATIENCE_SECONDS), f"{self._words!r} was not logged"


@contextmanager
def logged(logger_name: str, words: str) -> Iterator[Logged]:
    """Listen to a logger, at level INFO and above, until the block is left."""
    logger = logging.getLogger(logger_name)
    handler, level = Logged(words), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
