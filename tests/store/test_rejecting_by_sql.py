"""Messages of a lease are rejected with many reasons at the cost of few."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.messages import leases_of
from duewheel.store.values.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store.broker import Broker
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.values.messages import Batch

TOPIC = "orders"
COUNT = 500
REJECT = (
    "select duewheel.answer('reject', %s, array[%s], array[%s], array[%s::bigint], array[%s::bigint],"
    " %s::jsonb, interval '0', p_reasons => %s::jsonb)"
)
FETCHED = "select sum(idx_tup_fetch) from pg_stat_xact_user_tables where relname like 'message%'"


@pytest.fixture
def consumer(broker: Broker) -> Consumer:
    """A group that gives up after one retry, and has messages in one queue."""
    broker.create_topic(TOPIC, queues=1)
    messages = [{"body": b"", "key": str(key), "delay": timedelta(0)} for key in range(COUNT)]
    broker.send_many(TOPIC, messages)
    return broker.consumer(TOPIC, "group", retry=RetryPolicy(1, (timedelta(seconds=1),)))


def seqs(batch: Batch) -> list[int]:
    (lease,) = leases_of(batch)
    return list(lease.seqs or ())


def reject(broker: Broker, batch: Batch, reasons: Sequence[str | None], numbers: Sequence[int]) -> int:
    """Rejects messages of a lease; how many messages were read for it."""
    (lease,) = leases_of(batch)
    parameters: tuple[Any, ...] = (lease.group_id, lease.topic_id, lease.queue, lease.n, lease.token)
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("begin")
        # What fails leaves it open, and the pool rolls back.
        cursor.execute(REJECT, (*parameters, json.dumps([numbers]), json.dumps([reasons])))
        cursor.execute(FETCHED)
        ((fetched,),) = cursor.fetchall()
        cursor.execute("commit")
    return int(fetched)


def test_r03_r14_each_reason_is_kept_and_a_lease_is_read_as_often_as_for_a_few(
    broker: Broker, consumer: Consumer
) -> None:
    batch = consumer.receive(COUNT)
    numbers = seqs(batch)
    few = reject(broker, batch, [f"reason {place % 3}" for place in range(100)], numbers[:100])
    many = reject(broker, batch, [f"reason {place}" for place in range(100, 300)], numbers[100:300])
    assert many < 2 * few
    # Again, and beside others: those that are rejected stay so. One has no reason.
    rest = [None, *(f"reason {place}" for place in range(1, COUNT))]
    reject(broker, batch, rest[50:], numbers[50:])
    reject(broker, batch, rest[:100], numbers[:100])
    with pytest.raises(LeaseLost):
        consumer.ack(batch)

    again = consumer.receive(COUNT)
    assert sorted(int(message.key or "") for message in again) == list(range(COUNT))
    assert {message.attempt for message in again} == {2}
    reasons = [f"dead {message.key}" for message in again]
    reject(broker, again, reasons, seqs(again))
    letters = broker.dead_letters("group", max_messages=COUNT)
    assert sorted(letter.reason or "" for letter in letters) == sorted(reasons)
    first = next(letter for letter in letters if letter.reason == "dead 250")
    assert [entry.reason for entry in broker.history(first.message_id) if entry.reason] == [
        "reason 250",
        "dead 250",
    ]


def test_x10_acked_message_among_many_is_refused_and_none_is_rejected(
    broker: Broker, consumer: Consumer
) -> None:
    batch = consumer.receive(10)
    consumer.ack(batch[5])
    with pytest.raises(Exception, match="answered before"):
        reject(broker, batch, [str(place) for place in range(10)], seqs(batch))
    consumer.ack([message for message in batch if message is not batch[5]])
    assert len(consumer.receive(COUNT)) == COUNT - 10
