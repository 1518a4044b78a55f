"""What a group could receive now, as doorbells say it."""

from __future__ import annotations

from datetime import timedelta

from tests.waiting import connected

from duewheel.store import Broker

NOW = timedelta(0)


def test_latecomers_beyond_ten_thousand_ready_ones_leave_other_queues_countable(
    broker: Broker,
) -> None:
    broker.create_topic("t", queues=2)
    broker.consumer("t", "g")

    def messages(count: int, group: str) -> list[dict[str, object]]:
        return [{"body": b"", "delay": NOW, "message_group": group} for _ in range(count)]

    # The names lead to both queues.
    both = [f"group-{number}" for number in range(4)]
    with connected(broker.dsn, autocommit=False) as late:
        for name in both:
            broker.send_many("t", messages(30, name), connection=late)
            broker.send_many("t", messages(10_000, name))
        broker.tick("t")
        late.commit()
    broker.tick("t")
    (bell,) = broker.doorbells(["t"], ["g"])
    assert bell.ready == 10_000
    assert bell.oldest_deliver_at is not None
