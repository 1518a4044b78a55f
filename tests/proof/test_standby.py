"""A physical copy of the cluster is the same cluster: a promoted standby, and a recovery to a point in time.

Transaction ids and snapshots mean the same there, so nothing is rebased, and what was committed and had
reached the copy comes exactly once. Under traffic the faults of ``tests/chaos`` show it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg2
import pytest
from click.testing import CliRunner
from tests.acting import AT_ONCE, DAY, HOUR, bodies, taken
from tests.conftest import execute
from tests.servers import base_backup, copied_server, own_folder
from tests.turning import turning
from tests.waiting import PATIENCE_SECONDS, beside, connected, until

from duewheel.cli.main import main
from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.spark.look_reader import LookReader
from duewheel.spark.read_options import LookRead
from duewheel.store import Broker, DueWheelError, Message, RecallOutcome

REPLICATING = {"wal_level": "replica", "max_wal_senders": 4, "hot_standby": "on"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for servers."""
    folder = Path(tempfile.mkdtemp(prefix="duewheel-copies-"))
    yield folder
    shutil.rmtree(folder)


def looked_at(dsn: str) -> set[bytes]:
    """The bodies of all that Spark's readers find in the topic without a lease."""
    reader = LookReader(LookRead.of({"dsn": dsn, "topic": "t"}), ("body",))
    return {
        body
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for body in batch["body"].to_pylist()
    }


def assert_refused_in_one_line(dsn: str, *command: str) -> None:
    """A standby refuses what writes, and the command line says whom to ask instead."""
    result = CliRunner().invoke(main, [*command, "--dsn", dsn])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the database is read-only here")
    assert "give the address of the primary" in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def until_caught_up(primary_dsn: str, standby_dsn: str) -> None:
    """Returns once the standby has replayed all that the primary has written by now."""
    ((reached,),) = execute(primary_dsn, "select pg_current_wal_insert_lsn()::text")
    replayed = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
    until(lambda: execute(standby_dsn, replayed, reached) == [(True,)], "the standby")


@pytest.mark.long
def test_x14_a_recovery_to_an_instant_has_the_state_of_then(folder: Path) -> None:
    archive = own_folder(folder / "archive")
    settings = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f", "wal_level": "replica"}
    ids: dict[bytes, str] = {}
    with EmbeddedPostgres(folder / "original", settings=settings) as original:
        dsn = original.ensure_database("duewheel")
        with Broker(dsn) as broker:
            broker.upgrade()
            broker.create_topic("t", queues=1, granularity=timedelta(milliseconds=1))
            base_backup(original, folder / "recovered", "--wal-method=none")
            consumer = broker.consumer("t", "g")

            def send(name: str, delay: timedelta = AT_ONCE) -> None:
                ids[name.encode()] = broker.send("t", name, delay=delay).message_id

            send("acked before")
            consumer.ack(consumer.receive())
            send("leased before")
            held = consumer.receive(invisible=HOUR)
            send("waiting", HOUR)
            send("recalled before", DAY)
            assert broker.recall(ids[b"recalled before"]).outcome is RecallOutcome.RECALLED
            send("recalled after", DAY)
            straggler = psycopg2.connect(dsn)
            broker.send("t", "straggler", delay=AT_ONCE, connection=straggler)
            never = psycopg2.connect(dsn)
            broker.send("t", "committed after", delay=AT_ONCE, connection=never)
            send("released before")
            broker.tick("t")
            straggler.commit()
            straggler.close()
            ((target,),) = execute(dsn, "select clock_timestamp()::text")
            time.sleep(0.05)

            never.commit()
            never.close()
            send("sent after")
            consumer.ack(held)
            assert broker.recall(ids[b"recalled after"]).outcome is RecallOutcome.RECALLED
            until(lambda: any(m.body == b"released before" for m in take(broker)), "what was released")
            ((segment,),) = execute(dsn, "select pg_walfile_name(pg_switch_wal())")
            until(lambda: (archive / str(segment)).exists(), "the archive")
            until(
                lambda: (
                    execute(dsn, "select last_archived_wal >= %s from pg_stat_archiver", segment) == [(True,)]
                ),
                "the archive",
            )
        with (folder / "recovered" / "postgresql.auto.conf").open("a") as configuration:
            configuration.write(
                f"restore_command = 'cp {archive}/%f %p'\narchive_mode = off\n"
                f"recovery_target_time = '{target}'\nrecovery_target_action = 'promote'\n"
            )
        (folder / "recovered" / "recovery.signal").touch()
        with copied_server(folder / "recovered", original, dsn) as recovered:
            recovered.wait_until_ready(promoted=True)
            # By when the lease has ended and what waited is due.
            later = datetime.now(UTC) + 2 * HOUR
            with Broker(recovered.dsn, clock=lambda: later) as broker:
                assert not broker.rebase().rebased
                came: Counter[bytes] = Counter()
                while batch := take(broker):
                    came.update(message.body for message in batch)
                assert came == {b"leased before": 1, b"waiting": 1, b"straggler": 1, b"released before": 1}
                assert broker.find(ids[b"sent after"]) is None
                recalled = {
                    name: broker.recall(identity).outcome
                    for name, identity in ids.items()
                    if b"recalled" in name
                }
                assert set(recalled.values()) == {RecallOutcome.RECALLED}
                assert broker.history(ids[b"acked before"])[-1].state == "Acked"


