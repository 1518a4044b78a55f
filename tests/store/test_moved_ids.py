"""An id answers for its message as long as that lives, wherever the message was moved."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.acting import DAY, HOUR, rows
from tests.clock import NOW, Clock
from tests.store.test_keys import rows_read
from tests.waiting import ask, connected

from duewheel.store import AlreadyReleased, Broker, RecallOutcome, RecallReceipt, UnknownMessage
from duewheel.store.values.messages import SendOutcome, SendReceipt

ROWS_OF_MOVES = "select count(*) from duewheel.moved_id"


def moved(broker: Broker, times: int) -> tuple[list[SendReceipt], str]:
    """A message that was moved so often, each time by another of its ids: its receipts, and its last id."""
    receipts = [broker.send("t", b"a", delay=HOUR, key="k", tag="x")]
    for number in range(times):
        asked = receipts[(number * 7) % len(receipts)]
        receipts.append(broker.reschedule(asked.message_id, delay=(2 + number) * HOUR))
    return receipts, receipts[-1].message_id


def got(broker: Broker) -> list[str]:
    consumer = broker.consumer("t", "g")
    batch = consumer.receive(10)
    consumer.ack(batch)
    return [message.message_id for message in batch]


def test_x21_every_id_recalls_a_message_that_was_moved(topic: Broker, clock: Clock) -> None:
    for asked in range(4):
        receipts, present = moved(topic, 3)
        answer = RecallReceipt(RecallOutcome.RECALLED, present)
        assert topic.recall(receipts[asked].message_id) == answer
        assert [topic.recall(receipt.message_id) for receipt in receipts] == [answer] * 4
        with pytest.raises(UnknownMessage, match="was recalled before"):
            topic.reschedule(receipts[0].message_id, delay=HOUR)
    clock.advance(20 * HOUR)
    assert got(topic) == []


def test_x07_an_idempotency_key_lives_as_long_as_its_message(timed_broker: Broker, clock: Clock) -> None:
    """And for the retention after that, wherever the message was moved."""
    timed_broker.create_topic("t", queues=1, max_delay=60 * DAY)
    sent = {"body": b"", "delay": HOUR, "idempotency_key": "once"}
    first = timed_broker.send("t", **sent)
    timed_broker.reschedule(first.message_id, delay=30 * DAY)
    for days in (29, 3):
        clock.advance(days * DAY)
        timed_broker.tick("t")
        timed_broker.maintain()
        assert timed_broker.send("t", **sent).outcome is SendOutcome.DUPLICATE
    clock.advance(2 * DAY)
    timed_broker.maintain()
    assert timed_broker.send("t", **sent).outcome is SendOutcome.SENT


def test_x07_a_key_lives_as_long_as_the_message_that_was_kept(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1, max_delay=60 * DAY)
    waiting = timed_broker.send("t", b"", delay=30 * DAY, key="k")
    sent = {"body": b"", "delay": HOUR, "key": "k", "on_conflict": "keep", "idempotency_key": "once"}
    assert timed_broker.send("t", **sent).outcome is SendOutcome.KEPT
    for days in (29, 3):
        clock.advance(days * DAY)
        timed_broker.tick("t")
        timed_broker.maintain()
        again = timed_broker.send("t", **sent)
        assert (again.outcome, again.message_id) == (SendOutcome.DUPLICATE, waiting.message_id)


def test_x21_a_replaced_message_names_what_took_its_place(topic: Broker) -> None:
    receipts, _ = moved(topic, 2)
    new = topic.send("t", b"b", delay=HOUR, key="k", on_conflict="replace")
    for receipt in receipts:
        assert topic.recall(receipt.message_id) == RecallReceipt(RecallOutcome.REPLACED, new.message_id)
        with pytest.raises(UnknownMessage, match=f"was replaced by {new.message_id}"):
            topic.reschedule(receipt.message_id, delay=HOUR)
    # That one is moved in its turn: its id stands for it.
    topic.reschedule(new.message_id, delay=2 * HOUR)
    answer = topic.recall(receipts[0].message_id)
    assert answer == RecallReceipt(RecallOutcome.REPLACED, new.message_id)
    assert topic.recall(new.message_id).outcome is RecallOutcome.RECALLED
    found = topic.find(receipts[0].message_id)
    assert found is not None
    assert (found.recalled, found.replaced_by) == (True, new.message_id)
    assert topic.history(receipts[0].message_id)[-1].reason == f"replaced by {new.message_id}"


def test_x21_find_and_history_follow_a_message(topic: Broker, clock: Clock) -> None:
    receipts, present = moved(topic, 2)
    first, second = (receipt.message_id for receipt in receipts[:2])
    clock.advance(2 * HOUR)
    assert got(topic) == [], "not at an instant that it was moved away from"
    clock.advance(HOUR)
    assert got(topic) == [present]
    for receipt in receipts:
        found = topic.find(receipt.message_id)
        assert found is not None
        assert (found.message_id, found.moved_from, found.moved_to) == (present, first, None)
        assert (found.recalled, found.released) == (False, True)
        entries = topic.history(receipt.message_id)
        assert [(one.state, one.known_as, one.until_at, one.reason) for one in entries[:7]] == [
            ("Initialized", first, None, None),
            ("Timing", first, NOW + HOUR, None),
            ("Moved", first, NOW + 2 * HOUR, f"to {second}"),
            ("Timing", second, NOW + 2 * HOUR, None),
            ("Moved", second, NOW + 3 * HOUR, f"to {present}"),
            ("Timing", present, NOW + 3 * HOUR, None),
            ("Ready", present, None, None),
        ]
        assert [one.state for one in entries[7:]] == ["Inflight", "Acked"]
        assert topic.recall(receipt.message_id) == RecallReceipt(RecallOutcome.ALREADY_RELEASED, present)
        with pytest.raises(AlreadyReleased):
            topic.reschedule(receipt.message_id, delay=HOUR)
    of_key = {one.message_id: one for one in topic.find_key("t", "k")}
    assert {one: (of_key[one].moved_from, of_key[one].moved_to) for one in of_key} == {
        first: (None, present),
        second: (first, present),
        present: (first, None),
    }
    assert {(one.recalled, one.released) for one in of_key.values()} == {(False, False), (False, True)}


def days_pass(broker: Broker, clock: Clock, *steps: timedelta) -> None:
    """Everything is consumed and upkeep is done after each step."""
    for step in steps:
        clock.advance(step)
        got(broker)
        broker.maintain()


@pytest.mark.slow
def test_x21_an_id_outlives_the_place_that_it_names(timed_broker: Broker, clock: Clock) -> None:
    """The slot and the logs of the old instant are gone long before the message is delivered."""
    broker = timed_broker
    broker.create_topic("t", retention=DAY, max_delay=100 * DAY)
    sent = broker.send("t", b"a", delay=HOUR)
    other = broker.send("t", b"b", delay=HOUR)
    earlier = broker.send("t", b"c", delay=40 * DAY, key="k")
    present = broker.reschedule(sent.message_id, delay=40 * DAY).message_id
    broker.reschedule(other.message_id, delay=2 * HOUR)
    broker.reschedule(earlier.message_id, delay=HOUR)
    broker.maintain()
    days_pass(broker, clock, *[DAY] * 4, 8 * DAY, *[DAY] * 3)
    stored = "select count(*) from duewheel.any_message where deliver_at < %s"
    assert rows(broker, stored, NOW + DAY) == [(0,)]
    for gone in (other, earlier):
        assert broker.recall(gone.message_id) == RecallReceipt(RecallOutcome.NOT_FOUND, None)
    assert broker.recall_key("t", "k").outcome is RecallOutcome.NOT_FOUND, "nor where it had been sent"
    found = broker.find(sent.message_id)
    assert found is not None
    assert (found.message_id, found.moved_from) == (present, sent.message_id)
    states = [one.state for one in broker.history(sent.message_id)]
    assert states == ["Initialized", "Timing", "Moved", "Timing"]
    assert broker.recall(sent.message_id) == RecallReceipt(RecallOutcome.RECALLED, present)
    days_pass(broker, clock, 20 * DAY, *[DAY] * 8)
    assert rows(broker, ROWS_OF_MOVES) == [(0,)], "messages are forgotten with all their ids"
    assert broker.recall(sent.message_id) == RecallReceipt(RecallOutcome.NOT_FOUND, None)


@pytest.mark.owner
def test_x25_upkeep_does_not_pass_moved_messages_that_wait_twice(topic: Broker, clock: Clock) -> None:
    """They were sent for an instant that nothing is kept of, and wait for one to come."""
    trim = "select duewheel.trim_moved(topic_id, %s, 1000) from duewheel.topic where name = 't'"
    with connected(topic.dsn, autocommit=False) as connection:
        ask(
            connection,
            "insert into duewheel.moved_id (topic_id, queue, deliver_at, seq, first_seq, since_at)"
            " select t.topic_id, 0, m.at, 2 * n + m.more, 2 * n, %s"
            " from duewheel.topic t, generate_series(1, 3000) n, (values (%s, 0), (%s, 1)) m (at, more)"
            " where t.name = 't' returning 1",
            *(NOW, NOW, NOW + 10 * DAY),
        )
        # Each is put off once.
        assert [rows_read(connection, trim, NOW + DAY)[0] for _ in range(4)] == [1_000] * 3 + [0]
        _, read = rows_read(connection, trim, NOW + 2 * DAY)
        assert read < 100
        assert ask(connection, ROWS_OF_MOVES) == [(6_000,)]
        assert [rows_read(connection, trim, NOW + 11 * DAY)[0] for _ in range(4)] == [2_000] * 3 + [0]
        assert ask(connection, ROWS_OF_MOVES) == [(0,)]


def test_x21_hundreds_of_moves_make_no_call_slower(topic: Broker) -> None:
    """The pages that a recall touches, after ten moves and after many more."""

    def pages(identity: str) -> int:
        with connected(topic.dsn, autocommit=False) as connection:
            plan = "explain (analyze, buffers, format json) select * from duewheel.recall(%s)"
            for _ in range(2):
                (((found,),),) = ask(connection, plan, identity)
        return int(found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"])

    sent = topic.send("t", b"a", delay=HOUR)
    identity = sent.message_id
    touched = {}
    for number in range(1, 401):
        identity = topic.reschedule(identity, delay=2 * HOUR).message_id
        if number in (10, 400):
            touched[number] = pages(sent.message_id)
    assert touched[400] <= touched[10] + 20, touched
