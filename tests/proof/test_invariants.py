"""The invariants, one by one, and the traps in which they were lost once (design: protocols, invariants)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.acting import bodies, taken
from tests.clock import Clock
from tests.waiting import ask, beside, connected, until, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION
from duewheel.store.values.errors import AlreadyReleased, LeaseLost, WrongIsolationLevel
from duewheel.store.values.messages import Message, RecallOutcome, SendOutcome, message_id

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
NOW = timedelta(0)


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of one queue, with its slots."""
    broker.create_topic("t", queues=1)
    broker.maintain()
    return "t"


@pytest.fixture
def timed_topic(timed_broker: Broker) -> str:
    """A topic of one queue under the test's clock, with its slots."""
    timed_broker.create_topic("t", queues=1)
    timed_broker.maintain()
    return "t"


# --- nothing accepted is lost, nothing comes twice


def test_a_sender_above_the_snapshots_xmax_is_not_lost(broker: Broker, dsn: str, topic: str) -> None:
    """A snapshot's xmax is the latest completed id + 1: a transaction open above it is in no list."""
    consumer = broker.consumer(topic, "g")
    broker.send(topic, b"in time", delay=NOW)
    with connected(dsn, autocommit=False) as sender:
        broker.send(topic, b"late", delay=NOW, connection=sender)
        ((xid,),) = ask(sender, "select pg_current_xact_id()::text::bigint")
        with connected(dsn) as watcher:
            ((xmax,),) = ask(watcher, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        assert xmax <= xid, "the trap is not set"
        assert broker.tick(topic)
        sender.commit()
    assert sorted(bodies(taken(consumer))) == [b"in time", b"late"]


def test_a_late_commit_is_delivered_once_to_each_group(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    groups = [timed_broker.consumer(timed_topic, name) for name in ("g1", "g2")]
    with connected(dsn, autocommit=False) as sender:
        late = timed_broker.send(timed_topic, b"late", delay=SECOND, connection=sender)
        seen: list[list[Message]] = [[], []]
        for _ in range(3):
            timed_broker.send(timed_topic, b"other", delay=SECOND)
            clock.advance(MINUTE)
            for place, consumer in enumerate(groups):
                seen[place] += taken(consumer)
        sender.commit()
    for _ in range(3):
        clock.advance(MINUTE)
        timed_broker.send(timed_topic, b"other", delay=NOW)
        for place, consumer in enumerate(groups):
            seen[place] += taken(consumer)
    for messages in seen:
        assert [m.message_id for m in messages if m.body == b"late"] == [late.message_id]
        assert bodies(messages).count(b"other") == 6


def test_a_late_commit_is_delivered_when_nothing_else_ever_comes(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    with connected(dsn, autocommit=False) as sender:
        timed_broker.send(timed_topic, b"late", delay=SECOND, connection=sender)
        timed_broker.send(timed_topic, b"in time", delay=SECOND)
        clock.advance(MINUTE)
        assert bodies(taken(consumer)) == [b"in time"]
        sender.commit()
    assert bodies(taken(consumer)) == [b"late"]
    assert taken(consumer) == []


def test_the_sweep_of_a_slot_doubles_nothing(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    with connected(dsn, autocommit=False) as sender:
        timed_broker.send(timed_topic, b"late", delay=SECOND, connection=sender)
        timed_broker.send(timed_topic, b"in time", delay=SECOND)
        clock.advance(HOUR)
        timed_broker.tick(timed_topic)
        sender.commit()
    clock.advance(DAY)
    timed_broker.maintain()
    assert sorted(bodies(taken(consumer))) == [b"in time", b"late"]


def test_a_send_that_is_rolled_back_does_not_exist(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    with connected(dsn, autocommit=False) as sender:
        lost = timed_broker.send(timed_topic, b"no", delay=SECOND, connection=sender)
        timed_broker.send_many(timed_topic, [{"body": b"no", "delay": SECOND}] * 10, connection=sender)
        timed_broker.send(timed_topic, b"yes", delay=SECOND)
        clock.advance(MINUTE)
        assert bodies(taken(consumer)) == [b"yes"]
        sender.rollback()
    assert taken(consumer) == []
    assert timed_broker.find(lost.message_id) is None
    assert timed_broker.recall(lost.message_id).outcome is RecallOutcome.NOT_FOUND


def test_savepoints_of_a_sender_count(timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    with connected(dsn, autocommit=False) as sender:
        timed_broker.send(timed_topic, b"1", delay=SECOND, connection=sender)
        ask(sender, "savepoint a")
        timed_broker.send(timed_topic, b"2", delay=SECOND, connection=sender)
        ask(sender, "savepoint b")
        timed_broker.send_many(timed_topic, [{"body": b"3", "delay": SECOND}], connection=sender)
        ask(sender, "rollback to savepoint b")
        timed_broker.send(timed_topic, b"4", delay=SECOND, connection=sender)
        ask(sender, "release savepoint a")
        timed_broker.send(timed_topic, b"in time", delay=SECOND)
        clock.advance(MINUTE)
        assert bodies(taken(consumer)) == [b"in time"]
        sender.commit()
    assert sorted(bodies(taken(consumer))) == [b"1", b"2", b"4"]


@pytest.mark.parametrize("how", ["send", "send_many", "nack"])
def test_x06_a_transaction_that_is_open_for_long_can_send_into_a_newer_slot(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str, how: str
) -> None:
    """Its session knows the slots of when it last looked; others have made more since."""
    consumer = timed_broker.consumer(timed_topic, "g")
    timed_broker.update_topic(timed_topic, max_delay=2_000 * HOUR)
    timed_broker.send(timed_topic, b"first", delay=NOW)
    batch = consumer.receive(1, 12 * HOUR)
    far = 1_500 * HOUR
    with connected(dsn, autocommit=False) as sender:
        timed_broker.send(timed_topic, b"open", delay=NOW, connection=sender)
        timed_broker.send_many(timed_topic, [{"body": b"open", "delay": NOW}], connection=sender)
        timed_broker.send(timed_topic, b"another's", delay=far)
        if how == "send":
            timed_broker.send(timed_topic, b"far", delay=far, connection=sender)
        elif how == "send_many":
            timed_broker.send_many(timed_topic, [{"body": b"far", "delay": far}], connection=sender)
        else:
            consumer.nack(batch, far, connection=sender)
        sender.commit()
    if how != "nack":
        consumer.ack(batch)
    assert bodies(taken(consumer)) == [b"open", b"open"]
    clock.advance(far)
    expected = b"first" if how == "nack" else b"far"
    assert sorted(bodies(taken(consumer))) == sorted([b"another's", expected])


def test_a_tick_that_is_rolled_back_loses_nothing(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    timed_broker.send(timed_topic, b"1", delay=SECOND)
    clock.advance(SECOND)
    with connected(dsn, autocommit=False) as ticker:
        tick = f"{OWN_TRANSACTION}select released from duewheel.tick_topic(1, %s)"
        assert ask(ticker, tick, clock()) == [(True,)]
        # Meanwhile another consumer finds nothing, and does not wait.
        assert taken(consumer) == []
        timed_broker.send(timed_topic, b"2", delay=NOW)
        ticker.rollback()
    assert bodies(taken(consumer)) == [b"1", b"2"]


def test_a_clock_that_steps_back_loses_nothing_and_delivers_nothing_early(
    timed_broker: Broker, clock: Clock, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    timed_broker.send(timed_topic, b"1", delay=SECOND)
    released_at = clock.advance(MINUTE)
    assert bodies(taken(consumer)) == [b"1"]
    clock.advance(-30 * SECOND)
    behind = timed_broker.send(timed_topic, b"behind", delay=SECOND)
    assert behind.deliver_at == clock() + SECOND
    now = timed_broker.send(timed_topic, b"now", delay=NOW)
    assert now.deliver_at == clock()
    later = timed_broker.send(timed_topic, b"later", deliver_at=released_at + SECOND)
    assert later.deliver_at == released_at + SECOND
    # What is due by the clock goes out while it is behind, and nothing else does.
    assert bodies(taken(consumer)) == [b"now"]
    clock.advance(SECOND - MICROSECOND)
    assert taken(consumer) == []
    clock.advance(MICROSECOND)
    assert bodies(taken(consumer)) == [b"behind"]
    clock.set(released_at + SECOND - MICROSECOND)
    assert taken(consumer) == []
    clock.advance(MICROSECOND)
    assert bodies(taken(consumer)) == [b"later"]


def test_a_message_due_on_the_full_hour_comes_once(
    timed_broker: Broker, clock: Clock, timed_topic: str
) -> None:
    """It is the first of its slot and lies at the bound of the one before."""
    consumer = timed_broker.consumer(timed_topic, "g")
    hour = clock().replace(minute=0) + HOUR
    sent = [
        timed_broker.send(timed_topic, b"", deliver_at=hour + offset).message_id
        for offset in (-MICROSECOND, NOW, NOW, MICROSECOND, HOUR)
    ]
    clock.set(hour + HOUR)
    for most in (1, 2, 5):
        again = timed_broker.consumer(timed_topic, f"g{most}")
        got: list[Message] = []
        while batch := again.receive(most):
            got += batch
        assert [message.message_id for message in got] == sent
    assert [message.message_id for message in taken(consumer)] == sent


@pytest.mark.slow
def test_a_revived_message_is_not_lost_behind_a_tick_on_its_way(broker: Broker, dsn: str, topic: str) -> None:
    """A receive that revives is a sender: it reads the clock after it has a transaction id."""
    consumer = broker.consumer(topic, "g")
    broker.send_many(topic, [{"body": b"a", "delay": NOW}, {"body": b"b", "delay": NOW}])
    short, long = consumer.receive(1, SECOND), consumer.receive(1, HOUR)
    consumer.nack(long, 10 * SECOND)
    nacked = time.monotonic()
    with (
        connected(dsn) as watcher,
        connected(dsn, autocommit=False) as blocker,
        connected(dsn, autocommit=False) as ticker,
        beside() as start,
    ):
        ((retry_topic,),) = ask(watcher, "select retry_topic_id from duewheel.subscription")
        until(
            lambda: ask(watcher, "select 1 where clock_timestamp() > %s", short.expires_at),
            "the lease to end",
        )
        ask(blocker, "lock table duewheel.lease_event in access exclusive mode")
        # The receive stops where it looks for answers; the tick of the retries reads its clock after that.
        receiving = start(lambda: consumer.receive(10))
        until_somebody_waits(dsn)
        until(lambda: time.monotonic() > nacked + 10, "the other message's retry to be due")
        tick = f"{OWN_TRANSACTION}select released from duewheel.tick_topic(%s, null, false)"
        assert ask(ticker, tick, retry_topic) == [(True,)]
        blocker.rollback()
        got = bodies(list(receiving.result()))
        ticker.commit()
    got += bodies(taken(consumer))
    assert sorted(got) == [b"a", b"b"]


@pytest.mark.parametrize("policy", ["keep", "replace"])
def test_x07_sending_again_with_the_same_idempotency_key_changes_nothing(
    timed_broker: Broker, clock: Clock, timed_topic: str, policy: str
) -> None:
    def send() -> tuple[str, SendOutcome]:
        receipt = timed_broker.send(
            timed_topic, b"order", delay=HOUR, key="k", idempotency_key="task 1", on_conflict=policy
        )
        return receipt.message_id, receipt.outcome

    consumer = timed_broker.consumer(timed_topic, "g")
    first, outcome = send()
    assert outcome is SendOutcome.SENT
    again, outcome = send()
    assert again == first
    assert outcome in (SendOutcome.DUPLICATE, SendOutcome.KEPT)
    clock.advance(2 * HOUR)
    assert [message.message_id for message in taken(consumer)] == [first]


def test_message_numbers_are_unique_under_senders_of_one_and_of_many(
    broker: Broker, dsn: str, topic: str
) -> None:
    def draw(blocks: int, times: int) -> Callable[[], list[int]]:
        def drawn() -> list[int]:
            with connected(dsn) as connection:
                rows = ask(
                    connection,
                    "select b.first_block from generate_series(1, %s) n,"
                    " lateral duewheel.begin_copy(case when n > 0 then %s end, %s) b",
                    times, topic, blocks,
                )  # fmt: skip
            return [first + offset for (first,) in rows for offset in range(blocks)]

        return drawn

    with beside() as start:
        drawing = [start(draw(1, 4_000)), start(draw(1, 4_000)), start(draw(3, 2_000)), start(draw(2, 2_000))]
        numbers = [number for future in drawing for number in future.result()]
    assert len(numbers) == len(set(numbers))


# --- recalled is never delivered


def test_x01_a_recall_in_a_long_transaction_holds_up_nobody(broker: Broker, dsn: str, topic: str) -> None:
    consumer = broker.consumer(topic, "g")
    kept = broker.send(topic, b"recalled", delay=HOUR)
    with connected(dsn, autocommit=False) as recaller, connected(dsn) as ticker:
        assert broker.recall(kept.message_id, connection=recaller).outcome is RecallOutcome.RECALLED
        broker.send(topic, b"due", delay=NOW)
        ask(ticker, "set lock_timeout = '5s'")
        until(lambda: ask(ticker, "call duewheel.tick('t')") == [(True,)], "the tick")
        assert bodies(taken(consumer)) == [b"due"]
        recaller.commit()
    stored = broker.find(kept.message_id)
    assert stored is not None
    assert stored.recalled


@pytest.mark.parametrize("first_commits", [True, False])
def test_x01_a_second_recall_waits_for_the_first_and_the_wheel_for_neither(
    broker: Broker, dsn: str, topic: str, first_commits: bool
) -> None:
    receipt = broker.send(topic, b"recalled", delay=HOUR)
    with connected(dsn, autocommit=False) as recaller, connected(dsn) as ticker, beside() as start:
        assert broker.recall(receipt.message_id, connection=recaller).outcome is RecallOutcome.RECALLED
        broker.send(topic, b"due", delay=NOW)
        second = start(lambda: broker.recall(receipt.message_id).outcome)
        until_somebody_waits(dsn)
        ask(ticker, "set lock_timeout = '5s'")
        try:
            assert ask(ticker, "call duewheel.tick('t')") == [(True,)]
        finally:
            if first_commits:
                recaller.commit()
            else:
                recaller.rollback()
        assert second.result() is RecallOutcome.RECALLED
    stored = broker.find(receipt.message_id)
    assert stored is not None
    assert stored.recalled


def test_x01_a_recall_that_commits_too_late_fails_and_the_message_comes(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    receipt = timed_broker.send(timed_topic, b"x", delay=SECOND)
    with connected(dsn, autocommit=False) as recaller:
        assert timed_broker.recall(receipt.message_id, connection=recaller).outcome is RecallOutcome.RECALLED
        clock.advance(MINUTE)
        assert timed_broker.tick(timed_topic)
        with pytest.raises(psycopg2.Error) as failure:
            recaller.commit()
        assert failure.value.pgcode == AlreadyReleased.sqlstate
    assert bodies(taken(consumer)) == [b"x"]
    assert timed_broker.recall(receipt.message_id).outcome is RecallOutcome.ALREADY_RELEASED


def test_x01_two_recalls_in_transactions_leave_one_truth(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    receipt = timed_broker.send(timed_topic, b"x", delay=SECOND)
    with connected(dsn, autocommit=False) as one, connected(dsn, autocommit=False) as two, beside() as start:
        assert timed_broker.recall(receipt.message_id, connection=one).outcome is RecallOutcome.RECALLED
        second = start(lambda: timed_broker.recall(receipt.message_id, connection=two).outcome)
        until_somebody_waits(dsn)
        one.rollback()
        assert second.result() is RecallOutcome.RECALLED
        two.commit()
    clock.advance(MINUTE)
    assert taken(consumer) == []


def test_x02_recalling_by_key_tells_the_truth_when_an_older_message_was_recalled(
    timed_broker: Broker, clock: Clock, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    first = timed_broker.send(timed_topic, b"first", delay=MINUTE, key="order")
    timed_broker.reschedule(first.message_id, delay=SECOND)
    clock.advance(2 * SECOND)
    assert bodies(taken(consumer)) == [b"first"]
    assert timed_broker.recall_key(timed_topic, "order") is RecallOutcome.ALREADY_RELEASED


def test_x01_a_new_group_does_not_get_what_was_recalled_while_its_slot_is_kept(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    """A slot that is in use at the time outlives the round of upkeep that wanted to drop it."""
    timed_broker.update_topic(timed_topic, retention=HOUR)
    receipt = timed_broker.send(timed_topic, b"recalled", delay=SECOND)
    timed_broker.recall(receipt.message_id)
    timed_broker.send(timed_topic, b"other", delay=SECOND)
    consumer = timed_broker.consumer(timed_topic, "g")
    clock.advance(MINUTE)
    assert bodies(taken(consumer)) == [b"other"]
    clock.advance(DAY)
    with connected(dsn, autocommit=False) as sender:
        timed_broker.send(timed_topic, b"open", delay=NOW, connection=sender)
        timed_broker.maintain()
        sender.rollback()
    assert b"recalled" not in bodies(taken(timed_broker.consumer(timed_topic, "new")))


# --- one live lease per message and group; final states are final


@pytest.mark.parametrize("commits", [True, False])
def test_x09_an_ack_in_an_open_transaction_while_the_lease_ends(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str, commits: bool
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    sent = timed_broker.send(timed_topic, b"x", delay=NOW)
    batch = consumer.receive(10, MINUTE)
    with connected(dsn, autocommit=False) as worker:
        clock.advance(MINUTE - SECOND)
        consumer.ack(batch, connection=worker)
        for _ in range(3):
            clock.advance(10 * SECOND)
            assert list(consumer.receive(10)) == [], "delivered again while its ack may still commit"
        if commits:
            worker.commit()
        else:
            worker.rollback()
    clock.advance(10 * SECOND)
    again = consumer.receive(10)
    if commits:
        assert list(again) == []
    else:
        assert [(m.message_id, m.attempt) for m in again] == [(sent.message_id, 2)]
        with pytest.raises(LeaseLost):
            consumer.ack(batch)


def test_x09_an_ack_in_an_open_transaction_is_unknown_to_others_until_it_commits(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    """The work and the ack are rolled back together: the lease goes on and can be acked again."""
    consumer = timed_broker.consumer(timed_topic, "g")
    timed_broker.send(timed_topic, b"x", delay=NOW)
    batch = consumer.receive(10, MINUTE)
    with connected(dsn, autocommit=False) as worker:
        consumer.ack(batch, connection=worker)
        worker.rollback()
    consumer.ack(batch)
    consumer.ack(batch)
    clock.advance(HOUR)
    assert taken(consumer) == []


def test_x10_a_late_answer_is_refused_and_changes_nothing(
    timed_broker: Broker, clock: Clock, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    sent = timed_broker.send(timed_topic, b"x", delay=NOW)
    batch = consumer.receive(10, MINUTE)
    clock.advance(MINUTE)
    with pytest.raises(LeaseLost):
        consumer.ack(batch)
    with pytest.raises(LeaseLost):
        consumer.nack(batch)
    with pytest.raises(LeaseLost):
        consumer.change_invisible_duration(batch, MINUTE)
    again = consumer.receive(10, MINUTE)
    assert [(m.message_id, m.attempt) for m in again] == [(sent.message_id, 2)]
    with pytest.raises(LeaseLost):
        consumer.ack(batch)
    consumer.ack(again)
    clock.advance(24 * HOUR)
    assert taken(consumer) == []


def test_receiving_at_once_never_hands_out_a_message_twice(broker: Broker, dsn: str) -> None:
    broker.create_topic("busy", queues=4)
    broker.send_many("busy", [{"body": b"%d" % n, "delay": NOW} for n in range(2_000)])
    group = broker.consumer("busy", "g")

    def work() -> list[bytes]:
        got: list[bytes] = []
        mine = broker.consumer("busy", "g")
        # A queue that another consumer reads just now looks empty.
        while broker.doorbells(["busy"], ["g"])[0].ready:
            for batch in iter(lambda: mine.receive(7), []):
                if not batch:
                    break
                mine.ack(batch)
                got += bodies(list(batch))
        return got

    with beside() as start:
        workers = [start(work) for _ in range(4)]
        got = [body for worker in workers for body in worker.result()]
    got += bodies(taken(group))
    assert sorted(map(int, got)) == list(range(2_000))


# --- isolation


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_older_snapshot_is_refused(broker: Broker, dsn: str, topic: str, level: str) -> None:
    receipt = broker.send(topic, b"x", delay=HOUR)
    broker.consumer(topic, "g")
    statements = (
        "select duewheel.receive('t', 'g')",
        f"{OWN_TRANSACTION}select duewheel.tick_topic(1)",
        f"select duewheel.recall('{receipt.message_id}')",
        "select duewheel.recall_key('t', 'k')",
        "select duewheel.maintain()",
        "select duewheel.send('t', 'x'::text, delay => '1 s', key => 'k', on_conflict => 'keep')",
        "select duewheel.ack(array['1.1.0.1.1.1'])",
    )
    for statement in statements:
        with connected(dsn, autocommit=False) as connection:
            ask(connection, f"set transaction isolation level {level}")
            with pytest.raises(psycopg2.Error) as refusal:
                ask(connection, statement)
            assert refusal.value.pgcode == WrongIsolationLevel.sqlstate, statement


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_x06_sending_works_in_every_isolation_level(broker: Broker, dsn: str, topic: str, level: str) -> None:
    consumer = broker.consumer(topic, "g")
    with connected(dsn, autocommit=False) as sender:
        ask(sender, f"set transaction isolation level {level}")
        ask(sender, "select 1 from duewheel.topics")
        broker.send(topic, b"before", delay=NOW)
        assert bodies(taken(consumer)) == [b"before"]
        broker.send(topic, b"x", delay=NOW, connection=sender)
        broker.send_many(topic, [{"body": b"y", "delay": NOW}], connection=sender)
        assert taken(consumer) == []
        sender.commit()
    assert sorted(bodies(taken(consumer))) == [b"x", b"y"]


# --- ids


@pytest.mark.slow
def test_r01_message_ids_say_where_their_message_is(broker: Broker) -> None:
    instants = st.integers(0, 2**53 - 1)

    @settings(max_examples=50, derandomize=True, database=None, deadline=None)
    @given(st.integers(1, 2**20 - 1), st.integers(0, 63), instants, st.integers(0, 2**63 - 1))
    def check(topic_id: int, queue: int, micros: int, seq: int) -> None:
        identity = message_id(topic_id, queue, micros, seq)
        with broker.connection() as connection:
            rows = ask(
                connection,
                "select topic_id, queue, duewheel.unix_micros(deliver_at), seq,"
                " duewheel.message_id(topic_id, queue, deliver_at, seq)"
                " from duewheel.parse_message_id(%s)",
                identity,
            )
        assert rows == [(topic_id, queue, micros, seq, identity)]

    check()


# --- many, and for long


@pytest.mark.slow
def test_d17_a_hundred_thousand_at_one_instant_come_in_small_batches(
    timed_broker: Broker, clock: Clock
) -> None:
    timed_broker.create_topic("flood", queues=4)
    instant = clock() + HOUR
    receipts = timed_broker.send_many(
        "flood", [{"body": b"", "deliver_at": instant, "tag": "a"} for _ in range(100_000)]
    )
    consumer = timed_broker.consumer("flood", "g")
    assert list(consumer.receive(1)) == []
    clock.set(instant)
    got: list[str] = []
    while batch := consumer.receive(700):
        got += [message.message_id for message in batch]
        consumer.ack(batch)
    assert len(got) == 100_000
    assert set(got) == {receipt.message_id for receipt in receipts}


def test_full_lifecycles_leave_no_dead_tuples(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t")
    timed_broker.maintain()
    consumer = timed_broker.consumer("t", "g")
    for turn in range(50):
        timed_broker.send_many("t", [{"body": b"x", "delay": SECOND, "key": f"{turn}"}] * 100)
        recalled = timed_broker.send("t", b"x", delay=MINUTE)
        timed_broker.recall(recalled.message_id)
        clock.advance(2 * SECOND)
        assert len(taken(consumer)) == 100
    with timed_broker.connection() as connection:
        ask(connection, "select pg_stat_force_next_flush()")
        # What idle connections of the pool have counted is known once they flushed too.
        dead = until(
            lambda: ask(
                connection,
                "select relname, n_dead_tup, n_tup_upd, n_tup_del, n_tup_ins from pg_stat_user_tables"
                " where schemaname = 'duewheel'",
            ),
            "statistics",
        )
    assert sum(row[4] for row in dead if row[0].startswith("message_")) >= 5_000, "nothing was counted"
    hot = [row for row in dead if row[0] not in ("slot", "closed_slot", "alembic_version", "broker")]
    assert [row for row in hot if row[1] or row[2] or row[3]] == []


def test_d09_retention_drops_what_all_have_read_and_keeps_the_rest(
    timed_broker: Broker, clock: Clock, timed_topic: str
) -> None:
    timed_broker.update_topic(timed_topic, retention=2 * HOUR)
    readers = [timed_broker.consumer(timed_topic, name) for name in ("g1", "g2")]
    sent = timed_broker.send(timed_topic, b"x", delay=SECOND)
    clock.advance(MINUTE)
    assert bodies(taken(readers[0])) == [b"x"]
    clock.advance(DAY)
    timed_broker.maintain()
    assert timed_broker.find(sent.message_id) is not None, "one group has not read it"
    batch = readers[1].receive(10, MINUTE)
    assert bodies(list(batch)) == [b"x"]
    timed_broker.maintain()
    assert timed_broker.find(sent.message_id) is not None, "one group has not answered"
    readers[1].ack(batch)
    timed_broker.maintain()
    assert timed_broker.find(sent.message_id) is None
    assert [entry.state for entry in timed_broker.history(sent.message_id)] == ["Deleted"]
    assert taken(readers[0]) == taken(readers[1]) == []
    timed_broker.send(timed_topic, b"y", delay=NOW)
    assert bodies(taken(readers[0])) == bodies(taken(readers[1])) == [b"y"]


def test_upkeep_holds_up_nobody_behind_an_open_transaction(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    timed_broker.update_topic(timed_topic, retention=HOUR)
    timed_broker.send(timed_topic, b"x", delay=SECOND)
    consumer = timed_broker.consumer(timed_topic, "g")
    clock.advance(MINUTE)
    taken(consumer)
    clock.advance(DAY)
    timed_broker.maintain()
    with connected(dsn, autocommit=False) as sender:
        timed_broker.send(timed_topic, b"open", delay=NOW, connection=sender)
        clock.advance(DAY)
        # It returns, whatever is open.
        timed_broker.maintain()
        timed_broker.send(timed_topic, b"y", delay=NOW)
        assert bodies(taken(consumer)) == [b"y"]
        sender.commit()
    assert bodies(taken(consumer)) == [b"open"]


def test_d01_an_instant_is_kept_to_the_microsecond(
    timed_broker: Broker, clock: Clock, timed_topic: str
) -> None:
    instant = datetime(2026, 1, 5, 10, 0, 0, 123_457, tzinfo=UTC)
    sent = timed_broker.send(timed_topic, b"x", deliver_at=instant)
    consumer = timed_broker.consumer(timed_topic, "g")
    clock.set(instant - MICROSECOND)
    assert taken(consumer) == []
    clock.set(instant)
    (message,) = taken(consumer)
    assert (message.message_id, message.deliver_at) == (sent.message_id, instant)
