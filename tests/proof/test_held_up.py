"""An open or prepared transaction that has received holds up nobody else beyond a bound (X18)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg2
import pytest
from tests.waiting import ask, beside, connected, until

from duewheel.store import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.messages import RecallOutcome
from duewheel.testing.databases import TEST_SETTINGS

NOTHING = timedelta(0)
HOUR = timedelta(hours=1)
#: Nobody is held up for longer than about two seconds; the rest is for a busy machine.
BOUND_SECONDS = 6.0

RECEIVE = "select message_id from duewheel.receive('t', 'holder', max_messages => 1)"

#: Backends that wait for a lock.
WAITING = """
select pid, query from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and wait_event_type = 'Lock'
"""


@pytest.fixture
def held(broker: Broker) -> Iterator[tuple[Broker, DriverConnection]]:
    """A broker and an open transaction that has received one of two messages."""
    prepare_topic(broker)
    with connected(broker.dsn, autocommit=False) as holder:
        assert len(ask(holder, RECEIVE)) == 1
        yield broker, holder


def prepare_topic(broker: Broker) -> None:
    broker.create_topic("t", queues=2)
    for group in ("holder", "other"):
        broker.consumer("t", group)
    broker.send_many("t", [{"body": b"first", "delay": NOTHING}, {"body": b"second", "delay": NOTHING}])
    broker.tick("t")


def within_bound(call: Callable[[], object], release: Callable[[], None]) -> object:
    """The result or the error of a call; past the bound, the session that holds it up lets go and the test
    fails."""
    with beside() as begin:
        called = begin(call)
        try:
            error = called.exception(timeout=BOUND_SECONDS)
        except TimeoutError:
            release()
            pytest.fail(f"held up for more than {BOUND_SECONDS} s")
        return called.result() if error is None else error


def taken(consumer: Consumer, wait: timedelta = NOTHING) -> list[bytes]:
    """All that comes, acked."""
    bodies = []
    while batch := consumer.receive(max_messages=100, wait=wait):
        bodies += [message.body for message in batch]
        consumer.ack(batch)
    return bodies


def so_many(consumer: Consumer, count: int) -> list[bytes]:
    """The messages that come until there are this many, acked."""
    bodies: list[bytes] = []

    def enough() -> bool:
        bodies.extend(taken(consumer))
        return len(bodies) >= count

    until(enough, f"{count} messages to come")
    return bodies


def drained(broker: Broker, group: str) -> list[bytes]:
    return sorted(taken(broker.consumer("t", group)))


@contextmanager
def turning(broker: Broker) -> Iterator[None]:
    """A wheel in a thread, for the length of the block."""
    stop = threading.Event()
    with beside() as begin:
        wheel = begin(lambda: broker.wheel().run(stop))
        try:
            yield
        finally:
            stop.set()
        wheel.result()


def nobody_waits(dsn: str) -> None:
    """No server process is left behind that waits for a lock."""
    with connected(dsn) as watcher:
        until(lambda: not ask(watcher, WAITING), "nobody to wait for a lock")


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_x18_an_open_receive_holds_up_no_other_group(
    held: tuple[Broker, DriverConnection], ends: str
) -> None:
    """Others get what was released, and what comes due while it is open."""
    broker, holder = held

    def receive_all() -> list[bytes]:
        broker.send("t", b"third", delay=NOTHING)
        return so_many(broker.consumer("t", "other"), 3)

    answer = within_bound(receive_all, holder.rollback)
    assert isinstance(answer, list), answer
    in_hand = ends == "commit"
    holder.commit() if in_hand else holder.rollback()
    assert sorted(answer) == [b"first", b"second", b"third"]
    assert drained(broker, "other") == []
    assert len(drained(broker, "holder")) == 3 - in_hand
    nobody_waits(broker.dsn)


def test_x18_an_open_receive_holds_up_no_tick(held: tuple[Broker, DriverConnection]) -> None:
    broker, holder = held
    broker.send("t", b"third", delay=NOTHING)
    answer = within_bound(lambda: broker.tick("t"), holder.rollback)
    assert isinstance(answer, bool), answer
    holder.rollback()
    assert drained(broker, "other") == [b"first", b"second", b"third"]
    assert drained(broker, "holder") == [b"first", b"second", b"third"]


def test_x18_a_wheel_goes_on_beside_an_open_receive(held: tuple[Broker, DriverConnection]) -> None:
    """What it releases comes to a consumer that only waits."""
    broker, holder = held
    broker.create_topic("beside")
    consumer = broker.consumer("beside", "g")
    with turning(broker):
        broker.send("t", b"third", delay=NOTHING)
        broker.send("beside", b"x", delay=timedelta(milliseconds=50))

        def receive_all() -> list[bytes]:
            return so_many(consumer, 1) + so_many(broker.consumer("t", "other"), 3)

        answer = within_bound(receive_all, holder.rollback)
        holder.rollback()
    assert isinstance(answer, list), answer
    assert sorted(answer) == [b"first", b"second", b"third", b"x"]


@pytest.mark.parametrize("how", ["plain", "in a transaction", "by key", "in bulk", "moved"])
def test_x18_an_open_receive_holds_up_no_recall(held: tuple[Broker, DriverConnection], how: str) -> None:
    """What waits for an hour yet is taken back, whoever holds what was released."""
    broker, holder = held
    sent = broker.send("t", b"waits", delay=HOUR, key="waits")

    def take_back() -> bool:
        if how == "plain":
            return broker.recall(sent.message_id).outcome is RecallOutcome.RECALLED
        if how == "by key":
            return broker.recall_key("t", "waits") is RecallOutcome.RECALLED
        if how == "in bulk":
            return broker.recall_many("t", key_prefix="waits").recalled == 1
        if how == "moved":
            broker.reschedule(sent.message_id, delay=2 * HOUR)
            return True
        with connected(broker.dsn, autocommit=False) as mine:
            assert broker.recall(sent.message_id, connection=mine).outcome is RecallOutcome.RECALLED
            mine.commit()
            return True

    answer = within_bound(take_back, holder.rollback)
    holder.commit()
    assert answer is True, answer
    stored = broker.find(sent.message_id)
    assert stored is not None
    assert stored.moved_from == sent.message_id if how == "moved" else stored.recalled
    assert drained(broker, "other") == [b"first", b"second"]
    nobody_waits(broker.dsn)


def test_x18_upkeep_and_senders_go_on_beside_an_open_receive(held: tuple[Broker, DriverConnection]) -> None:
    broker, holder = held

    def go_on() -> None:
        broker.maintain()
        broker.send("t", b"third", delay=NOTHING)
        broker.send_many("t", [{"body": b"fourth", "delay": NOTHING}, {"body": b"far", "delay": 20 * HOUR}])
        broker.create_topic("new")
        broker.send("new", b"x", delay=NOTHING)
        assert taken(broker.consumer("new", "g")) == [b"x"]

    answer = within_bound(go_on, holder.rollback)
    assert answer is None, answer
    holder.commit()
    assert drained(broker, "other") == [b"first", b"fourth", b"second", b"third"]


@pytest.mark.parametrize("call", ["broker.tick('t')", "broker.consumer('t', 'other').receive()"])
def test_x18_a_program_that_is_killed_while_it_waits_leaves_no_server_process(
    held: tuple[Broker, DriverConnection], call: str
) -> None:
    """The server does not notice that its client is gone while it waits for a lock: the wait has to end."""
    broker, holder = held
    broker.send("t", b"third", delay=NOTHING)
    program = (
        "import sys\nfrom duewheel.store.broker import Broker\n"
        "with Broker(sys.argv[1]) as broker:\n    broker.topics()\n    print('ready', flush=True)\n"
        f"    {call}\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, broker.dsn], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == "ready\n"
            with connected(broker.dsn) as watcher:
                until(lambda: child.poll() is not None or ask(watcher, WAITING), "it to wait or to end")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    answer = within_bound(lambda: nobody_waits(broker.dsn), holder.rollback)
    assert answer is None, answer
    holder.rollback()


# --- prepared transactions


@pytest.fixture(scope="module")
def two_phase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that takes prepared transactions."""
    settings = {**TEST_SETTINGS, "max_prepared_transactions": "5"}
    with EmbeddedPostgres(tmp_path_factory.mktemp("two-phase"), settings=settings) as server:
        yield server


