"""Messages from a minute to ten years ahead come once, at their instant, whenever upkeep runs (X17).

Everything here goes through the public calls. The clock jumps by days, months and years; between two jumps
upkeep runs always, never, or now and then.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import make_dsn
from tests.acting import DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE
from tests.clock import Clock
from tests.waiting import ask, beside, connected, until

from duewheel.store import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import BrokerUnreachable, DueWheelError
from duewheel.store.values.messages import RecallOutcome
from duewheel.testing.databases import TEST_SETTINGS

#: So long before its instant nothing may come.
JUST_BEFORE = MICROSECOND
TEN_YEARS = timedelta(days=3650)
#: The longest delay that a topic takes.
LONGEST = timedelta(days=3660)
#: A database has no more tables of messages than this, however far ahead they are.
MOST_TABLES = 60

MESSAGE_TABLES = """
select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'duewheel' and c.relkind in ('r', 'p') and starts_with(c.relname, 'message_')
"""


@pytest.fixture
def far(dsn: str, clock: Clock) -> Iterator[Broker]:
    """A broker under the test's clock with a topic of ten years."""
    with Broker(dsn, clock=clock) as broker:
        broker.create_topic("t", max_delay=LONGEST, queues=2)
        yield broker


class Upkeep:
    """Runs upkeep at every stage, at none, or at some; looks each time how many tables there are."""

    def __init__(self, broker: Broker, when: str, seed: int = 0) -> None:
        self._broker = broker
        self._share = {"always": 1.0, "never": 0.0, "now and then": 0.3}[when]
        self._chance = random.Random(seed)

    def stage(self) -> None:
        """Where upkeep may run."""
        if self._chance.random() < self._share:
            assert self._broker.maintain().swept == 0
        assert tables(self._broker) <= MOST_TABLES


spreads = pytest.mark.parametrize(
    ("spread", "upkeep"),
    [(DAY, "never"), (60 * DAY, "now and then"), (TEN_YEARS, "always")],
    ids=["a day", "60 days", "ten years"],
)


def tables(broker: Broker) -> int:
    with broker.connection() as connection:
        return int(ask(connection, MESSAGE_TABLES)[0][0])


def taken(consumer: Consumer) -> list[str]:
    """The ids of all that is ready now, acked."""
    identities = []
    while batch := consumer.receive(max_messages=1_000):
        identities += [message.message_id for message in batch]
        consumer.ack(batch)
    return identities


def instants(begins_at: datetime, spread: timedelta, seed: int) -> list[datetime]:
    """Instants all over a spread, where days, months and years end among them."""
    chance = random.Random(seed)
    edges = [begins_at, begins_at + MILLISECOND, begins_at + spread]
    for days in (1, 2, 7, 8, 31, 59, 60, 365, 366, 785, 786, 3649):
        midnight = (begins_at + days * DAY).replace(hour=0, minute=0, second=0, microsecond=0)
        edges += [midnight - MICROSECOND, midnight, midnight + MICROSECOND]
    within = [edge for edge in edges if edge <= begins_at + spread]
    return within + [begins_at + spread * chance.random() for _ in range(30)]


