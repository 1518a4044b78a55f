"""A database of the version before: upgraded with all that is in it, and while it is in use (D19, X14).

``released/0001.sql.xz`` is a dump that the version before wrote, at revision 0001: hourly slots, one of them
ten years ahead, open leases, a retry, FIFO message groups, a recall, a schedule.
"""

from __future__ import annotations

import lzma
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path

import psycopg2
import pytest
from tests.clock import Clock
from tests.conftest import drop_database
from tests.restoring import run_program
from tests.waiting import ask, beside, connected, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store import BrokerMoved, BrokerNotUpgraded, Overtaken, RecallOutcome, SendOutcome
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database import migration, schema_state
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.messages import Message

RELEASED = Path(__file__).parent / "released" / "0001.sql.xz"
NUMBERS = count(1)
MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
#: Minutes after the dump was written: leases of a minute are over, those of twelve hours are not.
NOW = datetime(2026, 11, 21, 21, 50, tzinfo=UTC)

#: Topic, message group, queue and body of each message with its public id, as the version before knew them.
IDS = """
select t.name, coalesce(m.key, convert_from(m.body, 'UTF8')),
    duewheel.message_id(m.topic_id, m.queue, m.deliver_at, m.seq), m.deliver_at
from duewheel.message m join duewheel.topic t using (topic_id) where t.message_type <> 'RETRY'
"""
SLOTS = "select starts_at, ends_at from duewheel.slot order by starts_at"


