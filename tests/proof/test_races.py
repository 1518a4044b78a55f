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
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise

import pytest
from psycopg2.extensions import make_dsn
from tests.clock import Clock
from tests.proof.racing import RUNNERS, TOPIC, Strike, consumed, race, rest, wheel_process
from tests.waiting import STOP, ask, beside, connected, until, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.values.errors import AlreadyReleased, LeaseLost, UnknownMessage
from duewheel.store.values.messages import RecallOutcome, RecallReceipt, SendOutcome, SendReceipt

RACES = int(os.environ.get("DUEWHEEL_RACES", "1000"))

HOUR = timedelta(hours=1)
NOW = timedelta(0)
MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture
def topic(broker: Broker) -> Broker:
    """A topic that is ticked every millisecond when it is busy."""
    broker.create_topic(TOPIC, granularity=MILLISECOND)
    broker.maintain()
    return broker


def number_in(identity: str) -> str:
    """The number that orders the messages of one instant, out of an id."""
    return identity[28:]


def assert_both_won(outcomes: list[bool]) -> None:
    """Each side won at least a tenth of the races."""
    won = sum(outcomes)
    assert len(outcomes) // 10 <= won <= len(outcomes) - len(outcomes) // 10, f"{won} of {len(outcomes)}"


@pytest.mark.slow
@pytest.mark.tenfold
def test_x01_races_of_recall_against_release(topic: Broker, dsn: str) -> None:
    answers: dict[str, str] = {}

    def recaller(broker: Broker) -> Strike:
        def strike(receipt: SendReceipt, name: str) -> bool:
            answers[name] = broker.recall(receipt.message_id).outcome.value
            return answers[name] == "recalled"

        return strike

    with wheel_process(dsn), consumed(topic) as delivered:
        outcomes = race(dsn, RACES, recaller)
    times = Counter(message.body.decode() for message in delivered)
    assert Counter(answers.values()).keys() == {"recalled", "already_released"}
    for name, answer in answers.items():
        assert times[name] == (0 if answer == "recalled" else 1), (
            f"{name}: {answer}, came {times[name]} times"
        )
    assert len(answers) == RACES
    assert_both_won(outcomes)


@pytest.mark.slow
@pytest.mark.tenfold
def test_x01_races_of_two_recalls_of_one_message(topic: Broker, dsn: str) -> None:
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

    with wheel_process(dsn), consumed(topic) as delivered:
        outcomes = race(dsn, RACES, two_recallers)
    times = Counter(message.body.decode() for message in delivered)
    for name, pair in answers.items():
        assert pair in (("recalled", "recalled"), ("already_released", "already_released")), (name, pair)
        assert times[name] == (0 if "recalled" in pair else 1), f"{name}: {pair}, came {times[name]} times"
    assert len(answers) == RACES
    assert_both_won(outcomes)


@pytest.mark.slow
@pytest.mark.tenfold
def test_x03_races_of_reschedule_against_release(topic: Broker, dsn: str) -> None:
    answers: dict[str, SendReceipt] = {}
    moved: set[str] = set()

    def rescheduler(broker: Broker) -> Strike:
        def strike(receipt: SendReceipt, name: str) -> bool:
            try:
                answers[name] = broker.reschedule(receipt.message_id, delay=timedelta(seconds=1))
            except AlreadyReleased:
                answers[name] = receipt
                return False
            moved.add(name)
            return True

        return strike

    with wheel_process(dsn), consumed(topic) as delivered:
        outcomes = race(dsn, RACES, rescheduler)
    came: dict[str, list[tuple[str, datetime]]] = {}
    for message in delivered:
        came.setdefault(message.body.decode(), []).append((message.message_id, message.deliver_at))
    assert came.keys() == answers.keys()
    for name, receipt in answers.items():
        assert came[name] == [(receipt.message_id, receipt.deliver_at)], f"{name}, moved: {name in moved}"
    assert len(answers) == RACES
    assert_both_won(outcomes)


