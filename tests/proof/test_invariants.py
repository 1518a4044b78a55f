"""The invariants, one by one, and the traps in which they were lost once (design: protocols, invariants)."""

from __future__ import annotations

import time
from functools import partial
from itertools import product

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MICROSECOND, MINUTE, SECOND, bodies, rows, taken
from tests.clock import Clock
from tests.waiting import ask, beside, connected, until, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.database.connections import OWN_TRANSACTION
from duewheel.store.values.errors import LeaseLost, WrongIsolationLevel
from duewheel.store.values.messages import Message, RecallOutcome, message_id


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
    broker.send(topic, b"in time", delay=AT_ONCE)
    with connected(dsn, autocommit=False) as sender:
        broker.send(topic, b"late", delay=AT_ONCE, connection=sender)
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
    """To one when nothing else ever comes, to the other between later messages."""
    groups = [timed_broker.consumer(timed_topic, name) for name in ("quiet", "busy")]
    seen: list[list[bytes]] = [[], []]

    def take() -> None:
        for place, consumer in enumerate(groups):
            seen[place] += bodies(taken(consumer))

    with connected(dsn, autocommit=False) as sender:
        timed_broker.send(timed_topic, b"late", delay=SECOND, connection=sender)
        for _ in range(3):
            timed_broker.send(timed_topic, b"other", delay=SECOND)
            clock.advance(MINUTE)
            take()
        sender.commit()
    seen[0] += bodies(taken(groups[0]))
    assert seen[0] == [b"other"] * 3 + [b"late"]
    for _ in range(3):
        clock.advance(MINUTE)
        timed_broker.send(timed_topic, b"other", delay=AT_ONCE)
        take()
    for came in seen:
        assert sorted(came) == [b"late"] + [b"other"] * 6


