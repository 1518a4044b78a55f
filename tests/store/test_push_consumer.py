"""Consuming by being called: success, failure, slow and stuck listeners, stopping."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import psycopg2
import pytest
from tests.acting import AT_ONCE, HOUR, MILLISECOND, MINUTE, SECOND, send
from tests.clock import Clock
from tests.logged import logged
from tests.standing_time import StandingTime
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.store.broker import Broker
from duewheel.store.consuming import consumer as consumer_module
from duewheel.store.consuming import push_consumer
from duewheel.store.consuming.lease_states import LeaseState
from duewheel.store.consuming.signals import Signal
from duewheel.store.values.errors import InvalidArgument, UnknownTopic
from duewheel.store.values.messages import Message
from duewheel.store.values.retry_policy import RetryPolicy


@pytest.fixture
def topic(broker: Broker) -> Broker:
    broker.create_topic("t", granularity=MILLISECOND)
    return broker


def outcomes(broker: Broker, group: str = "g") -> Counter[str]:
    """What became of the leased messages."""
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select kind from duewheel.lease_event")
        return Counter(kind for (kind,) in cursor.fetchall())


@pytest.mark.parametrize("listen", [True, False])
def test_stopping_ends_the_wait_for_messages_at_once(
    topic: Broker, monkeypatch: pytest.MonkeyPatch, listen: bool
) -> None:
    monkeypatch.setattr(consumer_module, "LONGEST_PAUSE_SECONDS", 600.0)
    waits = threading.Event()
    wait = Signal.wait

    def noted(signal: Signal, seconds: float) -> None:
        waits.set()
        wait(signal, seconds)

    monkeypatch.setattr(Signal, "wait", noted)
    with Broker(topic.dsn, listen=listen) as broker:
        running = broker.push_consumer("t", "g", lambda _: "success").start()
        assert waits.wait(PATIENCE_SECONDS)
        # Less than the receiver's long poll takes.
        assert running.stop(10 * SECOND)
        assert not any(thread.name == "duewheel-g-receiver" for thread in threading.enumerate())


def test_x11_a_lease_is_kept_alive_while_the_listener_works(
    timed_broker: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour's lease, by a clock that is moved on for 0.9 hours at a time, is extended every 10 ms."""
    monkeypatch.setattr(push_consumer, "_EXTENSIONS_PER_LEASE", 360_000)
    working, let_go = threading.Event(), threading.Event()
    timed_broker.create_topic("t")

    def slow(_: Message) -> str:
        working.set()
        let_go.wait()
        return "success"

    send(timed_broker, "a")
    push = timed_broker.push_consumer("t", "g", slow, invisible=HOUR)
    extended = threading.Event()
    extend = push.consumer.answer_held

    def noted(*given: Any, **more: Any) -> list[LeaseState]:
        states = extend(*given, **more)
        extended.set()
        return states

    push.consumer.answer_held = noted  # type: ignore[method-assign]
    push.start()
    working.wait()
    for _ in range(3):
        clock.advance(0.9 * HOUR)
        # The first of two extensions may have been under way when the clock moved.
        for _ in range(2):
            extended.clear()
            extended.wait()
    let_go.set()
    assert push.stop()
    assert outcomes(timed_broker)["acked"] == 1
    assert outcomes(timed_broker)["expired"] == 0


