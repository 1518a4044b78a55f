"""Whoever holds upkeep up for over an hour is named: in the log, in stats and on the command line (X18)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from psycopg2.extensions import make_dsn
from tests.acting import AT_ONCE, HOUR
from tests.clock import Clock
from tests.conftest import execute
from tests.logins import login
from tests.waiting import ask, connected

from duewheel.store import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.operations.statistics import UpkeepHolder

pytestmark = pytest.mark.owner

UPKEEP_LOCK = "select pg_advisory_lock(duewheel.tick_lock_class(), -2)"

HOLD: dict[str, tuple[str, ...]] = {
    "transaction": ("begin", "select pg_current_xact_id()"),
    "tables": ("begin", "select count(*) from duewheel.message"),
    "topic": ("begin", "select pg_advisory_xact_lock(duewheel.tick_lock_class(), 1)"),
    "upkeep": (UPKEEP_LOCK,),
}


@pytest.fixture
def clock() -> Clock:
    """Sessions have their instants by the machine's clock."""
    return Clock(datetime.now(UTC))


@pytest.fixture
def maintained(timed_broker: Broker) -> Broker:
    timed_broker.maintain()
    return timed_broker


def holders(broker: Broker) -> tuple[UpkeepHolder, ...]:
    return broker.stats().upkeep.held_up_by


@pytest.mark.parametrize("holds", HOLD)
def test_x18_a_session_that_holds_upkeep_up_for_an_hour_is_named(
    maintained: Broker, clock: Clock, holds: str
) -> None:
    with connected(make_dsn(maintained.dsn, application_name="a shop")) as session:
        for statement in HOLD[holds]:
            ask(session, statement)
        clock.advance(HOUR - timedelta(seconds=1))
        assert holders(maintained) == ()
        clock.advance(timedelta(minutes=1))
        (holder,) = holders(maintained)
        found = (holder.pid, holder.application, holder.holds)
        assert found == (session.info.backend_pid, "a shop", holds)
        assert holder.state == ("idle" if holds == "upkeep" else "idle in transaction")
        assert holder.since_at is not None
        (said,) = maintained.maintain().warnings
        assert f"pid {holder.pid} of login {holder.login} (application 'a shop', {holder.state})" in said
        ask(session, "select pg_advisory_unlock_all()" if holds == "upkeep" else "rollback")
    assert holders(maintained) == ()
    assert maintained.maintain().warnings == ()


def test_x18_upkeep_that_was_busy_for_an_hour_is_warned_of(maintained: Broker, clock: Clock) -> None:
    """However often the session that has its lock does something else."""
    done_at = maintained.stats().upkeep.maintained_at
    assert done_at == clock().replace(microsecond=done_at.microsecond)
    with connected(maintained.dsn) as session:
        ask(session, UPKEEP_LOCK)
        clock.advance(HOUR)
        ask(session, "select 1")
        assert maintained.maintain().warnings == ()
        clock.advance(HOUR + timedelta(minutes=1))
        ask(session, "select 1")
        overdue, held = maintained.maintain().warnings
        assert "another session has the lock of upkeep, which was last done at" in overdue
        assert f"pid {session.info.backend_pid} " in held
        assert "it has the lock of upkeep" in held
        assert maintained.stats().upkeep.maintained_at == done_at
        # A session that is closed ends a moment later.
        ask(session, "select pg_advisory_unlock_all()")
    maintained.maintain()
    assert maintained.stats().upkeep.maintained_at > done_at
    # A consumer may see who holds it up.
    with Broker(login(maintained.dsn, "duewheel_consumer")) as consumer:
        assert holders(consumer) == ()


@pytest.fixture
def of_a_plain_owner(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A broker whose owner may not see what the sessions of others do."""
    superuser = postgres.ensure_database("of_a_plain_owner")
    owner = login(superuser, None)
    execute(superuser, "alter database of_a_plain_owner owner to nobody_login")
    with Broker(owner) as broker:
        broker.upgrade()
    yield owner
    execute(postgres.dsn(), "drop database of_a_plain_owner with (force)")


def test_x18_a_transaction_is_named_though_since_when_is_hidden(
    of_a_plain_owner: str, postgres: EmbeddedPostgres, clock: Clock
) -> None:
    """A tick of an hour ago has a later one."""
    superuser = postgres.dsn("of_a_plain_owner")
    with Broker(of_a_plain_owner, clock=clock) as broker, connected(superuser) as session:
        broker.create_topic("t")
        ask(session, "begin")
        ask(session, "select pg_current_xact_id()")
        clock.advance(2 * HOUR)
        assert holders(broker) == ()
        broker.send("t", b"", delay=AT_ONCE)
        broker.tick("t")
        assert holders(broker) == ()
        clock.advance(HOUR + timedelta(minutes=1))
        (holder,) = holders(broker)
        assert (holder.pid, holder.state, holder.since_at) == (session.info.backend_pid, None, None)
        (said,) = broker.maintain().warnings
        assert "state hidden) has held upkeep up since over an hour ago" in said
