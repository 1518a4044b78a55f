"""The cost of the package in places where a user of Airflow waits: calls of operators, `airflow version`, DAG
files.

A call of an operator opens a connection, so a bare connection with one statement stands beside it. Start-up
and parsing are processor time, with the package and with it hidden from Airflow. Each reading is the median
of some processes or calls.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, interleave
from benchmarks.program import main
from duewheel.store import Broker

#: Of our own, in milliseconds.
CALL_GOAL, CPU_GOAL = 30, 50

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


@contextmanager
def _home() -> Iterator[Path]:
    """A home for Airflow that has been used once, so that no process writes its settings."""
    with TemporaryDirectory(prefix="duewheel-bench-") as directory:
        home = Path(directory)
        _step(home, ["version"])
        yield home


def _step(home: Path, arguments: list[str], more: Mapping[str, str] | None = None) -> dict[str, object]:
    """The measured values of one step in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.airflow_steps", *arguments],
        env={**os.environ, "AIRFLOW_HOME": str(home), **(more or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    )
    measured: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def _cpu_ms(home: Path, arguments: list[str], times: int) -> float:
    return statistics.median(float(str(_step(home, arguments)["cpu_ms"])) for _ in range(times))


def operator_calls(bench: Bench) -> Iterator[Row]:
    """Send, recall by key, and a consume that finds nothing."""
    names = {"send": "a send", "recall": "a recall by key", "consume": "a consume that finds nothing"}
    ours: dict[str, list[float]] = {name: [] for name in names}
    first: dict[str, list[float]] = {name: [] for name in names}
    bare: list[float] = []
    with _home() as home:
        for _ in range(bench.pairs):
            with bench.server.duewheel() as dsn, Broker(dsn) as broker:
                broker.create_topic("calls")
                # An Airflow URI, whose scheme is the type of the connection.
                connection = dsn.replace("postgresql:", "duewheel:", 1)
                taken = _step(home, ["calls"], {"AIRFLOW_CONN_DUEWHEEL_DEFAULT": connection})
            for name, values in taken.items():
                assert isinstance(values, list)
                if name == "bare":
                    bare.append(statistics.median(values[1:]))
                else:
                    first[name].append(values[0])
                    ours[name].append(statistics.median(values[1:]))
    for name, what in names.items():
        yield Row(
            f"call-{name}",
            f"{what} by its operator, on a fresh connection",
            "ms",
            ours[name],
            bare,
            "a bare connection and one statement",
            [Goal(CALL_GOAL, "at most", "difference")],
            notes=[f"the first in a process, with what it imports: {statistics.median(first[name]):.0f} ms"],
        )


def start_up(bench: Bench) -> Iterator[Row]:
    """The time that the installed package adds to `airflow version` and to parsing a DAG file."""
    times = bench.size(5, 3)
    with _home() as home:
        plain, ours = home / "plain.py", home / "ours.py"
        plain.write_text(PLAIN)
        ours.write_text(OURS)
        version = interleave(
            lambda _: _cpu_ms(home, ["version"], times),
            lambda _: _cpu_ms(home, ["version", "--without"], times),
            pairs=bench.pairs,
        )
        parse = interleave(
            lambda _: _cpu_ms(home, ["parse", str(ours)], times),
            lambda _: _cpu_ms(home, ["parse", str(plain)], times),
            pairs=bench.pairs,
        )
    yield Row(
        "airflow-version",
        "`airflow version`, processor time",
        "ms",
        *version,
        "without the package",
        [Goal(CPU_GOAL, "at most", "difference")],
    )
    yield Row(
        "parse",
        "reading a DAG file with a watcher, a decorated function and a send, processor time",
        "ms",
        *parse,
        "a DAG file of Airflow's own operators",
        [Goal(CPU_GOAL, "at most", "difference")],
    )


SUBJECTS = [
    Subject("operator_calls", "calls of operators on fresh connections", operator_calls),
    Subject("start_up", "what is added to `airflow version` and to parsing", start_up),
]

if __name__ == "__main__":
    # Installed packages come with their bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main("felt_in_airflow", __doc__, SUBJECTS)
