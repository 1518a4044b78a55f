"""The listener of consumers that wait: shared by all, kept for the next receive, closed if unread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected, until

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.consuming.signals import Signal, Signals
from duewheel.store.database.connections import DriverConnection
from duewheel.store.operations.overview import waiting_consumers

SHORT = timedelta(milliseconds=10)
LISTENERS = """
select pid, backend_xmin from pg_stat_activity
where datname = current_database() and starts_with(application_name, 'duewheel consumer ')
"""
#: More than the sockets between a server and a program hold.
FLOOD = "select count(pg_notify('duewheel_released', n || ' 1')) from generate_series(1, 300000) n"


@pytest.fixture
def console(broker: Broker) -> Iterator[DriverConnection]:
    broker.create_topic("t")
    with connected(broker.dsn) as connection:
        yield connection


def begin_to_listen(consumer: Consumer, console: DriverConnection) -> None:
    """Receive until that takes so short that time is left to wait."""
    while not ask(console, LISTENERS):
        assert not consumer.receive(wait=SHORT)


def test_the_next_receive_waits_with_the_same_listener(broker: Broker, console: DriverConnection) -> None:
    consumer = broker.consumer("t", "g")
    begin_to_listen(consumer, console)
    ((first, _),) = ask(console, LISTENERS)
    consumer.receive(wait=SHORT)
    ((second, _),) = ask(console, LISTENERS)
    assert first == second


def test_who_waits_is_told_by_the_listener(broker: Broker, console: DriverConnection) -> None:
    first = broker.consumer("t", "g", name="airflow:cancel/manual__1/cancel/-1")
    begin_to_listen(first, console)
    with Broker(broker.dsn) as program:
        for number in range(1, 6):
            topic = f"of-the-program-{number}"
            program.create_topic(topic)
            consumer = program.consumer(topic, "g", name="a program")

            def waits_and_is_told(consumer: Consumer = consumer, topic: str = topic) -> bool:
                consumer.receive(wait=SHORT)
                return topic in {one.topic for one in waiting_consumers(broker)[0]}

            # On a busy machine a receive may have no time left to wait.
            until(waits_and_is_told, f"{topic} to be told")
        told = [(one.topic, one.group, one.consumer) for one in waiting_consumers(broker)[0]]
    # Those that waited before are not named.
    assert told == [("of-the-program-5", "g", "a program"), ("t", "g", "airflow:cancel/manual__1/cancel/-1")]


@pytest.mark.slow
def test_the_first_three_groups_of_a_program_that_wait_are_told(
    broker: Broker, console: DriverConnection
) -> None:
    names = [f"t{number}" for number in range(5)]
    for name in names:
        broker.create_topic(name)
    with Broker(broker.dsn) as program, beside() as begin:
        consumers = [program.consumer(name, "g", name="a program") for name in names]
        runs = [begin(lambda one=one: one.receive(wait=timedelta(seconds=30))) for one in consumers]
        until(lambda: len(waiting_consumers(broker)[0]) == 3, "three groups to be told")
        assert {one.topic for one in waiting_consumers(broker)[0]} < set(names)
        for name in names:
            broker.send(name, b"", delay=timedelta(0))
        assert [len(run.result()) for run in runs] == [1] * 5


def test_a_listener_without_a_reader_is_closed(
    broker: Broker, console: DriverConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duewheel.store.consuming.signals.IDLE_SECONDS", 0.05)
    consumer = broker.consumer("t", "g")
    for _ in range(2):
        # Also the one that is made after that.
        begin_to_listen(consumer, console)
        until(lambda: not ask(console, LISTENERS), "the listener to be closed")
    broker.send("t", b"1", delay=timedelta(milliseconds=100))
    assert len(consumer.receive(wait=timedelta(seconds=30))) == 1


def test_an_idle_consumer_does_not_fill_the_notification_queue(
    broker: Broker, console: DriverConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that cannot write to a listener keeps what comes after, and lets no dead row be cleared."""
    monkeypatch.setattr("duewheel.store.consuming.signals.IDLE_SECONDS", 0.2)
    begin_to_listen(broker.consumer("t", "g"), console)
    ask(console, FLOOD)
    until(lambda: ask(console, "select pg_notification_queue_usage()") == [(0.0,)], "the queue to be empty")
    until(lambda: not any(xmin for _, xmin in ask(console, LISTENERS)), "nobody to hold a snapshot")


def test_a_closed_broker_leaves_neither_listener_nor_thread(
    broker: Broker, console: DriverConnection
) -> None:
    before = set(threading.enumerate())
    with Broker(broker.dsn) as other:
        begin_to_listen(other.consumer("t", "g"), console)
    until(lambda: not ask(console, LISTENERS), "the listener to be closed")
    until(lambda: set(threading.enumerate()) <= before, "the thread to end")


