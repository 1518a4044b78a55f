"""300 messages that are due within one second, in an event-driven DAG of a real Airflow.

Airflow needs seconds from an event to the first line of a task. So the time of a burst depends on the number
of runs, and on how many of them start in parallel. The measured time is from the first due instant to the
moment when the last message is in an author's function. There are three ways: one batch that takes all, the
defaults, with batches of 10 in four runs at a time, each of which takes the ready messages, and one batch of
10 in one run at a time. Airflow makes a run of an asset's events once a second. So the ways with few runs
differ by up to a second from burst to burst, and take turns. About three minutes with `--pairs 3`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.airflow_stand import NOTE, AirflowStand, airflow_stand, wait
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row
from benchmarks.program import main

MESSAGES = 300
LIMIT_SECONDS = 300.0
#: This long before the due second, all is sent and idle.
LEAD_SECONDS = 3.0

#: The name of a way, the arguments of its task, its runs at a time, its comparison and the goal. The last way
#: takes long, and has one burst; the others take turns, once in each pair.
WAYS: dict[str, tuple[str, str, int, tuple[str, float] | None]] = {
    "whole": ("one batch of up to 1 000", "max_messages=1000, drain=False", 4, None),
    "default": ("the defaults", "", 4, ("whole", 1.5)),
    "tens": ("batches of 10, four runs at a time", "max_messages=10", 4, ("one_by_one", 0.25)),
    "one_by_one": ("one batch of 10 a run, one run at a time", "max_messages=10, drain=False", 1, None),
}
LONG = "one_by_one"

DAG_OF_A_WAY = """
asset = Asset("{way}", watchers=[AssetWatcher(name="wheel", trigger=TimingWheelTrigger("{way}", "{way}"))])
with DAG("{way}", schedule=[asset], max_active_runs={runs}):

    @task.due_messages(topic="{way}", group="{way}", {arguments})
    def take(messages, run_id):
        note(dag="{way}", count=len(messages), run=run_id)

    take()
"""


def _burst(stand: AirflowStand, way: str) -> tuple[float, int]:
    """Send 300 messages that are due within one second; the seconds until all were handled, and the runs."""
    # The first run of a DAG imports, and its group is made by the trigger's first poll.
    before = len(stand.noted(way))
    stand.broker.send(way, "warm-up", delay=timedelta(0))
    wait(lambda: len(stand.noted(way)) > before, f"the warm-up of {way}", LIMIT_SECONDS)
    time.sleep(LEAD_SECONDS)
    before = len(stand.noted(way))
    begun = time.time() + LEAD_SECONDS
    stand.broker.send_many(
        way,
        [
            {"body": str(number), "deliver_at": datetime.fromtimestamp(begun + number / MESSAGES, UTC)}
            for number in range(MESSAGES)
        ],
    )
    wait(
        lambda: sum(each["count"] for each in stand.noted(way)[before:]) >= MESSAGES,
        f"all of the burst of {way}",
        LIMIT_SECONDS,
    )
    came = stand.noted(way)[before:]
    return max(each["at"] for each in came) - begun, len({each["run"] for each in came})


def burst_in_airflow(bench: Bench) -> Iterator[Row]:
    """The time of the last message, and the runs that it took, each way."""

    def dags(home: Path) -> str:
        return NOTE.format(home=home) + "".join(
            DAG_OF_A_WAY.format(way=way, arguments=arguments, runs=runs)
            for way, (_, arguments, runs, _) in WAYS.items()
        )

    bursts: dict[str, list[tuple[float, int]]] = {way: [] for way in WAYS}
    with airflow_stand(bench, dags, tuple(WAYS)) as stand:
        for way in WAYS:
            stand.broker.create_topic(way)
        for way in [*[way for way in WAYS if way != LONG] * bench.pairs, LONG]:
            bursts[way].append(_burst(stand, way))
    for way, (what, _, _, beside) in WAYS.items():
        taken = [seconds for seconds, _ in bursts[way]]
        baseline = [seconds for seconds, _ in bursts[beside[0]]] if beside else []
        yield Row(
            f"burst-{way}",
            f"{MESSAGES} messages due in one second, {what}: from the first due instant to the last message",
            "s",
            taken,
            # One long burst is compared with several short ones.
            baseline * (len(taken) // len(baseline)) if baseline else [],
            WAYS[beside[0]][0] if beside else "",
            goals=[Goal(beside[1], "at most")] if beside else [],
            notes=[f"runs that got messages: {', '.join(str(runs) for _, runs in bursts[way])}"],
        )


SUBJECTS = [Subject("burst_in_airflow", "300 messages due within one second", burst_in_airflow)]

if __name__ == "__main__":
    main("burst_in_airflow", __doc__, SUBJECTS)