@pytest.mark.slow
@spreads
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_x17_each_message_comes_once_at_its_instant(
    far: Broker, clock: Clock, spread: timedelta, upkeep: str, seed: int
) -> None:
    """Also what is sent on the way; what was taken back or moved does not come where it was."""
    chance = random.Random(seed)
    keeper = Upkeep(far, upkeep, seed)
    consumer = far.consumer("t", "g")
    begins_at, ends_at = clock(), clock() + spread
    waiting: dict[str, datetime] = {}
    came: set[str] = set()

    def send(all_at: list[datetime], key: str) -> None:
        for number, at in enumerate(all_at[::2]):
            receipt = far.send("t", b"x", deliver_at=at, key=f"{key}/{number}", tag="odd")
            waiting[receipt.message_id] = at
        many = [{"body": b"x", "deliver_at": at, "key": f"{key}/many", "tag": "even"} for at in all_at[1::2]]
        receipts = far.send_many("t", many)
        waiting.update({receipt.message_id: at for receipt, at in zip(receipts, all_at[1::2], strict=True)})

    def later() -> list[str]:
        return sorted(identity for identity, at in waiting.items() if at > clock())

    send(instants(begins_at, spread, seed), "first")
    keeper.stage()
    while waiting:
        for identity in chance.sample(later(), min(2, len(later()))):
            stored = far.find(identity)
            assert stored is not None
            assert (stored.deliver_at, stored.released, stored.recalled) == (waiting[identity], False, False)
            assert [entry.state for entry in far.history(identity)][:2] == ["Initialized", "Timing"]
        if len(later()) > 3 and chance.random() < 0.3:
            gone, moved = chance.sample(later(), 2)
            assert far.recall(gone).outcome is RecallOutcome.RECALLED
            del waiting[gone], waiting[moved]
            to_at = clock() + (ends_at - clock()) * chance.random()
            waiting[far.reschedule(moved, deliver_at=to_at).message_id] = to_at
        if chance.random() < 0.1 and ends_at > clock():
            send([clock() + (ends_at - clock()) * chance.random() for _ in range(4)], f"at {clock()}")
        keeper.stage()
        # To just before one of the next ones, exactly to it, or over several of them.
        ahead = sorted(at for at in waiting.values() if at > clock()) or [clock() + DAY]
        target = ahead[min(chance.choice([0, 0, 1, 7]), len(ahead) - 1)]
        clock.set(max(clock(), target - chance.choice([JUST_BEFORE, timedelta(0), timedelta(0)])))
        keeper.stage()
        got = taken(consumer)
        assert sorted(got) == sorted(identity for identity, at in waiting.items() if at <= clock())
        assert not came.intersection(got)
        came.update(got)
        for identity in got:
            del waiting[identity]
    clock.advance(TEN_YEARS / 10)
    keeper.stage()
    assert taken(consumer) == []


@pytest.mark.slow
@spreads
def test_x17_far_messages_are_recalled_and_moved_by_key_and_bulk(
    far: Broker, clock: Clock, spread: timedelta, upkeep: str
) -> None:
    keeper = Upkeep(far, upkeep)
    consumer = far.consumer("t", "g")
    begins_at = clock()

    def at(share: float) -> datetime:
        return begins_at + spread * share

    names = ["key", "moved by key", "tag", "window/1", "window/2", "left", "replaced", "kept"]
    sent = {
        name: far.send("t", name, deliver_at=at(0.9), key=name, tag="gone" if name == "tag" else None)
        for name in names
    }
    # The same key near and far: looking up and taking back find both.
    far.send("t", b"key", delay=HOUR / 2, key="key")
    keeper.stage()
    clock.advance(MINUTE)
    assert [m.deliver_at for m in far.find_key("t", "key")] == [begins_at + HOUR / 2, at(0.9)]
    assert far.recall_key("t", "key").outcome is RecallOutcome.RECALLED
    keeper.stage()
    far.reschedule_key("t", "moved by key", deliver_at=at(0.5))
    assert far.recall_many("t", tag="gone", dry_run=True).matched == 1
    assert far.recall_many("t", tag="gone").recalled == 1
    keeper.stage()
    window = {"due_from": at(0.8), "due_until": at(1.0)}
    assert far.recall_many("t", key_prefix="window/", due_until=at(0.8)).matched == 0
    assert far.recall_many("t", key_prefix="window/", **window).recalled == 2
    replaced = far.send("t", b"new", deliver_at=at(0.7), key="replaced", on_conflict="replace")
    kept = far.send("t", b"new", deliver_at=at(0.7), key="kept", on_conflict="keep")
    assert (replaced.outcome, kept.outcome) == ("replaced", "kept")
    assert kept.message_id == sent["kept"].message_id
    assert far.recall_many("t", everything=True, dry_run=True).recalled == 0
    bodies: list[tuple[datetime, bytes]] = []
    for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        clock.set(at(share) - JUST_BEFORE)
        keeper.stage()
        early = [message.body for message in consumer.receive(max_messages=100)]
        assert early == []
        clock.set(at(share))
        keeper.stage()
        while batch := consumer.receive(max_messages=100):
            bodies += [(clock(), message.body) for message in batch]
            consumer.ack(batch)
    assert sorted(bodies) == [
        (at(0.5), b"moved by key"),
        (at(0.7), b"new"),
        (at(0.9), b"kept"),
        (at(0.9), b"left"),
    ]


