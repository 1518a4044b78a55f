"""The server ends, is away, or has no connection left."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path

import psycopg2
import pytest
from tests.chaos.arena import SETTINGS, Arena
from tests.chaos.fault import fault
from tests.chaos.traffic import GROUPS, TOPIC
from tests.pooler import pooler, through
from tests.servers import Server, base_backup, programs
from tests.waiting import ask, connected, until

from duewheel.store.broker import Broker
from duewheel.store.values.errors import DueWheelError


def _again_and_again(arena: Arena, how: signal.Signals) -> str:
    times = 0
    for _ in arena.rounds():
        arena.server.stop(how)
        arena.server.start_again()
        times += 1
    return f"{times} times, away for as long as its start took"


@fault("server-restarted", "Postgres is restarted (fast)")
def server_restarted(arena: Arena) -> str:
    """As for an update."""
    return _again_and_again(arena, signal.SIGINT)


@fault("server-killed", "Postgres is killed, and recovers", leases_may_be_lost=True, fsync="on")
def server_killed(arena: Arena) -> str:
    """Every transaction that was not committed is gone."""
    return _again_and_again(arena, signal.SIGKILL)


@fault(
    "power-lost",
    "Power lost with synchronous_commit off",
    commits_may_be_lost=True,
    synchronous_commit="off",
    wal_writer_delay="1s",
)
def power_lost(arena: Arena) -> str:
    """The commits of the last seconds are gone; what is left goes on as one history."""
    return _again_and_again(arena, signal.SIGKILL)


@fault(
    "server-away",
    "Postgres is stopped at once (immediate) and away for a while",
    leases_may_be_lost=True,
    full_seconds=300,
)
def server_away(arena: Arena) -> str:
    """Everything that comes due meanwhile comes late."""
    arena.receive_more()
    arena.server.stop(signal.SIGQUIT)
    time.sleep(arena.seconds)
    arena.server.start_again()
    return f"away for {arena.seconds:g} s and as long as its start took"


@fault(
    "disk-full",
    "No room on the server's disk, again and again",
    leases_may_be_lost=True,
    needs=("root",),
    disk_mib=400,
    max_wal_size="64MB",
    wal_keep_size="0",
)
def disk_full(arena: Arena) -> str:
    """Whatever needs room fails, the server may end, and what was committed stays."""
    times, refused = 0, 0
    disk = arena.directory / "disk"
    for _ in arena.rounds():
        before = arena.crew.failures()
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        until(
            lambda before=before: arena.crew.failures() > before,
            "something to fail for want of room",
            pause_seconds=0.1,
        )
        time.sleep(arena.seconds / 4)
        refused += arena.crew.failures() - before
        ballast.unlink(missing_ok=True)
        if not arena.server.is_running():
            arena.server.start_again()
        times += 1
    return f"{times} times, in which {refused} calls failed"


def _on_backends(arena: Arena, call: str) -> str:
    hits = 0
    victims = (
        f"select {call}(pid) from pg_stat_activity where datname = current_database()"
        " and backend_type = 'client backend' and pid <> pg_backend_pid() and random() < 0.2"
    )
    with connected(arena.dsn) as connection:
        for _ in arena.rounds(pause_seconds=0.05):
            hits += len(ask(connection, victims))
    return f"{hits} backends"


@fault("backends-terminated", "A stream of pg_terminate_backend")
def backends_terminated(arena: Arena) -> str:
    """Wherever they are, wheels included."""
    return _on_backends(arena, "pg_terminate_backend")


@fault("backends-cancelled", "A stream of pg_cancel_backend")
def backends_cancelled(arena: Arena) -> str:
    """Any statement may end with an error."""
    return _on_backends(arena, "pg_cancel_backend")


@fault("pooled", "Through PgBouncer by transaction, while backends are terminated", needs=("pgbouncer",))
def pooled(arena: Arena) -> str:
    """Sessions are shared by programs, and a program's next transaction has another one."""
    program = Path("/usr/sbin/pgbouncer")
    roles = ("sender", "recaller", "consumer", "worker", "ordered_sender", "ordered_consumer", "wheel")
    with pooler(program, arena.directory / "pooler", arena.dsn) as port:
        further = [
            arena.crew.start(role, through(arena.dsn, port), {"DUEWHEEL_CHAOS_POOLED": "1"}) for role in roles
        ]
        done = _on_backends(arena, "pg_terminate_backend")
        for process in further:
            arena.crew.kill(process)
    return f"{len(roles)} programs, {done}"


