"""One step of Airflow in a process of its own: `python -m benchmarks.airflow_steps STEP [FILE] [--without]`.

`version` is the command `airflow version`, `parse FILE` reads a DAG file as the DAG processor does, which has
Airflow imported by then, and `calls` makes operators' calls on fresh connections. `--without` hides the
package from Airflow, as if it were not installed. Prints the measured values as JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

PACKAGE = "airflow-provider-duewheel"
#: Calls of one kind; the first is reported by itself, as it imports.
CALLS = 21


def hide(package: str) -> None:
    """Hide a package from Airflow's search for installed ones; the search itself costs the same for any
    name."""
    modules: list[Any] = [importlib.metadata]
    try:
        # Airflow uses it if Python's own is too old.
        import importlib_metadata

        modules.append(importlib_metadata)
    except ImportError:
        pass
    for module in modules:
        find = module.distributions

        def others(find: Callable[..., Iterable[Any]] = find, **named: Any) -> list[Any]:
            return [found for found in find(**named) if found.metadata["Name"] != package]

        module.distributions = others


def version() -> dict[str, float]:
    """The command line's first word."""
    from airflow.__main__ import main

    sys.argv = ["airflow", "version"]
    sys.stdout = sys.stderr
    try:
        main()
    finally:
        sys.stdout = sys.__stdout__
    return {"cpu_ms": time.process_time() * 1000}


def parse(file: str) -> dict[str, float]:
    """The time for a DAG file, in a process that has made Airflow's imports before."""
    import airflow.dag_processing.processor
    import airflow.providers.standard.decorators.python
    import airflow.sdk

    for name in ("DAG", "Asset", "AssetWatcher", "task"):
        # Imported on first use.
        getattr(airflow.sdk, name)
    began = time.process_time()
    runpy.run_path(file)
    return {"cpu_ms": (time.process_time() - began) * 1000}


def calls() -> dict[str, list[float]]:
    """Calls of three operators, each on a connection of its own, and a bare connection beside them."""
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
    hide(PACKAGE if "--without" in sys.argv else "")
    measured: object = None
    match sys.argv[1:]:
        case ["version", *_]:
            measured = version()
        case ["parse", file, *_]:
            measured = parse(file)
        case ["calls", *_]:
            measured = calls()
    print(json.dumps(measured))
