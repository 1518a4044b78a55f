"""Delay messages (D01 to D19): the readable specification, a rule each."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import make_dsn
from tests.acting import (
    AT_ONCE,
    DAY,
    HOUR,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    Command,
    bodies,
    rows,
    state,
    states,
    taken,
)
from tests.clock import Clock
from tests.outages import outage
from tests.turning import turning
from tests.waiting import PATIENCE_SECONDS, ask, connected, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.values.errors import (
    BrokerUnreachable,
    DelayOutOfRange,
    InvalidArgument,
    LeaseLost,
    WrongMessageType,
)
from duewheel.store.values.messages import Message, OutOfRange
from duewheel.store.values.retry_policy import RetryPolicy


def test_d01_an_absolute_instant_in_unix_milliseconds(topic: Broker, clock: Clock) -> None:
    """At 17:30:00 (+08:00), for one hour later and for 19:20:00."""
    beijing = timezone(timedelta(hours=8))
    clock.set(datetime(2022, 6, 9, 17, 30, tzinfo=beijing))
    consumer = topic.consumer("t", "g")
    for milliseconds, hour, minute in ((1_654_770_600_000, 18, 30), (1_654_773_600_000, 19, 20)):
        instant = datetime(2022, 6, 9, hour, minute, tzinfo=beijing)
        number = topic.send("t", b"number", deliver_at=milliseconds)
        moment = topic.send("t", b"datetime", deliver_at=instant)
        assert number.deliver_at == moment.deliver_at == instant
        clock.set(instant - MILLISECOND)
        assert taken(consumer) == []
        clock.set(instant)
        assert [(m.body, m.deliver_at) for m in taken(consumer)] == [
            (b"number", instant),
            (b"datetime", instant),
        ]


def test_d01_sql_takes_an_instant_and_keeps_its_microseconds(topic: Broker, clock: Clock) -> None:
    clock.set(datetime(2022, 6, 9, 9, 30, tzinfo=UTC))
    ((deliver_at,),) = rows(
        topic,
        "select deliver_at from duewheel.send('t', 'x'::text,"
        " deliver_at => '2022-06-09 19:20:00.123457+08'::timestamptz, now => %s)",
        clock(),
    )
    assert deliver_at == datetime(2022, 6, 9, 11, 20, 0, 123_457, tzinfo=UTC)
    consumer = topic.consumer("t", "g")
    clock.set(deliver_at - MICROSECOND)
    assert taken(consumer) == []
    clock.set(deliver_at)
    assert [message.deliver_at for message in taken(consumer)] == [deliver_at]


def test_d02_a_relative_delay_counts_from_the_databases_clock(broker: Broker, dsn: str) -> None:
    broker.create_topic("t")
    with connected(dsn) as connection:
        ((before,),) = ask(connection, "select clock_timestamp()")
        from_python = broker.send("t", b"x", delay=90 * MINUTE).deliver_at
        ((from_sql,),) = ask(
            connection, "select deliver_at from duewheel.send('t', 'x'::text, delay => '90 minutes')"
        )
        ((after,),) = ask(connection, "select clock_timestamp()")
    assert before + 90 * MINUTE <= from_python <= from_sql <= after + 90 * MINUTE


def test_d02_a_day_is_24_hours_whatever_the_sessions_time_zone(dsn: str, clock: Clock) -> None:
    """In the night in which the clocks of the session's time zone go back."""
    clock.set(datetime(2026, 10, 24, 12, tzinfo=UTC))
    with Broker(make_dsn(dsn, options="-c timezone=Europe/Berlin"), clock=clock) as broker:
        for name in ("t", "failing"):
            broker.create_topic(name, max_delay=DAY)
        sent, failed = (
            broker.consumer(name, "g", retry=RetryPolicy.intervals([DAY])) for name in ("t", "failing")
        )
        broker.send("t", b"send", delay=DAY)
        broker.send_many("t", [{"body": b"send_many", "delay": DAY}])
        broker.reschedule(broker.send("t", b"reschedule", delay=HOUR).message_id, delay=DAY)
        rows(broker, "select duewheel.send('t', 'sql'::text, delay => '1 day', now => %s)", clock())
        broker.send_many("failing", [{"body": b"x", "delay": AT_ONCE}] * 2)
        with_delay, by_policy = failed.receive()
        failed.nack(with_delay, delay=DAY)
        failed.nack(by_policy)
        clock.advance(24 * HOUR - MICROSECOND)
        assert taken(sent) + taken(failed) == []
        clock.advance(MICROSECOND)
        assert sorted(bodies(taken(sent))) == [b"reschedule", b"send", b"send_many", b"sql"]
        assert len(taken(failed)) == 2


