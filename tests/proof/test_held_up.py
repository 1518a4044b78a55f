"""An open or prepared transaction that has received holds up nobody else beyond a bound (X18)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psycopg2
import pytest
from tests.acting import DAY, HOUR, MILLISECOND, bodies, send, taken
from tests.turning import turning
from tests.waiting import ask, beside, connected, until

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database.connections import DriverConnection
from duewheel.store.values.messages import RecallOutcome

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
    broker.create_topic("t", queues=2, max_delay=30 * DAY)
    for group in ("holder", "other"):
        broker.consumer("t", group)
    send(broker, "first", "second")
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


def so_many(consumer: Consumer, count: int) -> list[bytes]:
    """The messages that come until there are this many, acked."""
    came: list[bytes] = []

    def enough() -> bool:
        came.extend(bodies(taken(consumer)))
        return len(came) >= count

    until(enough, f"{count} messages to come")
    return sorted(came)


def drained(broker: Broker, group: str) -> list[bytes]:
    return sorted(bodies(taken(broker.consumer("t", group))))


def nobody_waits(dsn: str) -> None:
    """No server process is left behind that waits for a lock."""
    with connected(dsn) as watcher:
        until(lambda: not ask(watcher, WAITING), "nobody to wait for a lock")


@pytest.mark.parametrize("commits", [True, False])
def test_x18_an_open_receive_holds_up_no_other_act(
    held: tuple[Broker, DriverConnection], commits: bool
) -> None:
    """Others tick, receive, take back, move, send, and do upkeep."""
    broker, holder = held
    ways = ("plain", "in a transaction", "by key", "in bulk", "moved")

    def tick_and_receive() -> None:
        send(broker, "third")
        assert broker.tick("t")
        assert so_many(broker.consumer("t", "other"), 3) == [b"first", b"second", b"third"]

    def take_back() -> None:
        sent = {way: broker.send("t", b"waits", delay=HOUR, key=way).message_id for way in ways}
        assert broker.recall(sent["plain"]).outcome is RecallOutcome.RECALLED
        assert broker.recall_key("t", "by key").outcome is RecallOutcome.RECALLED
        assert broker.recall_many("t", key_prefix="in bulk").recalled == 1
        broker.reschedule(sent["moved"], delay=2 * HOUR)
        with connected(broker.dsn, autocommit=False) as mine:
            answer = broker.recall(sent["in a transaction"], connection=mine)
            assert answer.outcome is RecallOutcome.RECALLED
            mine.commit()

    def go_on() -> None:
        broker.maintain()
        send(broker, "fourth")
        send(broker, "far", delay=20 * HOUR)
        broker.create_topic("new")
        send(broker, "x", topic="new")
        assert bodies(taken(broker.consumer("new", "g"))) == [b"x"]

    for act in (tick_and_receive, take_back, go_on):
        answer = within_bound(act, holder.rollback)
        assert answer is None, answer
    holder.commit() if commits else holder.rollback()
    for way in ways:
        states = [(found.recalled, found.moved_to is None) for found in broker.find_key("t", way)]
        assert sorted(states) == ([(False, False), (False, True)] if way == "moved" else [(True, True)])
    assert drained(broker, "other") == [b"fourth"]
    assert len(drained(broker, "holder")) == 4 - commits
    nobody_waits(broker.dsn)


def test_x18_a_wheel_turns_during_an_open_receive(held: tuple[Broker, DriverConnection]) -> None:
    """What it releases comes to a consumer that only waits."""
    broker, holder = held
    broker.create_topic("beside")
    consumer = broker.consumer("beside", "g")
    with turning(broker):
        send(broker, "third")
        send(broker, "x", topic="beside", delay=50 * MILLISECOND)

        def receive_all() -> list[bytes]:
            return so_many(consumer, 1) + so_many(broker.consumer("t", "other"), 3)

        answer = within_bound(receive_all, holder.rollback)
        holder.rollback()
    assert answer == [b"x", b"first", b"second", b"third"]


@pytest.mark.parametrize("call", ["broker.tick('t')", "broker.consumer('t', 'other').receive()"])
def test_x18_a_program_killed_while_waiting_leaves_no_process(
    held: tuple[Broker, DriverConnection], call: str
) -> None:
    """The server does not notice that its client is gone while it waits for a lock: the wait has to end."""
    broker, holder = held
    send(broker, "third")
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


PREPARED = {
    "receive": RECEIVE,
    "send": "select duewheel.send('t', 'prepared'::text, delay => '1 hour')",
    "send far": "select duewheel.send('t', 'prepared'::text, delay => '20 days')",
    "send now": "select duewheel.send('t', 'prepared'::text, delay => '0 s')",
}


@pytest.mark.parametrize(
    ("what", "ends"),
    [
        *(("receive", "commit prepared"), ("receive", "rollback prepared"), ("send", "commit prepared")),
        *(("send far", "commit prepared"), ("send now", "commit prepared")),
    ],
)
def test_x18_a_prepared_transaction_holds_up_no_session(own_dsn: str, what: str, ends: str) -> None:
    """Whatever it did, others receive, tick, take back and keep order within the bound."""
    name = f"{what} {ends}"
    with Broker(own_dsn) as broker, connected(own_dsn) as admin:
        prepare_topic(broker)
        broker.maintain()
        sent = broker.send("t", b"waits", delay=HOUR, key="waits")
        other = broker.send("t", b"other waits", delay=HOUR, key="other")
        with connected(own_dsn, autocommit=False) as holder:
            ask(holder, PREPARED[what])
            ask(holder, f"prepare transaction '{name}'")

        def let_go() -> None:
            ask(admin, f"rollback prepared '{name}'")

        def go_on() -> list[bytes]:
            send(broker, "third")
            send(broker, "far", delay=20 * DAY)
            broker.tick("t")
            broker.maintain()
            assert broker.recall(other.message_id).outcome is RecallOutcome.RECALLED
            return so_many(broker.consumer("t", "other"), 3)

        answer = within_bound(go_on, let_go)
        ask(admin, f"{ends} '{name}'")
        assert answer == [b"first", b"second", b"third"]
        nobody_waits(own_dsn)
        stored = broker.find(sent.message_id)
        assert stored is not None
        assert not stored.recalled
        late = [b"prepared"] if what == "send now" else []
        assert drained(broker, "other") == late
        in_hand = 1 if (what, ends) == ("receive", "commit prepared") else 0
        assert len(drained(broker, "holder")) == 3 + len(late) - in_hand


def test_x18_a_recall_cannot_be_prepared(own_dsn: str) -> None:
    """It holds only if it is committed right after its check."""
    with Broker(own_dsn) as broker, connected(own_dsn, autocommit=False) as holder:
        prepare_topic(broker)
        broker.send("t", b"waits", delay=HOUR, key="waits")
        for what in ("recall_key('t', 'waits')", "recall_many('t', key_prefix => 'waits')"):
            ask(holder, f"select duewheel.{what}")
            with pytest.raises(psycopg2.errors.FeatureNotSupported):
                ask(holder, "prepare transaction 'refused'")
            holder.rollback()
        assert not any(message.recalled for message in broker.find_key("t", "waits"))
        assert drained(broker, "other") == [b"first", b"second"]
