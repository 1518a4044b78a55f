"""Upkeep forgets what the logs say of messages that are gone, in portions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND
from tests.clock import Clock
from tests.standing_time import StandingTime
from tests.upkeeping import portions
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.messages import RecallOutcome
from duewheel.store.wheel import upkeep
from duewheel.store.wheel.upkeep import STEP, State

MESSAGES = 6
# Of each there are rows.
LOGS = (
    "tick",
    "lease",
    "lease_event",
    "lease_extension",
    "lease_answer",
    "recall",
    "moved_id",
    "idempotency",
)


def rows(broker: Broker) -> dict[str, int]:
    with connected(broker.dsn) as connection:
        return {name: ask(connection, f"select count(*) from duewheel.{name}")[0][0] for name in LOGS}


def forget(broker: Broker, most: int) -> None:
    """All portions of the step."""
    now = broker._database.now()
    assert now is not None
    with connected(broker.dsn) as connection:
        assert not [*portions(connection, "forget", most, now)][-1]["failed"]


@pytest.mark.parametrize("goes_on", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("act", ["send", "nack"])
def test_x27_what_an_open_transaction_sends_comes_however_long(
    timed_broker: Broker, clock: Clock, act: str, goes_on: bool
) -> None:
    """For longer than the retention, which is shorter than a slot, with upkeep meanwhile and after it."""
    broker = timed_broker
    broker.create_topic("t", queues=1, retention=HOUR)
    consumer = broker.consumer("t", "g")
    broker.send("t", b"late", delay=AT_ONCE)
    broker.tick("t")
    broker.maintain()
    with connected(broker.dsn, autocommit=False) as connection:
        if act == "nack":
            consumer.nack(consumer.receive(), delay=AT_ONCE, connection=connection)
        else:
            consumer.ack(consumer.receive())
            broker.send("t", b"late", delay=AT_ONCE, connection=connection)
        clock.advance(SECOND)
        if goes_on:
            broker.send("t", b"on time", delay=AT_ONCE)
            broker.tick("t")
            consumer.ack(consumer.receive())
        clock.advance(2 * HOUR)
        broker.maintain()
        connection.commit()
    broker.tick("t")
    broker.maintain()
    assert [message.body for message in consumer.receive()] == [b"late"]


@pytest.fixture
def logged(timed_broker: Broker, clock: Clock) -> tuple[Broker, list[str]]:
    """Every log has rows of messages that are past retention and finished; these messages."""
    sent: list[str] = []
    for name in ("t", "u"):
        timed_broker.create_topic(name, queues=2, max_delay=10 * DAY, retention=3 * DAY)
        consumer = timed_broker.consumer(name, "g")
        for number in range(MESSAGES):
            key = f"{number}"
            timed_broker.send(name, b"", delay=DAY, key=f"gone {key}", idempotency_key=key)
            timed_broker.recall_key(name, f"gone {key}")
            sent.append(timed_broker.send(name, b"", delay=DAY, key=f"moved {key}").message_id)
            timed_broker.reschedule(sent[-1], delay=SECOND)
            sent.append(timed_broker.send(name, b"", delay=SECOND).message_id)
            clock.advance(2 * SECOND)
            timed_broker.tick(name)
            batch = consumer.receive(max_messages=10)
            consumer.change_invisible_duration(batch, MINUTE)
            for message in batch:
                consumer.ack(message)
    for name in ("t", "u"):
        clock.advance(DAY)
        timed_broker.send(name, b"", delay=SECOND)
        clock.advance(SECOND)
        timed_broker.tick(name)
        consumer = timed_broker.consumer(name, "g")
        while batch := consumer.receive(max_messages=10):
            consumer.ack(batch)
    clock.advance(5 * DAY)
    # Another topic keeps the slot, and the messages with it.
    timed_broker.create_topic("kept", retention=30 * DAY)
    return timed_broker, sent


@pytest.mark.slow
@pytest.mark.owner
def test_no_transaction_of_upkeep_forgets_more_than_a_portion(
    logged: tuple[Broker, list[str]], clock: Clock
) -> None:
    broker, _ = logged
    with connected(broker.dsn) as connection:
        # A queue that was read all day long.
        ask(
            connection,
            "with leases as (insert into duewheel.lease"
            " select (jsonb_populate_record(null::duewheel.lease,"
            "         to_jsonb(l) || jsonb_build_object('n', l.n + g, 'revived_to', %s::text))).*"
            " from (select * from duewheel.lease where topic_id = 1 order by n desc limit 1) l"
            " cross join generate_series(1, 6000) g returning *)"
            " insert into duewheel.lease_event (n, at, topic_id, group_id, queue, kind)"
            " select n, leased_at, topic_id, group_id, queue, 'acked' from leases",
            clock(),
        )
        most = 0

        def call(*state_and_rows: Any) -> State:
            nonlocal most
            before = rows(broker)
            ((state,),) = ask(connection, STEP, *state_and_rows, clock())
            after = rows(broker)
            most = max(most, *(before[name] - after[name] for name in LOGS))
            return state

        upkeep.in_rounds(call)
    left = rows(broker)
    assert 0 < most <= 4_000
    # Of each queue the newest lease stays.
    assert left["lease"] <= 6
    assert left["lease_event"] <= 6


@pytest.mark.slow
def test_small_portions_forget_what_a_large_one_does(logged: tuple[Broker, list[str]]) -> None:
    broker, sent = logged
    assert all(count > 4 for count in rows(broker).values())
    seen: dict[str, list[object]] = {message_id: [] for message_id in sent}
    count = 0
    now = broker._database.now()
    assert now is not None
    with connected(broker.dsn) as connection:
        before = rows(broker)
        for _ in portions(connection, "forget", 3, now):
            after = rows(broker)
            assert all(before[name] - after[name] <= 6 for name in LOGS)
            before = after
            for message_id, states in seen.items():
                answer = broker.recall(message_id).outcome, broker.find(message_id)
                if states[-1:] != [answer]:
                    states.append(answer)
            count += 1
    left = rows(broker)
    assert count > 8
    forget(broker, 100_000)
    assert rows(broker) == left
    # The newest tick of a topic and lease of a queue, and what is kept for a time of its own.
    assert left["recall"] == left["moved_id"] == 0
    assert left["lease"] <= 6
    assert left["tick"] <= 4
    # None of the messages comes back with a later portion.
    assert all(len(states) <= 2 and states[-1] == (RecallOutcome.NOT_FOUND, None) for states in seen.values())


def sizes(passing: StandingTime, *answers: float | None) -> list[int]:
    """How large the first portions are: an answer is the number of rows that one forgets, the seconds that
    a full one takes, as a float, or None if it is canceled."""
    tried: list[int] = []
    left = iter(answers)

    def call(_: str | None, rows: int) -> State:
        task = {"step": "forget"}
        forgotten = next(left, "end")
        tried.append(rows)
        if isinstance(forgotten, float):
            passing.pass_by(forgotten)
        elif forgotten is None:
            task["canceled"] = "1"
        return {
            "todo": [] if forgotten == "end" else [task],
            "done": forgotten if isinstance(forgotten, int) else 1_000,
            "report": {},
            "finished": forgotten == "end",
        }

    upkeep.in_rounds(call)
    # The first call begins the round.
    return tried[1:]


def test_x25_after_a_slow_portion_the_next_is_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passing = StandingTime()
    monkeypatch.setattr(upkeep, "time", passing)
    assert sizes(passing, 0, None, None, 62) == [1000, 250, 62, 124]
    # As from a topic whose rows cost four times as much as planned, then the rest.
    assert sizes(passing, 0, 0.4, 0.1, 0.1) == [1000, 250, 250, 250]
    # As from topics where little or nothing is over, which are looked at in no time.
    assert sizes(passing, 0, 0, 49, 0, 0) == [1000] * 5
    assert sizes(passing, 0, *[None] * 9)[-1] == 50


def test_leases_are_forgotten_up_to_the_first_that_is_needed(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1, max_delay=10 * DAY, retention=HOUR)
    timed_broker.create_topic("kept", retention=30 * DAY)
    consumer = timed_broker.consumer("t", "g")

    def consume(invisible: timedelta = SECOND) -> None:
        timed_broker.send("t", b"", delay=SECOND)
        clock.advance(SECOND)
        timed_broker.tick("t")
        (message,) = consumer.receive(invisible=invisible)
        consumer.ack(message)

    for invisible in (SECOND, SECOND, 10 * HOUR, SECOND):
        consume(invisible)
    clock.advance(2 * HOUR)
    consume()
    forget(timed_broker, 1_000)
    # The third one could have been answered until now; the fourth comes behind it.
    assert rows(timed_broker)["lease_event"] == 3
    clock.advance(12 * HOUR)
    consume()
    forget(timed_broker, 1_000)
    assert rows(timed_broker)["lease_event"] == 1


@pytest.mark.owner
def test_x25_running_leases_of_young_messages_cost_one_look_each(timed_broker: Broker, clock: Clock) -> None:
    """For each topic upkeep asks whether old messages are needed, however many leases run there."""
    leases = 200
    timed_broker.create_topic("t", queues=1)
    timed_broker.send_many("t", [{"body": b"", "delay": SECOND}] * (1 + leases))
    clock.advance(SECOND)
    consumer = timed_broker.consumer("t", "g")
    # The first lease begins where the group did, at no instant.
    consumer.ack(consumer.receive(max_messages=1))
    for _ in range(leases):
        assert consumer.receive(max_messages=1)
    look = (
        "explain (analyze, buffers, format json)"
        " select from duewheel.topic t where t.name = 't' and duewheel.is_needed(t, %s)"
    )
    with connected(timed_broker.dsn) as connection:
        # The first makes the plans, for which it reads the catalogue.
        ask(connection, look, clock() - 3 * DAY)
        (((plan,),),) = ask(connection, look, clock() - 3 * DAY)
    assert plan["Plan"]["Actual Rows"] == 0
    assert plan["Plan"]["Shared Hit Blocks"] < 4 * leases
