"""Races against the release of a message: threads that strike about when it is due, while a wheel turns.

A runner sends a few messages that are due one after the other, and strikes at each about its instant. It
takes aim by what came of the last ones (:class:`Aim`).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.waiting import ask, until

from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.values.messages import Message, SendReceipt

TOPIC = "races"
RUNNERS = 4
_AT_ONCE = 25
#: How far a strike is moved by the outcome of the last one, in seconds. After so many outcomes alike, each
#: next one doubles it: a machine that is late by much more is aimed at soon all the same.
_STEP_SECONDS = 0.000_3
_ALIKE = 6
_DOUBLINGS = 8


class Aim:
    """How much earlier than its opponent the next strike begins, by what came of the last ones.

    In time, so strike later; too late, so strike earlier. About half of the strikes win, on a fast machine
    and on a busy one. A pause only makes a winner more likely: no verdict depends on it.
    """

    def __init__(self, lead_seconds: float = 0.0) -> None:
        self.lead_seconds = lead_seconds
        self._last: bool | None = None
        self._alike = 0

    def learn(self, in_time: bool) -> None:
        """Correct the aim by whether the last strike was in time."""
        self._alike = self._alike + 1 if in_time is self._last else 0
        self._last = in_time
        step = _STEP_SECONDS * 2 ** min(max(self._alike - _ALIKE, 0), _DOUBLINGS)
        self.lead_seconds += -step if in_time else step

    def pause_striker(self) -> None:
        """Before a strike that began too early."""
        time.sleep(max(0.0, -self.lead_seconds))

    def pause_opponent(self) -> None:
        """Before the other call, if strikes began too late."""
        time.sleep(max(0.0, self.lead_seconds))


#: Does the thing that races the release of a message; answers whether it was in time.
Strike = Callable[["SendReceipt", str], bool]


#: So many looks one after the other that find nothing say that there is nothing.
EMPTY_LOOKS = 5


@contextmanager
def consumed(broker: Broker) -> Iterator[list[Message]]:
    """What the topic delivers during the block, and afterwards until nothing is left; all of it is acked."""
    consumer = broker.consumer(TOPIC, "g")
    got: list[Message] = []
    stop = threading.Event()

    def consume() -> None:
        while not stop.is_set():
            batch = consumer.receive_until(1_000, timedelta(minutes=10), timedelta(seconds=1), stop)
            consumer.ack(batch)
            got.extend(batch)

    with ThreadPoolExecutor(1) as threads:
        consuming = threads.submit(consume)
        try:
            yield got
        finally:
            stop.set()
        consuming.result()
    got.extend(rest(broker, consumer))


def rest(broker: Broker, consumer: Consumer) -> list[Message]:
    """All that is delivered until nothing waits any more, acked."""
    got: list[Message] = []
    empty_looks = 0

    def is_empty() -> bool:
        nonlocal empty_looks
        batch = consumer.receive(1_000)
        consumer.ack(batch)
        got.extend(batch)
        is_nothing_there = (
            not batch
            and _is_all_released(broker)
            and not broker.doorbells([TOPIC], [consumer.group])[0].ready
        )
        empty_looks = empty_looks + 1 if is_nothing_there else 0
        # Retries are not among what waits, and the last one may be due after a look.
        return empty_looks == EMPTY_LOOKS

    until(is_empty, "everything to be delivered")
    return got


def _is_all_released(broker: Broker) -> bool:
    with broker.connection() as connection:
        return ask(connection, "select exists (select from duewheel.waiting)") == [(False,)]


def nothing(broker: Broker, receipt: SendReceipt, name: str) -> None:
    """Let a message wait as it was sent."""


def race(
    dsn: str,
    count: int,
    strike: Callable[[Broker], Strike],
    *,
    key: bool = False,
    before: Callable[[Broker, SendReceipt, str], object] = nothing,
) -> list[bool]:
    """Race ``count`` messages, by several runners with a broker each; whether each strike was in time.

    The bodies are unique; with ``key`` each message's key is its body. ``before`` happens to each message
    after it was sent, well before it is due.
    """
    each = count // RUNNERS

    def run(runner: int) -> list[bool]:
        chance = random.Random(runner)
        outcomes: list[bool] = []
        aim, spacing = Aim(0.001), 0.002
        head_start = 0.02 if before is nothing else 0.5
        with Broker(dsn) as broker:
            hit = strike(broker)
            while len(outcomes) < each:
                names = [f"{runner}-{len(outcomes) + n}" for n in range(min(_AT_ONCE, each - len(outcomes)))]
                start = time.time() + head_start + max(aim.lead_seconds, 0)
                dues = [start + n * spacing for n in range(len(names))]
                receipts = broker.send_many(
                    TOPIC,
                    [
                        {
                            "body": name,
                            "deliver_at": datetime.fromtimestamp(due, UTC),
                            "key": name if key else None,
                        }
                        for name, due in zip(names, dues, strict=True)
                    ],
                )
                for name, receipt in zip(names, receipts, strict=True):
                    before(broker, receipt, name)
                for name, due, receipt in zip(names, dues, receipts, strict=True):
                    strike_at = due - aim.lead_seconds + chance.uniform(-0.001, 0.001)
                    # The release gives no sign beforehand; where this wakes late, the aim corrects it.
                    time.sleep(max(0.0, strike_at - time.time()))
                    outcomes.append(hit(receipt, name))
                    aim.learn(outcomes[-1])
                # As close together as strikes can keep up with.
                behind = time.time() > dues[-1] + 0.005
                spacing = min(max(spacing * (1.2 if behind else 0.9), 0.000_5), 0.01)
        return outcomes

    with ThreadPoolExecutor(RUNNERS) as threads:
        running = [threads.submit(run, runner) for runner in range(RUNNERS)]
        return [outcome for future in running for outcome in future.result()]