@spreads
def test_x17_a_message_is_kept_for_its_retention_then_deleted(
    far: Broker, clock: Clock, spread: timedelta, upkeep: str
) -> None:
    """Retention counts from the delivery; who has not read it yet, keeps it."""
    keeper = Upkeep(far, upkeep)
    consumer, late = far.consumer("t", "g"), far.consumer("t", "late")
    first = far.send("t", b"x", delay=spread / 2, key="first").message_id
    last = far.send("t", b"x", delay=spread, key="last").message_id
    clock.advance(spread / 2)
    keeper.stage()
    assert taken(consumer) == [first]
    clock.set(clock() + spread / 2)
    keeper.stage()
    assert taken(consumer) == [last]
    for identity in (first, last):
        stored = far.find(identity)
        assert stored is not None
        assert stored.released
        assert "Acked" in [entry.state for entry in far.history(identity) if entry.consumer_group == "g"]
    clock.advance(30 * DAY)
    far.maintain()
    assert sorted(taken(late)) == sorted([first, last])
    clock.advance(30 * DAY)
    far.maintain()
    assert [far.find(first), far.find(last)] == [None, None]
    assert (far.find_key("t", "first"), far.find_key("t", "last")) == ([], [])
    for identity in (first, last):
        assert [entry.state for entry in far.history(identity)] == ["Deleted"]
        assert far.recall(identity).outcome is RecallOutcome.NOT_FOUND
    assert tables(far) <= MOST_TABLES


def test_d09_what_waits_is_never_dropped_for_want_of_room(far: Broker, clock: Clock) -> None:
    consumer = far.consumer("t", "g")
    far.update_settings(retention_bytes=1, when_full="drop_unread")
    begins_at = clock()
    delays = [HOUR, 2 * DAY, 40 * DAY, TEN_YEARS]
    sent = {delay: far.send("t", b"x" * 10_000, delay=delay).message_id for delay in delays}
    for delay in delays:
        far.maintain()
        clock.set(begins_at + delay - JUST_BEFORE)
        far.maintain()
        assert taken(consumer) == []
        clock.set(begins_at + delay)
        assert taken(consumer) == [sent[delay]]


@pytest.mark.parametrize(
    ("leap", "upkeep"), [(DAY, "never"), (45 * DAY, "now and then"), (365 * DAY, "always")], ids=str
)
def test_d18_a_schedule_of_months_occurs_once_each_time(
    far: Broker, clock: Clock, upkeep: str, leap: timedelta
) -> None:
    """The clock jumps to each occurrence; its message is delivered at that instant."""
    keeper = Upkeep(far, upkeep)
    consumer = far.consumer("t", "g")
    start_at = clock() + leap
    far.create_schedule("again", "t", b"x", every=leap, start_at=start_at)
    for number in range(5):
        occurs_at = start_at + number * leap
        for now, due in ((occurs_at - MINUTE / 2, []), (occurs_at, [occurs_at])):
            clock.set(now)
            keeper.stage()
            far.advance_schedules()
            batch = consumer.receive(max_messages=100)
            assert [datetime.fromisoformat(message.properties["occurrence"]) for message in batch] == due
            consumer.ack(batch)


# --- transactions that stay open


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "late", "commits"),
    [
        *((HOUR, False, True), (2 * DAY, True, True), (40 * DAY, False, True)),
        *((40 * DAY, True, False), (TEN_YEARS, True, True), (TEN_YEARS, False, False)),
    ],
)
def test_x18_a_sender_that_is_open_over_upkeep_loses_nothing(
    far: Broker, clock: Clock, delay: timedelta, late: bool, commits: bool
) -> None:
    """Its end comes before or after its messages' instant.

    Meanwhile others send to the same day and upkeep goes on; nobody waits for a lock longer than 2 s.
    """
    at = clock() + delay
    with connected(far.dsn) as admin:
        ask(admin, f"alter database {admin.info.dbname} set lock_timeout = '2s'")
    with Broker(far.dsn, clock=clock) as others, connected(far.dsn, autocommit=False) as slow:
        consumer = others.consumer("t", "g")
        mine = [others.send("t", b"slow", deliver_at=at, connection=slow).message_id]
        many = others.send_many("t", [{"body": b"slow", "deliver_at": at}] * 3, connection=slow)
        mine += [receipt.message_id for receipt in many]
        others.maintain()
        theirs = [others.send("t", b"quick", deliver_at=at).message_id]
        theirs += [r.message_id for r in others.send_many("t", [{"body": b"many", "deliver_at": at}] * 2)]
        for share in (0.3, 0.9, 1.0):
            clock.set(at - delay * (1 - share) - JUST_BEFORE)
            others.maintain()
            assert taken(consumer) == []
        expected = mine if commits else []
        if late:
            clock.set(at + HOUR)
            others.maintain()
            assert sorted(taken(consumer)) == sorted(theirs)
            others.maintain()
        else:
            expected = expected + theirs
        slow.commit() if commits else slow.rollback()
        if not late:
            others.maintain()
            assert taken(consumer) == []
            clock.set(at)
        assert sorted(taken(far.consumer("t", "g"))) == sorted(expected)
        for _ in range(3):
            clock.advance(DAY)
            assert others.maintain().swept == 0
            assert taken(consumer) == []
        for identity in mine:
            assert (others.find(identity) is not None) == commits


