"""A clock that was ahead and is put right, or steps to and fro: nothing comes early, late or twice (X13).

Where a tick was made while the clock was ahead, the topic's last ``hi`` lies in the future. What is sent
after that has its own instant all the same. Everything here goes through the public calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.clock import Clock
from tests.proof.playing import play

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.messages import RecallOutcome, SendReceipt

NOTHING = timedelta(0)
MICROSECOND = timedelta(microseconds=1)
#: So long before its instant nothing may come.
JUST_BEFORE = MICROSECOND
MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
AHEAD = 2 * HOUR
SENDS = ["send", "send_many", "sql"]


@pytest.fixture
def behind(dsn: str, clock: Clock) -> Iterator[Broker]:
    """A broker whose clock was two hours ahead at a tick that released something, and is right again."""
    with Broker(dsn, clock=clock) as broker:
        broker.create_topic("t", max_delay=30 * DAY, queues=2)
        broker.create_topic("steps", message_type="FIFO", queues=1)
        was_ahead(broker, clock)
        yield broker


def was_ahead(broker: Broker, clock: Clock, by: timedelta = AHEAD) -> None:
    """Ticks, with something to release, while the clock is ahead."""
    consumer = broker.consumer("t", "g")
    clock.advance(by)
    broker.send("t", b"ahead", delay=NOTHING)
    assert broker.tick("t")
    assert taken(consumer) == [b"ahead"]
    clock.advance(-by)


def taken(consumer: Consumer) -> list[bytes]:
    """All that is ready now, acked."""
    bodies = []
    while batch := consumer.receive(max_messages=100):
        bodies += [message.body for message in batch]
        consumer.ack(batch)
    return bodies


def send(broker: Broker, how: str, clock: Clock, body: bytes, delay: timedelta) -> tuple[str, datetime]:
    """Sends in one of the ways; returns the id and the delivery instant."""
    if how == "send":
        receipt = broker.send("t", body, delay=delay, key="k")
    elif how == "send_many":
        (receipt,) = broker.send_many("t", [{"body": body, "delay": delay, "key": "k"}])
    else:
        with broker.connection() as connection, connection.cursor() as cursor:
            cursor.execute(
                "select message_id, deliver_at from duewheel.send('t', %s::bytea, delay => %s, key => 'k',"
                " now => %s)",
                (body, delay, clock()),
            )
            ((identity, deliver_at),) = cursor.fetchall()
            return identity, deliver_at
    return receipt.message_id, receipt.deliver_at


@pytest.mark.parametrize("how", SENDS)
@pytest.mark.parametrize(
    "delay", [MILLISECOND, SECOND, 90 * MINUTE, AHEAD - MICROSECOND, AHEAD, AHEAD + MICROSECOND, 25 * DAY]
)
def test_x13_a_delay_counts_by_the_clock_that_was_put_right(
    behind: Broker, clock: Clock, how: str, delay: timedelta
) -> None:
    consumer = behind.consumer("t", "g")
    at = clock() + delay
    _, deliver_at = send(behind, how, clock, b"x", delay)
    assert deliver_at == at
    for early in (delay / 2, JUST_BEFORE):
        clock.set(at - early)
        behind.tick("t")
        assert taken(consumer) == []
    clock.set(at)
    assert taken(consumer) == [b"x"]
    clock.advance(30 * DAY)
    assert taken(consumer) == []


@pytest.mark.parametrize("how", SENDS)
@pytest.mark.parametrize("delay", [NOTHING, -HOUR, -30 * DAY])
def test_d03_without_a_delay_it_comes_at_once_though_the_clock_was_ahead(
    behind: Broker, clock: Clock, how: str, delay: timedelta
) -> None:
    consumer = behind.consumer("t", "g")
    for number in range(3):
        send(behind, how, clock, b"%d" % number, delay)
        assert taken(consumer) == [b"%d" % number]
        clock.advance(MILLISECOND)
    clock.advance(30 * DAY)
    assert taken(consumer) == []


@pytest.mark.parametrize("how", SENDS)
@pytest.mark.parametrize("ticked", [False, True], ids=["", "ticked"])
def test_x01_what_waits_behind_the_last_tick_is_taken_back(
    behind: Broker, clock: Clock, how: str, ticked: bool
) -> None:
    """By id, by key and in bulk; and the answer holds."""
    identity, _ = send(behind, how, clock, b"by id", 90 * MINUTE)
    send(behind, how, clock, b"other", 90 * MINUTE)
    clock.advance(MINUTE)
    if ticked:
        behind.tick("t")
        assert taken(behind.consumer("t", "g")) == []
    assert behind.recall(identity).outcome is RecallOutcome.RECALLED
    assert behind.recall_key("t", "k") is RecallOutcome.RECALLED
    send(behind, how, clock, b"in bulk", 60 * MINUTE)
    done = behind.recall_many("t", due_from=clock())
    assert done.recalled == 1
    consumer = behind.consumer("t", "g")
    for _ in range(5):
        clock.advance(HOUR)
        assert taken(consumer) == []
    assert behind.recall(identity).outcome is RecallOutcome.RECALLED


def test_x01_a_recall_in_a_transaction_of_the_caller_is_taken_at_commit(behind: Broker, clock: Clock) -> None:
    sent = behind.send("t", b"x", delay=90 * MINUTE)
    with behind.connection() as connection:
        connection.autocommit = False
        assert behind.recall(sent.message_id, connection=connection).outcome is RecallOutcome.RECALLED
        behind.tick("t")
        connection.commit()
        connection.autocommit = True
    clock.advance(DAY)
    assert taken(behind.consumer("t", "g")) == []


@pytest.mark.parametrize("how", SENDS)
def test_x03_what_waits_behind_the_last_tick_is_moved(behind: Broker, clock: Clock, how: str) -> None:
    consumer = behind.consumer("t", "g")
    identity, _ = send(behind, how, clock, b"x", 90 * MINUTE)
    moved = behind.reschedule(identity, delay=30 * MINUTE)
    assert moved.deliver_at == clock() + 30 * MINUTE
    clock.set(moved.deliver_at - JUST_BEFORE)
    assert taken(consumer) == []
    clock.set(moved.deliver_at)
    assert taken(consumer) == [b"x"]
    clock.advance(DAY)
    assert taken(consumer) == []


@pytest.mark.parametrize("how", SENDS)
def test_x08_looking_up_tells_the_truth_behind_the_last_tick(behind: Broker, clock: Clock, how: str) -> None:
    consumer = behind.consumer("t", "g")
    born_at = clock()
    identity, deliver_at = send(behind, how, clock, b"x", 90 * MINUTE)
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
    assert taken(consumer) == [b"x"]
    stored = behind.find(identity)
    assert stored is not None
    assert stored.released
    states = [(entry.consumer_group, entry.state) for entry in behind.history(identity)]
    assert states[:3] == [(None, "Initialized"), (None, "Timing"), (None, "Ready")]
    assert states[-2:] == [("g", "Inflight"), ("g", "Acked")]
    at = [entry.at for entry in behind.history(identity) if entry.at is not None]
    assert at == sorted(at)


@pytest.mark.parametrize("ahead", [MILLISECOND, SECOND, MINUTE, AHEAD, 25 * DAY], ids=str)
def test_x13_an_order_of_several_waiting_messages_is_that_of_their_instants(
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
            came += [(at, body) for body in taken(consumer)]
        assert came == [
            (ahead / 2, b"after, within"),
            (ahead + HOUR, b"after, far"),
            (ahead + 2 * HOUR, b"before, far"),
        ]


def test_x13_what_was_released_while_the_clock_was_ahead_stays_released(behind: Broker, clock: Clock) -> None:
    """It was due by the clock of then: its recall comes too late, and every group gets it once."""
    clock.advance(AHEAD + MINUTE)
    sent = behind.send("t", b"x", delay=NOTHING)
    assert behind.tick("t")
    clock.advance(-AHEAD)
    assert behind.recall(sent.message_id).outcome is RecallOutcome.ALREADY_RELEASED
    for group, expected in (("g", [b"x"]), ("second", [b"ahead", b"x"])):
        came = taken(behind.consumer("t", group))
        clock.advance(AHEAD)
        came += taken(behind.consumer("t", group))
        clock.advance(-AHEAD)
        assert sorted(came) == expected


def test_r04_a_retry_waits_by_the_clock_that_was_put_right(behind: Broker, clock: Clock) -> None:
    consumer = behind.consumer("t", "g")
    # The retry topic has been ticked while the clock was ahead, too.
    clock.advance(AHEAD)
    behind.send("t", b"first", delay=NOTHING)
    consumer.nack(consumer.receive(), delay=NOTHING)
    assert taken(consumer) == [b"first"]
    clock.advance(-AHEAD)
    behind.send("t", b"x", delay=NOTHING)
    batch = consumer.receive()
    assert [message.body for message in batch] == [b"x"]
    consumer.nack(batch, delay=10 * MINUTE)
    clock.advance(10 * MINUTE - JUST_BEFORE)
    assert taken(consumer) == []
    clock.advance(JUST_BEFORE)
    assert taken(consumer) == [b"x"]


@pytest.mark.parametrize("step", [MILLISECOND, SECOND, MINUTE, AHEAD, 25 * DAY], ids=str)
@pytest.mark.parametrize("received_ahead", [False, True], ids=["", "received ahead"])
def test_d10_fifo_keeps_its_order_over_steps_of_the_clock(
    behind: Broker, clock: Clock, step: timedelta, received_ahead: bool
) -> None:
    """In each message group; and nothing waits longer than until the clock has shown every instant."""
    consumer = behind.consumer("steps", "g")
    received: list[bytes] = []
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    number = 0
    for by in (step, -step, -step, step, step, -step):
        clock.advance(by)
        for group, bodies in sent.items():
            for _ in range(2):
                number += 1
                body = b"%s%d" % (group.encode(), number)
                behind.send("steps", body, message_group=group)
                bodies.append(body)
        if received_ahead or by < NOTHING:
            received += taken(consumer)
    clock.advance(2 * step)
    received += taken(consumer)
    for group, bodies in sent.items():
        assert [body for body in received if body.startswith(group.encode())] == bodies


# --- to and fro, against a model


STEPS = st.builds(
    lambda step, back: -step if back else step,
    st.sampled_from([MILLISECOND, SECOND, MINUTE, AHEAD, 25 * DAY]),
    st.booleans(),
)
DELAYS = st.sampled_from(
    [-HOUR, NOTHING, MILLISECOND, SECOND, MINUTE, 90 * MINUTE, AHEAD, DAY, 25 * DAY, 40 * DAY]
)
CHOICE = st.integers(0, 1_000)
GROUPS = ("eager", "lazy")


@dataclass(eq=False)
class Sent:
    """A message, and what the clock has shown since it was sent."""

    body: bytes
    identity: str
    due_at: datetime
    message_group: str | None = None
    #: A release may have given it out, as the clock has shown its instant.
    reached: bool = False
    recalled: bool = False
    #: Where it went, if it was moved.
    moved_to: Sent | None = None
    came: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))

    def present(self) -> Sent:
        """The message where it is now: the id that a sender got stands for it wherever it was moved."""
        return self if self.moved_to is None else self.moved_to.present()


class SteppingClock(RuleBasedStateMachine):
    """One run; the database is made by `make_database` and removed by `drop_database`.

    The model knows three things. A message may come to a group once the clock has shown its instant since
    the send, and not before. What is due by the clock now has to come. In the end each has come once to each
    group, or was taken back and never comes.
    """

    def __init__(
        self, make_database: Callable[[], tuple[str, str]], drop_database: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.database, self.dsn = make_database()
        self.drop_database = drop_database
        self.clock = Clock(datetime(2026, 3, 1, 0, 0, tzinfo=UTC))
        self.latest = self.clock()
        self.broker = Broker(self.dsn, clock=self.clock)
        self.sent: list[Sent] = []
        self.consumers: dict[tuple[str, str], Consumer] = {}

    @initialize()
    def set_up(self) -> None:
        self.broker.create_topic("t", max_delay=60 * DAY, queues=2)
        self.broker.create_topic("steps", message_type="FIFO", queues=1)
        for topic in ("t", "steps"):
            for group in GROUPS:
                self.consumers[topic, group] = self.broker.consumer(topic, group)

    # --- time

    @rule(step=STEPS)
    def step(self, step: timedelta) -> None:
        self.show(self.clock() + step)

    @rule(choice=CHOICE, early=st.sampled_from([NOTHING, JUST_BEFORE]))
    def step_to_something(self, choice: int, early: timedelta) -> None:
        """To the instant of something that waits, or just before it."""
        waiting = [message.due_at for message in self.sent if not message.reached]
        if waiting:
            self.show(waiting[choice % len(waiting)] - early)

    def show(self, now: datetime) -> None:
        self.clock.set(now)
        self.latest = max(self.latest, now)
        for message in self.sent:
            message.reached |= message.due_at <= now

    # --- sending

    def body(self) -> bytes:
        return b"%d" % len(self.sent)

    def accepted(self, body: bytes, receipt: SendReceipt, delay: timedelta) -> Sent:
        due_at = self.clock() + max(delay, NOTHING)
        message = Sent(body, receipt.message_id, due_at, reached=due_at <= self.clock())
        self.sent.append(message)
        # What is due at the instant of a tick may stand a little behind it.
        assert due_at <= receipt.deliver_at < due_at + MILLISECOND, "not when it was asked for"
        return message

    @rule(delay=DELAYS)
    def send(self, delay: timedelta) -> None:
        body = self.body()
        self.accepted(body, self.broker.send("t", body, delay=delay), delay)

    @rule(delays=st.lists(DELAYS, min_size=1, max_size=4))
    def send_many(self, delays: list[timedelta]) -> None:
        first = len(self.sent)
        bodies = [b"%d" % (first + number) for number in range(len(delays))]
        receipts = self.broker.send_many(
            "t", [{"body": body, "delay": delay} for body, delay in zip(bodies, delays, strict=True)]
        )
        for body, receipt, delay in zip(bodies, receipts, delays, strict=True):
            self.accepted(body, receipt, delay)

    @rule(message_group=st.sampled_from(["a", "b"]))
    def send_in_order(self, message_group: str) -> None:
        body = self.body()
        receipt = self.broker.send("steps", body, message_group=message_group)
        # Without a delay it may come at once; its instant is not before that of the message ahead of it.
        self.sent.append(Sent(body, receipt.message_id, receipt.deliver_at, message_group, reached=True))

    # --- taking back

    def pick(self, choice: int) -> Sent | None:
        delayed = [message for message in self.sent if message.message_group is None]
        return delayed[choice % len(delayed)] if delayed else None

    @rule(choice=CHOICE)
    def recall(self, choice: int) -> None:
        message = self.pick(choice)
        if message is None:
            return
        is_kept = self.broker.find(message.identity) is not None
        answer = self.broker.recall(message.identity).outcome
        message = message.present()
        if not is_kept:
            assert message.recalled or all(message.came.values()), "dropped before all had it"
            assert answer is RecallOutcome.NOT_FOUND
        elif message.recalled or not message.reached:
            assert answer is RecallOutcome.RECALLED
        elif any(message.came.values()):
            assert answer is RecallOutcome.ALREADY_RELEASED
        message.recalled |= answer is RecallOutcome.RECALLED

    @rule(choice=CHOICE, delay=DELAYS)
    def reschedule(self, choice: int, delay: timedelta) -> None:
        picked = self.pick(choice)
        if picked is None:
            return
        message = picked.present()
        if message.recalled or message.reached:
            return
        receipt = self.broker.reschedule(picked.identity, delay=delay)
        message.recalled = True
        message.moved_to = self.accepted(message.body, receipt, delay)

    # --- looking up

    @rule(choice=CHOICE)
    def look_up(self, choice: int) -> None:
        message = self.pick(choice)
        if message is None:
            return
        stored = self.broker.find(message.identity)
        message = message.present()
        if stored is None:
            assert message.recalled or all(message.came.values()), "dropped before all had it"
            return
        assert stored.body == message.body
        assert stored.message_id == message.identity
        assert message.due_at <= stored.deliver_at < message.due_at + MILLISECOND
        assert stored.recalled == message.recalled
        if not message.recalled:
            assert stored.released or not any(message.came.values())
            assert message.reached or not stored.released

    # --- releasing and receiving

    @rule(topic=st.sampled_from(["t", "steps"]))
    def tick(self, topic: str) -> None:
        self.broker.tick(topic)

    @rule()
    def maintain(self) -> None:
        assert self.broker.maintain().swept == 0, "ticks left something out"

    @precondition(lambda self: self.sent)
    @rule(topic=st.sampled_from(["t", "steps"]), group=st.sampled_from(GROUPS))
    def receive(self, topic: str, group: str) -> None:
        self.received(topic, group)

    def received(self, topic: str, group: str) -> None:
        consumer = self.consumers[topic, group]
        by_id = {message.identity: message for message in self.sent}
        while batch := consumer.receive(max_messages=100):
            for received in batch:
                message = by_id[received.message_id]
                assert message.reached, f"came early: {message} at {self.clock()}"
                assert not message.recalled, f"came though it was taken back: {message}"
                message.came[group] += 1
                assert message.came[group] == 1, f"came twice: {message}"
                if message.message_group is not None:
                    before = self.sent[: self.sent.index(message)]
                    for other in before:
                        assert other.message_group != message.message_group or other.came[group], "order"
            consumer.ack(batch)
        for message in self.sent:
            if message.message_group is None and topic == "t" and message.due_at <= self.clock():
                assert message.recalled or message.came[group], f"due and did not come: {message}"

    # --- the end

    def teardown(self) -> None:
        try:
            if self.consumers:
                # The clock is right for good and goes on, past everything it has ever shown.
                for now in (self.clock(), self.latest, self.latest + 61 * DAY):
                    self.show(now)
                    for topic, group in self.consumers:
                        self.received(topic, group)
                for message in self.sent:
                    expected = 0 if message.recalled else 1
                    assert set(message.came.values()) == {expected}, f"lost: {message}"
        finally:
            self.broker.close()
            self.drop_database(self.database)


@pytest.mark.slow
@pytest.mark.tenfold
@pytest.mark.timeout(1_200)
def test_x13_a_clock_that_steps_to_and_fro_loses_and_doubles_nothing(
    postgres: EmbeddedPostgres, fresh_database: Callable[[], tuple[str, str]]
) -> None:
    play(SteppingClock, postgres, fresh_database, steps=40)