def test_d03_past_time_is_delivered_at_once(topic: Broker, clock: Clock) -> None:
    receipts = [
        topic.send("t", b"x", deliver_at=clock() + past)
        for past in (AT_ONCE, -MICROSECOND, -HOUR, -1000 * DAY)
    ]
    assert {receipt.deliver_at for receipt in receipts} == {clock()}
    got = [message.message_id for message in taken(topic.consumer("t", "g"))]
    assert got == [receipt.message_id for receipt in receipts]


def test_d04_a_delay_past_the_maximum_is_refused_with_the_limit(topic: Broker, clock: Clock) -> None:
    (settings,) = topic.topics()
    assert (settings.max_delay, settings.out_of_range) == (24 * HOUR, OutOfRange.REJECT)
    topic.send("t", b"longest", delay=24 * HOUR)
    for beyond in ({"delay": 24 * HOUR + MICROSECOND}, {"deliver_at": clock() + 25 * HOUR}):
        with pytest.raises(DelayOutOfRange, match='the limit of topic "t" is 24:00:00'):
            topic.send("t", b"too long", **beyond)
    clock.advance(30 * HOUR)
    assert bodies(taken(topic.consumer("t", "g"))) == [b"longest"]


def test_d04_a_delay_past_the_maximum_may_be_delivered_at_once(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", out_of_range="deliver", max_delay=HOUR)
    receipt = timed_broker.send("t", b"too long", delay=HOUR + MICROSECOND)
    waits = timed_broker.send("t", b"longest", delay=HOUR)
    assert (receipt.deliver_at, waits.deliver_at) == (clock(), clock() + HOUR)
    assert bodies(taken(timed_broker.consumer("t", "g"))) == [b"too long"]


def test_d05_granularity_down_to_a_millisecond_and_never_early(broker: Broker) -> None:
    """By a wheel that turns, and by the database's clock."""
    with pytest.raises(InvalidArgument, match="1 ms"):
        broker.create_topic("finer", granularity=timedelta(microseconds=999))
    broker.create_topic("t", granularity=MILLISECOND)
    with turning(broker):
        start = rows(broker, "select clock_timestamp() + interval '300 ms'")[0][0]
        receipts = [broker.send("t", b"x", deliver_at=start + n * 7 * MILLISECOND) for n in range(60)]
        until(lambda: state(broker, receipts[-1].message_id) == "Ready", "the last one to be released")
    released = [(entry.at, r.deliver_at) for r in receipts for entry in broker.history(r.message_id)[2:]]
    assert len(released) == 60
    assert all(at is not None and at >= due_at for at, due_at in released)


def test_d05_the_default_granularity_is_finer_than_a_second(topic: Broker) -> None:
    assert topic.topics()[0].granularity == timedelta(milliseconds=15)


def test_d06_every_state_can_be_asked_for_per_group(topic: Broker, clock: Clock) -> None:
    good, bad = (topic.consumer("t", name) for name in ("good", "bad"))
    message_id = topic.send("t", b"x", delay=HOUR).message_id
    assert states(topic, message_id) == ["Initialized", "Timing"]
    clock.advance(HOUR)
    topic.tick("t")
    assert state(topic, message_id, "good") == state(topic, message_id, "bad") == "Ready"
    held = good.receive()
    assert (state(topic, message_id, "good"), state(topic, message_id, "bad")) == ("Inflight", "Ready")
    good.ack(held)
    bad.nack(bad.receive())
    assert (state(topic, message_id, "good"), state(topic, message_id, "bad")) == ("Acked", "WaitingRetry")
    while state(topic, message_id, "bad") != "DLQ":
        clock.advance(2 * HOUR)
        bad.nack(bad.receive())
    assert state(topic, message_id, "good") == "Acked"
    clock.advance(100 * HOUR)
    # Its slot is made, as nobody has kept up until now; then it is dropped.
    topic.maintain()
    topic.maintain()
    assert [entry.state for entry in topic.history(message_id)] == ["Deleted"]


def test_d07_an_unanswered_message_is_delivered_again(topic: Broker, clock: Clock) -> None:
    sent = topic.send("t", b"x", delay=AT_ONCE)
    consumer = topic.consumer("t", "g")
    assert len(consumer.receive(invisible=30 * SECOND)) == 1
    clock.advance(30 * SECOND - MICROSECOND)
    assert not consumer.receive()
    clock.advance(MICROSECOND)
    (again,) = consumer.receive()
    assert (again.message_id, again.attempt) == (sent.message_id, 2)


def test_d08_an_acked_message_is_kept_and_a_group_can_rewind(topic: Broker, clock: Clock) -> None:
    """It gets exactly what was released since; its leases end; other groups notice nothing."""
    start = clock()
    topic.update_topic("t", max_delay=5 * DAY)
    topic.maintain()
    group, other = topic.consumer("t", "g"), topic.consumer("t", "other")
    for day in range(1, 6):
        topic.send("t", b"%d" % day, delay=day * DAY)
    for _ in range(4):
        clock.advance(DAY)
        assert len(taken(group)) == len(taken(other)) == 1
    clock.advance(DAY)
    held = group.receive()
    assert bodies(held) == [b"5"]
    assert topic.find(held[0].message_id) is not None
    topic.rewind("t", "g", start + 2 * DAY)
    assert bodies(taken(group)) == [b"2", b"3", b"4", b"5"], "what was released at the instant counts, too"
    with pytest.raises(LeaseLost):
        group.ack(held)
    assert bodies(taken(other)) == [b"5"]
    topic.rewind("t", "g", "earliest")
    assert bodies(taken(group)) == [b"1", b"2", b"3", b"4", b"5"]
    topic.rewind("t", "g", "latest")
    assert taken(group) == []
    # Until retention ends.
    clock.advance(DAY)
    topic.maintain()
    topic.rewind("t", "g", "earliest")
    assert bodies(taken(group)) == [b"3", b"4", b"5"]


def test_d08_a_group_can_begin_at_an_instant(topic: Broker, clock: Clock, dsn: str) -> None:
    """What was due before and released before does not belong to it, late commits included."""
    topic.maintain()
    with connected(dsn, autocommit=False) as sender:
        topic.send("t", b"late", delay=MINUTE, connection=sender)
        topic.send("t", b"in time", delay=MINUTE)
        clock.advance(2 * MINUTE)
        assert topic.tick("t")
        sender.commit()
    clock.advance(MINUTE)
    assert topic.tick("t")
    topic.send("t", b"at the instant", delay=HOUR)
    start = clock() + HOUR
    topic.send("t", b"later", delay=2 * HOUR)
    clock.advance(3 * HOUR)
    assert bodies(taken(topic.consumer("t", "g", start=start))) == [b"at the instant", b"later"]
    assert len(taken(topic.consumer("t", "everything"))) == 4
    assert taken(topic.consumer("t", "nothing", start="latest")) == []


def test_d09_retention_by_size_drops_the_oldest_slots_first(topic: Broker, clock: Clock) -> None:
    topic.update_topic("t", max_delay=20 * DAY, retention=10 * DAY)
    consumer = topic.consumer("t", "g")
    sent = [topic.send("t", os.urandom(200_000), delay=day * DAY + MINUTE).message_id for day in range(1, 5)]
    waits = topic.send("t", os.urandom(200_000), delay=20 * DAY).message_id
    for _ in range(6):
        clock.advance(DAY)
        taken(consumer)
    topic.maintain()
    topic.maintain()
    assert all(topic.find(message_id) for message_id in sent), "without a limit nothing goes by its size"
    # Room for what there is, less more than one of its slots takes.
    topic.update_settings(retention_bytes=topic.settings().message_bytes - 500_000, when_full="drop_unread")
    done = topic.maintain()
    assert len(done.dropped_when_full) == 2, "whole slots"
    assert [topic.find(message_id) is not None for message_id in [*sent, waits]] == [
        False, False, True, True, True,
    ]  # fmt: skip
    for message_id in sent[:2]:
        (entry,) = topic.history(message_id)
        assert entry.state == "Deleted"
        assert "retention_bytes" in str(entry.reason)


def test_d09_retention_counts_from_delivery_not_from_send(topic: Broker, clock: Clock) -> None:
    assert topic.topics()[0].retention == 72 * HOUR
    sent = topic.send("t", b"x", delay=24 * HOUR)
    consumer = topic.consumer("t", "g")
    clock.advance(24 * HOUR)
    assert len(taken(consumer)) == 1
    clock.advance(72 * HOUR - SECOND)
    topic.maintain()
    assert topic.find(sent.message_id) is not None, "dropped 96 hours after the send, 72 after the delivery"
    # Whole slots are dropped: a day later at the latest the last of its day is past retention, too.
    clock.advance(DAY)
    topic.maintain()
    assert topic.find(sent.message_id) is None
    assert [entry.state for entry in topic.history(sent.message_id)] == ["Deleted"]


def test_d09_by_age_nothing_unread_or_unanswered_is_dropped(topic: Broker, clock: Clock) -> None:
    topic.update_topic("t", retention=2 * HOUR)
    reader, late = topic.consumer("t", "g"), topic.consumer("t", "late")
    sent = topic.send("t", b"x", delay=SECOND)
    clock.advance(MINUTE)
    assert bodies(taken(reader)) == [b"x"]
    clock.advance(DAY)
    topic.maintain()
    assert topic.find(sent.message_id) is not None, "one group has not read it"
    batch = late.receive()
    assert bodies(batch) == [b"x"]
    topic.maintain()
    assert topic.find(sent.message_id) is not None, "one group has not answered"
    late.ack(batch)
    topic.maintain()
    assert topic.find(sent.message_id) is None
    assert [entry.state for entry in topic.history(sent.message_id)] == ["Deleted"]
    topic.send("t", b"y", delay=AT_ONCE)
    assert bodies(taken(reader)) == bodies(taken(late)) == [b"y"]


def test_d10_a_message_of_the_wrong_type_is_refused(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("delayed", message_type="DELAY")
    timed_broker.create_topic("normal", message_type="NORMAL")
    with pytest.raises(WrongMessageType, match='"delayed" is of type DELAY and the message has no'):
        timed_broker.send("delayed", b"x")
    for when in ({"delay": SECOND}, {"deliver_at": clock() + SECOND}, {"delay_level": 1}):
        with pytest.raises(WrongMessageType, match='"normal" is of type NORMAL and the message has a'):
            timed_broker.send("normal", b"x", **when)
    timed_broker.create_topic("fifo", message_type="FIFO")
    for wrong in ({}, {"message_group": "a", "delay": SECOND}):
        with pytest.raises(WrongMessageType, match='"fifo" is of type FIFO'):
            timed_broker.send("fifo", b"x", **wrong)
    timed_broker.send("delayed", b"x", delay=AT_ONCE)
    timed_broker.send("normal", b"x")
    timed_broker.send("fifo", b"x", message_group="a")


def test_d11_topics_are_made_with_a_command_that_takes_the_type(command: Command, broker: Broker) -> None:
    command("topic", "create", "delayed", "--type", "DELAY")
    command("topic", "create", "fifo", "--type", "FIFO")
    command("topic", "create", "normal", "--type", "NORMAL")
    assert [(topic.name, topic.message_type) for topic in broker.topics()] == [
        ("delayed", "DELAY"),
        ("fifo", "FIFO"),
        ("normal", "NORMAL"),
    ]


def test_d12_a_message_has_topic_key_tag_properties_and_body(topic: Broker) -> None:
    body = bytes(range(256))
    properties = {"shop": "Köln", "total": 12.5, "items": [1, None]}
    topic.send("t", body, delay=AT_ONCE, key="4711", tag="unpaid", properties=properties)
    topic.send("t", b"", delay=AT_ONCE, key="4712", tag="paid")
    (found,) = topic.find_key("t", "4711")
    (received,) = topic.consumer("t", "g", "unpaid").receive()
    for one in (found, received):
        assert (one.topic, one.key, one.tag, one.properties, one.body) == (
            "t", "4711", "unpaid", properties, body,
        )  # fmt: skip
    assert found.message_id == received.message_id


def test_d13_a_receipt_names_the_message(topic: Broker) -> None:
    receipts = [
        topic.send("t", b"1", delay=AT_ONCE),
        *topic.send_many("t", [{"body": b"2", "delay": AT_ONCE}, {"body": b"3", "delay": AT_ONCE}]),
    ]
    received = topic.consumer("t", "g").receive()
    assert {m.message_id: m.body for m in received} == {
        receipt.message_id: b"%d" % (n + 1) for n, receipt in enumerate(receipts)
    }


def test_d14_a_listener_gets_each_message_and_returns_a_result(broker: Broker) -> None:
    broker.create_topic("t")
    called: dict[str, Message] = {}
    answered = threading.Semaphore(0)
    # What fails does not come again before the end of the test.
    broker.consumer("t", "g", retry=RetryPolicy.intervals([HOUR]))

    def listener(message: Message) -> str:
        called[message.message_id] = message
        answered.release()
        return "success" if message.body == b"good" else "reconsume_later"

    good, bad = (broker.send("t", body, delay=AT_ONCE).message_id for body in (b"good", b"bad"))
    with broker.push_consumer("t", "g", listener):
        for _ in range(2):
            assert answered.acquire(timeout=PATIENCE_SECONDS)
    assert set(called) == {good, bad}
    assert (state(broker, good, "g"), state(broker, bad, "g")) == ("Acked", "WaitingRetry")


def test_d15_a_long_poll_then_an_ack_each(broker: Broker) -> None:
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    with ThreadPoolExecutor(1) as threads:
        # Asked for before it is sent.
        receiving = threads.submit(consumer.receive, 10, MINUTE, 30 * SECOND)
        sent = broker.send("t", b"x", delay=100 * MILLISECOND)
        (message,) = receiving.result()
    assert message.message_id == sent.message_id
    consumer.ack(message)
    assert state(broker, sent.message_id, "g") == "Acked"
    assert not consumer.receive()


def test_d15_after_an_error_one_receives_again(broker: Broker, dsn: str, postgres: EmbeddedPostgres) -> None:
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    sent = broker.send("t", b"x", delay=AT_ONCE)
    with outage(postgres, dsn), pytest.raises(BrokerUnreachable):
        consumer.receive()
    assert [m.message_id for m in consumer.receive()] == [sent.message_id]


@pytest.mark.slow
def test_d16_state_survives_a_crash_of_the_server(tmp_path: Path, clock: Clock) -> None:
    with EmbeddedPostgres(tmp_path / "server", settings={"shared_buffers": "32MB"}) as server:
        dsn = server.ensure_database("duewheel")
        with Broker(dsn, clock=clock) as broker:
            broker.upgrade()
            broker.create_topic("t", queues=1)
            consumer = broker.consumer("t", "g")
            broker.send("t", b"acked", delay=AT_ONCE)
            consumer.ack(consumer.receive())
            broker.send("t", b"due meanwhile", delay=MINUTE)
            broker.send("t", b"due later", delay=HOUR)
            recalled = broker.send("t", b"recalled", delay=MINUTE)
            broker.recall(recalled.message_id)
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.pid != pid, "the server to be gone")
        server.start()
        clock.advance(2 * MINUTE)
        with Broker(dsn, clock=clock) as broker:
            consumer = broker.consumer("t", "g")
            assert bodies(taken(consumer)) == [b"due meanwhile"]
            clock.advance(HOUR)
            assert bodies(taken(consumer)) == [b"due later"]


def test_d17_very_many_messages_may_be_due_at_one_instant(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t")
    instant = clock() + HOUR
    receipts = timed_broker.send_many("t", [{"body": b"x", "deliver_at": instant}] * 20_000)
    clock.set(instant - MICROSECOND)
    assert not timed_broker.tick("t")
    clock.set(instant)
    assert timed_broker.tick("t")
    clock.advance(MICROSECOND)
    assert not timed_broker.tick("t"), "one tick released them all"
    got = [message.message_id for message in taken(timed_broker.consumer("t", "g"))]
    assert sorted(got) == sorted(receipt.message_id for receipt in receipts)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (
            {"cron": "0 5 * * *", "timezone": "UTC"},
            [(24 * day - 5) * HOUR + 30 * MINUTE for day in (1, 2, 3)],
        ),
        ({"every": 2 * MINUTE}, [n * 2 * MINUTE for n in (1, 2, 3)]),
    ],
    ids=["every day at 5 o'clock", "every 2 minutes"],
)
def test_d18_timed_scheduling(
    topic: Broker, clock: Clock, when: dict[str, Any], expected: list[timedelta]
) -> None:
    """From 9:30, by a wheel that comes by every half minute: one message for each occurrence."""
    start = clock()
    topic.create_schedule("clean-up", "t", b"files", **when)
    consumer = topic.consumer("t", "g")
    for due in expected:
        for step in (MINUTE, 30 * SECOND, MICROSECOND, AT_ONCE):
            clock.set(start + due - step)
            topic.advance_schedules()
            assert len(taken(consumer)) == (0 if step else 1)


