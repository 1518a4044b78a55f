"""Consuming by asking: receive under a lease, do the work, then answer.

A receive is one round trip. If no message is ready and time is given, the consumer sleeps. It wakes when a
tick notifies it of a release on its topic, at the next due instant that it knows, or after one second,
whichever is first. So it is punctual without a wheel, and a lost notification costs a second and no message.
While a wheel turns, the consumer leaves releasing to it, and polls only when something is overdue.

A release wakes one waiting consumer of each group and broker, and a consumer whose batch is full wakes the
next. Brokers of several programs compete, so a consumer that found no messages after the last releases lets
the others go first. It polls after a random pause, which grows each time that it finds nothing.

A consumer may be used by many threads at once.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from duewheel.store.consuming.answering import ACK, Answered, Answering, ack_parameters
from duewheel.store.consuming.signals import Signal, Signals, Stop
from duewheel.store.consuming.subscription import batch_of
from duewheel.store.consuming.ticking import tick_group
from duewheel.store.database.connections import Database, Rows
from duewheel.store.database.prepared import Prepared
from duewheel.store.values.backoff import Backoff, Restraint
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import said_span, to_span
from duewheel.store.values.leases import Lease
from duewheel.store.values.limits import LONGEST_WAIT, MOST_RECEIVED
from duewheel.store.values.messages import ROW_COLUMNS, Batch
from duewheel.store.values.numbers import whole_number

#: The longest time, in seconds, between two polls of a waiting consumer.
LONGEST_PAUSE_SECONDS = 1.0
# Pauses while another consumer is taking the ready messages: they double from the first to the second.
_FIRST_PAUSE_SECONDS = 0.001
_LAST_PAUSE_SECONDS = 1.0

# A wheel that was heard, or seen to be connected, within this time is assumed to turn. The consumer itself
# releases messages that the wheel has not released shortly after their instant.
_WHEEL_SECONDS = 1.0
_GRACE_SECONDS = 0.05

# The longest random pause of a consumer that was woken in vain, before its next poll: doubling from the first
# to the last. Releases further apart than the last need no pause.
_FIRST_RESTRAINT_SECONDS = 0.004
_LAST_RESTRAINT_SECONDS = 0.064

# While batches are full, a consumer turns to another queue after this time. If no wheel turns, it then also
# releases due messages.
_TURN_SECONDS = 0.1

# From so many messages on, the copy that Postgres makes of a prepared statement's result costs more than
# preparing saves.
_MANY = 200

# Instants stay microseconds and JSON stays text until they are read: converting them by psycopg2 costs
# more than reading the row. date_part is exact to the microsecond until the year 2255.
_AS = {
    "properties": "properties::text",
    "lease": "case when attempt is null then concat_ws(' ', (lease).topic_id, (lease).queue, (lease).n, "
    "(lease).token, (date_part('epoch', (lease).expires_at) * 1000000)::bigint, (lease).message_count) end",
    **{
        name: f"(date_part('epoch', {name}) * 1000000)::bigint"
        for name in ("deliver_at", "born_at", "asked_at")
    },
}
#: The columns of `duewheel.leased_message`, in the order of `ROW_COLUMNS`.
RECEIVED_COLUMNS = ", ".join(_AS.get(name, name) for name in ROW_COLUMNS)
# The SQL function receive_few takes this many messages at most.
_FEW = 32


_RECEIVE = Prepared(
    "duewheel_receive_batch",
    f"""
select {RECEIVED_COLUMNS}
from duewheel.receive_batch(%s, %s, %s, %s, %s, %s, false, %s, %s)
""",
)

# Adds 0. The dependency makes Postgres evaluate the answer before the receive.
_ACK_AND_RECEIVE = Prepared(
    "duewheel_ack_and_receive_batch",
    f"""
select {RECEIVED_COLUMNS}
from (
    select cardinality({ACK}) as nothing, %s::boolean as is_durable
    offset 0
) acked
cross join lateral duewheel.receive_batch(
    %s, %s, %s + acked.nothing, %s, %s, %s, acked.is_durable, %s, %s)
""",
)

# For a consumer that stays in its queue. It acks one whole lease, the usual one. The server reads each
# parameter at each call, so a parameter that this client never changes is a constant.
_RECEIVE_FEW = Prepared(
    "duewheel_receive_few",
    f"""
select {RECEIVED_COLUMNS}
from duewheel.receive_few(%s, %s, %s, %s, %s, %s, false, null, true)
""",
)
_ACK_AND_RECEIVE_FEW = Prepared(
    "duewheel_ack_and_receive_few",
    f"""
