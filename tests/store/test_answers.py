"""Answers in the caller's transaction happen once (X16), and cost the same however many a lease has."""

from __future__ import annotations

import re
from itertools import pairwise

import psycopg2
import pytest
from tests.acting import AT_ONCE, HOUR, MINUTE, SECOND, bodies, rows, send_numbered
from tests.clock import Clock
from tests.leasing import wait_for_extensions
from tests.waiting import ask, beside, connected, until_blocked

from duewheel.store.broker import Broker
from duewheel.store.consuming import lease_keeper
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.consuming.lease_keeper import LeaseKeeper
from duewheel.store.database.connections import DriverConnection, translating_errors
from duewheel.store.values.errors import AlreadyAnswered, InvalidArgument, LeaseLost
from duewheel.store.values.messages import Batch


@pytest.fixture(params=["NORMAL", "FIFO"])
def topic(request: pytest.FixtureRequest, timed_broker: Broker) -> Broker:
    """A topic ``t`` of one queue; the clock stands."""
    timed_broker.create_topic("t", queues=1, message_type=request.param)
    with connected(timed_broker.dsn) as shop:
        ask(shop, "create table work_done (message_id text)")
    return timed_broker


def work(connection: DriverConnection, batch: Batch) -> None:
    for message in batch:
        ask(connection, "insert into work_done values (%s)", message.message_id)


def done(broker: Broker) -> int:
    return int(rows(broker, "select count(*) from work_done")[0][0])


#: Each answer, by Python for a batch as a whole and message by message, and by SQL.
WAYS = ("whole", "one by one", "SQL")


def answer(
    way: str,
    action: str,
    consumer: Consumer,
    batch: Batch,
    connection: DriverConnection,
    clock: Clock,
    *reason: str,
) -> None:
    if way == "SQL":
        handles = [
            f"{lease.group_id}.{lease.topic_id}.{lease.queue}.{lease.n}.{lease.token}.{seq}"
            for message in batch
            for lease in [message.lease]
            for seq in lease.seqs or ()
        ]
        call = f"select duewheel.{action}(%s{', %s' * len(reason)}, now => %s)"
        with translating_errors(connection):
            ask(connection, call, handles, *reason, clock())
    else:
        given = {"reason": reason[0]} if reason else {}
        for part in [batch] if way == "whole" else batch:
            getattr(consumer, action)(part, connection=connection, **given)


@pytest.mark.parametrize("way", WAYS)
def test_x16_work_and_ack_are_committed_once_by_two_workers(topic: Broker, clock: Clock, way: str) -> None:
    """The second waits for the first, which rolls back, and the third for the second, which commits."""
    send_numbered(topic, 10)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()

    def ack(connection: DriverConnection) -> None:
        answer(way, "ack", consumer, batch, connection, clock)

    with (
        connected(topic.dsn, autocommit=False) as first,
        connected(topic.dsn, autocommit=False) as second,
        connected(topic.dsn, autocommit=False) as third,
        connected(topic.dsn, autocommit=False) as late,
    ):
        for worker in (first, second, third, late):
            work(worker, batch)
        ack(first)
        with beside() as begin:
            ask(second, "savepoint a")
            slow = begin(lambda: ack(second))
            until_blocked(topic.dsn, second.info.backend_pid)
            first.rollback()
            slow.result()
            # Its own ack it may repeat.
            ask(second, "savepoint b")
            ack(second)
            ask(second, "rollback to savepoint a")
            ack(second)
            ack(second)
            slow = begin(lambda: ack(third))
            until_blocked(topic.dsn, third.info.backend_pid)
            second.commit()
            with pytest.raises(AlreadyAnswered, match="answered before"):
                slow.result()
        third.rollback()
        with pytest.raises(AlreadyAnswered):
            ack(late)
        late.rollback()
    assert done(topic) == 10
    clock.advance(HOUR)
    assert not consumer.receive()


def test_x16_one_message_that_another_has_acked_is_enough(topic: Broker) -> None:
    send_numbered(topic, 3)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()
    consumer.ack(batch[0])
    with connected(topic.dsn, autocommit=False) as mine:
        with pytest.raises(AlreadyAnswered, match="1 of the messages"):
            consumer.ack(batch, connection=mine)
        mine.rollback()
        consumer.ack(batch[1:], connection=mine)
        with pytest.raises(AlreadyAnswered, match="answered before"):
            consumer.ack(batch[:1], connection=mine)
        mine.rollback()
        consumer.ack(batch[1:], connection=mine)
        mine.commit()


def test_x16_in_sql_an_ack_may_be_repeated_where_that_is_said(topic: Broker, clock: Clock) -> None:
    send_numbered(topic, 2)
    topic.tick("t")
    with connected(topic.dsn) as service:
        handles = [
            handle
            for (handle,) in ask(
                service, "select receipt_handle from duewheel.receive('t', 'g', now => %s)", clock()
            )
        ]
        for strict in (True, False):
            ask(service, "select duewheel.ack(%s, %s, strict => %s)", handles, clock(), strict)
        with pytest.raises(psycopg2.Error, match="answered before") as refused:
            ask(service, "select duewheel.ack(%s, now => %s)", handles, clock())
        assert refused.value.pgcode == "DW020"


