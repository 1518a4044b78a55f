"""Transactions of the cluster's other databases hold up nothing, and none of this database is ever taken for
one of them (X18)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from psycopg2.extensions import make_dsn
from tests.acting import AT_ONCE, DAY
from tests.clock import Clock
from tests.conftest import execute
from tests.waiting import ask, beside, connected, until_blocked

from duewheel.store import EmbeddedPostgres
from duewheel.store.broker import Broker

FOREIGN = "select x::text::bigint from unnest(duewheel.foreign_transactions(pg_current_snapshot())) x"


@pytest.fixture(scope="module")
def other_dsn(two_phase: EmbeddedPostgres) -> str:
    """Another database of the cluster."""
    return two_phase.ensure_database("neighbour")


@contextmanager
def open_elsewhere(other_dsn: str, how: str) -> Iterator[int]:
    """A transaction of another database that stays open for the length of the block; gives its id."""
    with connected(other_dsn) as other:
        ask(other, "begin")
        ((xid,),) = ask(other, "select pg_current_xact_id()::text::bigint")
        if how == "prepared":
            ask(other, "prepare transaction 'elsewhere'")
        # A snapshot lists transactions up to the latest that has ended.
        execute(other_dsn, "select pg_current_xact_id()")
        try:
            yield xid
        finally:
            ask(other, "rollback prepared 'elsewhere'" if how == "prepared" else "rollback")


def sealed_and_dropped(broker: Broker, clock: Clock) -> tuple[str, ...]:
    """The slots that upkeep drops of messages that were acked long ago."""
    broker.create_topic("t", queues=1, max_delay=30 * DAY, retention=DAY)
    with connected(broker.dsn) as connection:
        ask(connection, "select duewheel.make_slot(%s)", clock() + DAY)
    consumer = broker.consumer("t", "g")
    broker.send("t", b"acked", delay=DAY)
    clock.advance(DAY)
    broker.tick("t")
    consumer.ack(consumer.receive())
    clock.advance(5 * DAY)
    broker.tick("t")
    return broker.maintain().dropped


@pytest.mark.parametrize("how", ["open", "prepared"])
def test_x18_a_transaction_elsewhere_keeps_no_slot(
    own_dsn: str, other_dsn: str, how: str, clock: Clock
) -> None:
    with Broker(own_dsn, clock=clock) as broker, open_elsewhere(other_dsn, how):
        assert sealed_and_dropped(broker, clock) != ()


@pytest.mark.parametrize("how", ["open", "prepared"])
def test_x18_an_own_transaction_keeps_its_slot_and_its_message(
    own_dsn: str, other_dsn: str, how: str, clock: Clock
) -> None:
    """It is told from the one beside it, which is of another database."""
    with Broker(own_dsn, clock=clock) as broker, connected(own_dsn) as sender:
        broker.create_topic("t", queues=1, max_delay=30 * DAY, retention=DAY)
        consumer = broker.consumer("t", "g")
        ask(sender, "select duewheel.make_slot(%s)", clock() + DAY)
        broker.send("t", b"seen", delay=DAY)
        with open_elsewhere(other_dsn, "open"):
            ask(sender, "begin")
            broker.send("t", b"late", delay=DAY, connection=sender)
            if how == "prepared":
                ask(sender, "prepare transaction 'own'")
            clock.advance(DAY)
            broker.tick("t")
            clock.advance(5 * DAY)
            broker.tick("t")
            batch = consumer.receive()
            assert [message.body for message in batch] == [b"seen"]
            consumer.ack(batch)
            assert broker.maintain().dropped == ()
            ask(sender, "commit prepared 'own'" if how == "prepared" else "commit")
            done = broker.maintain()
            assert (done.swept, done.dropped) == (0, ())
            broker.tick("t")
            assert [message.body for message in consumer.receive()] == [b"late"]


@pytest.mark.parametrize("how", ["open", "prepared"])
def test_x18_a_foreign_transaction_is_recognized_by_any_login(own_dsn: str, other_dsn: str, how: str) -> None:
    """Also in a transaction that has looked: Postgres would go on showing it the sessions of its first look,
    whose process ids may be others' by now."""
    with connected(own_dsn, autocommit=False) as own:
        ask(own, "select count(*) from pg_stat_activity")
        with open_elsewhere(other_dsn, how) as xid:
            assert ask(own, FOREIGN) == [(xid,)]