class Waiters:
    """Threads that wait for signals of one listener, and say which of them were woken."""

    def __init__(self, signals: Signals, threads: ThreadPoolExecutor) -> None:
        self.signals = signals
        self._threads = threads
        self._leave = threading.Event()
        self.woken: queue.Queue[str] = queue.Queue()

    def wait(self, name: str, topic_id: int, group_id: int, *, looks: bool = True) -> Signal:
        """Begin to wait in a thread; returns when it waits. Without `looks` it leaves by another way."""
        lent: queue.Queue[Signal] = queue.Queue()

        def run() -> None:
            with self.signals.lend("a consumer", (topic_id, group_id)) as signal:
                lent.put(signal)
                if not looks:
                    self._leave.wait()
                elif signal.wait(PATIENCE_SECONDS):
                    signal.catch_up()
                    self.woken.put(name)

        self._threads.submit(run)
        signal = lent.get()
        if looks:
            until(lambda: signal.sleeps or self.signals._reads, f"{name} to wait")
        return signal

    def leave(self) -> None:
        """End the threads that do not look."""
        self._leave.set()


@pytest.fixture
def waiters(broker: Broker) -> Iterator[Waiters]:
    signals = Signals(broker.dsn, listen=True)
    with signals.lend("a consumer", (0, 0)) as signal:
        # The first one begins to listen, and looks for what it may not have heard.
        assert signal.wait(PATIENCE_SECONDS)
    with ThreadPoolExecutor(8) as threads:
        yield Waiters(signals, threads)
        signals.close()


def release(console: DriverConnection, topic_id: int) -> None:
    ask(console, f"select 1 from pg_notify('duewheel_released', '{topic_id} 1')")


def test_a_release_wakes_one_waiting_consumer_of_each_group(
    waiters: Waiters, console: DriverConnection
) -> None:
    for name in ("first", "second", "third"):
        waiters.wait(name, 1, 1)
    waiters.wait("other group", 1, 2)
    waiters.wait("other topic", 2, 1)
    release(console, 1)
    assert {waiters.woken.get(), waiters.woken.get()} == {"first", "other group"}
    # Whoever leads now hears the next one.
    release(console, 1)
    assert waiters.woken.get() in ("second", "third")
    release(console, 2)
    assert waiters.woken.get() == "other topic"
    assert waiters.woken.empty()


def test_a_consumer_that_found_a_full_batch_wakes_the_next(
    waiters: Waiters, console: DriverConnection
) -> None:
    full = waiters.wait("full", 1, 1, looks=False)
    waiters.wait("other group", 1, 2)
    waiters.wait("next", 1, 1)
    waiters.leave()
    until(lambda: full not in waiters.signals._lent, "the consumer to leave")
    waiters.signals.pass_on(1, 1)
    assert waiters.woken.get() == "next"
    release(console, 1)
    assert waiters.woken.get() == "other group"


def test_a_consumer_that_leaves_hands_its_wake_up_on(waiters: Waiters, console: DriverConnection) -> None:
    waiters.wait("leaving", 1, 1, looks=False)
    reader = waiters.wait("other topic", 2, 1)
    release(console, 1)
    release(console, 2)
    assert waiters.woken.get() == "other topic"
    assert not reader.is_woken
    waiters.wait("next", 1, 1)
    waiters.leave()
    assert waiters.woken.get() == "next"


def test_a_release_between_a_look_and_the_wait_after_it_is_heard(
    waiters: Waiters, console: DriverConnection
) -> None:
    signals = waiters.signals
    looked_at = time.monotonic()
    # A consumer of another topic reads the notification.
    waiters.wait("reader", 2, 1)
    release(console, 1)
    release(console, 2)
    assert waiters.woken.get() == "reader"
    for key, since, is_woken in (
        ((1, 1), looked_at, True),
        ((3, 1), looked_at, False),
        ((1, 1), time.monotonic(), False),
    ):
        with signals.lend("a consumer", key, looked_at=since) as signal:
            assert signal.wait(0) is is_woken
    # Nobody reads this one before.
    release(console, 3)
    with signals.lend("a consumer", (3, 1), looked_at=looked_at) as signal:
        assert signal.wait(PATIENCE_SECONDS)


def test_a_strangers_notification_wakes_no_consumer(waiters: Waiters, console: DriverConnection) -> None:
    waiters.wait("waiting", 1, 1)
    for payload in ("", "x 1", "1x", "²", "-1"):
        ask(console, f"select 1 from pg_notify('duewheel_released', '{payload}')")
    waiters.wait("reader", 2, 1)
    release(console, 2)
    assert waiters.woken.get() == "reader"
    release(console, 1)
    assert waiters.woken.get() == "waiting"


def test_a_consumer_that_is_stopped_when_it_is_woken_hands_on(
    waiters: Waiters, console: DriverConnection
) -> None:
    signals = waiters.signals
    with signals.lend("a consumer", (1, 1)) as stopped:
        release(console, 1)
        assert stopped.wait(PATIENCE_SECONDS)
        waiters.wait("next", 1, 1)
        # It leaves without a look.
    assert waiters.woken.get() == "next"
    with signals.lend("a consumer", (1, 1)) as looking:
        release(console, 1)
        assert looking.wait(PATIENCE_SECONDS)
        looking.catch_up()
        waiters.wait("another", 1, 1)
    assert not waiters.woken.qsize()
    release(console, 1)
    assert waiters.woken.get() == "another"
