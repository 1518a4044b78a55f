"""From the due instant to the first line of the author's code, in a consumer that is running already.

Airflow needs more than a second to start a task. Two recipes avoid that for single messages: a program with a
push consumer, and a task with `linger`, which waits for the next message instead of ending. Both are measured
with a message about every second, due at a random instant, and with the wheel in another process, as in a
triggerer. The task is the operator in a separate process, without Airflow's start around it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from random import Random
from tempfile import TemporaryDirectory

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, percentile
from benchmarks.processes import Desk, crew
from benchmarks.program import main
from duewheel.store import Broker, Message

#: The first message is due so long after the consumer has begun.
LEAD_SECONDS = 3.0
#: Longer than from one message to the next.
LINGER = timedelta(seconds=10)


def program(desk: Desk, dsn: str, total: int) -> None:
    """Handle messages in a listener of a push consumer."""
    late: list[float] = []
    handled = threading.Event()

    def listener(message: Message) -> str:
        late.append(time.time() - message.deliver_at.timestamp())
        if len(late) == total:
            handled.set()
        return "success"

    with Broker(dsn) as broker:
        desk.begin()
        with broker.push_consumer(ours.TOPIC, ours.GROUP, listener):
            while not handled.wait(0.5) and not desk.stop.is_set():
                pass
    desk.results.put(late)


def task(desk: Desk, dsn: str, total: int) -> None:
    """Handle messages in the function of a task that lingers."""
    with TemporaryDirectory(prefix="duewheel-bench-") as home:
        os.environ["AIRFLOW_HOME"] = home
        # An Airflow URI, whose scheme is the type of the connection.
        os.environ["AIRFLOW_CONN_DUEWHEEL_DEFAULT"] = dsn.replace("postgresql:", "duewheel:", 1)
        from airflow.sdk import Context

        from duewheel.operators.consume import ConsumeMessagesOperator

        late: list[float] = []

        def handle(message: Message) -> None:
            late.append(time.time() - message.deliver_at.timestamp())

        consuming = ConsumeMessagesOperator(
            task_id="stay",
            topic=ours.TOPIC,
            group=ours.GROUP,
            python_callable=handle,
            one_by_one=True,
            # In Airflow a ring starts the task, so the first message is there.
            wait=LINGER,
            linger=LINGER,
            drain_messages=total,
        )
        desk.begin()
        consuming.execute(Context())
    desk.results.put(late)


def staying(bench: Bench) -> Iterator[Row]:
    """Both recipes, a message about every second."""
    count = bench.size(300, 30)
    for what, consume in (("a program with a push consumer", program), ("a task that lingers", task)):
        anywhere = Random(19)
        with bench.server.duewheel() as dsn, Broker(dsn) as broker:
            broker.create_topic(ours.TOPIC)
            with crew(1, workers.turn_wheel, dsn) as wheel, crew(1, consume, dsn, count) as consumer:
                wheel.wait_until_ready()
                begun_at = consumer.go() + LEAD_SECONDS
                for second in range(count):
                    time.sleep(max(0.0, begun_at + second - 1 - time.time()))
                    due_ms = int(1_000 * (begun_at + second + anywhere.random()))
                    broker.send(ours.TOPIC, b"", deliver_at=due_ms)
                (late,) = consumer.collect(timeout_seconds=60)
        for percent in (50, 99):
            yield Row(
                f"staying-{consume.__name__}-p{percent}",
                f"due instant to the author's code in {what}, {count} messages, p{percent}",
                "ms",
                [percentile(late, percent) * 1_000],
                goals=[Goal(20, "at most", "ours")],
            )


SUBJECTS = [Subject("staying", "due instant to the author's code in a consumer that stays", staying)]

if __name__ == "__main__":
    main("staying", __doc__, SUBJECTS)
