"""The clock of a test's database: it holds for every program that reaches the database, and only a test moves
it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from tests.acting import bodies, rows

from duewheel.store import Broker, InvalidArgument
from duewheel.testing import BrokerInTest

HALF_AN_HOUR = timedelta(minutes=30)

#: The functions that bound how long they work or wait, in real time. Where the test below names another one,
#: it has a line with "until" or "stop_at": is that a deadline, too?
WAIT_IN_REAL_TIME = {
    "answer",
    "delete_group",
    "due_histogram",
    "flow_histogram",
    "forget_instances",
    "forget_topics",
    "group_doorbells",
    "lock_lease",
    "lock_leases",
    "lock_queues",
    "lock_until",
    "many_due_steps",
    "messages_by_name",
    "release_lateness",
    "release_lease",
    "releases_between",
    "retry_now",
    "slots_over_limit",
    "waiting_messages",
    "upkeep_step",
}


@pytest.fixture
def topic(duewheel: BrokerInTest) -> BrokerInTest:
    """The broker with a DELAY topic ``t`` of one queue."""
    duewheel.create_topic("t", queues=1)
    return duewheel


@pytest.fixture
def stranger(topic: BrokerInTest) -> Iterator[Broker]:
    """Another program on the same database, which knows nothing of a clock."""
    with Broker(topic.dsn) as broker:
        yield broker


def test_it_starts_at_the_present(duewheel: BrokerInTest) -> None:
    assert abs(datetime.now(UTC) - duewheel.time) < HALF_AN_HOUR
    assert duewheel.time.microsecond == 0
    assert duewheel.time == duewheel.time


def test_readings_never_repeat_or_go_back(duewheel: BrokerInTest) -> None:
    readings: list[datetime] = []

    def read() -> None:
        with closing(psycopg2.connect(duewheel.dsn)) as connection, connection.cursor() as cursor:
            for _ in range(200):
                cursor.execute("select duewheel_testing.read_clock()")
                readings.extend(instant for (instant,) in cursor.fetchall())

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(readings)) == 600


def test_a_program_that_knows_nothing_of_it_goes_by_it(topic: BrokerInTest, stranger: Broker) -> None:
    sent = stranger.send("t", b"1", delay=HALF_AN_HOUR)
    assert timedelta(0) <= sent.deliver_at - topic.time - HALF_AN_HOUR < timedelta(seconds=1)
    topic.advance(minutes=29)
    consumer = stranger.consumer("t", "g")
    assert not consumer.receive()
    topic.advance(minutes=1)
    assert bodies(consumer.receive()) == [b"1"]


def test_sql_goes_by_it_however_far_it_was_moved(topic: BrokerInTest, stranger: Broker) -> None:
    topic.advance(days=10)
    rows(topic, "select duewheel.send('t', 'late', delay => interval '30 min')")
    (message,) = topic.list_messages("t").messages
    assert timedelta(0) <= message.deliver_at - topic.time - HALF_AN_HOUR < timedelta(seconds=1)
    assert not stranger.consumer("t", "g").receive()
    topic.advance(HALF_AN_HOUR)
    assert bodies(stranger.consumer("t", "g").receive()) == [b"late"]


def test_leases_and_retries_go_by_it(topic: BrokerInTest, stranger: Broker) -> None:
    topic.send("t", b"1", delay=timedelta(0))
    consumer = stranger.consumer("t", "g")
    first = consumer.receive(invisible=timedelta(minutes=1))
    assert bodies(first) == [b"1"]
    topic.advance(seconds=59)
    assert not consumer.receive()
    topic.advance(seconds=1)
    (again,) = consumer.receive()
    assert again.attempt == 2
    consumer.nack([again])
    assert not consumer.receive()
    topic.advance(minutes=1)
    (third,) = consumer.receive()
    assert third.attempt == 3
    consumer.ack([third])
    topic.advance(days=1)
    assert not consumer.receive()


def test_schedules_occur_one_after_the_other_while_it_moves(topic: BrokerInTest) -> None:
    topic.create_schedule("hourly", "t", b"tick", every=timedelta(hours=1), misfire="once")
    topic.advance(hours=5)
    messages = topic.consumer("t", "g").receive()
    hours = [(message.deliver_at - messages[0].deliver_at) / timedelta(hours=1) for message in messages]
    assert hours == [0, 1, 2, 3, 4]


def test_it_never_goes_back(duewheel: BrokerInTest) -> None:
    with pytest.raises(InvalidArgument, match="never set back"):
        duewheel.advance(minutes=-1)
    with pytest.raises(InvalidArgument, match="never set back"):
        duewheel.advance_to(duewheel.time - timedelta(seconds=1))


@pytest.mark.parametrize(("by", "span"), [(None, {}), (HALF_AN_HOUR, {"minutes": 1})])
def test_a_move_is_a_span_or_its_parts(
    duewheel: BrokerInTest, by: timedelta | None, span: dict[str, float]
) -> None:
    with pytest.raises(InvalidArgument, match="advance takes a timedelta or its parts"):
        duewheel.advance(by, **span)


def test_only_functions_that_wait_use_the_real_clock(duewheel: BrokerInTest) -> None:
    listing = """
        select p.proname from pg_proc p where p.pronamespace = 'duewheel'::regnamespace
        and p.prokind in ('f', 'p') and position('clock_timestamp()' in pg_get_functiondef(p.oid)) > 0
    """
    assert {name for (name,) in rows(duewheel, listing)} == WAIT_IN_REAL_TIME


def test_no_default_and_no_view_reads_the_real_clock(duewheel: BrokerInTest) -> None:
    defaults = "select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d"
    views = "select definition from pg_views where schemaname = 'duewheel'"
    for listing in (defaults, views):
        assert not [text for (text,) in rows(duewheel, listing) if "clock_timestamp" in text]


def test_the_schema_is_this_programs(duewheel: BrokerInTest) -> None:
    duewheel.check()


def test_reading_the_clock_gives_a_transaction_no_id(topic: BrokerInTest) -> None:
    """A tick begins without one."""
    with closing(psycopg2.connect(topic.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("select duewheel_testing.read_clock() from generate_series(1, 100)")
        cursor.execute("select pg_current_xact_id_if_assigned() is null")
        assert cursor.fetchone() == (True,)
