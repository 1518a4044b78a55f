"""Answers: the first counts, and COMMIT decides whether it came before the timeout."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
from tests.acting import DAY, HOUR
from tests.clock import Clock
from tests.conftest import execute
from tests.logins import login
from tests.turning import turning
from tests.waiting import ask, beside, connected, until, until_somebody_waits

from duewheel.store import (
    AlreadyReleased,
    AnswerOutcome,
    Broker,
    InvalidArgument,
    InvalidKey,
    NotAllowed,
    NulInText,
    PropertiesTooLarge,
    UnknownTopic,
    Wait,
    WaitOutcome,
)
from duewheel.store.operations.answering import poll_waits

TIMED_OUT = Wait(WaitOutcome.TIMED_OUT)


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t")
    return timed_broker


def wait(broker: Broker, key: str = "k", delay: timedelta = HOUR, **arguments: Any) -> str:
    return broker.send("t", b"", delay=delay, key=key, **arguments).message_id


def answered(broker: Broker, body: object = None, key: str = "k") -> str:
    return broker.answer_key("t", key, body).outcome.value


def test_x26_the_first_answer_counts(topic: Broker) -> None:
    assert answered(topic) == "not_found"
    waits = wait(topic)
    assert topic.find_wait(waits) == Wait(WaitOutcome.WAITING)
    receipt = topic.answer_key("t", "k", {"n": [1, None, "ü"]}, properties={"by": "ann"})
    assert receipt.outcome is AnswerOutcome.ANSWERED
    assert receipt.message_id == waits
    assert answered(topic, 2) == "already_answered"
    assert topic.find_wait(waits) == Wait(WaitOutcome.ANSWERED, {"n": [1, None, "ü"]}, {"by": "ann"})
    assert topic.recall_key("t", "k").outcome.value == "recalled"
    assert [(state.state, state.reason) for state in topic.history(waits)][-1] == ("Deleted", "answered")
    assert not topic.consumer("t", "g").receive()


def test_x26_after_the_timeout_it_is_too_late(topic: Broker, clock: Clock) -> None:
    waits = wait(topic)
    clock.advance(HOUR)
    # Not released yet, so it is not too late, whatever the clock says.
    assert topic.find_wait(waits).outcome is WaitOutcome.WAITING
    topic.tick("t")
    assert topic.find_wait(waits) == TIMED_OUT
    assert answered(topic) == "too_late"
    assert topic.find_wait(waits) == TIMED_OUT


def test_a_recall_without_an_answer_ends_the_wait(topic: Broker) -> None:
    waits = wait(topic)
    topic.recall(waits)
    assert answered(topic) == "recalled"
    assert topic.find_wait(waits) == Wait(WaitOutcome.RECALLED)


def test_x21_an_answer_and_a_look_up_follow_a_move(topic: Broker, clock: Clock) -> None:
    waits = wait(topic)
    moved = topic.reschedule(waits, delay=2 * HOUR)
    clock.advance(HOUR)
    topic.tick("t")
    assert topic.find_wait(waits).outcome is WaitOutcome.WAITING
    receipt = topic.answer_key("t", "k", "late enough")
    assert (receipt.outcome, receipt.message_id) == (AnswerOutcome.ANSWERED, moved.message_id)
    assert topic.find_wait(waits).body == topic.find_wait(moved.message_id).body == "late enough"


def test_a_key_names_one_wait_at_a_time(topic: Broker, clock: Clock) -> None:
    first = wait(topic)
    clock.advance(HOUR)
    topic.tick("t")
    second = wait(topic, delay=2 * HOUR)
    third = wait(topic, on_conflict="replace")
    assert answered(topic, 3) == "answered"
    assert answered(topic, 4) == "already_answered"
    assert [topic.find_wait(each).outcome.value for each in (first, second, third)] == [
        "timed_out",
        "recalled",
        "answered",
    ]


def test_x26_an_answer_counts_when_its_transaction_commits(topic: Broker, clock: Clock) -> None:
    waits = wait(topic)
    with connected(topic.dsn, autocommit=False) as mine:
        assert topic.answer_key("t", "k", 1, connection=mine).outcome is AnswerOutcome.ANSWERED
        assert topic.find_wait(waits).outcome is WaitOutcome.WAITING
        mine.rollback()
        assert topic.answer_key("t", "k", 2, connection=mine).outcome is AnswerOutcome.ANSWERED
        mine.commit()
        assert topic.find_wait(waits).body == 2
        waits = wait(topic)
        assert topic.answer_key("t", "k", 3, connection=mine).outcome is AnswerOutcome.ANSWERED
        clock.advance(HOUR)
        topic.tick("t")
        assert topic.find_wait(waits) == TIMED_OUT
        with pytest.raises(psycopg2.Error, match="was released at"):
            mine.commit()
    assert topic.find_wait(waits) == TIMED_OUT


def test_x26_an_answer_waits_for_one_that_is_still_open(topic: Broker) -> None:
    wait(topic)
    for ends, outcome in (("rollback", "answered"), ("commit", "already_answered")):
        wait(topic)
        with connected(topic.dsn, autocommit=False) as mine, beside() as start:
            topic.answer_key("t", "k", 1, connection=mine)
            other = start(lambda: answered(topic, 2))
            until_somebody_waits(topic.dsn)
            getattr(mine, ends)()
            assert other.result() == outcome


def begun(broker: Broker, **arguments: Any) -> str:
    return broker.begin_wait("t", "k", HOUR, **arguments).message_id


def early(broker: Broker, body: object = None, **arguments: Any) -> str:
    return broker.answer_key("t", "k", body, early=True, **arguments).outcome.value


def test_x26_an_early_answer_goes_to_the_next_wait_alone(topic: Broker) -> None:
    assert topic.answer_key("t", "k", 1, properties={"by": "ann"}, early=True).message_id is None
    assert early(topic, 2) == "already_answered"
    first = begun(topic, idempotency_key="i")
    assert topic.find_wait(first) == Wait(WaitOutcome.ANSWERED, 1, {"by": "ann"})
    assert early(topic, 3) == "already_answered"
    assert begun(topic, idempotency_key="i") == first
    second = begun(topic, idempotency_key="cleared")
    assert topic.find_wait(second) == Wait(WaitOutcome.WAITING)
    assert early(topic, 4) == "answered"
    assert (topic.find_wait(first).body, topic.find_wait(second).body) == (1, 4)


def test_x26_an_early_answer_without_a_key_is_refused(topic: Broker) -> None:
    with (
        connected(topic.dsn) as connection,
        pytest.raises(psycopg2.Error, match="key must have 1") as refused,
    ):
        ask(connection, "select duewheel.answer_key('t', null, early => true)")
    assert refused.value.pgcode == "DW007"


def test_x26_an_answer_to_a_wait_that_is_over_is_not_kept(topic: Broker, clock: Clock) -> None:
    begun(topic)
    clock.advance(HOUR)
    topic.tick("t")
    assert early(topic) == "too_late"
    assert topic.find_wait(begun(topic)).outcome is WaitOutcome.WAITING


def test_x26_an_early_answer_ends_a_wait_that_times_out_at_once(topic: Broker) -> None:
    early(topic, 1)
    topic.tick("t")
    waits = topic.begin_wait("t", "k", timedelta(0)).message_id
    topic.tick("t")
    assert topic.find_wait(waits).body == 1


def test_x26_an_early_answer_and_a_wait_count_when_they_commit(topic: Broker) -> None:
    with connected(topic.dsn, autocommit=False) as mine:
        early(topic, 1, connection=mine)
        mine.rollback()
        begun(topic, connection=mine)
        mine.rollback()
        assert early(topic, 2) == "early"
        begun(topic, connection=mine)
        mine.rollback()
    assert topic.find_wait(begun(topic)).body == 2


def test_x26_an_early_answer_and_a_wait_that_meet_see_each_other(topic: Broker) -> None:
    """Whichever is still open when the other comes."""
    with connected(topic.dsn, autocommit=False) as mine, beside() as start:
        waits = begun(topic, connection=mine)
        other = start(lambda: early(topic, 1))
        until_somebody_waits(topic.dsn)
        mine.commit()
        assert other.result() == "answered"
        assert topic.find_wait(waits).body == 1
        topic.delete_topic("t")
        topic.create_topic("t")
        early(topic, 2, connection=mine)
        begin = start(lambda: begun(topic))
        until_somebody_waits(topic.dsn)
        mine.commit()
        assert topic.find_wait(begin.result()).body == 2


def test_x26_an_early_answer_to_a_topic_that_is_deleted_is_gone(topic: Broker) -> None:
    early(topic)
    topic.delete_topic("t")
    topic.create_topic("t")
    assert topic.find_wait(begun(topic)).outcome is WaitOutcome.WAITING


def test_an_early_answer_is_forgotten_after_retention(topic: Broker, clock: Clock) -> None:
    for number in range(5):
        topic.answer_key("t", str(number), early=True)
    kept = "select count(*) from duewheel.early_answer"
    forget = "select duewheel.forget_expired(3, %s)"
    for wait, left in ((timedelta(hours=71), 5), (2 * HOUR, 2), (HOUR, 0)):
        clock.advance(wait)
        execute(topic.dsn, forget, clock())
        assert execute(topic.dsn, kept) == [(left,)]


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_an_early_answer_has_the_key_of_a_message(topic: Broker, key: str) -> None:
    with pytest.raises(InvalidKey, match="must have 1 to 255 characters"):
        topic.answer_key("t", key, early=True)


def test_x26_an_answer_reaches_a_wait_that_replaced_another(topic: Broker) -> None:
    wait(topic)
    with connected(topic.dsn, autocommit=False) as mine, beside() as start:
        replaced = topic.send("t", b"", delay=HOUR, key="k", on_conflict="replace", connection=mine)
        other = start(lambda: topic.answer_key("t", "k", 1))
        until_somebody_waits(topic.dsn)
        mine.commit()
        assert other.result().message_id == replaced.message_id
    assert topic.find_wait(replaced.message_id).body == 1


def test_x06_any_program_answers_in_sql(topic: Broker) -> None:
    waits = wait(topic)
    with connected(topic.dsn) as connection:
        statement = "select outcome from duewheel.answer_key('t', 'k', '{\"approved\": true}')"
        assert ask(connection, statement) == [("answered",)]
    assert topic.find_wait(waits).body == {"approved": True}


@pytest.mark.parametrize(
    ("error", "body"),
    [
        (InvalidArgument, {"at": object()}),
        (InvalidArgument, float("nan")),
        (NulInText, ["\0"]),
        (PropertiesTooLarge, "x" * 16_384),
        (InvalidArgument, {"n": -(10**309)}),
    ],
)
def test_an_answer_that_no_program_could_read_is_refused(
    topic: Broker, error: type[Exception], body: object
) -> None:
    waits = wait(topic)
    with pytest.raises(error, match="answer"):
        topic.answer_key("t", "k", body)
    with pytest.raises(UnknownTopic):
        topic.answer_key("none", "k")
    assert topic.find_wait(waits).outcome is WaitOutcome.WAITING


def test_a_poll_names_each_answer_once_and_the_waits_that_go_on(topic: Broker, clock: Clock) -> None:
    one, two, three = (wait(topic, key) for key in ("one", "two", "three"))
    first = poll_waits(topic, [one, two, three], None, limit_seconds=5)
    assert first.ended == frozenset()
    assert set(first.waiting) == {one, two, three}
    with connected(topic.dsn, autocommit=False) as mine:
        topic.answer_key("t", "one", connection=mine)
        topic.answer_key("t", "two")
        second = poll_waits(topic, [], first.snapshot, limit_seconds=5)
        assert second.ended == {two}
        mine.commit()
    topic.reschedule(three, delay=2 * HOUR)
    third = poll_waits(topic, [], second.snapshot, limit_seconds=5)
    assert third.ended == {one}
    clock.advance(HOUR)
    topic.tick("t")
    topic.answer_key("t", "three")
    fourth = poll_waits(topic, [], third.snapshot, limit_seconds=5)
    assert fourth.ended == {three}
    assert poll_waits(topic, [], fourth.snapshot, limit_seconds=5).ended == frozenset()


def test_x27_an_answer_is_kept_as_long_as_its_message(topic: Broker, clock: Clock) -> None:
    topic.update_topic("t", retention=3 * DAY)
    waits = wait(topic)
    answered(topic, 1)
    clock.advance(3 * DAY)
    topic.tick("t")
    topic.maintain()
    assert topic.find_wait(waits).body == 1
    clock.advance(3 * DAY)
    topic.tick("t")
    for _ in range(3):
        topic.maintain()
        clock.advance(HOUR)
    assert topic.find_wait(waits).outcome is WaitOutcome.NOT_FOUND
    assert answered(topic) == "not_found"


def test_a_deleted_topic_leaves_no_outcome(topic: Broker) -> None:
    waits = wait(topic)
    topic.delete_topic("t")
    assert topic.find_wait(waits).outcome is WaitOutcome.NOT_FOUND


@pytest.mark.owner
def test_x19_an_answerer_answers_and_does_nothing_else(broker: Broker) -> None:
    broker.create_topic("t")
    waits = wait(broker)
    with Broker(login(broker.dsn, "duewheel_answerer")) as answerer:
        for call in (
            lambda: answerer.send("t", b"", delay=HOUR),
            lambda: answerer.recall(waits),
            lambda: answerer.recall_key("t", "k"),
            lambda: answerer.find(waits),
            lambda: answerer.find_wait(waits),
        ):
            with pytest.raises(NotAllowed):
                call()
        assert answered(answerer, 1) == "answered"
    with Broker(login(broker.dsn, "duewheel_producer")) as producer, pytest.raises(NotAllowed):
        answered(producer)


@pytest.mark.slow
def test_x26_answers_that_race_the_timeout_are_told_the_truth(broker: Broker) -> None:
    """Many answerers, each with several connections, at the instants at which the messages come due."""
    broker.create_topic("t", granularity=timedelta(milliseconds=1))
    count = 200
    begin = execute(broker.dsn, "select clock_timestamp() + interval '300 ms'")[0][0]
    receipts = [
        broker.send("t", b"", deliver_at=begin + timedelta(milliseconds=10 * number), key=str(number))
        for number in range(count)
    ]
    told: list[list[tuple[object, str]]] = [[] for _ in range(count)]

    def answerer(who: int) -> None:
        chance = random.Random(who)
        with (
            Broker(broker.dsn) as mine,
            connected(broker.dsn) as clock,
            connected(broker.dsn, autocommit=False) as transaction,
        ):
            for number in range(count):
                early = f"%s - interval '{chance.choice((0, 1, 2, 3, 5))} ms'"
                ask(clock, f"select pg_sleep_until({early})", receipts[number].deliver_at)
                body = f"{who}/{number}"
                if chance.random() < 0.5:
                    outcome = mine.answer_key("t", str(number), body).outcome.value
                else:
                    outcome = in_a_transaction(mine, transaction, str(number), body)
                told[number].append((body, outcome))

    with turning(broker):
        threads = [threading.Thread(target=answerer, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: not broker.stats().topics[0].waiting, "the last one to be released")
    outcomes = set()
    for receipt, replies in zip(receipts, told, strict=True):
        found = broker.find_wait(receipt.message_id)
        said = {outcome for _, outcome in replies}
        counted = [body for body, outcome in replies if outcome == "answered"]
        outcomes.add(found.outcome.value)
        if found.outcome is WaitOutcome.ANSWERED:
            assert counted == [found.body]
            assert said <= {"answered", "already_answered"}
        else:
            assert found == TIMED_OUT
            assert said == {"too_late"}
    assert outcomes == {"answered", "timed_out"}


@pytest.mark.slow
def test_x26_no_early_answer_racing_its_wait_is_lost(broker: Broker) -> None:
    """One of the answers counts, and the wait ends with it, whichever transaction commits first."""
    broker.create_topic("t")
    count = 300
    told: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    waits: list[str] = [""] * count
    gate = threading.Barrier(3)

    def answerer(who: int) -> None:
        chance = random.Random(who)
        with Broker(broker.dsn) as mine, connected(broker.dsn, autocommit=False) as open_for_long:
            for number in range(count):
                body = f"{who}/{number}"
                connection = open_for_long if chance.random() < 0.5 else None
                gate.wait(60)
                receipt = mine.answer_key("t", str(number), body, early=True, connection=connection)
                open_for_long.commit()
                told[number].append((body, receipt.outcome.value))

    def waiter() -> None:
        with Broker(broker.dsn) as mine, connected(broker.dsn, autocommit=False) as open_for_long:
            for number in range(count):
                connection = open_for_long if number % 2 else None
                gate.wait(60)
                receipt = mine.begin_wait("t", str(number), HOUR, connection=connection)
                open_for_long.commit()
                waits[number] = receipt.message_id

    with beside() as start:
        for each in (start(lambda: answerer(0)), start(lambda: answerer(1)), start(waiter)):
            each.result()
    outcomes = set()
    for number in range(count):
        ((body, outcome),) = [each for each in told[number] if each[1] != "already_answered"]
        assert broker.find_wait(waits[number]).body == body
        outcomes.add(outcome)
    assert outcomes == {"early", "answered"}
    assert execute(broker.dsn, "select count(*) from duewheel.early_answer") == [(0,)]


def in_a_transaction(broker: Broker, transaction: Any, key: str, body: str) -> str:
    """The reply to an answer of a caller's transaction, which runs again if its commit comes too late."""
    while True:
        try:
            outcome = broker.answer_key("t", key, body, connection=transaction).outcome.value
            transaction.commit()
        except (psycopg2.Error, AlreadyReleased):
            transaction.rollback()
        else:
            return outcome


