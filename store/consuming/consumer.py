"""Consuming by asking: receive under a lease, do the work, then answer.

A receive is one round trip. Where no message is ready and time is given, the consumer sleeps. It wakes when a
tick says that its topic released something, at the instant at which it knows that a message becomes due, or
after one second, whichever is first. So it is punctual without a wheel, and a lost notification costs a
second and no message. Where a wheel turns, the consumer leaves releasing to it, and looks for itself only
when something is overdue.

A release wakes one waiting consumer of each group and broker, and one whose batch is full wakes the next. So
brokers of many programs compete: a consumer that came too late for the messages of the last releases lets the
others go first. It asks after a random pause, which grows as long as it comes in vain.

A lease covers many messages and is answered with one row when all of them are answered alike. An answer after
the lease ended is refused. A consumer may be used by many threads at once.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from duewheel.store.consuming.filtering import check_filters
from duewheel.store.consuming.lease_states import LeaseState
from duewheel.store.consuming.signals import Signal, Signals, Stop
from duewheel.store.consuming.ticking import tick_group
from duewheel.store.database.connections import Database, Rows, driver_connection
from duewheel.store.database.prepared import Prepared
from duewheel.store.values import leases as lease_handles
from duewheel.store.values import tags as tag_expressions
from duewheel.store.values.backoff import Backoff, Restraint
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import Instant, said_span, to_datetime, to_span
from duewheel.store.values.leases import Lease
from duewheel.store.values.limits import LONGEST_WAIT, MOST_RECEIVED
from duewheel.store.values.messages import ROW_COLUMNS, Batch, ConsumeMode, Message, leases_of, named
from duewheel.store.values.numbers import whole_number
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    from duewheel.store.database.connections import CallerConnection
    from duewheel.store.values.retry_policy import RetryPolicy

log = logging.getLogger(__name__)

#: The argument of the answers: messages or leases, one or several, or a whole batch.
Answered = Message | Lease | Iterable[Message | Lease]

# The parameters of ``_ANSWER``, the action first.
_Answer = tuple[Any, ...]

#: The longest time, in seconds, that a waiting consumer goes without asking.
LONGEST_PAUSE_SECONDS = 1.0
# Pauses while another consumer is taking the ready messages: they double from the first to the second.
_FIRST_PAUSE_SECONDS = 0.001
_LAST_PAUSE_SECONDS = 1.0

# A wheel that was heard, or seen to be connected, so short ago is taken to be turning still. The consumer
# itself releases messages that the wheel has not released a moment after their instant.
_WHEEL_SECONDS = 1.0
_GRACE_SECONDS = 0.05

# The longest random pause of a consumer before it asks again after it was woken in vain: doubling from the
# first to the last. Releases further apart than the last need no pause.
_FIRST_RESTRAINT_SECONDS = 0.004
_LAST_RESTRAINT_SECONDS = 0.064

# While batches come back full, a consumer turns to another queue so often, and where no wheel turns, itself
# releases due messages then.
_TURN_SECONDS = 0.1

# An extension waits for its answer for half of its duration, but for no less than this.
_SHORTEST_EXTENSION_SECONDS = 1.0

# From so many messages on, the copy that Postgres makes of a prepared statement's result costs more than
# preparing saves.
_MANY = 200

_SUBSCRIBE = "select group_id, topic_id, made from duewheel.subscribe(%s, %s, %s, %s, %s, %s, %s)"

_SET_RETRY_POLICY = """
select changed, old_max_retries,
    array(select (extract(epoch from i) * 1000000)::bigint
          from unnest(old_intervals) with ordinality w (i, place) order by place),
    old_jitter, old_set_by, old_set_at
from duewheel.set_retry_policy(%s, %s, %s, %s::interval[], %s, %s, %s, %s)
"""

# Instants come as microseconds and JSON as text until they are looked at: converting them by psycopg2 costs
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
_RECEIVE = Prepared(
    "duewheel_receive",
    f"""