@pytest.mark.slow
@pytest.mark.tenfold
def test_x03_races_of_two_reschedules_of_one_message(topic: Broker, dsn: str) -> None:
    """One after the other moves it; it comes once, where the last one has put it."""
    moved: dict[str, list[SendReceipt]] = {}

    def two_reschedulers(broker: Broker) -> Strike:
        second = ThreadPoolExecutor(1)

        def move(receipt: SendReceipt, name: str) -> None:
            try:
                moved[name].append(broker.reschedule(receipt.message_id, delay=timedelta(seconds=1)))
            except AlreadyReleased:
                return

        def strike(receipt: SendReceipt, name: str) -> bool:
            moved[name] = []
            other = second.submit(move, receipt, name)
            move(receipt, name)
            other.result()
            return bool(moved[name])

        return strike

    with wheel_process(dsn), consumed(topic) as delivered:
        outcomes = race(dsn, RACES, two_reschedulers)
    came = Counter(message.body.decode() for message in delivered)
    assert came == dict.fromkeys(moved, 1)
    ids = {message.body.decode(): message.message_id for message in delivered}
    for name, receipts in moved.items():
        # The number in an id grows from move to move.
        last = max((receipt.message_id for receipt in receipts), key=number_in, default=ids[name])
        assert last == ids[name]
    assert Counter(map(len, moved.values())).keys() == {0, 2}
    assert_both_won(outcomes)


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
        try:
            on = broker.reschedule(receipt.message_id, delay=HOUR)
        except AlreadyReleased:
            # This machine is busy.
            return
        present[name] = broker.reschedule(on.message_id, deliver_at=receipt.deliver_at).message_id

    with wheel_process(dsn), consumed(topic) as delivered:
        outcomes = race(dsn, RACES, recaller, before=move_twice)
    times = Counter((message.body.decode(), message.message_id) for message in delivered)
    for name, answer in answers.items():
        assert answer.message_id == present[name]
        came = {RecallOutcome.RECALLED: 0, RecallOutcome.ALREADY_RELEASED: 1}[answer.outcome]
        assert times[name, present[name]] == came, f"{name}: {answer}"
    assert len(delivered) == [answer.outcome for answer in answers.values()].count("already_released")
    assert len(answers) == RACES
    assert_both_won(outcomes)


@pytest.mark.slow
@pytest.mark.tenfold
def test_x21_races_of_a_recall_by_an_old_id_against_another_move(topic: Broker, dsn: str) -> None:
    """Recalled is never delivered, wherever the move puts it; and an answered move was before that."""
    answers: dict[str, tuple[RecallReceipt, SendReceipt | None]] = {}

    def recaller(broker: Broker) -> Strike:
        second = ThreadPoolExecutor(1)

        def move(receipt: SendReceipt) -> SendReceipt | None:
            try:
                return broker.reschedule(receipt.message_id, delay=timedelta(seconds=1))
            except (AlreadyReleased, UnknownMessage):
                return None

        def strike(receipt: SendReceipt, name: str) -> bool:
            moved = second.submit(move, receipt)
            answer = broker.recall(receipt.message_id)
            answers[name] = answer, moved.result()
            return answer.outcome is RecallOutcome.RECALLED

        return strike

    with wheel_process(dsn), consumed(topic) as delivered:
        outcomes = race(dsn, RACES, recaller)
    came = {message.body.decode(): message.message_id for message in delivered}
    assert len(came) == len(delivered)
    for name, (answer, moved) in answers.items():
        if answer.outcome is RecallOutcome.RECALLED:
            assert name not in came
            assert moved is None or answer.message_id == moved.message_id
        else:
            assert answer.outcome is RecallOutcome.ALREADY_RELEASED
            assert (answer.message_id, moved) == (came[name], None)
    recalled = [moved for answer, moved in answers.values() if answer.outcome is RecallOutcome.RECALLED]
    assert {moved is None for moved in recalled} == {True, False}
    assert len(answers) == RACES
    assert_both_won(outcomes)