@fault("no-connections", "No connection is left", max_connections=60)
def no_connections(arena: Arena) -> str:
    """Others take all that are free, and give them back."""
    taken = 0
    for _ in arena.rounds():
        with ExitStack() as all_of_them:
            with suppress(psycopg2.OperationalError):
                while True:
                    all_of_them.enter_context(closing(psycopg2.connect(arena.dsn)))
                    taken += 1
            time.sleep(arena.seconds / 4)
    return f"{taken} taken, for {arena.seconds / 4:.1f} s each time"


@fault("sent-to-a-standby", "Sends and recalls at a hot standby", max_wal_senders=4, hot_standby="on")
def sent_to_a_standby(arena: Arena) -> str:
    """Each is refused with an error that says why."""
    data = arena.directory / "standby"
    base_backup(arena.server, data, "--write-recovery-conf", "--wal-method=stream")
    standby = Server(programs(), data, arena.dsn, **SETTINGS)
    refused = 0
    try:
        standby.wait_until_ready(promoted=False)
        with Broker(arena.dsn) as primary, Broker(standby.dsn) as broker:
            for _ in arena.rounds():
                waiting = primary.send(TOPIC, b"", delay=timedelta(hours=1), key="waiting").message_id
                until(lambda waiting=waiting: broker.find(waiting) is not None, "it to reach the standby")  # type: ignore[misc]
                for call in (
                    lambda: broker.send(TOPIC, b"nowhere", delay=timedelta(0)),
                    lambda waiting=waiting: broker.recall(waiting),  # type: ignore[misc]
                    lambda: broker.consumer(TOPIC, GROUPS[0]).receive(),
                ):
                    with pytest.raises(DueWheelError, match="standby"):
                        call()
                    refused += 1
                primary.recall(waiting)
    finally:
        standby.stop()
    return f"{refused} calls"


@fault(
    "failover",
    "Failover to a standby that lacks the last commits",
    commits_may_be_lost=True,
    max_wal_senders=4,
    hot_standby="on",
)
def failover(arena: Arena) -> str:
    """What only the lost server had is gone, answered or not; what is left goes on as one history."""
    data = arena.directory / "standby"
    base_backup(arena.server, data, "--write-recovery-conf", "--wal-method=stream")
    standby = Server(programs(), data, arena.dsn, **SETTINGS)
    try:
        standby.wait_until_ready(promoted=False)
        for _ in arena.rounds():
            pass
    finally:
        standby.stop()
    lacked = arena.crew.receives()
    for _ in arena.rounds():
        pass
    lacked = arena.crew.receives() - lacked
    arena.server.fail_over(data)
    return f"once; the standby lacked the leases of {lacked} receives, and what was sent and acked meanwhile"


@fault(
    "failover-in-step",
    "Failover to a standby that has confirmed every commit",
    leases_may_be_lost=True,
    max_wal_senders=4,
    hot_standby="on",
)
def failover_in_step(arena: Arena) -> str:
    """Whatever was answered is there. The commit of a receive waits for nobody."""
    data = arena.directory / "in-step"
    base_backup(arena.server, data, "--write-recovery-conf", "--wal-method=stream")
    standby = Server(programs(), data, arena.dsn, **SETTINGS)
    with connected(arena.dsn) as connection:
        try:
            standby.wait_until_ready(promoted=False)
            ask(connection, "alter system set synchronous_standby_names = '*'")
            ask(connection, "select pg_reload_conf()")
            is_in_step = "select 1 from pg_stat_replication where sync_state = 'sync'"
            until(lambda: ask(connection, is_in_step), "the standby to be in step", pause_seconds=0.05)
            for _ in arena.rounds():
                pass
            # Nothing is confirmed from now on, so nothing that only the primary has is answered.
        finally:
            standby.stop()
        waiting = "select 1 from pg_stat_activity where wait_event = 'SyncRep'"
        until(lambda: ask(connection, waiting), "commits to wait", pause_seconds=0.05)
    received = arena.crew.receives()
    arena.server.fail_over(data)
    return f"once, after {received} receives"