# --- fencing


def test_x16_a_fence_refuses_the_slow_one_before_the_work(topic: Broker) -> None:
    send_numbered(topic, 10)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive()
    with connected(topic.dsn, autocommit=False) as first, connected(topic.dsn, autocommit=False) as second:
        consumer.fence(batch, connection=first)
        consumer.fence(batch, connection=first)
        with beside() as begin:
            slow = begin(lambda: consumer.fence(batch, connection=second))
            until_blocked(topic.dsn, second.info.backend_pid)
            work(first, batch)
            consumer.ack(batch, connection=first)
            consumer.fence(batch, connection=first)
            first.commit()
            with pytest.raises(AlreadyAnswered):
                slow.result()
        second.rollback()
    assert done(topic) == 10


def test_x16_a_fence_ends_with_its_transaction(topic: Broker, clock: Clock) -> None:
    send_numbered(topic, 2)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=MINUTE)
    with connected(topic.dsn) as mine:
        with pytest.raises(InvalidArgument, match="begin a transaction"):
            consumer.fence(batch, connection=mine)
        for ends in ("commit", "rollback"):
            ask(mine, "begin")
            consumer.fence(batch, connection=mine)
            ask(mine, ends)
            with connected(topic.dsn, autocommit=False) as other:
                consumer.fence(batch[:1], connection=other)
        ask(mine, "begin")
        ask(mine, "savepoint a")
        consumer.fence(batch, connection=mine)
        ask(mine, "rollback to savepoint a")
        clock.advance(MINUTE)
        for late in (consumer.fence, consumer.ack):
            with pytest.raises(LeaseLost, match="the lease ended"):
                late(batch, connection=mine)
            ask(mine, "rollback to savepoint a")
    assert len(consumer.receive()) == 2


@pytest.mark.parametrize(("way", "answers"), [*((way, True) for way in WAYS), ("whole", False)])
def test_x16_a_fenced_lease_outlasts_its_end(topic: Broker, clock: Clock, way: str, answers: bool) -> None:
    """Nobody gets the messages while the transaction is open, and it may ack them."""
    send_numbered(topic, 3)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=MINUTE)
    with connected(topic.dsn, autocommit=False) as mine:
        consumer.fence(batch, connection=mine)
        for _ in range(3):
            clock.advance(HOUR)
            assert not consumer.receive()
        # The deferral of the last look is over as well.
        clock.advance(HOUR)
        if answers:
            answer(way, "ack", consumer, batch, mine, clock)
        mine.commit()
    clock.advance(HOUR)
    assert len(consumer.receive()) == (0 if answers else 3)


@pytest.mark.slow
@pytest.mark.owner
def test_x16_a_fence_holds_up_only_answers_of_its_lease(topic: Broker, clock: Clock) -> None:
    send_numbered(topic, 4)
    consumer = topic.consumer("t", "g")
    fenced, other = consumer.receive(2, MINUTE), consumer.receive(1, MINUTE)
    with connected(topic.dsn) as admin:
        ask(admin, "alter database " + admin.info.dbname + " set lock_timeout = '3s'")
    with connected(topic.dsn, autocommit=False) as mine, Broker(topic.dsn, clock=clock) as others:
        consumer.fence(fenced, connection=mine)
        busy = others.consumer("t", "g")
        # A keeper's extension gives up waiting for the lock, and counts.
        busy.change_invisible_duration(fenced, HOUR)
        busy.ack(other)
        busy.nack(busy.receive(), delay=AT_ONCE)
        clock.advance(2 * SECOND)
        assert len(busy.receive(invisible=MINUTE)) == 1
        send_numbered(others, 1)
        others.tick("t")
        others.maintain()
        mine.rollback()
    clock.advance(10 * MINUTE)
    consumer.ack(fenced)


