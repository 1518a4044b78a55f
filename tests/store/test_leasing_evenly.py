"""Many messages are leased by the primary key alone: those that are the group's, whatever lies between."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.acting import AT_ONCE, rows
from tests.waiting import ask, connected, until

from duewheel.store.broker import Broker
from duewheel.store.values.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.database.connections import DriverConnection

TOPIC = "orders"
COUNT = 1500
EVENLY = """
select topic_id, queue, lease_n, lease_count
from duewheel.lease_evenly(%s, %s, %s, 4, '1 minute', 'job')
"""
BODY_BYTES = "select duewheel.unread_body_bytes(%s, %s)"

MARKED = """
select bool_and(relallvisible >= relpages) from pg_class
where relnamespace = 'duewheel'::regnamespace and relkind = 'r' and relname like 'message%'
"""

UNTIL_EXPIRED = """
select pg_sleep(extract(epoch from max(expires_at) - clock_timestamp()) + 0.01)
from duewheel.lease where group_id = %s and message_count > 0
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[DriverConnection]:
    """A connection whose transactions the test ends."""
    with connected(dsn, autocommit=False) as connection:
        yield connection


@pytest.fixture
def consumer(broker: Broker) -> Consumer:
    """Of a group that has read nothing of the messages with the keys from 0 on."""
    broker.create_topic(TOPIC, queues=3)
    send(broker, range(COUNT))
    return broker.consumer(TOPIC, "group", retry=RetryPolicy(2, (timedelta(seconds=1),)))


def send(broker: Broker, keys: range, **fields: Any) -> list[str]:
    messages = [{"body": b"", "key": str(key), "delay": AT_ONCE, **fields} for key in keys]
    return [receipt.message_id for receipt in broker.send_many(TOPIC, messages)]


def leased(broker: Broker, consumer: Consumer, most: int = 1_000_000) -> list[int]:
    """The keys of what is leased now, lease by lease; each lease has as many as it says."""
    keys = []
    broker.tick(TOPIC)
    for topic_id, queue, n, count in rows(broker, EVENLY, consumer.group_id, consumer.topic_id, most):
        of_a_lease = "select key from duewheel.lease_rows(%s, %s, %s, %s)"
        found = [int(key) for (key,) in rows(broker, of_a_lease, consumer.group_id, topic_id, queue, n)]
        assert len(found) == count
        keys += found
    return keys


def test_many_are_leased_up_to_the_limit_and_the_rest_after_them(broker: Broker, consumer: Consumer) -> None:
    first = leased(broker, consumer, COUNT - 400)
    assert len(first) == COUNT - 400
    rest = leased(broker, consumer)
    assert sorted(first + rest) == list(range(COUNT))
    assert leased(broker, consumer) == []


def test_a_backlog_is_leased_like_unread_messages(broker: Broker) -> None:
    """A FIFO topic's backlog has all unread messages of a message group whose lease was answered."""
    broker.create_topic(TOPIC, message_type="FIFO", queues=1)
    send(broker, range(COUNT), delay=None, message_group="one", body=bytes(500))
    consumer = broker.consumer(TOPIC, "group")
    first = consumer.receive(5)
    assert leased(broker, consumer) == []
    consumer.ack(first)
    assert rows(broker, BODY_BYTES, consumer.group_id, consumer.topic_id) == [(500,)]
    assert leased(broker, consumer) == list(range(5, 105))


def test_no_message_is_read_to_be_leased(
    broker: Broker, consumer: Consumer, dsn: str, connection: DriverConnection
) -> None:
    broker.tick(TOPIC)
    with connected(dsn) as vacuum:
        # Vacuum leaves out what is committed and not yet flushed.
        ask(vacuum, "set synchronous_commit = on")
        ask(vacuum, "select pg_current_xact_id()")

        def all_is_visible() -> bool:
            # A snapshot that somebody has, such as autovacuum's, keeps pages from being marked.
            ask(vacuum, "vacuum")
            return bool(ask(vacuum, MARKED)[0][0])

        until(all_is_visible, "all messages to be marked as visible", pause_seconds=0.1)
    found = ask(connection, EVENLY, consumer.group_id, consumer.topic_id, COUNT)
    assert sum(count for *_, count in found) == COUNT
    read = "select sum(idx_tup_fetch) from pg_stat_xact_user_tables where relname like 'message%'"
    assert ask(connection, read)[0][0] < 100


def test_x06_a_late_commit_is_leased_once(
    broker: Broker, consumer: Consumer, connection: DriverConnection
) -> None:
    """As a straggler of the next release, whether its transaction is open at a lease or ends before one."""
    other = broker.consumer(TOPIC, "other")
    assert sorted(leased(broker, other)) == list(range(COUNT))
    for key in (COUNT, COUNT + 1):
        broker.send(TOPIC, b"", key=str(key), delay=AT_ONCE, connection=connection)
        # Released beside it: the tick does not see it.
        send(broker, range(COUNT * key, COUNT * key + 1))
        if key == COUNT:
            assert sorted(leased(broker, other)) == [COUNT * key]
            connection.commit()
    expected = [*range(COUNT + 1), COUNT * COUNT, COUNT * (COUNT + 1)]
    assert sorted(leased(broker, consumer)) == expected
    connection.commit()
    assert leased(broker, consumer) == [COUNT + 1]
    assert sorted(leased(broker, other)) == [COUNT, COUNT + 1, COUNT * (COUNT + 1)]


def test_x06_a_late_message_is_not_leased_again_at_its_place(
    broker: Broker, connection: DriverConnection
) -> None:
    """A straggler stands among the messages behind the position, and the group has it already."""
    broker.create_topic(TOPIC, queues=1)
    send(broker, range(COUNT // 2))
    broker.send(TOPIC, b"", key=str(COUNT), delay=AT_ONCE, connection=connection)
    send(broker, range(COUNT // 2, COUNT))
    broker.tick(TOPIC)
    connection.commit()
    send(broker, range(COUNT + 1, COUNT + 2))
    broker.tick(TOPIC)
    consumer = broker.consumer(TOPIC, "group")
    (late,) = consumer.receive(1)
    assert late.key == str(COUNT)
    assert sorted(leased(broker, consumer)) == [*range(COUNT), COUNT + 1]


def test_d13_what_was_recalled_is_not_leased(broker: Broker, consumer: Consumer) -> None:
    for message_id in send(broker, range(COUNT, COUNT + 3), delay=timedelta(milliseconds=1)):
        broker.recall(message_id)
    recalled = send(broker, range(COUNT + 3, COUNT + 4), delay=timedelta(hours=1))
    broker.recall(recalled[0])
    ((recalls,),) = rows(broker, "select count(*) from duewheel.recall")
    found = leased(broker, consumer)
    assert len(found) == len(set(found)) == COUNT + 4 - recalls
    assert set(range(COUNT)) <= set(found)


@pytest.mark.parametrize("ends", ["failed", pytest.param("expired", marks=pytest.mark.slow)])
def test_r03_retries_are_leased_first_and_revived_messages_again(
    broker: Broker, consumer: Consumer, ends: str
) -> None:
    batch = consumer.receive(5, timedelta(seconds=1))
    again = sorted(int(message.key or "") for message in batch)
    if ends == "failed":
        consumer.nack(batch, delay=AT_ONCE)
    else:
        rows(broker, UNTIL_EXPIRED, consumer.group_id)
    found = leased(broker, consumer, COUNT - 100)
    assert sorted(found + leased(broker, consumer)) == list(range(COUNT))
    if ends == "failed":
        assert sorted(found[: len(again)]) == again
