"""No tick, upkeep or consumer runs for 30 days while senders go on (X14).

Then everything that came due comes at once: in order within each queue, nothing twice, nothing lost, though
retention would have dropped most of it long ago. Several topics, several groups with their own tags, retries
that were waiting, leases that were open, recalls in between.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND, rows
from tests.clock import Clock

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.messages import Message

DAYS = 30
RETENTION = 72 * HOUR
TAGS = ("red", "green", "blue")
GROUPS = {"all": TAGS, "warm": ("red",), "cold": ("green", "blue")}
TOPICS = {"one": 1, "two": 2, "five": 5}


@dataclass
class Expected:
    """The messages of one topic that one group has still to get: ids with the attempt it must be."""

    attempts: dict[str, int] = field(default_factory=dict)
    due_at: dict[str, datetime] = field(default_factory=dict)


class Shop:
    """The brokers' users before and while it is down."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.broker = broker
        self.clock = clock
        self.chance = random.Random(30)
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.expected: dict[tuple[str, str], Expected] = {}
        for topic, queues in TOPICS.items():
            broker.create_topic(topic, queues=queues, max_delay=40 * DAY, retention=RETENTION)
            for group, tags in GROUPS.items():
                self.consumers[topic, group] = broker.consumer(topic, group, " || ".join(tags))
                self.expected[topic, group] = Expected()

    def send(self, topic: str, count: int, shortest: timedelta, longest: timedelta) -> list[str]:
        """Messages due within a span from now, for the groups that ask for their tags; their ids."""
        delays = [shortest + self.chance.random() * (longest - shortest) for _ in range(count)]
        tags = [self.chance.choice(TAGS) for _ in delays]
        receipts = self.broker.send_many(
            topic,
            [{"body": tag, "delay": delay, "tag": tag} for tag, delay in zip(tags, delays, strict=True)],
        )
        for receipt, tag in zip(receipts, tags, strict=True):
            for group, chosen in GROUPS.items():
                if tag in chosen:
                    self.expected[topic, group].attempts[receipt.message_id] = 1
                    self.expected[topic, group].due_at[receipt.message_id] = receipt.deliver_at
        return [receipt.message_id for receipt in receipts]

    def forget(self, topic: str, group: str, messages: list[Message]) -> None:
        """The group never gets these again."""
        for message in messages:
            del self.expected[topic, group].attempts[message.message_id]

    def leave_open_ends(self) -> None:
        """Some messages are acked, some failed once or twice, some are in somebody's hands."""
        for (topic, group), consumer in self.consumers.items():
            batch = list(consumer.receive(90, invisible=12 * HOUR))
            assert len(batch) > 40
            acked, failed, open_end = batch[:10], batch[10:30], batch[30:]
            consumer.ack(acked)
            self.forget(topic, group, acked)
            for place, message in enumerate(failed):
                consumer.nack(message, None if place % 2 else self.chance.random() * 20 * DAY)
            for message in [*failed, *open_end]:
                self.expected[topic, group].attempts[message.message_id] += 1

    def recall_some(self, message_ids: list[str]) -> None:
        """Every tenth is taken back."""
        for message_id in message_ids[::10]:
            assert self.broker.recall(message_id).outcome == "recalled"
            for expected in self.expected.values():
                expected.attempts.pop(message_id, None)


def received(consumer: Consumer, clock: Clock) -> list[Message]:
    """Everything there is, at one instant, acked lot by lot."""
    now = clock()
    got: list[Message] = []
    while batch := consumer.receive(500, invisible=MINUTE):
        got += batch
        consumer.ack(batch)
    assert clock() == now
    return got


@pytest.fixture
def shop(timed_broker: Broker, clock: Clock) -> Shop:
    """After 30 days in which only senders and recallers did anything."""
    shop = Shop(timed_broker, clock)
    for topic in TOPICS:
        shop.send(topic, 200, AT_ONCE, AT_ONCE)
    shop.leave_open_ends()
    for _ in range(DAYS):
        clock.advance(DAY)
        for topic in TOPICS:
            shop.recall_some(shop.send(topic, 50, SECOND, 10 * DAY))
    return shop


@pytest.mark.slow
def test_x14_everything_comes_at_once_after_thirty_days(shop: Shop, clock: Clock) -> None:
    broker = shop.broker
    now = clock()
    # Upkeep comes first, and may drop nothing that somebody has not read.
    dropped = broker.maintain().dropped
    for topic in TOPICS:
        broker.tick(topic)
        assert not broker.tick(topic), "one tick is enough for a month"
    total = 0
    for (topic, group), consumer in shop.consumers.items():
        expected = shop.expected[topic, group]
        due = {
            message_id: attempt
            for message_id, attempt in expected.attempts.items()
            if attempt > 1 or expected.due_at[message_id] <= clock()
        }
        got = received(consumer, clock)
        total += len(got)
        assert len(got) == len({message.message_id for message in got}), "something came twice"
        assert {message.message_id: message.attempt for message in got} == due
        for queue in range(TOPICS[topic]):
            places = [
                (message.deliver_at, message.message_id)
                for message in got
                if message.attempt == 1 and message.lease.queue == queue
            ]
            assert places == sorted(places), "a queue was not read in order"
        assert not received(consumer, clock)
        for message_id in due:
            del expected.attempts[message_id]
    assert total > 5_000

    # What is read is dropped now, what is not due yet comes at its time.
    dropped += broker.maintain().dropped
    assert len(dropped) == len(set(dropped)) > DAYS - 5
    assert oldest(broker) > now - RETENTION - DAY
    kept = {entry.deliver_at for topic in TOPICS for entry in shop_messages(broker, topic)}
    assert min(kept) > now - RETENTION - DAY
    clock.advance(10 * DAY)
    for (topic, group), consumer in shop.consumers.items():
        rest = received(consumer, clock)
        assert {message.message_id for message in rest} == set(shop.expected[topic, group].attempts)
        assert {message.attempt for message in rest} == {1}
        assert not broker.dead_letters(group)


def oldest(broker: Broker) -> datetime:
    """The first instant of a message that takes any room."""
    ((instant,),) = rows(
        broker,
        "select min(m.deliver_at) from (select deliver_at from duewheel.message"
        " union all select deliver_at from duewheel.far_message) m",
    )
    return instant


def shop_messages(broker: Broker, topic: str) -> list[Message]:
    """Everything of a topic that is kept, as a group that begins now gets it."""
    return list(broker.consumer(topic, "archaeologist").receive(10_000))
