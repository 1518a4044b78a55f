"""No tick, upkeep or consumer runs for 30 days while senders go on (X14).

Then everything that came due comes at once: in order within each queue, nothing twice, nothing lost, though
retention would have dropped most of it long ago. Several topics, several groups with their own tags, retries
that were waiting, leases that were open, recalls in between.
"""

from __future__ import annotations

import random
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
TOPICS = {"one": 1, "five": 5}
OLDEST = (
    "select min(m.deliver_at) from (select deliver_at from duewheel.message"
    " union all select deliver_at from duewheel.far_message) m"
)


class Shop:
    """The broker's users before and while it is down, and what each group of each topic has still to get.

    ``expected`` has, for each, ids with the attempt that it must be and the instant before which it may not
    come.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.broker = broker
        self.clock = clock
        self.chance = random.Random(30)
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.expected: dict[tuple[str, str], dict[str, tuple[int, datetime]]] = {}
        for topic, queues in TOPICS.items():
            broker.create_topic(topic, queues=queues, max_delay=40 * DAY, retention=RETENTION)
            for group, tags in GROUPS.items():
                self.consumers[topic, group] = broker.consumer(topic, group, " || ".join(tags))
                self.expected[topic, group] = {}

    def send(self, topic: str, count: int, shortest: timedelta, longest: timedelta) -> list[str]:
        """Messages due within a span from now; their ids."""
        messages = [
            {
                "body": (tag := self.chance.choice(TAGS)),
                "tag": tag,
                "delay": shortest + self.chance.random() * (longest - shortest),
            }
            for _ in range(count)
        ]
        receipts = self.broker.send_many(topic, messages)
        for receipt, message in zip(receipts, messages, strict=True):
            for group, chosen in GROUPS.items():
                if message["tag"] in chosen:
                    self.expected[topic, group][receipt.message_id] = 1, receipt.deliver_at
        return [receipt.message_id for receipt in receipts]

    def leave_open_ends(self) -> None:
        """Some messages are acked, some failed, some are in somebody's hands."""
        for place, consumer in self.consumers.items():
            batch = list(consumer.receive(90, invisible=12 * HOUR))
            assert len(batch) > 40
            consumer.ack(batch[:10])
            for number, message in enumerate(batch[10:30]):
                consumer.nack(message, None if number % 2 else self.chance.random() * 20 * DAY)
            for message in batch[:10]:
                del self.expected[place][message.message_id]
            for message in batch[10:]:
                self.expected[place][message.message_id] = 2, self.clock()

    def recall_some(self, message_ids: list[str]) -> None:
        """Every tenth is taken back."""
        for message_id in message_ids[::10]:
            assert self.broker.recall(message_id).outcome == "recalled"
            for expected in self.expected.values():
                expected.pop(message_id, None)

    def receive_all_that_is_due(self) -> int:
        """All of it at one instant, acked lot by lot; how many messages that were."""
        total = 0
        for (topic, group), consumer in self.consumers.items():
            expected = self.expected[topic, group]
            due = {one: attempt for one, (attempt, at) in expected.items() if at <= self.clock()}
            got: list[Message] = []
            while batch := consumer.receive(500, invisible=MINUTE):
                got += batch
                consumer.ack(batch)
            assert len(got) == len({message.message_id for message in got}), "something came twice"
            assert {message.message_id: message.attempt for message in got} == due
            for queue in range(TOPICS[topic]):
                places = [
                    (message.deliver_at, message.message_id)
                    for message in got
                    if message.attempt == 1 and message.lease.queue == queue
                ]
                assert places == sorted(places), "a queue was not read in order"
            for message_id in due:
                del expected[message_id]
            total += len(got)
        return total


@pytest.mark.slow
def test_x14_everything_comes_at_once_after_thirty_days(timed_broker: Broker, clock: Clock) -> None:
    broker, shop = timed_broker, Shop(timed_broker, clock)
    for topic in TOPICS:
        shop.send(topic, 200, AT_ONCE, AT_ONCE)
    shop.leave_open_ends()
    for _ in range(DAYS):
        clock.advance(DAY)
        for topic in TOPICS:
            shop.recall_some(shop.send(topic, 40, SECOND, 10 * DAY))
    now = clock()
    # Upkeep comes first, and may drop nothing that somebody has not read.
    dropped = broker.maintain().dropped
    for topic in TOPICS:
        broker.tick(topic)
        assert not broker.tick(topic), "one tick is enough for a month"
    assert shop.receive_all_that_is_due() > 3_000
    assert shop.receive_all_that_is_due() == 0

    # What is read is dropped now, what is not due yet comes at its time.
    dropped += broker.maintain().dropped
    assert len(dropped) == len(set(dropped)) > DAYS - 5
    kept = [
        message.deliver_at
        for topic in TOPICS
        for message in broker.consumer(topic, "archaeologist").receive(10_000)
    ]
    assert min(*kept, rows(broker, OLDEST)[0][0]) > now - RETENTION - DAY
    clock.advance(10 * DAY)
    assert shop.receive_all_that_is_due() > 0
    assert not any(shop.expected.values())
    assert not any(broker.dead_letters(group) for group in GROUPS)