@pytest.mark.parametrize(
    ("delay", "commits"), [(2 * DAY, True), (40 * DAY, False), (TEN_YEARS, True), (TEN_YEARS, False)]
)
def test_x18_a_recall_that_is_open_over_upkeep_holds(
    far: Broker, clock: Clock, delay: timedelta, commits: bool
) -> None:
    """What is taken back in an open transaction may be moved by upkeep meanwhile."""
    consumer = far.consumer("t", "g")
    sent = far.send("t", b"x", delay=delay)
    with Broker(far.dsn, clock=clock) as others, connected(far.dsn, autocommit=False) as slow:
        assert others.recall(sent.message_id, connection=slow).outcome is RecallOutcome.RECALLED
        for share in (0.5, 0.9, 1.0):
            clock.set(sent.deliver_at - delay * (1 - share) - JUST_BEFORE)
            others.maintain()
        slow.commit() if commits else slow.rollback()
        others.maintain()
    clock.set(sent.deliver_at)
    assert taken(consumer) == ([] if commits else [sent.message_id])


@pytest.mark.slow
def test_x17_concurrent_upkeep_and_senders_double_nothing(far: Broker, clock: Clock) -> None:
    """Four at upkeep, two senders, a consumer: all at once, at each of the jumps of a clock."""
    consumer = far.consumer("t", "g")
    chance = random.Random(7)
    waiting: dict[str, datetime] = {}
    for _ in range(12):
        clock.advance(chance.choice([HOUR, DAY, 10 * DAY, 100 * DAY, 700 * DAY]))
        delays = [chance.choice([MINUTE, DAY, 20 * DAY, 365 * DAY, TEN_YEARS / 2]) for _ in range(40)]
        with beside() as begin:
            upkeep = [begin(far.maintain) for _ in range(4)]
            receiving = begin(lambda: taken(consumer))
            sending = [begin(lambda d=delay: far.send("t", b"x", delay=d)) for delay in delays]
            many = begin(lambda d=delays: far.send_many("t", [{"body": b"x", "delay": delay} for delay in d]))
        for future in upkeep:
            assert future.result().swept == 0
        receipts = [future.result() for future in sending] + list(many.result())
        got = receiving.result() + taken(consumer)
        assert sorted(got) == sorted(identity for identity, at in waiting.items() if at <= clock())
        for identity in got:
            del waiting[identity]
        waiting.update({receipt.message_id: receipt.deliver_at for receipt in receipts})
        # A slot that the others kept busy is dropped by the next upkeep.
        far.maintain()
        assert tables(far) <= MOST_TABLES
    clock.advance(TEN_YEARS)
    assert sorted(taken(consumer)) == sorted(waiting)


# --- upkeep that is killed

#: Ends itself by SIGKILL before (or after) its n-th statement; without n it says how many there are.
KILLED = """
import os, signal, sys
from datetime import datetime
from duewheel.store.broker import Broker

dsn, now = sys.argv[1], datetime.fromisoformat(sys.argv[2])
last, after = int(sys.argv[3]), sys.argv[4] == "after"
count = 0

def watch(frame, event, called):
    global count
    if event == ("c_return" if after else "c_call") and getattr(called, "__name__", "") == "execute":
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

with Broker(dsn, clock=lambda: now) as broker:
    broker.topics()
    sys.setprofile(watch)
    broker.maintain()
    sys.setprofile(None)
print(count)
"""

JUMPS = [DAY, 3 * DAY, 30 * DAY, 200 * DAY, 3 * 365 * DAY]


