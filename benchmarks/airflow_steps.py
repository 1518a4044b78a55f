"""One step of Airflow in a separate process: `python -m benchmarks.airflow_steps parse FILE` or `calls`.

`parse` reads a DAG file as the DAG processor does, which has Airflow imported by then, and `calls` makes
operators' calls on fresh connections. Prints the measured values as JSON.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Callable

#: Calls of one kind; the first is reported separately, because it imports.
CALLS = 21


def parse(file: str) -> float:
    """The processor milliseconds for a DAG file, in a process that has made Airflow's imports before."""
    import airflow.dag_processing.processor
    import airflow.providers.standard.decorators.python
    import airflow.sdk

    for name in ("DAG", "Asset", "AssetWatcher", "task"):
        # Imported on first use.
        getattr(airflow.sdk, name)
    began = time.process_time()
    runpy.run_path(file)
    return (time.process_time() - began) * 1000


def calls() -> dict[str, list[float]]:
    """Milliseconds of three operators' calls, each on a separate connection, and of a bare connection."""
    import psycopg2
    from airflow.sdk import BaseHook

    from duewheel.hooks.broker import address_of
    from duewheel.operators.consume import ConsumeMessagesOperator
    from duewheel.operators.recall import RecallMessageOperator
    from duewheel.operators.send import SendDelayMessageOperator

    def bare() -> None:
        connection = psycopg2.connect(address_of(BaseHook.get_connection("duewheel_default")).dsn)
        with connection.cursor() as cursor:
            cursor.execute("select 1")
        connection.close()

    send = SendDelayMessageOperator(task_id="send", topic="calls", body="x", key="one", delay="PT1H")
    recall = RecallMessageOperator(task_id="recall", topic="calls", key="one")
    consume = ConsumeMessagesOperator(task_id="consume", topic="calls", group="g", python_callable=len)
    steps: dict[str, Callable[[], object]] = {
        "bare": bare,
        "send": lambda: send.execute({}),
        "recall": lambda: recall.execute({}),
        "consume": lambda: consume.execute({}),
    }
    # The names are sent and recalled in turn, so each recall finds a message.
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(CALLS):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            taken[name].append((time.perf_counter() - began) * 1000)
    return taken


if __name__ == "__main__":
    os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    print(json.dumps(parse(sys.argv[2]) if sys.argv[1] == "parse" else calls()))
