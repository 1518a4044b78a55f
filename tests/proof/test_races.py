"""Races by the thousand, with real connections and the real clock: each answer was true (X01, X03, X04, X07).

The verdict does not depend on who wins: whatever was answered must be what happened. That the races were
real is asserted, too: each side won a good number of them.

``DUEWHEEL_RACES=100000`` races for longer.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from psycopg2.extensions import make_dsn
from tests.acting import AT_ONCE, DAY, HOUR, MILLISECOND, SECOND
from tests.clock import Clock
from tests.proof.racing import RUNNERS, TOPIC, Aim, Strike, consumed, race, rest
from tests.turning import wheel_process
from tests.waiting import STOP, ask, beside, connected, until, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.values.errors import AlreadyReleased, LeaseLost, UnknownMessage
from duewheel.store.values.messages import Message, RecallOutcome, RecallReceipt, SendOutcome, SendReceipt

RACES = int(os.environ.get("DUEWHEEL_RACES", "500"))
#: Of calls that several runners make at one moment.
TURNS = RACES // 4


@pytest.fixture
def topic(broker: Broker) -> Broker:
    """A topic that is ticked every millisecond when it is busy."""
    broker.create_topic(TOPIC, granularity=MILLISECOND)
    broker.maintain()
    return broker


def number_in(identity: str) -> str:
    """The number that orders the messages of one instant, out of an id."""
    return identity[28:]


def raced(
    topic: Broker, dsn: str, striker: Callable[[Broker], Strike], **options: Any
) -> tuple[list[Message], Counter[str]]:
    """What was delivered, and how often each body, while threads raced the releases of a wheel.

    Each side won at least a tenth of the races.
    """
    with wheel_process(dsn), consumed(topic) as delivered:
        outcomes = race(dsn, RACES, striker, **options)
    assert len(outcomes) == RACES
    won = sum(outcomes)
    assert RACES // 10 <= won <= RACES - RACES // 10, f"{won} of {RACES}"
    return delivered, Counter(message.body.decode() for message in delivered)


@pytest.mark.slow
@pytest.mark.tenfold
def test_x01_races_of_two_recalls_of_one_message_and_its_release(topic: Broker, dsn: str) -> None:
    """Both tell the same truth, at the same time, also when the release comes between them."""
    answers: dict[str, tuple[str, str]] = {}

    def two_recallers(broker: Broker) -> Strike:
        second = ThreadPoolExecutor(1)

        def strike(receipt: SendReceipt, name: str) -> bool:
            other = second.submit(broker.recall, receipt.message_id)
            mine = broker.recall(receipt.message_id)
            answers[name] = mine.outcome.value, other.result().outcome.value
            return answers[name][0] == "recalled"

        return strike

    _, times = raced(topic, dsn, two_recallers)
    assert len(answers) == RACES
    for name, pair in answers.items():
        assert pair in (("recalled", "recalled"), ("already_released", "already_released")), (name, pair)
        assert times[name] == (0 if "recalled" in pair else 1), f"{name}: {pair}, came {times[name]} times"


@pytest.mark.slow
@pytest.mark.tenfold
def test_x03_races_of_two_reschedules_and_a_release(topic: Broker, dsn: str) -> None:
    """One after the other moves it; it comes once, where the last one has put it."""
    moved: dict[str, list[SendReceipt]] = {}

    def two_reschedulers(broker: Broker) -> Strike:
        second = ThreadPoolExecutor(1)

        def move(receipt: SendReceipt, name: str) -> None:
            with suppress(AlreadyReleased):
                moved[name].append(broker.reschedule(receipt.message_id, delay=SECOND))

        def strike(receipt: SendReceipt, name: str) -> bool:
            sent[name], moved[name] = receipt, []
            other = second.submit(move, receipt, name)
            move(receipt, name)
            other.result()
            return bool(moved[name])

        return strike

    sent: dict[str, SendReceipt] = {}
    delivered, times = raced(topic, dsn, two_reschedulers)
    assert times == dict.fromkeys(moved, 1)
    came = {message.body.decode(): (message.message_id, message.deliver_at) for message in delivered}
    for name, receipts in moved.items():
        # The number in an id grows from move to move.
        last = max(receipts, key=lambda receipt: number_in(receipt.message_id), default=sent[name])
        assert came[name] == (last.message_id, last.deliver_at)
    assert Counter(map(len, moved.values())).keys() == {0, 2}


@pytest.mark.slow
@pytest.mark.tenfold
def test_x21_races_of_a_recall_by_an_old_id_against_release(topic: Broker, dsn: str) -> None:
    """The message was moved twice; a recall by its first id tells of it where it is."""
    answers: dict[str, RecallReceipt] = {}
    present: dict[str, str] = {}

    def recaller(broker: Broker) -> Strike:
        def strike(receipt: SendReceipt, name: str) -> bool:
            answers[name] = broker.recall(receipt.message_id)
            return answers[name].outcome is RecallOutcome.RECALLED

        return strike

    def move_twice(broker: Broker, receipt: SendReceipt, name: str) -> None:
        present[name] = receipt.message_id
        # This machine may be busy.
        with suppress(AlreadyReleased):
            on = broker.reschedule(receipt.message_id, delay=HOUR)
            present[name] = broker.reschedule(on.message_id, deliver_at=receipt.deliver_at).message_id

    delivered, _ = raced(topic, dsn, recaller, before=move_twice)
    times = Counter((message.body.decode(), message.message_id) for message in delivered)
    assert len(answers) == RACES
    for name, answer in answers.items():
        assert answer.message_id == present[name]
        came = {RecallOutcome.RECALLED: 0, RecallOutcome.ALREADY_RELEASED: 1}[answer.outcome]
        assert times[name, present[name]] == came, f"{name}: {answer}"
    assert len(delivered) == [answer.outcome for answer in answers.values()].count("already_released")


@pytest.mark.slow
@pytest.mark.tenfold
def test_x21_races_of_a_recall_by_an_old_id_against_another_move(topic: Broker, dsn: str) -> None:
    """Recalled is never delivered, wherever the move puts it; and an answered move was before that."""
    answers: dict[str, tuple[RecallReceipt, SendReceipt | None]] = {}

    def recaller(broker: Broker) -> Strike:
        second = ThreadPoolExecutor(1)
        aim = Aim()

        def move(receipt: SendReceipt) -> SendReceipt | None:
            aim.pause_opponent()
            try:
                return broker.reschedule(receipt.message_id, delay=SECOND)
            except (AlreadyReleased, UnknownMessage):
                return None

        def strike(receipt: SendReceipt, name: str) -> bool:
            moved = second.submit(move, receipt)
            aim.pause_striker()
            answer = broker.recall(receipt.message_id)
            answers[name] = answer, moved.result()
            if answer.outcome is RecallOutcome.RECALLED:
                aim.learn(answers[name][1] is None)
            return answer.outcome is RecallOutcome.RECALLED

        return strike

    delivered, _ = raced(topic, dsn, recaller)
    came = {message.body.decode(): message.message_id for message in delivered}
    assert len(came) == len(delivered)
    assert len(answers) == RACES
    for name, (answer, moved) in answers.items():
        if answer.outcome is RecallOutcome.RECALLED:
            assert name not in came
            assert moved is None or answer.message_id == moved.message_id
        else:
            assert answer.outcome is RecallOutcome.ALREADY_RELEASED
            assert (answer.message_id, moved) == (came[name], None)
    recalled = [moved for answer, moved in answers.values() if answer.outcome is RecallOutcome.RECALLED]
    assert {moved is None for moved in recalled} == {True, False}


@pytest.mark.slow
@pytest.mark.tenfold
def test_x04_races_of_replace_against_release(topic: Broker, dsn: str) -> None:
    """Replaced: the old one never comes. Sent: the old one had been released. Refused: nothing was sent."""
    answers: dict[str, SendOutcome | None] = {}

    def replacer(broker: Broker) -> Strike:
        def strike(_: SendReceipt, name: str) -> bool:
            answers[name] = None
            with suppress(AlreadyReleased):
                receipt = broker.send(TOPIC, f"new {name}", delay=SECOND, key=name, on_conflict="replace")
                answers[name] = receipt.outcome
            return answers[name] is SendOutcome.REPLACED

        return strike

    _, times = raced(topic, dsn, replacer, key=True)
    expected = {SendOutcome.REPLACED: (0, 1), SendOutcome.SENT: (1, 1), None: (1, 0)}
    for name, answer in answers.items():
        assert (times[name], times[f"new {name}"]) == expected[answer], f"{name}: {answer}"


def all_at_once(dsn: str, **given: Any) -> list[tuple[SendReceipt, ...]]:
    """What several runners are answered that send at the same moment, turn by turn.

    A field of a message that is to be the turn's number is ``str``.
    """
    gate = threading.Barrier(RUNNERS)

    def run(_: int) -> list[SendReceipt]:
        with Broker(dsn) as broker:
            answers = []
            for turn in range(TURNS):
                message = {name: f"{turn}" if value is str else value for name, value in given.items()}
                gate.wait(60)
                answers.append(broker.send(TOPIC, f"{turn}", **message))
            return answers

    with ThreadPoolExecutor(RUNNERS) as threads:
        return list(zip(*threads.map(run, range(RUNNERS)), strict=True))


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
def test_x04_of_many_that_keep_or_replace_one_waits(topic: Broker, dsn: str, on_conflict: str) -> None:
    for turn, receipts in enumerate(all_at_once(dsn, delay=HOUR, key=str, on_conflict=on_conflict)):
        there = topic.find_key(TOPIC, f"{turn}")
        assert {message.message_id for message in there} == {receipt.message_id for receipt in receipts}
        assert [message.recalled for message in there].count(False) == 1
        other = SendOutcome.KEPT if on_conflict == "keep" else SendOutcome.REPLACED
        outcomes = Counter(receipt.outcome for receipt in receipts)
        assert outcomes == {SendOutcome.SENT: 1, other: RUNNERS - 1}


def test_x07_of_many_with_one_idempotency_key_one_sends(topic: Broker, dsn: str) -> None:
    for receipts in all_at_once(dsn, delay=AT_ONCE, idempotency_key=str):
        assert len({receipt.message_id for receipt in receipts}) == 1
        assert [receipt.outcome for receipt in receipts].count(SendOutcome.SENT) == 1
    delivered = rest(topic, topic.consumer(TOPIC, "g"))
    assert Counter(message.body.decode() for message in delivered) == {f"{n}": 1 for n in range(TURNS)}


# --- against a pause


@pytest.mark.slow
@pytest.mark.tenfold
@pytest.mark.parametrize("message_type", ["NORMAL", "FIFO"])
def test_races_of_a_pause_against_receives(broker: Broker, dsn: str, message_type: str) -> None:
    """A receive that begins after the answer to a pause, and ends before the group is resumed, is empty.

    One that is under way at that answer may have messages. Each message comes once.
    """
    broker.create_topic(TOPIC, message_type=message_type, queues=2)
    group = broker.consumer(TOPIC, "g")
    names = [f"{n}" for n in range(2 * RACES)]
    given = [{"message_group": f"{n % 20}"} if message_type == "FIFO" else {} for n in range(len(names))]
    broker.send_many(TOPIC, [{"body": name, **one} for name, one in zip(names, given, strict=True)])
    #: How often a pause was answered or a resumption called: odd while nothing may come.
    turn = 0
    looks = [0] * RUNNERS
    stop = threading.Event()
    came: list[str] = []
    #: Whether receives that an answer to a pause overtook had messages.
    overtaken: list[bool] = []

    def consume(runner: int) -> None:
        with Broker(dsn) as own:
            consumer = own.consumer(TOPIC, "g")
            while not stop.is_set():
                began = turn
                batch = consumer.receive(2)
                ended = turn
                assert not (began % 2 and began == ended and batch), "it came to a paused group"
                if ended % 2 and began == ended - 1:
                    overtaken.append(len(batch) > 0)
                consumer.ack(batch)
                came.extend(message.body.decode() for message in batch)
                looks[runner] += 1

    def all_look() -> None:
        before = list(looks)

        def have_looked() -> bool:
            for one in consuming:
                if one.done():
                    one.result()
            return all(now > then + 1 for now, then in zip(looks, before, strict=True))

        until(have_looked, "each consumer to look twice", pause_seconds=0.001)

    with beside() as start:
        consuming = [start(partial(consume, runner)) for runner in range(RUNNERS)]
        try:
            while len(came) < len(names):
                assert broker.pause_group("g") == 1
                turn += 1
                all_look()
                turn += 1
                assert broker.resume_group("g") == 1
                all_look()
        finally:
            stop.set()
        for one in consuming:
            one.result()
    assert Counter(came) == dict.fromkeys(names, 1)
    assert set(overtaken) == {True, False}
    assert not group.receive()


# --- against an operator


@pytest.mark.slow
@pytest.mark.tenfold
@pytest.mark.parametrize("message_type", ["NORMAL", "FIFO"])
def test_races_of_a_released_lease_against_its_ack(broker: Broker, dsn: str, message_type: str) -> None:
    """Of an ack and a release at once one counts: an acked message never comes again, a released one once."""
    broker.create_topic(TOPIC, message_type=message_type, queues=2)
    consumer = broker.consumer(TOPIC, "g")
    names = [f"{n}" for n in range(RACES // 5)]
    acked: list[str] = []
    released: list[str] = []
    aim = Aim()
    with Broker(dsn) as operator, beside() as start:
        for name in names:
            broker.send(TOPIC, name, message_group=name if message_type == "FIFO" else None)
            (message,) = consumer.receive(1, invisible=HOUR, wait=30 * SECOND)
            (lease,) = operator.leases()
            together = threading.Barrier(2)

            def release(lease_id: str = lease.lease_id, together: threading.Barrier = together) -> int | None:
                together.wait()
                aim.pause_opponent()
                return operator.release_lease(lease_id)

            releasing = start(release)
            together.wait()
            aim.pause_striker()
            try:
                consumer.ack(message)
            except LeaseLost:
                assert releasing.result() == 1
                (again,) = consumer.receive(1, wait=30 * SECOND)
                assert (again.body.decode(), again.attempt) == (name, 2)
                consumer.ack(again)
                released.append(name)
                aim.learn(False)
            else:
                assert releasing.result() is None
                acked.append(name)
                aim.learn(True)
    assert acked
    assert released
    assert not consumer.receive(1)
    assert sorted(acked + released) == sorted(names)


@pytest.mark.slow
@pytest.mark.tenfold
def test_races_of_a_retry_now_against_the_release_of_the_retry(broker: Broker, dsn: str) -> None:
    """Each retry comes once, whether it was made due now or came at its instant in that moment."""
    broker.create_topic(TOPIC, message_type="NORMAL", queues=1, granularity=MILLISECOND)
    consumer = broker.consumer(TOPIC, "g")
    names = [f"{n}" for n in range(RACES // 2)]
    broker.send_many(TOPIC, [{"body": name} for name in names])
    batch = consumer.receive(len(names), invisible=HOUR)
    ids = [message.message_id for message in batch]
    with wheel_process(dsn), consumed(broker) as delivered, Broker(dsn) as operator:
        for number, message in enumerate(batch):
            consumer.nack(message, delay=(number % 20) * MILLISECOND)
            operator.retry_now("g", ids[max(0, number - 9) : number + 1])
    assert Counter((message.message_id, message.attempt) for message in delivered) == dict.fromkeys(
        ((one, 2) for one in ids), 1
    )
    with connected(dsn) as connection:
        ((hastened,),) = ask(connection, "select count(*) from duewheel.redrive")
    assert 0 < hastened < len(names)


# --- inside a transaction that stays open


#: After a send has met its idempotency key and before it reads the message of that key.
STOP_BETWEEN = f"""{STOP}
create trigger stop after insert on duewheel.idempotency for each statement execute function stop();
"""


@pytest.mark.parametrize("upkeep", ["ends before it", "ends in the middle of it", "is taken back"])
def test_x07_a_send_whose_old_key_is_deleted_has_a_receipt(
    topic: Broker, dsn: str, clock: Clock, upkeep: str
) -> None:
    def send() -> SendReceipt:
        with Broker(dsn, clock=clock) as broker:
            return broker.send(TOPIC, b"", delay=HOUR, idempotency_key="i")

    first = send()
    clock.advance(30 * DAY)
    forget = "select duewheel.forget_expired(1000, %s)"
    with beside() as start, connected(dsn, autocommit=False) as other, connected(dsn) as now:
        if upkeep == "ends in the middle of it":
            ask(now, STOP_BETWEEN)
            ask(other, "select pg_advisory_xact_lock(1)")
            second = start(send)
            until_somebody_waits(dsn)
            ask(now, forget, clock())
        else:
            ask(other, forget, clock())
            second = start(send)
            until_somebody_waits(dsn)
        if upkeep == "is taken back":
            other.rollback()
        else:
            other.commit()
        receipt = second.result()
    if upkeep == "is taken back":
        assert receipt == replace(first, outcome=SendOutcome.DUPLICATE)
    else:
        assert receipt.outcome is SendOutcome.SENT
        assert receipt.deliver_at == clock() + HOUR
    assert send() == replace(receipt, outcome=SendOutcome.DUPLICATE)


@pytest.mark.parametrize("commits", [True, False])
def test_x01_x03_x04_x05_an_open_transaction_holds_up_no_session(
    topic: Broker, dsn: str, commits: bool
) -> None:
    """It recalls and moves by id, by key and in bulk, and replaces; who waits for it is thrown out."""
    impatient = make_dsn(dsn, options="-c lock_timeout=30s -c statement_timeout=60s")
    keys = ("recalled", "recalled by key", "moved", "moved by key", "replaced", "in bulk")
    held = {key: topic.send(TOPIC, b"held", delay=HOUR, key=key).message_id for key in keys}
    with connected(dsn, autocommit=False) as caller, Broker(impatient) as others, wheel_process(impatient):
        assert topic.recall(held["recalled"], connection=caller).outcome == "recalled"
        assert topic.recall_key(TOPIC, "recalled by key", connection=caller).outcome == "recalled"
        topic.reschedule(held["moved"], delay=2 * HOUR, connection=caller)
        topic.reschedule_key(TOPIC, "moved by key", delay=2 * HOUR, connection=caller)
        new = {"delay": 2 * HOUR, "key": "replaced", "on_conflict": "replace"}
        assert topic.send(TOPIC, b"new", **new, connection=caller).outcome is SendOutcome.REPLACED
        assert topic.recall_many(TOPIC, key_prefix="in bulk", connection=caller).recalled == 1
        consumer = others.consumer(TOPIC, "g")
        last = datetime.min.replace(tzinfo=UTC)
        for n in range(3):
            sent = [
                *(others.send(TOPIC, b"one", delay=MILLISECOND, key=key) for key in keys),
                *others.send_many(TOPIC, [{"body": b"many", "delay": AT_ONCE, "key": keys[0]}] * 20),
                others.send(TOPIC, b"another key", delay=AT_ONCE, key=f"{n}", on_conflict="replace"),
            ]
            recalled = others.send(TOPIC, b"recalled", delay=HOUR, key=f"other {n}")
            assert others.recall(recalled.message_id).outcome == "recalled"
            others.reschedule(others.send(TOPIC, b"later", delay=HOUR).message_id, delay=2 * HOUR)
            # The wheel releases them, and nobody else has to.
            until(lambda: all(_is_ready(others, receipt) for receipt in sent), "the wheel to go on")  # noqa: B023
            got: list[str] = []
            while len(got) < len(sent):
                batch = consumer.receive(100, wait=5 * SECOND)
                consumer.ack(batch)
                got += [message.message_id for message in batch]
            assert sorted(got) == sorted(receipt.message_id for receipt in sent)
            others.maintain()
            before, last = last, max(receipt.deliver_at for receipt in sent)
            assert before < last
        if commits:
            caller.commit()
        else:
            caller.rollback()
    for identity in held.values():
        found = topic.find(identity)
        assert found is not None
        assert (found.recalled or found.moved_from == identity) is commits


def _is_ready(broker: Broker, receipt: SendReceipt) -> bool:
    found = broker.find(receipt.message_id)
    return found is not None and found.released
