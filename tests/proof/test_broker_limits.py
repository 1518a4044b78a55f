"""What a broker bears: many topics, groups and replaces, logs that do not grow, ids at their end.

The second table of docs/reference/limits.md has a row for each.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.acting import AT_ONCE, DAY, MILLISECOND, SECOND, rows
from tests.clock import Clock
from tests.turning import turning
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.messages import RecallOutcome

TOPICS = 10_000
GROUPS = 1_000
REPLACES = 20_000
#: Of topics or groups that are made at a time.
PORTION = 250
#: Of a broker that lives long.
MESSAGES = int(os.environ.get("DUEWHEEL_SIMULATED_MESSAGES", "20000"))
DAYS = 20
LOGS = (
    *("tick", "lease", "lease_event", "lease_extension", "lease_answer", "lease_message"),
    *("straggler", "recall", "moved_id"),
)
#: The last number of a message's block.
LAST_BLOCK = (1 << 63) // 65536 - 1

#: As a sender writes them, due now.
SEND = """
insert into duewheel.message (topic_id, queue, deliver_at, seq, xid, born_at, body)
select t.topic_id, n %% t.queues, %s, nextval('duewheel.message_block') * 65536, pg_current_xact_id(), %s, 'x'
from duewheel.topic t, generate_series(1, %s) n where t.name = 't'
"""

pytestmark = [pytest.mark.owner]


def counts(broker: Broker) -> dict[str, int]:
    """The rows of each log."""
    return {name: rows(broker, f"select count(*) from duewheel.{name}")[0][0] for name in LOGS}


def in_portions(broker: Broker, what: str, count: int) -> None:
    """Select something for each number up to a count, some hundreds at a time.

    Each portion is planned for the tables as they are by then.
    """
    for first in range(1, count, PORTION):
        with connected(broker.dsn) as connection:
            last = first + PORTION - 1
            ask(connection, f"select {what} from generate_series(%s, %s) n", first, last)
            ask(connection, "analyze duewheel.topic, duewheel.subscription, duewheel.lease")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_thousand_topics_with_a_group_each_deliver(broker: Broker) -> None:
    in_portions(
        broker,
        "duewheel.create_topic('t' || n, queues => 1), duewheel.subscribe('t' || n, 'g')",
        TOPICS,
    )
    with turning(broker):
        for number in (1, TOPICS // 2, TOPICS):
            consumer = broker.consumer(f"t{number}", "g")
            broker.send(f"t{number}", b"x", delay=200 * MILLISECOND)
            (message,) = consumer.receive(wait=30 * SECOND)
            consumer.ack([message])
        broker.maintain()
    assert len(broker.topics()) >= TOPICS


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_thousand_groups_of_one_topic_each_get_a_message_once(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1)
    in_portions(timed_broker, f"duewheel.subscribe('t', 'g' || n, now => '{clock()}')", GROUPS)
    sent = timed_broker.send("t", b"x", delay=AT_ONCE).message_id
    timed_broker.tick("t")
    for number in range(1, GROUPS + 1):
        consumer = timed_broker.consumer("t", f"g{number}")
        (message,) = consumer.receive()
        assert message.message_id == sent
        consumer.ack([message])
        assert not consumer.receive()
    clock.advance(10 * DAY)
    timed_broker.tick("t")
    timed_broker.maintain()
    timed_broker.maintain()
    assert rows(timed_broker, "select count(*) from duewheel.any_message") == [(0,)]
    left = counts(timed_broker)
    assert left["lease"] <= 2 * GROUPS, left


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_x21_after_20_000_replaces_any_id_finds_the_message(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1, max_delay=2 * DAY)
    consumer = timed_broker.consumer("t", "g")
    first = timed_broker.send("t", b"first", key="k", delay=DAY, on_conflict="replace").message_id
    with connected(timed_broker.dsn) as connection:
        ask(
            connection,
            f"do $$ begin for n in 1 .. {REPLACES} loop"
            "  perform duewheel.send('t', 'again', key => 'k', delay => interval '1 day',"
            "                        on_conflict => 'replace', now => %s);"
            "  commit; end loop; end $$",
            clock(),
        )
    waiting = [message for message in timed_broker.find_key("t", "k") if not message.recalled]
    assert len(waiting) == 1
    assert timed_broker.recall(first).outcome.value == "replaced"
    assert timed_broker.recall_key("t", "k").outcome is RecallOutcome.RECALLED
    clock.advance(10 * DAY)
    timed_broker.tick("t")
    assert not consumer.receive()
    timed_broker.maintain()
    timed_broker.maintain()
    assert sum(counts(timed_broker).values()) < 20, counts(timed_broker)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_logs_do_not_grow_with_all_messages_ever_sent(timed_broker: Broker, clock: Clock) -> None:
    """Of every day the rows go when its retention is over: what is there is that of a few days."""
    clock.set(datetime.now(UTC))
    timed_broker.create_topic("t", queues=4, retention=2 * DAY)
    consumer = timed_broker.consumer("t", "g")
    a_day = MESSAGES // DAYS
    most: Counter[str] = Counter()
    received = 0
    for day in range(DAYS):
        # As a send does it: after what was released.
        clock.advance(SECOND)
        with connected(timed_broker.dsn) as connection:
            ask(connection, SEND, clock(), clock(), a_day)
        clock.advance(SECOND)
        timed_broker.tick("t")
        while batch := consumer.receive(max_messages=10_000):
            consumer.ack(batch)
            received += len(batch)
        clock.advance(DAY)
        timed_broker.tick("t")
        timed_broker.maintain()
        there = counts(timed_broker)
        if day < DAYS // 2:
            most |= Counter(there)
    assert received == DAYS * a_day
    late = counts(timed_broker)
    assert all(late[name] <= most[name] + 4 for name in LOGS), (late, most)
    kept_days = 4
    assert rows(timed_broker, "select count(*) from duewheel.any_message")[0][0] <= kept_days * a_day


def test_the_last_number_of_a_message_is_taken_and_no_more(timed_broker: Broker, clock: Clock) -> None:
    """After 8.8 trillion sends."""
    timed_broker.create_topic("t", queues=1)
    consumer = timed_broker.consumer("t", "g")
    rows(timed_broker, f"select setval('duewheel.message_block', {LAST_BLOCK - 16 - LAST_BLOCK % 16 + 1})")
    last = timed_broker.send("t", b"x", delay=AT_ONCE)
    timed_broker.tick("t")
    assert [message.message_id for message in consumer.receive()] == [last.message_id]
    with pytest.raises(Exception, match=r"maximum value of sequence|bigint out of range"):
        timed_broker.send("t", b"x", delay=AT_ONCE)


def test_only_topic_and_group_numbers_wrap(broker: Broker) -> None:
    found: list[tuple[Any, ...]] = rows(
        broker,
        "select sequencename, max_value, cycle from pg_sequences where schemaname = 'duewheel' order by 1",
    )
    cycling = {name for name, _, cycle in found if cycle}
    assert cycling == {"subscription_group_id_seq", "topic_topic_id_seq"}
    small = {name for name, most, cycle in found if most < 2**63 - 1 and not cycle}
    assert small == {"schedule_schedule_id_seq"}