@pytest.mark.long
def test_x14_a_promoted_standby_continues_from_its_own_instant(folder: Path) -> None:
    with EmbeddedPostgres(folder / "primary", settings=REPLICATING) as primary:
        dsn = primary.ensure_database("duewheel")
        with Broker(dsn) as broker:
            broker.upgrade()
            broker.create_topic("t", queues=1)
            base_backup(primary, folder / "standby", "--write-recovery-conf", "--wal-method=stream")
            with copied_server(folder / "standby", primary, dsn) as standby:
                standby.wait_until_ready(promoted=False)
                kept = broker.send("t", b"kept", delay=HOUR)
                recalled = broker.send("t", b"recalled", delay=HOUR)
                broker.send("t", b"acked", delay=AT_ONCE)
                until_caught_up(dsn, standby.dsn)
                execute(standby.dsn, "select pg_wal_replay_pause()")
                until(
                    lambda: execute(standby.dsn, "select pg_get_wal_replay_pause_state()") == [("paused",)],
                    "the pause",
                )
                ahead = broker.send("t", b"ahead", delay=HOUR)
                assert broker.recall(recalled.message_id).outcome is RecallOutcome.RECALLED
                assert bodies(take(broker)) == [b"acked"]

                # Looked at as of the instant that it has replayed.
                assert looked_at(standby.dsn) == {b"kept", b"recalled", b"acked"}
                with Broker(standby.dsn) as looking:
                    found = looking.find(recalled.message_id)
                    assert found is not None
                    assert not found.recalled
                    assert looking.find(ahead.message_id) is None
                    assert looking.history(kept.message_id)[-1].state == "Timing"
                    (topic,) = looking.stats().topics
                    assert topic.waiting == 3
                    with pytest.raises(DueWheelError, match="read-only") as refused:
                        # A group that is new there: one with nothing to receive has nothing to write either.
                        looking.consumer("t", "new").receive()
                    assert "\n" not in str(refused.value)
                assert_refused_in_one_line(
                    standby.dsn, "message", "send", "x", "--topic", "t", "--delay", "1s"
                )
                assert_refused_in_one_line(standby.dsn, "db", "upgrade")

                # A failover takes what had reached it, replayed or not.
                is_received = "select pg_last_wal_receive_lsn() >= %s::pg_lsn"
                ((written,),) = execute(dsn, "select pg_current_wal_flush_lsn()::text")
                until(lambda: execute(standby.dsn, is_received, written) == [(True,)], "the standby")
                execute(standby.dsn, "select pg_promote()")
                standby.wait_until_ready(promoted=True)
                assert looked_at(standby.dsn) == {b"kept", b"acked", b"ahead"}
                with Broker(standby.dsn, clock=lambda: datetime.now(UTC) + DAY) as promoted:
                    assert not promoted.rebase().rebased
                    came = bodies(taken(promoted.consumer("t", "g")))
                assert sorted(came) == [b"ahead", b"kept"]


@pytest.mark.long
def test_x14_while_a_synchronous_standby_is_away_writes_wait(folder: Path) -> None:
    """Nothing is lost or early; who gives up waiting has sent all the same."""
    with EmbeddedPostgres(folder / "primary", settings=REPLICATING) as primary:
        dsn = primary.ensure_database("duewheel")
        waits = "select count(*)::int from pg_stat_activity where wait_event = 'SyncRep'"

        def synchronous(names: str) -> None:
            execute(dsn, f"alter system set synchronous_standby_names = '{names}'")
            execute(dsn, "select pg_reload_conf()")
            shown = "select current_setting('synchronous_standby_names')"
            until(lambda: execute(dsn, shown) == [(names,)], "the setting")

        with Broker(dsn) as broker, Broker(dsn) as beside_it:
            broker.upgrade()
            broker.create_topic("t", queues=1)
            broker.consumer("t", "g")
            waiting = broker.send("t", b"waiting", delay=HOUR)
            with turning(broker), beside() as start:
                synchronous("away")
                sent = start(lambda: broker.send("t", b"sent", delay=AT_ONCE))
                try:
                    until(lambda: execute(dsn, waits)[0][0] > 0, "the send to wait")
                    # Whoever asks is answered, also of what is not confirmed by the standby.
                    assert beside_it.find(waiting.message_id) is not None
                    assert not sent.done()
                finally:
                    synchronous("")
                receipt = sent.result(PATIENCE_SECONDS)
                until(lambda: bodies(take(broker)) == [b"sent"], "what was sent")
            assert broker.history(receipt.message_id)[-1].state == "Acked"
            assert broker.history(waiting.message_id)[-1].state == "Timing"
            synchronous("away")
            with connected(dsn, autocommit=False) as impatient:
                given_up = broker.send("t", b"given up", delay=AT_ONCE, connection=impatient)
                with beside() as start:
                    committed = start(impatient.commit)
                    until(lambda: execute(dsn, waits)[0][0] > 0, "the commit to wait")
                    impatient.cancel()
                    committed.result(PATIENCE_SECONDS)
            synchronous("")
            came = until(lambda: take(broker), "what was given up")
            assert [message.message_id for message in came] == [given_up.message_id]


def take(broker: Broker) -> list[Message]:
    """The ready messages, acked at once."""
    consumer = broker.consumer("t", "g")
    batch = consumer.receive(100, wait=timedelta(milliseconds=100))
    if batch:
        consumer.ack(batch)
    return list(batch)
