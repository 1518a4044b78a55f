"""300 messages that come due within one second, in an event-driven DAG of a real Airflow.

Airflow needs seconds from an event to the first line of a task, so the time of a burst is decided by how many
runs it takes, and by how many of these start beside each other. Measured is the time from the due second's
end to the moment when the last message is in an author's function: one batch that takes all, the defaults,
and batches of 10 in four runs at a time, each of which takes what is ready, or one batch alone. About four
minutes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.airflow_stand import airflow_stand, happens
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row
from benchmarks.program import main

MESSAGES = 300
LIMIT_SECONDS = 300.0
#: This long before the due second, all is sent and idle.
LEAD_SECONDS = 3.0

WAYS = {
    "whole": ("one batch of up to 1 000", "max_messages=1000, drain=False"),
    "default": ("the defaults", ""),
    "tens": ("batches of 10, four runs at a time", "max_messages=10"),
    "single_tens": ("one batch of 10 a run, four runs at a time", "max_messages=10, drain=False"),
}

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
with DAG("{way}", schedule=[asset], max_active_runs=4):

    @task.due_messages(topic="{way}", group="{way}", {arguments})
    def take(messages, run_id):
        note("{way}", len(messages), run_id)

    take()
"""


def burst_in_airflow(bench: Bench) -> Iterator[Row]:
    """The time of the last message, and the runs that it took, each way."""

    def dags(home: Path) -> str:
        return HEAD.format(notes=home / "notes") + "".join(
            DAG_OF_A_WAY.format(way=way, arguments=arguments) for way, (_, arguments) in WAYS.items()
        )

    with airflow_stand(bench, "whole", dags, tuple(WAYS)) as stand:
        for way in set(WAYS) - {"whole"}:
            stand.broker.create_topic(way)
        for way, (what, _) in WAYS.items():
            notes = stand.airflow.settings.home / f"notes-{way}"

            def noted(notes: Path = notes) -> list[dict[str, float]]:
                return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []

            # The first run of a DAG imports, and its group is made by the trigger's first look.
            stand.broker.send(way, "warm-up", delay=timedelta(0))
            happens(lambda noted=noted: bool(noted()), LIMIT_SECONDS)  # type: ignore[misc]
            time.sleep(LEAD_SECONDS)
            begun = time.time() + LEAD_SECONDS
            stand.broker.send_many(
                way,
                [
                    {
                        "body": str(number),
                        "deliver_at": datetime.fromtimestamp(begun + number / MESSAGES, UTC),
                    }
                    for number in range(MESSAGES)
                ],
            )
            all_came = happens(
                lambda noted=noted: sum(each["count"] for each in noted()) > MESSAGES,  # type: ignore[misc]
                LIMIT_SECONDS,
            )
            came = noted()[1:]
            last_at = max((each["at"] for each in came), default=begun)
            runs = sum(stand.airflow.api.run_states(way, since="2000-01-01T00:00:00Z").values()) - 1
            used = len({each["run"] for each in came})
            yield Row(
                f"burst-{way}",
                f"{MESSAGES} messages due in one second, {what}: the last one",
                "s",
                [last_at - begun - 1],
                notes=[
                    f"{runs} runs, {used} of which got messages",
                    *([] if all_came else [f"only {sum(each['count'] for each in came):.0f} came"]),
                ],
            )


SUBJECTS = [Subject("burst_in_airflow", "300 messages due within one second", burst_in_airflow)]

if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main("burst_in_airflow", __doc__, SUBJECTS)
