"""What users of other systems ask for in vain (X01 to X21): the readable specification, a rule each."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
from tests.acting import (
    AT_ONCE,
    DAY,
    HOUR,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    Command,
    bodies,
    rows,
    state,
    taken,
)
from tests.clock import Clock
from tests.leasing import LEASE, consumer_at, extend_often, wait_for_extensions
from tests.logins import login
from tests.outages import outage
from tests.turning import turning
from tests.waiting import PATIENCE_SECONDS, ask, connected, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.consuming.lease_keeper import LeaseKeeper
from duewheel.store.values.errors import AlreadyAnswered, AlreadyReleased, LeaseLost, UnknownMessage
from duewheel.store.values.messages import Message, SendOutcome
from duewheel.store.values.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from duewheel.store.consuming.consumer import Consumer


def test_x01_recall_is_certain_and_recalled_is_never_delivered(topic: Broker, clock: Clock) -> None:
    waits, released = (
        topic.send("t", body, delay=delay) for body, delay in ((b"waits", HOUR), (b"out", AT_ONCE))
    )
    consumer = topic.consumer("t", "g")
    assert bodies(consumer.receive()) == [b"out"]
    unknown = waits.message_id[:-16] + "7" * 16
    assert topic.recall(waits.message_id).outcome == "recalled"
    assert topic.recall(released.message_id).outcome == "already_released"
    assert topic.recall(unknown).outcome == "not_found"
    # True whoever asks, however often, and later.
    clock.advance(2 * HOUR)
    assert topic.recall(waits.message_id).outcome == "recalled"
    assert bodies(taken(consumer)) == [b"out"], "only the one that was not answered"
    assert bodies(taken(topic.consumer("t", "new"))) == [b"out"]
    assert state(topic, waits.message_id) == "Deleted"


def test_x01_recall_is_a_command_and_an_sql_function_too(broker: Broker, command: Command) -> None:
    broker.create_topic("t")
    for_command, for_sql = (broker.send("t", b"x", delay=HOUR).message_id for _ in range(2))
    answer = command("message", "recall", for_command)
    assert (answer["outcome"], answer["message_id"]) == ("recalled", for_command)
    assert rows(broker, "select outcome from duewheel.recall(%s)", for_sql) == [("recalled",)]


def test_x02_recall_and_look_up_by_the_senders_own_key(topic: Broker, clock: Clock) -> None:
    topic.send("t", b"4711", delay=HOUR, key="order 4711")
    topic.send("t", b"4712", delay=HOUR, key="order 4712")
    assert [found.body for found in topic.find_key("t", "order 4711")] == [b"4711"]
    assert topic.recall_key("t", "order 4711").outcome == "recalled"
    assert topic.recall_key("t", "order 4713").outcome == "not_found"
    clock.advance(HOUR)
    assert bodies(taken(topic.consumer("t", "g"))) == [b"4712"]
    assert topic.recall_key("t", "order 4712").outcome == "already_released"


def test_x02_reschedule_by_the_senders_own_key(topic: Broker, clock: Clock) -> None:
    topic.send("t", b"4711", delay=HOUR, key="order 4711")
    (moved,) = topic.reschedule_key("t", "order 4711", delay=2 * HOUR)
    assert moved.deliver_at == clock() + 2 * HOUR
    consumer = topic.consumer("t", "g")
    clock.advance(2 * HOUR - MICROSECOND)
    assert taken(consumer) == []
    with pytest.raises(UnknownMessage):
        topic.reschedule_key("t", "order 4712", delay=HOUR)
    clock.advance(MICROSECOND)
    assert [message.message_id for message in taken(consumer)] == [moved.message_id]
    with pytest.raises(AlreadyReleased):
        topic.reschedule_key("t", "order 4711", delay=HOUR)
    # Where it was before it was moved is no answer.
    assert topic.recall_key("t", "order 4711").outcome == "already_released"


def test_x03_reschedule_is_one_atomic_step(topic: Broker, clock: Clock, dsn: str) -> None:
    """Nobody ever sees two of them, or none; later, sooner, or not at all if the caller rolls back."""
    what = {"key": "k", "tag": "a", "properties": {"p": 1}}
    sent = topic.send("t", b"x", delay=HOUR, **what)
    with connected(dsn, autocommit=False) as caller:
        topic.reschedule(sent.message_id, delay=2 * HOUR, connection=caller)
        caller.rollback()
        later = topic.reschedule(sent.message_id, delay=3 * HOUR, connection=caller)
        assert state(topic, sent.message_id) == "Timing"
        assert [found.recalled for found in topic.find_key("t", "k")] == [False]
        caller.commit()
    assert [(found.message_id, found.moved_to) for found in topic.find_key("t", "k")] == [
        (sent.message_id, later.message_id),
        (later.message_id, None),
    ]
    consumer = topic.consumer("t", "g")
    clock.advance(2 * HOUR)
    assert taken(consumer) == []
    sooner = topic.reschedule(later.message_id, deliver_at=clock() + MINUTE)
    clock.advance(MINUTE)
    (message,) = taken(consumer)
    assert (message.message_id, message.body, message.key, message.tag, message.properties) == (
        sooner.message_id, b"x", "k", "a", {"p": 1},
    )  # fmt: skip
    with pytest.raises(AlreadyReleased):
        topic.reschedule(sooner.message_id, delay=HOUR)
    clock.advance(5 * HOUR)
    assert taken(consumer) == []


@pytest.mark.parametrize(
    ("on_conflict", "outcome", "delivered"),
    [
        ("allow", SendOutcome.SENT, [b"first", b"second"]),
        ("keep", SendOutcome.KEPT, [b"first"]),
        ("replace", SendOutcome.REPLACED, [b"second"]),
    ],
)
def test_x04_send_with_allow_keep_or_replace_for_the_same_key(
    topic: Broker, clock: Clock, on_conflict: str, outcome: SendOutcome, delivered: list[bytes]
) -> None:
    first = topic.send("t", b"first", delay=HOUR, key="k", on_conflict=on_conflict)
    second = topic.send("t", b"second", delay=2 * HOUR, key="k", on_conflict=on_conflict)
    other = topic.send("t", b"other", delay=DAY, key="another key", on_conflict=on_conflict)
    assert (first.outcome, second.outcome, other.outcome) == (SendOutcome.SENT, outcome, SendOutcome.SENT)
    assert (second.message_id == first.message_id) is (on_conflict == "keep")
    clock.advance(2 * HOUR)
    assert bodies(taken(topic.consumer("t", "g"))) == delivered
    # What has been released is in nobody's way.
    assert topic.send("t", b"third", delay=HOUR, key="k", on_conflict=on_conflict).outcome is SendOutcome.SENT


def test_x05_bulk_recall_with_a_dry_run_and_a_count(topic: Broker, clock: Clock) -> None:
    """By tag, key prefix, time window, all of them, and the whole topic."""
    keys = {"shop-1/1": "a", "shop-1/2": "b", "shop-1/3": "a", "shop_1/4": "b", "shop-2/5": "b"}
    start = clock()
    for hour, (key, tag) in enumerate(keys.items(), 1):
        topic.send("t", key, delay=hour * HOUR, key=key, tag=tag)
    topic.create_topic("other")
    topic.send("other", b"x", delay=HOUR, key="shop-1/1", tag="a")
    first: dict[str, Any] = {"tag": "a", "key_prefix": "shop-1/", "due_until": start + 2 * HOUR}
    for criteria, matched in (
        ({"tag": "a"}, 2),
        ({"key_prefix": "shop-1/"}, 3),
        ({"due_from": start + 2 * HOUR, "due_until": start + 4 * HOUR}, 2),
        (first, 1),
        ({"everything": True}, 5),
    ):
        counted = topic.recall_many("t", **criteria, dry_run=True)
        assert (counted.matched, counted.recalled, counted.already_released) == (matched, 0, 0), criteria
    assert not any(topic.find_key("t", key)[0].recalled for key in keys), "a dry run changes nothing"
    for criteria, gone in (
        (first, ["shop-1/1"]),
        ({"due_from": start + 2 * HOUR, "due_until": start + 4 * HOUR}, ["shop-1/2", "shop-1/3"]),
    ):
        done = topic.recall_many("t", **criteria)
        assert (done.matched, done.recalled, done.already_released) == (len(gone), len(gone), 0)
        again = topic.recall_many("t", **criteria)
        assert (again.matched, again.recalled) == (0, 0)
        assert all(topic.find_key("t", key)[0].recalled for key in gone)
    clock.advance(10 * HOUR)
    assert [message.key for message in taken(topic.consumer("t", "g"))] == ["shop_1/4", "shop-2/5"]
    assert len(taken(topic.consumer("other", "g"))) == 1


def test_x05_bulk_recall_says_for_how_many_it_was_too_late(topic: Broker, clock: Clock) -> None:
    topic.send_many("t", [{"body": b"x", "delay": n * HOUR, "tag": "a"} for n in (1, 2, 3)])
    clock.advance(HOUR)
    assert len(taken(topic.consumer("t", "g"))) == 1
    done = topic.recall_many("t", tag="a")
    assert (done.recalled, done.already_released) == (2, 1)


@pytest.mark.parametrize("commits", [True, False])
def test_x06_sql_sends_in_the_callers_own_transaction(
    topic: Broker, clock: Clock, dsn: str, commits: bool
) -> None:
    with connected(dsn, autocommit=False) as shop:
        ask(shop, "create table orders (number text primary key)")
        shop.commit()
        ask(
            shop,
            "with placed as (insert into orders values ('4711') returning number)"
            " select duewheel.send('t', number, delay => '30 minutes', key => number, now => %s) from placed",
            clock(),
        )
        assert topic.find_key("t", "4711") == [], "nobody sees it before the commit"
        if commits:
            shop.commit()
        else:
            shop.rollback()
        orders = ask(shop, "select number from orders")
    clock.advance(HOUR)
    assert orders == ([("4711",)] if commits else [])
    assert bodies(taken(topic.consumer("t", "g"))) == ([b"4711"] if commits else [])


@pytest.mark.parametrize("on_conflict", ["allow", "keep", "replace"])
def test_x07_the_same_idempotency_key_twice_is_one_message(
    topic: Broker, clock: Clock, on_conflict: str
) -> None:
    def send() -> tuple[str, str]:
        receipt = topic.send(
            "t", b"x", delay=HOUR, key="k", idempotency_key="dag/run 1/task 2", on_conflict=on_conflict
        )
        return receipt.message_id, receipt.outcome

    first, outcome = send()
    assert outcome == "sent"
    assert send() == (first, "duplicate")
    clock.advance(HOUR)
    assert send() == (first, "duplicate"), "also after its delivery"
    assert [message.message_id for message in taken(topic.consumer("t", "g"))] == [first]


def test_x08_shows_what_waits_and_why_it_has_not_come(topic: Broker, clock: Clock) -> None:
    start = clock()
    consumer = topic.consumer("t", "g", name="worker 7")
    sent = topic.send("t", b"x", delay=HOUR, key="k")
    waiting = rows(topic, "select message_id, key, deliver_at from duewheel.waiting")
    assert waiting == [(sent.message_id, "k", start + HOUR)], "it is not due yet"
    (numbers,) = topic.stats().topics
    assert (numbers.waiting, numbers.next_due_at) == (1, start + HOUR)

    # A minute late: nobody has released it before.
    clock.advance(HOUR + MINUTE)
    (message,) = consumer.receive(invisible=10 * MINUTE)
    entries = {entry.state: entry for entry in topic.history(sent.message_id)}
    assert entries["Ready"].at == start + HOUR + MINUTE
    held = entries["Inflight"]
    assert (held.consumer, held.attempt, held.until_at) == ("worker 7", 1, clock() + 10 * MINUTE)
    assert topic.stats().topics[0].groups[0].inflight == 1

    consumer.nack(message, reason="no stock")
    retry = topic.history(sent.message_id)[-1]
    assert (retry.state, retry.attempt, retry.reason) == ("WaitingRetry", 2, "no stock")
    assert retry.until_at == clock() + 10 * SECOND
    assert topic.stats().topics[0].groups[0].waiting_retry == 1


def test_x09_ack_after_the_work_and_together_with_it(topic: Broker, clock: Clock, dsn: str) -> None:
    sent = topic.send("t", b"x", delay=AT_ONCE)
    consumer = topic.consumer("t", "g")
    for ends in ("crashes", "goes back and commits"):
        batch = consumer.receive(invisible=MINUTE)
        assert state(topic, sent.message_id, "g") == "Inflight", "receiving is not acking"
        with connected(dsn, autocommit=False) as worker:
            ask(worker, "create table work_done (n integer)")
            consumer.ack(batch, connection=worker)
            # Neither the work nor the ack exists.
            worker.rollback()
            if ends == "goes back and commits":
                ask(worker, "create table work_done (n integer)")
                consumer.ack(batch, connection=worker)
                worker.commit()
                consumer.ack(batch)
        clock.advance(HOUR)
    assert state(topic, sent.message_id, "g") == "Acked"
    assert not consumer.receive()


def test_x09_a_push_consumer_acks_after_its_listener_came_back(broker: Broker) -> None:
    broker.create_topic("t")
    sent = broker.send("t", b"x", delay=AT_ONCE)
    seen: list[str] = []

    def listener(message: Message) -> str:
        seen.append(state(broker, message.message_id, "g"))
        return "success"

    with broker.push_consumer("t", "g", listener):
        until(lambda: state(broker, sent.message_id, "g") == "Acked", "the ack")
    assert seen == ["Inflight"]


def test_x10_a_late_ack_is_refused_and_says_so(topic: Broker, clock: Clock) -> None:
    """So is any other late answer; none changes anything."""
    sent = topic.send("t", b"x", delay=AT_ONCE)
    slow, fast = topic.consumer("t", "g", name="slow"), topic.consumer("t", "g", name="fast")
    lost = slow.receive(invisible=MINUTE)
    clock.advance(MINUTE)
    says = r"the lease ended at 2026-01-05 09:31:00.*may be delivered to others"
    for answer in (
        slow.ack,
        slow.nack,
        slow.give_back,
        lambda batch: slow.change_invisible_duration(batch, MINUTE),
    ):
        with pytest.raises(LeaseLost, match=says):
            answer(lost)
    again = fast.receive(invisible=MINUTE)
    assert [(message.message_id, message.attempt) for message in again] == [(sent.message_id, 2)]
    with pytest.raises(LeaseLost):
        slow.ack(lost)
    assert state(topic, sent.message_id, "g") == "Inflight"
    fast.ack(again)
    assert state(topic, sent.message_id, "g") == "Acked"


def test_x11_a_lease_can_be_extended(topic: Broker, clock: Clock) -> None:
    topic.send("t", b"x", delay=AT_ONCE)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=MINUTE)
    for _ in range(10):
        clock.advance(MINUTE - MICROSECOND)
        consumer.change_invisible_duration(batch, MINUTE)
    clock.advance(MINUTE - MICROSECOND)
    assert not consumer.receive()
    consumer.ack(batch)
    clock.advance(HOUR)
    assert not consumer.receive()


def test_x11_a_lease_is_kept_alive_while_long_work_runs(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend_often(monkeypatch)
    broker.create_topic("t")
    sent = broker.send("t", b"x", delay=AT_ONCE)
    consumer = broker.consumer("t", "g")
    batch = consumer.receive(invisible=LEASE)
    assert batch.expires_at is not None
    with LeaseKeeper(consumer, batch.leases, LEASE) as keeper:
        wait_for_extensions(keeper, 5)
        with consumer_at(broker, consumer, batch.expires_at + MILLISECOND) as late:
            assert not late.receive()
        assert state(broker, sent.message_id, "g") == "Inflight"
        consumer.ack(batch)
    assert state(broker, sent.message_id, "g") == "Acked"


def dead_letters(topic: Broker, *bodies_and_reasons: tuple[str, str]) -> Consumer:
    """A consumer whose group has these dead letters, in this order."""
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(0))
    for body, reason in bodies_and_reasons:
        topic.send("t", body, delay=AT_ONCE, key=f"key {body}", tag=reason.partition(" ")[0])
        consumer.nack(consumer.receive(), reason=reason)
    return consumer


def test_x12_redrive_by_filter_keeps_ids_attempts_and_errors(topic: Broker, clock: Clock) -> None:
    consumer = dead_letters(topic, ("1", "timeout of 5 s"), ("2", "no stock"), ("3", "no stock left"))
    before = {dead.body: dead for dead in topic.dead_letters("g")}
    for criteria, matched in (
        ({}, 3),
        ({"reason_contains": "stock"}, 2),
        ({"tag": "timeout"}, 1),
        ({"key_prefix": "key 2"}, 1),
        ({"topic": "t", "reason_contains": "%"}, 0),
    ):
        counted = topic.redrive("g", **criteria, dry_run=True)
        assert (counted.matched, counted.redriven) == (matched, 0), criteria
    assert not consumer.receive()
    for criteria, body in (
        ({"reason_contains": "stock", "max_messages": 1}, b"2"),
        ({"tag": "timeout"}, b"1"),
        ({"key_prefix": "key 3"}, b"3"),
    ):
        assert topic.redrive("g", **criteria).redriven == 1
        (message,) = consumer.receive()
        dead = before[body]
        assert (message.body, message.message_id) == (body, dead.message_id)
        assert message.attempt == dead.attempt + 1 == 2
        reasons = [entry.reason for entry in topic.history(message.message_id) if entry.state == "DLQ"]
        assert reasons == [dead.reason], "the error is not forgotten"
        # It fails again: a new dead letter of the same message, and the attempts go on.
        consumer.nack(message, reason="still not")
    again = {dead.body: dead.attempt for dead in topic.dead_letters("g") if dead.reason == "still not"}
    assert again == {b"1": 2, b"2": 2, b"3": 2}


def test_x12_redrive_is_resumable_and_sends_each_once(topic: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in its pause between two lots, then run twice."""
    consumer = dead_letters(topic, *((f"{n}", "no stock") for n in range(30)))

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    stopping = SimpleNamespace(monotonic=time.monotonic, sleep=interrupted)
    with monkeypatch.context() as patched:
        patched.setattr("duewheel.store.operations.dead_letters.time", stopping)
        with pytest.raises(KeyboardInterrupt):
            topic.redrive("g", per_second=100)
    first = taken(consumer)
    assert 0 < len(first) < 30
    assert topic.redrive("g").redriven == 30 - len(first)
    assert topic.redrive("g").redriven == 0
    assert sorted(int(body) for body in bodies([*first, *taken(consumer)])) == list(range(30))


