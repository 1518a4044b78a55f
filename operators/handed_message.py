"""The message that a function gets with ``one_by_one``, with answers other than returning and raising.

A function that returns has done its work, and a function that raises has failed. These answers are for
other cases: a message that needs no work any more, or that no retry would help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duewheel.store.values.bodies import check_text
from duewheel.store.values.instants import to_span
from duewheel.store.values.messages import Message

if TYPE_CHECKING:
    from datetime import timedelta


class HandedMessage(Message):
    """One message, handed to the function of a task.

    Attributes:
        answer: the answer that the function has chosen, as the name of a method of ``Consumer``; "ack" unless
            it chooses.
        reason: the reason given with it.
        delay: the delay given with :meth:`retry`.
    """

    __slots__ = ("answer", "delay", "reason")

    def __init__(self, message: Message) -> None:
        super().__init__(message._row, message._lease, message._topic)
        self.answer = "ack"
        self.reason: str | None = None
        self.delay: timedelta | None = None

    def skip(self, reason: str | None = None) -> None:
        """Finish the message on purpose: it is acked, and its history shows ``Skipped`` and the reason.

        Counts when the function returns. ``AirflowSkipException`` does the same.

        Args:
            reason: to be read in the message's history.

        Raises:
            InvalidArgument: the reason is not text.

        Example::

            if is_paid(message.key):
                return message.skip("the order is paid")
        """
        self._choose("skip", reason)

    def retry(self, delay: timedelta | None = None, reason: str | None = None) -> None:
        """Have the message delivered again, without failing the task.

        Counts when the function returns. It uses up an attempt: after the last retry of its group the message
        is a dead letter.

        Args:
            delay: when it is delivered again, counted from now; None is the group's interval.
            reason: kept with the retry, to be read in the message's history.

        Raises:
            InvalidArgument: the delay is not a span of time, or the reason is not text.

        Example::

            if response.status_code == 429:
                return message.retry(timedelta(seconds=int(response.headers["Retry-After"])), "busy")
        """
        self._choose("nack", reason)
        self.delay = None if delay is None else to_span(delay)

    def dead_letter(self, reason: str | None = None) -> None:
        """Make the message a dead letter at once, however many retries its group has left.

        Counts when the function returns. ``AirflowFailException`` does the same and fails the task, too.

        Args:
            reason: kept with the dead letter.

        Raises:
            InvalidArgument: the reason is not text.

        Example::

            if message.key not in orders:
                return message.dead_letter("no such order")
        """
        self._choose("dead_letter", reason)

    def _choose(self, answer: str, reason: str | None) -> None:
        check_text(reason, "reason", optional=True)
        self.answer, self.reason, self.delay = answer, reason, None