select {RECEIVED_COLUMNS}
from duewheel.receive_few(%s, %s, %s, %s, %s, %s, %s, null, true, %s, %s, %s, %s)
""",
)

_OUTLOOK = """
select extract(epoch from duewheel.next_due(%s, %s, n.now)
        - coalesce(n.now, pg_catalog.clock_timestamp()))::float8,
    n.now is null and duewheel.is_turning()
from (select %s::timestamptz) n (now)
"""


def without_cut(rows: Rows) -> tuple[Rows, bool]:
    """The rows of a receive, and whether it stopped after a portion of passed messages, before the end:
    then it has a last row with a lease that is null."""
    is_cut = bool(rows) and not rows[-1][-1]
    return (rows[:-1], True) if is_cut else (rows, False)


class Consumer(Answering):
    """Reads a topic for a consumer group; made by :meth:`duewheel.store.broker.Broker.consumer`.

    Its attributes are those of :class:`~duewheel.store.consuming.subscription.Subscription`.
    """

    def __init__(
        self, database: Database, signals: Signals, topic: str, group: str, **subscription: Any
    ) -> None:
        super().__init__(database, topic, group, **subscription)
        self._signals = signals
        # Consumers start with different queues, and each continues with the next queue.
        self._turn_at = 0.0
        self._wheel_at = float("-inf")
        self._wheel_asked_at = float("-inf")
        self._restraint = Restraint(_FIRST_RESTRAINT_SECONDS, _LAST_RESTRAINT_SECONDS)
        self._next_source: Iterator[int] = itertools.count(int.from_bytes(os.urandom(1), "big"))
        self._first_source = next(self._next_source) % 64

    def receive(
        self,
        max_messages: int = 32,
        invisible: timedelta = timedelta(seconds=60),
        wait: timedelta = timedelta(0),
        *,
        acked: Answered = (),
    ) -> Batch:
        """Lease ready messages for the invisible duration.

        Args:
            max_messages: at most so many, 1 to 10 000.
            invisible: the length of the lease, 1 s to 12 h; messages that are not answered by then are
                delivered again.
            wait: how long to wait for the first message if none is ready (long poll), up to 30 s.
            acked: messages to :meth:`ack` first, in the same round trip and with the same commit: usually the
                previous batch.

        Returns:
            The messages, ordered by delivery instant within each queue; empty if none is ready.

        Raises:
            InvalidArgument: a number or a duration out of range.
            BrokerUnreachable: the connection broke; receive again. Leased messages are delivered again.
                An ack may be repeated.
            LeaseLost: a lease of ``acked`` had ended or was answered before; nothing is acked, and nothing
                received.

        Example::

            batch: Batch | tuple[()] = ()
            while not stopped:
                batch = consumer.receive(100, wait=timedelta(seconds=20), acked=batch)
                for message in batch:
                    handle(message.body)
            consumer.ack(batch)
        """
        return self.receive_until(max_messages, invisible, wait, None, acked)

    def receive_until(
        self,
        max_messages: int,
        invisible: timedelta,
        wait: timedelta,
        stop: threading.Event | None,
        acked: Answered = (),
    ) -> Batch:
        """As :meth:`receive`, but gives up within a second once ``stop`` is set (at once if it is a
        :class:`Stop`), and then leases nothing more."""
        wait = to_span(wait, "wait")
        if not timedelta(0) <= wait <= LONGEST_WAIT:
            raise InvalidArgument(
                f"wait must be 0 s to {said_span(LONGEST_WAIT)}; got {said_span(wait)}: "
                "receive again to wait longer"
            )
        whole_number(max_messages, "max_messages", MOST_RECEIVED, "receive again for more")
        invisible = to_span(invisible, "invisible")
        leases = self._own_leases(acked)
        if stop is not None and stop.is_set():
            self._say(self._answer_of("ack", leases))
            return batch_of(self, [])
        looked_at = time.monotonic()
        rows = self._leased(max_messages, invisible, leases, tick=not self._is_turning())
        if wait and not rows:
            key = (self.topic_id, self.group_id)
            with (
                self._signals.lend(self.name, key, looked_at=looked_at) as signal,
                stop.ends(signal) if isinstance(stop, Stop) else nullcontext(),
            ):
                until = looked_at + wait.total_seconds()
                rows = self._await_rows(max_messages, invisible, until, stop or threading.Event(), signal)
        if rows:
            self._restraint.reset()
            if wait and len(rows) > max_messages:
                self._signals.pass_on(self.topic_id, self.group_id)
        return batch_of(self, rows)

    def _is_turning(self) -> bool:
        """Whether a wheel was seen a moment ago."""
        wheel_at = max(self._wheel_at, self._signals.wheel_at(self.topic_id))
        return time.monotonic() < wheel_at + _WHEEL_SECONDS and self._database.now() is None

    def _leased(self, max_messages: int, invisible: timedelta, acked: list[Lease], *, tick: bool) -> Rows:
        now = self._database.now()
        looked_at = time.monotonic()
        stays = now is None and looked_at < self._turn_at
        is_turn = now is None and self._turn_at > 0 and not stays
        rests = tick and (stays or (is_turn and self._is_left_to_wheel(looked_at)))
        tick = tick and not rests
        if tick:
            tick_group(self._database, self.group_id, self.topic_id)
        place = (
            self.group_id,
            self.topic_id,
            max_messages,
            invisible,
            self.name,
            self._first_source,
        )
        parameters = (*place, now, not tick)
        few = stays and max_messages <= _FEW
        if few and not acked:
            rows = self._database.rows(_RECEIVE_FEW, place)
        elif few and len(acked) == 1 and acked[0].seqs is None:
            lease = (*acked[0].place, acked[0].token)
            rows = self._database.rows(_ACK_AND_RECEIVE_FEW, (*place, self.durable_acks, *lease))
        else:
            answer = self._answer_of("ack", acked)
            prepared = _RECEIVE if answer is None else _ACK_AND_RECEIVE
            acks = () if answer is None else (*ack_parameters(answer), self.durable_acks)
            statement = prepared if max_messages < _MANY else prepared.text
            rows = self._database.rows(statement, (*acks, *parameters))
        rows, is_cut = without_cut(rows)
        while is_cut and not rows:
            rows, is_cut = without_cut(self._database.rows(_RECEIVE, parameters))
        # A full batch means that its queue, which no other consumer was reading, probably has more. So this
        # consumer stays there. It changes queues by time, not when the queue is empty, so that due messages
        # of the other queues are not kept waiting.
        full = len(rows) > max_messages
        if full and stays:
            topic_id, queue, *_ = map(int, rows[-1][-1].split())
            self._first_source = queue + 1 if topic_id == self.topic_id else 0
        else:
            self._first_source = next(self._next_source) % 64
            self._turn_at = looked_at + _TURN_SECONDS if full else 0.0
        if rests and not rows:
            # The batches are not full any more: due messages of the other queues are released at once.
            return self._leased(max_messages, invisible, [], tick=True)
        return rows

    def _await_rows(
        self, max_messages: int, invisible: timedelta, until: float, stop: threading.Event, signal: Signal
    ) -> Rows:
        """Poll after each release and when a message is due; empty when the time is over."""
        crowded = Backoff(_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS)
        while (left := until - time.monotonic()) > 0 and not stop.is_set():
            pause = min(left, LONGEST_PAUSE_SECONDS)
            leaves_ticking = True
            # The wheel tells when to poll; a query for the next instant would cost more than the poll.
            woken = self._is_turning() and signal.wait(min(pause, _GRACE_SECONDS))
            if not woken and not stop.is_set():
                to_next = self._seconds_to_next()
                if to_next is None:
                    crowded.reset()
                elif to_next > 0:
                    crowded.reset()
                    leaves_ticking = False
                    pause = min(pause, to_next + (_GRACE_SECONDS if self._is_turning() else 0.0))
                elif self._is_turning():
                    leaves_ticking = to_next > -_GRACE_SECONDS
                    pause = min(pause, max(self._restraint.pause_seconds(), crowded.next_seconds()))
                else:
                    pause = min(pause, crowded.next_seconds())
                woken = signal.wait(pause)
            if woken:
                leaves_ticking = True
                # A consumer that found nothing lets the others go first: 64 ms at most.
                time.sleep(min(self._restraint.pause_seconds(), left))
            if stop.is_set():
                break
            signal.catch_up()
            tick = not (leaves_ticking and self._is_turning())
            rows = self._leased(max_messages, invisible, [], tick=tick)
            if rows:
                return rows
        return []

    def _is_left_to_wheel(self, asked_at: float) -> bool:
        """Whether a wheel that this consumer does not hear releases due messages; asks once a second."""
        if asked_at < self._wheel_asked_at + _WHEEL_SECONDS:
            return False
        self._wheel_asked_at = asked_at
        ((is_turning,),) = self._database.read("select duewheel.is_turning()", ())
        if is_turning:
            self._wheel_at = asked_at
        return bool(is_turning)

    def _seconds_to_next(self) -> float | None:
        asked_at = time.monotonic()
        to_next: float | None
        to_next, is_turning = self._database.read(
            _OUTLOOK, (self.group_id, self.topic_id, self._database.now())
        )[0]
        self._wheel_at = max(self._wheel_at, asked_at) if is_turning else float("-inf")
        return to_next
