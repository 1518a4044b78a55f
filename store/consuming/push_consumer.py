"""Push consuming: a listener is called with each message and returns whether its work succeeded.

One thread receives and hands each message to a free worker thread. So a leased message never waits for
another one, and a poison message stops no other. A worker answers each message after the listener has
returned; messages that are done during an ack share the next one. On a FIFO topic a worker gets all received
messages of one message group and calls the listener with one after the other. When one fails, the rest are
dropped and are delivered again after it. A keeper thread extends the leases of messages that are being
worked on, and takes a message from a listener that needs too long.

After a crash the leases end and the unanswered messages are delivered again. An orderly stop receives no new
message and gives leased messages a bounded time to finish.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from duewheel.store.consuming.consumer import LONGEST_PAUSE_SECONDS, Consumer
from duewheel.store.consuming.joint_acks import JointAcks
from duewheel.store.consuming.lease_states import lost_error
from duewheel.store.consuming.signals import Stop
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import (
    DueWheelError,
    InvalidArgument,
    LeaseLost,
    UnknownGroup,
    UnknownTopic,
)
from duewheel.store.values.instants import said_span, to_span
from duewheel.store.values.limits import LONGEST_WAIT
from duewheel.store.values.messages import Batch, Message
from duewheel.store.values.numbers import whole_number
from duewheel.store.values.reasons import as_reason

log = logging.getLogger(__name__)


class ConsumeResult(StrEnum):
    """The answer of a listener."""

    SUCCESS = "success"
    """The work is done: the message is acked."""
    RECONSUME_LATER = "reconsume_later"
    """The work failed: the message is retried after the group's retry interval."""


#: The function that a push consumer calls with each message. Any result but success, and every exception, is
#: a failure.
Listener = Callable[[Message], ConsumeResult | str | None]

_FIRST_PAUSE_SECONDS = 0.5
_LAST_PAUSE_SECONDS = 30.0
#: What to do about a topic, or a group, that was deleted.
_GONE: dict[type[DueWheelError], str] = {
    UnknownTopic: (
        "topic %s was deleted: create it again, or stop this push consumer; group %s tries to subscribe "
        "again in %.1f s"
    ),
    UnknownGroup: (
        "topic %s is no longer read by group %s, which was deleted: make the group again with another "
        "consumer, or stop this push consumer; it looks for the group again in %.1f s"
    ),
}
# Two extensions may fail before a lease ends.
_EXTENSIONS_PER_LEASE = 3


@dataclass(slots=True, eq=False)
class _Work:
    """A message in the hands of a worker."""

    message: Message
    lane: list[_Work]
    """All messages of the same worker, this one among them, in order."""
    give_up_at: float = float("inf")
    """The instant after which it has taken too long, in monotonic seconds."""
    given_up: bool = False