@pytest.mark.slow
@pytest.mark.tenfold
def test_x04_races_of_replace_against_release(topic: Broker, dsn: str) -> None:
    """Replaced: the old one never comes. Sent: the old one had been released. Refused: nothing was sent."""
    answers: dict[str, SendOutcome | None] = {}

    def replacer(broker: Broker) -> Strike:
        def strike(_: SendReceipt, name: str) -> bool:
            try:
                receipt = broker.send(
                    TOPIC, f"new {name}", delay=timedelta(seconds=1), key=name, on_conflict="replace"
                )
            except AlreadyReleased:
                answers[name] = None
                return False
            answers[name] = receipt.outcome
            return receipt.outcome is SendOutcome.REPLACED

        return strike

    with wheel_process(dsn), consumed(topic) as delivered:
        outcomes = race(dsn, RACES, replacer, key=True)
    times = Counter(message.body.decode() for message in delivered)
    expected = {
        SendOutcome.REPLACED: (0, 1),
        SendOutcome.SENT: (1, 1),
        None: (1, 0),
    }
    for name, answer in answers.items():
        assert (times[name], times[f"new {name}"]) == expected[answer], f"{name}: {answer}"
    assert_both_won(outcomes)


def all_at_once(dsn: str, turns: int, act: Callable[[Broker, int], SendReceipt]) -> list[list[SendReceipt]]:
    """What ``act`` answers for each number, done by several runners at the same moment."""
    gate = threading.Barrier(RUNNERS)

    def run(_: int) -> list[SendReceipt]:
        with Broker(dsn) as broker:
            answers = []
            for number in range(turns):
                gate.wait(60)
                answers.append(act(broker, number))
            return answers

    with ThreadPoolExecutor(RUNNERS) as threads:
        return [list(turn) for turn in zip(*threads.map(run, range(RUNNERS)), strict=True)]


@pytest.mark.slow
def test_x04_of_many_that_keep_one_waits(topic: Broker, dsn: str) -> None:
    turns = all_at_once(
        dsn,
        500,
        lambda broker, n: broker.send(TOPIC, b"x", delay=HOUR, key=f"{n}", on_conflict="keep"),
    )
    for number, receipts in enumerate(turns):
        (waiting,) = topic.find_key(TOPIC, f"{number}")
        assert {receipt.message_id for receipt in receipts} == {waiting.message_id}
        outcomes = sorted(receipt.outcome for receipt in receipts)
        assert outcomes == [*[SendOutcome.KEPT] * (RUNNERS - 1), SendOutcome.SENT]


@pytest.mark.slow
def test_x04_of_many_that_replace_the_last_one_waits(topic: Broker, dsn: str) -> None:
    turns = all_at_once(
        dsn,
        500,
        lambda broker, n: broker.send(TOPIC, b"x", delay=HOUR, key=f"{n}", on_conflict="replace"),
    )
    for number, receipts in enumerate(turns):
        kept = topic.find_key(TOPIC, f"{number}")
        assert {message.message_id for message in kept} == {receipt.message_id for receipt in receipts}
        assert [message.recalled for message in kept].count(False) == 1
        assert sorted(receipt.outcome for receipt in receipts)[-1] is SendOutcome.SENT
        assert [receipt.outcome for receipt in receipts].count(SendOutcome.REPLACED) == RUNNERS - 1


def test_x07_of_many_with_one_idempotency_key_one_sends(topic: Broker, dsn: str) -> None:
    turns = all_at_once(
        dsn, 500, lambda broker, n: broker.send(TOPIC, f"{n}", delay=NOW, idempotency_key=f"{n}")
    )
    for receipts in turns:
        assert len({receipt.message_id for receipt in receipts}) == 1
        assert [receipt.outcome for receipt in receipts].count(SendOutcome.SENT) == 1
    delivered = rest(topic, topic.consumer(TOPIC, "g"))
    assert Counter(message.body.decode() for message in delivered) == {f"{n}": 1 for n in range(500)}


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
    with Broker(dsn) as operator, beside() as start:
        for name in names:
            broker.send(TOPIC, name, message_group=name if message_type == "FIFO" else None)
            (message,) = consumer.receive(1, invisible=HOUR, wait=timedelta(seconds=30))
            (lease,) = operator.leases()
            together = threading.Barrier(2)

            def release(lease_id: str = lease.lease_id, together: threading.Barrier = together) -> int | None:
                together.wait()
                return operator.release_lease(lease_id)

            releasing = start(release)
            together.wait()
            try:
                consumer.ack(message)
            except LeaseLost:
                assert releasing.result() == 1
                (again,) = consumer.receive(1, wait=timedelta(seconds=30))
                assert (again.body.decode(), again.attempt) == (name, 2)
                consumer.ack(again)
                released.append(name)
            else:
                assert releasing.result() is None
                acked.append(name)
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
def test_x07_a_send_whose_expired_idempotency_key_is_being_forgotten_has_a_receipt(
    topic: Broker, dsn: str, clock: Clock, upkeep: str
) -> None:
    def send() -> SendReceipt:
        with Broker(dsn, clock=clock) as broker:
            return broker.send(TOPIC, b"", delay=HOUR, idempotency_key="i")

    first = send()
    clock.advance(timedelta(days=30))
    forget = "select duewheel.forget(p_now => %s)"
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