def test_a_rolled_back_send_does_not_exist_and_savepoints_count(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    with connected(dsn, autocommit=False) as sender, connected(dsn, autocommit=False) as undecided:
        lost = timed_broker.send(timed_topic, b"no", delay=SECOND, connection=undecided)
        timed_broker.send_many(timed_topic, [{"body": b"no", "delay": SECOND}] * 10, connection=undecided)
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
        undecided.rollback()
    assert sorted(bodies(taken(consumer))) == [b"1", b"2", b"4"]
    assert timed_broker.find(lost.message_id) is None
    assert timed_broker.recall(lost.message_id).outcome is RecallOutcome.NOT_FOUND


@pytest.mark.parametrize("how", ["send", "send_many", "nack"])
def test_x06_a_long_transaction_sends_to_newer_slots(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str, how: str
) -> None:
    """Its session knows the slots of when it last looked; others have made more since."""
    consumer = timed_broker.consumer(timed_topic, "g")
    timed_broker.update_topic(timed_topic, max_delay=2_000 * HOUR)
    timed_broker.send(timed_topic, b"first", delay=AT_ONCE)
    batch = consumer.receive(1, 12 * HOUR)
    far = 1_500 * HOUR
    with connected(dsn, autocommit=False) as sender:
        timed_broker.send(timed_topic, b"open", delay=AT_ONCE, connection=sender)
        timed_broker.send_many(timed_topic, [{"body": b"open", "delay": AT_ONCE}], connection=sender)
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
        timed_broker.send(timed_topic, b"2", delay=AT_ONCE)
        ticker.rollback()
    assert bodies(taken(consumer)) == [b"1", b"2"]


def test_a_message_due_on_the_full_hour_comes_once(
    timed_broker: Broker, clock: Clock, timed_topic: str
) -> None:
    """It is the first of its slot and lies at the bound of the one before."""
    consumer = timed_broker.consumer(timed_topic, "g")
    hour = clock().replace(minute=0) + HOUR
    sent = [
        timed_broker.send(timed_topic, b"", deliver_at=hour + offset).message_id
        for offset in (-MICROSECOND, AT_ONCE, AT_ONCE, MICROSECOND, HOUR)
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
    broker.send_many(topic, [{"body": b"a", "delay": AT_ONCE}, {"body": b"b", "delay": AT_ONCE}])
    short, long = consumer.receive(1, SECOND), consumer.receive(1, HOUR)
    consumer.nack(long, 2 * SECOND)
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
        until(lambda: time.monotonic() > nacked + 2, "the other message's retry to be due")
        tick = f"{OWN_TRANSACTION}select released from duewheel.tick_topic(%s, null, false)"
        assert ask(ticker, tick, retry_topic) == [(True,)]
        blocker.rollback()
        got = bodies(list(receiving.result()))
        ticker.commit()
    got += bodies(taken(consumer))
    assert sorted(got) == [b"a", b"b"]


def test_message_numbers_are_unique_under_one_and_many_senders(broker: Broker, dsn: str, topic: str) -> None:
    statement = (
        "select b.first_block from generate_series(1, %s) n,"
        " lateral duewheel.begin_copy(case when n > 0 then %s end, %s) b"
    )

    def draw(blocks: int, times: int) -> list[int]:
        with connected(dsn) as connection:
            drawn = ask(connection, statement, times, topic, blocks)
        return [first + offset for (first,) in drawn for offset in range(blocks)]

    with beside() as start:
        drawing = [start(partial(draw, blocks, 2_000 // blocks)) for blocks in (1, 1, 3, 2)]
        numbers = [number for future in drawing for number in future.result()]
    assert len(numbers) == len(set(numbers)) > 7_000


# --- recalled is never delivered


@pytest.mark.parametrize("first_commits", [True, False])
def test_x01_a_second_recall_waits_for_the_first_no_wheel_does(
    broker: Broker, dsn: str, topic: str, first_commits: bool
) -> None:
    consumer = broker.consumer(topic, "g")
    receipt = broker.send(topic, b"recalled", delay=HOUR)
    with connected(dsn, autocommit=False) as recaller, connected(dsn) as ticker, beside() as start:
        assert broker.recall(receipt.message_id, connection=recaller).outcome is RecallOutcome.RECALLED
        broker.send(topic, b"due", delay=AT_ONCE)
        second = start(lambda: broker.recall(receipt.message_id).outcome)
        until_somebody_waits(dsn)
        ask(ticker, "set lock_timeout = '5s'")
        try:
            assert ask(ticker, "call duewheel.tick('t')") == [(True,)]
            assert bodies(taken(consumer)) == [b"due"]
        finally:
            if first_commits:
                recaller.commit()
            else:
                recaller.rollback()
        assert second.result() is RecallOutcome.RECALLED
    stored = broker.find(receipt.message_id)
    assert stored is not None
    assert stored.recalled


def test_x01_a_new_group_gets_no_recalled_message_of_a_kept_slot(
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
        timed_broker.send(timed_topic, b"open", delay=AT_ONCE, connection=sender)
        timed_broker.maintain()
        sender.rollback()
    assert b"recalled" not in bodies(taken(timed_broker.consumer(timed_topic, "new")))


# --- one live lease per message and group; final states are final


@pytest.mark.parametrize("commits", [True, False])
def test_x09_an_ack_in_an_open_transaction_while_the_lease_ends(
    timed_broker: Broker, clock: Clock, dsn: str, timed_topic: str, commits: bool
) -> None:
    consumer = timed_broker.consumer(timed_topic, "g")
    sent = timed_broker.send(timed_topic, b"x", delay=AT_ONCE)
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


def test_receiving_at_once_never_hands_out_a_message_twice(broker: Broker, dsn: str) -> None:
    broker.create_topic("busy", queues=4)
    broker.send_many("busy", [{"body": b"%d" % n, "delay": AT_ONCE} for n in range(2_000)])
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
        "select outcome from duewheel.recall_key('t', 'k')",
        "select duewheel.upkeep_step()",
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
        broker.send(topic, b"before", delay=AT_ONCE)
        assert bodies(taken(consumer)) == [b"before"]
        broker.send(topic, b"x", delay=AT_ONCE, connection=sender)
        broker.send_many(topic, [{"body": b"y", "delay": AT_ONCE}], connection=sender)
        assert taken(consumer) == []
        sender.commit()
    assert sorted(bodies(taken(consumer))) == [b"x", b"y"]


def test_r01_message_ids_say_where_their_message_is(broker: Broker) -> None:
    statement = (
        "select topic_id, queue, duewheel.unix_micros(deliver_at), seq,"
        " duewheel.message_id(topic_id, queue, deliver_at, seq) from duewheel.parse_message_id(%s)"
    )
    for place in product((1, 2**20 - 1), (0, 63), (0, 1_767_605_400_123_457, 2**53 - 1), (0, 7, 2**63 - 1)):
        identity = message_id(*place)
        assert rows(broker, statement, identity) == [(*place, identity)]


def test_full_lifecycles_leave_no_dead_tuples(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t")
    timed_broker.maintain()
    consumer = timed_broker.consumer("t", "g")
    for turn in range(20):
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
    assert sum(row[4] for row in dead if row[0].startswith("message_")) > 2_000, "nothing was counted"
    hot = [row for row in dead if row[0] not in ("slot", "closed_slot", "alembic_version", "broker")]
    assert [row for row in hot if row[1] or row[2] or row[3]] == []
