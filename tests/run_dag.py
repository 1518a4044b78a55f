"""Program: run the one DAG of a file with ``dag.test()`` and write what became of its tasks.

python tests/run_dag.py DAG_FILE RESULT_FILE
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from airflow.models.asset import AssetEvent
from airflow.sdk import DAG
from airflow.utils.session import create_session
from sqlalchemy import select


def main(dag_file: str, result_file: str) -> None:
    """Run it."""
    (dag,) = {value for value in runpy.run_path(dag_file).values() if isinstance(value, DAG)}
    run = dag.test()
    tasks = {}
    for task in run.get_task_instances():
        name = task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]"
        xcom = task.xcom_pull(task_ids=task.task_id, map_indexes=task.map_index)
        keys = [link.xcom_key for link in dag.task_dict[task.task_id].operator_extra_links]
        links = {
            key: value
            for key in keys
            if (value := task.xcom_pull(task_ids=task.task_id, key=key, map_indexes=task.map_index))
        }
        tasks[name] = {"state": str(task.state), "xcom": xcom, "links": links}
    with create_session() as session:
        events = session.execute(select(AssetEvent.source_task_id, AssetEvent.extra)).all()
    result = {"state": str(run.state), "tasks": tasks, "events": dict(map(tuple, events))}
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
