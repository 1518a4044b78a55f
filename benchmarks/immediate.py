"""An ordinary job queue: messages without a delay, sent one by one, to many consumers that wait for them.

Two processes send at a steady rate to a topic of type NORMAL; two others hold eight consumers each, every one
a thread with a connection of its own that receives up to 16 messages, works 1 ms on each, and acks the batch.
A wheel turns in a fifth process. The database is as old as the run, so none of its tables has been analyzed.

The senders do not wait for the consumers: a queue that is too slow shows a backlog, not a lower rate.
Messages that could not even be sent in time are part of the backlog. Pickup is the time from the call of
`send` to the beginning of the work.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, percentile, thousands
from benchmarks.processes import Desk, crew
from benchmarks.program import main
from duewheel.store import Broker

SENDERS = 2
CONSUMER_PROCESSES = 2
SIZE = 16
WORK_SECONDS = 0.001
WAIT = timedelta(seconds=5)
GRANULARITY = timedelta(milliseconds=5)
#: The number of sends that a process may have under way at once; with fewer, a slow COMMIT would lower the
#: rate.
SENDER_THREADS = 4
#: The time until the sessions have their plans; messages sent by then are left out of the pickup times.
WARM_UP_SECONDS = 2.0
FILLER = "x" * 60


@dataclass
class Done:
    """The work of one process of consumers: when each message was sent, and how long it waited."""

    picked_up: list[tuple[float, float]] = field(default_factory=list)
    receives: int = 0


@dataclass(frozen=True)
class Reading:
    """One run: rates, the messages offered and not done at the end, pickup times, and the server's CPU
    share."""

    sent_per_second: float
    completed_per_second: float
    backlog: int
    pickup_ms: list[float]
    server_cpu_share: float
    receives_per_second: float


def offer(desk: Desk, dsn: str, per_second: float, seconds: float) -> None:
    """Send at a steady rate for `seconds`, each message in a transaction of its own."""
    sent: list[int] = []

    def send(first: int) -> None:
        count = 0
        with Broker(dsn) as broker, broker.connection():
            desk.start.wait()
            started = time.time()
            for number in range(first, int(per_second * seconds), SENDER_THREADS):
                pause = started + number / per_second - time.time()
                if pause > 0:
                    time.sleep(pause)
                if time.time() > started + seconds:
                    break
                body = json.dumps({"sent_at": time.time(), "number": number, "filler": FILLER})
                broker.send(ours.TOPIC, body.encode())
                count += 1
        sent.append(count)

    threads = [threading.Thread(target=send, args=(first,)) for first in range(SENDER_THREADS)]
    for thread in threads:
        thread.start()
    desk.begin()
    for thread in threads:
        thread.join()
    desk.results.put(sum(sent))


def consume(desk: Desk, dsn: str, consumers: int) -> None:
    """Receive, work and ack in as many threads as there are consumers, until the stop."""
    done = Done()
    lock = threading.Lock()

    broker = Broker(dsn)

    def take(consumer_name: str) -> None:
        with broker.connection():
            consumer = broker.consumer(ours.TOPIC, ours.GROUP, name=consumer_name)
            desk.start.wait()
            while not desk.stop.is_set():
                batch = consumer.receive(SIZE, ours.INVISIBLE, WAIT)
                picked_up = []
                for message in batch:
                    sent_at = json.loads(message.body)["sent_at"]
                    picked_up.append((sent_at, time.time() - sent_at))
                    time.sleep(WORK_SECONDS)
                if batch:
                    consumer.ack(batch)
                    desk.count(len(batch))
                with lock:
                    done.picked_up += picked_up
                    done.receives += 1

    threads = [threading.Thread(target=take, args=(f"consumer-{number}",)) for number in range(consumers)]
    for thread in threads:
        thread.start()
    desk.begin()
    for thread in threads:
        thread.join()
    desk.results.put(done)


def measure(bench: Bench, *, per_second: int, consumers: int, seconds: float) -> Reading:
    """One run on a fresh database."""
    with bench.server.duewheel() as dsn:
        with Broker(dsn) as broker:
            broker.create_topic(ours.TOPIC, message_type="NORMAL", granularity=GRANULARITY)
            broker.consumer(ours.TOPIC, ours.GROUP)
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            crew(CONSUMER_PROCESSES, consume, dsn, consumers // CONSUMER_PROCESSES) as taking,
            crew(SENDERS, offer, dsn, per_second / SENDERS, seconds) as offering,
        ):
            wheel.wait_until_ready()
            taking.go()
            cpu_before = bench.server.cpu_seconds()
            started = offering.go()
            sent = sum(offering.collect(timeout_seconds=seconds + 60))
            ended = time.time()
            completed = taking.desk.done.value
            cpu = bench.server.cpu_seconds() - cpu_before
            taking.desk.stop.set()
            done: list[Done] = taking.collect(timeout_seconds=60)
    return Reading(
        sent / (ended - started),
        completed / (ended - started),
        round(per_second * seconds) - completed,
        [
            waited * 1000
            for one in done
            for sent_at, waited in one.picked_up
            if started + WARM_UP_SECONDS < sent_at
        ],
        cpu / (ended - started),
        sum(one.receives for one in done) / (ended - started),
    )


def _note(reading: Reading) -> str:
    p50, p90, largest = (
        percentile(reading.pickup_ms or [float("inf")], percent) for percent in (50, 90, 100)
    )
    return (
        f"{thousands(round(reading.sent_per_second))}/s sent, "
        f"{thousands(round(reading.completed_per_second))}/s completed, {thousands(reading.backlog)} "
        f"piled up at the end; pickup p50 {p50:.1f} ms, p90 {p90:.1f} ms, largest {largest:.1f} ms; "
        f"the server used {reading.server_cpu_share:.0%} of one processor; "
        f"{thousands(round(reading.receives_per_second))} receives/s returned"
    )


def offered(bench: Bench) -> Iterator[Row]:
    """600/s and 2 000/s to 16 consumers, and 600/s to 4."""
    seconds = bench.size(30, 12)
    readings: dict[tuple[int, int], list[Reading]] = {(600, 16): [], (600, 4): [], (2_000, 16): []}
    for _ in range(1 if bench.quick else bench.pairs):
        for (per_second, consumers), taken in readings.items():
            taken.append(measure(bench, per_second=per_second, consumers=consumers, seconds=seconds))
    for (per_second, consumers), taken in readings.items():
        what = f"{thousands(per_second)}/s offered to {consumers} consumers for {seconds} s"
        name = f"immediate-{per_second}-{consumers}"
        notes = [_note(reading) for reading in taken]
        yield Row(
            f"{name}-backlog",
            f"{what}: offered and not completed at the end",
            "messages",
            [float(reading.backlog) for reading in taken],
            # The messages of a twentieth of a second are under way at any moment.
            goals=[Goal(per_second / 20, "at most", "ours")],
            notes=notes,
        )
        for percent, bound in ((50, 10), (99, 40)):
            yield Row(
                f"{name}-p{percent}",
                f"{what}: pickup, p{percent}",
                "ms",
                [percentile(reading.pickup_ms or [float("inf")], percent) for reading in taken],
                goals=[Goal(bound, "at most", "ours")],
            )
    yield Row(
        "immediate-cpu",
        f"600/s offered for {seconds} s: share of one processor that the server uses with 16 consumers",
        "",
        [reading.server_cpu_share for reading in readings[600, 16]],
        [reading.server_cpu_share for reading in readings[600, 4]],
        "with 4 consumers",
        [Goal(1.0, "at most")],
    )


SUBJECTS = [Subject("immediate", "a NORMAL topic under a steady rate of single sends", offered)]

if __name__ == "__main__":
    main("immediate", __doc__, SUBJECTS)