def test_d18_a_wheel_sends_scheduled_messages(broker: Broker) -> None:
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    ((start_at,),) = rows(broker, "select clock_timestamp() + interval '200 ms'")
    broker.create_schedule("tick", "t", b"tick", every=SECOND, start_at=start_at)
    due: list[datetime] = []
    with turning(broker):
        while len(due) < 2:
            batch = consumer.receive(1, wait=10 * SECOND)
            consumer.ack(batch)
            due += [message.deliver_at for message in batch]
    assert due == [start_at, start_at + SECOND]


def test_d19_an_unpaid_order_is_cancelled_and_a_paid_one_is_not(
    topic: Broker, clock: Clock, dsn: str
) -> None:
    with connected(dsn, autocommit=False) as shop:
        ask(shop, "create table orders (number text primary key, status text not null)")
        shop.commit()
        for number in ("paid", "unpaid", "paid too late"):
            ask(shop, "insert into orders values (%s, 'placed')", number)
            topic.send("t", number, delay=30 * MINUTE, key=number, connection=shop)
            shop.commit()

        def pay(number: str) -> str:
            answer = topic.recall_key("t", number, connection=shop).outcome
            if answer == "recalled":
                ask(shop, "update orders set status = 'paid' where number = %s", number)
            shop.commit()
            return answer

        clock.advance(29 * MINUTE)
        assert pay("paid") == "recalled"
        clock.advance(MINUTE)
        consumer = topic.consumer("t", "cancel")
        for message in (batch := consumer.receive()):
            ask(shop, "update orders set status = 'cancelled' where number = %s", message.body.decode())
        consumer.ack(batch, connection=shop)
        shop.commit()
        assert pay("paid too late") == "already_released"
        assert dict(ask(shop, "select number, status from orders")) == {
            "paid": "paid",
            "unpaid": "cancelled",
            "paid too late": "cancelled",
        }