PREPARED = {
    "receive": RECEIVE,
    "send": "select duewheel.send('t', 'prepared'::text, delay => '1 hour')",
    "send far": "select duewheel.send('t', 'prepared'::text, delay => '20 days')",
}


@pytest.mark.parametrize("ends", ["commit prepared", "rollback prepared"])
@pytest.mark.parametrize("what", PREPARED)
def test_x18_a_prepared_transaction_holds_up_nobody(
    two_phase: EmbeddedPostgres, what: str, ends: str
) -> None:
    """Whatever it did, others receive, tick, take back and keep order within the bound."""
    name = f"prepared_{list(PREPARED).index(what)}_{ends.split()[0]}"
    dsn = two_phase.ensure_database(name)
    with Broker(dsn) as broker, connected(dsn) as admin:
        broker.upgrade()
        prepare_topic(broker)
        broker.update_topic("t", max_delay=30 * 24 * HOUR)
        broker.maintain()
        sent = broker.send("t", b"waits", delay=HOUR, key="waits")
        other = broker.send("t", b"other waits", delay=HOUR, key="other")
        with connected(dsn, autocommit=False) as holder:
            ask(holder, PREPARED[what])
            ask(holder, f"prepare transaction '{name}'")

        def let_go() -> None:
            ask(admin, f"rollback prepared '{name}'")

        def go_on() -> list[bytes]:
            broker.send("t", b"third", delay=NOTHING)
            broker.send_many("t", [{"body": b"far", "delay": 20 * 24 * HOUR}])
            broker.tick("t")
            broker.maintain()
            assert broker.recall(other.message_id).outcome is RecallOutcome.RECALLED
            return so_many(broker.consumer("t", "other"), 3)

        answer = within_bound(go_on, let_go)
        ask(admin, f"{ends} '{name}'")
        assert isinstance(answer, list), answer
        assert sorted(answer) == [b"first", b"second", b"third"]
        nobody_waits(dsn)
        stored = broker.find(sent.message_id)
        assert stored is not None
        assert not stored.recalled
        assert drained(broker, "other") == []
        in_hand = 1 if (what, ends) == ("receive", "commit prepared") else 0
        assert len(drained(broker, "holder")) == 3 - in_hand


