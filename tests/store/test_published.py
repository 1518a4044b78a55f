"""A publication of all tables, as change data capture and blue-green upgrades make it, changes nothing."""

from __future__ import annotations

from tests.acting import DAY
from tests.clock import Clock
from tests.logins import SUPERUSER, as_user
from tests.waiting import ask, connected

from duewheel.store import Broker
from duewheel.store.values.retry_policy import RetryPolicy

#: Postgres refuses to change rows of a published table that it could not name to a subscriber.
NAMELESS = """
select c.relname from pg_class c
where c.relnamespace = 'duewheel'::regnamespace and c.relkind in ('r', 'p') and c.relpersistence = 'p'
  and not exists (select from pg_index i where i.indrelid = c.oid and (i.indisprimary or i.indisreplident))
"""


def test_each_table_has_rows_that_can_be_named(broker: Broker) -> None:
    with connected(broker.dsn) as connection:
        assert ask(connection, NAMELESS) == []


def test_all_of_upkeep_works_beside_a_publication_of_all_tables(timed_broker: Broker, clock: Clock) -> None:
    broker = timed_broker
    with connected(as_user(broker.dsn, SUPERUSER)) as connection:
        ask(connection, "create publication everything for all tables")
    broker.create_topic("t", max_delay=60 * DAY, retention=DAY)
    broker.create_topic("fifo", message_type="FIFO")
    broker.create_topic("gone", max_delay=60 * DAY)
    broker.send("gone", b"", delay=30 * DAY)
    consumers = [
        broker.consumer(topic, "g", retry=policy)
        for topic, policy in (
            ("t", RetryPolicy.unordered(max_retries=1)),
            ("fifo", RetryPolicy.ordered(max_retries=1)),
        )
    ]
    for day in range(40):
        broker.send("t", b"", delay=day * DAY, key=str(day), idempotency_key=str(day))
    broker.recall_key("t", "7")
    broker.delete_topic("gone")
    dropped: set[str] = set()
    for day in range(45):
        clock.advance(DAY)
        broker.send("fifo", b"", message_group=str(day % 3))
        report = broker.maintain()
        assert report.warnings == ()
        dropped.update(report.dropped)
        for topic in ("t", "fifo"):
            broker.tick(topic)
        for consumer in consumers:
            if batch := consumer.receive(100):
                consumer.nack(batch) if day % 2 else consumer.ack(batch)
    with connected(broker.dsn) as connection:
        assert ask(connection, "select count(*) from duewheel.far_message") == [(0,)]
        assert ask(connection, "select count(*) > 20 from pg_publication_tables") == [(True,)]
    assert len(dropped) > 20
    broker.rewind("g", "t", "latest")
    broker.delete_group("g")
    broker.delete_topic("t")
    broker.maintain()
