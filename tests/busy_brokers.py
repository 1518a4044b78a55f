"""Large brokers: the broker of the page's trial by operators, and a broker with 100 000 leases.

``python -m tests.busy_brokers DSN`` builds the first in an empty database.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND
from tests.clock import Clock

from duewheel.store import Broker, RetryPolicy
from duewheel.store.values.limits import LONGEST_WAIT

AREAS = (
    "orders", "vouchers", "mails", "payments", "invoices", "push", "stock", "parcels", "billing",
    "booking", "claims", "courier", "fraud", "loyalty", "prices", "refunds", "returns",
)  # fmt: skip
KINDS = (
    "placed", "cancel", "notify", "settle", "export", "sync", "timeout", "expire", "archive", "check",
    "close", "confirm", "escalate", "renew", "report", "warn", "withdraw",
    "reminder-of-the-last-payment-before-collection",
)  # fmt: skip
#: 305 topics. Messages of these kinds are due when they are sent; those of the others wait.
TOPICS = [f"{area}.{kind}" for area in AREAS for kind in KINDS][:305]
AT_ONCE_KINDS = ("placed", "cancel", "notify", "settle", "export")
FIFO = "stock.sync"
GROUPS = 145
BUSY = [f"{area}.placed" for area in AREAS[:8]]
LEASES_OF_BUSY = 7_300 // len(BUSY)
WAITING = 250_000
BURST = 50_000
#: Dead letters by topic; 5 000 in all.
DEAD = {"push.notify": 1_887, "mails.notify": 2_400, "payments.notify": 713}
REASONS = (
    "HTTP 503 Service Unavailable",
    "409 Conflict",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='gateway.example.com', port=443)",
)
READY = 15_960
TASK = "airflow:shop/scheduled__2026-11-28T02:00:00+00:00/take_orders/-1"


def group_of(topic: str) -> str:
    """The name of the group that reads a topic."""
    return topic.replace(".", "-")


def build_trial(dsn: str) -> None:
    """Build the trial's broker in a database with the schema.

    It has 305 topics and 145 groups, which have taken 7 300 leases. 300 000 messages wait, 50 000 of them for
    one minute within the next hour. 5 000 are dead letters, one group has taken nothing for 57 minutes.
    """
    with _in_the_past(dsn, DAY) as (broker, _):
        for topic in TOPICS:
            kind = topic.split(".")[1]
            message_type = "FIFO" if topic == FIFO else "NORMAL" if kind in AT_ONCE_KINDS else "DELAY"
            broker.create_topic(topic, message_type=message_type, max_delay=60 * DAY)
        for topic in TOPICS[:GROUPS]:
            retry = None if topic == FIFO else RetryPolicy(0 if topic in DEAD else 2, (MINUTE,))
            broker.consumer(topic, group_of(topic), retry=retry)
    _play_the_past(dsn)
    with Broker(dsn) as broker:
        _die(broker)
        _work(broker)
        _wait(broker)
        _plan(broker)


@contextmanager
def _in_the_past(dsn: str, ago: timedelta) -> Iterator[tuple[Broker, Clock]]:
    clock = Clock(datetime.now(UTC) - ago)
    with Broker(dsn, clock=clock) as broker:
        yield broker, clock


def _play_the_past(dsn: str) -> None:
    """A day of releases, an order that was not cancelled, and a group that receives nothing."""
    with _in_the_past(dsn, DAY) as (broker, clock):
        for hour in range(23):
            for topic in ("orders.timeout", "vouchers.expire", "mails.warn"):
                broker.send_many(topic, [{"body": b"", "delay": SECOND}] * 20)
            clock.advance(timedelta(seconds=1, milliseconds=5 + hour * 20))
            for topic in ("orders.timeout", "vouchers.expire", "mails.warn"):
                broker.tick(topic)
            clock.advance(HOUR)
    with _in_the_past(dsn, 5 * HOUR) as (broker, clock):
        broker.send("orders.cancel", {"order": 4711}, key="4711", tag="unpaid")
        broker.send("orders.cancel", {"order": 47110}, key="47110")
        canceller = broker.consumer("orders.cancel", group_of("orders.cancel"), name=TASK)
        for _ in range(3):
            for message in canceller.receive(wait=LONGEST_WAIT):
                if message.key == "4711":
                    canceller.nack([message], reason="409 Conflict")
                else:
                    canceller.ack([message])
            clock.advance(6 * MINUTE)
    with _in_the_past(dsn, 57 * MINUTE) as (broker, _):
        exporter = broker.consumer("invoices.export", group_of("invoices.export"))
        broker.send_many(
            "invoices.export", [{"body": b"{}", "key": f"invoice-{n}"} for n in range(READY + 40)]
        )
        exporter.ack(exporter.receive(40, wait=LONGEST_WAIT))


def _die(broker: Broker) -> None:
    for topic, number in DEAD.items():
        broker.send_many(topic, [{"body": {"to": n}, "key": f"customer-{n}"} for n in range(number)])
        consumer = broker.consumer(topic, group_of(topic))
        done = 0
        while batch := consumer.receive(500, wait=LONGEST_WAIT if done < number else AT_ONCE):
            consumer.nack(batch, reason=REASONS[done // 500 % len(REASONS)])
            done += len(batch)


def _work(broker: Broker) -> None:
    """Groups that answer their leases, fail, or hold messages for long, and a paused group."""
    for topic in BUSY:
        broker.send_many(topic, [{"body": b"{}", "key": f"{n}"} for n in range(LEASES_OF_BUSY + 200)])
    busy = [broker.consumer(topic, group_of(topic), name=f"worker-{topic}") for topic in BUSY]
    last: list[Any] = [()] * len(busy)
    # In turn: the leases of the groups lie between each other, as in a database with a past.
    for _ in range(LEASES_OF_BUSY):
        for place, consumer in enumerate(busy):
            last[place] = consumer.receive(1, HOUR, LONGEST_WAIT, acked=last[place])
    broker.consumer(BUSY[0], group_of(BUSY[0]), name=TASK).receive(50, HOUR, LONGEST_WAIT)
    broker.send_many("payments.settle", [{"body": b"", "key": f"payment-{n}"} for n in range(200)])
    settle = broker.consumer("payments.settle", group_of("payments.settle"))
    for number in range(4):
        settle.nack(settle.receive(30, wait=LONGEST_WAIT), (number + 1) * 20 * MINUTE, reason=REASONS[1])
    broker.send_many(FIFO, [{"body": b"", "message_group": f"shelf-{n % 7}"} for n in range(70)])
    broker.consumer(FIFO, group_of(FIFO)).receive(5, HOUR, LONGEST_WAIT)
    broker.send_many("parcels.settle", [{"body": b""}] * 300)
    broker.pause_group(group_of("parcels.settle"))


def _wait(broker: Broker) -> None:
    """Most messages wait on a few topics and for a few days; a tenth of all is due in a minute."""
    now = datetime.now(UTC)
    waiting = [topic for topic in TOPICS if topic.endswith((".timeout", ".expire"))]
    shares = [1 / (rank + 1) for rank in range(len(waiting))]
    for topic, share in zip(waiting, shares, strict=True):
        number = int(WAITING * share / sum(shares))
        receipts = broker.send_many(
            topic,
            [
                {
                    "body": {"order": n},
                    "deliver_at": now + MINUTE + 30 * DAY * ((n * 7_919 % number) / number) ** 2,
                    "key": f"customer-{n % 5_000}/{n}",
                    "tag": "paid" if n % 3 else "unpaid",
                }
                for n in range(number)
            ],
        )
        for one in receipts[-20:]:
            broker.recall(one.message_id)
    burst_at = (now + 40 * MINUTE).replace(second=0, microsecond=0)
    broker.send_many(
        "vouchers.expire",
        [{"body": b"", "deliver_at": burst_at + n % 60 * SECOND, "key": f"v-{n}"} for n in range(BURST)],
    )
    moved = broker.send("orders.timeout", {"order": 4712}, delay=HOUR, key="4712")
    broker.reschedule(moved.message_id, delay=3 * HOUR)


def _plan(broker: Broker) -> None:
    for number, area in enumerate(AREAS[:6]):
        hours: dict[str, Any] = (
            {"every": (number + 1) * HOUR} if number % 2 else {"cron": f"{7 * number} {number} * * *"}
        )
        broker.create_schedule(
            f"nightly-report-of-{area}",
            f"{area}.report",
            {"area": area},
            timezone="America/New_York",
            **hours,
        )
    broker.pause_schedule("nightly-report-of-mails")


def build_groups(broker: Broker, number: int) -> None:
    """Make topics ``t-000`` and following with a group each."""
    for place in range(number):
        broker.create_topic(f"t-{place:03d}")
        broker.consumer(f"t-{place:03d}", f"g-{place:03d}")


#: Takes 84 leases in each queue of each group, the leases of all groups between each other. Half of them are
#: answered, and none has run out: of 300 groups with four queues 100 800.
LEASES = """
with taken as (
    insert into duewheel.lease (topic_id, group_id, queue, n, token, from_at, from_seq, to_at, to_seq,
        straggler_from, straggler_to, message_count, leased_at, expires_at, revived_to)
    select s.topic_id, s.group_id, q, n, n, now(), n, now(), n, 0, 0, 1, now(),
           now() + interval '1 hour' + n * interval '1 second', now()
    from generate_series(1, 84) n, duewheel.subscription s, generate_series(0, 3) q
    order by n, s.topic_id
    returning topic_id, group_id, queue, n
), acked as (
    insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at)
    select topic_id, group_id, queue, n, 'acked', now() from taken where n % 2 = 1
)
select count(*) from taken
"""

if __name__ == "__main__":
    build_trial(sys.argv[1])
