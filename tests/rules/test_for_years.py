"""A broker on a server that others use, for years (X22 to X30): the readable specification, a rule each."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, SECOND, bodies, rows
from tests.clock import Clock
from tests.silence import way
from tests.spark.reading import between, stream
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.database import notices
from duewheel.store.operations import overview
from duewheel.store.values.errors import BrokerUnreachable, InvalidArgument, InvalidKey, InvalidTag
from duewheel.store.values.retry_policy import RetryPolicy
from duewheel.store.wheel import upkeep

#: What `forget` may take in a transaction where the server ends all that is longer.
FEW = 100


def pass_days(broker: Broker, clock: Clock, days: int) -> None:
    """Upkeep is done on each of these days."""
    for _ in range(days):
        clock.advance(DAY)
        broker.maintain()


def test_x22_each_topic_has_its_retention_with_a_warning_before(timed_broker: Broker, clock: Clock) -> None:
    sent = {}
    for name, days in (("short", 3), ("long", 30)):
        timed_broker.create_topic(name, queues=1, retention=days * DAY, dead_letter_retention=10 * DAY)
        sent[name] = timed_broker.send(name, name.encode(), delay=AT_ONCE)
        readers = timed_broker.consumer(name, "readers")
        readers.ack(readers.receive())
    timed_broker.consumer("long", "abandoned")
    dying = timed_broker.consumer("short", "dying", retry=RetryPolicy.unordered(max_retries=0))
    dying.nack(dying.receive())
    with connected(timed_broker.dsn) as stranger:
        ask(stranger, "begin")
        pass_days(timed_broker, clock, 6)
        # Neither the other topic nor the group that takes nothing of it keeps this one.
        assert timed_broker.find(sent["short"].message_id) is None
        assert timed_broker.find(sent["long"].message_id) is not None
        ask(stranger, "rollback")

    def dead() -> tuple[int, int]:
        (group,) = (
            group for topic in timed_broker.stats().topics for group in topic.groups if group.group == "dying"
        )
        return group.dead, group.dropped_soon

    assert dead() == (1, 0)
    pass_days(timed_broker, clock, 3)
    clock.advance(HOUR)
    assert dead() == (1, 1)
    pass_days(timed_broker, clock, 3)
    assert dead() == (0, 0)


@pytest.mark.owner
def test_x23_other_work_on_the_server_stops_nothing_and_is_named(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    with connected(topic.dsn) as stranger:
        ask(stranger, "create publication everything for all tables")
        for text in ("1 " + "9" * 400, "1048576 1", "drop table"):
            ask(stranger, "select pg_notify('duewheel_due', %s)", text)
            assert notices.due(text) is None
        topic.send("t", b"sent", delay=AT_ONCE)
        batch = consumer.receive()
        assert bodies(batch) == [b"sent"]
        consumer.ack(batch)
        clock.advance(10 * DAY)
        topic.tick("t")
        assert topic.maintain().dropped
        # What Postgres opens to every login is not prevented, and is named.
        ask(stranger, "select pg_advisory_lock(duewheel.tick_lock_class(), -2)")
        clock.advance(3 * HOUR)
        warnings = topic.maintain().warnings
        assert any("another session has the lock of upkeep" in said for said in warnings)
        assert any(f"the session with pid {stranger.info.backend_pid} " in said for said in warnings)


def test_x24_an_action_on_all_matches_acts_on_those_shown(topic: Broker) -> None:
    for key, tag in (("order-1", "a"), ("order-2", "b"), ("other", "a")):
        topic.send("t", key.encode(), delay=HOUR, key=key, tag=tag)
    shown = topic.recall_many("t", key_prefix="order-", tag="a", dry_run=True)
    assert (shown.matched, shown.recalled) == (1, 0)
    assert topic.recall_many("t", key_prefix="order-", tag="a").recalled == 1
    assert [message.recalled for message in topic.find_key("t", "order-1")] == [True]
    # What does not say which messages are meant, or says it wrongly, acts on none.
    for criteria in ({}, {"key_prefix": ""}, {"tag": ""}):
        with pytest.raises((InvalidArgument, InvalidKey, InvalidTag)):
            topic.recall_many("t", **criteria)
    assert topic.recall_many("t", everything=True, dry_run=True).matched == 2


@pytest.mark.owner
def test_x25_upkeep_goes_in_bounded_steps_after_any_rest(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    topic.maintain()
    for _ in range(40):
        topic.send("t", b"", delay=SECOND)
        clock.advance(SECOND)
        consumer.ack(consumer.receive())
        clock.advance(DAY)
    topic.tick("t")
    with connected(topic.dsn) as connection:

        def call(state: str | None, count: int) -> upkeep.State:
            if state and count > FEW and (todo := json.loads(state)["todo"])[0]["step"] == "forget":
                # As where a timeout of the server ends what is longer.
                canceled = [{**todo[0], "canceled": 1}, *todo[1:]]
                return {**json.loads(state), "todo": canceled, "done": 0, "report": {}}
            ((after,),) = ask(connection, upkeep.STEP, state, count, clock())
            return after

        assert upkeep.in_rounds(call)["failed"] == []
    assert topic.stats().upkeep.slots_to_seal == 0
    assert rows(topic, "select count(*) < 10 from duewheel.lease") == [(True,)]
    role = "select role_name from duewheel.entry_points() where function_name = 'upkeep_step'"
    assert rows(topic, role) == [("duewheel_admin",)]
    clock.advance(SECOND)
    topic.maintain()
    assert topic.stats().upkeep.slots_past_retention == 0
    assert timedelta(0) <= clock() - topic.stats().upkeep.maintained_at < HOUR


def test_x26_a_run_continues_as_the_answerer_was_told(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("approvals")
    answer = "select outcome from duewheel.answer_key('approvals', %s, '{\"approved\": true}')"
    waits = {
        key: timed_broker.send("approvals", b"", delay=HOUR, key=key).message_id
        for key in ("in time", "too late", "rolled back", "committed too late")
    }

    def outcomes() -> dict[str, str]:
        return {key: timed_broker.find_wait(wait).outcome.value for key, wait in waits.items()}

    with connected(timed_broker.dsn) as answerer, connected(timed_broker.dsn) as late:
        ask(answerer, "begin")
        assert ask(answerer, answer, "in time") == [("answered",)]
        # Nobody goes on with an answer that may be rolled back.
        assert outcomes()["in time"] == "waiting"
        ask(answerer, "commit")
        assert ask(answerer, answer, "in time") == [("already_answered",)]
        ask(answerer, "begin")
        assert ask(answerer, answer, "rolled back") == [("answered",)]
        ask(answerer, "rollback")
        ask(late, "begin")
        assert ask(late, answer, "committed too late") == [("answered",)]
        clock.advance(HOUR)
        timed_broker.tick("approvals")
        ended = outcomes()
        assert ask(answerer, answer, "too late") == [("too_late",)]
        with pytest.raises(psycopg2.Error, match="was released at"):
            ask(late, "commit")
    assert ended == outcomes()
    assert ended == {
        "in time": "answered",
        "too late": "timed_out",
        "rolled back": "timed_out",
        "committed too late": "timed_out",
    }
    assert timed_broker.find_wait(waits["in time"]).body == {"approved": True}


def test_x27_a_clock_ahead_makes_upkeep_forget_nothing(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1, retention=HOUR)
    consumer = timed_broker.consumer("t", "g")
    timed_broker.maintain()
    with connected(timed_broker.dsn, autocommit=False) as slow:
        timed_broker.send("t", b"committed late", delay=AT_ONCE, connection=slow)
        clock.advance(3 * HOUR)
        timed_broker.tick("t")
        timed_broker.maintain()
        slow.commit()
    right = clock()
    clock.set(right + 8 * HOUR)
    timed_broker.maintain()
    clock.set(right + SECOND)
    timed_broker.send("t", b"sent after the clock was put right", delay=AT_ONCE)
    clock.advance(SECOND)
    assert bodies(consumer.receive()) == [b"committed late", b"sent after the clock was put right"]


def test_x28_consumers_of_a_group_lose_no_messages_to_each_other(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", queues=1)
    first = timed_broker.consumer("t", "g", "a")
    with pytest.raises(InvalidArgument, match="All consumers of a group have one subscription"):
        timed_broker.consumer("t", "g", "b")
    other = timed_broker.consumer("t", "h", "b")
    for number in range(10):
        timed_broker.send("t", f"{number}", tag="ab"[number % 2], delay=AT_ONCE)
    assert bodies(first.receive()) == [b"0", b"2", b"4", b"6", b"8"]
    assert bodies(other.receive()) == [b"1", b"3", b"5", b"7", b"9"]
    timed_broker.send("t", b"unread", tag="a", delay=AT_ONCE)
    timed_broker.tick("t")
    change = timed_broker.set_subscription("t", "g", "b")
    assert (change.passed_over, change.missed) == (1, 5)


def test_x29_a_silent_server_ends_a_call_and_stops_no_other(topic: Broker) -> None:
    with way(topic.dsn) as silent, Broker(silent.dsn, call_timeout=SECOND) as broker:
        broker.topics()
        silent.silence("duewheel")
        with pytest.raises(BrokerUnreachable, match="did not answer within 1 s"):
            broker.send("t", b"", delay=SECOND)
        assert broker.send("t", b"", delay=SECOND).message_id


def test_x30_a_micro_batch_is_cut_at_one_instant_everywhere(timed_broker: Broker, clock: Clock) -> None:
    clock.set(datetime.now(UTC) - HOUR)
    for topic, group, keys in (("large", "one", range(90)), ("small", "other", range(0, 90, 10))):
        timed_broker.create_topic(topic)
        messages = [{"body": b"", "key": str(n), "deliver_at": clock() + n * SECOND} for n in keys]
        # Nine of ten in one queue.
        groups = [
            {**message, "message_group": group if n % 10 else str(n)} for n, message in enumerate(messages)
        ]
        timed_broker.send_many(topic, groups)
    read = stream(timed_broker, topic="large, small", maxMessagesPerTrigger="33")
    begin = read.initialOffset()
    for seconds in (range(30), range(30, 60), range(60, 90)):
        end = read.latestOffset(begin, read.getDefaultReadLimit())
        assert between(read, begin, end) == sorted([*seconds, *seconds[::10]])
        begin = end


def test_x31_a_list_that_is_cut_reports_that_there_is_more(topic: Broker) -> None:
    topic.send_many("t", [{"body": b"", "delay": AT_ONCE}] * 2)
    topic.tick("t")
    consumer = topic.consumer("t", "g")
    for is_cut in (False, True):
        assert consumer.receive(1)
        leases, has_more = overview.running_leases(topic, 1)
        assert (len(leases), has_more) == (1, is_cut)
