"""Batches that replace what waits under their keys: one COPY, and locks in one order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.acting import HOUR, bodies, rows, taken
from tests.clock import Clock
from tests.waiting import ask, connected, until

from duewheel.store import Broker, SendOutcome
from duewheel.store.operations import sending

BLOCKS = "select last_value from duewheel.message_block"
WAITS = """
select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()
"""


def batch(keys: str, on_conflict: str = "replace", **more: Any) -> list[dict[str, Any]]:
    return [{"body": key, "key": key, "delay": HOUR, "on_conflict": on_conflict, **more} for key in keys]


def waiting(broker: Broker, key: str) -> list[bytes]:
    return [message.body for message in broker.find_key("t", key) if not message.recalled]


@pytest.mark.owner
def test_a_batch_that_replaces_is_one_copy(topic: Broker) -> None:
    topic.send_many("t", batch("abc"))
    ((before,),) = rows(topic, BLOCKS)
    receipts = topic.send_many("t", [*batch("abcd"), {"body": b"plain", "delay": HOUR}])
    ((after,),) = rows(topic, BLOCKS)
    assert [receipt.outcome.value for receipt in receipts] == ["replaced"] * 3 + ["sent"] * 2
    assert after - before == 16, "the sequence counts blocks, 16 for each COPY"
    for place, key in enumerate("abcd"):
        assert waiting(topic, key) == [key.encode()]
        found = topic.find_key("t", key)
        replaced = [message.replaced_by for message in found if message.recalled]
        assert replaced == [receipts[place].message_id] * (place < 3)


def test_of_two_messages_with_one_key_the_later_one_waits(topic: Broker) -> None:
    messages = [{**message, "body": body} for message, body in zip(batch("aa"), (b"1", b"2"), strict=True)]
    assert [receipt.outcome for receipt in topic.send_many("t", messages)] == ["sent", "replaced"]
    assert waiting(topic, "a") == [b"2"]
    other = [{"body": b"3", "key": "a", "delay": HOUR}, *batch("ab")]
    assert [receipt.outcome for receipt in topic.send_many("t", other)] == ["sent", "replaced", "sent"]
    assert waiting(topic, "a") == [b"a"]


def test_a_batch_leaves_alone_what_was_released(topic: Broker, clock: Clock) -> None:
    topic.send_many("t", batch("ab"))
    clock.advance(2 * HOUR)
    assert sorted(bodies(taken(topic.consumer("t", "g")))) == [b"a", b"b"]
    assert [receipt.outcome for receipt in topic.send_many("t", batch("ab"))] == [SendOutcome.SENT] * 2


@pytest.mark.owner
def test_a_batch_marks_keys_with_many_recalled_messages(topic: Broker) -> None:
    rows(topic, "create or replace function duewheel.key_mark_after() returns integer return 0")
    for _ in range(3):
        topic.send_many("t", batch("ab"))
    assert rows(topic, "select count(distinct key) from duewheel.key_mark") == [(2,)]
    assert [receipt.outcome for receipt in topic.send_many("t", batch("ab"))] == [SendOutcome.REPLACED] * 2
    assert waiting(topic, "a") == [b"a"]


CALLS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "replace": batch,
    "keep": lambda keys: batch(keys, "keep"),
    "idempotent": lambda keys: [{"body": key, "delay": HOUR, "idempotency_key": key} for key in keys],
    "both": lambda keys: [{**message, "idempotency_key": keys + message["key"]} for message in batch(keys)],
}


@pytest.mark.owner
@pytest.mark.parametrize("messages", CALLS.values(), ids=list(CALLS))
def test_batches_with_keys_in_opposite_orders_do_not_deadlock(
    broker: Broker, messages: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is stopped in its middle by a transaction that has one of the keys."""
    # As a batch of more than 500 messages is sent.
    monkeypatch.setattr(sending, "_CHUNK_MESSAGES", 1)
    broker.create_topic("t")

    def send(keys: str) -> None:
        # In a transaction of the caller, which is not run again.
        with connected(broker.dsn, autocommit=False) as connection:
            broker.send_many("t", messages(keys), connection)
            connection.commit()

    keys = "".join(map(chr, range(ord("a"), ord("z"))))
    with connected(broker.dsn, autocommit=False) as holder, ThreadPoolExecutor(2) as pool:
        ask(
            holder,
            "select outcome from duewheel.send('t', 'x'::text, delay => '1 hour', key => 'm',"
            " idempotency_key => 'm', on_conflict => 'replace')",
        )
        calls = [pool.submit(send, order) for order in (keys, keys[::-1])]
        until(lambda: rows(broker, WAITS) == [(2,)], "both batches wait")
        holder.commit()
        for called in calls:
            called.result(60)
