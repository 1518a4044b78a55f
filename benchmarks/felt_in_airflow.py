"""The cost of the package where a user of Airflow waits: calls of operators and DAG files.

A call of an operator opens a connection, so it is compared with a bare connection and one statement. Parsing
is processor time. Each reading is the median of some processes or calls.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, interleave
from benchmarks.program import main
from duewheel.store import Broker

PLAIN = """
from airflow.sdk import DAG, Asset, task

with DAG("plain", schedule=[Asset("due")]):

    @task
    def cancel():
        pass

    cancel()
"""

OURS = """
from airflow.sdk import DAG, Asset, AssetWatcher, task
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.triggers.timing_wheel import TimingWheelTrigger

wheel = AssetWatcher(name="wheel", trigger=TimingWheelTrigger(topic="timeouts", group="canceller"))

with DAG("ours", schedule=[Asset("due", watchers=[wheel])]):

    @task.due_messages(topic="timeouts", group="canceller")
    def cancel(messages):
        pass

    cancel() >> SendDelayMessageOperator(task_id="again", topic="timeouts", body={}, delay="PT15M")
"""

CALLS = {"send": "a send", "recall": "a recall by key", "consume": "a consume that finds nothing"}


def _step(home: str, *arguments: str, **variables: str) -> Any:
    """The measured values of one step in a separate process."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.airflow_steps", *arguments],
        env={**os.environ, "AIRFLOW_HOME": home, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    )
    return json.loads(ended.stdout.splitlines()[-1])


def operator_calls(bench: Bench) -> Iterator[Row]:
    """Send, recall by key, and a consume that finds nothing."""
    taken: list[dict[str, list[float]]] = []
    with TemporaryDirectory(prefix="duewheel-bench-") as home:
        for _ in range(bench.pairs):
            with bench.server.duewheel() as dsn, Broker(dsn) as broker:
                broker.create_topic("calls")
                # An Airflow URI, whose scheme is the type of the connection.
                address = dsn.replace("postgresql:", "duewheel:", 1)
                taken.append(_step(home, "calls", AIRFLOW_CONN_DUEWHEEL_DEFAULT=address))
    for name, what in CALLS.items():
        first = statistics.median(each[name][0] for each in taken)
        yield Row(
            f"call-{name}",
            f"{what} by its operator, on a fresh connection",
            "ms",
            [statistics.median(each[name][1:]) for each in taken],
            [statistics.median(each["bare"][1:]) for each in taken],
            "a bare connection and one statement",
            [Goal(30, "at most", "difference")],
            notes=[f"the first in a process, with what it imports: {first:.0f} ms"],
        )


def parsing(bench: Bench) -> Iterator[Row]:
    """Reading a DAG file."""
    times = bench.size(5, 3)
    with TemporaryDirectory(prefix="duewheel-bench-") as home:

        def cpu_ms(file: Path, _pair: int) -> float:
            return float(statistics.median(_step(home, "parse", str(file)) for _ in range(times)))

        plain, ours = Path(home, "plain.py"), Path(home, "ours.py")
        plain.write_text(PLAIN)
        ours.write_text(OURS)
        sides = interleave(partial(cpu_ms, ours), partial(cpu_ms, plain), pairs=bench.pairs)
    yield Row(
        "parse",
        "reading a DAG file with a watcher, a decorated function and a send, processor time",
        "ms",
        *sides,
        "a DAG file of Airflow's own operators",
        [Goal(50, "at most", "difference")],
    )


SUBJECTS = [
    Subject("operator_calls", "calls of operators on fresh connections", operator_calls),
    Subject("parsing", "reading a DAG file", parsing),
]

if __name__ == "__main__":
    main("felt_in_airflow", __doc__, SUBJECTS)
