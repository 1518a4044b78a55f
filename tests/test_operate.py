"""The pages for operators answer what an administrator asks, and their answers are tried here."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from threading import Event, Semaphore

import pytest
from airflow.sdk import Context
from psycopg2.extensions import make_dsn, parse_dsn
from tests.acting import HOUR, bodies, rows
from tests.airflow_runs import connection_json
from tests.clock import Clock
from tests.conftest import execute
from tests.leasing import extend_often
from tests.logins import PASSWORD, SUPERUSER, as_user, login
from tests.pages import examples
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected, until

from duewheel.embedded.machine import free_port
from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.store import Broker, RetryPolicy
from duewheel.store.database import migration
from duewheel.store.database.connections import IDLE_CONNECTIONS, DriverConnection
from duewheel.store.database.schema_state import SchemaState
from duewheel.store.values.errors import BrokerUnreachable
from duewheel.store.wheel.wheel_schedule import LANES

OPERATE, PRODUCTION = (
    (Path(__file__).parent.parent / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("operate", "production")
)
NOW = timedelta(0)


def number_of(process: str) -> int:
    """The connections of a process, as the page's table has them."""
    (found,) = re.findall(rf"^\| {re.escape(process)}[^|]* \| (\d+)", OPERATE, re.MULTILINE)
    return int(found)


def sessions(dsn: str, name: str) -> int:
    """How many sessions have an application name that begins so."""
    counting = (
        "select count(*) from pg_stat_activity where datname = current_database() and application_name ~ %s"
    )
    ((found,),) = execute(dsn, counting, f"^{name}")
    return int(found)


@pytest.mark.slow
def test_waiting_consumers_of_a_program_have_nine_connections(broker: Broker) -> None:
    names = [f"t{number}" for number in range(20)]
    for name in names:
        broker.create_topic(name)
    waiting = Semaphore(0)

    def consume(name: str) -> int:
        group = broker.consumer(name, "g")
        waiting.release()
        batch = group.receive(wait=timedelta(seconds=30))
        group.ack(batch)
        return len(batch)

    assert number_of("a program whose consumers wait") == IDLE_CONNECTIONS + 1
    with beside() as start:
        received = [start(lambda name=name: consume(name)) for name in names]
        for _ in names:
            assert waiting.acquire(timeout=PATIENCE_SECONDS)
        # Each has looked once and sleeps; a look that is under way has a connection for this moment alone.
        until(
            lambda: 1 <= sessions(broker.dsn, "duewheel") <= IDLE_CONNECTIONS + 1,
            "consumers that wait to share the listener",
        )
        for name in names:
            broker.send(name, b"", delay=NOW)
        assert [one.result(PATIENCE_SECONDS) for one in received] == [1] * 20


def test_a_wheel_has_the_connections_of_its_lanes_and_a_listener() -> None:
    lanes = sum(LANES.values())
    assert f"1 to listen and up to {lanes} to work" in " ".join(OPERATE.split())
    assert number_of("`duewheel wheel run`") == lanes + 1
    assert number_of("the same with `--statsd`") == lanes + 2
    # Beside its wheel: doorbells, those of single groups, and metrics.
    assert number_of("a triggerer") == lanes + 4


@pytest.mark.slow
def test_an_idle_wheel_has_at_most_five_connections(dsn: str) -> None:
    assert "An idle wheel has at most 5." in " ".join(OPERATE.split())
    stop = Event()
    with Broker(dsn) as broker, beside() as start:
        turning = start(lambda: broker.wheel().run(stop))
        try:
            seen = [until(lambda: sessions(dsn, "duewheel wheel"), "a wheel") for _ in range(100)]
        finally:
            stop.set()
        turning.result(PATIENCE_SECONDS)
    assert max(seen) <= 5


