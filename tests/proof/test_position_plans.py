"""A position is found in a few steps, whatever the tables held when the plan was made.

No table is analyzed, thousands of messages are due at one instant, and the server takes random reads to be
dear, as by default, or cheap, as most are told.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.acting import rows
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection

FETCHED = """
select coalesce(sum(seq_tup_read + idx_tup_fetch), 0) from pg_stat_xact_user_tables
where schemaname = 'duewheel' and relname ~ '^((far_)?message|straggler)'
"""
#: Latecomers that all groups have received.
LATECOMERS = """
insert into duewheel.straggler (topic_id, queue, tick_id, deliver_at, seq, behind_at)
select t.topic_id, 0, k.tick_id, k.lo + n * interval '1 microsecond', n * 65536, k.lo
from duewheel.topic t cross join lateral duewheel.newest_tick(t.topic_id) k, generate_series(1, 5000) n
where t.name = 't'
"""
IS_NEEDED = "select duewheel.is_needed(t, 'infinity') from duewheel.topic t where %s <> ''"
NEXT_DUE = (
    "select duewheel.next_due(s.group_id, s.topic_id, null) from duewheel.subscription s where %s <> ''"
)
STATEMENTS = (
    "select * from duewheel.find(%s)",
    "select * from duewheel.history(%s)",
    "select duewheel.recall(%s)",
    "select duewheel.reschedule(%s, null, '1 hour')",
)


#: At the end of a flood: a look at one message, and a page that begins behind it.
AT_THE_END = (
    "duewheel.message_of(t.topic_id, 0, %(at)s, %(seq)s)",
    "duewheel.listed_after(t, 'all', %(at)s, 'infinity', %(at)s, %(seq)s, 10)",
    "duewheel.listed_after(t, 'waiting', '-infinity', 'infinity', %(at)s, %(seq)s, 10)",
)


def fetched(session: DriverConnection, statement: str, message_id: str) -> int:
    """How many messages one call has fetched from the tables; it leaves nothing behind."""
    ask(session, "begin")
    try:
        ((before,),) = ask(session, FETCHED)
        ask(session, statement, message_id)
        ((after,),) = ask(session, FETCHED)
    finally:
        ask(session, "rollback")
    return int(after - before)


@pytest.mark.slow
@pytest.mark.parametrize("random_page_cost", [1.1, 4])
@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=300)], ids=["near", "far"])
def test_one_of_thousands_of_an_instant_is_found_by_its_id(
    broker: Broker, ahead: timedelta, random_page_cost: float
) -> None:
    broker.create_topic("t", max_delay=timedelta(days=3650))
    ((at,),) = rows(broker, "select now() + %s", ahead)
    with connected(broker.dsn) as session:
        ask(session, f"set random_page_cost = {random_page_cost}")
        for count in (1, 300, 3_000, 12_000):
            receipts = broker.send_many(
                "t", [{"body": b"x" * 200, "deliver_at": at, "key": f"{count} {n}"} for n in range(count)]
            )
            # With the plans of when there were few, and with a new session's.
            with connected(broker.dsn) as new:
                ask(new, f"set random_page_cost = {random_page_cost}")
                for statement in STATEMENTS:
                    for one in (session, new):
                        assert fetched(one, statement, receipts[-1].message_id) <= 10, (statement, count)


def test_a_group_that_waits_reads_no_latecomers_that_it_has_had(broker: Broker) -> None:
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    broker.send("t", b"x", delay=timedelta(0))
    broker.tick("t")
    rows(broker, LATECOMERS)
    while batch := consumer.receive(10_000):
        consumer.ack(batch)
    broker.send("t", b"x", delay=timedelta(0))
    broker.tick("t")
    consumer.ack(consumer.receive())
    with connected(broker.dsn) as session:
        assert fetched(session, NEXT_DUE, "any") <= 50


def test_upkeep_reads_no_latecomers_that_all_groups_have_acked(broker: Broker) -> None:
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    with connected(broker.dsn, autocommit=False) as late:
        broker.send_many("t", [{"body": b"x", "delay": timedelta(0)}] * 2_000, connection=late)
        broker.send("t", b"x", delay=timedelta(milliseconds=1))
        broker.tick("t")
        late.commit()
    broker.tick("t")
    while batch := consumer.receive(20):
        consumer.ack(batch)
    with connected(broker.dsn) as session:
        assert fetched(session, IS_NEEDED, "any") <= 50


def pages(session: DriverConnection, statement: str, position: dict[str, object]) -> int:
    """How many pages of tables and indexes one call touches."""
    explained = f"explain (analyze, buffers, format json) select f.* from duewheel.topic t, {statement} f"
    with session.cursor() as cursor:
        cursor.execute(f"{explained} where t.name = 't'", position)
        ((plan,),) = cursor.fetchall()
    top = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])


def test_the_last_of_an_instant_costs_no_more_than_the_first(broker: Broker) -> None:
    """Else each of a flood of latecomers would be looked for among all before it."""
    broker.create_topic("t", queues=1)
    ((at,),) = rows(broker, "select now() + interval '1 hour'")
    broker.send_many("t", [{"body": b"x", "deliver_at": at}] * 30_000)
    with connected(broker.dsn) as session:
        statement = "select min(seq), max(seq) from duewheel.message where deliver_at = %s"
        ((first, last),) = ask(session, statement, at)
        for statement in AT_THE_END:
            cost = [
                min(pages(session, statement, {"at": at, "seq": seq}) for _ in range(3))
                for seq in (first, last)
            ]
            assert cost[1] <= cost[0] + 20, (statement, cost)