def spread_out(broker: Broker) -> dict[str, datetime]:
    """Sends messages from near to far; returns when each is due."""
    delays = [*(jump * share for jump in JUMPS for share in (0.4, 1, 1.1)), TEN_YEARS]
    receipts = [broker.send("t", b"x", delay=delay) for delay in delays]
    receipts += broker.send_many("t", [{"body": b"x", "delay": delay + MINUTE} for delay in delays])
    return {receipt.message_id: receipt.deliver_at for receipt in receipts}


def take_due(broker: Broker, clock: Clock, waiting: dict[str, datetime]) -> None:
    """What is due now, and no more, comes once."""
    due = [identity for identity, at in waiting.items() if at <= clock()]
    assert sorted(taken(broker.consumer("t", "g"))) == sorted(due)
    for identity in due:
        del waiting[identity]


def check_all_come(broker: Broker, clock: Clock, waiting: dict[str, datetime]) -> None:
    """Each of them once and not before its instant, from now on."""
    take_due(broker, clock, waiting)
    for at in sorted(set(waiting.values())):
        for now in (at - JUST_BEFORE, at):
            clock.set(now)
            take_due(broker, clock, waiting)


@pytest.mark.long
def test_d16_upkeep_killed_after_any_statement_loses_nothing(far: Broker, clock: Clock) -> None:
    far.consumer("t", "g")
    waiting = spread_out(far)
    for jump in JUMPS:
        clock.advance(jump)
        for statement in count(1):
            command = [sys.executable, "-c", KILLED, far.dsn, clock().isoformat(), str(statement), "after"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
        assert statement > 2, "it was never killed"
        take_due(far, clock, waiting)
    assert tables(far) <= MOST_TABLES
    check_all_come(far, clock, waiting)


@pytest.mark.slow
def test_d16_upkeep_killed_within_a_statement_loses_nothing(far: Broker, clock: Clock) -> None:
    """It is given more milliseconds each time, until it gets through."""
    far.consumer("t", "g")
    waiting = spread_out(far)
    cut_off = 0
    for jump in JUMPS:
        clock.advance(jump)
        milliseconds = 1
        while True:
            limited = make_dsn(far.dsn, options=f"-c statement_timeout={milliseconds}")
            with Broker(limited, clock=clock) as hurried:
                try:
                    hurried.maintain()
                except (psycopg2.errors.QueryCanceled, DueWheelError):
                    cut_off += 1
                    milliseconds += 1 + milliseconds // 4
                else:
                    break
    assert cut_off > 0
    check_all_come(far, clock, waiting)


@pytest.mark.long
def test_d16_a_server_crash_during_upkeep_loses_nothing(tmp_path: Path, clock: Clock) -> None:
    """The server process at upkeep is killed at instants all over its work, and the server recovers."""
    chance = random.Random(3)
    # It loses nothing that it has committed when one of its processes is killed.
    settings = {**TEST_SETTINGS, "synchronous_commit": "on"}
    kill = (
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and pid <> pg_backend_pid() and state = 'active'"
        " and clock_timestamp() > query_start + %s * interval '1 millisecond'"
    )
    with EmbeddedPostgres(tmp_path / "server", settings=settings) as server:
        dsn = server.ensure_database("duewheel")

        def answers() -> bool:
            with suppress(psycopg2.OperationalError), connected(dsn):
                return True
            return False

        def upkeep_is_killed(after_milliseconds: float) -> None:
            with Broker(dsn, clock=clock) as broker, connected(dsn) as watcher, beside() as begin:
                broker.topics()
                upkeep = begin(broker.maintain)

                def kill_it() -> bool:
                    try:
                        return bool(ask(watcher, kill, after_milliseconds))
                    except psycopg2.OperationalError:
                        return True

                until(lambda: upkeep.done() or kill_it(), "upkeep to be killed")
                error = upkeep.exception()
                assert error is None or isinstance(error, (BrokerUnreachable, psycopg2.Error)), error
            until(answers, "the server to answer")

        with Broker(dsn, clock=clock) as broker:
            broker.upgrade()
            broker.create_topic("t", max_delay=LONGEST, queues=2)
            broker.consumer("t", "g")
            waiting = spread_out(broker)
        for jump in JUMPS:
            clock.advance(jump)
            for _ in range(4):
                upkeep_is_killed(chance.uniform(0, 30))
            with Broker(dsn, clock=clock) as broker:
                broker.maintain()
                take_due(broker, clock, waiting)
        with Broker(dsn, clock=clock) as broker:
            check_all_come(broker, clock, waiting)
