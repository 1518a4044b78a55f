"""An ordinary job queue: messages without a delay, sent one by one, to many consumers that wait for them.

Two processes send at a steady rate to a topic of type NORMAL; two others hold eight consumers each, every one
a thread with a connection of its own that receives up to 16 messages, works 1 ms on each, and acks the batch.
A wheel turns in a fifth process. The database is as old as the run, so none of its tables has been analyzed.

The senders do not wait for the consumers: a queue that is too slow shows a backlog, not a lower rate.
Messages that could not even be sent in time are part of the backlog. Pickup is the time from the call of
`send` to the beginning of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, percentile, thousands
from benchmarks.processes import Desk, crew
from benchmarks.program import main
from duewheel.store import Broker

PROCESSES = 2
CONSUMERS = 16
SIZE = 16
WORK_SECONDS = 0.001
#: The number of sends that a process may have under way at once; with fewer, a slow COMMIT would lower the
#: rate.
SENDER_THREADS = 4
#: The time until the sessions have their plans; messages sent by then are left out of the pickup times.
WARM_UP_SECONDS = 2.0
FILLER = "x" * 80


def _threads(desk: Desk, count: int, work: Callable[[int], list[tuple[float, float]]]) -> None:
    """Work in some threads, and hand in all that they return."""
    with ThreadPoolExecutor(count) as pool:
        working = [pool.submit(work, number) for number in range(count)]
        desk.begin()
        desk.results.put([reading for each in working for reading in each.result()])


def offer(desk: Desk, dsn: str, per_second: float, seconds: float) -> None:
    """Send at a steady rate for `seconds`, each message in a transaction of its own."""

    def send(first: int) -> list[tuple[float, float]]:
        with Broker(dsn) as broker, broker.connection():
            desk.start.wait()
            started = time.time()
            for number in range(first, int(per_second * seconds), SENDER_THREADS):
                if (pause := started + number / per_second - time.time()) > 0:
                    time.sleep(pause)
                if time.time() > started + seconds:
                    break
                broker.send(ours.TOPIC, f"{time.time()} {FILLER}".encode())
        return []

    _threads(desk, SENDER_THREADS, send)


def consume(desk: Desk, dsn: str) -> None:
    """Receive, work and ack until the stop; hands in when each message was sent, and how long it waited."""

    broker = Broker(dsn)

    def take(number: int) -> list[tuple[float, float]]:
        picked_up = []
        with broker.connection():
            consumer = broker.consumer(ours.TOPIC, ours.GROUP, name=f"consumer-{number}")
            desk.start.wait()
            while not desk.stop.is_set():
                batch = consumer.receive(SIZE, ours.INVISIBLE, workers.WAIT)
                for message in batch:
                    sent_at = float(message.body.split()[0])
                    picked_up.append((sent_at, time.time() - sent_at))
                    time.sleep(WORK_SECONDS)
                if batch:
                    consumer.ack(batch)
                    desk.count(len(batch))
        return picked_up

    with broker:
        _threads(desk, CONSUMERS // PROCESSES, take)


def _measure(bench: Bench, per_second: int, seconds: float) -> tuple[float, list[float]]:
    """One run on a fresh database: the messages offered and not done at the end, and pickup milliseconds."""
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn, message_type="NORMAL", granularity=timedelta(milliseconds=5))
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            crew(PROCESSES, consume, dsn) as taking,
            crew(PROCESSES, offer, dsn, per_second / PROCESSES, seconds) as offering,
        ):
            wheel.wait_until_ready()
            taking.go()
            counted_from = offering.go() + WARM_UP_SECONDS
            offering.collect(timeout_seconds=seconds + 60)
            backlog = per_second * seconds - taking.desk.done.value
            taking.desk.stop.set()
            picked_up = [reading for each in taking.collect(timeout_seconds=60) for reading in each]
    return backlog, [waited * 1000 for sent_at, waited in picked_up if sent_at > counted_from]


def offered(bench: Bench) -> Iterator[Row]:
    """600/s and 2 000/s to 16 consumers."""
    seconds = bench.size(30, 12)
    for per_second in (600, 2_000):
        runs = [_measure(bench, per_second, seconds) for _ in range(1 if bench.quick else bench.pairs)]
        what = f"{thousands(per_second)}/s offered to {CONSUMERS} consumers for {seconds} s"
        name = f"immediate-{per_second}-{CONSUMERS}"
        p50, p99 = ([percentile(pickup_ms, percent) for _, pickup_ms in runs] for percent in (50, 99))
        backlogs = [backlog for backlog, _ in runs]
        for part, text, unit, readings, bound in (
            # The messages of a twentieth of a second are under way at any moment.
            ("backlog", "offered and not completed at the end", "messages", backlogs, per_second / 20),
            ("p50", "pickup, p50", "ms", p50, 10),
            ("p99", "pickup, p99", "ms", p99, 40),
        ):
            goals = [Goal(bound, "at most", "ours")]
            yield Row(f"{name}-{part}", f"{what}: {text}", unit, readings, goals=goals)


SUBJECTS = [Subject("immediate", "a NORMAL topic under a steady rate of single sends", offered)]

if __name__ == "__main__":
    main("immediate", __doc__, SUBJECTS)