select {RECEIVED_COLUMNS}
from duewheel.receive_batch(%s, %s, %s::text[], %s, %s, %s, %s, false, %s, %s, p_filter => %s::jsonpath)
""",
)

# The answer adds nothing to the number of messages; that the sum needs it puts it first.
_ACK_AND_RECEIVE = Prepared(
    "duewheel_ack_and_receive",
    f"""
select {RECEIVED_COLUMNS}
from (
    select cardinality(duewheel.answer(
        %s, %s, %s::int[], %s::int[], %s::bigint[], %s::bigint[], %s::jsonb, %s, %s, %s, %s)) as nothing
    offset 0
) acked
cross join lateral duewheel.receive_batch(
    %s, %s, %s::text[], %s + acked.nothing, %s, %s, %s, true, %s, %s, p_filter => %s::jsonpath)
""",
)

_OUTLOOK = """
select extract(epoch from duewheel.next_due(%s, %s, n.now)
        - coalesce(n.now, pg_catalog.clock_timestamp()))::float8,
    n.now is null and duewheel.is_turning()
from (select %s::timestamptz) n (now)
"""

_ANSWER = Prepared(
    "duewheel_answer",
    """
select duewheel.answer(%s, %s, %s::int[], %s::int[], %s::bigint[], %s::bigint[], %s::jsonb, %s, %s, %s, %s)
""",
)

_ANSWER_HELD = """
select unnest(duewheel.answer(
    %s, %s, %s::int[], %s::int[], %s::bigint[], %s::bigint[], %s::jsonb, %s, %s, %s, %s, p_wait => %s))