def test_x12_redrive_goes_at_a_rate(topic: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a time that only its own pauses make go by."""
    consumer = dead_letters(topic, *((f"{n}", "no stock") for n in range(20)))
    passed_seconds = 0.0
    came: dict[float, int] = {}

    def pause(seconds: float) -> None:
        nonlocal passed_seconds
        came[round(passed_seconds, 3)] = len(taken(consumer))
        passed_seconds += seconds

    of_the_redrive = SimpleNamespace(monotonic=lambda: passed_seconds, sleep=pause)
    monkeypatch.setattr("duewheel.store.operations.dead_letters.time", of_the_redrive)
    assert topic.redrive("g", per_second=40).redriven == 20
    # The first lot goes at once, the others at their time.
    assert came == {0.0: 4, 0.1: 4, 0.2: 4, 0.3: 4, 0.4: 4}


def test_x13_only_the_databases_clock_decides(
    broker: Broker, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender's machine is a year ahead, the consumer's a year behind."""
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    real = time.time
    with connected(dsn) as connection:
        monkeypatch.setattr(time, "time", lambda: real() + 366 * 86_400)
        ((before,),) = ask(connection, "select clock_timestamp()")
        due = broker.send("t", b"due", delay=AT_ONCE)
        broker.send("t", b"waits", delay=HOUR)
        ((after,),) = ask(connection, "select clock_timestamp()")
        assert before <= due.deliver_at <= after
        monkeypatch.setattr(time, "time", lambda: real() - 366 * 86_400)
        batch = consumer.receive(invisible=MINUTE)
        assert bodies(batch) == [b"due"]
        assert batch.expires_at is not None
        assert before + MINUTE <= batch.expires_at
        consumer.ack(batch)


def test_x14_being_down_for_any_length_of_time_loses_nothing(topic: Broker, clock: Clock) -> None:
    """A year. The message was due in its first hour, a lease was open, a retry waited."""
    topic.update_topic("t", max_delay=400 * DAY)
    consumer = topic.consumer("t", "g")
    topic.send("t", b"nacked", delay=AT_ONCE)
    consumer.nack(consumer.receive())
    topic.send("t", b"leased", delay=AT_ONCE)
    consumer.receive()
    topic.send("t", b"due meanwhile", delay=HOUR)
    topic.send("t", b"due later", delay=366 * DAY)
    clock.advance(365 * DAY)
    topic.maintain()
    got = taken(consumer)
    assert sorted((message.body, message.attempt) for message in got) == [
        (b"due meanwhile", 1),
        (b"leased", 2),
        (b"nacked", 2),
    ]
    clock.advance(DAY)
    assert bodies(taken(consumer)) == [b"due later"]


def test_x14_a_wheel_continues_after_its_database_was_away(
    broker: Broker, dsn: str, postgres: EmbeddedPostgres
) -> None:
    broker.create_topic("t", granularity=MILLISECOND)
    with turning(broker):
        first = broker.send("t", b"x", delay=AT_ONCE)
        until(lambda: state(broker, first.message_id) == "Ready", "the wheel to turn")
        second = broker.send("t", b"x", delay=200 * MILLISECOND)
        with outage(postgres, dsn):
            pass
        until(lambda: state(broker, second.message_id) == "Ready", "the wheel to turn again")


def test_x15_one_poison_message_never_stops_the_others(topic: Broker, clock: Clock) -> None:
    """It fails every time, also by never being answered; all others are consumed in their order."""
    consumer = topic.consumer("t", "g")
    poison = topic.send("t", b"poison", delay=AT_ONCE).message_id
    done: list[bytes] = []
    for n in range(40):
        topic.send("t", b"%d" % n, delay=AT_ONCE)
        for message in consumer.receive(invisible=MINUTE):
            if message.message_id != poison:
                done.append(message.body)
                consumer.ack(message)
            elif n % 2:
                consumer.nack(message, reason="poison")
        clock.advance(2 * HOUR)
    assert done == [b"%d" % n for n in range(40)]
    assert state(topic, poison, "g") == "DLQ"


def test_x15_a_stuck_listener_never_stops_the_others(broker: Broker) -> None:
    broker.create_topic("t")
    let_go, others = threading.Event(), threading.Semaphore(0)

    def listener(message: Message) -> str:
        if message.body == b"poison":
            let_go.wait(PATIENCE_SECONDS)
        else:
            others.release()
        return "success"

    with broker.push_consumer("t", "g", listener, threads=2):
        broker.send("t", b"poison", delay=AT_ONCE)
        broker.send_many("t", [{"body": b"x", "delay": AT_ONCE}] * 20)
        for _ in range(20):
            assert others.acquire(timeout=PATIENCE_SECONDS)
        let_go.set()


def test_x06_a_late_recall_fails_the_whole_transaction(topic: Broker, clock: Clock, dsn: str) -> None:
    sent = topic.send("t", b"x", delay=MINUTE)
    with connected(dsn, autocommit=False) as shop:
        assert topic.recall(sent.message_id, connection=shop).outcome == "recalled"
        clock.advance(MINUTE)
        assert topic.tick("t")
        with pytest.raises(psycopg2.Error) as refusal:
            shop.commit()
    assert refusal.value.pgcode == AlreadyReleased.sqlstate
    assert bodies(taken(topic.consumer("t", "g"))) == [b"x"]
    assert topic.recall(sent.message_id).outcome == "already_released"


def test_x16_work_and_ack_in_one_transaction_happen_once(topic: Broker, dsn: str) -> None:
    """Three workers do the same work, as a retry or a speculative task would: one of them commits."""
    topic.send_many("t", [{"body": b"%d" % n, "delay": AT_ONCE} for n in range(10)])
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()
    with connected(dsn) as shop:
        ask(shop, "create table work_done (message_id text)")
    refused = 0
    for _ in range(3):
        with connected(dsn, autocommit=False) as worker:
            for message in batch:
                ask(worker, "insert into work_done values (%s)", message.message_id)
            try:
                consumer.ack(batch, connection=worker)
            except AlreadyAnswered:
                refused += 1
                worker.rollback()
            else:
                worker.commit()
    with connected(dsn) as shop:
        assert ask(shop, "select count(*) from work_done") == [(10,)]
    assert refused == 2


def test_x16_a_fence_tells_a_slow_worker_before_its_work(topic: Broker, dsn: str, clock: Clock) -> None:
    """The worker that has the fence may take longer than its lease, and nobody else gets the messages."""
    topic.send("t", b"x", delay=AT_ONCE)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=MINUTE)
    with connected(dsn, autocommit=False) as worker, connected(dsn, autocommit=False) as slow:
        consumer.fence(batch, connection=worker)
        clock.advance(HOUR)
        assert not consumer.receive()
        consumer.ack(batch, connection=worker)
        worker.commit()
        with pytest.raises(AlreadyAnswered):
            consumer.fence(batch, connection=slow)
    clock.advance(HOUR)
    assert not consumer.receive()


