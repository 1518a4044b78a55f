"""FIFO topics: the messages of one message group come in order, one holder at a time (D10, R07, R08)."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import datetime, timedelta

import psycopg2
import pytest
from tests.clock import Clock
from tests.conftest import execute
from tests.standing_time import StandingTime
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected, until, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.consuming import push_consumer
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.errors import LeaseLost, WrongMessageType
from duewheel.store.values.messages import Batch, Message, MessageType

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def bodies(batch: Batch) -> list[str]:
    """What a batch brought, in its order."""
    return [message.body.decode() for message in batch]


@pytest.fixture
def steps(timed_broker: Broker) -> Broker:
    """A broker with the FIFO topic ``steps`` of one queue."""
    timed_broker.create_topic("steps", message_type="FIFO", queues=1)
    return timed_broker


def send(broker: Broker, *names: str) -> None:
    """Sends messages, each of the message group its name begins with, in one transaction each."""
    for name in names:
        broker.send("steps", name, message_group=name[0])


def receive(consumer: Consumer, clock: Clock, most: int = 32) -> Batch:
    """What is ready a millisecond later, for a minute."""
    clock.advance(timedelta(milliseconds=1))
    return consumer.receive(most, MINUTE)


def test_d10_a_fifo_topic_needs_a_message_group_and_takes_no_delay(steps: Broker) -> None:
    assert [topic.message_type for topic in steps.topics()] == [MessageType.FIFO]
    with pytest.raises(
        WrongMessageType, match=r"FIFO and the message has no message group.*Give message_group"
    ):
        steps.send("steps", "x")
    with pytest.raises(WrongMessageType, match="FIFO and the message has a delivery time"):
        steps.send("steps", "x", message_group="a", delay=SECOND)
    with pytest.raises(WrongMessageType, match="no message group") as failure:
        steps.send_many("steps", [{"body": "x", "message_group": "a"}, {"body": "y"}])
    assert failure.value.index == 1
    with pytest.raises(WrongMessageType, match="has a delivery time"):
        steps.send_many("steps", [{"body": "x", "message_group": "a", "delay": SECOND}])


def test_messages_come_in_the_order_of_sending_though_the_clock_steps_back(
    steps: Broker, clock: Clock
) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "b1")
    clock.advance(-10 * SECOND)
    send(steps, "a2")
    steps.send_many("steps", [{"body": name, "message_group": "a"} for name in ("a3", "a4")])
    clock.advance(-10 * SECOND)
    send(steps, "a5", "b2")
    clock.advance(MINUTE)
    assert bodies(receive(consumer, clock)) == ["a1", "b1", "a2", "a3", "a4", "a5", "b2"]


def test_a_message_group_in_somebodys_hands_is_given_to_nobody_else(steps: Broker, clock: Clock) -> None:
    first, second = steps.consumer("steps", "g"), steps.consumer("steps", "g")
    send(steps, "a1", "a2", "b1", "a3", "b2")
    held = receive(first, clock, 1)
    assert bodies(held) == ["a1"]
    others = receive(second, clock)
    assert bodies(others) == ["b1", "b2"]
    send(steps, "a4", "c1")
    assert bodies(receive(second, clock)) == ["c1"]
    first.ack(held)
    assert bodies(receive(second, clock)) == ["a2", "a3", "a4"]
    assert bodies(receive(first, clock)) == []


def test_five_messages_of_two_message_groups_go_as_the_example_says(
    steps: Broker, clock: Clock, dsn: str
) -> None:
    """The example at the top of 54_fifo.sql, step by step."""

    def backlog() -> list[tuple[object, ...]]:
        return ask(
            connection,
            "select convert_from(m.body, 'utf8'), b.blocked_n, b.due_at from duewheel.fifo_backlog b"
            " join duewheel.any_message m using (deliver_at, seq) order by b.place_n, b.deliver_at, b.seq",
        )

    first, second = steps.consumer("steps", "g"), steps.consumer("steps", "g")
    send(steps, "a1", "b1", "a2", "b2", "a3")
    with connected(dsn) as connection:
        held = receive(first, clock, 2)
        assert (bodies(held), held.leases[0].n, backlog()) == (["a1", "b1"], 1, [])
        assert bodies(receive(second, clock, 2)) == []
        assert backlog() == [("a2", 1, None), ("b2", 1, None), ("a3", None, None)]
        first.ack(held[0])
        failing = receive(second, clock, 2)
        assert (bodies(failing), failing.leases[0].n) == (["a2", "a3"], 3)
        assert backlog() == [("b2", 1, None)]
        second.nack(failing[0])
        assert backlog() == [("a2", None, clock() + SECOND), ("b2", 1, None), ("a3", None, None)]
        first.ack(held[1])
        freed = receive(first, clock, 2)
        assert (bodies(freed), freed.leases[0].n) == (["b2"], 4)
        clock.advance(SECOND)
        again = receive(second, clock, 2)
        assert (bodies(again), again.leases[0].n, backlog()) == (["a2", "a3"], 5, [])
        assert [message.attempt for message in again] == [2, 1]


def test_r07_a_failed_message_blocks_its_message_group_for_the_interval(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "a2", "a3", "b1")
    batch = receive(consumer, clock)
    consumer.ack(batch[3])
    consumer.nack(batch[0], reason="no")
    for late in batch[1:3]:
        with pytest.raises(LeaseLost):
            consumer.ack(late)
    send(steps, "a4", "b2")
    assert bodies(receive(consumer, clock)) == ["b2"]
    clock.advance(SECOND)
    again = receive(consumer, clock)
    assert bodies(again) == ["a1", "a2", "a3", "a4"]
    assert [message.attempt for message in again] == [2, 1, 1, 1]
    assert [message.message_id for message in again[:3]] == [message.message_id for message in batch[:3]]
    consumer.ack(again)
    assert bodies(receive(consumer, clock)) == []


def test_an_ended_lease_comes_again_at_once_and_in_order(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "a2")
    lost = receive(consumer, clock, 1)
    send(steps, "a3")
    assert not receive(consumer, clock)
    clock.advance(MINUTE)
    again = receive(consumer, clock)
    assert bodies(again) == ["a1", "a2", "a3"]
    assert [message.attempt for message in again] == [2, 1, 1]
    with pytest.raises(LeaseLost):
        consumer.ack(lost)


def test_one_message_group_does_not_hold_up_the_others(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, *(f"a{n}" for n in range(50)), "b0")
    consumer.nack(receive(consumer, clock, 1), timedelta(hours=1))
    assert bodies(receive(consumer, clock, 1)) == ["b0"]
    stats = steps.stats().topics[0].groups[0]
    assert (stats.ready, stats.inflight, stats.waiting_retry) == (0, 1, 1)
    clock.advance(timedelta(hours=1))
    assert steps.stats().topics[0].groups[0].ready == 50
    # What is new and what waited get half of a batch each.
    send(steps, *(f"c{n}" for n in range(20)))
    assert bodies(receive(consumer, clock, 10)) == [
        "a0",
        "a1",
        "a2",
        "a3",
        "b0",
        "c0",
        "c1",
        "c2",
        "c3",
        "c4",
    ]


def test_r07_after_the_last_retry_the_dead_letter_lets_its_message_group_go_on(
    steps: Broker, clock: Clock, dsn: str
) -> None:
    consumer = steps.consumer("steps", "g")
    execute(
        dsn, "update duewheel.consumer_group set ordered_max_retries = 1, ordered_interval = '20 seconds'"
    )
    send(steps, "a1", "a2", "a3")
    consumer.nack(receive(consumer, clock, 2)[0], reason="first")
    clock.advance(19 * SECOND)
    assert not receive(consumer, clock)
    clock.advance(SECOND)
    last = receive(consumer, clock, 2)
    assert [(message.body, message.reconsume_times) for message in last] == [(b"a1", 1), (b"a2", 0)]
    consumer.nack(last[0], reason="second")
    assert bodies(receive(consumer, clock)) == ["a2", "a3"]
    (letter,) = steps.dead_letters("g")
    assert (letter.body, letter.attempt, letter.reason) == (b"a1", 2, "second")
    assert letter.message_id == last[0].message_id


def test_each_message_of_a_lease_that_is_failed_as_a_whole_is_retried(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "a2", "b1")
    batch = receive(consumer, clock)
    consumer.ack(batch[2])
    consumer.nack(batch.leases)
    clock.advance(SECOND)
    assert [(message.body, message.attempt) for message in receive(consumer, clock)] == [
        (b"a1", 2),
        (b"a2", 2),
    ]


def test_an_explicit_delay_of_a_later_message_holds_what_is_behind_it(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "a2", "a3")
    batch = receive(consumer, clock)
    consumer.nack(batch[1], MINUTE / 2)
    assert not receive(consumer, clock)
    consumer.nack(batch[0])
    clock.advance(SECOND)
    first = receive(consumer, clock)
    assert bodies(first) == ["a1"]
    consumer.ack(first)
    assert not receive(consumer, clock)
    clock.advance(MINUTE / 2)
    assert bodies(receive(consumer, clock)) == ["a2", "a3"]


@pytest.mark.owner
def test_r07_a_message_group_goes_on_though_the_answer_came_in_the_midst_of_a_receive(
    steps: Broker, clock: Clock
) -> None:
    """The receive parks its messages as not free yet, and then finds that they are."""
    consumer = steps.consumer("steps", "g")
    send(steps, "a0", "a1", "a2", "a3")
    first = receive(consumer, clock, 1)
    with connected(steps.dsn) as connection, beside() as begin:
        # The receive stops where it has parked what it saw.
        ask(
            connection,
            """
            create function public.pause() returns trigger language plpgsql as $$
            begin perform pg_advisory_xact_lock_shared(4711); return null; end $$;
            create trigger pause after insert on duewheel.fifo_backlog execute function public.pause();
            """,
        )
        ask(connection, "select pg_advisory_lock(4711)")
        second = begin(lambda: receive(consumer, clock, 1))
        until_somebody_waits(steps.dsn)
        consumer.ack(first)
        ask(connection, "select pg_advisory_unlock(4711)")
        received = [first, second.result()]
    consumer.ack(received[-1])
    for _ in range(2):
        received.append(receive(consumer, clock, 1))
        consumer.ack(received[-1])
    assert [bodies(batch) for batch in received] == [["a0"], ["a1"], ["a2"], ["a3"]]


@pytest.mark.owner
def test_d14_a_listener_is_called_in_order_within_and_in_parallel_between_message_groups(
    broker: Broker,
) -> None:
    broker.create_topic("steps", message_type="FIFO", queues=2)
    calls: list[tuple[str, int]] = []
    lock = threading.Lock()
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def listen(message: Message) -> str:
        name = message.body.decode()
        if name.endswith("0"):
            # All three message groups are worked on at the same time.
            together.wait()
        with lock:
            calls.append((name, message.attempt))
        return "reconsume_later" if (name, message.attempt) in (("a2", 1), ("b3", 1)) else "success"

    broker.consumer("steps", "g")
    execute(broker.dsn, "update duewheel.consumer_group set ordered_interval = '50 milliseconds'")
    broker.send_many("steps", [{"body": f"{g}{n}", "message_group": g} for n in range(6) for g in "abc"])
    with broker.push_consumer("steps", "g", listen, threads=3):
        until(lambda: len(calls) >= 20, "all to be called")
    assert [call for call in calls if call[0][0] == "a"] == [
        ("a0", 1), ("a1", 1), ("a2", 1), ("a2", 2), ("a3", 1), ("a4", 1), ("a5", 1)]  # fmt: skip
    assert [call for call in calls if call[0][0] == "b"] == [
        ("b0", 1), ("b1", 1), ("b2", 1), ("b3", 1), ("b3", 2), ("b4", 1), ("b5", 1)]  # fmt: skip
    assert [name for name, _ in calls if name[0] == "c"] == [f"c{n}" for n in range(6)]


@pytest.mark.owner
def test_r03_a_listener_that_takes_too_long_gets_no_later_message_of_its_group(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing = StandingTime()
    monkeypatch.setattr(push_consumer, "time", passing)
    broker.create_topic("steps", message_type="FIFO", queues=1)
    calls: list[tuple[str, int]] = []
    working, over = threading.Event(), threading.Event()

    def listen(message: Message) -> str:
        calls.append((message.body.decode(), message.attempt))
        if message.attempt == 1 and message.body == b"a0":
            working.set()
            over.wait(PATIENCE_SECONDS)
        return "success"

    broker.consumer("steps", "g")
    execute(broker.dsn, "update duewheel.consumer_group set ordered_interval = '50 milliseconds'")
    broker.send_many("steps", [{"body": f"a{n}", "message_group": "a"} for n in range(3)])
    with broker.push_consumer("steps", "g", listen, threads=2, consume_timeout=MINUTE):
        assert working.wait(PATIENCE_SECONDS)
        passing.pass_by(61)
        until(lambda: len(calls) >= 4, "the others to be called")
        over.set()
    assert calls == [("a0", 1), ("a0", 2), ("a1", 1), ("a2", 1)]


def test_a_waiting_receive_knows_when_a_message_group_goes_on(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")

    def next_due() -> datetime | None:
        with steps.connection() as connection:
            rows = ask(
                connection,
                "select duewheel.next_due(%s, %s, %s)",
                consumer.group_id,
                consumer.topic_id,
                clock(),
            )
        instant: datetime | None = rows[0][0]
        return instant

    send(steps, "a1", "a2")
    first = receive(consumer, clock, 1)
    assert not receive(consumer, clock)
    assert next_due() == first.leases[0].expires_at
    consumer.nack(first)
    assert next_due() == clock() + SECOND
    clock.advance(SECOND)
    assert next_due() == clock()


def test_x12_a_redriven_message_comes_behind_what_was_seen_of_its_group(
    steps: Broker, clock: Clock, dsn: str
) -> None:
    consumer = steps.consumer("steps", "g")
    execute(dsn, "update duewheel.consumer_group set ordered_max_retries = 0")
    send(steps, "a1", "a2", "b1")
    batch = receive(consumer, clock)
    consumer.nack(batch[0], reason="no")
    consumer.ack(batch[2])
    (letter,) = steps.dead_letters("g")
    assert steps.redrive("g").redriven == 1
    again = receive(consumer, clock)
    assert bodies(again) == ["a2", "a1"]
    assert again[1].message_id == letter.message_id == batch[0].message_id
    consumer.nack(again[1], reason="no again")
    consumer.ack(again[0])
    assert [letter.reason for letter in steps.dead_letters("g")] == ["no", "no again"]
    assert not receive(consumer, clock)


def test_programs_in_any_language_consume_in_order(steps: Broker, clock: Clock) -> None:
    send(steps, "a1", "a2", "b1", "a3")

    def call(connection: DriverConnection, most: int) -> list[tuple[str, str, int]]:
        clock.advance(timedelta(milliseconds=1))
        steps.tick("steps")
        return [
            (handle, bytes(body).decode(), attempt)
            for handle, body, attempt in ask(
                connection,
                "select receipt_handle, body, attempt"
                " from duewheel.receive('steps', 'g', max_messages => %s, now => %s)",
                most,
                clock(),
            )
        ]

    with steps.connection() as connection:
        first, second = call(connection, 2)
        assert (first[1], second[1]) == ("a1", "a2")
        assert [name for _, name, _ in call(connection, 5)] == ["b1"]
        ask(connection, "select duewheel.nack(%s, now => %s)", [first[0]], clock())
        with pytest.raises(psycopg2.Error, match="answered before"):
            ask(connection, "select duewheel.ack(%s, now => %s)", [second[0]], clock())
        clock.advance(SECOND)
        assert [(name, attempt) for _, name, attempt in call(connection, 5)] == [
            ("a1", 2),
            ("a2", 1),
            ("a3", 1),
        ]


def test_ranges_of_a_fifo_topic_are_leased_without_splitting_a_message_group(
    steps: Broker, clock: Clock
) -> None:
    consumer = steps.consumer("steps", "g")
    names = [f"{group}{n}" for n in range(5) for group in "abcd"]
    send(steps, *names)
    clock.advance(SECOND)
    steps.tick("steps")
    with steps.connection() as connection:
        ranges = ask(
            connection,
            "select (lease).n, (lease).message_count"
            " from duewheel.receive_batch(%s, %s, null, 100, '60 s', 'job', 0, true, %s, true, 3, false)",
            consumer.group_id, consumer.topic_id, clock(),
        )  # fmt: skip
        read = [
            [
                bytes(body).decode()
                for (body,) in ask(
                    connection,
                    "select body from duewheel.lease_rows(%s, %s, 0, %s)",
                    consumer.group_id,
                    consumer.topic_id,
                    n,
                )
            ]
            for n, _ in ranges
        ]
    assert [len(part) for part in read] == [count for _, count in ranges]
    assert read == [["a0", "b0", "c0"], ["d0", "d1", "d2"]]


def test_a_message_is_kept_while_it_waits_for_its_message_group(steps: Broker, clock: Clock) -> None:
    steps.maintain()
    consumer = steps.consumer("steps", "g")
    first_days = clock() + timedelta(days=9)

    def kept() -> int:
        steps.maintain()
        with steps.connection() as connection:
            query = "select count(*) from duewheel.any_message where deliver_at < %s"
            return int(ask(connection, query, first_days)[0][0])

    send(steps, "a1", "a2", "b1")
    consumer.nack(receive(consumer, clock, 2)[0], timedelta(days=20))
    consumer.ack(receive(consumer, clock))
    clock.advance(timedelta(days=10))
    send(steps, "c1")
    consumer.ack(receive(consumer, clock))
    assert kept()
    clock.advance(timedelta(days=10))
    last = receive(consumer, clock)
    clock.advance(timedelta(seconds=1))
    assert kept()
    consumer.ack(last)
    assert not kept()
    for name in ("d1", "d2"):
        clock.advance(timedelta(days=10))
        send(steps, name)
        consumer.ack(receive(consumer, clock))
        assert not kept()
    with steps.connection() as connection:
        # What was leased goes with its lease.
        assert ask(connection, "select message_group from duewheel.lease_message") == [("d",)]


def test_d08_a_rewound_group_reads_its_message_groups_again_in_order(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "a2", "a3", "b1")
    batch = receive(consumer, clock, 2)
    consumer.nack(batch[0], timedelta(hours=1))
    held = receive(consumer, clock)
    assert bodies(held) == ["b1"]
    send(steps, "a4")
    assert not receive(consumer, clock)
    steps.rewind("g", "steps", "earliest")
    with pytest.raises(LeaseLost):
        consumer.ack(held)
    again = receive(consumer, clock, 3)
    assert bodies(again) == ["a1", "a2", "a3"]
    assert [message.attempt for message in again] == [1, 1, 1]
    consumer.ack(again)
    rest = receive(consumer, clock)
    assert bodies(rest) == ["b1", "a4"]
    steps.rewind("g", "steps", "latest")
    # What was in flight stays with the group, in its place.
    send(steps, "a5")
    assert bodies(receive(consumer, clock)) == ["b1", "a4", "a5"]


def test_r02_a_broadcasting_group_passes_over_what_failed(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g", mode="broadcasting", name="one")
    send(steps, "a1", "a2", "a3")
    batch = receive(consumer, clock, 2)
    consumer.nack(batch[0])
    consumer.ack(batch[1])
    assert bodies(receive(consumer, clock)) == ["a3"]
    clock.advance(MINUTE)
    assert not receive(consumer, clock)


def test_a_message_that_committed_late_keeps_its_place_for_a_group_that_lags(
    steps: Broker, clock: Clock, dsn: str
) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, "a1")
    clock.advance(SECOND)
    with closing(psycopg2.connect(dsn)) as sender:
        steps.send("steps", "a2", message_group="a", connection=sender)
        clock.advance(SECOND)
        send(steps, "b1")
        assert steps.tick("steps")
        sender.commit()
    clock.advance(SECOND)
    send(steps, "a3")
    assert steps.tick("steps")
    brought = []
    for _ in range(5):
        batch = receive(consumer, clock, 1)
        consumer.ack(batch)
        brought += bodies(batch)
    assert brought == ["a1", "a2", "b1", "a3"]


@pytest.mark.owner
def test_a_tick_while_a_queue_is_read_does_not_set_its_position_back(steps: Broker, clock: Clock) -> None:
    """What such a tick releases late, and behind what this receive goes up to, is left to the next one."""
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "b1")
    consumer.nack(receive(consumer, clock, 1), timedelta(0))
    with (
        connected(steps.dsn, autocommit=False) as holder,
        connected(steps.dsn, autocommit=False) as late,
        beside() as start,
    ):
        # Taking the retry from the backlog waits for this, and the position is known by then.
        assert ask(holder, "select 1 from duewheel.fifo_backlog for update")
        clock.advance(timedelta(milliseconds=1))
        reading = start(lambda: consumer.receive(32, MINUTE))
        until_somebody_waits(steps.dsn)
        send(steps, "c1")
        clock.advance(timedelta(milliseconds=1))
        steps.send("steps", "d1", message_group="d", connection=late)
        clock.advance(timedelta(milliseconds=1))
        send(steps, "e1")
        steps.tick("steps")
        late.commit()
        clock.advance(timedelta(milliseconds=1))
        send(steps, "f1")
        steps.tick("steps")
        holder.rollback()
        first = reading.result()
    assert bodies(first) == ["a1", "b1"]
    second = receive(consumer, clock)
    assert bodies(second) == ["c1", "d1", "e1", "f1"]
    consumer.ack([*first, *second])
    assert bodies(receive(consumer, clock)) == []


def test_d08_a_rewound_instance_gets_each_message_once_and_in_order(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g", mode="broadcasting", name="one")
    send(steps, "a1", "a2", "a3")
    assert bodies(receive(consumer, clock, 1)) == ["a1"]
    # The others are seen, and wait for the first one.
    assert not receive(consumer, clock)
    steps.rewind("g", "steps", "earliest")
    assert bodies(receive(consumer, clock)) == ["a1", "a2", "a3"]
    assert not receive(consumer, clock)
    steps.rewind("g", "steps", "earliest")
    assert bodies(receive(consumer, clock, 1)) == ["a1"]
    assert not receive(consumer, clock)
    steps.rewind("g", "steps", "latest")
    assert not receive(consumer, clock)
