"""Answers to leased messages: acked, failed, skipped, given back, or kept for longer.

A lease covers many messages and is answered with one row when all of them are answered alike. An answer after
the lease ended is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from duewheel.store.consuming.lease_states import LeaseState
from duewheel.store.consuming.subscription import Subscription
from duewheel.store.database.connections import driver_connection
from duewheel.store.database.prepared import Prepared
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import to_span
from duewheel.store.values.leases import Lease, joined
from duewheel.store.values.messages import Batch, Message, leases_of
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    from duewheel.store.database.connections import CallerConnection

#: The argument of the answers: messages or leases, one or several, or a whole batch.
Answered = Message | Lease | Iterable[Message | Lease]

#: The parameters of the SQL function ``answer``, the action first.
Answer = tuple[Any, ...]

# An extension waits for its answer for half of its duration, but for no less than this.
_SHORTEST_EXTENSION_SECONDS = 1.0

_ANSWER = Prepared(
    "duewheel_answer",
    """
select duewheel.answer(%s, %s, %s::int[], %s::int[], %s::bigint[], %s::bigint[], %s::jsonb, %s, %s, %s, %s)
""",
)

#: An ack, with the parameters of :func:`ack_parameters`: the server reads each parameter of a prepared
#: statement at each call.
ACK = "duewheel.answer('ack', %s, %s::int[], %s::int[], %s::bigint[], %s::bigint[], %s::jsonb, p_now => %s)"
_ACK = Prepared("duewheel_ack", f"select {ACK}")

# An ack whose commit does not wait for the disk.
_ACK_BEFORE_DISK = Prepared(
    "duewheel_ack_before_disk",
    f"select {ACK}, pg_catalog.set_config('synchronous_commit', 'off', true)",
)

_ANSWER_HELD = """
select unnest(duewheel.answer(
    %s, %s, %s::int[], %s::int[], %s::bigint[], %s::bigint[], %s::jsonb, %s, %s, %s, %s, p_wait => %s))