def recalls(broker: Broker, receipt: SendReceipt, connection: object) -> None:
    """By id."""
    assert broker.recall(receipt.message_id, connection=connection).outcome == "recalled"


def recalls_by_key(broker: Broker, receipt: SendReceipt, connection: object) -> None:
    """By key."""
    assert broker.recall_key(TOPIC, "held", connection=connection) == "recalled"


def reschedules(broker: Broker, receipt: SendReceipt, connection: object) -> None:
    """To an hour later."""
    broker.reschedule(receipt.message_id, delay=2 * HOUR, connection=connection)


def reschedules_by_key(broker: Broker, receipt: SendReceipt, connection: object) -> None:
    """By key."""
    (moved,) = broker.reschedule_key(TOPIC, "held", delay=2 * HOUR, connection=connection)
    assert moved.message_id != receipt.message_id


def replaces(broker: Broker, receipt: SendReceipt, connection: object) -> None:
    """By another one under its key."""
    replaced = broker.send(
        TOPIC, b"new", delay=2 * HOUR, key="held", on_conflict="replace", connection=connection
    )
    assert replaced.outcome is SendOutcome.REPLACED


def recalls_in_bulk(broker: Broker, receipt: SendReceipt, connection: object) -> None:
    """All that waits for the next hours."""
    recalled = broker.recall_many(TOPIC, due_from=receipt.deliver_at, connection=connection)
    assert recalled.recalled == 1


ACTS = [recalls, recalls_by_key, reschedules, reschedules_by_key, replaces, recalls_in_bulk]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("commits", [True, False])
def test_x01_x03_x04_x05_an_open_transaction_holds_up_nobody(
    topic: Broker, dsn: str, act: Callable[[Broker, SendReceipt, object], None], commits: bool
) -> None:
    """Whoever had to wait for it would be thrown out by its lock_timeout."""
    impatient = make_dsn(dsn, options="-c lock_timeout=30s -c statement_timeout=60s")
    held = topic.send(TOPIC, b"held", delay=HOUR, key="held")
    with (
        connected(dsn, autocommit=False) as caller,
        Broker(impatient) as others,
        wheel_process(impatient),
    ):
        act(topic, held, caller)
        consumer = others.consumer(TOPIC, "g")
        instants = []
        for n in range(5):
            sent = [
                others.send(TOPIC, b"one", delay=MILLISECOND, key="held"),
                *others.send_many(TOPIC, [{"body": b"many", "delay": NOW, "key": "held"}] * 20),
                others.send(TOPIC, b"another key", delay=NOW, key=f"{n}", on_conflict="replace"),
            ]
            recalled = others.send(TOPIC, b"recalled", delay=HOUR, key=f"other {n}")
            assert others.recall(recalled.message_id).outcome == "recalled"
            others.reschedule(others.send(TOPIC, b"later", delay=HOUR).message_id, delay=2 * HOUR)
            # The wheel releases them, and nobody else has to.
            until(
                lambda: all(_is_ready(others, receipt) for receipt in sent),  # noqa: B023
                "the wheel to go on",
            )
            got: list[str] = []
            while len(got) < len(sent):
                batch = consumer.receive(100, wait=timedelta(seconds=5))
                consumer.ack(batch)
                got += [message.message_id for message in batch]
            assert sorted(got) == sorted(receipt.message_id for receipt in sent)
            others.maintain()
            instants.append(max(receipt.deliver_at for receipt in sent))
        assert all(before < after for before, after in pairwise(instants))
        if commits:
            caller.commit()
        else:
            caller.rollback()
    found = topic.find(held.message_id)
    assert found is not None
    assert (found.recalled or found.moved_from == held.message_id) is commits


def _is_ready(broker: Broker, receipt: SendReceipt) -> bool:
    found = broker.find(receipt.message_id)
    return found is not None and found.released