def test_x26_an_early_answer_is_listed_and_withdrawn_once(topic: Broker) -> None:
    topic.answer_key("t", "a", {"n": 1}, properties={"by": "ann"}, early=True)
    topic.answer_key("t", "b", None, early=True)
    first, second = topic.early_answers()
    assert (first.topic, first.key, first.body, first.properties) == ("t", "a", {"n": 1}, {"by": "ann"})
    assert (second.key, second.body, second.properties) == ("b", None, None)
    assert first.until_at == topic.now() + 3 * DAY
    assert topic.early_answers(1) == [first]
    assert topic.withdraw_early_answer("t", "a")
    assert not topic.withdraw_early_answer("t", "a")
    assert topic.early_answers() == [second]
    with pytest.raises(UnknownTopic):
        topic.withdraw_early_answer("none", "a")
    waits = topic.begin_wait("t", "a", HOUR).message_id
    assert topic.find_wait(waits).outcome is WaitOutcome.WAITING


def test_x26_a_wait_and_a_withdrawal_share_no_early_answer(topic: Broker) -> None:
    topic.answer_key("t", "k", 1, early=True)
    with connected(topic.dsn, autocommit=False) as mine, beside() as start:
        assert topic.withdraw_early_answer("t", "k", connection=mine)
        begun_wait = start(lambda: topic.begin_wait("t", "k", HOUR).message_id)
        until_somebody_waits(topic.dsn)
        mine.commit()
    assert topic.find_wait(begun_wait.result()).outcome is WaitOutcome.WAITING
