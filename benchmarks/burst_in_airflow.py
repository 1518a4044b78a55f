"""300 messages that come due within one second, in an event-driven DAG of a real Airflow.

Airflow needs seconds from an event to the first line of a task, so the time of a burst is decided by how many
runs it takes, and by how many of these start beside each other. Measured is the time from the first due
instant to the moment when the last message is in an author's function: one batch that takes all, the
defaults, batches of 10 in four runs at a time, each of which takes what is ready, or one batch alone, and the
same in one run at a time. Airflow makes a run of an asset's events once a second, so the ways that take few
runs differ by up to a second from burst to burst, and take turns. About four minutes with `--pairs 3`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.airflow_stand import AirflowStand, airflow_stand, happens, noted
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row
from benchmarks.program import main

MESSAGES = 300
LIMIT_SECONDS = 300.0
#: This long before the due second, all is sent and idle.
LEAD_SECONDS = 3.0

#: What a way is called, the arguments of its task, and its runs at a time.
WAYS = {
    "whole": ("one batch of up to 1 000", "max_messages=1000, drain=False", 4),
    "default": ("the defaults", "", 4),
    "tens": ("batches of 10, four runs at a time", "max_messages=10", 4),
    "single_tens": ("one batch of 10 a run, four runs at a time", "max_messages=10, drain=False", 4),
    "one_by_one": ("one batch of 10 a run, one run at a time", "max_messages=10, drain=False", 1),
}
#: The ways of few runs take turns, once in each pair; the others take long, and one burst each.
TURNS = ("whole", "default", "tens")
#: What a way is compared with, and the goal of the ratio.
BESIDE = {"default": ("whole", 1.5), "tens": ("one_by_one", 0.25), "single_tens": ("one_by_one", None)}

HEAD = """
import json
import time
from airflow.sdk import DAG, Asset, AssetWatcher, task
from duewheel.triggers.timing_wheel import TimingWheelTrigger

def note(way, count, run_id):
    with open(f"{notes}-{{way}}", "a") as file:
        file.write(json.dumps(dict(at=time.time(), count=count, run=run_id)) + "\\n")
"""

DAG_OF_A_WAY = """
asset = Asset("{way}", watchers=[AssetWatcher(name="wheel", trigger=TimingWheelTrigger("{way}", "{way}"))])
with DAG("{way}", schedule=[asset], max_active_runs={runs}):

    @task.due_messages(topic="{way}", group="{way}", {arguments})
    def take(messages, run_id):
        note("{way}", len(messages), run_id)

    take()
"""


@dataclass
class Burst:
    """How one burst went."""

    seconds: float
    runs: int
    came: int


def _burst(stand: AirflowStand, way: str) -> Burst:
    """Send 300 messages that come due within one second, and wait until all were handled."""
    notes = stand.airflow.settings.home / f"notes-{way}"
    # The first run of a DAG imports, and its group is made by the trigger's first look.
    before = len(noted(notes))
    stand.broker.send(way, "warm-up", delay=timedelta(0))
    happens(lambda: len(noted(notes)) > before, LIMIT_SECONDS)
    time.sleep(LEAD_SECONDS)
    before = len(noted(notes))
    begun = time.time() + LEAD_SECONDS
    stand.broker.send_many(
        way,
        [
            {"body": str(number), "deliver_at": datetime.fromtimestamp(begun + number / MESSAGES, UTC)}
            for number in range(MESSAGES)
        ],
    )
    happens(lambda: sum(each["count"] for each in noted(notes)[before:]) >= MESSAGES, LIMIT_SECONDS)
    came = noted(notes)[before:]
    last_at = max((each["at"] for each in came), default=begun + LIMIT_SECONDS)
    return Burst(
        last_at - begun, len({each["run"] for each in came}), sum(int(each["count"]) for each in came)
    )


def burst_in_airflow(bench: Bench) -> Iterator[Row]:
    """The time of the last message, and the runs that it took, each way."""

    def dags(home: Path) -> str:
        return HEAD.format(notes=home / "notes") + "".join(
            DAG_OF_A_WAY.format(way=way, arguments=arguments, runs=runs)
            for way, (_, arguments, runs) in WAYS.items()
        )

    bursts: dict[str, list[Burst]] = {way: [] for way in WAYS}
    with airflow_stand(bench, "whole", dags, tuple(WAYS)) as stand:
        for way in set(WAYS) - {"whole"}:
            stand.broker.create_topic(way)
        for way in [*TURNS * bench.pairs, *(way for way in WAYS if way not in TURNS)]:
            bursts[way].append(_burst(stand, way))
    for way, (what, _, _) in WAYS.items():
        taken = [burst.seconds for burst in bursts[way]]
        beside, bound = BESIDE.get(way, (None, None))
        baseline = [burst.seconds for burst in bursts[beside]] if beside else []
        yield Row(
            f"burst-{way}",
            f"{MESSAGES} messages due in one second, {what}: from the first due instant to the last message",
            "s",
            taken,
            # One long burst stands beside several short ones.
            baseline * (len(taken) // len(baseline)) if baseline else [],
            WAYS[beside][0] if beside else "",
            goals=[Goal(bound, "at most")] if bound else [],
            notes=[
                f"runs that got messages: {', '.join(str(burst.runs) for burst in bursts[way])}",
                *(f"only {burst.came} came" for burst in bursts[way] if burst.came < MESSAGES),
            ],
        )


SUBJECTS = [Subject("burst_in_airflow", "300 messages due within one second", burst_in_airflow)]

if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main("burst_in_airflow", __doc__, SUBJECTS)
