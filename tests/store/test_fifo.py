"""FIFO topics: the messages of one message group come in order, one holder at a time (D10, R07, R08)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from tests.acting import AT_ONCE, MINUTE, SECOND, rows
from tests.clock import Clock
from tests.conftest import execute
from tests.standing_time import StandingTime
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected, until, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.consuming import push_consumer
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import LeaseLost, WrongMessageType
from duewheel.store.values.messages import Batch, Message


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


def test_d10_one_of_many_without_a_message_group_is_named(steps: Broker) -> None:
    with pytest.raises(WrongMessageType, match="no message group") as failure:
        steps.send_many("steps", [{"body": "x", "message_group": "a"}, {"body": "y"}])
    assert failure.value.index == 1
    with pytest.raises(WrongMessageType, match="has a delivery time"):
        steps.send_many("steps", [{"body": "x", "message_group": "a", "delay": SECOND}])


def test_five_messages_of_two_groups_follow_the_example(steps: Broker, clock: Clock, dsn: str) -> None:
    """The example at the top of fifo/fifo.sql, step by step."""

    def backlog() -> list[tuple[object, ...]]:
        return ask(
            connection,
            "select convert_from(m.body, 'utf8'), b.blocked_n, b.due_at from duewheel.fifo_backlog b"
            " join duewheel.any_message m using (deliver_at, seq) order by b.place",
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
        *("a0", "a1", "a2", "a3", "b0"), *("c0", "c1", "c2", "c3", "c4")]  # fmt: skip


def test_r07_a_lease_lists_due_retries_of_a_message_group_once(steps: Broker, clock: Clock) -> None:
    """A receive reads the backlog twice if there are new messages and none of them is free."""
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "a2", "a3", "b1")
    first = receive(consumer, clock)
    assert bodies(first) == ["a1", "a2", "a3", "b1"]
    # Each failed by itself, so each has an instant of its own.
    for message in reversed(first[:3]):
        consumer.nack(message)
    clock.advance(2 * SECOND)
    send(steps, "b2")
    assert bodies(receive(consumer, clock, 4)) == ["a1", "a2", "a3"]


@pytest.mark.owner
def test_r07_an_answer_during_a_receive_frees_its_message_group(steps: Broker, clock: Clock) -> None:
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
def test_d14_a_listener_is_called_in_order_within_message_groups(
    broker: Broker,
) -> None:
    broker.create_topic("steps", message_type="FIFO", queues=2)
    calls: list[tuple[str, int]] = []
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)

    def listen(message: Message) -> str:
        name = message.body.decode()
        if name.endswith("0"):
            # All three message groups are worked on at the same time.
            together.wait()
        calls.append((name, message.attempt))
        return "reconsume_later" if (name, message.attempt) in (("a1", 1), ("b2", 1)) else "success"

    broker.consumer("steps", "g")
    execute(broker.dsn, "update duewheel.consumer_group set ordered_interval = '50 milliseconds'")
    broker.send_many("steps", [{"body": f"{g}{n}", "message_group": g} for n in range(4) for g in "abc"])
    with broker.push_consumer("steps", "g", listen, threads=3):
        until(lambda: len(calls) >= 14, "all to be called")
    for group, expected in {
        "a": [("a0", 1), ("a1", 1), ("a1", 2), ("a2", 1), ("a3", 1)],
        "b": [("b0", 1), ("b1", 1), ("b2", 1), ("b2", 2), ("b3", 1)],
        "c": [(f"c{n}", 1) for n in range(4)],
    }.items():
        assert [call for call in calls if call[0][0] == group] == expected


@pytest.mark.slow
@pytest.mark.owner
def test_r03_a_slow_listener_gets_no_later_message_of_its_group(
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


def test_a_waiting_receive_knows_when_a_message_group_is_free(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")

    def next_due() -> object:
        asked = "select duewheel.next_due(%s, %s, %s)"
        return rows(steps, asked, consumer.group_id, consumer.topic_id, clock())[0][0]

    send(steps, "a1", "a2")
    first = receive(consumer, clock, 1)
    assert not receive(consumer, clock)
    assert next_due() == first.leases[0].expires_at
    consumer.nack(first)
    assert next_due() == clock() + SECOND
    clock.advance(SECOND)
    assert next_due() == clock()


def test_x12_a_redriven_message_follows_what_its_group_has_seen(
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
    assert [(letter.reason, letter.attempt) for letter in steps.dead_letters("g")] == [
        ("no", 1), ("no again", 2)]  # fmt: skip
    assert not receive(consumer, clock)


def test_x12_x25_a_receive_takes_a_portion_of_what_was_redriven(
    steps: Broker, clock: Clock, dsn: str
) -> None:
    consumer = steps.consumer("steps", "g")
    execute(dsn, "update duewheel.consumer_group set ordered_max_retries = 0")
    steps.send_many("steps", [{"body": b"", "message_group": f"{number}"} for number in range(2_100)])
    for _ in range(5):
        consumer.nack(receive(consumer, clock, 500), reason="no")
    assert steps.redrive("g").redriven == 2_100
    received = []
    put = []
    before = execute(dsn, "select count(*) from duewheel.fifo_backlog")[0][0]
    while batch := receive(consumer, clock, 500):
        after = execute(dsn, "select count(*) from duewheel.fifo_backlog")[0][0]
        put.append(after + len(batch) - before)
        before = after
        consumer.ack(batch)
        received += batch
    assert len({message.message_id for message in received}) == len(received) == 2_100
    assert max(put) == 1_000


def test_fifo_leases_do_not_split_a_message_group(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")
    names = [f"{group}{n}" for n in range(5) for group in "abcd"]
    send(steps, *names)
    clock.advance(SECOND)
    steps.tick("steps")
    with steps.connection() as connection:
        ranges = ask(
            connection,
            "select (lease).n, (lease).message_count"
            " from duewheel.receive_batch(%s, %s, 100, '60 s', 'job', 0, true, %s, true, 3, false)",
            consumer.group_id, consumer.topic_id, clock(),
        )  # fmt: skip
        of_a_lease = "select body from duewheel.lease_rows(%s, %s, 0, %s)"
        ids = (consumer.group_id, consumer.topic_id)
        read = [[bytes(body).decode() for (body,) in ask(connection, of_a_lease, *ids, n)] for n, _ in ranges]
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


def test_x27_a_redriven_message_is_kept_while_its_retry_waits(steps: Broker, clock: Clock, dsn: str) -> None:
    """It is stored in the retry topic, and waits in the backlog of the topic."""
    steps.maintain()
    consumer = steps.consumer("steps", "g")
    execute(dsn, "update duewheel.consumer_group set ordered_max_retries = 0")
    send(steps, "a1")
    consumer.nack(receive(consumer, clock))
    for _ in range(5):
        clock.advance(timedelta(days=1))
        steps.maintain()
    assert steps.redrive("g").redriven == 1
    execute(dsn, "update duewheel.consumer_group set ordered_max_retries = 9")
    consumer.nack(receive(consumer, clock), timedelta(days=20))
    for _ in range(20):
        clock.advance(timedelta(days=1))
        steps.maintain()
    assert bodies(receive(consumer, clock)) == ["a1"]


def test_d08_a_rewound_group_reads_message_groups_in_order(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "a2", "a3", "b1")
    batch = receive(consumer, clock, 2)
    consumer.nack(batch[0], timedelta(hours=1))
    held = receive(consumer, clock)
    assert bodies(held) == ["b1"]
    send(steps, "a4")
    assert not receive(consumer, clock)
    steps.rewind("steps", "g", "earliest")
    with pytest.raises(LeaseLost):
        consumer.ack(held)
    again = receive(consumer, clock, 3)
    assert bodies(again) == ["a1", "a2", "a3"]
    assert [message.attempt for message in again] == [1, 1, 1]
    consumer.ack(again)
    rest = receive(consumer, clock)
    assert bodies(rest) == ["b1", "a4"]
    steps.rewind("steps", "g", "latest")
    # What was in flight stays with the group, in its place.
    send(steps, "a5")
    assert bodies(receive(consumer, clock)) == ["b1", "a4", "a5"]


@pytest.mark.owner
def test_a_tick_during_a_read_does_not_set_the_position_back(steps: Broker, clock: Clock) -> None:
    """What such a tick releases late, and behind what this receive goes up to, is left to the next one."""
    consumer = steps.consumer("steps", "g")
    send(steps, "a1", "b1")
    consumer.nack(receive(consumer, clock, 1), AT_ONCE)
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
    assert bodies(second) == ["c1", "e1", "d1", "f1"]
    consumer.ack([*first, *second])
    assert bodies(receive(consumer, clock)) == []


def test_d08_a_rewound_instance_gets_each_message_once_in_order(steps: Broker, clock: Clock) -> None:
    consumer = steps.consumer("steps", "g", mode="broadcasting", name="one")
    send(steps, "a1", "a2", "a3")
    assert bodies(receive(consumer, clock, 1)) == ["a1"]
    # The others are seen, and wait for the first one.
    assert not receive(consumer, clock)
    steps.rewind("steps", "g", "earliest")
    assert bodies(receive(consumer, clock)) == ["a1", "a2", "a3"]
    assert not receive(consumer, clock)
    steps.rewind("steps", "g", "earliest")
    assert bodies(receive(consumer, clock, 1)) == ["a1"]
    assert not receive(consumer, clock)
    steps.rewind("steps", "g", "latest")
    assert not receive(consumer, clock)