def test_x17_ten_years_ahead_is_as_near_as_a_minute(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", max_delay=3_660 * DAY)
    consumer = timed_broker.consumer("t", "g")
    years = [
        timed_broker.send("t", f"{year}", delay=year * 365 * DAY, key=f"{year}") for year in range(1, 11)
    ]
    tables = "select count(*) from pg_tables where schemaname = 'duewheel' and tablename ~ '^message_2'"
    for year, sent in enumerate(years, 1):
        if year % 2:
            timed_broker.maintain()
        assert rows(timed_broker, tables)[0][0] <= 60
        assert timed_broker.find_key("t", f"{year}")[0].message_id == sent.message_id
        if year == 5:
            assert timed_broker.recall_key("t", "5").outcome == "recalled"
        clock.set(sent.deliver_at - timedelta(milliseconds=1))
        assert not consumer.receive()
        clock.set(sent.deliver_at)
        assert bodies(taken(consumer)) == ([] if year == 5 else [f"{year}".encode()])


def test_x18_an_open_transaction_holds_up_no_session_for_long(broker: Broker) -> None:
    broker.create_topic("t", queues=1)
    for group in ("g", "other"):
        broker.consumer("t", group)
    broker.send("t", b"first", delay=AT_ONCE)
    with connected(broker.dsn, autocommit=False) as holder:
        broker.tick("t")
        assert ask(holder, "select receipt_handle from duewheel.receive('t', 'g')")
        broker.send("t", b"second", delay=AT_ONCE)
        broker.tick("t")
        assert sorted(bodies(taken(broker.consumer("t", "other")))) == [b"first", b"second"]
        holder.commit()
    assert sorted(bodies(taken(broker.consumer("t", "g")))) == [b"second"]


@pytest.mark.owner
def test_x19_a_role_cannot_move_time_or_use_up_ids(broker: Broker) -> None:
    broker.create_topic("t", max_delay=30 * DAY)
    broker.send("t", b"", delay=20 * DAY)
    ahead = broker.consumer("t", "ahead")
    for role, call in (
        ("duewheel_consumer", "select * from duewheel.receive('t', 'ahead', now => %s)"),
        ("duewheel_consumer", "call duewheel.tick('t', %s)"),
        ("duewheel_producer", "select * from duewheel.send('t', ''::text, delay => '0 s', now => %s)"),
        ("duewheel_admin", "call duewheel.tick('t', %s)"),
    ):
        with (
            connected(login(broker.dsn, role)) as connection,
            pytest.raises(psycopg2.errors.InsufficientPrivilege, match="may set the time"),
        ):
            ask(connection, call, datetime.now(UTC) + 25 * DAY)
    assert not ahead.receive()
    drawn = (
        "select t.last_value, g.last_value"
        " from duewheel.topic_topic_id_seq t, duewheel.subscription_group_id_seq g"
    )
    before = rows(broker, drawn)
    for _ in range(1000):
        broker.create_topic("t", max_delay=30 * DAY)
        broker.consumer("t", "ahead")
    assert rows(broker, drawn) == before


def test_x20_a_stalled_group_is_shown_and_can_be_removed(topic: Broker, clock: Clock) -> None:
    # Whether a group stands still is told by the database's own clock.
    clock.set(datetime.now(UTC) - 10 * DAY)
    reader = topic.consumer("t", "reader")
    topic.consumer("t", "forgotten")
    topic.send("t", b"", delay=AT_ONCE)
    clock.advance(SECOND)
    reader.ack(reader.receive())
    assert [group.group for group in topic.groups() if group.stalled_since is not None] == ["forgotten"]
    clock.advance(5 * DAY)
    assert topic.maintain().kept_unread
    topic.delete_group("forgotten")
    assert not topic.maintain().kept_unread
    assert [group.group for group in topic.groups()] == ["reader"]


def test_x21_an_id_answers_for_its_message_wherever_it_was_moved(
    broker: Broker, clock: Clock, command: Command
) -> None:
    broker.create_topic("t")
    sent = broker.send("t", b"pay", delay=HOUR, key="order 4711")
    later = broker.reschedule(sent.message_id, delay=2 * HOUR)
    present = broker.reschedule(sent.message_id, delay=3 * HOUR).message_id
    assert present not in (sent.message_id, later.message_id)
    # All of Python, SQL and the command line speak of the message where it is.
    found = broker.find(sent.message_id)
    assert found is not None
    assert (found.message_id, found.moved_from, found.recalled) == (present, sent.message_id, False)
    assert state(broker, sent.message_id) == state(broker, present) == "Timing"
    (shown,) = command("message", "find", later.message_id)
    assert (shown["message_id"], shown["moved_from"]) == (present, sent.message_id)
    answer = "select outcome, message_id from duewheel.recall(%s)"
    assert rows(broker, answer, later.message_id) == [("recalled", present)]
    recalled = command("message", "recall", sent.message_id)
    assert (recalled["outcome"], recalled["message_id"]) == ("recalled", present)
    # Another message may be sent in its stead.
    old = broker.send("t", b"pay", delay=HOUR, key="order 4712")
    new = broker.send("t", b"pay soon", delay=HOUR, key="order 4712", on_conflict="replace")
    answered = broker.recall(old.message_id)
    assert (answered.outcome, answered.message_id) == ("replaced", new.message_id)
