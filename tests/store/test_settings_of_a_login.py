"""Settings of a login or a database, each under a short round of everything.

An administrator may give every session of a login other defaults than those of Postgres. The broker's own
connections work all the same, also where a pooler shares sessions (``listen=False``) and nothing that is set
for a session stays.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from threading import Event

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn
from tests.acting import HOUR, SECOND, bodies, taken
from tests.conftest import execute
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected

from duewheel.store.broker import Broker
from duewheel.store.consuming.ready_messages import ready_messages
from duewheel.store.operations.reporting import claim_report
from duewheel.store.values.errors import NotAllowed, WrongIsolationLevel
from duewheel.store.values.messages import RecallOutcome, SendOutcome
from duewheel.store.values.retry_policy import RetryPolicy

NOW = timedelta(0)
WAIT = timedelta(seconds=20)
FAR = datetime.now(UTC).replace(microsecond=678_901) + timedelta(days=3_000)


def set_for_all(dsn: str, *settings: str) -> None:
    """Gives all sessions of the database that begin from now on other defaults."""
    name = parse_dsn(dsn)["dbname"]
    for setting in settings:
        execute(dsn, f"alter database {name} set {setting}")


def play(broker: Broker) -> None:
    """A short round of everything, without a wheel."""
    broker.create_topic("t", max_delay=timedelta(days=3_650))
    group = broker.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=1))

    # Sent, each with what is to be read again.
    sent = broker.send("t", {"n": 1}, deliver_at=FAR, key="k", tag="a", properties={"p": "ü\\'\""})
    assert sent.deliver_at == FAR
    ((page,),) = [broker.list_messages("t").messages]
    assert (page.message_id, page.deliver_at, page.key, page.tag) == (sent.message_id, FAR, "k", "a")
    (found,) = broker.find_key("t", "k")
    assert (found.message_id, found.deliver_at) == (sent.message_id, FAR)
    again = broker.send("t", b"x", delay=HOUR, key="k", on_conflict="keep")
    assert (again.message_id, again.outcome) == (sent.message_id, SendOutcome.KEPT)
    many = broker.send_many("t", [{"body": b"%d" % n, "delay": HOUR, "key": f"m{n}"} for n in range(3)])
    assert len({receipt.message_id for receipt in many}) == 3

    # Moved and taken back.
    moved = broker.reschedule(many[0].message_id, deliver_at=FAR)
    assert moved.deliver_at == FAR
    assert broker.recall(moved.message_id) is RecallOutcome.RECALLED
    assert broker.recall_key("t", "m1") is RecallOutcome.RECALLED
    assert broker.recall_many("t", key_prefix="m", dry_run=True).matched == 1
    assert broker.recall_many("t", key_prefix="m").recalled == 1
    assert broker.history(moved.message_id)[-1].state == "Deleted"

    # Received and answered.
    body = bytes(range(256))
    broker.send("t", body, delay=NOW, tag="a", properties={"p": [1, None, {"q": "1e400"}]})
    broker.tick("t")
    assert [ready.tag for ready in ready_messages(broker, "t", "g", 10)] == ["a"]
    batch = group.receive()
    assert bodies(batch) == [body]
    assert batch[0].properties == {"p": [1, None, {"q": "1e400"}]}
    group.change_invisible_duration(batch, HOUR)
    group.nack(batch, NOW, reason="ü")
    (message,) = again = group.receive(wait=WAIT)
    assert message.attempt == 2
    group.nack(again, reason="dead")
    (dead,) = broker.dead_letters("g")
    assert (dead.reason, dead.attempt) == ("dead", 2)
    assert broker.redrive("g").redriven == 1
    redriven = group.receive(wait=WAIT)
    assert bodies(redriven) == [body]
    group.ack(redriven)
    assert taken(group) == []

    # Looked after.
    broker.add_schedule("s", "t", b"s", cron="0 0 1 1 *", timezone="Europe/Vienna", tag="s")
    (schedule,) = broker.schedules()
    assert schedule.cron == "0 0 1 1 *"
    broker.pause_schedule("s")
    broker.resume_schedule("s")
    broker.remove_schedule("s")
    broker.update_topic("t", retention=2 * HOUR)
    broker.update_settings(retention_bytes=2**40)
    broker.maintain()
    (topic,) = broker.stats().topics
    assert (topic.topic, len(broker.list_messages("t").messages)) == ("t", 1)
    assert claim_report(broker, timedelta(0)) is not None
    assert broker.check() == broker.upgrade()
    assert not broker.rebase().rebased
    broker.delete_group("g")
    broker.delete_topic("t")
    assert broker.topics() == []


def play_with_a_wheel(broker: Broker, listen: bool) -> None:
    """A message that a wheel releases, and one of a schedule."""
    broker.create_topic("w")
    group = broker.consumer("w", "g")
    stop = Event()
    with beside() as start:
        turning = start(lambda: broker.wheel(listen=listen).run(stop))
        broker.send("w", b"by the wheel", delay=SECOND / 10)
        try:
            batch = group.receive(wait=WAIT)
        finally:
            stop.set()
        turning.result(PATIENCE_SECONDS)
    assert bodies(batch) == [b"by the wheel"]
    group.ack(batch)


TRANSACTIONS = [
    (),
    ("default_transaction_isolation = 'repeatable read'",),
    ("default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on"),
    ("default_transaction_read_only = on",),
]


@pytest.mark.parametrize("listen", [True, False])
@pytest.mark.parametrize("settings", TRANSACTIONS, ids="; ".join)
def test_the_brokers_own_connections_do_not_go_by_the_defaults(
    dsn: str, settings: tuple[str, ...], listen: bool
) -> None:
    set_for_all(dsn, *settings)
    with Broker(dsn, listen=listen) as broker:
        play(broker)
        play_with_a_wheel(broker, listen)


def test_a_transaction_of_the_caller_is_told_which_one_is_needed(dsn: str) -> None:
    set_for_all(dsn, "default_transaction_isolation = 'repeatable read'")
    with Broker(dsn) as broker, connected(dsn, autocommit=False) as own:
        broker.create_topic("t")
        group = broker.consumer("t", "g")
        broker.send("t", b"x", delay=NOW, connection=own)
        own.commit()
        batch = group.receive(wait=WAIT)
        with pytest.raises(WrongIsolationLevel, match="BEGIN ISOLATION LEVEL READ COMMITTED"):
            group.ack(batch, connection=own)
        own.rollback()
        own.isolation_level = "read committed"
        group.ack(batch, connection=own)
        own.commit()
        with pytest.raises(psycopg2.Error, match="BEGIN ISOLATION LEVEL READ COMMITTED") as refused:
            execute(dsn, "select duewheel.recall_key('t', 'k')")
        assert refused.value.pgcode == WrongIsolationLevel.sqlstate
        # The procedure begins its own.
        execute(dsn, "call duewheel.tick('t')")


def test_a_transaction_of_the_caller_that_only_reads_stays_so(dsn: str) -> None:
    with Broker(dsn) as broker, connected(dsn) as own:
        broker.create_topic("t")
        ask(own, "set default_transaction_read_only = on")
        with pytest.raises(NotAllowed, match="read-only"):
            broker.send_many("t", [{"body": b"x", "delay": NOW}], connection=own)
        with pytest.raises(NotAllowed, match="read-only"):
            broker.send("t", b"x", delay=NOW, connection=own)
        assert broker.list_messages("t", state="all").messages == ()