class PushConsumer:
    """Calls a listener with each message; made by :meth:`duewheel.store.broker.Broker.push_consumer`.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    Attributes:
        consumer: the consumer that receives and answers.
    """

    def __init__(
        self,
        consumer: Consumer,
        listener: Listener,
        *,
        threads: int,
        invisible: timedelta,
        consume_timeout: timedelta,
    ) -> None:
        whole_number(threads, "threads", 256)
        self.consumer = consumer
        self._acks = JointAcks(consumer)
        self._listener = listener
        self._invisible = to_span(invisible, "invisible")
        self._timeout = to_span(consume_timeout, "consume_timeout")
        self._threads = threads
        self._free = threading.Semaphore(threads)
        self._work: SimpleQueue[list[_Work] | None] = SimpleQueue()
        self._stopping = Stop()
        self._changed = threading.Condition()
        self._in_hand: set[_Work] = set()
        self._dismissed = False
        self._receiver: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to receive and to call the listener; once for each object."""
        if self._receiver is not None:
            raise InvalidArgument("this push consumer was started before: make another one")
        self._receiver = self._begin("receiver", self._receive)
        self._begin("keeper", self._keep)
        for _ in range(self._threads):
            self._begin("worker", self._serve)
        return self

    def stop(self, timeout: timedelta = timedelta(seconds=30)) -> bool:
        """Receive no new messages and wait for the leased ones; may be called again.

        Args:
            timeout: how long to wait. A message that is not done by then is left to its thread; its lease is
                no longer extended, and the message is delivered again when the lease ends.

        Returns:
            Whether all leased messages were done and answered.
        """
        until = time.monotonic() + timeout.total_seconds()
        self._stopping.set()
        if self._receiver is not None:
            self._receiver.join(max(0.0, until - time.monotonic()))
        with self._changed:
            done = self._changed.wait_for(lambda: not self._in_hand, max(0.0, until - time.monotonic()))
            if not done:
                log.warning("stopped with %d leased messages, which are delivered again", len(self._in_hand))
                self._in_hand.clear()
            self._dismissed = True
            self._changed.notify_all()
        for _ in range(self._threads):
            self._work.put(None)
        return done

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self, duty: str, target: Callable[[], None]) -> threading.Thread:
        name = f"duewheel-{self.consumer.group}-{duty}"
        # A listener that never returns must not keep the process from ending.
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _receive(self) -> None:
        pauses = Backoff(_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS)
        gone: type[DueWheelError] | None = None
        while not self._stopping.is_set():
            free = self._take_free()
            taken = 0
            try:
                if gone is not None:
                    self._subscribe_again(gone)
                    gone = None
                if free:
                    batch = self.consumer.receive_until(free, self._invisible, LONGEST_WAIT, self._stopping)
                    lanes = self._lanes(batch)
                    taken = len(lanes)
                    self._hand_out(lanes)
                    pauses.reset()
            except (UnknownTopic, UnknownGroup) as error:
                gone = type(error)
                pause_seconds = pauses.next_seconds()
                log.warning(_GONE[gone], self.consumer.topic, self.consumer.group, pause_seconds)
                self._stopping.wait(pause_seconds)
            except Exception:
                pause_seconds = pauses.next_seconds()
                log.exception("receiving failed; next attempt in %.1f s", pause_seconds)
                self._stopping.wait(pause_seconds)
            finally:
                if free > taken:
                    self._free.release(free - taken)

    def _subscribe_again(self, gone: type[DueWheelError]) -> None:
        """Subscribe to a topic that was created again. Making the group again would undo its deletion."""
        if gone is UnknownGroup and not self.consumer.is_subscribed():
            raise UnknownGroup(f"group {self.consumer.group} was deleted")
        self.consumer.subscribe()

    def _take_free(self) -> int:
        """Take all free workers and return how many; waits up to a second for the first."""
        free = 0
        while self._free.acquire(timeout=0.0 if free else 1.0):
            free += 1
        return free

    def _lanes(self, batch: Batch) -> list[list[_Work]]:
        """The messages for each worker: one, or on a FIFO topic all received messages of a message group."""
        lanes: dict[object, list[_Work]] = {}
        for place, message in enumerate(batch):
            lane = lanes.setdefault(message.message_group if self.consumer.is_fifo else place, [])
            lane.append(_Work(message, lane))
        return list(lanes.values())

    def _hand_out(self, lanes: list[list[_Work]]) -> None:
        with self._changed:
            if self._dismissed:
                # Received while stopping, with no worker left to extend their leases.
                if lanes:
                    log.warning(
                        "stopped with %d messages just received, which are delivered again",
                        sum(map(len, lanes)),
                    )
                return
            for lane in lanes:
                lane[0].give_up_at = time.monotonic() + self._timeout.total_seconds()
                self._in_hand.update(lane)
            self._changed.notify_all()
        for lane in lanes:
            self._work.put(lane)

    def _serve(self) -> None:
        while (lane := self._work.get()) is not None:
            for work in lane:
                with self._changed:
                    if not work.given_up and work not in self._in_hand:
                        # Stopped in the meantime.
                        break
                    if work is not lane[0]:
                        work.give_up_at = time.monotonic() + self._timeout.total_seconds()
                        self._changed.notify_all()
                reason = None if work.given_up else self._failure(work.message)
                with self._changed:
                    if work.given_up:
                        # Another worker took its place.
                        log.warning("the listener returned too late with %r", work.message)
                        return
                    work.give_up_at = float("inf")
                if not self._answer(work.message, reason) or reason is not None:
                    break
                with self._changed:
                    self._in_hand.discard(work)
                    self._changed.notify_all()
            with self._changed:
                self._in_hand.difference_update(lane)
                self._changed.notify_all()
            self._free.release()

    def _failure(self, message: Message) -> str | None:
        """Call the listener; return why it failed, or None for success."""
        try:
            result = self._listener(message)
            return None if result == ConsumeResult.SUCCESS else f"the listener returned {result!r}"
        except BaseException as error:
            # The thread is one of the consumer's workers: not even SystemExit may end it.
            log.warning("the listener failed on %r", message, exc_info=True)
            return as_reason(error)

    def _answer(self, message: Message, reason: str | None) -> bool:
        """Ack or nack; return whether the broker accepted that."""
        try:
            if reason is None:
                self._acks.ack(message)
            else:
                self.consumer.nack(message, reason=reason)
        except LeaseLost as error:
            log.warning("%r is delivered again, its answer was too late: %s", message, error)
            return False
        except Exception:
            log.exception("%r is delivered again, its answer failed", message)
            return False
        return True

    def _keep(self) -> None:
        """Extend the leases of messages being worked on, and give up those that take too long, until all are
        done."""
        extend_seconds = self._invisible.total_seconds() / _EXTENSIONS_PER_LEASE
        extend_at = time.monotonic() + extend_seconds
        while True:
            with self._changed:
                if self._stopping.is_set() and not self._in_hand and not self._is_receiving():
                    return
                now = time.monotonic()
                next_at = min([extend_at, *(work.give_up_at for work in self._in_hand)])
                if next_at > now:
                    self._changed.wait(min(next_at - now, LONGEST_PAUSE_SECONDS))
                    continue
                late = [work for work in self._in_hand if work.give_up_at <= now]
                for work in late:
                    work.given_up = True
                    self._in_hand.difference_update(work.lane)
                kept = [work.message for work in self._in_hand]
                self._changed.notify_all()
            for work in late:
                self._begin("worker", self._serve)
                self._answer(work.message, f"the listener did not return within {said_span(self._timeout)}")
                self._free.release()
            if extend_at <= now:
                extend_at = now + extend_seconds
                self._extend(kept)

    def _is_receiving(self) -> bool:
        return self._receiver is not None and self._receiver.is_alive()

    def _extend(self, messages: list[Message]) -> None:
        try:
            states = self.consumer.answer_held("extend", messages, invisible=self._invisible)
        except Exception:
            log.exception("the leases could not be extended")
            return
        lost = lost_error(states)
        if lost is not None:
            log.warning("%s", lost)