"""

# Each answered lease holds a lock until the call ends, and all sessions share one table of locks.
_LEASES_PER_CALL = 500


class Answering(Subscription):
    """The answers of a consumer, in its own call or in a transaction of the caller."""

    def ack(self, messages: Answered, *, connection: CallerConnection | None = None) -> None:
        """Confirm that the work on these messages is done; they are not delivered to this group again.

        Args:
            messages: a batch, messages, or leases; of one receive or several.
            connection: a transaction of the caller, a connection of psycopg2 or psycopg 3, or a SQLAlchemy
                ``Connection`` or ``Session``. The work and the ack are then committed or rolled back
                together, and the work counts once. The ack waits for another transaction that answers the
                same lease. Without ``connection``, an ack may be repeated.

        Raises:
            AlreadyAnswered: with ``connection``, another transaction has answered some of the messages: roll
                back.
            LeaseLost: a lease had ended or was answered before; none of the messages is changed.
            InvalidArgument: with ``connection``, the consumer was made with ``durable_acks=False``.
        """
        if connection is not None:
            self._require_durable_acks()
        self._say(self._answer_of("ack" if connection is None else "ack_once", messages), connection)

    def fence(self, messages: Answered, *, connection: CallerConnection) -> None:
        """Reserve the leases for a transaction of the caller before the work, so that the work is done once.

        Until the transaction ends, other fences and answers of the leases wait, and no consumer gets the
        messages. The transaction may ack them even after the end of the lease. A fence holds up no other
        call.

        Args:
            messages: a batch, messages, or leases. A fence always covers whole leases.
            connection: an open transaction; see :meth:`ack`.

        Raises:
            AlreadyAnswered: another transaction has answered some of the messages: their work is done.
            LeaseLost: a lease had ended.
            InvalidArgument: the connection commits each statement separately, or the consumer was made with
                ``durable_acks=False``.

        Example::

            with closing(psycopg2.connect(dsn)) as connection, connection:
                consumer.fence(batch, connection=connection)
                cancel_orders(connection, batch)
                consumer.ack(batch, connection=connection)
        """
        self._require_durable_acks()
        caller = driver_connection(connection)
        if caller.autocommit and caller.info.transaction_status == TRANSACTION_STATUS_IDLE:
            raise InvalidArgument(
                "this connection commits each statement separately, so the fence would end at once: "
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
        """Report that the work failed: each message is retried, or is a dead letter after its last retry.

        Args:
            messages: a batch, messages, or leases.
            delay: when they are retried, counted from now; None is the group's interval for that retry.
            reason: kept with the retry, to be read in the message's history.
            connection: a transaction of the caller; see :meth:`ack`.

        Raises:
            LeaseLost: a lease had ended, or had another answer; nothing is changed, for none of the messages.
                A nack may be repeated.
        """
        due = None if delay is None else to_span(delay)
        self._say(self._answer_of("nack", messages, delay=due, reason=reason), connection)

    def skip(
        self, messages: Answered, *, reason: str | None = None, connection: CallerConnection | None = None
    ) -> None:
        """Finish messages whose work was left undone on purpose.

        They are never delivered again. Their history shows ``Skipped``, with the reason.

        Args:
            messages: a batch, messages, or leases.
            reason: to be read in the message's history; "skipped" if none is given.
            connection: a transaction of the caller; see :meth:`ack`.

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
        """Make messages dead letters at once, because their work failed and no retry would help.

        On a FIFO topic their message groups continue with the next message. A broadcasting consumer has no
        dead letters and skips them.

        Args:
            messages: a batch, messages, or leases.
            reason: kept with the dead letter.
            connection: a transaction of the caller; see :meth:`ack`.

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
        """Return messages that were not worked on: they are ready again at once, as the same attempt.

        On a FIFO topic, messages of the same message groups received after them are given back, too.

        Args:
            messages: a batch, messages, or leases.
            reason: to be read in the message's history.
            connection: a transaction of the caller; see :meth:`ack`.

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
        self, messages: Answered, invisible: timedelta, *, connection: CallerConnection | None = None
    ) -> None:
        """Let the leases of these messages end ``invisible`` from now, whether that is later or sooner.

        Args:
            messages: a batch, messages, or leases. The change applies to whole leases.
            invisible: the time from now to the end of the leases, 1 s to 12 h.
            connection: a transaction of the caller; see :meth:`ack`.

        Raises:
            LeaseLost: a lease had ended or was answered before; nothing is changed, for none of them.
        """
        self._say(self._answer_of("extend", messages, invisible=to_span(invisible, "invisible")), connection)

    def answer_held(
        self,
        action: str,
        messages: Answered,
        *,
        delay: timedelta | None = None,
        reason: str | None = None,
        invisible: timedelta | None = None,
        wait: timedelta = timedelta(0),
    ) -> list[LeaseState]:
        """Answer the leases that are held, and leave all others unchanged.

        For a batch whose parts are answered one by one. Each lease is answered as a whole: all its messages
        without an answer.

        Args:
            action: ``nack``, with ``delay`` and ``reason``, ``skip``, ``dead_letter`` or ``give_back``, with
                ``reason``, or ``extend``, with ``invisible``.
            messages: a batch, messages, or leases.
            delay, reason: as of :meth:`nack`.
            invisible: as of :meth:`change_invisible_duration`.
            wait: how long to wait, over all leases, for open transactions that answer one of them. Leases of
                transactions that are still open afterwards stay as they are.

        Returns:
            The state that each lease had before.

        Example::

            states = consumer.answer_held("extend", batch, invisible=timedelta(minutes=5))
            held = [state.lease for state in states if state.state == "held"]
        """
        leases = [replace(lease, seqs=None) for lease in _sorted(messages)]
        states = []
        for start in range(0, len(leases), _LEASES_PER_CALL):
            some = leases[start : start + _LEASES_PER_CALL]
            answer = self._answer_of(action, some, delay=delay, reason=reason, invisible=invisible)
            rows = self._database.rows(
                _ANSWER_HELD, (*(answer or ()), wait), answer_seconds=self._answer_seconds(invisible, wait)
            )
            states += [LeaseState(lease, state) for lease, (state,) in zip(some, rows, strict=True)]
        return states

    def _answer_seconds(self, invisible: timedelta | None, wait: timedelta) -> float:
        """How long the server may take to answer leases. After an extension without an answer there is time
        for another one."""
        seconds = self._database.answer_seconds
        if invisible is not None:
            half = to_span(invisible, "invisible").total_seconds() / 2
            seconds = min(seconds, max(half, _SHORTEST_EXTENSION_SECONDS))
        return seconds + to_span(wait, "wait").total_seconds()

    def _own_leases(self, messages: Answered) -> list[Lease]:
        """The leases of messages, in a fixed order; a lease of another group is refused."""
        leases = _sorted(messages)
        for lease in leases:
            if lease.group_id != self.group_id:
                raise InvalidArgument(
                    f"a lease belongs to group number {lease.group_id}, this consumer "
                    f"to {self.group!r} (number {self.group_id}): answer with a consumer of that group"
                )
        return leases

    def _answer_of(
        self,
        action: str,
        messages: Answered,
        *,
        delay: timedelta | None = None,
        reason: str | None = None,
        invisible: timedelta | None = None,
    ) -> Answer | None:
        """The parameters of an answer; None when it names no messages."""
        leases = self._own_leases(messages)
        if not leases:
            return None
        whole = action == "extend" or all(lease.seqs is None for lease in leases)
        return (
            action,
            self.group_id,
            _array(lease.topic_id for lease in leases),
            _array(lease.queue for lease in leases),
            _array(lease.n for lease in leases),
            _array(lease.token for lease in leases),
            None if whole else json.dumps([lease.seqs for lease in leases]),
            delay,
            None if reason is None else as_reason(reason),
            invisible,
            self._database.now(),
        )

    def _say(self, answer: Answer | None, connection: CallerConnection | None = None) -> None:
        if answer is None:
            return
        if answer[0] in ("dead_letter", "give_back"):
            # Not to be repeated: a second one would find the lease answered.
            self._database.rows(_ANSWER, answer, connection)
        elif answer[0] == "ack":
            ack = _ACK if self.durable_acks else _ACK_BEFORE_DISK
            self._database.read(ack, ack_parameters(answer))
        else:
            self._database.read(_ANSWER, answer, connection)

    def _require_durable_acks(self) -> None:
        if not self.durable_acks:
            raise InvalidArgument(
                f"this consumer of group {self.group!r} has durable_acks=False, and the ack of a caller's "
                "transaction is as durable as the transaction: use a consumer with durable acks for it"
            )


def ack_parameters(answer: Answer) -> tuple[Any, ...]:
    """The parameters of :data:`ACK`, from those of an ack."""
    _ack, *leases, _delay, _reason, _invisible, now = answer
    return (*leases, now)


def _array(numbers: Iterable[int]) -> str:
    """Numbers as the text of a Postgres array, which costs both sides less than psycopg2's ``ARRAY[...]``."""
    return f"{{{','.join(map(str, numbers))}}}"


def _sorted(messages: Answered) -> list[Lease]:
    """The leases in a fixed order, so that two answers to the same leases cannot deadlock."""
    if isinstance(messages, Batch):
        leases = messages.leases
    elif isinstance(messages, Message) and messages._lease.count == 1:
        leases = [messages._lease]
    else:
        given = [messages] if isinstance(messages, (Message, Lease)) else messages
        leases = joined(leases_of(given))
    return sorted(leases, key=attrgetter("place")) if len(leases) > 1 else leases
