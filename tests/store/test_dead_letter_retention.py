"""Dead letters have a retention of their own, which is longer than that of messages."""

from __future__ import annotations

from tests.acting import DAY, SECOND
from tests.clock import Clock
from tests.waiting import ask, beside, connected, until_somebody_waits

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.retry_policy import RetryPolicy


def one_dies(broker: Broker, clock: Clock, topic: str = "t") -> None:
    """A message of the topic becomes a dead letter of its group."""
    consumer: Consumer = broker.consumer(topic, "g", retry=RetryPolicy.unordered(max_retries=0))
    broker.send(topic, b"dies", delay=SECOND)
    clock.advance(SECOND)
    consumer.nack(consumer.receive(), reason="broken")


def pass_days(broker: Broker, clock: Clock, days: int) -> None:
    """Days on which upkeep works."""
    for _ in range(days):
        clock.advance(DAY)
        broker.tick("t")
        broker.maintain()


def test_the_retention_of_dead_letters_is_a_setting_of_the_topic(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", retention=DAY, dead_letter_retention=5 * DAY)
    one_dies(timed_broker, clock)
    pass_days(timed_broker, clock, 4)
    (letter,) = timed_broker.dead_letters("g")
    timed_broker.update_topic("t", dead_letter_retention=10 * DAY)
    (kept,) = timed_broker.dead_letters("g")
    assert kept.kept_until - letter.kept_until == 5 * DAY
    pass_days(timed_broker, clock, 5)
    assert timed_broker.dead_letters("g") == [kept]
    # It holds for groups that are there, and their retries have the topic's own.
    timed_broker.update_topic("t", retention=2 * DAY, dead_letter_retention=3 * DAY)
    with connected(timed_broker.dsn) as connection:
        assert ask(
            connection,
            "select message_type, retention from duewheel.topic where parent_topic_id = 1 order by 1",
        ) == [("DEAD_LETTER", 3 * DAY), ("RETRY", 2 * DAY)]
    pass_days(timed_broker, clock, 1)
    assert timed_broker.dead_letters("g") == []


def test_a_group_made_during_a_change_has_the_new_settings(broker: Broker) -> None:
    broker.create_topic("t")
    with beside() as start, connected(broker.dsn, autocommit=False) as connection:
        ask(connection, "select duewheel.update_topic('t', dead_letter_retention => '1 day')")
        made = start(lambda: broker.consumer("t", "g"))
        until_somebody_waits(broker.dsn)
        connection.commit()
        made.result()
    with connected(broker.dsn) as connection:
        assert ask(connection, "select retention from duewheel.topic where message_type = 'DEAD_LETTER'") == [
            (DAY,)
        ]


def test_dead_letters_are_kept_for_thirty_days(topic: Broker, clock: Clock) -> None:
    for _ in range(3):
        one_dies(topic, clock)
    letters = topic.dead_letters("g")
    assert [letter.kept_until - letter.dead_at for letter in letters] == [30 * DAY] * 3

    def numbers() -> tuple[int, int]:
        ((group,),) = (found.groups for found in topic.stats().topics)
        return group.dead, group.dropped_soon

    clock.advance(26 * DAY)
    pass_days(topic, clock, 2)
    assert numbers() == (3, 0)
    clock.advance(3 * SECOND)
    pass_days(topic, clock, 1)
    assert numbers() == (3, 3)
    assert topic.dead_letters("g") == letters
    # As long as they are kept they can be redriven.
    assert topic.redrive("g", max_messages=1).redriven == 1
    assert numbers() == (2, 2)
    pass_days(topic, clock, 0)
    consumer = topic.consumer("t", "g")
    consumer.ack(batch := consumer.receive())
    assert [message.body for message in batch] == [b"dies"]
    pass_days(topic, clock, 4)
    assert topic.dead_letters("g") == []
    assert topic.redrive("g").redriven == 0