def test_x16_a_lease_keeper_waits_for_no_fence(topic: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It extends the lease beside an open transaction that has fenced it."""
    monkeypatch.setattr(lease_keeper, "EXTENSIONS_PER_LEASE", 360_000)
    send_numbered(topic, 1)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=HOUR)
    with connected(topic.dsn, autocommit=False) as mine:
        with LeaseKeeper(consumer, batch, HOUR) as keeper:
            consumer.fence(batch, connection=mine)
            # The first of two extensions may have been under way.
            wait_for_extensions(keeper, 2)
        assert not keeper.lost.is_set()
        consumer.ack(batch, connection=mine)
        mine.commit()


# --- what an answer costs


@pytest.mark.slow
def test_an_answer_reads_no_more_the_more_answers_the_lease_has(topic: Broker) -> None:
    """In rows, as the database counts them: the last ack of 600 reads what an early one does."""
    send_numbered(topic, 600)
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(600)
    assert len(batch) == 600
    read = []
    with connected(topic.dsn, autocommit=False) as mine:
        for message in batch[:-1]:
            consumer.ack(message, connection=mine)
            ((found,),) = ask(
                mine,
                "select sum(seq_tup_read + idx_tup_fetch) from pg_stat_xact_user_tables"
                " where schemaname = 'duewheel'"
                " and relname in ('lease', 'lease_event', 'lease_extension', 'lease_answer')",
            )
            read.append(int(found))
        mine.commit()
    each = [after - before for before, after in pairwise(read)]
    assert max(each[-20:]) <= max(each[:20]) <= 20
    consumer.ack(batch[-1])
    assert topic.stats().topics[0].groups[0].inflight == 0


#: Answers that are a parameter of another one, or of no consumer.
BY_ANOTHER_NAME = {"ack_once": "ack", "extend": "change_invisible_duration"}
OF_SPARK_ALONE = {"reject"}


#: The functions with a comment, as those for programs have.
EXPLAINED = """
select proname from pg_proc
where pronamespace = 'duewheel'::regnamespace and obj_description(oid, 'pg_proc') is not null
"""


def test_consumer_and_sql_have_the_same_answers(broker: Broker) -> None:
    with connected(broker.dsn) as connection:
        ((source,),) = ask(connection, "select prosrc from pg_proc where proname = 'check_answer'")
        explained = {name for (name,) in ask(connection, EXPLAINED)}
    kinds = source.partition("v_kind constant text")[2].partition(";")[0]
    actions = {
        name
        for names in re.findall(r"p_action (?:=|in) \(?([^)]*?)\)? then", kinds)
        for name in re.findall(r"\w+", names)
    }
    assert {"ack", "nack", "fence"} <= actions
    message = source.partition("errcode")[2].partition("hint")[0]
    assert set(re.findall(r'"(\w+)"', message)) == actions, "name them in the message of check_answer"
    answers = {BY_ANOTHER_NAME.get(action, action) for action in actions - OF_SPARK_ALONE}
    assert answers - set(dir(Consumer)) == set(), (
        "add the method to Answering in store/consuming/answering.py"
    )
    assert answers - explained == set(), (
        "add the function to store/sql/entry/public.sql and its comment to store/sql/entry/comments.sql"
    )


# --- done with on purpose, and hopeless


def last_states(broker: Broker) -> dict[str, tuple[str, str | None]]:
    ids = rows(
        broker,
        "select duewheel.message_id(topic_id, queue, deliver_at, seq), convert_from(body, 'UTF8')"
        " from duewheel.any_message where origin_seq is null",
    )
    found = {body: broker.history(identity)[-1] for identity, body in ids}
    return {body: (entry.state, entry.reason) for body, entry in sorted(found.items())}


@pytest.mark.parametrize("way", WAYS)
def test_d06_r14_a_message_is_skipped_or_dead_at_once(topic: Broker, clock: Clock, way: str) -> None:
    send_numbered(topic, 6)
    consumer = topic.consumer("t", "g")
    closed, hopeless = consumer.receive(3), consumer.receive(3)
    with connected(topic.dsn) as program:
        answer(way, "skip", consumer, closed, program, clock, "closed")
        answer(way, "dead_letter", consumer, hopeless, program, clock, "hopeless")
    if way != "SQL":
        consumer.skip(closed, reason="again")
        consumer.ack(closed)
    expected = [("Skipped", "closed")] * 3 + [("DLQ", "hopeless")] * 3
    assert list(last_states(topic).values()) == expected
    letters = topic.dead_letters("g", topic="t")
    assert [(letter.attempt, letter.reason) for letter in letters] == [(1, "hopeless")] * 3
    clock.advance(HOUR)
    assert not consumer.receive()
    with pytest.raises(LeaseLost):
        consumer.dead_letter(hopeless)
    topic.redrive("g", topic="t")
    clock.advance(SECOND)
    assert sorted(bodies(consumer.receive())) == [b"3", b"4", b"5"]


def test_r07_each_message_of_a_message_group_has_its_own_answer(topic: Broker) -> None:
    topic.send_many("t", [{"body": f"{number}", "message_group": "one"} for number in range(5)])
    consumer = topic.consumer("t", "g")
    hopeless, acked, closed, too, last = consumer.receive()
    consumer.dead_letter(hopeless, reason="hopeless")
    consumer.ack(acked)
    consumer.skip(closed)
    consumer.dead_letter(too, reason="hopeless")
    consumer.ack(last)
    dead = ("DLQ", "hopeless")
    assert list(last_states(topic).values()) == [
        dead, ("Acked", None), ("Skipped", "skipped"), dead, ("Acked", None)]  # fmt: skip


def test_a_broadcasting_consumer_passes_a_hopeless_message_over(topic: Broker) -> None:
    consumer = topic.consumer("t", "g", mode="broadcasting")
    send_numbered(topic, 1)
    consumer.dead_letter(consumer.receive(), reason="hopeless")
    assert not consumer.receive()
    assert last_states(topic) == {"0": ("Skipped", "hopeless")}
