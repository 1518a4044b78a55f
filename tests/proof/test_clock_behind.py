"""A clock that was ahead and is put right: nothing comes early, late or twice (X13).

Where a tick was made while the clock was ahead, the topic's last ``hi`` lies in the future. What is sent
after that has its own instant all the same. Everything here goes through the public calls; the models of
``test_store_model`` and ``test_fifo_model`` step to and fro by as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, bodies, rows, taken
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.messages import RecallOutcome

#: So long before its instant nothing may come.
JUST_BEFORE = MICROSECOND
AHEAD = 2 * HOUR
SENDS = ("send", "send_many", "sql")
SQL = "select message_id, deliver_at from duewheel.send('t', %s::bytea, delay => %s, key => 'k', now => %s)"


@pytest.fixture
def behind(dsn: str, clock: Clock) -> Iterator[Broker]:
    """A broker whose clock was two hours ahead at a tick that released something, and is right again."""
    with Broker(dsn, clock=clock) as broker:
        broker.create_topic("t", max_delay=60 * DAY, queues=2)
        broker.create_topic("steps", message_type="FIFO", queues=1)
        was_ahead(broker, clock)
        yield broker


def was_ahead(broker: Broker, clock: Clock, by: timedelta = AHEAD) -> None:
    """Ticks, with something to release, while the clock is ahead."""
    consumer = broker.consumer("t", "g")
    clock.advance(by)
    broker.send("t", b"ahead", delay=AT_ONCE)
    assert broker.tick("t")
    assert bodies(taken(consumer)) == [b"ahead"]
    clock.advance(-by)


def send(broker: Broker, how: str, clock: Clock, delay: timedelta) -> tuple[str, datetime]:
    """Sends in one of the ways, which is the body; returns the id and the delivery instant."""
    if how == "send":
        receipt = broker.send("t", how, delay=delay, key="k")
    elif how == "send_many":
        (receipt,) = broker.send_many("t", [{"body": how, "delay": delay, "key": "k"}])
    else:
        ((identity, deliver_at),) = rows(broker, SQL, how.encode(), delay, clock())
        return identity, deliver_at
    return receipt.message_id, receipt.deliver_at


def test_x13_a_delay_counts_by_the_clock_that_was_put_right(behind: Broker, clock: Clock) -> None:
    consumer = behind.consumer("t", "g")
    begins_at = clock()
    delays = [MILLISECOND, 90 * MINUTE, AHEAD - MICROSECOND, AHEAD, AHEAD + MICROSECOND, 25 * DAY]
    for delay in delays:
        for how in SENDS:
            assert send(behind, how, clock, delay)[1] == begins_at + delay
    for delay in delays:
        clock.set(begins_at + delay - JUST_BEFORE)
        behind.tick("t")
        assert taken(consumer) == []
        clock.set(begins_at + delay)
        assert sorted(bodies(taken(consumer))) == [b"send", b"send_many", b"sql"], delay
    clock.advance(30 * DAY)
    assert taken(consumer) == []


def test_d03_without_a_delay_it_is_due_at_once_on_a_clock_ahead(behind: Broker, clock: Clock) -> None:
    consumer = behind.consumer("t", "g")
    for delay in (AT_ONCE, -HOUR, -30 * DAY):
        for how in SENDS:
            send(behind, how, clock, delay)
            assert bodies(taken(consumer)) == [how.encode()]
            clock.advance(MILLISECOND)
    clock.advance(30 * DAY)
    assert taken(consumer) == []


@pytest.mark.parametrize("ticked", [False, True], ids=["", "ticked"])
def test_x01_what_waits_behind_the_last_tick_is_taken_back(
    behind: Broker, clock: Clock, ticked: bool
) -> None:
    """By id, at once and in a transaction; by key and in bulk; and the answer holds."""
    consumer = behind.consumer("t", "g")
    by_id = [send(behind, how, clock, 90 * MINUTE)[0] for how in SENDS]
    for how in SENDS:
        send(behind, how, clock, 90 * MINUTE)
    clock.advance(MINUTE)
    if ticked:
        behind.tick("t")
        assert taken(consumer) == []
    with behind.connection() as connection:
        connection.autocommit = False
        assert behind.recall(by_id[0], connection=connection).outcome is RecallOutcome.RECALLED
        behind.tick("t")
        connection.commit()
        connection.autocommit = True
    for identity in by_id:
        assert behind.recall(identity).outcome is RecallOutcome.RECALLED
    assert behind.recall_key("t", "k").outcome is RecallOutcome.RECALLED
    for how in SENDS:
        send(behind, how, clock, 60 * MINUTE)
    assert behind.recall_many("t", due_from=clock()).recalled == 3
    for _ in range(5):
        clock.advance(HOUR)
        assert taken(consumer) == []
    assert behind.recall(by_id[0]).outcome is RecallOutcome.RECALLED


def test_x03_what_waits_behind_the_last_tick_is_moved(behind: Broker, clock: Clock) -> None:
    consumer = behind.consumer("t", "g")
    at = clock() + 30 * MINUTE
    for how in SENDS:
        identity, _ = send(behind, how, clock, 90 * MINUTE)
        assert behind.reschedule(identity, delay=30 * MINUTE).deliver_at == at
    clock.set(at - JUST_BEFORE)
    assert taken(consumer) == []
    clock.set(at)
    assert sorted(bodies(taken(consumer))) == [b"send", b"send_many", b"sql"]
    clock.advance(DAY)
    assert taken(consumer) == []


def test_x08_looking_up_tells_the_truth_behind_the_last_tick(behind: Broker, clock: Clock) -> None:
    consumer = behind.consumer("t", "g")
    born_at = clock()
    identity, deliver_at = send(behind, "send", clock, 90 * MINUTE)
    for at in (born_at, deliver_at - JUST_BEFORE):
        clock.set(at)
        behind.tick("t")
        stored = behind.find(identity)
        assert stored is not None
        assert (stored.born_at, stored.deliver_at) == (born_at, born_at + 90 * MINUTE)
        assert (stored.released, stored.recalled) == (False, False)
        assert [entry.state for entry in behind.history(identity)] == ["Initialized", "Timing"]
        assert behind.history(identity)[1].until_at == deliver_at
    clock.set(deliver_at)
    assert bodies(taken(consumer)) == [b"send"]
    stored = behind.find(identity)
    assert stored is not None
    assert stored.released
    states = [(entry.consumer_group, entry.state) for entry in behind.history(identity)]
    assert states[:3] == [(None, "Initialized"), (None, "Timing"), (None, "Ready")]
    assert states[-2:] == [("g", "Inflight"), ("g", "Acked")]
    at = [entry.at for entry in behind.history(identity) if entry.at is not None]
    assert at == sorted(at)


@pytest.mark.parametrize("ahead", [MILLISECOND, AHEAD, 25 * DAY], ids=str)
def test_x13_waiting_messages_are_in_order_of_their_instants(
    dsn: str, clock: Clock, ahead: timedelta
) -> None:
    """Sent before the clock was ahead, and after; those of before keep their instants too."""
    with Broker(dsn, clock=clock) as broker:
        broker.create_topic("t", max_delay=60 * DAY, queues=2)
        begins_at = clock()
        broker.send("t", b"before, far", delay=ahead + 2 * HOUR)
        was_ahead(broker, clock, by=ahead)
        broker.send("t", b"after, far", delay=ahead + HOUR)
        broker.send("t", b"after, within", delay=ahead / 2)
        consumer = broker.consumer("t", "g")
        came = []
        for at in (ahead / 2, ahead, ahead + HOUR, ahead + 2 * HOUR):
            clock.set(begins_at + at - JUST_BEFORE)
            assert taken(consumer) == []
            clock.set(begins_at + at)
            came += [(at, body) for body in bodies(taken(consumer))]
        assert came == [
            (ahead / 2, b"after, within"),
            (ahead + HOUR, b"after, far"),
            (ahead + 2 * HOUR, b"before, far"),
        ]


def test_x13_messages_released_by_a_clock_ahead_stay_released(behind: Broker, clock: Clock) -> None:
    """It was due by the clock of then: its recall comes too late, and every group gets it once."""
    clock.advance(AHEAD + MINUTE)
    sent = behind.send("t", b"x", delay=AT_ONCE)
    assert behind.tick("t")
    clock.advance(-AHEAD)
    assert behind.recall(sent.message_id).outcome is RecallOutcome.ALREADY_RELEASED
    for group, expected in (("g", [b"x"]), ("second", [b"ahead", b"x"])):
        came = bodies(taken(behind.consumer("t", group)))
        clock.advance(AHEAD)
        came += bodies(taken(behind.consumer("t", group)))
        clock.advance(-AHEAD)
        assert sorted(came) == expected


def test_r04_a_retry_waits_by_the_clock_that_was_put_right(behind: Broker, clock: Clock) -> None:
    consumer = behind.consumer("t", "g")
    # The retry topic has been ticked while the clock was ahead, too.
    clock.advance(AHEAD)
    behind.send("t", b"first", delay=AT_ONCE)
    consumer.nack(consumer.receive(), delay=AT_ONCE)
    assert bodies(taken(consumer)) == [b"first"]
    clock.advance(-AHEAD)
    behind.send("t", b"x", delay=AT_ONCE)
    batch = consumer.receive()
    assert [message.body for message in batch] == [b"x"]
    consumer.nack(batch, delay=10 * MINUTE)
    clock.advance(10 * MINUTE - JUST_BEFORE)
    assert taken(consumer) == []
    clock.advance(JUST_BEFORE)
    assert bodies(taken(consumer)) == [b"x"]


@pytest.mark.parametrize(
    ("step", "received_ahead"), [(MILLISECOND, False), (AHEAD, True), (25 * DAY, False)], ids=str
)
def test_d10_fifo_keeps_its_order_over_steps_of_the_clock(
    behind: Broker, clock: Clock, step: timedelta, received_ahead: bool
) -> None:
    """In each message group; and nothing waits longer than until the clock has shown every instant."""
    consumer = behind.consumer("steps", "g")
    received: list[bytes] = []
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    for turn, by in enumerate((step, -step, -step, step, step, -step)):
        clock.advance(by)
        for group, names in sent.items():
            for n in range(2):
                names.append(b"%s%d%d" % (group.encode(), turn, n))
                behind.send("steps", names[-1], message_group=group)
        if received_ahead or by < AT_ONCE:
            received += bodies(taken(consumer))
    clock.advance(2 * step)
    received += bodies(taken(consumer))
    for group, names in sent.items():
        assert [body for body in received if body.startswith(group.encode())] == names


def test_x12_a_fifo_message_of_a_clock_ahead_stops_no_queue(timed_broker: Broker, clock: Clock) -> None:
    """Nothing had ticked the topic meanwhile, and no wheel turns."""
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    group = timed_broker.consumer("t", "g")
    right = clock()
    clock.set(right + 8 * HOUR)
    timed_broker.send("t", b"ahead", message_group="a")
    clock.set(right + SECOND)
    timed_broker.send("t", b"right", message_group="a")
    assert bodies(taken(group)) == [b"ahead", b"right"]


def test_x12_a_clock_ahead_delays_no_other_message_group(timed_broker: Broker, clock: Clock) -> None:
    """Of a queue: they have their own instants, are released, and go with their retention."""
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    group = timed_broker.consumer("t", "g")
    right = clock()
    clock.set(right + 30 * DAY)
    timed_broker.send("t", b"ahead", message_group="a")
    clock.set(right + SECOND)
    sent = [timed_broker.send("t", name.encode(), message_group=name) for name in ("b", "a", "b")]
    at_once, ahead = right + SECOND, right + 30 * DAY
    assert [receipt.deliver_at for receipt in sent] == [at_once, ahead, at_once]
    received = bodies(taken(group))
    assert sorted(received) == [b"a", b"ahead", b"b", b"b"]
    assert received.index(b"ahead") < received.index(b"a")
    # The topic is released as far as that now.
    clock.set(right + MINUTE)
    for name in ("b", "c", "b"):
        assert timed_broker.send("t", name.encode(), message_group=name).deliver_at == right + MINUTE
    assert bodies(taken(group)) == [b"b", b"c", b"b"]


def test_x13_a_fifo_message_sent_ahead_is_given_back_at_once(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    group = timed_broker.consumer("t", "g")
    clock.advance(AHEAD)
    timed_broker.send("t", b"ahead", message_group="a")
    clock.advance(-AHEAD)
    group.give_back(group.receive())
    timed_broker.send("t", b"after", message_group="a")
    assert bodies(taken(group)) == [b"ahead", b"after"]


@pytest.mark.parametrize("how", ["send", "send_many"])
def test_x13_fifo_messages_after_one_sent_ahead_keep_instants(
    timed_broker: Broker, clock: Clock, how: str
) -> None:
    """Also messages of its message group, from the next tick on; and they go with their retention."""
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    group = timed_broker.consumer("t", "g")
    timed_broker.maintain()
    right = clock()
    clock.set(right + 300 * DAY)
    timed_broker.send("t", b"ahead", message_group="a")
    clock.set(right)
    timed_broker.tick("t")
    for n in range(4):
        clock.advance(-SECOND if n == 2 else MINUTE)
        if how == "send":
            receipts = [timed_broker.send("t", b"a%d" % n, message_group="a")]
        else:
            receipts = timed_broker.send_many("t", [{"body": b"a%d" % n, "message_group": "a"}])
        # While the clock steps back, the message before it is still held back.
        assert [receipt.deliver_at for receipt in receipts] == [clock() + (n == 2) * SECOND]
    assert bodies(taken(group)) == [b"ahead", b"a0", b"a1", b"a2", b"a3"]
    clock.advance(4 * DAY)
    timed_broker.send("t", b"later", message_group="a")
    assert bodies(taken(group)) == [b"later"]
    clock.advance(DAY)
    timed_broker.maintain()
    left = rows(timed_broker, "select body from duewheel.any_message order by deliver_at")
    assert [bytes(body) for (body,) in left] == [b"later", b"ahead"]


def test_x13_fifo_transaction_keeps_order_over_a_clock_set_back(
    timed_broker: Broker, clock: Clock, dsn: str
) -> None:
    """Its first message is late, and its second one is sent behind the tick that missed the first."""
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    group = timed_broker.consumer("t", "g")
    with connected(dsn, autocommit=False) as late:
        timed_broker.send("t", b"a1", message_group="a", connection=late)
        timed_broker.send("t", b"b1", message_group="b")
        timed_broker.tick("t")
        clock.advance(-SECOND)
        timed_broker.send("t", b"a2", message_group="a", connection=late)
        late.commit()
    clock.advance(MINUTE)
    assert [body for body in bodies(taken(group)) if body != b"b1"] == [b"a1", b"a2"]


def test_x13_fifo_keeps_order_behind_an_old_snapshot(timed_broker: Broker, clock: Clock, dsn: str) -> None:
    """The first message was sent by a later clock, and its sender did not see the tick made meanwhile."""
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    group = timed_broker.consumer("t", "g")
    right = clock()
    with connected(dsn, autocommit=False) as old:
        old.set_session(isolation_level="REPEATABLE READ")
        ask(old, "select from duewheel.topic")
        clock.set(right + 2 * HOUR)
        timed_broker.send("t", b"ahead", message_group="b")
        timed_broker.tick("t")
        clock.set(right + HOUR)
        timed_broker.send("t", b"a1", message_group="a", connection=old)
        old.commit()
    clock.set(right)
    timed_broker.send("t", b"a2", message_group="a")
    assert bodies(taken(group)) == [b"ahead", b"a1", b"a2"]


@pytest.mark.owner
def test_x13_fifo_keeps_order_when_held_messages_fill_a_portion(timed_broker: Broker, clock: Clock) -> None:
    """The last message is due after the tick that released too far, the others were held back by it."""
    rows(timed_broker, "create or replace function duewheel.late_limit() returns integer return 2")
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    group = timed_broker.consumer("t", "g")
    clock.advance(AHEAD)
    timed_broker.send("t", b"0", message_group="b")
    timed_broker.tick("t")
    clock.advance(-AHEAD)
    for body in (b"1", b"2", b"3", b"4", b"5"):
        timed_broker.send("t", body, message_group="a")
        clock.advance(MILLISECOND)
    clock.advance(2 * AHEAD)
    timed_broker.send("t", b"6", message_group="a")
    for _ in range(4):
        timed_broker.tick("t")
    assert bodies(taken(group)) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]


def test_x13_fifo_reads_a_rewound_group_in_the_order_of_release(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    group = timed_broker.consumer("t", "g")
    right = clock()
    clock.set(right + HOUR)
    sent = [b"a0"]
    timed_broker.send("t", b"a0", message_group="a")
    for n in range(1, 7):
        # Each time a second less than the time before.
        clock.set(right - n * SECOND)
        timed_broker.tick("t")
        sent.append(b"a%d" % n)
        timed_broker.send("t", sent[-1], message_group="a")
    for _ in range(2):
        assert bodies(taken(group)) == sent
        timed_broker.rewind("t", "g", "earliest")