"""

# Each answered lease holds a lock until the call ends, and all sessions share one table of locks.
_LEASES_PER_CALL = 500


def without_cut(rows: Rows) -> tuple[Rows, bool]:
    """The rows of a receive, and whether it stopped behind a portion of recalled messages, before the end:
    then it has a last row with a lease that is null."""
    is_cut = bool(rows) and not rows[-1][-1]
    return (rows[:-1], True) if is_cut else (rows, False)


class Consumer:
    """Reads a topic for a consumer group; made by :meth:`duewheel.store.broker.Broker.consumer`.

    Attributes:
        topic: the topic's name.
        group: the consumer group's name.
        tags: the tag expression.
        filter: the predicate over the properties, None for all.
        mode: clustering or broadcasting.
        name: the holder that leases and the history of a message show.
        group_id: the number of the group, which its leases name.
        topic_id: the number of the topic.
    """

    def __init__(
        self,
        database: Database,
        signals: Signals,
        topic: str,
        group: str,
        *,
        tags: str = tag_expressions.EVERY,
        start: str | Instant = "earliest",
        name: str | None = None,
        filter: str | None = None,  # noqa: A002 -- the parameter's public name
        mode: ConsumeMode | str = ConsumeMode.CLUSTERING,
        retry: RetryPolicy | None = None,
    ) -> None:
        check_text(topic, "topic")
        check_text(group, "group")
        check_text(name, "name", optional=True)
        self.topic = topic
        self.group = group
        self.tags = tags
        self.name = name or f"{socket.gethostname()}/{os.getpid()}"
        self.filter = filter
        self.mode = named(ConsumeMode, mode, "mode")
        self._tag_list = tag_expressions.parse(tags)
        check_filters(database.read, filter)
        if retry is not None and self.mode is ConsumeMode.BROADCASTING:
            raise InvalidArgument(
                "a broadcasting consumer does not retry failed messages: leave retry out, or use clustering"
            )
        self._database = database
        self._signals = signals
        # Consumers begin to look at different queues, and each looks at another one next.
        self._turn_at = 0.0
        self._wheel_at = float("-inf")
        self._wheel_asked_at = float("-inf")
        self._restraint = Restraint(_FIRST_RESTRAINT_SECONDS, _LAST_RESTRAINT_SECONDS)
        self._next_source = itertools.count(int.from_bytes(os.urandom(1), "big"))
        self._first_source = next(self._next_source) % 64
        by_name = isinstance(start, str)
        check_text(start if by_name else "earliest", "start")
        self._is_fifo: bool | None = None
        self.group_id: int
        self.topic_id: int
        ((self.group_id, self.topic_id, is_new),) = database.rows(
            _SUBSCRIBE,
            (
                topic,
                group,
                start if by_name else "earliest",
                None if isinstance(start, str) else to_datetime(start, "start"),
                database.now(),
                self.mode.value,
                self.name,
            ),
        )
        if retry is not None:
            self._set_retry_policy(retry, is_new=is_new)

    @property
    def is_fifo(self) -> bool:
        """Whether the topic is of type FIFO, where a message group comes in order, to one holder at a
        time."""
        # Not a cached_property: up to Python 3.11 all of them share a lock, which a child of fork inherits.
        if self._is_fifo is None:
            self._is_fifo = self._database.read("select duewheel.is_fifo(%s)", (self.topic_id,))[0][0]
        return self._is_fifo

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
            invisible: how long no other consumer of the group gets them, 1 s to 12 h; messages that are not
                answered by then come again.
            wait: how long to wait for the first message when none is ready (long poll), up to 30 s.
            acked: messages to :meth:`ack` first, in the same round trip and with the same commit: usually the
                previous batch.

        Returns:
            The messages, ordered by delivery instant within each queue; empty when there were none.

        Raises:
            InvalidArgument: a number or a duration out of range.
            BrokerUnreachable: the connection broke; receive again. Messages that were leased then come again.
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
                f"wait is {said_span(wait)}, the limit is 0 s to {said_span(LONGEST_WAIT)}: "
                "receive again to wait longer"
            )
        whole_number(max_messages, "max_messages", MOST_RECEIVED, "receive again for more")
        invisible = to_span(invisible, "invisible")
        answer = self._answer_of("ack", acked)
        if stop is not None and stop.is_set():
            self._say(answer)
            return self._batch([])
        looked_at = time.monotonic()
        rows = self._leased(max_messages, invisible, answer, tick=not self._is_turning())
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
        return self._batch(rows)

    def ack(self, messages: Answered, *, connection: CallerConnection | None = None) -> None:
        """Say that the work on these messages is done; they are not delivered to this group again.

        Args:
            messages: a batch, messages, or leases; of one receive or several.
            connection: a transaction of the caller, a connection of psycopg2 or psycopg 3, or a SQLAlchemy
                ``Connection`` or ``Session``: the work and the ack are then committed, or rolled back,
                together, and once. The ack waits for another transaction that answers the same lease. Without
                ``connection``, an ack may be repeated.

        Raises:
            AlreadyAnswered: with ``connection``, another transaction has answered some of the messages: roll
                back.
            LeaseLost: a lease had ended or was answered before; none of the messages is changed.
        """
        self._say(self._answer_of("ack" if connection is None else "ack_once", messages), connection)

    def fence(self, messages: Answered, *, connection: CallerConnection) -> None:
        """Reserve the leases for a transaction of the caller before the work, so that nobody else does it.

        Until the transaction ends, others who fence or answer the leases wait, and nobody gets the messages.
        The transaction may ack them even after the end of the lease. A fence holds up nobody else.

        Args:
            messages: a batch, messages, or leases. It is always whole leases that are fenced.
            connection: an open transaction, as for :meth:`ack`.

        Raises:
            AlreadyAnswered: another transaction has answered some of the messages: there is no work to do.
            LeaseLost: a lease had ended.
            InvalidArgument: the connection commits each statement by itself.

        Example::

            with closing(psycopg2.connect(dsn)) as connection, connection:
                consumer.fence(batch, connection=connection)
                cancel_orders(connection, batch)
                consumer.ack(batch, connection=connection)
        """
        caller = driver_connection(connection)
        if caller.autocommit and caller.info.transaction_status == TRANSACTION_STATUS_IDLE:
            raise InvalidArgument(
                "this connection commits each statement by itself, so the fence would end at once: "
                "begin a transaction first"
            )
        self._say(self._answer_of("fence", messages), connection)

    def nack(
        self,
        messages: Answered,
        delay: timedelta | None = None,
        *,
        reason: str | None = None,
        connection: CallerConnection | None = None,
    ) -> None:
        """Say that the work failed: each message comes again, or is a dead letter after its last retry.

        Args:
            messages: a batch, messages, or leases.
            delay: when they come again, counted from now; None is the group's interval for that retry.
            reason: kept with the retry, to be read in the message's history.
            connection: a transaction of the caller, as for :meth:`ack`.

        Raises:
            LeaseLost: a lease had ended, or had another answer; nothing is changed, for none of the messages.
                A nack may be repeated.
        """
        due = None if delay is None else to_span(delay)
        self._say(self._answer_of("nack", messages, delay=due, reason=reason), connection)

    def skip(
        self, messages: Answered, *, reason: str | None = None, connection: CallerConnection | None = None
    ) -> None:
        """Say that these messages are done with, though their work was left undone on purpose.

        They never come again. Their history says ``Skipped``, with the reason.

        Args:
            messages: a batch, messages, or leases.
            reason: to be read in the message's history; "skipped" where none is given.
            connection: a transaction of the caller, as for :meth:`ack`.

        Raises:
            LeaseLost: a lease had ended or was answered before; nothing is changed, for none of the messages.

        Example::

            if message.key in closed_orders:
                consumer.skip(message, reason="the order is closed")
        """
        self._say(self._answer_of("skip", messages, reason=reason), connection)

    def dead_letter(
        self, messages: Answered, *, reason: str | None = None, connection: CallerConnection | None = None
    ) -> None:
        """Say that the work failed and no retry would help: the messages are dead letters at once.

        On a FIFO topic their message groups go on with what is behind them. A broadcasting consumer has no
        dead letters and passes them over.

        Args:
            messages: a batch, messages, or leases.
            reason: kept with the dead letter.
            connection: a transaction of the caller, as for :meth:`ack`.

        Raises:
            LeaseLost: a lease had ended or was answered before; nothing is changed, for none of the messages.

        Example::

            try:
                order = message.value
            except UnreadableBody as error:
                consumer.dead_letter(message, reason=str(error))
        """
        self._say(self._answer_of("dead_letter", messages, reason=reason), connection)

    def give_back(
        self, messages: Answered, *, reason: str | None = None, connection: CallerConnection | None = None
    ) -> None:
        """Say that there was no work on these messages: they are ready again at once, as the same attempt.

        On a FIFO topic the messages received behind these in their message groups go back with them.

        Args:
            messages: a batch, messages, or leases.
            reason: to be read in the message's history.
            connection: a transaction of the caller, as for :meth:`ack`.

        Raises:
            LeaseLost: a lease had ended or was answered before; nothing is changed, for none of the messages.
            InvalidArgument: this is a broadcasting consumer, which gets no message again.

        Example::

            for number, message in enumerate(batch):
                if stopping.is_set():
                    consumer.give_back(batch[number:])
                    break
                handle(message)
                consumer.ack(message)
        """
        self._say(self._answer_of("give_back", messages, reason=reason), connection)

    def change_invisible_duration(
        self, messages: Answered, duration: timedelta, *, connection: CallerConnection | None = None
    ) -> None:
        """Let the leases of these messages end ``duration`` from now, be it later or sooner.

        Args:
            messages: a batch, messages, or leases. It is always whole leases that are extended.
            duration: 1 s to 12 h.
            connection: a transaction of the caller, as for :meth:`ack`.

        Raises:
            LeaseLost: a lease had ended or was answered before; nothing is changed, for none of them.
        """
        self._say(self._answer_of("extend", messages, duration=to_span(duration, "duration")), connection)

    def answer_held(
        self,
        action: str,
        messages: Answered,
        *,
        delay: timedelta | None = None,
        reason: str | None = None,
        duration: timedelta | None = None,
        wait: timedelta = timedelta(0),
    ) -> list[LeaseState]:
        """Answer those of the leases that are held, and leave the others as they are.

        For a batch whose parts are answered one by one. It is always whole leases that are answered: what has
        no answer in them.

        Args:
            action: ``nack``, with ``delay`` and ``reason``, ``skip``, ``dead_letter`` or ``give_back``, with
                ``reason``, or ``extend``, with ``duration``.
            messages: a batch, messages, or leases.
            delay, reason: as of :meth:`nack`.
            duration: as of :meth:`change_invisible_duration`.
            wait: how long to wait in all for open transactions that answer one of the leases. Leases of
                transactions that are still open afterwards stay as they are.

        Returns:
            The state that each lease had before.

        Example::

            states = consumer.answer_held("extend", batch, duration=timedelta(minutes=5))
            held = [state.lease for state in states if state.state == "held"]
        """
        leases = [replace(lease, seqs=None) for lease in _sorted(messages)]
        states = []
        for start in range(0, len(leases), _LEASES_PER_CALL):
            some = leases[start : start + _LEASES_PER_CALL]
            answer = self._answer_of(action, some, delay=delay, reason=reason, duration=duration)
            rows = self._database.rows(
                _ANSWER_HELD, (*(answer or ()), wait), answer_seconds=self._answer_seconds(duration, wait)
            )
            states += [LeaseState(lease, state) for lease, (state,) in zip(some, rows, strict=True)]
        return states

    def __repr__(self) -> str:
        return f"Consumer(topic={self.topic!r}, group={self.group!r}, tags={self.tags!r})"

    def _answer_seconds(self, duration: timedelta | None, wait: timedelta) -> float:
        """How long the server may take for an answer to leases. An extension that gets none leaves time for
        another one."""
        seconds = self._database.answer_seconds
        if duration is not None:
            half = to_span(duration, "duration").total_seconds() / 2
            seconds = min(seconds, max(half, _SHORTEST_EXTENSION_SECONDS))
        return seconds + to_span(wait, "wait").total_seconds()

    def _set_retry_policy(self, retry: RetryPolicy, *, is_new: bool) -> None:
        """Set the retry policy of the whole group, and log the policy that it overrides."""
        from duewheel.store.values.retry_policy import stored_policy

        changed, max_retries, waits, jitter, set_by, set_at = self._database.rows(
            _SET_RETRY_POLICY,
            (
                self.topic,
                self.group,
                retry.max_retries,
                list(retry.waits),
                retry.jitter,
                self.name,
                retry.is_ordered,
                self._database.now(),
            ),
        )[0]
        # A group that this consumer has just made had no settings before.
        if changed and (set_by is not None or not is_new):
            log.warning(
                "consumer %s set the retries of group %s: %s; before, %s had set: %s",
                self.name,
                self.group,
                retry,
                "nobody" if set_by is None else f"consumer {set_by}, at {to_datetime(set_at)},",
                stored_policy(max_retries, waits, jitter, retry.is_ordered),
            )

    def _is_turning(self) -> bool:
        """Whether a wheel was there a moment ago."""
        wheel_at = max(self._wheel_at, self._signals.wheel_at(self.topic_id))
        return time.monotonic() < wheel_at + _WHEEL_SECONDS and self._database.now() is None

    def _leased(self, max_messages: int, invisible: timedelta, answer: _Answer | None, *, tick: bool) -> Rows:
        now = self._database.now()
        looked_at = time.monotonic()
        stays = now is None and looked_at < self._turn_at
        is_turn = now is None and self._turn_at > 0 and not stays
        rests = tick and (stays or (is_turn and self._is_left_to_wheel(looked_at)))
        tick = tick and not rests
        if tick:
            tick_group(self._database, self.group_id, self.topic_id)
        parameters = (
            self.group_id,
            self.topic_id,
            self._tag_list,
            max_messages,
            invisible,
            self.name,
            self._first_source,
            now,
            not tick,
            self.filter,
        )
        prepared = _RECEIVE if answer is None else _ACK_AND_RECEIVE
        statement = prepared if max_messages < _MANY else prepared.text
        rows = self._database.rows(statement, (*(answer or ()), *parameters))
        rows, is_cut = without_cut(rows)
        while is_cut and not rows:
            rows, is_cut = without_cut(self._database.rows(_RECEIVE, parameters))
        # A full batch means that its queue, which no other consumer was reading, probably has more. So this
        # consumer stays there, and messages that come due elsewhere wait for their turn. The turn comes by
        # time, not by emptiness, so no queue waits for another.
        full = len(rows) > max_messages
        if full and stays:
            topic_id, queue, *_ = map(int, rows[-1][-1].split())
            self._first_source = queue + 1 if topic_id == self.topic_id else 0
        else:
            self._first_source = next(self._next_source) % 64
            self._turn_at = looked_at + _TURN_SECONDS if full else 0.0
        if rests and not rows:
            # The batches are not full any more: what came due in the rest is released at once.
            return self._leased(max_messages, invisible, None, tick=True)
        return rows

    def _await_rows(
        self,
        max_messages: int,
        invisible: timedelta,
        until: float,
        stop: threading.Event,
        signal: Signal,
    ) -> Rows:
        """Look again and again, when something was released or is due; empty when the time is over."""
        crowded = Backoff(_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS)
        while (left := until - time.monotonic()) > 0 and not stop.is_set():
            pause = min(left, LONGEST_PAUSE_SECONDS)
            leaves_ticking = True
            # The wheel says when to look; to ask what is next would cost more than the look.
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
                # A consumer that came in vain lets the others go first: 64 ms at most.
                time.sleep(min(self._restraint.pause_seconds(), left))
            if stop.is_set():
                break
            signal.catch_up()
            tick = not (leaves_ticking and self._is_turning())
            rows = self._leased(max_messages, invisible, None, tick=tick)
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

    def _batch(self, rows: Rows) -> Batch:
        return Batch(rows, topic=self.topic, group=self.group, group_id=self.group_id)

    def _seconds_to_next(self) -> float | None:
        asked_at = time.monotonic()
        to_next: float | None
        to_next, is_turning = self._database.read(
            _OUTLOOK, (self.group_id, self.topic_id, self._database.now())
        )[0]
        self._wheel_at = max(self._wheel_at, asked_at) if is_turning else float("-inf")
        return to_next

    def _answer_of(
        self,
        action: str,
        messages: Answered,
        *,
        delay: timedelta | None = None,
        reason: str | None = None,
        duration: timedelta | None = None,
    ) -> _Answer | None:
        """The parameters of an answer; None when it names no messages."""
        leases = _sorted(messages)
        if not leases:
            return None
        for lease in leases:
            if lease.group_id != self.group_id:
                raise InvalidArgument(
                    f"a lease belongs to group number {lease.group_id}, this consumer "
                    f"to {self.group!r} (number {self.group_id}): answer with a consumer of that group"
                )
        whole = action == "extend" or all(lease.seqs is None for lease in leases)
        return (
            action,
            self.group_id,
            [lease.topic_id for lease in leases],
            [lease.queue for lease in leases],
            [lease.n for lease in leases],
            [lease.token for lease in leases],
            None if whole else json.dumps([lease.seqs for lease in leases]),
            delay,
            None if reason is None else as_reason(reason),
            duration,
            self._database.now(),
        )

    def _say(self, answer: _Answer | None, connection: CallerConnection | None = None) -> None:
        if answer is None:
            return
        if answer[0] in ("dead_letter", "give_back"):
            # Not to be repeated: the second one would find the lease answered.
            self._database.rows(_ANSWER, answer, connection)
        else:
            self._database.read(_ANSWER, answer, connection)


def _sorted(messages: Answered) -> list[Lease]:
    """The leases, always in this order: two answers to the same leases never wait for each other in a
    circle."""
    if isinstance(messages, Batch):
        leases = messages.leases
    elif isinstance(messages, Message) and messages._lease.count == 1:
        leases = [messages._lease]
    else:
        given = [messages] if isinstance(messages, (Message, Lease)) else messages
        leases = lease_handles.joined(leases_of(given))
    return sorted(leases, key=attrgetter("place")) if len(leases) > 1 else leases
