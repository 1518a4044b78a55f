"""Program: run a DAG of a file with ``dag.test()`` and write the results of its tasks.

python -m duewheel.testing.run_dag DAG_FILE RESULT_FILE [DAG_ID [CONF [LEFT_OUT [standing]]]]

Without an id the file has one DAG. CONF is JSON, LEFT_OUT a regular expression of task ids.

With ``standing`` the broker's clock is stopped while the DAG runs. A sensor that finds too few messages, or a
task that waits for an answer, would then wait for ever, so it times out at once.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow.sdk import DAG

#: Airflow's own name for the DAGs folder.
_BUNDLE: Final = "dags-folder"


def main(
    dag_file: str,
    result_file: str,
    dag_id: str | None = None,
    conf: str = "{}",
    left_out: str = "",
    clock: str = "running",
) -> None:
    """Run it."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.models.asset import AssetEvent
    from airflow.models.xcom import XComModel
    from airflow.sdk.serde import deserialize
    from airflow.utils.session import create_session
    from sqlalchemy import select

    # Airflow runs only DAGs in its database, and `dag.test()` looks in the DAGs folder alone.
    DagBundlesManager().sync_bundles_to_db()
    bag = BundleDagBag(dag_file, bundle_path=Path(dag_file).parent, bundle_name=_BUNDLE, safe_mode=False)
    for trace in bag.import_errors.values():
        sys.exit(f"the file cannot be imported:\n{trace}")
    sync_bag_to_db(bag, _BUNDLE, None)
    found = bag.dags
    if dag_id is None:
        (dag,) = found.values()
    elif dag_id in found:
        dag = found[dag_id]
    else:
        sys.exit(f"the file makes no DAG {dag_id} at its top level; it makes {sorted(found)}")
    if clock == "standing":
        end_waiting(dag)
    run = dag.test(run_conf=json.loads(conf), mark_success_pattern=left_out or None)
    tasks = {}
    with create_session() as session:
        columns = (XComModel.task_id, XComModel.map_index, XComModel.key, XComModel.value)
        pushed = {
            # Airflow's own reading would turn the text "7" into the number.
            (task_id, map_index, key): deserialize(value)
            for task_id, map_index, key, value in session.execute(
                select(*columns).where(XComModel.dag_id == dag.dag_id, XComModel.run_id == run.run_id)
            )
        }
        events = session.execute(select(AssetEvent.source_task_id, AssetEvent.extra)).all()
    for task in run.get_task_instances():
        of_task = (task.task_id, task.map_index)
        keys = [link.xcom_key for link in dag.task_dict[task.task_id].operator_extra_links]
        tasks[task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]"] = {
            "state": str(task.state),
            "xcom": pushed.get((*of_task, "return_value")),
            "links": {key: value for key in keys if (value := pushed.get((*of_task, key)))},
        }
    result = {"state": str(run.state), "tasks": tasks, "events": dict(map(tuple, events))}
    Path(result_file).write_text(json.dumps(result, default=str))


def end_waiting(dag: DAG) -> None:
    """Let the timeouts of the DAG's sensors and waits pass after their first poll."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from duewheel.operators.wait import WaitForAnswerOperator
    from duewheel.sensors.due_messages import DueMessagesSensor

    kinds: dict[type[Any], object] = {DueMessagesSensor: 0.0, WaitForAnswerOperator: timedelta(0)}
    for kind, at_once in kinds.items():
        for task in dag.tasks:
            if isinstance(task, kind):
                task.timeout = at_once
            elif isinstance(task, MappedOperator) and issubclass(task.operator_class, kind):
                task.partial_kwargs["timeout"] = at_once


if __name__ == "__main__":
    main(*sys.argv[1:])
