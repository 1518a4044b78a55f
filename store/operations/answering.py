"""Answering runs that wait.

A run that waits for an answer has sent a message, its timeout. An answer is a recall of that message that
carries a body, so the COMMIT of the answer decides whether it was in time
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg2

from duewheel.store.database.connected import Connected
from duewheel.store.database.connections import fetch
from duewheel.store.operations.reading import checked_limit
from duewheel.store.operations.recalling import decided
from duewheel.store.values.bodies import answer_to_json, check_text, properties_to_json, to_bytes
from duewheel.store.values.content_types import with_content_type
from duewheel.store.values.delivery_time import bounded
from duewheel.store.values.instants import to_datetime
from duewheel.store.values.messages import (
    AnswerOutcome,
    AnswerReceipt,
    EarlyAnswer,
    SendOutcome,
    SendReceipt,
    Wait,
    WaitOutcome,
)

if TYPE_CHECKING:
    from duewheel.store.database.connections import CallerConnection

_ANSWER = "select outcome, message_id from duewheel.answer_key(%s, %s, %s::jsonb, %s::jsonb, %s, %s)"
_BEGIN = """
select message_id, deliver_at, outcome
from duewheel.begin_wait(%s, %s, %s, %s::bytea, %s::jsonb, %s, now => %s)
"""
_WAIT = "select outcome, answer::text from duewheel.answers(array[%s])"
_EARLY = "select topic_name, key, answer, until_at from duewheel.early_answers(%s)"
# The snapshot is older than the function's own, so the next poll misses nothing.
_POLL = """
select clock_timestamp(), pg_current_snapshot()::text, a.message_id, a.outcome, a.deliver_at
from (select) one left join lateral duewheel.answers(%s::text[], %s::pg_snapshot) a on true
"""


class Answering(Connected):
    """Answering runs that wait, and looking up answers."""

    def answer_key(
        self,
        topic: str,
        key: str,
        body: Any = None,
        *,
        properties: Mapping[str, Any] | None = None,
        early: bool = False,
        connection: CallerConnection | None = None,
    ) -> AnswerReceipt:
        """Answer the run that waits under a key.

        The first answer counts. It is given to the message that was sent last under the key.

        Args:
            topic: the topic on which the run waits.
            key: the key under which it waits.
            body: the answer: any value that JSON can express. Body and properties have 16 KiB at most.
            properties: further data, such as the name of the person who answered.
            early: keep the answer if no run has waited under the key yet: the next wait begins with it. It is
                kept for the topic's retention. Check the key: an answer under a wrong key is kept, too.
            connection: a transaction of the caller. The answer counts when it commits; if the run has timed
                out by then, the commit fails with SQLSTATE DW012.

        Returns:
            The outcome, and the id of the message. ``answered``: the run continues with this answer.
            ``too_late``: the run timed out. ``already_answered``: an earlier answer counts. ``recalled``: the
            wait was recalled. ``not_found``: no run waits under this key yet. ``early``: the next run that
            waits under this key continues with this answer; there is no message yet.

        Raises:
            UnknownTopic: no topic has this name.
            InvalidKey: ``early`` is true and the key is empty or longer than 255 characters.
            InvalidArgument: the answer is not JSON.
            PropertiesTooLarge: the answer is larger than 16 KiB.

        Example::

            receipt = broker.answer_key("approvals", "order-4711", {"approved": True})
            if receipt.outcome is AnswerOutcome.TOO_LATE: ...
        """
        check_text(topic, "topic")
        check_text(key, "key")
        parameters = (
            topic,
            key,
            answer_to_json(body),
            properties_to_json(properties),
            early,
            self._database.now(),
        )
        ask = partial(self._database.rows, _ANSWER, parameters, connection)
        ((outcome, present_id),) = ask() if connection is not None else decided(ask)
        return AnswerReceipt(AnswerOutcome(outcome), present_id)

    def begin_wait(
        self,
        topic: str,
        key: str,
        timeout: timedelta,
        body: object = b"",
        *,
        properties: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        connection: CallerConnection | None = None,
    ) -> SendReceipt:
        """Begin a wait for an answer: send the message that is its timeout.

        It replaces a message that waits under the key. If the key was answered early, the wait ends answered.

        Args:
            topic: a topic of type DELAY.
            key: the key under which the run is answered, 1 to 255 characters.
            timeout: the longest wait, by the database's clock.
            body: the body of the message; see ``send``.
            properties: its properties; see ``send``. The broker adds ``awaits_answer``.
            idempotency_key: a second call with the same key begins nothing and returns the first receipt.
            connection: a transaction of the caller: the wait begins when it commits.

        Returns:
            The receipt of the message; ``find_wait`` takes its id.

        Raises:
            UnknownTopic, WrongMessageType, DelayOutOfRange, InvalidKey, ...: the errors of ``send``.

        Example::

            receipt = broker.begin_wait("approvals", "order-4711", timedelta(hours=2))
        """
        check_text(topic, "topic")
        check_text(key, "key")
        check_text(idempotency_key, "idempotency_key", optional=True)
        parameters = (
            topic,
            key,
            bounded(timeout),
            psycopg2.Binary(to_bytes(body)),
            properties_to_json(with_content_type(body, properties)),
            idempotency_key,
            self._database.now(),
        )
        ask = partial(self._database.rows, _BEGIN, parameters, connection)
        ((message_id, deliver_at, outcome),) = ask() if connection is not None else decided(ask)
        return SendReceipt(message_id, deliver_at, SendOutcome(outcome))

    def find_wait(self, message_id: str) -> Wait:
        """Look up a wait for an answer.

        Args:
            message_id: the present or an earlier id of the message that waits.

        Returns:
            The outcome, with the answer if there is one. Every outcome but ``waiting`` is final.

        Raises:
            InvalidArgument: not a message id.

        Example::

            if broker.find_wait(receipt.message_id).outcome is WaitOutcome.ANSWERED: ...
        """
        check_text(message_id, "message_id")
        ((outcome, answer),) = self._database.rows(_WAIT, (message_id,))
        return Wait(WaitOutcome(outcome), **({} if answer is None else json.loads(answer)))

    def early_answers(self, max_answers: int = 1_000) -> list[EarlyAnswer]:
        """List the early answers that no wait has taken yet, the next to be forgotten first.

        Args:
            max_answers: how many to return at most.

        Raises:
            InvalidArgument: ``max_answers`` is not a number of rows.

        Example::

            stale = [answer.key for answer in broker.early_answers() if answer.topic == "approvals"]
        """
        rows = self._database.read(_EARLY, (checked_limit(max_answers),))
        return [
            EarlyAnswer(topic, key, answer["body"], answer["properties"], to_datetime(until_at))
            for topic, key, answer, until_at in rows
        ]

    def withdraw_early_answer(
        self, topic: str, key: str, *, connection: CallerConnection | None = None
    ) -> bool:
        """Delete an early answer, so that the next wait under its key waits.

        Args:
            topic, key: the topic and the key of the answer.
            connection: a transaction of the caller: the answer is withdrawn when it commits.

        Returns:
            Whether there was one. A wait may have taken it.

        Raises:
            UnknownTopic: no topic has this name.

        Example::

            broker.withdraw_early_answer("approvals", "order-4711")
        """
        check_text(topic, "topic")
        check_text(key, "key")
        statement = "select duewheel.withdraw_early_answer(%s, %s)"
        ((withdrawn,),) = self._database.rows(statement, (topic, key), connection)
        return bool(withdrawn)


class PolledWaits(NamedTuple):
    """Waits as they were at one moment."""

    at: datetime
    """The moment, by the database's clock."""
    snapshot: str
    """What the poll saw: the ``since`` of the next one."""
    ended: frozenset[str]
    """The waits that have ended."""
    waiting: dict[str, datetime]
    """The waits that have not, and when each times out."""


def poll_waits(
    broker: Connected, message_ids: Sequence[str], since: str | None, *, limit_seconds: float
) -> PolledWaits:
    """Look up some waits, and which others were answered since the last poll.

    Args:
        broker: the broker.
        message_ids: the waits to look up, by the ids that their senders got.
        since: ``snapshot`` of the last poll; None looks for no others.
        limit_seconds: the longest time of the statement.

    Raises:
        InvalidArgument: one of ``message_ids`` is not a message id.

    Example::

        first = poll_waits(broker, [receipt.message_id], None, limit_seconds=2)
        answered = poll_waits(broker, [], first.snapshot, limit_seconds=2).ended
    """
    limit = f"set local statement_timeout = {int(limit_seconds * 1_000)}; "
    with broker.connection() as connection:
        rows = fetch(connection, limit + _POLL, (list(message_ids), since))
    (at, snapshot) = rows[0][:2]
    found = [row[2:] for row in rows if row[2] is not None]
    return PolledWaits(
        broker.now() or at,
        snapshot,
        frozenset(identity for identity, outcome, _ in found if outcome != WaitOutcome.WAITING),
        {identity: due_at for identity, outcome, due_at in found if outcome == WaitOutcome.WAITING},
    )