@pytest.mark.slow
def test_r03_a_listener_that_takes_too_long_has_failed(
    topic: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing = StandingTime()
    monkeypatch.setattr(push_consumer, "time", passing)
    working, let_go = threading.Event(), threading.Event()
    others = threading.Semaphore(0)

    def stuck(message: Message) -> str:
        if message.body == b"stuck":
            working.set()
            let_go.wait()
        others.release()
        return "success"

    receipt = topic.send("t", b"stuck", delay=AT_ONCE)
    push = topic.push_consumer("t", "g", stuck, threads=1, consume_timeout=MINUTE).start()
    working.wait()
    passing.pass_by(61)
    # The one worker is stuck: another one takes its place.
    send(topic, "other")
    assert others.acquire(timeout=PATIENCE_SECONDS)
    let_go.set()
    assert others.acquire(timeout=PATIENCE_SECONDS)
    assert push.stop()
    retry = [entry for entry in topic.history(receipt.message_id) if entry.state == "WaitingRetry"]
    assert "did not return within 1 min" in str(retry[0].reason)


def test_any_error_of_a_listener_is_answered_and_ends_no_thread(topic: Broker) -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise GeneratorExit

        def __eq__(self, other: object) -> bool:
            return False

    class Speechless(Exception):
        def __str__(self) -> str:
            raise SystemExit

    came = threading.Semaphore(0)

    def listener(message: Message) -> object:
        came.release()
        if message.body == b"raises":
            raise SystemExit("enough")
        if message.body == b"raises what has no text":
            raise Speechless
        return Unprintable()

    bodies = (b"raises", b"raises what has no text", b"returns")
    receipts = [topic.send("t", body, delay=AT_ONCE) for body in bodies]
    with topic.push_consumer("t", "g", listener, threads=1):
        assert all(came.acquire(timeout=PATIENCE_SECONDS) for _ in receipts)
    reasons = [
        entry.reason
        for receipt in receipts
        for entry in topic.history(receipt.message_id)
        if entry.state == "WaitingRetry"
    ]
    assert reasons == [
        "SystemExit: enough",
        "Speechless: its text could not be had (SystemExit)",
        "GeneratorExit: ",
    ]


def test_stopping_waits_for_leased_messages(topic: Broker) -> None:
    working, let_go = threading.Event(), threading.Event()

    def slow(_: Message) -> str:
        working.set()
        let_go.wait()
        return "success"

    send(topic, "a")
    push = topic.push_consumer("t", "g", slow).start()
    working.wait()
    threading.Timer(0.05, let_go.set).start()
    assert push.stop()
    assert push.stop()
    assert outcomes(topic) == {"acked": 1}


def test_stopping_does_not_wait_for_ever(topic: Broker, caplog: pytest.LogCaptureFixture) -> None:
    working, let_go = threading.Event(), threading.Event()

    def stuck(_: Message) -> str:
        working.set()
        let_go.wait()
        return "success"

    send(topic, "a")
    push = topic.push_consumer("t", "g", stuck).start()
    working.wait()
    assert not push.stop(timedelta(milliseconds=10))
    assert "stopped with 1 leased messages" in caplog.text
    let_go.set()


@pytest.mark.slow
def test_receiving_continues_after_an_error(topic: Broker, caplog: pytest.LogCaptureFixture) -> None:
    seen = threading.Event()

    def listener(_: Message) -> str:
        seen.set()
        return "success"

    with topic.push_consumer("t", "g", listener):
        connection = psycopg2.connect(topic.dsn)
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            cursor.execute("select duewheel.send('t', 'a'::bytea, delay => '0')")
        connection.close()
        seen.wait()


@pytest.mark.parametrize("message_type", ["DELAY", "FIFO"])
def test_x29_it_continues_with_a_topic_that_was_created_again(topic: Broker, message_type: str) -> None:
    heard: SimpleQueue[tuple[bytes, int]] = SimpleQueue()
    is_fifo = message_type == "FIFO"

    def listen(message: Message) -> str:
        heard.put((message.body, message.attempt))
        return "success" if is_fifo or message.attempt > 1 else "reconsume_later"

    retry = None if is_fifo else RetryPolicy.intervals([MILLISECOND])
    with (
        topic.push_consumer("t", "g", listen, retry=retry),
        logged(push_consumer.log.name, "subscribe again") as gone,
    ):
        topic.delete_topic("t")
        gone.wait()
        topic.create_topic("t", message_type=message_type)
        due: dict[str, Any] = {"message_group": "a"} if is_fifo else {"delay": AT_ONCE}
        topic.send("t", b"new", **due)
        assert heard.get(timeout=PATIENCE_SECONDS) == (b"new", 1)
        if not is_fifo:
            # By the retry policy that it was made with.
            assert heard.get(timeout=PATIENCE_SECONDS) == (b"new", 2)
    assert outcomes(topic)["acked"] == 1


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
def test_x20_it_waits_while_its_group_is_deleted(topic: Broker, mode: str) -> None:
    """Each receive failed and logged a traceback, for good. Nor does it undo the deletion."""
    heard: SimpleQueue[bytes] = SimpleQueue()

    def listen(message: Message) -> str:
        heard.put(message.body)
        return "success"

    with (
        topic.push_consumer("t", "g", listen, name="host", mode=mode),
        logged(push_consumer.log.name, "read by group g, which was deleted: make the group again") as gone,
        logged(push_consumer.log.name, "Traceback") as failed,
    ):
        topic.delete_group("g")
        until(lambda: gone.count > 1, "the second look for the group")
        assert topic.groups() == []
        send(topic, "new")
        topic.consumer("t", "g", name="host", mode=mode)
        assert heard.get(timeout=PATIENCE_SECONDS) == b"new"
    assert failed.count == 0


def test_it_starts_once_and_on_a_topic_that_is_there(topic: Broker) -> None:
    with topic.push_consumer("t", "g", lambda _: "success") as push:
        with pytest.raises(InvalidArgument, match="started before"):
            push.start()
    for threads in (0, 257, 1.0):
        with pytest.raises(InvalidArgument, match="1 to 256"):
            topic.push_consumer("t", "g", lambda _: "success", threads=threads)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic):
        topic.push_consumer("none", "g", lambda _: "success")


def test_what_comes_after_stopping_is_left_to_others(topic: Broker) -> None:
    push = topic.push_consumer("t", "g", lambda _: "success").start()
    assert push._receiver is not None
    assert push.stop(AT_ONCE)
    # It may be receiving still; what it got, it would keep for the length of a lease.
    push._receiver.join()
    send(topic, "a")
    assert len(topic.consumer("t", "g").receive(wait=30 * SECOND)) == 1


@pytest.mark.slow
def test_what_was_being_received_while_stopping_is_not_kept(topic: Broker) -> None:
    push = topic.push_consumer("t", "g", lambda _: "success", invisible=SECOND)
    receive, receiving, stopped = push.consumer.receive_until, threading.Event(), threading.Event()

    def slow(*given: Any) -> Any:
        batch = receive(*given)
        receiving.set()
        stopped.wait()
        return batch

    push.consumer.receive_until = slow  # type: ignore[method-assign]
    send(topic, "a")
    push.start()
    receiving.wait()
    push.stop(AT_ONCE)
    stopped.set()
    assert len(topic.consumer("t", "g").receive(wait=30 * SECOND)) == 1
