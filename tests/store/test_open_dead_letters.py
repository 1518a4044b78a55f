"""Redrives begin behind dead letters that were sent again or discarded, and pass no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime

import psycopg2
import pytest
from tests.acting import AT_ONCE, HOUR, SECOND
from tests.clock import Clock
from tests.waiting import ask, beside, connected, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.retry_policy import RetryPolicy

pytestmark = pytest.mark.owner

NO_RETRIES = RetryPolicy.unordered(max_retries=0)
NOTE = "select duewheel.note_redrive_from(dead_letter_topic_id) from duewheel.subscription"
REASONS = "select reason from duewheel.dead_letter_reasons('g') where reason is not null order by 1"
REDRIVE_FROM = "select redrive_from from duewheel.topic where message_type = 'DEAD_LETTER'"


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    """A topic whose messages die at once, and portions of five dead letters."""
    timed_broker.create_topic("t", queues=1)
    timed_broker.consumer("t", "g", retry=NO_RETRIES)
    with connected(timed_broker.dsn) as connection:
        ask(connection, "create or replace function duewheel.portion() returns integer language sql return 5")
    return timed_broker


@contextmanager
def transaction(broker: Broker) -> Iterator[DriverConnection]:
    """An open transaction, which is rolled back at the end."""
    with closing(psycopg2.connect(broker.dsn)) as connection:
        yield connection
        connection.rollback()


def kill(broker: Broker, clock: Clock, names: str, connection: DriverConnection | None = None) -> None:
    """A dead letter for each letter, each a second after the one before."""
    consumer = broker.consumer("t", "g", retry=NO_RETRIES)
    for name in names:
        broker.send("t", name.encode(), key=name, delay=AT_ONCE)
        clock.advance(SECOND)
        (message,) = (message for message in consumer.receive() if message.key == name)
        consumer.nack([message], reason=f"{name} broke", connection=connection)


def noted(broker: Broker) -> datetime | None:
    """Up to where upkeep finds all dead letters done."""
    broker.maintain()
    with connected(broker.dsn) as connection:
        ((redrive_from,),) = ask(connection, REDRIVE_FROM)
    assert redrive_from is None or isinstance(redrive_from, datetime)
    return redrive_from


def open_keys(broker: Broker) -> str:
    """The keys of the open dead letters, which lists, counts and redrives agree on."""
    keys = [letter.key or "" for letter in broker.dead_letters("g", redriven=False)]
    with connected(broker.dsn) as connection:
        reasons = ask(connection, REASONS)
    assert [reason for (reason,) in reasons] == [f"{key} broke" for key in sorted(keys)]
    assert broker.redrive("g", dry_run=True).matched == len(keys)
    return "".join(keys)


def test_x12_upkeep_notes_where_open_dead_letters_begin(topic: Broker, clock: Clock) -> None:
    kill(topic, clock, "abcdefghijklmn")
    died = {letter.key: letter.dead_at for letter in topic.dead_letters("g")}
    assert noted(topic) is None
    topic.redrive("g", max_messages=1)
    # One is not worth it.
    assert noted(topic) is None
    topic.redrive("g", max_messages=8)
    topic.discard_dead_letters("g", reason_contains="k broke")
    assert noted(topic) == died["j"]
    assert open_keys(topic) == "jlmn"
    assert len(topic.dead_letters("g")) == 13
    topic.discard_dead_letters("g", reason_contains="j broke")
    assert noted(topic) == died["l"]
    topic.redrive("g")
    # The instant of the last one: others may have died at it.
    assert noted(topic) == died["n"]
    assert open_keys(topic) == ""
    kill(topic, clock, "o")
    assert open_keys(topic) == "o"


def test_x12_a_redrive_that_is_rolled_back_is_not_passed(topic: Broker, clock: Clock) -> None:
    kill(topic, clock, "abcdefgh")
    with transaction(topic) as open_one:
        ask(open_one, "select duewheel.redrive('g', max_messages => 5)")
        assert noted(topic) is None
    assert open_keys(topic) == "abcdefgh"


def test_x12_a_dead_letter_that_commits_late_is_not_passed(topic: Broker, clock: Clock) -> None:
    with transaction(topic) as late:
        kill(topic, clock, "a", late)
        kill(topic, clock, "bcdefgh")
        topic.redrive("g", max_messages=5)
        assert noted(topic) is None
        late.commit()
    assert open_keys(topic) == "agh"
    assert noted(topic) is None
    topic.redrive("g", max_messages=1)
    assert noted(topic) is not None
    assert open_keys(topic) == "gh"


def test_x12_x27_a_clock_set_back_hides_no_dead_letter(topic: Broker, clock: Clock) -> None:
    kill(topic, clock, "abcdefgh")
    topic.redrive("g", max_messages=6)
    redrive_from = noted(topic)
    clock.advance(-HOUR)
    kill(topic, clock, "i")
    assert sorted(open_keys(topic)) == ["g", "h", "i"]
    assert topic.dead_letters("g", redriven=False)[0].dead_at == redrive_from


def test_x12_a_death_waits_while_upkeep_notes_the_place(topic: Broker, clock: Clock) -> None:
    kill(topic, clock, "abcdefgh")
    topic.redrive("g", max_messages=6)
    with beside() as start, transaction(topic) as upkeep:
        assert ask(upkeep, NOTE) == [(True,)]
        clock.advance(-HOUR)
        death = start(lambda: kill(topic, clock, "i"))
        until_somebody_waits(topic.dsn)
        upkeep.commit()
        death.result()
    assert sorted(open_keys(topic)) == ["g", "h", "i"]