def test_a_task_that_consumes_has_two_connections(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    extend_often(monkeypatch)
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.create_topic("t")
    broker.send("t", b"", delay=NOW)
    broker.close()
    seen: list[int] = []

    def work(_: object) -> None:
        # The lease is extended ten times a second meanwhile.
        for _ in range(50):
            seen.append(sessions(broker.dsn, "duewheel"))

    consuming = ConsumeMessagesOperator(task_id="task", topic="t", group="g", python_callable=work)
    assert consuming.execute(Context()) is None
    assert 1 <= max(seen) <= number_of("a task that consumes") == 2


def test_a_team_is_kept_out_of_the_database_of_another(dsn: str, broker: Broker) -> None:
    """The roles are those of the whole cluster."""
    team, other = (login(dsn, role) for role in ("duewheel_consumer", "duewheel_admin"))
    revoking, granting = re.findall(r"^    ((?:revoke|grant) .*;)$", PRODUCTION, re.MULTILINE)
    name, user, granted = "team_b", parse_dsn(team)["user"], "team_b_web"
    with Broker(other) as stranger:
        stranger.create_topic("of-a-stranger")
    execute(as_user(dsn, SUPERUSER), revoking.replace(name, parse_dsn(dsn)["dbname"], 1))
    granting = granting.replace(name, parse_dsn(dsn)["dbname"], 1).replace(granted, user)
    execute(as_user(dsn, SUPERUSER), granting)
    with Broker(team) as member:
        assert member.find_key("of-a-stranger", "k") == []
    with Broker(other) as stranger, pytest.raises(BrokerUnreachable, match="permission denied for database"):
        stranger.topics()


def test_a_program_goes_to_the_server_that_may_be_written(broker: Broker) -> None:
    broker.create_topic("t")
    ports = f"{free_port()},{parse_dsn(broker.dsn)['port']}"
    both = make_dsn(broker.dsn, host="127.0.0.1,127.0.0.1", port=ports, target_session_attrs="read-write")
    with Broker(both) as found:
        found.send("t", b"", delay=NOW)
        assert len(found.consumer("t", "g").receive(wait=timedelta(seconds=20))) == 1


def test_each_new_connection_reads_the_token_in_the_file(dsn: str, tmp_path: Path) -> None:
    address = parse_dsn(login(dsn, "duewheel_admin"))
    user, superuser = address["user"], as_user(dsn, SUPERUSER)
    tokens = tmp_path / "tokens"

    def hand_out(token: str) -> None:
        execute(superuser, f"alter role {user} password '{token}'")
        tokens.touch(mode=0o600)
        tokens.write_text(f"*:*:*:{user}:{token}\n")

    hand_out("the-first")
    try:
        with Broker(make_dsn(**{**address, "password": None}, passfile=str(tokens))) as broker:
            broker.create_topic("t")
            hand_out("the-second")
            ending = "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity where usename = %s"
            assert execute(superuser, ending, user) >= [(1,)]
            assert [topic.name for topic in broker.topics()] == ["t"]
    finally:
        execute(superuser, f"alter role {user} password '{PASSWORD}'")


#: Locks that a send, a receive or a tick would wait for.
TAKES_TABLES = """
select distinct c.relname from pg_locks l join pg_class c on c.oid = l.relation
join pg_namespace n on n.oid = c.relnamespace and n.nspname = 'duewheel'
where l.pid = pg_backend_pid() and l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
"""


@pytest.mark.owner
def test_an_upgrade_of_functions_blocks_readers_of_three_views(
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
    assert ", ".join(f"`{name}`" for name in sorted(taken)) in " ".join(PRODUCTION.split())


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

    (erasing,) = (block for block in examples(PRODUCTION, "sql") if block.startswith("with asked"))
    with connected(broker.dsn) as connection:
        for message_id in (waits, far, moved_to, released):
            ask(connection, re.sub(r"[0-9a-f]{44}", message_id, erasing))
        for table in ("duewheel.message", "duewheel.far_message"):
            kept = ask(connection, f"select body, properties from {table} where body <> %s", b"")
            assert {(bytes(body), named) for body, named in kept} <= {(b"of another", None)}
            assert ask(connection, f"select 1 from {table} where body = %s", b"")
    batch = group.receive()
    assert sorted(bodies(batch)) == [b"", b"of another"]
    assert {message.message_id for message in batch} == {released, other.message_id}
    group.ack(batch)
