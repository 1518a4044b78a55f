"""An upgrade to the next version: while the broker is in use, and with programs of this version beside it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, bodies, rows, send, state, taken
from tests.clock import Clock
from tests.logins import SUPERUSER, as_user
from tests.next_version import REVISION, NextVersion
from tests.waiting import ask, beside, connected, until, until_blocked, until_somebody_waits

from duewheel.store import DueWheelError, RecallOutcome, SendOutcome
from duewheel.store.broker import Broker
from duewheel.store.database import migration, schema, schema_state
from duewheel.store.database.connections import DriverConnection


@pytest.fixture
def next_version(tmp_path: Path) -> NextVersion:
    """A program of the next version."""
    return NextVersion(tmp_path)


def urgent(dsn: str, topic: str, delay: timedelta, now: datetime | None = None) -> None:
    """A program of the next version sends a message with a priority."""
    with connected(dsn) as connection:
        ask(connection, "select duewheel.send_urgent(%s, 'urgent', %s, 7::smallint, %s)", topic, delay, now)


@pytest.mark.slow
@pytest.mark.owner
def test_programs_of_this_version_go_on_beside_those_of_the_next(
    timed_broker: Broker, clock: Clock, next_version: NextVersion
) -> None:
    """With all that was sent, leased and planned before, and with what the others send."""
    broker = timed_broker
    broker.create_topic("orders", queues=1, max_delay=3_660 * DAY)
    broker.create_topic("steps", queues=1, message_type="FIFO")
    cancel, ship = broker.consumer("orders", "cancel"), broker.consumer("steps", "ship")
    send(broker, "acked", "held", "failed", topic="orders")
    acked, held, failed = cancel.receive(3, invisible=12 * HOUR)
    cancel.ack([acked])
    cancel.nack([failed], delay=HOUR)
    near = broker.send("orders", b"near", delay=DAY, key="near", idempotency_key="once")
    far = broker.send("orders", b"far", delay=3_650 * DAY, key="far")
    broker.send_many("steps", [{"body": body, "message_group": "a"} for body in ("a0", "a1")])
    (step,) = ship.receive(1, invisible=12 * HOUR)
    broker.create_schedule("nightly", "orders", b"tick", every=DAY, start_at=clock() + 2 * DAY)

    upgrades = [next_version.start_upgrade(broker.dsn) for _ in range(3)]
    for upgrade in upgrades:
        upgrade.finish()

    assert broker.check().revision == REVISION
    assert migration.upgrade(broker.dsn).revision == REVISION, "left alone"
    assert rows(broker, "select distinct priority from duewheel.any_message") == [(0,)]
    cancel.ack([held])
    ship.ack([step])
    assert bodies(taken(ship)) == [b"a1"]
    again = broker.send("orders", b"near", delay=DAY, idempotency_key="once")
    assert (again.outcome, again.message_id) == (SendOutcome.DUPLICATE, near.message_id)
    (found,) = broker.find_key("orders", "far")
    assert (found.message_id, found.deliver_at) == (far.message_id, far.deliver_at)
    assert state(broker, failed.message_id, "cancel") == "WaitingRetry"
    moved = broker.reschedule(far.message_id, delay=3_000 * DAY)
    late = broker.send("orders", b"recalled", delay=300 * DAY)
    assert broker.recall(late.message_id).outcome is RecallOutcome.RECALLED
    urgent(broker.dsn, "orders", DAY, clock())
    came = []
    for _ in range(4):
        clock.advance(HOUR if not came else DAY)
        broker.advance_schedules()
        broker.maintain()
        came.append(bodies(taken(cancel)))
    broker.delete_schedule("nightly")
    clock.set(moved.deliver_at - MINUTE)
    came.append(bodies(taken(cancel)))
    clock.advance(MINUTE)
    came.append(bodies(taken(cancel)))
    assert came == [[b"failed"], [b"near", b"urgent"], [b"tick"], [b"tick"], [], [b"far"]]
    broker.rewind("orders", "cancel", "latest")
    assert [group.dead for topic in broker.stats().topics for group in topic.groups] == [0, 0]


#: What any program tries again: it could not be serialized, was the victim of a deadlock, or was held up by
#: the upgrade for over a second in the midst of a receive, so that another one went on.
RETRYABLE = ("40001", "40P01")
SEND = "select duewheel.send('traffic', %s::text, delay => %s)"
#: While its tables change, an upgrade holds up others as long as it takes to apply it.
PATIENCE = "set lock_timeout = '60s'"


class Traffic:
    """Programs that send, receive and ack, in SQL and in Python, each on connections of its own."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.ended = threading.Event()
        self.received_all = threading.Event()
        self.sent: Counter[str] = Counter()
        self.far: Counter[str] = Counter()
        self.came: Counter[str] = Counter()

    def retrying(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (psycopg2.Error, DueWheelError) as error:
            if (
                getattr(error, "pgcode", None) not in RETRYABLE
                and getattr(error, "sqlstate", None) not in RETRYABLE
            ):
                raise

    def send(self, name: str, delay: timedelta, seen: Counter[str]) -> None:
        def two(connection: DriverConnection, body: str) -> None:
            ask(connection, SEND, body, delay)
            # A caller that looks at something between.
            ask(connection, "select count(*) from duewheel.waiting where topic = 'none'")
            ask(connection, SEND, f"{body}+", delay)
            connection.commit()
            seen.update((body, f"{body}+"))

        with connected(self.dsn, autocommit=False) as connection:
            ask(connection, PATIENCE)
            connection.commit()
            for number in count():
                if self.ended.is_set():
                    return
                try:
                    self.retrying(lambda: two(connection, f"{name} {number}"))  # noqa: B023 -- called within this round
                finally:
                    connection.rollback()

    def send_many(self, name: str, delay: timedelta, seen: Counter[str]) -> None:
        def some(broker: Broker, names: list[str]) -> None:
            broker.send_many("traffic", [{"body": body, "delay": delay} for body in names])
            seen.update(names)

        with Broker(self.dsn) as broker:
            for number in count():
                if self.ended.is_set():
                    return
                names = [f"{name} {number} {place}" for place in range(3)]
                self.retrying(lambda: some(broker, names))  # noqa: B023 -- called within this round

    def receive_in_sql(self) -> None:
        with connected(self.dsn) as connection:
            ask(connection, PATIENCE)

            def some() -> None:
                rows = ask(
                    connection,
                    "select receipt_handle, convert_from(body, 'UTF8') from duewheel.receive("
                    "'traffic', 'g', max_messages => 50, invisible => '12 hours')",
                )
                if rows:
                    self.came.update(body for _, body in rows)
                    self.retrying(
                        lambda: ask(connection, "select duewheel.ack(%s)", [handle for handle, _ in rows])
                    )

            while not self.received_all.is_set():
                self.retrying(some)

    def receive(self) -> None:
        with Broker(self.dsn) as broker:
            consumer = broker.consumer("traffic", "g")

            def some() -> None:
                if batch := consumer.receive(50, invisible=12 * HOUR):
                    self.came.update(message.body.decode() for message in batch)
                    self.retrying(lambda: consumer.ack(batch))

            while not self.received_all.is_set():
                self.retrying(some)


@pytest.mark.slow
def test_an_upgrade_under_traffic_loses_and_doubles_nothing(dsn: str, next_version: NextVersion) -> None:
    """Programs of this version go on through the upgrade with the statements they know."""
    with Broker(dsn) as broker:
        broker.create_topic("traffic", max_delay=400 * DAY, granularity=timedelta(milliseconds=1))
        broker.consumer("traffic", "g")
    traffic = Traffic(dsn)
    soon = timedelta(milliseconds=20)

    def has_come(more: int) -> bool:
        return traffic.came.total() >= more

    with beside() as start:
        receivers = [start(traffic.receive_in_sql), start(traffic.receive)]
        senders = [start(lambda n=n: traffic.send(f"near {n}", soon, traffic.sent)) for n in range(2)]
        senders += [
            start(lambda: traffic.send_many("near many", soon, traffic.sent)),
            start(lambda: traffic.send("far", 300 * DAY, traffic.far)),
            start(lambda: traffic.send_many("far many", 30 * DAY, traffic.far)),
        ]
        try:
            until(lambda: has_come(100) or any(f.done() for f in (*senders, *receivers)), "traffic")
            next_version.upgrade(dsn)
            more = traffic.came.total() + 100
            until(lambda: has_come(more) or any(f.done() for f in (*senders, *receivers)), "more traffic")
            urgent(dsn, "traffic", AT_ONCE)
            traffic.sent["urgent"] += 1
        finally:
            traffic.ended.set()
            try:
                for sender in senders:
                    sender.result()
                until(
                    lambda: has_come(traffic.sent.total()) or any(f.done() for f in receivers),
                    "what was sent",
                )
            finally:
                traffic.received_all.set()
        for receiver in receivers:
            receiver.result()
    assert traffic.came == traffic.sent
    with Broker(dsn) as broker:
        assert broker.check().revision == REVISION
        assert not broker.consumer("traffic", "g").receive(1_000)
        (numbers,) = (topic for topic in broker.stats().topics if topic.topic == "traffic")
        assert (numbers.waiting, numbers.waiting_is_exact) == (traffic.far.total(), True)


#: What a transaction has done that is still open.
OPEN = {
    "send": "select duewheel.send('orders', 'mine', delay => '1 day')",
    "receive": "select * from duewheel.receive('orders', 'cancel')",
    "waiting": "select count(*) from duewheel.waiting",
    "history": (
        "select * from duewheel.history(duewheel.message_id(1, 0::smallint, '2026-01-05 09:30+00', 1))"
    ),
}


@pytest.fixture
def orders(broker: Broker) -> Broker:
    """A broker with the topic and the group that ``OPEN`` names."""
    broker.create_topic("orders")
    broker.consumer("orders", "cancel")
    return broker


@pytest.mark.slow
def test_x18_a_waiting_upgrade_holds_up_no_session(orders: Broker, next_version: NextVersion) -> None:
    """Nobody queues up behind what it waits for; it goes on when the transactions have ended."""
    with ExitStack() as stack, connected(orders.dsn) as other:
        ask(other, "set lock_timeout = '1s'")
        mine = [stack.enter_context(connected(orders.dsn, autocommit=False)) for _ in OPEN]
        for session, statement in zip(mine, OPEN.values(), strict=True):
            ask(session, statement)
        upgrade = next_version.start_upgrade(orders.dsn)
        for session in mine:
            while not (upgrade.is_over() or upgrade.is_held_up()):
                for statement in OPEN.values():
                    ask(other, statement)
            assert not upgrade.is_over(), upgrade.log
            session.commit()
        upgrade.finish()
        for statement in OPEN.values():
            ask(other, statement)
    assert schema_state.check(orders.dsn).revision == REVISION


@pytest.mark.slow
def test_x18_an_upgrade_that_loses_a_deadlock_tries_again(orders: Broker, next_version: NextVersion) -> None:
    """Mostly it gives up before the server looks for deadlocks, which here it does at once."""
    with (
        connected(as_user(orders.dsn, SUPERUSER)) as superuser,
        connected(orders.dsn) as before,
        connected(orders.dsn, autocommit=False) as mine,
        beside() as start,
    ):
        take_the_lock = f"select pg_advisory_xact_lock({migration.UPGRADE_LOCK})"
        ask(before, "begin")
        ask(before, take_the_lock)
        ask(mine, OPEN["send"])
        ask(superuser, f"alter database {superuser.info.dbname} set deadlock_timeout = '1ms'")
        upgrade = next_version.start_upgrade(orders.dsn)
        until_somebody_waits(orders.dsn)
        # Of the same queue: it waits for the upgrade, which is going to wait for its tables.
        waiting = start(lambda: ask(mine, take_the_lock))
        until_blocked(orders.dsn, mine.get_backend_pid())
        ask(before, "rollback")
        waiting.result()
        assert not upgrade.is_over(), upgrade.log
        mine.commit()
        upgrade.finish()
    assert schema_state.check(orders.dsn).revision == REVISION


@pytest.mark.owner
@pytest.mark.parametrize("opened", ["send", "receive"])
def test_x18_functions_are_applied_during_an_open_transaction(
    orders: Broker, caplog: pytest.LogCaptureFixture, opened: str
) -> None:
    """An upgrade that changes no table waits for none of these."""
    with connected(orders.dsn, autocommit=False) as mine, connected(orders.dsn) as other:
        ask(other, "update duewheel.broker set functions_checksum = 'older'")
        ask(mine, OPEN[opened])
        migration.upgrade(orders.dsn)
        assert "waits for open transactions" not in caplog.text
        for statement in OPEN.values():
            ask(other, statement)
        mine.commit()
    assert schema_state.check(orders.dsn).revision == schema.newest_revision()