@pytest.fixture
def released_dsn(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[str]:
    """The database of the version before, restored into this cluster."""
    name = f"released_{next(NUMBERS)}"
    dsn = postgres.ensure_database(name)
    plain = tmp_path / "released.sql"
    plain.write_bytes(lzma.decompress(RELEASED.read_bytes()))
    run_program("psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={plain}", dsn)
    yield dsn
    drop_database(postgres, name)


class Released:
    """The broker after the upgrade, under a clock, and what was known of its messages before."""

    def __init__(self, dsn: str, clock: Clock) -> None:
        with connected(dsn) as connection:
            rows = ask(connection, IDS)
            self.slots = ask(connection, SLOTS)
        self.ids: dict[str, str] = {name: message_id for _, name, message_id, _ in rows}
        self.deliver_at: dict[str, datetime] = {name: at.astimezone(UTC) for _, name, _, at in rows}
        self.clock = clock
        clock.set(NOW)
        self.broker = Broker(dsn, clock=clock)
        self.broker.upgrade()
        assert self.broker.rebase().rebased

    def take(self, topic: str, group: str) -> list[tuple[str, int]]:
        """All that is ready, acked: by key or else body, with the attempt."""
        consumer = self.broker.consumer(topic, group)
        return [(name, message.attempt) for name, message in self.taken(consumer)]

    def taken(self, consumer: Consumer) -> list[tuple[str, Message]]:
        came = []
        while batch := consumer.receive(1_000):
            consumer.ack(batch)
            for message in batch:
                name = message.key or message.body.decode()
                if name in self.ids:
                    assert message.message_id == self.ids[name], "an id never changes"
                came.append((name, message))
        return came

    def go_to(self, instant: datetime) -> None:
        """By way of the instant before, when nothing is there yet."""
        self.clock.set(instant - MICROSECOND)
        assert self.take("orders", "cancel") == []
        self.clock.set(instant)


@pytest.fixture
def released(released_dsn: str, clock: Clock) -> Iterator[Released]:
    """The database of the version before, upgraded and rebased."""
    released = Released(released_dsn, clock)
    with released.broker:
        yield released


def test_a_database_of_the_version_before_is_refused_until_it_is_upgraded(released_dsn: str) -> None:
    with Broker(released_dsn) as broker:
        with pytest.raises(BrokerNotUpgraded, match=r"at revision 0001.*`duewheel db upgrade`"):
            broker.topics()
        with pytest.raises(BrokerNotUpgraded, match="revision 0001"):
            broker.send("orders", b"", delay=HOUR)
        broker.upgrade()
        with pytest.raises(BrokerMoved, match="duewheel db rebase"):
            broker.topics()
        broker.rebase()
        assert broker.check().functions_checksum == schema_state.functions_checksum()
        assert [topic.name for topic in broker.topics()] == ["events", "orders", "steps"]
        assert [schedule.name for schedule in broker.schedules()] == ["nightly"]


@pytest.mark.parametrize("keeps_up", [True, False], ids=["upkeep", "no upkeep"])
def test_x14_all_of_the_version_before_comes_exactly_once_and_nothing_else(
    released: Released, keeps_up: bool
) -> None:
    broker = released.broker
    assert sorted(released.take("events", "mail")) == [("e1", 1), ("e2", 1), ("e3", 1)]
    assert released.take("steps", "ship") == [("a0", 2), ("a1", 1), ("a2", 1)]
    assert sorted(released.take("orders", "cancel")) == [
        ("dead", 2),
        ("half acked 1", 2),
        ("half acked 2", 2),
    ]

    leases_end = datetime(2026, 11, 22, 9, 46, 42, tzinfo=UTC)
    retry = datetime(2026, 12, 21, 21, 46, 41, 304003, tzinfo=UTC)
    due = [("near", released.deliver_at["near"]), ("leased", leases_end), ("retried", retry)]
    due += [
        (name, released.deliver_at[name])
        for name in ("in a day", "idem", "in three days", "in two months", "in a year", "in ten years")
    ]
    for name, instant in sorted(due, key=lambda each: each[1]):
        if name == "leased":
            released.clock.set(instant - SECOND)
            assert released.take("steps", "ship") == released.take("orders", "cancel") == []
            released.clock.set(instant)
            assert released.take("steps", "ship") == [("b0", 2), ("b1", 1), ("b2", 1)]
        else:
            released.go_to(instant)
        if keeps_up:
            broker.maintain()
        consumer = broker.consumer("orders", "cancel")
        ((came, message),) = released.taken(consumer)
        assert (came, message.attempt) == (name, 2 if name in ("leased", "retried") else 1)
        assert message.body == name.encode()
        if message.tag == "wait":
            assert instant - message.born_at == timedelta(days=message.properties["days"])
    released.clock.advance(3 * DAY)
    for topic, group in (("orders", "cancel"), ("steps", "ship"), ("events", "mail")):
        assert released.take(topic, group) == []
    assert [group.dead for topic in broker.stats().topics for group in topic.groups] == [0, 0, 0]


def test_every_old_message_is_found_rewound_and_recalled_after_the_upgrade(released: Released) -> None:
    broker = released.broker
    again = broker.send("orders", b"idem", delay=DAY, idempotency_key="once")
    assert (again.outcome, again.message_id) == (SendOutcome.DUPLICATE, released.ids["idem"])
    for name in ("in ten years", "in three days"):
        (found,) = broker.find_key("orders", name)
        assert (found.message_id, found.deliver_at) == (released.ids[name], released.deliver_at[name])
        assert found.properties == {"days": (found.deliver_at - found.born_at) / DAY}
    assert [message.message_id for message in broker.find_key("orders", "recalled")] == [
        released.ids["recalled"]
    ]
    assert broker.recall(released.ids["recalled"]) is RecallOutcome.RECALLED
    assert broker.recall(released.ids["in a year"]) is RecallOutcome.RECALLED
    assert broker.recall_key("orders", "in ten years") is RecallOutcome.RECALLED
    moved = broker.reschedule(released.ids["in two months"], delay=HOUR)
    released.ids["in two months"] = moved.message_id
    assert broker.recall_many("orders", tag="wait", due_from=NOW + DAY).recalled == 1
    assert broker.recall(released.ids["acked"]) is RecallOutcome.ALREADY_RELEASED
    states = [entry.state for entry in broker.history(released.ids["retried"])]
    assert states == ["Initialized", "Timing", "Ready", "Inflight", "WaitingRetry"]

    broker.rewind("cancel", "orders", "earliest")
    assert sorted(released.take("orders", "cancel")) == [
        (name, 1) for name in ("acked", "dead", "half acked 1", "half acked 2", "leased", "retried")
    ]
    released.clock.set(moved.deliver_at)
    assert sorted(released.take("orders", "cancel")) == [("in two months", 1), ("near", 1)]
    released.clock.advance(4_000 * DAY)
    assert sorted(released.take("orders", "cancel")) == [("idem", 1), ("in a day", 1)]


def test_old_leases_are_answered_after_the_upgrade(released_dsn: str, clock: Clock) -> None:
    """Those of twelve hours are still held by whoever has their handle."""
    handle = (
        "select concat_ws('.', l.group_id, l.topic_id, l.queue, l.n, l.token, m.seq)"
        " from duewheel.lease l join duewheel.any_message m on m.topic_id = l.topic_id and m.queue = l.queue"
        " and m.deliver_at = l.to_at and m.seq = l.to_seq where l.expires_at > %s and l.token > 0"
    )
    released = Released(released_dsn, clock)
    with released.broker, connected(released_dsn) as connection:
        handles = [handle for (handle,) in ask(connection, handle, NOW)]
        assert len(handles) == 2
        ask(connection, "select duewheel.ack(%s, %s)", handles, NOW)
        clock.advance(13 * HOUR)
        came = released.take("steps", "ship")
        assert sorted(came) == [("a0", 2), ("a1", 1), ("a2", 1), ("b1", 1), ("b2", 1)]
        for message_group in "ab":
            of_group = [each for each in came if each[0].startswith(message_group)]
            assert of_group == sorted(of_group), "in order"
        assert "leased" not in {name for name, _ in released.take("orders", "cancel")}


def test_a_schedule_of_the_version_before_goes_on(released: Released) -> None:
    ticks = []
    for day in (22, 23):
        released.clock.set(datetime(2026, 11, day, 4, 59, 59, tzinfo=UTC))
        released.take("orders", "cancel")
        released.broker.advance_schedules()
        assert "tick" not in {name for name, _ in released.take("orders", "cancel")}
        released.clock.advance(SECOND)
        ticks += [name for name, _ in released.take("orders", "cancel") if name == "tick"]
    assert ticks == ["tick", "tick"]


def test_hourly_slots_stay_until_they_are_over_and_new_ones_stand_beside_them(
    released_dsn: str, clock: Clock
) -> None:
    with connected(released_dsn) as connection:
        ask(connection, "update duewheel.topic set retention = '10 days'")
    released = Released(released_dsn, clock)
    with released.broker as broker, connected(released_dsn) as connection:
        first = [slot for slot in released.slots if slot[1] > NOW]
        now = ask(connection, SLOTS)
        assert set(first) <= set(now)
        for _ in range(20):
            clock.advance(DAY)
            for topic, group in (("orders", "cancel"), ("steps", "ship"), ("events", "mail")):
                released.take(topic, group)
            broker.maintain()
            slots = ask(connection, SLOTS)
            assert all(one[1] <= other[0] for one, other in pairwise(slots)), "slots overlap"
            assert all(end - start == DAY for start, end in slots if (start, end) not in released.slots)
            # What is due soon has its slot.
            assert [s for s in slots if s[0] <= clock() + DAY < s[1]]
        assert set(slots) & set(released.slots) == {s for s in released.slots if s[1] > clock() - 10 * DAY}
        assert broker.find(released.ids["in ten years"]) is not None


#: What any program tries again: it could not be serialized, was the victim of a deadlock, or was held up by
#: the upgrade for over a second in the midst of a receive, so that another one went on.
RETRYABLE = ("40001", "40P01", Overtaken.sqlstate)
SEND = "select duewheel.send('traffic', %s::text, delay => %s)"
#: What `send_many` of the version before does: it makes the slot itself, and writes into the table.
BEGIN_SEND = (
    "create temporary table begun on commit drop as select *,"
    " greatest(now_at + %s::interval, floor_at) as deliver_at from duewheel.begin_send('traffic', 1)"
)
MAKE_SLOTS = "select duewheel.make_slots(array(select deliver_at from begun))"
COPY = (
    "insert into duewheel.message (topic_id, queue, deliver_at, seq, born_at, body)"
    " select topic_id, 0, deliver_at, first_block * 65536, now_at, convert_to(%s, 'UTF8') from begun"
)


class Traffic:
    """Programs that send, receive and ack through SQL alone, each on a connection of its own.

    Whoever would wait for a lock for longer than a second fails instead.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.ended = threading.Event()
        self.received_all = threading.Event()
        self.sent: Counter[str] = Counter()
        self.far: Counter[str] = Counter()
        self.came: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()

    def retrying(self, work: Callable[[], None]) -> None:
        try:
            work()
        except psycopg2.Error as error:
            if error.pgcode not in RETRYABLE:
                raise
            self.retried[str(error.pgcode)] += 1

    def send(self, name: str, delay: str, seen: Counter[str]) -> None:
        def two(connection: DriverConnection, body: str) -> None:
            ask(connection, SEND, body, delay)
            # A caller that looks at something between.
            ask(connection, "select count(*) from duewheel.waiting where topic = 'none'")
            ask(connection, SEND, f"{body}+", delay)
            connection.commit()
            seen.update((body, f"{body}+"))

        self.again_and_again(name, two)

    def send_many(self, name: str, delay: str, seen: Counter[str]) -> None:
        def one(connection: DriverConnection, body: str) -> None:
            ask(connection, BEGIN_SEND, delay)
            ask(connection, MAKE_SLOTS)
            ask(connection, COPY, body)
            connection.commit()
            seen.update((body,))

        self.again_and_again(name, one)

    def again_and_again(self, name: str, work: Callable[[DriverConnection, str], None]) -> None:
        with connected(self.dsn, autocommit=False) as connection:
            # While its tables change, an upgrade holds up others as long as it takes to apply it.
            ask(connection, "set lock_timeout = '60s'")
            connection.commit()
            for number in count():
                if self.ended.is_set():
                    return
                try:
                    self.retrying(lambda: work(connection, f"{name} {number}"))  # noqa: B023 -- called within this round
                finally:
                    connection.rollback()

    def receive(self) -> None:
        with connected(self.dsn) as connection:
            # While its tables change, an upgrade holds up others as long as it takes to apply it.
            ask(connection, "set lock_timeout = '60s'")

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


def test_d19_an_upgrade_under_traffic_loses_and_doubles_nothing(released_dsn: str) -> None:
    """Programs of the version before go on through the upgrade with the statements they know."""
    with connected(released_dsn) as connection:
        ((rebased,),) = ask(connection, "select rebased from duewheel.rebase()")
        assert rebased
        ask(
            connection,
            "select duewheel.create_topic('traffic', max_delay => '400 days', granularity => '1 ms')",
        )
        ask(connection, "select duewheel.subscribe('traffic', 'g')")
    traffic = Traffic(released_dsn)

    def has_come(more: int) -> bool:
        return traffic.came.total() >= more

    with beside() as start:
        receivers = [start(traffic.receive) for _ in range(2)]
        senders = [start(lambda n=n: traffic.send(f"near {n}", "20 ms", traffic.sent)) for n in range(2)]
        senders += [
            start(lambda: traffic.send_many("near many", "20 ms", traffic.sent)),
            start(lambda: traffic.send("far", "300 days", traffic.far)),
            start(lambda: traffic.send_many("far many", "30 days", traffic.far)),
        ]
        try:
            until(lambda: has_come(100) or any(f.done() for f in (*senders, *receivers)), "traffic")
            migration.upgrade(released_dsn)
            more = traffic.came.total() + 100
            until(lambda: has_come(more) or any(f.done() for f in (*senders, *receivers)), "more traffic")
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
    with Broker(released_dsn) as broker:
        broker.check()
        assert not broker.consumer("traffic", "g").receive(1_000)
        (numbers,) = (topic for topic in broker.stats().topics if topic.topic == "traffic")
        assert (numbers.waiting, numbers.waiting_is_exact) == (traffic.far.total(), True)


#: What a transaction has done that is still open, and whether an upgrade has to wait for it.
OPEN = {
    "select duewheel.send('orders', 'mine', delay => '1 day')": True,
    "select * from duewheel.receive('orders', 'cancel')": True,
    "select count(*) from duewheel.waiting": True,
    "select * from duewheel.history(duewheel.message_id(1, 0::smallint, '2026-01-05 09:30+00', 1))": True,
}


def upgraded_beside(dsn: str, opened: str, caplog: pytest.LogCaptureFixture, *, has_to_wait: bool) -> None:
    """Upgrades while a transaction is open and others go on; whoever waits for a second fails."""
    with (
        connected(dsn, autocommit=False) as mine,
        connected(dsn) as other,
        beside() as start,
    ):
        ask(other, "set lock_timeout = '1s'")
        ask(mine, opened)
        upgrade = start(lambda: migration.upgrade(dsn))
        try:
            while not (upgrade.done() or "the upgrade waits for open transactions" in caplog.text):
                for statement in OPEN:
                    ask(other, statement)
            assert upgrade.done() != has_to_wait
        finally:
            mine.commit()
        upgrade.result()
        for statement in OPEN:
            ask(other, statement)
    schema_state.check(dsn)


@pytest.mark.parametrize(
    ("opened", "has_to_wait"), OPEN.items(), ids=["send", "receive", "waiting", "history"]
)
def test_x18_an_upgrade_that_waits_for_an_open_transaction_holds_up_nobody(
    released_dsn: str, caplog: pytest.LogCaptureFixture, opened: str, has_to_wait: bool
) -> None:
    """Nobody queues up behind what the upgrade has to wait for; it goes on when the transaction has ended."""
    with connected(released_dsn) as connection:
        assert ask(connection, "select rebased from duewheel.rebase()") == [(True,)]
    upgraded_beside(released_dsn, opened, caplog, has_to_wait=has_to_wait)


@pytest.mark.parametrize("opened", list(OPEN)[:2], ids=["send", "receive"])
def test_x18_functions_are_applied_again_beside_an_open_transaction_that_sends_or_receives(
    dsn: str, broker: Broker, caplog: pytest.LogCaptureFixture, opened: str
) -> None:
    broker.create_topic("orders")
    broker.consumer("orders", "cancel")
    with connected(dsn) as connection:
        ask(connection, "update duewheel.broker set functions_checksum = 'older'")
    upgraded_beside(dsn, opened, caplog, has_to_wait=False)
