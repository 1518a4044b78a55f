"""What the wheel asks: what is due on which topic, page by page or soon, and which leases end."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from tests.acting import AT_ONCE, MICROSECOND, MILLISECOND, SECOND, rows
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker

DUE_TOPICS = "select topic_id, due_at from duewheel.due_topics(%s, %s, %s, %s)"
DUE_SOON = "select topic_id, min(due_at) from duewheel.due_soon(%s, %s) group by topic_id order by topic_id"
NEXT_INSTANT = "select min(due_at) from duewheel.due_topics(%s, 1, null, %s) where topic_id = %s"
LEASE_ENDS = "select topic_id, expires_at from duewheel.lease_ends(%s, %s)"
LEASE_ENDS_OF_TOPICS = "select topic_id, expires_at from duewheel.lease_ends_of_topics(%s, %s, %s)"


def topic_id(broker: Broker, name: str) -> int:
    ((number,),) = rows(broker, "select topic_id from duewheel.topic where name = %s", name)
    return int(number)


def make_topics(broker: Broker, *names: str) -> list[int]:
    for name in names:
        broker.create_topic(name, granularity=timedelta(milliseconds=5))
    return [topic_id(broker, name) for name in names]


def test_pages_have_every_topic_once_with_its_first_instant(timed_broker: Broker, clock: Clock) -> None:
    topic_ids = make_topics(timed_broker, "a", "b", "c", "d", "e")
    start = clock()
    for seconds in (90, 5, 30, 7_000):
        timed_broker.send("b", b"1", delay=seconds * SECOND)
    timed_broker.send("d", b"1", delay=3 * SECOND)
    found: list[tuple[int, datetime]] = []
    ends: list[int] = []
    after, page_size = 0, 2
    while True:
        page = rows(timed_broker, DUE_TOPICS, after, page_size, None, start + 60 * SECOND)
        found += [row for row in page if row[1] is not None]
        if not page or page[-1][1] is not None:
            break
        after = page[-1][0]
        ends.append(after)
    assert found == [(topic_ids[1], start + 5 * SECOND), (topic_ids[3], start + 3 * SECOND)]
    assert ends == [topic_ids[1], topic_ids[3]]


def test_what_was_ticked_deleted_or_is_a_dead_letter_is_not_due(timed_broker: Broker, clock: Clock) -> None:
    ticked, deleted, waiting = make_topics(timed_broker, "ticked", "deleted", "waiting")
    timed_broker.consumer("waiting", "g")
    for name in ("ticked", "deleted", "waiting"):
        timed_broker.send(name, b"1", delay=SECOND)
    timed_broker.send("ticked", b"2", delay=5 * SECOND)
    clock.advance(2 * SECOND)
    rows(timed_broker, "call duewheel.tick('ticked', %s)", clock())
    timed_broker.delete_topic("deleted")
    to = clock() + SECOND
    due = [(waiting, clock() - SECOND)]
    assert rows(timed_broker, DUE_TOPICS, 0, 100, None, to) == due
    assert rows(timed_broker, DUE_SOON, clock() - 600 * SECOND, to) == due
    assert rows(timed_broker, DUE_SOON, clock(), to) == []
    for number in (ticked, deleted):
        assert rows(timed_broker, NEXT_INSTANT, number - 1, to, number) == [(None,)]
    later = clock() + 10 * SECOND
    assert rows(timed_broker, NEXT_INSTANT, ticked - 1, later, ticked) == [(clock() + 3 * SECOND,)]
    assert rows(timed_broker, NEXT_INSTANT, waiting - 1, later, waiting) == [(clock() - SECOND,)]


def test_x13_a_message_due_after_a_tick_ahead_is_due_now(timed_broker: Broker, clock: Clock) -> None:
    (number,) = make_topics(timed_broker, "t")
    timed_broker.send("t", b"1", delay=AT_ONCE)
    clock.advance(60 * SECOND)
    rows(timed_broker, "call duewheel.tick('t', %s)", clock())
    hi = clock()
    clock.advance(-50 * SECOND)
    timed_broker.send("t", b"2", delay=AT_ONCE)
    ((found, due_at),) = rows(timed_broker, DUE_TOPICS, 0, 100, None, clock() + SECOND)
    assert found == number
    assert due_at != hi + timedelta(microseconds=1)


def test_w02_a_flood_of_far_messages_hides_no_other_topic(timed_broker: Broker, clock: Clock) -> None:
    """Nothing makes slots here, so all stay far; those that were released hide none either."""
    flood, quiet = make_topics(timed_broker, "flood", "quiet")
    timed_broker.send_many("flood", [{"body": b"", "delay": SECOND}] * 1_500)
    timed_broker.send("quiet", b"", delay=2 * SECOND)
    clock.advance(SECOND)
    look = (clock() - 600 * SECOND, clock() + 2 * SECOND)
    assert rows(timed_broker, DUE_SOON, *look) == [(flood, clock()), (quiet, clock() + SECOND)]
    rows(timed_broker, "call duewheel.tick('flood', %s)", clock())
    assert rows(timed_broker, DUE_SOON, *look) == [(quiet, clock() + SECOND)]


def pages_of_a_poll(dsn: str, *look: datetime) -> int:
    """The pages that a poll touches in a session that has polled before."""
    with connected(dsn) as connection:
        for _ in range(2):
            # The second poll reads no catalog: its plans are made.
            ((plan,),) = ask(
                connection,
                "explain (analyze, buffers, format json) select * from duewheel.due_soon(%s, %s)",
                *look,
            )
    top = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])


def test_x17_a_poll_costs_only_messages_due_soon(timed_broker: Broker, clock: Clock) -> None:
    make_topics(timed_broker, "busy")
    # Makes the slots of these days.
    timed_broker.maintain()
    timed_broker.send("busy", b"1", delay=SECOND)
    look = (clock() - 600 * SECOND, clock() + 2 * SECOND)
    before = pages_of_a_poll(timed_broker.dsn, *look)
    for name in make_topics(timed_broker, *(f"idle{number}" for number in range(40))):
        timed_broker.send(f"idle{name - 2}", b"1", delay=timedelta(hours=23))
    assert pages_of_a_poll(timed_broker.dsn, *look) <= before + 60
    timed_broker.send_many("busy", [{"body": b"1", "delay": SECOND} for _ in range(20_000)])
    assert pages_of_a_poll(timed_broker.dsn, *look) <= before + 60


def test_x17_the_first_message_of_a_queue_is_read_once(timed_broker: Broker, clock: Clock) -> None:
    """A topic costs three lookups: its first message, its tick, its row. Only a ticked message costs more."""
    names = [f"soon{number}" for number in range(40)]
    make_topics(timed_broker, *names)
    timed_broker.maintain()
    look = (clock() - 600 * SECOND, clock() + 5 * SECOND)
    before = pages_of_a_poll(timed_broker.dsn, *look)
    for name in names:
        timed_broker.send(name, b"1", delay=SECOND)
    # A lookup is two pages of an index or one, and one of the table: eight pages with two lookups more.
    assert pages_of_a_poll(timed_broker.dsn, *look) <= before + 40 * 7
    clock.advance(2 * SECOND)
    for name in names:
        rows(timed_broker, "call duewheel.tick(%s, %s)", name, clock())
        timed_broker.send(name, b"2", delay=2 * SECOND)
    due = rows(timed_broker, DUE_SOON, *look)
    assert [due_at for _, due_at in due] == [clock() + 2 * SECOND] * 40


def test_d07_the_end_of_a_lease_is_found_by_when_it_is(timed_broker: Broker, clock: Clock) -> None:
    (number,) = make_topics(timed_broker, "t")
    consumer = timed_broker.consumer("t", "g")
    for body in (b"1", b"2", b"3"):
        timed_broker.send("t", body, delay=AT_ONCE)
    start = clock()
    answered, extended, left = (consumer.receive(1, invisible=10 * SECOND) for _ in range(3))
    assert all((answered, extended, left))
    window = (start + 9 * SECOND, start + 11 * SECOND)
    assert rows(timed_broker, LEASE_ENDS, *window) == [(number, start + 10 * SECOND)]
    consumer.ack(answered)
    consumer.change_invisible_duration(extended, 30 * SECOND)
    consumer.nack(left, delay=AT_ONCE)
    assert rows(timed_broker, LEASE_ENDS, *window) == []
    later = (start + 29 * SECOND, start + 31 * SECOND)
    assert rows(timed_broker, LEASE_ENDS, *later) == [(number, start + 30 * SECOND)]
    # A retry's lease belongs to the subscription of the topic.
    (retry,) = consumer.receive(1, invisible=20 * SECOND)
    assert retry.attempt == 2
    assert rows(timed_broker, LEASE_ENDS, start + 19 * SECOND, start + 21 * SECOND) == [
        (number, start + 20 * SECOND)
    ]
    everything = start + 60 * SECOND
    assert rows(timed_broker, LEASE_ENDS_OF_TOPICS, 0, number, everything) == [(number, start + 20 * SECOND)]
    assert rows(timed_broker, LEASE_ENDS_OF_TOPICS, number, number + 1, everything) == []


#: Leases of one message that end a millisecond apart, from the microsecond after an instant on.
MANY_LEASES = """
insert into duewheel.lease (from_at, from_seq, to_at, to_seq, straggler_from, straggler_to, n, token,
    leased_at, expires_at, revived_to, topic_id, group_id, message_count, queue)
select l.from_at, l.from_seq, l.to_at, l.to_seq, l.straggler_from, l.straggler_to, l.n + i, 5, l.leased_at,
       %s + interval '1 us' + (i - 1) * interval '1 ms', l.revived_to, l.topic_id, l.group_id, 1, l.queue
from duewheel.newest_lease(%s, %s, 0) l, generate_series(1, 10000) i
"""


@pytest.mark.owner
def test_leases_that_end_in_the_same_tenth_share_an_entry(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    # In the middle of a tenth of a second.
    ends = clock().replace(microsecond=50_000) + SECOND
    with connected(topic.dsn) as session:
        ask(session, MANY_LEASES, ends, consumer.group_id, consumer.topic_id)
        ((size,),) = ask(session, "select pg_relation_size('duewheel.lease_end')")
        assert size / 10_000 < 12
        found = [
            [at for _, at in ask(session, LEASE_ENDS, first, last)]
            for first, last in (
                (ends, ends),
                (ends, ends + MICROSECOND),
                (ends + MICROSECOND, ends + 2 * MILLISECOND),
                (ends - SECOND, ends),
            )
        ]
    assert found == [[], [ends + MICROSECOND], [ends + MICROSECOND + MILLISECOND], []]
