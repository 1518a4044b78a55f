"""docs/how-to/operate.md answers what an administrator asks, and its answers are tried here."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.acting import HOUR, bodies, rows
from tests.clock import Clock
from tests.conftest import execute
from tests.pages import examples
from tests.waiting import ask, connected

from duewheel.store import Broker, RetryPolicy
from duewheel.store.database import migration
from duewheel.store.database.connections import DriverConnection
from duewheel.store.database.schema_state import SchemaState

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8")
NOW = timedelta(0)


def sql(begins: str) -> str:
    """The page's example of SQL that begins so."""
    (found,) = (block for block in examples(PAGE, "sql") if block.startswith(begins))
    return found


#: Locks that a send, a receive or a tick would wait for.
TAKES_TABLES = """
select distinct c.relname from pg_locks l join pg_class c on c.oid = l.relation
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'duewheel'
where l.pid = pg_backend_pid() and l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
"""


@pytest.mark.owner
def test_an_upgrade_of_functions_keeps_readers_of_three_views_waiting_and_nobody_else(
    dsn: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    group = broker.consumer("t", "g")
    broker.send("t", b"before", delay=NOW)
    taken: set[str] = set()

    def look(driver: DriverConnection) -> SchemaState:
        """All is done, and nothing committed."""
        taken.update(name for (name,) in ask(driver, TAKES_TABLES))
        broker.send("t", b"meanwhile", delay=NOW)
        group.ack(group.receive(wait=timedelta(seconds=20)))
        broker.tick("t")
        return state_of(driver)

    execute(dsn, "update duewheel.broker set functions_checksum = ''")
    state_of = migration.state_of
    # The second look is that after the functions were applied.
    looks = iter((state_of, look))
    monkeypatch.setattr(migration, "state_of", lambda driver: next(looks)(driver))
    migration.upgrade(dsn)
    assert taken
    assert ", ".join(f"`{name}`" for name in sorted(taken)) in " ".join(PAGE.split())


@pytest.mark.owner
def test_a_body_is_erased_wherever_the_message_went(timed_broker: Broker, clock: Clock) -> None:
    broker, secret = timed_broker, b"the address of a customer"
    broker.create_topic("t", queues=1, max_delay=timedelta(days=400))
    # Slots of these days.
    rows(broker, "select duewheel.make_slots_ahead(%s)", clock())
    for _ in range(2):
        rows(broker, "select duewheel.open_slots()")

    def send(**when: timedelta) -> str:
        return broker.send("t", secret, properties={"name": secret.decode()}, **when).message_id

    waits, far, moved, released = (
        send(delay=HOUR),
        send(delay=timedelta(days=300)),
        send(delay=HOUR),
        send(delay=NOW),
    )
    moved_to = broker.reschedule(moved, delay=timedelta(days=200)).message_id
    broker.recall(waits)
    group = broker.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=1))
    for _ in range(2):
        (message,) = group.receive()
        assert message.message_id == released
        group.nack(message, reason="no")
        clock.advance(HOUR)
    assert broker.redrive("g").redriven == 1
    other = broker.send("t", b"of another", delay=NOW)

    with connected(broker.dsn) as connection:
        for message_id in (waits, far, moved_to, released):
            ask(connection, sql("with asked").replace("MESSAGE_ID", message_id))
        for table in ("duewheel.message", "duewheel.far_message"):
            kept = ask(connection, f"select body, properties from {table} where body <> %s", b"")
            assert {(bytes(body), named) for body, named in kept} <= {(b"of another", None)}
            assert ask(connection, f"select 1 from {table} where body = %s", b"")
    batch = group.receive()
    assert sorted(bodies(batch)) == [b"", b"of another"]
    assert {message.message_id for message in batch} == {released, other.message_id}
    group.ack(batch)