def test_x18_an_own_transaction_awaited_by_a_session_elsewhere(
    two_phase: EmbeddedPostgres, own_dsn: str, other_dsn: str
) -> None:
    """It stays an own one. The other waits on its id, as both change what all databases share."""
    own_as_admin = make_dsn(two_phase.dsn(), dbname=psycopg2.extensions.parse_dsn(own_dsn)["dbname"])
    with (
        beside() as begin,
        connected(other_dsn) as other,
        connected(own_dsn) as looking,
        connected(own_as_admin) as own,
    ):
        ask(own, "begin")
        ((xid,),) = ask(own, "select pg_current_xact_id()::text::bigint")
        ask(own, "alter role plain connection limit 50")
        waiting = begin(lambda: ask(other, "alter role plain connection limit 51"))
        until_blocked(own_as_admin, other.info.backend_pid)
        execute(other_dsn, "select pg_current_xact_id()")
        found = ask(looking, FOREIGN)
        assert len(found) == 1
        assert found != [(xid,)]
        ask(own, "rollback")
        waiting.result()


@pytest.mark.slow
def test_x18_no_own_transaction_counts_as_a_foreign_one(own_dsn: str, other_dsn: str) -> None:
    """Sessions of both come and go, write, wait, prepare and use subtransactions, while one looks on."""
    own: set[int] = set()
    elsewhere: set[int] = set()
    taken_for_foreign: set[int] = set()

    def live(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(40):
            is_own = chance.random() < 0.5
            with connected(own_dsn if is_own else other_dsn) as connection:
                for _ in range(chance.randrange(1, 4)):
                    ask(connection, "begin")
                    if chance.random() < 0.3:
                        ask(connection, "savepoint s")
                    ((xid,),) = ask(connection, "select pg_current_xact_id()::text::bigint")
                    (own if is_own else elsewhere).add(xid)
                    ask(connection, "select pg_sleep(%s)", chance.random() / 100)
                    if chance.random() < 0.3:
                        name = f"{seed} {number} {xid}"
                        ask(connection, f"prepare transaction '{name}'")
                        ask(connection, f"rollback prepared '{name}'")
                    else:
                        ask(connection, chance.choice(["commit", "rollback"]))

    with beside() as begin, connected(own_dsn) as looking:
        lives = [begin(lambda seed=seed: live(seed)) for seed in range(5)]
        while not all(one.done() for one in lives):
            taken_for_foreign.update(xid for (xid,) in ask(looking, FOREIGN))
        for one in lives:
            one.result()
    assert taken_for_foreign & own == set()
    assert taken_for_foreign <= elsewhere
    assert len(taken_for_foreign) > 20


UNSETTLED = "select u.is_late from duewheel.unsettled_topics(array(select topic_id from duewheel.topic)) u"


@pytest.mark.parametrize("how", ["open", "prepared"])
def test_x18_only_own_transactions_keep_a_topic_unsettled(own_dsn: str, other_dsn: str, how: str) -> None:
    with Broker(own_dsn) as broker, connected(own_dsn) as looking, connected(own_dsn) as sender:
        broker.create_topic("t", queues=1)
        with open_elsewhere(other_dsn, how):
            broker.send("t", b"", delay=AT_ONCE)
            broker.tick("t")
            assert ask(looking, "select open_count > 0 from duewheel.tick") == [(True,)]
            assert ask(looking, UNSETTLED) == []
            ask(sender, "begin")
            broker.send("t", b"late", delay=AT_ONCE, connection=sender)
            broker.send("t", b"", delay=AT_ONCE)
            broker.tick("t")
            assert ask(looking, UNSETTLED) == [(False,)]
            ask(sender, "commit")
            assert ask(looking, UNSETTLED) == [(True,)]
            assert broker.tick("t")
            assert ask(looking, UNSETTLED) == []


@pytest.mark.parametrize("how", ["open", "prepared"])
def test_x18_only_an_own_transaction_is_named_by_upkeep(own_dsn: str, other_dsn: str, how: str) -> None:
    clock = Clock(datetime.now(UTC) + timedelta(hours=2))
    with Broker(own_dsn, clock=clock) as broker, connected(own_dsn) as own:
        broker.maintain()
        with open_elsewhere(other_dsn, how):
            assert broker.stats().upkeep.held_up_by == ()
            ask(own, "begin")
            ask(own, "select pg_current_xact_id()")
            if how == "prepared":
                ask(own, "prepare transaction 'own''s'")
            (holder,) = broker.stats().upkeep.held_up_by
            assert (holder.login, holder.holds) == ("plain", "transaction")
            assert holder.since_at is not None
            (said,) = broker.maintain().warnings
            if how == "prepared":
                assert (holder.pid, holder.gid, holder.state) == (None, "own's", "prepared")
                assert 'the prepared transaction "own\'s" of login plain has held upkeep up since' in said
                ask(own, "rollback prepared 'own''s'")
            else:
                assert (holder.pid, holder.gid) == (own.info.backend_pid, None)
                ask(own, "rollback")
            assert broker.stats().upkeep.held_up_by == ()