@pytest.mark.parametrize(
    "what",
    [
        "select duewheel.recall_key('t', 'waits')",
        "select duewheel.recall_many('t', key_prefix => 'waits')",
    ],
)
def test_x18_a_recall_cannot_be_prepared(two_phase: EmbeddedPostgres, what: str) -> None:
    """It holds only if it is committed right after its check."""
    dsn = two_phase.ensure_database("refused")
    with Broker(dsn) as broker, connected(dsn, autocommit=False) as holder:
        broker.upgrade()
        broker.create_topic("t", queues=2)
        for group in ("holder", "other"):
            broker.consumer("t", group)
        broker.send("t", b"waits", delay=HOUR, key="waits")
        broker.send("t", b"due", delay=NOTHING)
        ask(holder, what)
        with pytest.raises(psycopg2.errors.FeatureNotSupported):
            ask(holder, "prepare transaction 'refused'")
        holder.rollback()
        assert not any(message.recalled for message in broker.find_key("t", "waits"))
        assert b"due" in drained(broker, "other")


def test_a_send_that_is_due_at_once_can_be_prepared(two_phase: EmbeddedPostgres) -> None:
    dsn = two_phase.ensure_database("soon")
    with Broker(dsn) as broker, connected(dsn) as admin:
        broker.upgrade()
        prepare_topic(broker)
        with connected(dsn, autocommit=False) as sender:
            ask(sender, "select duewheel.send('t', 'soon'::text, delay => '0 s')")
            ask(sender, "prepare transaction 'soon'")
        broker.tick("t")
        ask(admin, "commit prepared 'soon'")
        assert drained(broker, "other") == [b"first", b"second", b"soon"]
